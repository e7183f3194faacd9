-- A change feed over deletion vectors and mapped columns.
CREATE TABLE {t} (a INT, b STRING) USING delta TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true', 'delta.enableDeletionVectors' = 'true', 'delta.columnMapping.mode' = 'name');
INSERT INTO {t} SELECT /*+ COALESCE(1) */ id, concat('r', id) FROM range(6);
DELETE FROM {t} WHERE a = 1;
UPDATE {t} SET b = 'u' WHERE a = 2;
INSERT INTO {t} VALUES (7, 'n');
OPTIMIZE {t};
DELETE FROM {t} WHERE a > 3;
