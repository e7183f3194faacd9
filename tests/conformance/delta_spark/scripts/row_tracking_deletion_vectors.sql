-- Row ids with deletion vectors, partitions, column mapping and a checkpoint.
CREATE TABLE {t} (a INT, p INT) USING delta PARTITIONED BY (p) TBLPROPERTIES ('delta.enableRowTracking' = 'true', 'delta.enableDeletionVectors' = 'true', 'delta.columnMapping.mode' = 'name', 'delta.checkpointInterval' = '4');
INSERT INTO {t} VALUES (1, 1), (2, 1), (3, 2);
UPDATE {t} SET a = 20 WHERE a = 2;
INSERT INTO {t} VALUES (4, 2);
OPTIMIZE {t};
