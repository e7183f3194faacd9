-- Writes of an application that counts its own, the second one repeated and ignored.
CREATE TABLE {t} (a INT) USING delta TBLPROPERTIES ('delta.checkpointInterval' = '2');
SET spark.databricks.delta.write.txnAppId = app;
SET spark.databricks.delta.write.txnVersion = 1;
INSERT INTO {t} VALUES (1);
SET spark.databricks.delta.write.txnVersion = 2;
INSERT INTO {t} VALUES (2);
SET spark.databricks.delta.write.txnVersion = 2;
INSERT INTO {t} VALUES (3);
SET spark.databricks.delta.write.txnVersion = 3;
INSERT INTO {t} VALUES (4);
