-- NOT NULL at two depths and CHECK constraints, one dropped again.
CREATE TABLE {t} (a INT NOT NULL, b STRING, s STRUCT<c: INT NOT NULL> NOT NULL) USING delta;
ALTER TABLE {t} ADD CONSTRAINT positive CHECK (a > 0);
ALTER TABLE {t} ADD CONSTRAINT short CHECK (length(b) < 5 OR b IS NULL);
INSERT INTO {t} VALUES (1, 'x', STRUCT(1)), (2, NULL, STRUCT(2));
ALTER TABLE {t} DROP CONSTRAINT short;
INSERT INTO {t} VALUES (3, 'longer than five', STRUCT(3));
ALTER TABLE {t} ALTER COLUMN a DROP NOT NULL;
