-- A checkpoint every second commit, its statistics as JSON.
CREATE TABLE {t} (a INT, p STRING) USING delta PARTITIONED BY (p) TBLPROPERTIES ('delta.checkpointInterval' = '2');
INSERT INTO {t} VALUES (1, 'x'), (2, NULL);
INSERT INTO {t} VALUES (3, 'x');
DELETE FROM {t} WHERE a = 1;
INSERT INTO {t} VALUES (4, 'y');
INSERT INTO {t} VALUES (5, 'z');
