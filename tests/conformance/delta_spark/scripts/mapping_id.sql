-- Column mapping by field id, checkpointed.
CREATE TABLE {t} (a INT, b STRING, s STRUCT<x: INT, y: ARRAY<STRUCT<z: INT>>>) USING delta TBLPROPERTIES ('delta.columnMapping.mode' = 'id', 'delta.checkpointInterval' = '3');
INSERT INTO {t} VALUES (1, 'x', STRUCT(1, ARRAY(STRUCT(2))));
ALTER TABLE {t} RENAME COLUMN a TO k;
ALTER TABLE {t} RENAME COLUMN s.x TO w;
INSERT INTO {t} VALUES (2, 'y', NULL), (3, NULL, STRUCT(NULL, ARRAY(NULL)));
ALTER TABLE {t} DROP COLUMN b;
DELETE FROM {t} WHERE k = 2;
