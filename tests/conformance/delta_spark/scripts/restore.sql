-- The table goes back to version 1, and on from there.
CREATE TABLE {t} (a INT, b STRING) USING delta TBLPROPERTIES ('delta.columnMapping.mode' = 'name', 'delta.enableDeletionVectors' = 'true');
INSERT INTO {t} VALUES (1, 'x'), (2, 'y');
DELETE FROM {t} WHERE a = 1;
ALTER TABLE {t} DROP COLUMN b;
INSERT OVERWRITE {t} VALUES (9);
RESTORE TABLE {t} TO VERSION AS OF 1;
INSERT INTO {t} VALUES (3, 'z');
