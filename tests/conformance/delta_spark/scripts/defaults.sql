-- Column defaults, one added later for rows to come.
CREATE TABLE {t} (a INT, b STRING DEFAULT 'none', c DATE DEFAULT DATE'2024-01-01') USING delta TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported');
INSERT INTO {t} (a) VALUES (1);
INSERT INTO {t} (a, b) VALUES (2, NULL);
ALTER TABLE {t} ADD COLUMN d INT;
ALTER TABLE {t} ALTER COLUMN d SET DEFAULT 7;
INSERT INTO {t} (a, c) VALUES (3, DEFAULT);
ALTER TABLE {t} ALTER COLUMN b DROP DEFAULT;
INSERT INTO {t} (a) VALUES (4);
