-- Renames and drops at every depth: structs in structs, arrays and maps.
CREATE TABLE {t} (s STRUCT<a: INT, b: STRUCT<c: STRING, d: INT>>, l ARRAY<STRUCT<e: INT, f: STRING>>, m MAP<STRUCT<g: INT>, STRUCT<h: INT, i: STRING>>) USING delta TBLPROPERTIES ('delta.columnMapping.mode' = 'name');
INSERT INTO {t} VALUES (STRUCT(1, STRUCT('x', 2)), ARRAY(STRUCT(3, 'y')), MAP(STRUCT(4), STRUCT(5, 'z')));
ALTER TABLE {t} RENAME COLUMN s.b.c TO cc;
ALTER TABLE {t} DROP COLUMN l.element.f;
ALTER TABLE {t} RENAME COLUMN m.value.h TO hh;
ALTER TABLE {t} RENAME COLUMN m.key.g TO gg;
ALTER TABLE {t} ADD COLUMN s.b.n DATE;
INSERT INTO {t} VALUES (STRUCT(10, STRUCT('X', 20, DATE'2024-01-01')), ARRAY(STRUCT(30), NULL), MAP(STRUCT(40), STRUCT(50, NULL)));
