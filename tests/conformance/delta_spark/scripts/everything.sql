-- Many features at once, as a table of some years has them.
CREATE TABLE {t} (id BIGINT, name STRING NOT NULL, at TIMESTAMP, amount DECIMAL(10, 2), tags ARRAY<STRING>, region STRING) USING delta PARTITIONED BY (region) TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', 'delta.columnMapping.mode' = 'name', 'delta.enableChangeDataFeed' = 'true', 'delta.enableRowTracking' = 'true', 'delta.enableInCommitTimestamps' = 'true', 'delta.enableTypeWidening' = 'true', 'delta.checkpointPolicy' = 'v2', 'delta.checkpointInterval' = '4');
INSERT INTO {t} VALUES (1, 'one', TIMESTAMP'2024-01-01 00:00:00', 1.50, ARRAY('a'), 'eu'), (2, 'two', NULL, NULL, NULL, 'us'), (3, 'three', TIMESTAMP'2024-01-03 00:00:00', 3.25, ARRAY(), NULL);
ALTER TABLE {t} ADD CONSTRAINT known CHECK (id > 0);
ALTER TABLE {t} RENAME COLUMN amount TO price;
UPDATE {t} SET price = 2.00 WHERE id = 2;
ALTER TABLE {t} ALTER COLUMN price TYPE DECIMAL(14, 4);
MERGE INTO {t} AS t USING (SELECT 3L AS id, 'drei' AS name UNION ALL SELECT 4L, 'vier') s ON t.id = s.id WHEN MATCHED THEN UPDATE SET name = s.name WHEN NOT MATCHED THEN INSERT (id, name, price, region) VALUES (s.id, s.name, 4.1234, 'eu');
ALTER TABLE {t} DROP COLUMN tags;
DELETE FROM {t} WHERE id = 1;
OPTIMIZE {t};
