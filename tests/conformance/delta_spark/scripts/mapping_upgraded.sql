-- Column mapping turned on later: files of before keep their names, reader version 2 without feature lists.
CREATE TABLE {t} (a INT, b STRING) USING delta;
INSERT INTO {t} VALUES (1, 'x');
ALTER TABLE {t} SET TBLPROPERTIES ('delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5', 'delta.columnMapping.mode' = 'name');
ALTER TABLE {t} RENAME COLUMN b TO c;
ALTER TABLE {t} ADD COLUMN b INT;
INSERT INTO {t} VALUES (2, 'y', 7);
