-- V2 checkpoints in JSON, with sidecars.
SET spark.databricks.delta.checkpointV2.topLevelFileFormat = json;
CREATE TABLE {t} (a INT, p INT) USING delta PARTITIONED BY (p) TBLPROPERTIES ('delta.checkpointInterval' = '2', 'delta.checkpointPolicy' = 'v2');
INSERT INTO {t} VALUES (1, 1), (2, 2), (3, 3);
DELETE FROM {t} WHERE p = 2;
INSERT INTO {t} VALUES (4, 4);
