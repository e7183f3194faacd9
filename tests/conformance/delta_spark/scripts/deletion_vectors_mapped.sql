-- Deletion vectors over mapped columns and partitions, checkpointed.
CREATE TABLE {t} (a INT, p STRING) USING delta PARTITIONED BY (p) TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', 'delta.columnMapping.mode' = 'name', 'delta.checkpointInterval' = '3');
INSERT INTO {t} SELECT /*+ COALESCE(1) */ id, concat('p', id % 3) FROM range(9);
DELETE FROM {t} WHERE a = 3;
ALTER TABLE {t} RENAME COLUMN a TO n;
DELETE FROM {t} WHERE n = 6;
DELETE FROM {t} WHERE p = 'p1';
