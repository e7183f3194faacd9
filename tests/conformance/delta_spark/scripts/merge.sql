-- Merges with conditions on every clause.
CREATE TABLE {t} (k INT, v STRING, n INT) USING delta;
INSERT INTO {t} VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3), (NULL, 'n', 0);
MERGE INTO {t} AS t USING (SELECT * FROM VALUES (1, 'A', 10), (2, 'B', 20), (5, 'E', 50), (6, 'F', 60) AS s(k, v, n)) s ON t.k = s.k WHEN MATCHED AND s.n > 15 THEN DELETE WHEN MATCHED THEN UPDATE SET v = s.v, n = t.n + s.n WHEN NOT MATCHED AND s.n < 60 THEN INSERT (k, v) VALUES (s.k, s.v) WHEN NOT MATCHED BY SOURCE AND t.k = 3 THEN UPDATE SET v = 'orphan';
MERGE INTO {t} AS t USING (SELECT 5 AS k) s ON t.k = s.k WHEN MATCHED THEN DELETE;
