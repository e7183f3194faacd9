-- The oldest commits were cleaned up; history begins at a checkpoint.
CREATE TABLE {t} (a INT) USING delta TBLPROPERTIES ('delta.checkpointInterval' = '2', 'delta.logRetentionDuration' = 'interval 1 days', 'delta.enableInCommitTimestamps' = 'false');
INSERT INTO {t} VALUES (1), (2);
INSERT INTO {t} VALUES (3);
DELETE FROM {t} WHERE a = 1;
-- ! age 5
INSERT INTO {t} VALUES (4);
INSERT INTO {t} VALUES (5);
