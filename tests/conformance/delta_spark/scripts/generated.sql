-- Generated columns, the table partitioned by one.
-- ! create {"columns": [["at", "TIMESTAMP"], ["v", "INT"], ["day", "DATE", {"generatedAlwaysAs": "CAST(at AS DATE)"}], ["twice", "INT", {"generatedAlwaysAs": "v * 2"}]], "partitionedBy": ["day"]}
INSERT INTO {t} (at, v) VALUES (TIMESTAMP'2024-01-01 10:00:00', 1), (TIMESTAMP'2024-01-02 11:00:00', 2);
INSERT INTO {t} (at, v, day, twice) VALUES (NULL, NULL, NULL, NULL);
UPDATE {t} SET v = 5 WHERE v = 2;
