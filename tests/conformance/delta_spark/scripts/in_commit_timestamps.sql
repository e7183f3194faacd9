-- Times in the commits, from version 2 on.
CREATE TABLE {t} (a INT) USING delta;
INSERT INTO {t} VALUES (1);
ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableInCommitTimestamps' = 'true');
INSERT INTO {t} VALUES (2);
