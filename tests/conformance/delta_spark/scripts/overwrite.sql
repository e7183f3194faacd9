-- Overwrites: all of it, by a condition, by the partitions that the rows name.
CREATE TABLE {t} (a INT, p INT) USING delta PARTITIONED BY (p);
INSERT INTO {t} VALUES (1, 1), (2, 2), (3, 3);
INSERT INTO {t} REPLACE WHERE p = 2 SELECT 20, 2;
SET spark.sql.sources.partitionOverwriteMode = dynamic;
INSERT OVERWRITE {t} VALUES (30, 3), (40, 4);
SET spark.sql.sources.partitionOverwriteMode = static;
INSERT OVERWRITE {t} VALUES (50, 5);
DELETE FROM {t};
