"""Questions in SQL that are none, or ask for more than the rows that they are given."""

import logging

import pyarrow as pa
import pytest

from dagster_versioned.errors import InvalidInput
from dagster_versioned.odf.queries.ad_hoc import query
from support.float_values import COLUMNS, VALUES, expected, table

TEAMS = pa.table({"id": [1, 2], "team": ["red", "blue"]})


def rows_of(name: str) -> pa.Table:
    assert name == "teams"
    return TEAMS


def test_a_query_sees_the_tables_that_it_names_each_once():
    asked: list[str] = []

    def given(name: str) -> pa.Table:
        asked.append(name)
        return TEAMS

    sql = 'WITH x AS (SELECT * FROM A) SELECT (SELECT max(id) FROM "b.c") AS n FROM x JOIN a USING (id)'
    assert query(sql, given).to_pylist() == [{"n": 2}, {"n": 2}]
    assert sorted(asked) == ["A", "b.c"]
    made = "SELECT * FROM range(1) r(a), unnest([2]) u(b), json_each('[3]') j(c), (VALUES (4)) v(d)"
    assert query(made, rows_of).select(["a", "b", "d"]).to_pylist() == [{"a": 0, "b": 2, "d": 4}]
    counted = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3) SELECT max(i) AS i FROM n"
    assert query(counted, rows_of).to_pylist() == [{"i": 3}]
    assert query("SELECT 1 AS n", rows_of).to_pylist() == [{"n": 1}]
    assert query("FROM teams ORDER BY id DESC LIMIT 1;", rows_of, limit=5).to_pylist() == [{"id": 2, "team": "blue"}]
    assert query("SELECT * FROM teams ORDER BY id DESC", rows_of, limit=1)["id"].to_pylist() == [2]
    with pytest.raises(InvalidInput, match="The limit is -1"):
        query("SELECT * FROM teams", rows_of, limit=-1)


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize(
    ("condition", "same"),
    [
        ("{} > 100", "{} > 100"),
        ("NOT ({} <= 100)", "not ({} <= 100)"),
        ("{} BETWEEN 6 AND 'NaN'", "{} between 6 and double('NaN')"),
        ("{} IN (0, 8)", "{} in (0D, 8D)"),
    ],
)
def test_a_query_compares_nan_and_zeros_as_sql_does(condition, same, column):
    steps = f"WITH x AS (SELECT * FROM rows) SELECT id FROM x WHERE {condition.format(column)} ORDER BY id"
    assert query(steps, lambda _: table(VALUES))["id"].to_pylist() == expected(same)


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("DROP TABLE teams", "it is not one SELECT"),
        ("INSERT INTO teams VALUES (3, 'x')", "it is not one SELECT"),
        ("SELECT 1; DROP TABLE teams", "it is not one SELECT"),
        ("WITH gone AS (DELETE FROM teams RETURNING *) SELECT * FROM gone", "is refused"),
        ("COPY (SELECT 1) TO 'x.csv'", "it is not one SELECT"),
        ("ATTACH 'x.db'", "it is not one SELECT"),
        ("EXPLAIN SELECT 1", "it is not one SELECT"),
        ("", "it is not one SELECT"),
        ("SELECT", "is refused"),
        ("SELECT * FROM read_csv('/etc/passwd')", "is refused"),
        ("SELECT * FROM information_schema.tables", 'Quote the name of a dataset: "information_schema.tables"'),
        ("SELECT * FROM duckdb_settings()", "duckdb_settings(…) is no table that it sees"),
        ("SELECT id FROM teams, LATERAL (SELECT * FROM DuckDB_Memory())", "is no table that it sees (teams)"),
        ("SELECT (SELECT value FROM duckdb_settings() LIMIT 1) FROM teams", "is no table that it sees"),
        ("SELECT * FROM teams POSITIONAL JOIN pragma_platform()", "is no table that it sees"),
        ("SELECT * FROM query('SELECT * FROM duckdb_settings()')", "query(…) is no table"),
        ("SELECT * FROM read_text('/etc/passwd')", "is no table that it sees"),
        ("SELECT * FROM glob('/*')", "is no table that it sees"),
        ("SELECT * FROM arrow_scan(1, 2, 3)", "is no table that it sees"),
        ("SELECT current_setting('memory_limit')", "current_setting(…) has a value of this process"),
        ("SELECT \"CURRENT_SETTING\"('memory_limit')", "has a value of this process"),
        ("SELECT main.version(), getenv('HOME')", "has a value of this process"),
        ("SELECT * FROM (DESCRIBE SELECT 1)", "SHOW, DESCRIBE and SUMMARIZE are no tables"),
        ("SET threads = 1", "it is not one SELECT"),
        ("SELECT nothing FROM teams", 'Referenced column "nothing" not found'),
        ("SELECT 1/0::DECIMAL(5,2) + id::INT8 // 0 + 'x'::INT FROM teams", "is refused"),
        ("SELECT a.id, b.id FROM teams a JOIN teams b ON a.id < b.id", "two columns 'id'"),
        ("SELECT " + "(" * 5000 + "1" + ")" * 5000, "is refused"),
    ],
)
def test_what_is_no_question_is_refused_in_a_sentence(caplog: pytest.LogCaptureFixture, sql: str, problem: str):
    with caplog.at_level(logging.DEBUG, "sqlglot"), pytest.raises(InvalidInput) as refused:
        query(sql, rows_of)
    assert problem in str(refused.value)
    assert "Nothing was" in str(refused.value)
    told = [record for record in caplog.records if record.name.startswith(("sqlglot", "dagster_versioned"))]
    assert (len(str(refused.value).splitlines()), told) == (1, [])
