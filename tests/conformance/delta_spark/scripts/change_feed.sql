-- A change feed of every kind of change, from the first version on.
CREATE TABLE {t} (a INT, b STRING, p INT) USING delta PARTITIONED BY (p) TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true');
INSERT INTO {t} VALUES (1, 'a', 1), (2, 'b', 1), (3, 'c', 2);
UPDATE {t} SET b = 'B' WHERE a = 2;
DELETE FROM {t} WHERE a = 1;
MERGE INTO {t} USING (SELECT 2 AS a, 'M' AS b, 1 AS p UNION ALL SELECT 4, 'd', 2) s ON {t}.a = s.a WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT * WHEN NOT MATCHED BY SOURCE THEN DELETE;
INSERT OVERWRITE {t} VALUES (9, 'z', 3);
DELETE FROM {t} WHERE p = 3;
