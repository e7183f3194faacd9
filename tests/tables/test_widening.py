"""Partitions with wider types than others: one table of all of them, no part written again, no value lost."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import deltalake
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_versioned.delta.schema.types import parse_schema
from dagster_versioned.delta.schema.widening import common_type
from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.errors import InvalidInput, UnsupportedType
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.partitioning import Partitioning
from dagster_versioned.tables.table import VersionedTable
from support.one_table import folder
from support.readers import DELTA_READERS, assert_same, by_datafusion, by_deltalake
from support.spark import spark

__all__ = ["spark"]

APPEND = TableOptions(mode="append")
MERGE = TableOptions(mode="merge", merge_key=("id",))
ARROW = {
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp_ntz": pa.timestamp("us"),
    "decimal(5,2)": pa.decimal128(5, 2),
    "decimal(12,4)": pa.decimal128(12, 4),
    "decimal(30,4)": pa.decimal128(30, 4),
    "string": pa.string(),
}
VALUES: dict[str, list[Any]] = {
    "byte": [-128, 127, None],
    "short": [-(2**15), 300],
    "integer": [2**31 - 1, -70_000, None],
    "long": [2**62, -1],
    "float": [0.5, -0.25, None],
    "double": [0.1, 1e300],
    "date": [date(1, 1, 1), date(2024, 2, 29), None],
    "timestamp_ntz": [datetime(2024, 2, 29, 23, 59, 59, 999_999)],
    "decimal(5,2)": [Decimal("-999.99"), None],
    "decimal(12,4)": [Decimal("12345678.9012")],
    "decimal(30,4)": [Decimal("1" * 26 + ".0001")],
    "string": ["x"],
}
WIDENINGS = [
    ("byte", "short"),
    ("byte", "integer"),
    ("byte", "long"),
    ("short", "integer"),
    ("short", "long"),
    ("integer", "long"),
    ("float", "double"),
    ("byte", "double"),
    ("short", "double"),
    ("integer", "double"),
    ("date", "timestamp_ntz"),
    ("decimal(5,2)", "decimal(12,4)"),
    ("decimal(5,2)", "decimal(30,4)"),
    ("integer", "decimal(30,4)"),
    ("long", "decimal(30,4)"),
]
POLARS_CANNOT = {pair for pair in WIDENINGS if pair[1] in ("timestamp_ntz", "double") or "decimal" in pair[1]}
POLARS_CANNOT -= {("float", "double")}


def frame(data_type: str, values: list[Any] | None = None, first: int = 0) -> pa.Table:
    values = VALUES[data_type] if values is None else values
    return pa.table({"id": list(range(first, first + len(values))), "v": pa.array(values, ARROW[data_type])})


def widened(value: Any, data_type: str) -> Any:
    """A value as a wider type has it."""
    if value is None:
        return None
    if data_type in ("double", "float"):
        return float(value)
    if data_type == "timestamp_ntz":
        return value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)
    return Decimal(value) if data_type.startswith("decimal") else value


def type_of(table: VersionedTable) -> Any:
    return parse_schema(table.state.snapshot.metadata.schema_string).field("v").type


def keys(table: VersionedTable, partition: str) -> set[str]:
    return {add.key for add in table.files(partition=partition).adds}


# --- replaced partitions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("narrow", "wide"), WIDENINGS)
def test_a_wider_partition_stands_beside_narrower_ones_and_every_reader_has_all_values(
    table: VersionedTable, narrow: str, wide: str
) -> None:
    table.write(frame(narrow), partition="a")
    parts, before = keys(table, "a"), table.version(partition="a").metadata_sha
    table.write(frame(wide, first=10), partition="b")
    assert type_of(table) == wide
    assert keys(table, "a") == parts
    assert table.version(partition="a").metadata_sha == before
    assert table.read(partition="a").schema.field("v").type == ARROW[narrow]
    assert table.read(partition="b").schema.field("v").type == ARROW[wide]
    values = [widened(value, wide) for value in VALUES[narrow] + VALUES[wide]]
    everything = frame(wide, values).set_column(
        0, "id", pa.array([*range(len(VALUES[narrow])), *range(10, 10 + len(VALUES[wide]))])
    )
    assert_same(table.read(), everything)
    assert_same(table.read(0), frame(narrow))
    for reader in DELTA_READERS:
        assert_same(reader(folder(table), 0), frame(narrow))
        if (narrow, wide) in POLARS_CANNOT and "polars" in reader.__name__:
            with pytest.raises(pl.exceptions.PolarsError, match="data type mismatch"):
                reader(folder(table))
        else:
            assert_same(reader(folder(table)), everything)
    assert table.read(as_type=pl.DataFrame)["v"].to_list() == values
    table.verify().require_ok()


@pytest.mark.parametrize(("narrow", "wide"), WIDENINGS)
def test_a_narrower_partition_keeps_its_types_beside_wider_ones(project: Project, narrow: str, wide: str) -> None:
    first, second = project.table("first"), project.table("second")
    first.write(frame(wide), partition="b")
    first.write(frame(narrow, first=10), partition="a")
    second.write_partitions({"a": frame(narrow, first=10), "b": frame(wide)})
    assert type_of(first) == type_of(second) == wide
    assert first.read(partition="a").schema.field("v").type == ARROW[narrow]
    assert_same(first.read(), second.read())
    before = first.version(partition="a")
    assert first.write(frame(narrow, first=10), partition="a").change == "none"
    assert first.version(partition="a") == before


def test_what_foreign_readers_filter_by_is_found_in_narrow_parts_too(table: VersionedTable) -> None:
    table.write(pa.table({"id": [1, 2], "v": pa.array([-5, 5], pa.int32())}), partition="a")
    table.write(pa.table({"id": [3], "v": pa.array([2**40], pa.int64())}), partition="b")
    for where, ids in {"v > 1099511627775": [3], "v < 0": [1], "v = 5": [2], "v in (5, 1099511627776)": [2, 3]}.items():
        found = by_datafusion(folder(table), None, f"where {where}")
        assert sorted(found["id"].to_pylist()) == ids, where
        lazily = pl.scan_delta(str(folder(table))).filter(pl.sql_expr(where)).collect()
        assert sorted(lazily["id"].to_list()) == ids, where


def test_a_table_has_the_type_that_two_partitions_have_in_common_although_neither_has_it(
    table: VersionedTable,
) -> None:
    table.write(frame("integer"), partition="a")
    table.write(frame("decimal(5,2)"), partition="b")
    assert type_of(table) == "decimal(12,2)"
    table.write(frame("decimal(12,4)"), partition="b")
    assert type_of(table) == "decimal(14,4)"
    assert [table.read(partition=key).schema.field("v").type for key in "ab"] == [pa.int32(), pa.decimal128(12, 4)]
    assert table.read().num_rows == len(VALUES["integer"]) + len(VALUES["decimal(12,4)"])


def test_nested_types_widen_too(table: VersionedTable) -> None:
    def rows(inner: pa.DataType, value: int) -> pa.Table:
        kind = pa.struct([("l", pa.list_(inner)), ("m", pa.map_(pa.string(), inner))])
        return pa.table({"v": pa.array([{"l": [value, None], "m": [("k", value)]}, None], kind)})

    table.write(rows(pa.int32(), 1), partition="a")
    table.write(rows(pa.int64(), 2**40), partition="b")
    expected = pa.concat_tables([rows(pa.int64(), 1), rows(pa.int64(), 2**40)])
    assert_same(table.read(), expected)
    for reader in (by_deltalake, by_datafusion):
        assert_same(reader(folder(table)), expected)


def test_when_all_partitions_are_replaced_at_once_the_table_has_their_types(table: VersionedTable) -> None:
    table.write(frame("integer"), partition="a")
    table.write(frame("long"), partition="b")
    table.write_partitions({"a": frame("string"), "b": frame("string")})
    assert type_of(table) == "string"
    assert_same(table.read(1, partitions=["a"]), frame("integer"))
    assert table.read(1).schema.field("v").type == pa.int64()


@pytest.mark.parametrize(
    ("there", "here"),
    [("integer", "string"), ("long", "double"), ("date", "integer"), ("long", "float"), ("double", "decimal(5,2)")],
)
def test_types_that_have_no_wider_one_in_common_are_refused_with_the_way_out(
    table: VersionedTable, there: str, here: str
) -> None:
    table.write(frame(there), partition="a")
    before = table.state.log_version
    with pytest.raises(UnsupportedType, match=r"'v' is .*dagster-versioned repartition TABLE --by same --type v="):
        table.write(frame(here), partition="b")
    assert table.state.log_version == before
    table.write_partitions({"a": frame(here), "b": frame(here)})
    assert_same(table.read(partition="b"), frame(here))


@pytest.mark.parametrize("columns", [(), ("v",)], ids=["whole", "delta partitions"])
def test_the_way_out_gives_the_rows_that_there_are_another_type(
    table: VersionedTable, columns: tuple[str, ...]
) -> None:
    options = TableOptions(partition_columns=columns)
    for partition, values in {"a": [1, None], "b": [2, 3]}.items():
        table.write(frame("integer", values), partition=partition, options=options)
    before = table.state.log_version
    with pytest.raises(InvalidInput, match="'v' is string here"):
        table.write(frame("string"), partition="c", options=options)
    report = table.repartition("same", types={"v": "string"}, dry_run=False)
    assert report.rows == {"a": 2, "b": 2}
    assert table.state.log_version == before + 1
    table.write(frame("string"), partition="c", options=options)
    assert table.read(partition="a")["v"].to_pylist() in (["1", None], [None, "1"])
    assert sorted(map(str, table.read()["v"].to_pylist())) == ["1", "2", "3", "None", "x"]
    assert_same(by_deltalake(folder(table)), table.read())
    assert table.read(before, partition="b").schema.field("v").type == pa.int32()
    table.verify().require_ok()


def test_other_partitions_and_other_types_come_in_one_commit(table: VersionedTable) -> None:
    for partition in "ab":
        rows = pa.table({"place": [partition], "v": pa.array([1], pa.int32())})
        table.write(rows, partition=partition, partitioning=Partitioning.names())
    table.repartition(None, types={"v": "string"}, dry_run=False)
    assert table.read()["v"].to_pylist() == ["1", "1"]
    assert type_of(table) == "string"
    assert table.read(1).num_rows == 2


@pytest.mark.parametrize(
    ("there", "values", "to", "message"),
    [
        ("long", [2**53 + 1], "double", "not every value"),
        ("double", [0.1], "float", "digits would be lost"),
        ("long", [2**40], "integer", "not every value"),
        ("string", ["x"], "long", "not every value"),
        ("long", [1], "date", "not every value"),
        ("long", [1], "text", "'text', which is not known"),
    ],
)
def test_types_that_do_not_hold_every_value_are_refused(
    table: VersionedTable, there: str, values: list[Any], to: str, message: str
) -> None:
    table.write(frame(there, values), partition="a")
    with pytest.raises(InvalidInput, match=message):
        table.repartition("same", types={"v": to}, dry_run=False)
    with pytest.raises(InvalidInput, match="no column 'w'"):
        table.repartition("same", types={"w": "long"}, dry_run=False)
    with pytest.raises(InvalidInput, match="Name a type"):
        table.repartition("same", dry_run=False)
    assert table.state.log_version == 0


@pytest.mark.parametrize(("narrow", "wide"), [pair for pair in WIDENINGS if pair[1] in ("short", "integer", "long")])
def test_partition_columns_of_delta_widen_as_whole_numbers(table: VersionedTable, narrow: str, wide: str) -> None:
    by_value = TableOptions(partition_columns=("v",))
    table.write(frame(narrow), partition="a", options=by_value)
    table.write(frame(wide, first=10), partition="b", options=by_value)
    ids = [*range(len(VALUES[narrow])), *range(10, 10 + len(VALUES[wide]))]
    expected = frame(wide, VALUES[narrow] + VALUES[wide]).set_column(0, "id", pa.array(ids))
    for reader in (lambda _: table.read(), *DELTA_READERS):
        assert_same(reader(folder(table)), expected)


@pytest.mark.parametrize(
    ("narrow", "wide"), [pair for pair in WIDENINGS if "decimal" in pair[1] or pair[1] == "timestamp_ntz"]
)
def test_partition_columns_of_other_types_do_not_widen(table: VersionedTable, narrow: str, wide: str) -> None:
    by_value = TableOptions(partition_columns=("v",))
    table.write(frame(narrow), partition="a", options=by_value)
    with pytest.raises(InvalidInput, match=r"partition column 'v' would be .*repartition TABLE --by same --type v="):
        table.write(frame(wide), partition="b", options=by_value)
    with pytest.raises(InvalidInput, match="partition column 'v' would be"):
        table.write(frame(wide), partition="a", options=TableOptions(partition_columns=("v",), mode="append"))
    assert table.state.log_version == 0
    table.write(frame(wide), partition="a", options=by_value)
    assert_same(by_deltalake(folder(table)), frame(wide))


def test_a_revert_to_a_narrower_partition_leaves_the_table_as_wide_as_the_others_need(table: VersionedTable) -> None:
    table.write(frame("integer"), partition="a")
    table.write(frame("long"), partition="a")
    table.write(frame("decimal(30,4)"), partition="b")
    table.revert("@0", partition="a")
    assert type_of(table) == "decimal(30,4)"
    assert_same(table.read(partition="a"), frame("integer"))
    assert table.read().num_rows == len(VALUES["integer"]) + len(VALUES["decimal(30,4)"])
    table.verify().require_ok()


def test_rows_are_compared_by_value_where_a_column_became_wider(table: VersionedTable) -> None:
    table.write(pa.table({"id": pa.array([1, 2, 3], pa.int32()), "v": pa.array([1, 2, 3], pa.int32())}), partition="a")
    table.write(pa.table({"id": [1, 2, 4], "v": [1, 2**40, 4]}), partition="a")
    diff = table.diff_rows("@0", "@1", key=["id"], partition="a")
    assert diff.counts() == {"added": 1, "removed": 1, "changed": 1, "unchanged": 1}
    assert diff.changed_before.to_pydict() == {"id": [2], "v": [2]}
    assert diff.changed_before.schema.field("v").type == pa.int32()
    assert [(c.name, c.before, c.after) for c in table.diff("@0", "@1", partition="a").columns] == [
        ("id", "integer", "long"),
        ("v", "integer", "long"),
    ]


# --- rows that are added ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("narrow", "wide"), WIDENINGS)
@pytest.mark.parametrize("options", [APPEND, MERGE], ids=["append", "merge"])
def test_wider_rows_are_added_without_writing_the_narrower_ones_again(
    table: VersionedTable, narrow: str, wide: str, options: TableOptions
) -> None:
    table.write(frame(narrow), partition="a", options=options)
    parts = keys(table, "a")
    table.write(frame(wide, first=10), partition="a", options=options)
    assert parts < keys(table, "a")
    _holds(table, narrow, wide)


@pytest.mark.parametrize(("narrow", "wide"), WIDENINGS)
@pytest.mark.parametrize("options", [APPEND, MERGE], ids=["append", "merge"])
def test_narrower_rows_that_are_added_get_the_types_that_there_are(
    table: VersionedTable, narrow: str, wide: str, options: TableOptions
) -> None:
    table.write(frame(wide, first=10), partition="a", options=options)
    table.write(frame(narrow), partition="a", options=options)
    _holds(table, narrow, wide)
    assert {part.schema.field("v").type for part in map(_part, keys(table, "a"), [table] * 9)} == {ARROW[wide]}


def _part(key: str, table: VersionedTable) -> pa.Table:
    import pyarrow.parquet as pq

    return pq.read_table(folder(table) / key, partitioning=None)


def _holds(table: VersionedTable, narrow: str, wide: str) -> None:
    ids = [*range(len(VALUES[narrow])), *range(10, 10 + len(VALUES[wide]))]
    values = [widened(value, wide) for value in VALUES[narrow] + VALUES[wide]]
    expected = frame(wide, values).set_column(0, "id", pa.array(ids))
    assert_same(table.read(partition="a"), expected)
    assert_same(by_deltalake(folder(table)), expected)
    measured = ArrowEngine().measure(expected, table.files(partition="a").scan.schema)
    facts = table.version(partition="a").facts
    assert (facts.digest, tuple(facts.null_counts)) == (measured.digest.text, measured.null_counts)
    table.verify().require_ok()


# --- any walk --------------------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.sampled_from(sorted(set(ARROW) - {"date", "timestamp_ntz"})),
        st.sampled_from(["replace", "append", "merge"]),
        st.integers(0, 4),
    ),
    min_size=2,
    max_size=8,
)


@dataclass
class Model:
    """The rows of each partition by id, and its type; the type of the table."""

    partitions: dict[str, tuple[str, list[tuple[int, Any]]]] = field(default_factory=dict)
    whole: str | None = None

    def write(self, partition: str, data_type: str, mode: str, rows: list[tuple[int, Any]]) -> "Model | None":
        """The model after a write; ``None`` where it is refused."""
        known = self.partitions.get(partition)
        if mode != "replace" and known is not None:
            found = common_type(known[0], data_type)
            if not isinstance(found, str):
                return None
            kept = [row for row in known[1] if mode == "append" or row[0] not in {new for new, _ in rows}]
            data_type, rows = found, [*kept, *rows]
        others = set(self.partitions) - {partition}
        whole = common_type(self.whole, data_type) if others and self.whole else data_type
        if not isinstance(whole, str):
            return None
        return Model({**self.partitions, partition: (data_type, rows)}, whole)

    def read(self, *partitions: str) -> tuple[str, list[tuple[int, Any]]]:
        data_type = self.partitions[partitions[0]][0] if len(partitions) == 1 else self.whole
        assert data_type is not None
        rows = [row for key in partitions for row in self.partitions[key][1]]
        return data_type, sorted(((i, widened(value, data_type)) for i, value in rows), key=repr)


def rows_in(read: pa.Table) -> list[tuple[int, Any]]:
    return sorted(zip(read["id"].to_pylist(), read["v"].to_pylist(), strict=True), key=repr)


def walk(table: VersionedTable, steps: list[tuple[str, str, str, int]], given_as: Callable[[pa.Table], Any]) -> None:
    model, versions = Model(), dict[int, Model]()
    for i, (partition, data_type, mode, first) in enumerate(steps):
        rows = frame(data_type, first=first + (100 * i if mode == "append" else 0))  # no id is there twice
        options = TableOptions(mode=mode, merge_key=("id",) if mode == "merge" else ())  # pyright: ignore[reportArgumentType]
        after = model.write(partition, data_type, mode, rows_in(rows))
        if after is None:
            with pytest.raises(UnsupportedType):
                table.write(given_as(rows), partition=partition, options=options)
            continue
        table.write(given_as(rows), partition=partition, options=options)
        model = versions[table.state.log_version] = after
    as_type = type(given_as(frame("byte")))
    for version, state in versions.items():
        every = list(state.partitions)
        for keys_ in [*([key] for key in every), every]:
            data_type, expected = state.read(*keys_)
            one = {"partition": keys_[0]} if len(keys_) == 1 else {}
            for type_ in {pa.Table, as_type}:
                read = table.read(version, as_type=type_, **one)
                read = read if isinstance(read, pa.Table) else read.toArrow()
                if len(keys_) == 1 or version == table.state.log_version:
                    assert read.schema.field("v").type == ARROW.get(data_type, read.schema.field("v").type)
                assert rows_in(read) == expected, (version, keys_, type_)
        by_other = deltalake.DeltaTable(str(folder(table)), version=version).to_pyarrow_table()
        assert rows_in(by_other) == state.read(*every)[1] if len(every) > 1 else True
    table.verify().require_ok()


@given(STEPS)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_walk_of_widening_writes_reads_as_its_model(steps: list[tuple[str, str, str, int]]) -> None:
    with tempfile.TemporaryDirectory() as place:
        walk(Project.open("P", place).table("t"), steps, lambda rows: rows)


@pytest.mark.spark
@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(
            [
                ("a", "byte", "replace", 0),
                ("b", "long", "replace", 0),
                ("a", "integer", "append", 9),
                ("a", "long", "merge", 1),
            ],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            [("a", "integer", "append", 0), ("b", "decimal(5,2)", "merge", 0), ("b", "integer", "merge", 1)],
            marks=pytest.mark.slow,
        ),
        [("a", "double", "merge", 0), ("b", "float", "append", 0), ("a", "integer", "append", 3)],
        [("a", "decimal(30,4)", "append", 0), ("a", "long", "append", 1), ("a", "string", "append", 1)],
    ],
)
@pytest.mark.slow
def test_spark_writes_and_reads_such_walks_alike(
    spark: Any, project: Project, steps: list[tuple[str, str, str, int]]
) -> None:
    walk(project.table("t"), steps, spark.createDataFrame)


@pytest.mark.spark
@pytest.mark.every(3)
@pytest.mark.parametrize(("narrow", "wide"), WIDENINGS)
def test_spark_reads_narrow_parts_as_the_table_has_them_and_filters_by_value(
    spark: Any, table: VersionedTable, narrow: str, wide: str
) -> None:
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as sf

    table.write(frame(narrow), partition="a")
    table.write(frame(wide, first=10), partition="b")
    expected = table.read()
    read = table.read(as_type=DataFrame)
    assert_same(read.toArrow(), expected)
    for row in expected.to_pylist():
        if row["v"] is not None:
            found = read.where(sf.col("v") == sf.lit(str(row["v"])).cast(read.schema["v"].dataType))
            assert row["id"] in [one["id"] for one in found.collect()], row


@pytest.mark.spark
def test_spark_compares_rows_by_value_where_a_column_became_wider(spark: Any, table: VersionedTable) -> None:
    from pyspark.sql import DataFrame

    table.write(pa.table({"id": pa.array([1, 2, 3], pa.int32()), "v": pa.array([1, 2, 3], pa.int32())}), partition="a")
    table.write(pa.table({"id": [1, 2, 4], "v": [1, 2**40, 4]}), partition="a")
    diff = table.diff_rows("@0", "@1", key=["id"], partition="a", as_type=DataFrame)
    assert diff.counts() == {"added": 1, "removed": 1, "changed": 1, "unchanged": 1}
