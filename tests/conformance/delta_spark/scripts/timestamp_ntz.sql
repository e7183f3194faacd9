-- Timestamps without a zone, in columns, nested and as a partition, before and after the feature came.
CREATE TABLE {t} (a INT) USING delta;
INSERT INTO {t} VALUES (1);
ALTER TABLE {t} SET TBLPROPERTIES ('delta.feature.timestampNtz' = 'supported');
ALTER TABLE {t} ADD COLUMNS (t TIMESTAMP_NTZ, s STRUCT<u: TIMESTAMP_NTZ>);
INSERT INTO {t} VALUES (2, TIMESTAMP_NTZ'2024-03-31 02:30:00.000001', STRUCT(TIMESTAMP_NTZ'1900-01-01 00:00:00'));
