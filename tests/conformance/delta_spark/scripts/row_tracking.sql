-- Row ids through update, delete, merge and optimize.
CREATE TABLE {t} (a INT, b STRING) USING delta TBLPROPERTIES ('delta.enableRowTracking' = 'true');
INSERT INTO {t} VALUES (1, 'a'), (2, 'b'), (3, 'c');
INSERT INTO {t} VALUES (4, 'd');
UPDATE {t} SET b = 'B' WHERE a = 2;
MERGE INTO {t} USING (SELECT 3 AS a, 'M' AS b UNION ALL SELECT 5, 'e') s ON {t}.a = s.a WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *;
OPTIMIZE {t};
DELETE FROM {t} WHERE a = 4;
