-- The writer rules of IcebergCompatV2, with lists and maps, whose elements have field ids too.
CREATE TABLE {t} (a INT, l ARRAY<STRUCT<b: INT>>, m MAP<STRING, INT>) USING delta TBLPROPERTIES ('delta.columnMapping.mode' = 'name', 'delta.enableIcebergCompatV2' = 'true');
INSERT INTO {t} VALUES (1, ARRAY(STRUCT(1)), MAP('x', 1)), (2, NULL, NULL);
ALTER TABLE {t} RENAME COLUMN a TO k;
UPDATE {t} SET k = 20 WHERE k = 2;
