-- A change feed turned on at version 2.
CREATE TABLE {t} (a INT) USING delta;
INSERT INTO {t} VALUES (1), (2);
ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true');
UPDATE {t} SET a = 3 WHERE a = 2;
