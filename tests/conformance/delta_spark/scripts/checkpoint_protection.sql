-- A feature given up again: checkpointProtection comes in its place.
CREATE TABLE {t} (a INT) USING delta TBLPROPERTIES ('delta.checkpointPolicy' = 'v2', 'delta.feature.vacuumProtocolCheck' = 'supported');
INSERT INTO {t} VALUES (1), (2);
ALTER TABLE {t} DROP FEATURE v2Checkpoint;
INSERT INTO {t} VALUES (3);
