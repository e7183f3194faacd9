-- Files joined, and ordered along a space-filling curve.
CREATE TABLE {t} (a INT, b INT, p INT) USING delta PARTITIONED BY (p);
INSERT INTO {t} VALUES (1, 9, 1), (2, 8, 1);
INSERT INTO {t} VALUES (3, 7, 1), (4, 6, 2);
INSERT INTO {t} VALUES (5, 5, 2);
OPTIMIZE {t} WHERE p = 1;
OPTIMIZE {t} ZORDER BY (a, b);
