"""Passing over files never loses a row, and does pass over those that the statistics rule out."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from io import BytesIO
from typing import Any, cast

import duckdb
import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlglot
from hypothesis import given

from dagster_versioned.delta.actions import Add
from dagster_versioned.delta.files.file_actions import adds_table
from dagster_versioned.delta.files.partition_values import encode
from dagster_versioned.delta.files.predicate import And, Not, Or, Predicate, parse_predicate
from dagster_versioned.delta.files.skipping import candidates, certain, row_groups
from dagster_versioned.delta.files.statistics import from_parquet_metadata, to_json
from dagster_versioned.delta.files.struct_statistics import statistics_type, to_struct, to_text
from dagster_versioned.delta.schema.column_mapping import PHYSICAL_NAME
from dagster_versioned.delta.schema.types import StructField, StructType, schema_from_arrow, schema_to_arrow

ROWS = pa.schema(
    [
        ("p", pa.string()),
        ("q", pa.int32()),
        ("l", pa.int64()),
        ("f", pa.float32()),
        ("d", pa.float64()),
        ("n", pa.decimal128(20, 2)),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("o", pa.struct([("K", pa.int32()), ("t", pa.string())])),
    ]
)
SCHEMA = schema_from_arrow(ROWS)
PARTITIONED = ("p", "q")

INTEGERS = [-(2**62), -1, 0, 1, 2, 3, 2**53, 2**53 + 1, 2**62]
FLOATS = [-1.5, -0.0, 0.1, 1.0, 1.0000001, 3.25, 1e30, math.inf, -math.inf, math.nan]
DECIMALS = [Decimal(x) for x in ("-1.50", "0.00", "0.01", "1.00", "9007199254740993.01", "9007199254740993.02")]
STRINGS = ["", "a", "ab", "ab%", "abc", "x" * 32 + "a", "x" * 40, "\U0010ffff" * 33, "é", "\uffff", "\U0001f600"]
DAYS = [date(1969, 12, 31), date(2020, 2, 29), date(2020, 3, 1)]
TIMES = [datetime(2020, 1, 1) + timedelta(microseconds=step) for step in (0, 1, 999, 1000, 1001, 86_400_000_000)]
POOLS: dict[str, list[Any]] = {
    "p": ["a", "ab", "b=/ü", None],
    "q": [1, 2, -3, None],
    "l": INTEGERS,
    "f": FLOATS,
    "d": FLOATS,
    "n": DECIMALS,
    "s": STRINGS,
    "b": [True, False],
    "day": DAYS,
    "at": [time.replace(tzinfo=UTC) for time in TIMES],
    "local": TIMES,
}


def literal(value: Any) -> str:
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).upper()
        case str():
            return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
        case datetime():
            return f"TIMESTAMP '{value.isoformat(' ')}'" if value.tzinfo else f"TIMESTAMP_NTZ '{value.isoformat(' ')}'"
        case date():
            return f"DATE '{value}'"
        case float() if not math.isfinite(value):
            return f"CAST('{value}' AS DOUBLE)"
        case float():
            return f"{value:e}"
        case _:
            return str(value)


COLUMNS = [*POOLS, "o.K", "O.t"]


def pool(column: str) -> list[Any]:
    return {"o.K": [1, 2, 3], "O.t": STRINGS}.get(column) or [value for value in POOLS[column] if value is not None]


@st.composite
def comparisons(draw: st.DrawFn) -> str:
    column = draw(st.sampled_from(COLUMNS))
    values = st.sampled_from(pool(column)).map(literal)
    kind = draw(st.sampled_from(["compare", "compare", "in", "between", "null", "safe", "like", "flag"]))
    negated = draw(st.sampled_from(["", "NOT "]))
    match kind:
        case "compare":
            left, right = column, draw(values)
            if draw(st.booleans()):
                left, right = right, left
            return f"{left} {draw(st.sampled_from(['=', '<>', '<', '<=', '>', '>=']))} {right}"
        case "in":
            more = draw(st.sampled_from([[], ["NULL"]]))
            some = [draw(values)] * draw(st.sampled_from([1, 70])) + [draw(values)]
            return f"{column} {negated}IN ({', '.join(some + more)})"
        case "between":
            return f"{column} {negated}BETWEEN {draw(values)} AND {draw(values)}"
        case "null":
            return f"{column} IS {negated}NULL"
        case "safe":
            return f"{column} <=> {draw(st.one_of(values, st.just('NULL')))}"
        case "like":
            text = draw(st.sampled_from(["p", "s", "O.t"]))
            prefix = draw(st.sampled_from(["", "a", "ab", "xx", "x" * 35, "b=", "\U0010ffff", "é"]))
            return f"{text} {negated}LIKE '{prefix}{draw(st.sampled_from(['%', '', '_', '%a', '_%']))}'"
        case _:
            return f"{negated}b"


PREDICATES = st.recursive(
    st.one_of(
        comparisons(),
        st.sampled_from(["TRUE", "FALSE", "NULL", "length(s) > 1", "l < q", "l <=> q", "p <=> s", "2 IN (q, l, NULL)"]),
    ),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        inner.map(lambda text: f"NOT ({text})"),
    ),
    max_leaves=4,
)


def rows() -> st.SearchStrategy[dict[str, Any]]:
    structs = st.fixed_dictionaries(
        {"K": st.sampled_from([None, 1, 2, 3]), "t": st.one_of(st.none(), st.sampled_from(STRINGS))}
    )
    values = {
        name: st.one_of(st.none(), st.sampled_from(known)) for name, known in POOLS.items() if name not in PARTITIONED
    }
    return st.fixed_dictionaries({**values, "o": st.one_of(st.none(), structs)})


Statistics = Callable[[pa.Table], str | None]


def ours(stored: pa.Table) -> str:
    sink = BytesIO()
    pq.write_table(stored, sink, store_schema=False)
    return to_json(from_parquet_metadata(pq.read_metadata(sink), schema_from_arrow(stored.schema)))


def of_the_reference(stored: pa.Table) -> str:
    """Times cut downwards to milliseconds, strings to 32 characters and one that is above, NaN the largest number."""

    def bound(values: list[Any], upper: bool) -> Any:
        known = [value for value in values if value is not None]
        if not known:
            return None
        # NaN is above all others
        chosen = (max if upper else min)(known, key=lambda x: math.inf if x != x else x) if known else None
        if upper and any(value != value for value in known):
            chosen = math.nan
        match chosen:
            case float():
                return chosen if math.isfinite(chosen) else str(chosen)
            case str():
                return chosen[:32] + "\U0010ffff" * 2 if upper and len(chosen) > 32 else chosen[:32]
            case datetime():
                return chosen.isoformat(timespec="milliseconds").replace("+00:00", "Z")
            case date():
                return str(chosen)
            case Decimal():
                return float(chosen)
            case _:
                return chosen

    def tree(summarized: Callable[[list[Any]], Any]) -> dict[str, Any]:
        flat = {name: summarized(stored[name].to_pylist()) for name in stored.column_names if name != "o"}
        structs = [value or {} for value in stored["o"].to_pylist()]
        return {**flat, "o": {name: summarized([one.get(name) for one in structs]) for name in ("K", "t")}}

    return json.dumps(
        {
            "numRecords": stored.num_rows,
            "minValues": tree(lambda values: bound(values, False)),
            "maxValues": tree(lambda values: bound(values, True)),
            "nullCount": tree(lambda values: sum(value is None for value in values)),
        }
    )


FLAWED: list[Callable[[str], str | None]] = [
    lambda text: text,
    lambda text: None,
    lambda text: "",
    lambda text: text[:-2],
    lambda text: "[]",
    lambda text: json.dumps(json.loads(text), indent=1),
    lambda text: json.dumps(json.loads(text) | {"minValues": None, "unknown": [1]}),
    lambda text: json.dumps(json.loads(text) | {"numRecords": None}),
    lambda text: json.dumps(json.loads(text) | {"nullCount": {"l": True, "s": -1, "o": 3}}),
]

files_of_rows = st.lists(
    st.tuples(
        st.sampled_from(POOLS["p"]),
        st.sampled_from(POOLS["q"]),
        st.lists(rows(), min_size=1, max_size=3),
        st.sampled_from([ours, of_the_reference]),
        st.sampled_from(FLAWED[:1] * 12 + FLAWED),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=5,
)


CONNECTION = duckdb.connect()
CONNECTION.execute("SET TimeZone = 'UTC'")


def matching(table: pa.Table, sql: str) -> list[bool | None]:
    """What DuckDB makes of the condition for each row."""
    CONNECTION.register("t", table)
    translated = sqlglot.transpile(f"SELECT {sql} AS hit FROM t", read="spark", write="duckdb", identify=True)[
        0
    ]  # `at` is a keyword of some releases
    return [row[0] for row in CONNECTION.execute(translated).fetchall()]


@given(files_of_rows, PREDICATES)
def test_no_file_with_a_matching_row_is_passed_over(files: list[tuple[Any, ...]], sql: str) -> None:
    adds: list[Add] = []
    live: list[pa.Table] = []
    for number, (p, q, held, statistics, flaw, deleted) in enumerate(files):
        table = pa.Table.from_pylist([{"p": p, "q": q, **row} for row in held], ROWS)
        stats = flaw(statistics(table.drop_columns(list(PARTITIONED))))
        if deleted and len(held) > deleted:  # bounds are wide, then, and counts of nulls mean less
            table = table.slice(deleted)
            stats = stats and stats.replace('{"numRecords"', '{"tightBounds":false,"numRecords"')
        values = {"p": encode(p, "string"), "q": encode(q, "integer")}
        adds.append(Add(f"{number}.parquet", values, 1, 1, True, stats))
        live.append(table)
    predicate = parse_predicate(sql, SCHEMA)
    kept, all_match = (
        set(chosen(adds_table(adds), predicate, SCHEMA, "none", PARTITIONED)["path"].to_pylist())
        for chosen in (candidates, certain)
    )
    for add, table in zip(adds, live, strict=True):
        hits = matching(table, sql)
        assert add.path in kept or True not in hits
        assert add.path not in all_match or set(hits) == {True}


@given(st.lists(rows(), min_size=2, max_size=6), st.integers(1, 2), PREDICATES, st.booleans())
def test_no_row_group_with_a_matching_row_is_passed_over(
    held: list[dict[str, Any]], size: int, sql: str, millis: bool
) -> None:
    table = pa.Table.from_pylist([{"p": "a", "q": 1, **row} for row in held], ROWS)
    sink = BytesIO()
    options = {"coerce_timestamps": "us"} if not millis else {"use_deprecated_int96_timestamps": True}
    pq.write_table(table.drop_columns(list(PARTITIONED)), sink, row_group_size=size, **options)
    groups = row_groups(pq.read_metadata(sink), parse_predicate(sql, SCHEMA), SCHEMA, "none")
    hits = [i // size for i, hit in enumerate(matching(table, sql)) if hit]
    assert set(hits) <= set(groups)


def footer(table: pa.Table) -> pq.FileMetaData:
    sink = BytesIO()
    pq.write_table(table, sink, row_group_size=2)
    return pq.read_metadata(sink)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("l = 3", [1]),
        ("l > 3", [2]),
        ("o.k = 1", [0]),
        ("s like 'k4%' or l = 0", [0, 2]),
        ("s is null", [2]),
        ("day >= DATE '2020-01-05'", [2]),
        ("at < TIMESTAMP '2020-01-03 00:00:00Z'", [0]),
        ("n = 2.50", [1]),
        ("d < 2", [0]),
        ("d > 3.5", [0, 1, 2]),
        ("p = 'x' and l = 3", [1]),
    ],
)
def test_row_groups_are_passed_over(sql: str, expected: list[int]) -> None:
    count = range(6)
    days = [date(2020, 1, 1 + i) for i in count]
    table = pa.table(
        {
            "l": list(count),
            "d": [float(i) for i in count],
            "n": [Decimal(f"{i}.50") for i in count],
            "s": [None if i == 5 else f"k{i}" for i in count],
            "day": days,
            "at": [datetime(2020, 1, 1 + i, tzinfo=UTC) for i in count],
            "o": [{"K": i, "t": "x"} for i in count],
        }
    )
    assert row_groups(footer(table), parse_predicate(sql, SCHEMA), SCHEMA, "none") == expected
    assert row_groups(footer(table), parse_predicate(sql, SCHEMA), SCHEMA, "id") == [0, 1, 2]


def test_a_column_with_a_dot_is_no_field_of_a_struct() -> None:
    for name in ("o.K", "o"):
        metadata = footer(pa.table({name: [1, 2, 3, 4]}))
        assert row_groups(metadata, parse_predicate("o.K = 9", SCHEMA), SCHEMA, "none") == [0, 1]


def test_footers_of_narrower_types_than_the_columns_are_understood() -> None:
    schema = StructType(
        [StructField("l", "long"), StructField("d", "double"), StructField("n", "decimal(12,2)"),
         StructField("local", "timestamp_ntz")]
    )  # fmt: skip
    days = [date(2020, 1, 1 + i) for i in range(4)]
    small = pa.array(range(4), pa.int8())
    metadata = footer(pa.table({"l": small, "d": small.cast(pa.float32()), "n": small, "local": days}))
    for sql in ("l = 3", "d = 3", "n = 3", "local = TIMESTAMP_NTZ '2020-01-04 00:00:00'"):
        assert row_groups(metadata, parse_predicate(sql, schema), schema, "none") == [1], sql


# --- what is passed over


def add(number: int, partition: dict[str, str | None], **stats: Any) -> Add:
    return Add(f"{number}", partition, 1, 1, True, json.dumps(stats) if stats else None)


def kept(adds: list[Add], sql: str, schema: StructType = SCHEMA, **options: Any) -> list[int]:
    found = candidates(
        adds_table(adds), parse_predicate(sql, schema), schema, options.get("mapping", "none"), options.get("by", ())
    )
    return [int(path) for path in cast("list[str]", found["path"].to_pylist())]


TENS = [
    add(
        number,
        {},
        numRecords=10,
        minValues={"l": 10 * number, "d": 10.0 * number, "n": 10.5 * number, "s": f"k{number}a", "o": {"K": number},
                   "day": f"2020-01-0{number + 1}", "at": f"2020-01-0{number + 1}T00:00:00.000Z"},
        maxValues={"l": 10 * number + 9, "d": 10.0 * number + 9, "n": 10.5 * number + 9, "s": f"k{number}z",
                   "o": {"K": number}, "day": f"2020-01-0{number + 1}", "at": f"2020-01-0{number + 1}T23:59:59.999Z"},
        nullCount={"l": 0, "d": 0, "n": 0, "s": 10 if number == 3 else 0, "o": {"K": 0}},
    )
    for number in range(4)
]  # fmt: skip


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("l = 15", [1]),
        ("l > 29", [3]),
        ("l >= 29", [2, 3]),
        ("l < 10 or l in (33, 34)", [0, 3]),
        ("not (l < 30)", [3]),
        ("l between 8 and 12", [0, 1]),
        ("l is null", []),
        ("l <=> null", []),
        ("l <=> 3", [0]),
        (f"l in ({', '.join(map(str, range(20, 100)))})", [2, 3]),
        ("l > 29.5", [2, 3]),
        ("l >= 29.0", [2, 3]),
        ("l < 9.5 or l = 15.0", [0, 1]),
        ("l in (15.0, 2.5)", [0, 1]),
        ("l < 1e300", [0, 1, 2, 3]),
        ("l > 1e300", []),
        ("s is null", [3]),
        ("s is not null", [0, 1, 2]),
        ("s like 'k1%'", [1]),
        ("s like 'k1%x'", [1]),
        ("s not like 'k1%'", [0, 2]),
        ("startswith(s, 'k')", [0, 1, 2]),
        ("s > 'k2'", [2]),
        ("o.k = 2", [2]),
        ("n < 10", [0]),
        ("d < 10", [0]),
        ("d > 30", [0, 1, 2, 3]),  # NaN may be there
        ("day = DATE '2020-01-02'", [1]),
        ("day >= '2020-01-03'", [2, 3]),
        ("at < TIMESTAMP '2020-01-02 00:00:00Z'", [0]),
        ("at > TIMESTAMP '2020-01-02 23:59:59.9999Z'", [1, 2, 3]),
        ("at > TIMESTAMP '2020-01-02 23:59:59.999999Z'", [2, 3]),
        ("at > '2020-01-04'", [2, 3]),  # in whichever zone
        ("l = 15 and upper(s) = 'X'", [1]),
        ("l = 15 or upper(s) = 'X'", [0, 1, 2, 3]),
        ("l = 15 and l = 25", []),
        ("false", []),
        ("l = null", []),
    ],
)
def test_files_are_passed_over(sql: str, expected: list[int]) -> None:
    assert kept(TENS, sql) == expected


@pytest.mark.parametrize("sql", ["l = 3.0", "l > 2.5", "not (l = 3.0)", "l in (3.0, 0.5)", "l <> 9.3e18", "l < 9.3e18"])
def test_fractions_beside_integers_that_no_float_holds(sql: str) -> None:
    bounds = {"minValues": {"l": -(2**63)}, "maxValues": {"l": 2**63 - 1}, "nullCount": {"l": 0}}
    assert kept([add(0, {}, numRecords=2, **bounds)], sql) == [0]


LOCAL_MEAN_TIMES = [
    # An instant, and the bound that a writer made of it which cuts the seconds off its zone's offset.
    ("1850-01-01T00:07:33Z", "1850-01-01T01:01:01.000+00:53"),  # Berlin, +00:53:28
    ("1850-01-01T00:07:33Z", "1849-12-31T19:11:31.000-04:56"),  # New York, -04:56:02
    ("1850-01-01T00:07:33Z", "1850-01-01T14:07:57.000+14:00"),  # Alaska, +14:00:24
    ("1900-01-01T00:00:52Z", "1900-01-01T00:00:00.000+00:00"),  # Accra, -00:00:52
    ("1971-12-31T23:59:59Z", "1971-12-31T23:15:29.000-00:44"),  # Monrovia, -00:44:30
]


@pytest.mark.parametrize(("instant", "bound"), LOCAL_MEAN_TIMES)
@pytest.mark.parametrize("form", ["text", "broken text beside it", "struct"])
def test_bounds_whose_offset_may_be_cut_are_widened(instant: str, bound: str, form: str) -> None:
    adds = [add(0, {}, numRecords=1, minValues={"at": bound}, maxValues={"at": bound}, nullCount={"at": 0})]
    if form == "broken text beside it":
        adds.append(replace(adds[0], path="1", stats="{"))
    if form == "struct":
        kind = statistics_type(SCHEMA, [("at",)], tight_bounds=False)
        texts: Any = pa.array([adds[0].stats])
        for _ in range(2):  # of a checkpoint of a checkpoint
            texts = to_text(pa.chunked_array([to_struct(texts, kind)]))
        adds = [replace(adds[0], stats=texts[0].as_py())]
    for operator in ("=", "<=", ">="):
        assert 0 in kept(adds, f"at {operator} TIMESTAMP '{instant}'")
    assert 0 not in kept(adds, "at < TIMESTAMP '1840-01-01T00:00:00Z' or at > TIMESTAMP '1980-01-01T00:00:00Z'")


def test_bounds_with_offsets_of_today_are_as_sharp_as_ever() -> None:
    bound = {"at": "2024-01-01T01:00:00.000+01:00"}
    adds = [add(0, {}, numRecords=1, minValues=bound, maxValues=bound, nullCount={"at": 0})]
    assert kept(adds, "at = TIMESTAMP '2024-01-01T00:00:00Z'") == [0]
    assert kept(adds, "at < TIMESTAMP '2024-01-01T00:00:00Z' or at > TIMESTAMP '2024-01-01T00:00:01Z'") == []


def test_only_statistics_of_files_in_the_partition_are_asked() -> None:
    by = {"p": "a", "q": "1"}
    adds = [add(0, by, minValues={"l": 1}), add(1, by | {"q": "2"}, minValues={"l": 1}), add(2, by | {"q": None})]
    assert kept(adds, "q = 1 and l < 1", by=PARTITIONED) == []
    assert kept(adds, "q = 1 and l < 2", by=PARTITIONED) == [0]
    assert kept(adds, "q is null", by=PARTITIONED) == [2]
    assert kept(adds, "q <> 1", by=PARTITIONED) == [1]
    assert kept(adds, "p = 'b' and l < 2", by=PARTITIONED) == []


def test_bounds_are_found_by_physical_names() -> None:
    inner = StructType([StructField("k", "long", True, {PHYSICAL_NAME: "col-3"})])
    schema = StructType(
        [
            StructField("l", "long", True, {PHYSICAL_NAME: "col-1"}),
            StructField("p", "long", True, {PHYSICAL_NAME: "col-2"}),
            StructField("o", inner, True, {PHYSICAL_NAME: "col-4"}),
        ]
    )
    adds = [
        add(0, {"col-2": "1"}, minValues={"col-1": 1, "l": 9, "col-4": {"col-3": 5}}),
        add(1, {"col-2": "2"}, minValues={"col-1": 9, "col-4": {"k": 5}}),
    ]
    assert kept(adds, "l < 5", schema, mapping="name") == [0]
    assert kept(adds, "o.k < 5", schema, mapping="id") == [1]
    assert kept(adds, "p = 2", schema, mapping="name", by=("p",)) == [1]


def test_counts_of_nulls_that_are_neither_none_nor_all_say_nothing_with_wide_bounds() -> None:
    adds = [add(n, {}, numRecords=3, tightBounds=False, nullCount={"l": n}) for n in range(4)]
    assert kept(adds, "l is null") == [1, 2, 3]
    assert kept(adds, "l is not null") == [0, 1, 2]
    assert kept(adds, "l > 0") == [0, 1, 2]


@pytest.mark.parametrize(("predicate", "expected"), [(And(()), 3), (Or(()), 0), (Not(Or(())), 3), (Not(And(())), 0)])
def test_of_no_conditions_all_are_true_and_none_is(predicate: Predicate, expected: int) -> None:
    table = adds_table([add(n, {}, numRecords=1) for n in range(3)])
    assert candidates(table, predicate, SCHEMA, "none", ()).num_rows == expected


def test_many_files_are_judged_at_once() -> None:
    adds = [add(n, {}, numRecords=1, minValues={"l": n}, maxValues={"l": n}) for n in range(25_000)]
    assert kept(adds, "l in (3, 24999)") == [3, 24_999]


def test_the_arrow_schema_of_the_test_is_ours() -> None:
    assert schema_to_arrow(SCHEMA) == ROWS
