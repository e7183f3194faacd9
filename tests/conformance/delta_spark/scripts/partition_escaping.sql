-- Partition values that need escaping in paths and again in the log; empty text is null.
CREATE TABLE {t} (v INT, `p q` STRING) USING delta PARTITIONED BY (`p q`) TBLPROPERTIES ('delta.columnMapping.mode' = 'name');
INSERT INTO {t} VALUES (1, 'a/b=c %41+:?#&'), (2, 'ü 🐘'), (3, ''), (4, NULL), (5, '__HIVE_DEFAULT_PARTITION__'), (6, '.'), (7, 'a''b"c\\d');
DELETE FROM {t} WHERE `p q` = 'ü 🐘';
