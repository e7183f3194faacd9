-- The writer rules of IcebergCompatV1.
CREATE TABLE {t} (a INT, p INT) USING delta PARTITIONED BY (p) TBLPROPERTIES ('delta.columnMapping.mode' = 'name', 'delta.enableIcebergCompatV1' = 'true');
INSERT INTO {t} VALUES (1, 1), (2, 2);
DELETE FROM {t} WHERE a = 1;
