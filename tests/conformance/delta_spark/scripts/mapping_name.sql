-- Column mapping by name from the start: columns renamed, dropped, added, added again.
CREATE TABLE {t} (a INT, `b c,;` STRING, d DOUBLE) USING delta TBLPROPERTIES ('delta.columnMapping.mode' = 'name');
INSERT INTO {t} VALUES (1, 'x', 1.5), (2, NULL, NULL);
ALTER TABLE {t} RENAME COLUMN a TO b;
ALTER TABLE {t} DROP COLUMN d;
INSERT INTO {t} VALUES (3, 'z');
ALTER TABLE {t} ADD COLUMN d INT FIRST;
ALTER TABLE {t} RENAME COLUMN b TO a;
INSERT INTO {t} VALUES (9, 4, 'w');
UPDATE {t} SET d = a WHERE a < 3;
