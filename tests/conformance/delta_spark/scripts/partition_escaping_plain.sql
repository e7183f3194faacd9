-- As partition_escaping, without column mapping, so that the values are in the folders' names.
CREATE TABLE {t} (v INT, p STRING) USING delta PARTITIONED BY (p);
INSERT INTO {t} VALUES (1, 'a/b=c %41+:?#&'), (2, 'ü 🐘'), (3, ''), (4, NULL), (6, 'x y'), (7, 'a''b"c\\d');
DELETE FROM {t} WHERE p = 'ü 🐘';
