-- Row tracking turned on in a table with files, which are given ids.
CREATE TABLE {t} (a INT) USING delta;
INSERT INTO {t} VALUES (1), (2);
INSERT INTO {t} VALUES (3);
ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableRowTracking' = 'true');
UPDATE {t} SET a = 10 WHERE a = 1;
