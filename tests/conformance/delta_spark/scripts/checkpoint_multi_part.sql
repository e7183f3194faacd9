-- A checkpoint in several parts.
SET spark.databricks.delta.checkpoint.partSize = 2;
CREATE TABLE {t} (a INT, p INT) USING delta PARTITIONED BY (p) TBLPROPERTIES ('delta.checkpointInterval' = '2');
INSERT INTO {t} VALUES (1, 1), (2, 2), (3, 3), (4, 4), (5, 5);
DELETE FROM {t} WHERE p = 2;
INSERT INTO {t} VALUES (6, 6);
