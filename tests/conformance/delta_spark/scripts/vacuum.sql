-- A vacuum that checks the protocol, and its two entries in the log.
CREATE TABLE {t} (a INT) USING delta TBLPROPERTIES ('delta.feature.vacuumProtocolCheck' = 'supported');
INSERT INTO {t} VALUES (1), (2);
INSERT INTO {t} VALUES (3);
OPTIMIZE {t};
VACUUM {t} RETAIN 0 HOURS;
