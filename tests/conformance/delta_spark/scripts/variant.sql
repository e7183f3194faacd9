-- Variants, top-level and nested.
CREATE TABLE {t} (a INT, v VARIANT, s STRUCT<w: VARIANT>) USING delta;
INSERT INTO {t} SELECT 1, parse_json('{"k": [1, "x", null, 2.50]}'), STRUCT(parse_json('true'));
INSERT INTO {t} SELECT 2, NULL, STRUCT(NULL);
DELETE FROM {t} WHERE a = 2;
