-- A partition column is widened.
CREATE TABLE {t} (v INT, p TINYINT) USING delta PARTITIONED BY (p) TBLPROPERTIES ('delta.enableTypeWidening' = 'true');
INSERT INTO {t} VALUES (1, 1), (2, NULL);
ALTER TABLE {t} ALTER COLUMN p TYPE INT;
INSERT INTO {t} VALUES (3, 70000);
