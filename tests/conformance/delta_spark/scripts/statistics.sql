-- Statistics of chosen columns, of long text, of none; files under random folders.
CREATE TABLE {t} (a INT, b STRING, c DOUBLE, s STRUCT<d: STRING, e: INT>) USING delta TBLPROPERTIES ('delta.dataSkippingStatsColumns' = 'b,s.e', 'delta.randomizeFilePrefixes' = 'true');
INSERT INTO {t} VALUES (1, repeat('ü', 40), double('NaN'), STRUCT('x', 1)), (2, repeat('a', 100), 1.0, STRUCT(NULL, NULL));
ALTER TABLE {t} SET TBLPROPERTIES ('delta.dataSkippingNumIndexedCols' = '0');
ALTER TABLE {t} UNSET TBLPROPERTIES ('delta.dataSkippingStatsColumns');
INSERT INTO {t} VALUES (3, 'z', -0.0, NULL);
