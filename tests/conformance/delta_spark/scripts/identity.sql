-- Identity columns: always and by default.
-- ! create {"columns": [["id", "BIGINT", {"generatedAlwaysAs": [10, 5]}], ["other", "BIGINT", {"generatedByDefaultAs": []}], ["v", "STRING"]]}
INSERT INTO {t} (v) VALUES ('a'), ('b');
INSERT INTO {t} (other, v) VALUES (100, 'c');
INSERT INTO {t} (v) VALUES ('d');
ALTER TABLE {t} ALTER COLUMN other SYNC IDENTITY;
INSERT INTO {t} (v) VALUES ('e');
