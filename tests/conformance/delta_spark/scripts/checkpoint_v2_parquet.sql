-- V2 checkpoints in Parquet, with several sidecars, of a table with deletion vectors.
SET spark.databricks.delta.checkpointV2.topLevelFileFormat = parquet;
SET spark.databricks.delta.checkpoint.partSize = 2;
CREATE TABLE {t} (a INT, p INT) USING delta PARTITIONED BY (p) TBLPROPERTIES ('delta.checkpointInterval' = '2', 'delta.checkpointPolicy' = 'v2', 'delta.enableDeletionVectors' = 'true');
INSERT INTO {t} VALUES (1, 1), (2, 2), (3, 3), (10, 1), (20, 2);
DELETE FROM {t} WHERE a = 2;
INSERT INTO {t} VALUES (4, 4);
