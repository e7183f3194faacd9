-- Columns come: by ALTER at places and depths, by a write, by a merge; then the table is replaced.
CREATE TABLE {t} (a INT, s STRUCT<x: INT>, l ARRAY<STRUCT<y: INT>>) USING delta COMMENT 'grows' ;
INSERT INTO {t} VALUES (1, STRUCT(1), ARRAY(STRUCT(1)));
ALTER TABLE {t} ADD COLUMNS (b STRING COMMENT 'second' AFTER a, s.z DATE FIRST, l.element.w STRING);
INSERT INTO {t} VALUES (2, 'b', STRUCT(DATE'2024-01-01', 2), ARRAY(STRUCT(2, 'w')));
SET spark.databricks.delta.schema.autoMerge.enabled = true;
INSERT INTO {t} SELECT 3 AS a, 'c' AS b, STRUCT(NULL AS z, 3 AS x) AS s, ARRAY(STRUCT(3 AS y, 'v' AS w)) AS l, true AS extra;
MERGE INTO {t} AS t USING (SELECT 4 AS a, 'm' AS b, 1.5D AS more) s ON t.a = s.a WHEN NOT MATCHED THEN INSERT *;
ALTER TABLE {t} ALTER COLUMN b FIRST;
CREATE OR REPLACE TABLE {t} USING delta PARTITIONED BY (q) AS SELECT 1L AS w, 'q' AS q;
