-- Every legacy writer version's features by version alone, without feature lists.
CREATE TABLE {t} (a INT NOT NULL, b INT) USING delta TBLPROPERTIES ('delta.minReaderVersion' = '1', 'delta.minWriterVersion' = '2');
INSERT INTO {t} VALUES (1, 1);
ALTER TABLE {t} SET TBLPROPERTIES ('delta.minWriterVersion' = '4');
ALTER TABLE {t} SET TBLPROPERTIES ('delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '6');
ALTER TABLE {t} ADD CONSTRAINT c CHECK (b >= 0);
INSERT INTO {t} VALUES (2, 2);
