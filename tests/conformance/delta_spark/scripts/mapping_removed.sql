-- Column mapping given up: the files are rewritten under the columns' own names.
CREATE TABLE {t} (a INT, b STRING) USING delta TBLPROPERTIES ('delta.columnMapping.mode' = 'name');
INSERT INTO {t} VALUES (1, 'x'), (2, 'y');
ALTER TABLE {t} RENAME COLUMN b TO c;
SET spark.databricks.delta.columnMapping.allowRemoval = true;
ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'none');
INSERT INTO {t} VALUES (3, 'z');
