-- A partition column is renamed; partition values stand under its physical name.
CREATE TABLE {t} (a INT, p INT) USING delta PARTITIONED BY (p) TBLPROPERTIES ('delta.columnMapping.mode' = 'name', 'delta.checkpointInterval' = '3');
INSERT INTO {t} VALUES (1, 1), (2, 2);
ALTER TABLE {t} RENAME COLUMN p TO q;
INSERT INTO {t} VALUES (3, NULL), (4, 1);
DELETE FROM {t} WHERE q = 2;
