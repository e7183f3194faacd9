"""SQL expressions over Arrow: Spark's meaning, and nothing but the row within reach."""

import datetime as dt
import os
import re
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_versioned.engines.expression import stored
from dagster_versioned.engines.sql import Names, evaluate, is_true, pairs
from dagster_versioned.errors import InvalidInput
from support.delta_writes import schema

SCHEMA = schema(
    ("A", "long"),
    ("f", "double"),
    ("g", "float"),
    ("d", "decimal(10,2)"),
    ("t", "string"),
    ("day", "date"),
    ("at", "timestamp"),
    ("s", schema(("X", "integer"), ("y", schema(("z", "string"))))),
    ("m", "long"),
    ('odd "name', "long"),
)
NOW = dt.datetime(2020, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
NAMES = Names({"target": SCHEMA}, NOW)
ROWS = pa.table(
    {
        "target.A": [1, -7, None],
        "target.f": [1.7, -1.7, float("nan")],
        "target.g": pa.array([0.1, -0.5, None], pa.float32()),
        "target.d": pa.array([Decimal("2.50"), Decimal("-2.50"), None], pa.decimal128(10, 2)),
        "target.t": ["a_b", "7", None],
        "target.day": [dt.date(2020, 2, 29), None, dt.date(1970, 1, 1)],
        "target.at": pa.array([NOW, None, NOW], pa.timestamp("us", "UTC")),
        "target.s": [{"X": 5, "y": {"z": "q"}}, None, {"X": None, "y": None}],
        "target.m": [3, 2, 0],
        'target.odd "name': [1, 2, 3],
    }
)


def value(text, wanted=None):
    """The expression's values in the three rows."""
    return evaluate(ROWS, {"value": (NAMES.resolve(text), wanted)})["value"].to_pylist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a + 1", [2, -6, None]),
        ("TARGET.a", [1, -7, None]),
        ("s.x + 1", [6, None, None]),
        ("target.s.Y.z", ["q", None, None]),
        ('`odd "name`', [1, 2, 3]),
        ("cast(f as int)", None),
        ("cast(d as bigint)", [2, -2, None]),
        ("try_cast(t as int)", [None, 7, None]),
        ("cast(a as string)", ["1", "-7", None]),
        ("cast(at as string)", ["2020-01-02 03:04:05", None, "2020-01-02 03:04:05"]),
        ("a / 2", [0.5, -3.5, None]),
        ("a div 2", [0, -3, None]),
        ("a % 3", [1, -1, None]),
        ("t like 'a\\\\_b'", [True, False, None]),
        ('t = "a_b"', [True, False, None]),
        ("a <=> null", [False, False, True]),
        ("a is null or a > 0", [True, False, True]),
        ("concat(t, 'x')", ["a_bx", "7x", None]),
        ("t || 'x'", ["a_bx", "7x", None]),
        ("coalesce(t, 'none')", ["a_b", "7", "none"]),
        ("if(a > 0, 'y', 'n')", ["y", "n", "n"]),
        ("case when a > 0 then 1 end", [1, None, None]),
        ("a in (1, 2)", [True, False, None]),
        ("a between -10 and 0", [False, True, None]),
        ("year(day)", [2020, None, 1970]),
        ("day = '2020-02-29'", [True, None, False]),
        ("date_format(at, 'yyyy-MM')", ["2020-01", None, "2020-01"]),
        ("day = to_date('2020-02-29')", [True, None, False]),
        ("day = to_date('29.02.2020', 'dd.MM.yyyy')", [True, None, False]),
        ("at = to_timestamp('20200102 03:04:05', 'yyyyMMdd HH:mm:ss')", [True, None, True]),
        ("at > timestamp '2020-01-02 00:00:00'", [True, None, True]),
        ("at = timestamp '2020-01-02T03:04:05Z'", [True, None, True]),
        ("at = timestamp '2020-01-02 03:04:05 UTC'", [True, None, True]),
        ("at = timestamp '2020-01-02 05:04:05+02:00'", [True, None, True]),
        ("at = timestamp '2020-01-02 04:04:05 Europe/Paris'", [True, None, True]),
        ("at = to_timestamp(concat('2020-01-02T05:04:05', '+02:00'))", [True, None, True]),
        ("at = cast(concat('2020-01-02 03:04:05', 'Z') as timestamp)", [True, None, True]),
        ("at = '2020-01-02T05:04:05+02:00'", [True, None, True]),
        ("at > timestamp '2020-01-02T03:04'", [True, None, True]),
        ("concat(t, '\x00') = 'a_b\x00'", [True, False, None]),
        ("t like '\x00%'", [False, False, None]),
        ("current_timestamp() = at", [True, None, True]),
        ("now() = at", [True, None, True]),
        ("current_date()", [NOW.date()] * 3),
        ("isnotnull(a) and not isnull(a)", [True, True, False]),
        ("substring(t, 1, 1)", ["a", "7", None]),
        ("substring(t, 0, 1)", ["a", "7", None]),
        ("substring(t, -2, 1)", ["_", "", None]),
        ("substring(t, -2, 2)", ["_b", "7", None]),
        ("substr(t, -9)", ["a_b", "7", None]),
        ("substr(t, a, 2)", ["a_", "", None]),
        ("left(t, 2)", ["a_", "7", None]),
        ("left(t, -1)", ["", "", None]),
        ("right(t, -1)", ["", "", None]),
        ("upper(t)", ["A_B", "7", None]),
        ("lower('É')", ["é"] * 3),
        ("dayofweek(day)", [7, None, 5]),
        ("extract(dow from day)", [7, None, 5]),
        ("g = 0.1", [False, False, None]),
        ("g > 0.1", [True, False, None]),
        ("g in (0.1, 2)", [False, False, None]),
        ("g + 0.1 = 0.2", [False, False, None]),
        ("g / 2 = 0.05", [False, False, None]),
        ("g = cast(0.1 as float)", [True, False, None]),
        ("f = f", [True, True, True]),  # NaN equals itself in Spark
        ("f > 1e308", [False, False, True]),  # and is the largest number
        ("round(d, 0)", [Decimal(3), Decimal(-3), None]),
        ("named_struct('x', a).x", [1, -7, None]),
        ("1", [1, 1, 1]),
        ("true", [True, True, True]),
        ("bigint(a)", [1, -7, None]),
        ("a -- a comment", [1, -7, None]),
    ],
)
def test_expressions_mean_what_they_mean_in_spark(text, expected):
    if expected is None:
        text, expected = "cast(coalesce(nullif(f, double('NaN')), 0) as int)", [1, -1, 0]
    assert value(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("b", "there is no column 'b'"),
        ("s.q", "cannot be evaluated"),
        ("", "no single expression"),
        ("a b", "no single expression"),
        ("a; drop table x", "no SQL"),
        ("a) from x where (b", "no single expression"),
        ("a, f", "no single expression"),
        ("a), (f", "no single expression"),
        ("select 1", "subquery"),
        ("(select max(a) from target)", "subquery"),
        ("a in (select 1)", "subquery"),
        ("exists (select 1)", "subquery"),
        ("sum(a)", "more than a value of the row"),
        ("row_number() over ()", "more than a value of the row"),
        ("explode(s)", "more than a value of the row"),
        ("*", "no single expression"),
        ("target.*", "no value"),
        ("?", "no value"),
        (":x", "no value"),
        ("rand() > 0.5", "not the same each time"),
        ("uuid()", "not the same each time"),
        ("getenv('HOME')", "function getenv is not known"),
        ("read_text('/etc/passwd')", "not known"),
        ("current_setting('x')", "not known"),
        ("a >", "no SQL"),
        ("'open", "no SQL"),
        ("t > 1", "cannot be evaluated"),
        ("a / 0", "has no result"),
        ("a % (m - 3)", "has no result"),
        ("cast(t as int)", "has no result"),
        ("cast(a * 1000 as tinyint)", "cannot be evaluated"),
        ("upper('straße')", "has no result"),
        ("lower('ΣΑΣ')", "has no result"),
        ("ln(f)", "another value in DuckDB"),
        ("round(f, 1)", "another value in DuckDB"),
        ("d / 3", "divides decimals"),
        ("d div 2", "another value in DuckDB"),
        ("cast(f as decimal(5,1))", "another value in DuckDB"),
        ("concat(t, f)", "another value in DuckDB"),
        ("day - day", "takes a date from a date"),
        ("day + interval '1 2' day to hour", "another value in DuckDB"),
        ("to_date(t)", "has no result"),
        ("to_date(t, 'yyyy')", "has no result"),
        ("to_date('2020-2-9', 'yyyy-MM-dd')", "has no result"),
        ("to_date('2020-02-30', 'yyyy-MM-dd')", "cannot be evaluated"),
        ("to_timestamp(t, 'MM-dd')", "another value in DuckDB"),
        ("to_timestamp(t, 'yyyy-MM-dd''T''HH')", "another value in DuckDB"),
        ("to_timestamp(t, t)", "another value in DuckDB"),
        ("locate('a', t, 2)", "another value in DuckDB"),
        ("date_format(at, 'SSS')", "another value in DuckDB"),
        ("extract(second from at)", "another value in DuckDB"),
        ("t rlike t", "another value in DuckDB"),
        ("t rlike '(?=a)'", "another value in DuckDB"),
        ("t rlike 'a++'", "another value in DuckDB"),
        ("t rlike '[a-z&&[^b]]'", "another value in DuckDB"),
        ("t rlike '\\\\bx'", "another value in DuckDB"),
        ("cast('1_0' as double)", "read alike"),
        ("cast('epoch' as date)", "read alike"),
        ("timestampdiff(DAY, day, at)", "another value in DuckDB"),
        ("datediff(MONTH, day, at)", "another value in DuckDB"),
        ("months_between(day, at)", "another value in DuckDB"),
        ("levenshtein(t, 'é')", "another value in DuckDB"),
        ("typeof(a)", "another value in DuckDB"),
        ("array_distinct(array(a, m))", "another value in DuckDB"),
        ("s < s", "orders lists, maps or structs"),
        ("array(a) >= array(m)", "orders lists, maps or structs"),
        ("cast(f as string)", "each engine spells in its own way"),
    ],
)
def test_what_is_no_value_of_the_row_is_refused_with_the_reason(text, reason):
    with pytest.raises(InvalidInput, match=reason):
        value(text)


def test_no_file_is_within_reach(tmp_path):
    secret = tmp_path / "secret.csv"
    secret.write_text("x\n1\n")
    for text in (f"read_csv('{secret}')", f"(select x from '{secret}')", f"getvariable('{secret}')"):
        with pytest.raises(InvalidInput):
            value(text)
    import duckdb

    from dagster_versioned.engines import sql

    with sql.database() as cursor:
        for statement in (
            f"SELECT * FROM read_csv('{secret}')",
            f"SELECT * FROM '{secret}'",
            f"COPY (SELECT 1) TO '{tmp_path / 'out'}'",
            "INSTALL httpfs",
            "SET enable_external_access = true",
            "SELECT * FROM secret_table",
        ):
            secret_table = pa.table({"x": [1]})  # noqa: F841 - which DuckDB would find by its name, if it were let
            with pytest.raises(duckdb.Error):
                cursor.execute(statement).fetchall()


def test_assigned_values_are_cast_as_spark_stores_them():
    assert value("f", "float")[0] == pytest.approx(1.7)
    assert value("coalesce(nullif(f, double('NaN')), 0)", "integer") == [1, -1, 0]
    assert value("d * 1.01", "decimal(10,2)") == [Decimal("2.53"), Decimal("-2.53"), None]
    assert value("a", "string") == ["1", "-7", None]
    assert value("day", "timestamp")[2] == dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    assert value("s", SCHEMA.field("s").type) == ROWS["target.s"].to_pylist()
    for text, wanted in (("a * 1000", "byte"), ("f", "long"), ("t", "integer"), ("1000", "decimal(3,0)")):
        with pytest.raises(InvalidInput, match="cannot be evaluated"):
            value(text, wanted)


def test_floats_are_not_rounded_to_decimals():
    with pytest.raises(InvalidInput, match="may round to other digits"):
        value("f", "decimal(10,2)")


def test_names_of_two_sides_need_their_side_where_both_have_them():
    other = schema(("a", "long"), ("only", "string"))
    names = Names({"target": SCHEMA, "source": other})
    assert names.resolve("only = t").columns == {("source", "only"), ("target", "t")}
    assert names.resolve("SOURCE.A = target.a").columns == {("source", "a"), ("target", "A")}
    with pytest.raises(InvalidInput, match=r"a column of target and source: write target\.a"):
        names.resolve("a = 1")
    equal = names.equalities("source.a = target.a and (t = only) and source.a = 1 or false", "target", "source")
    assert equal == []
    assert names.equalities("source.a = target.a and (t = only) and m > 1", "target", "source") == [
        ("A", "a"),
        ("t", "only"),
    ]


@given(
    ours=st.lists(st.one_of(st.none(), st.integers(0, 5)), max_size=8),
    theirs=st.lists(st.one_of(st.none(), st.integers(0, 5)), max_size=8),
)
def test_pairs_are_those_of_the_condition(ours, theirs):
    one = schema(("a", "long"))
    names = Names({"target": one, "source": one})
    target = pa.table({stored("target", "a"): pa.array(ours, pa.int64()), "i": pa.array(range(len(ours)), pa.int64())})
    source = pa.table(
        {stored("source", "a"): pa.array(theirs, pa.int64()), "j": pa.array(range(len(theirs)), pa.int64())}
    )
    for text, meets in (
        ("source.a = target.a", lambda x, y: x is not None and x == y),
        ("source.a <=> target.a", lambda x, y: x == y),
        ("source.a < target.a", lambda x, y: x is not None and y is not None and y < x),
    ):
        found = pairs(target, source, names.resolve(text), {"i": "i", "j": "j"}).to_pylist()
        expected = {(i, j) for i, x in enumerate(ours) for j, y in enumerate(theirs) if meets(x, y)}
        assert {(row["i"], row["j"]) for row in found} == expected
        assert len(found) == len(expected)


@given(st.lists(st.one_of(st.none(), st.integers(-3, 3)), min_size=1, max_size=20))
def test_truth_is_in_the_order_of_the_rows(values):
    rows = pa.table({"target.A": pa.array(values, pa.int64())})
    found = is_true(rows, NAMES.resolve("a > 0"))
    assert found.dtype == np.bool_
    assert found.tolist() == [value is not None and value > 0 for value in values]


def test_times_are_in_utc_wherever_the_machine_is():
    code = """
import datetime as dt
import pyarrow as pa
from dagster_versioned.delta.schema.types import schema_from_arrow
from dagster_versioned.engines.sql import Names, arrow_rows, database, evaluate
at = pa.array([dt.datetime(2020, 1, 1, 2)], pa.timestamp("us", "UTC"))
names = Names({"rows": schema_from_arrow(pa.schema([("moment", at.type)]))})
rows = evaluate(pa.table({"rows.moment": at}), {"hour": (names.resolve("hour(moment)"), "integer")})
with database() as connection:
    connection.register("given", pa.table({"moment": at}))
    print(rows["hour"][0], arrow_rows(connection.execute("SELECT moment FROM given")).schema[0].type.tz)
"""
    environment = {**os.environ, "TZ": "America/New_York"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "UTC"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("at > timestamp '2020-01-02 00:00:00 Europe/Nowhere'", "2020-01-02 00:00:00 Europe/Nowhere"),
        ("at > timestamp '2020-01-02T00:00:00+19:00'", "2020-01-02T00:00:00+19:00"),
        ("at > cast('soon' as timestamp)", "soon"),
        ("at > timestamp_ntz '2020-01-02T00:00:00Z'", "2020-01-02T00:00:00Z"),
        ("a = cast('0x10' as int)", "0x10"),
    ],
)
def test_a_literal_that_the_engines_read_otherwise_is_refused_before_any_row(text, value):
    with pytest.raises(InvalidInput, match=f"'{re.escape(value)}' is no .* that both engines read alike"):
        NAMES.resolve(text)
