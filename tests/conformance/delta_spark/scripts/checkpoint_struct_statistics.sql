-- Statistics and partition values as structs in the checkpoint, and no JSON.
CREATE TABLE {t} (a INT, s STRUCT<b: STRING, c: TIMESTAMP>, p DATE) USING delta PARTITIONED BY (p) TBLPROPERTIES ('delta.checkpointInterval' = '2', 'delta.checkpoint.writeStatsAsStruct' = 'true', 'delta.checkpoint.writeStatsAsJson' = 'false');
INSERT INTO {t} VALUES (1, STRUCT('x', TIMESTAMP'2024-01-01 00:00:00'), DATE'2024-01-01');
INSERT INTO {t} VALUES (2, STRUCT('y', NULL), NULL), (3, NULL, DATE'2024-01-02');
INSERT INTO {t} VALUES (4, STRUCT(NULL, NULL), DATE'2024-01-02');
