-- V2 checkpoints that the table gave up again.
SET spark.databricks.delta.checkpointV2.topLevelFileFormat = parquet;
CREATE TABLE {t} (a INT) USING delta TBLPROPERTIES ('delta.checkpointInterval' = '1', 'delta.checkpointPolicy' = 'v2');
INSERT INTO {t} VALUES (1), (2);
ALTER TABLE {t} SET TBLPROPERTIES ('delta.checkpointPolicy' = 'classic');
INSERT INTO {t} VALUES (3);
