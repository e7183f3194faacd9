"""Queries of other engines in the words of those that are here: what they give is what the other engine gives."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from dagster_versioned.errors import InvalidInput
from dagster_versioned.odf.arrow.query_rows import query_rows
from dagster_versioned.odf.standard_sql import in_words_of
from dagster_versioned.odf.transform_query import QueryStep, TransformQuery

ROWS = pa.table(
    {
        "from": ["x", None, "y"],
        "n": pa.array([3, 1, 2], pa.int64()),
        "moment": ["2020-05-01T12:00:00+02:00", "2020-05-02", None],
    }
)


def test_names_and_texts_are_quoted_as_the_engine_quotes_them() -> None:
    """The standard has "names" and 'texts', in which a quote is doubled and nothing is an escape."""
    query = """SELECT "a""b", `c d`, 'it''s \\n' -- "as it was" """
    assert in_words_of("spark", query, "flink") == """SELECT `a"b`, `c d`, 'it\\'s \\\\n' -- "as it was" """
    assert in_words_of("duckdb", query, "flink") == """SELECT "a""b", "c d", 'it''s \\n' -- "as it was" """
    with pytest.raises(InvalidInput, match=r"cannot be read.*Nothing was changed"):
        in_words_of("spark", "SELECT 'open", "flink")


ORDERS = [
    ("datafusion", "n", "n NULLS LAST"),
    ("risingwave", "n DESC, m ASC", "n DESC NULLS FIRST, m ASC NULLS LAST"),
    ("datafusion", "n NULLS FIRST, f(a, b) DESC", "n NULLS FIRST, f(a, b) DESC NULLS FIRST"),
    ("datafusion", "f(n, ')'), \"LIMIT\" LIMIT 3", "f(n, ')') NULLS LAST, `LIMIT` NULLS LAST LIMIT 3"),
    ("datafusion", "left(n, 2), m LIMIT 3", "left(n, 2) NULLS LAST, m NULLS LAST LIMIT 3"),
    ("flink", "n DESC", "n DESC"),
]


@pytest.mark.parametrize(("other", "given", "wanted"), ORDERS)
def test_nulls_are_sorted_as_the_other_engine_sorts_them(other: str, given: str, wanted: str) -> None:
    assert in_words_of("spark", f"SELECT n FROM t ORDER BY {given}", other) == f"SELECT n FROM t ORDER BY {wanted}"
    window = "SELECT sum(n) OVER (PARTITION BY k ORDER BY {} ROWS UNBOUNDED PRECEDING) FROM t"
    if "LIMIT" not in given:
        assert in_words_of("spark", window.format(given), other) == window.format(wanted)
    assert in_words_of("duckdb", "SELECT n FROM t ORDER BY n", "flink").endswith("n NULLS FIRST")


def of_duckdb(query: str, other: str = "datafusion") -> list[dict[str, object]]:
    step = QueryStep(in_words_of("duckdb", query, other))
    return query_rows({"input": ROWS}, TransformQuery(("input",), (step,))).to_pylist()


MOMENTS = """
    SELECT to_timestamp(moment) AS text, to_timestamp_seconds(n * 60 + 0.7) AS seconds,
      to_timestamp_millis(n * 1500) AS millis, to_timestamp_micros(n) AS micros, "from"
    FROM input ORDER BY n
"""


def at(second: float) -> datetime:
    return datetime.fromtimestamp(second, UTC)


# What DataFusion 55 gives; fractions of a second are cut.
WANTED = [
    (datetime(2020, 5, 2, tzinfo=UTC), at(60), at(1.5), at(0.000001), None),
    (None, at(120), at(3), at(0.000002), "y"),
    (datetime(2020, 5, 1, 10, tzinfo=UTC), at(180), at(4.5), at(0.000003), "x"),
]


def in_utc(value: object) -> object:
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) and value.tzinfo is None else value


def test_moments_of_datafusion_are_the_same_in_duckdb() -> None:
    assert [tuple(map(in_utc, row.values())) for row in of_duckdb(MOMENTS)] == WANTED
    with pytest.raises(InvalidInput, match="to_timestamp"):
        of_duckdb("SELECT to_timestamp(moment, '%Y') FROM input")
    with pytest.raises(InvalidInput, match="BIGINT"):  # seconds or nanoseconds, by the version of DataFusion
        of_duckdb("SELECT to_timestamp(n) FROM input")


@pytest.mark.spark
def test_functions_of_datafusion_are_the_same_in_spark(spark) -> None:
    from dagster_versioned.odf.spark.query_rows import query_rows as of_spark

    step = QueryStep(in_words_of("spark", MOMENTS, "datafusion"))
    found = of_spark({"input": ROWS}, TransformQuery(("input",), (step,))).to_pylist()
    assert [tuple(row.values()) for row in found] == WANTED
    texts = """SELECT concat("from", '\\', 'it''s') AS both, log(100 * n / n) AS l FROM input ORDER BY "from" """
    step = QueryStep(in_words_of("spark", texts, "datafusion"))
    found = of_spark({"input": ROWS}, TransformQuery(("input",), (step,))).to_pylist()
    assert [(row["both"], row["l"]) for row in found] == [("x\\it's", 2.0), ("y\\it's", 2.0), ("\\it's", 2.0)]


def test_a_join_with_what_was_valid_then_is_spelled_out() -> None:
    query = """
        SELECT t.a, r.rate FROM trades AS t
        LEFT JOIN `my.rates` FOR SYSTEM_TIME AS OF t.`at` AS r ON t.c = r.c OR r.c IS NULL
        WHERE t.a > 1"""
    valid = "`r`.valid_from <= `t`.`at` AND (`r`.valid_to IS NULL OR `t`.`at` < `r`.valid_to)"
    spelled = in_words_of("spark", query, "flink", frozenset({"my.rates"}))
    assert " ".join(spelled.split()) == (
        "SELECT t.a, r.rate FROM trades AS t LEFT JOIN `my.rates` AS r "
        f"ON {valid} AND ( t.c = r.c OR r.c IS NULL) WHERE t.a > 1"
    )
    quoted = in_words_of("spark", query.replace("`at`", '"a""""t"'), "flink", frozenset({"my.rates"}))
    assert " ".join(quoted.split()) == " ".join(spelled.split()).replace("`at`", '`a""t`')
    for text, tables in (
        (query, frozenset[str]()),
        (query.replace("AS r ON", "ON"), frozenset({"my.rates"})),
        (query.replace("t.`at`", "now()"), frozenset({"my.rates"})),
        (query.replace("t.a,", "t.*,"), frozenset({"my.rates"})),
    ):
        with pytest.raises(InvalidInput, match=r"FOR SYSTEM_TIME AS OF.*Nothing was changed"):
            in_words_of("spark", text, "flink", tables)


@pytest.mark.parametrize(
    ("other", "engine", "expression", "named"),
    [
        ("datafusion", "spark", "regexp_replace(s, 'a', 'b')", r"regexp_replace\(\)"),
        ("datafusion", "spark", "initcap(s)", r"initcap\(\)"),
        ("flink", "spark", "greatest(n, 2)", r"greatest\(\)"),
        ("flink", "duckdb", "concat(s, 'x')", r"concat\(\)"),
        ("datafusion", "spark", "extract(DOW FROM t)", "the day of the week"),
        ("risingwave", "spark", "date_part('dow', t)", "the day of the week"),
        ("flink", "duckdb", "extract(dow FROM t)", "the day of the week"),
        ("datafusion", "duckdb", "n / 2", "a division by a whole number"),
        ("flink", "spark", "100 / n", "a division by a whole number"),
        ("datafusion", "spark", "l[1]", "an item of a list"),
        ("datafusion", "spark", "f(l)[1]", "an item of a list"),
        ("datafusion", "duckdb", "substr(s, -2)", r"substr\(\) from before"),
        ("datafusion", "spark", "substring(s, 0, 3)", r"substring\(\) from before"),
        ("datafusion", "spark", "log(2, n)", r"log\(\) with several arguments"),
    ],
)
def test_what_has_another_value_is_refused_by_name(other: str, engine: str, expression: str, named: str) -> None:
    with pytest.raises(InvalidInput, match=f"{named}.*another value in {engine}.*Nothing was changed.*name {engine}"):
        in_words_of(engine, f"SELECT {expression} AS v FROM t", other)


@pytest.mark.parametrize(
    ("other", "engine", "expression"),
    [
        ("datafusion", "duckdb", "regexp_replace(s, 'a', 'b') || l[1] || date_part('dow', t)"),
        ("flink", "spark", "concat(s, regexp_replace(s, 'a', 'b')) || extract(dow FROM t) || log(n)"),
        ("risingwave", "spark", "n / 2.0 + d / n + substr(s, 1, 2) + array[1]"),
        ("datafusion", "spark", "s = 'DOW' OR s = 'EMIT' OR to_timestamp(s || '(,') > t OR s IN (')', '[')"),
    ],
)
def test_what_has_the_same_value_stays_as_it_is(other: str, engine: str, expression: str) -> None:
    assert in_words_of(engine, f"SELECT {expression} AS v FROM t", other) == f"SELECT {expression} AS v FROM t"


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("SELECT TUMBLE_START(t, INTERVAL '1' DAY) AS t FROM s GROUP BY 1", r"tumble_start\(\)"),
        ("SELECT window_end FROM tumble(s, t, INTERVAL '1' DAY)", r"tumble\(\)"),
        ("SELECT n FROM s EMIT ON WINDOW CLOSE", "EMIT ON"),
        ("SELECT * FROM s MATCH_RECOGNIZE (PARTITION BY n)", "MATCH_RECOGNIZE"),
    ],
)
def test_what_another_engine_alone_has_is_refused_by_name(query: str, named: str) -> None:
    with pytest.raises(InvalidInput, match=f"{named}.*'risingwave', and not in the standard.*Nothing was changed"):
        in_words_of("spark", query, "risingwave")
