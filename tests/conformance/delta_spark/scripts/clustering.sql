-- A clustered table, optimized, then clustered by another column, then by none.
CREATE TABLE {t} (a INT, b STRING, s STRUCT<c: INT>) USING delta CLUSTER BY (a, s.c);
INSERT INTO {t} VALUES (1, 'x', STRUCT(1)), (2, 'y', STRUCT(2));
INSERT INTO {t} VALUES (3, 'z', NULL);
OPTIMIZE {t};
ALTER TABLE {t} CLUSTER BY (b);
INSERT INTO {t} VALUES (4, NULL, STRUCT(4));
ALTER TABLE {t} CLUSTER BY NONE;
