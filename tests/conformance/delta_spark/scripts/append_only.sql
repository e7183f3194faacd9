-- An append-only table.
CREATE TABLE {t} (a INT) USING delta TBLPROPERTIES ('delta.appendOnly' = 'true');
INSERT INTO {t} VALUES (1), (2);
INSERT INTO {t} VALUES (3);
