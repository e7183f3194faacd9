from datetime import UTC, date, datetime, timedelta
from math import inf, nextafter
from typing import Any

import pytest

from dagster_versioned.delta.files.predicate import (
    And,
    Comparison,
    Constant,
    In,
    IsNull,
    Not,
    Opaque,
    Or,
    Predicate,
    StartsWith,
    parse_predicate,
    paths_of,
)
from dagster_versioned.delta.schema.types import ArrayType, MapType, StructField, StructType
from dagster_versioned.errors import InvalidInput

SCHEMA = StructType(
    [
        StructField("i", "integer"),
        StructField("l", "long"),
        StructField("f", "float"),
        StructField("d", "double"),
        StructField("n", "decimal(10,2)"),
        StructField("s", "string"),
        StructField("b", "boolean"),
        StructField("x", "binary"),
        StructField("day", "date"),
        StructField("at", "timestamp"),
        StructField("local", "timestamp_ntz"),
        StructField("o", StructType([StructField("In.ner", StructType([StructField("k", "long")]))])),
        StructField("a", ArrayType("long")),
        StructField("m", MapType("string", "long")),
        StructField("twice", "long"),
        StructField("Twice", "long"),
        StructField("nocase", "string", True, {"__COLLATIONS": {"nocase": "spark.UTF8_LCASE"}}),
    ]
)
HOURS = timedelta(hours=18)


def parse(sql: str, qualifier: str | None = None) -> Predicate:
    return parse_predicate(sql, SCHEMA, qualifier)


def same(path: str, operator: Any, value: Any) -> Comparison:
    return Comparison((path,), operator, value, value)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("i = 5", same("i", "=", 5)),
        ("I == -5", same("i", "=", -5)),
        ("5 < i", same("i", ">", 5)),
        ("5 >= i", same("i", "<=", 5)),
        ("i <> 5", Not(same("i", "=", 5))),
        ("i = 5L", same("i", "=", 5)),
        ("i = '5'", same("i", "=", 5)),
        ("i = null", Constant(None)),
        ("i is null", IsNull(("i",))),
        ("i is not null", Not(IsNull(("i",)))),
        ("i <=> null", IsNull(("i",))),
        ("i <=> 5", And((Not(IsNull(("i",))), same("i", "=", 5)))),
        ("i is distinct from 5", Not(And((Not(IsNull(("i",))), same("i", "=", 5))))),
        ("i between 1 and 2", And((same("i", ">=", 1), same("i", "<=", 2)))),
        ("i not between 1 and 2", Not(And((same("i", ">=", 1), same("i", "<=", 2))))),
        ("i in (1, null)", Or((same("i", "=", 1), Constant(None)))),
        ("not (i = 1 or (l = 2))", Not(Or((same("i", "=", 1), same("l", "=", 2))))),
        ("true and false", And((Constant(True), Constant(False)))),
        ("s = 'it\\'s'", same("s", "=", "it's")),
        ("s like 'ab%'", StartsWith(("s",), "ab", True)),
        ("s like 'a_%'", StartsWith(("s",), "a", False)),
        ("s like 'ab'", same("s", "=", "ab")),
        ("s not like 'ab%'", Not(StartsWith(("s",), "ab", True))),
        ("startswith(s, 'a%')", StartsWith(("s",), "a%", True)),
        ("b", same("b", "=", True)),
        ("not b", Not(same("b", "=", True))),
        ("b = false", same("b", "=", False)),
        ("day = '2020-02-29'", same("day", "=", date(2020, 2, 29))),
        ("day < DATE '2020-02-29'", same("day", "<", date(2020, 2, 29))),
        ("at < TIMESTAMP '2020-01-01 00:00:00.5Z'", same("at", "<", datetime(2020, 1, 1, 0, 0, 0, 500000, UTC))),
        ("at < '2020-01-01T00:00:00+01:00'", same("at", "<", datetime(2019, 12, 31, 23, tzinfo=UTC))),
        ("at < '2020-01-01'", Comparison(("at",), "<", datetime(2020, 1, 1, tzinfo=UTC) - HOURS,
                                         datetime(2020, 1, 1, tzinfo=UTC) + HOURS)),
        ("local < '2020-01-01 01:00'", same("local", "<", datetime(2020, 1, 1, 1))),
        ("local < TIMESTAMP '2020-01-01'", Comparison(("local",), "<", datetime(2020, 1, 1) - HOURS,
                                                      datetime(2020, 1, 1) + HOURS)),
        ("o.`In.ner`.k = 1", Comparison(("o", "In.ner", "k"), "=", 1, 1)),
        ("O.`in.NER`.K = 1", Comparison(("o", "In.ner", "k"), "=", 1, 1)),
        ("o is null", IsNull(("o",))),
        ("d = 0.5", same("d", "=", 0.5)),
        ("f = 2", same("f", "=", 2.0)),
        ("n = 0.07", same("n", "=", 0.07)),
        ("n = 7e0", Comparison(("n",), "=", nextafter(7, -inf), nextafter(7, inf))),
        ("d = 0.1", Comparison(("d",), "=", nextafter(0.1, -inf), nextafter(0.1, inf))),
        ("i < 1e1", Comparison(("i",), "<", nextafter(10, -inf), nextafter(10, inf))),
    ],
)  # fmt: skip
def test_what_a_condition_says_of_columns(sql: str, expected: Predicate) -> None:
    assert parse(sql) == expected


@pytest.mark.parametrize(
    "sql",
    [
        "i <=> l", "i <=> 'five'",
        "i + 1 = 2", "i = l", "upper(s) = 'A'", "s = 5", "i = 'five'", "unknown = 1", "a[0] = 1", "m['k'] = 1",
        "a.x = 1", "s rlike 'a'", "s ilike 'a%'", "s like 'a\\\\%'", "s like 'a!%' escape '!'",
        "s like any ('a%', 'b%')", "x = X'00'", "i in (select 1)", "twice = 1", "nocase = 'a'", "o = 1", "i",
        "day < TIMESTAMP '2020-01-01'", "at < 'yesterday'", "at < '2020-13-01'", "local < '2020-01-01T00:00:00Z'",
        "rand() < 0.5", "case when i = 1 then true end", "cast(i as string) = '1'", "i = cast(1.5 as int)",
        "d = double('NaN')", "l = 9223372036854775808", "d = 1e999", "day = '9999-99-99'", "1 = 1",
        "i = 1" + "0" * 400 + ".5",
    ],
)  # fmt: skip
def test_of_what_cannot_be_told_nothing_is_known(sql: str) -> None:
    assert parse(sql) == Opaque()


def test_a_single_is_between_all_that_it_may_be_taken_for() -> None:
    (found,) = [parse("f = 0.1")]
    assert isinstance(found, Comparison)
    single = 0.10000000149011612
    assert float(found.low) <= 0.1 < single <= float(found.high)  # type: ignore[arg-type]


def test_a_long_list_is_one_condition() -> None:
    values = tuple(range(100))
    assert parse(f"i in {values}") == In(("i",), values)
    assert isinstance(parse(f"i in ({', '.join(map(str, values))}, null)"), Or)
    assert isinstance(parse(f"5 in (i, {', '.join(['l'] * 99)})"), Or)


def test_with_a_qualifier_other_columns_are_not_the_tables() -> None:
    condition = "target.i = source.i and TARGET.l = 1 and source.l = 2 and l = 3"
    found = parse(condition, "target")
    assert found == And((Opaque(), same("l", "=", 1), Opaque(), Opaque()))
    assert paths_of(found) == {("l",)}


@pytest.mark.parametrize("sql", ["", "i =", "i = 1; i = 2", "(i", "i = 'a", "not " * 30_000 + "b"])
def test_text_that_is_no_condition_is_refused(sql: str) -> None:
    with pytest.raises(InvalidInput, match="not SQL"):
        parse(sql)
