-- Rows deleted, updated and merged by deletion vectors, a vector replaced by a larger one.
CREATE TABLE {t} (a INT, b STRING) USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true');
INSERT INTO {t} SELECT /*+ COALESCE(1) */ id, concat('r', id) FROM range(10);
DELETE FROM {t} WHERE a IN (1, 3);
DELETE FROM {t} WHERE a = 5;
UPDATE {t} SET b = 'u' WHERE a = 7;
MERGE INTO {t} USING (SELECT id AS a, 'm' AS b FROM range(8, 12)) s ON {t}.a = s.a WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *;
DELETE FROM {t} WHERE a < 5;
