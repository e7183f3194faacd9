-- Text of a limited length, which is a string with a note in the schema.
CREATE TABLE {t} (c CHAR(4), v VARCHAR(5), s STRUCT<w: VARCHAR(3)>) USING delta;
INSERT INTO {t} VALUES ('ab', 'abcde', STRUCT('xyz')), (NULL, NULL, NULL);
