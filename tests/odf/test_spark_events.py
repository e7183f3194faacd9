"""Histories of events on Spark: the same events, in the same order, as over Arrow, and the same rows from them."""

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from dagster_versioned.errors import InvalidInput, UnsupportedType
from dagster_versioned.identity.version import Run
from dagster_versioned.odf.blocks.data_schema_arrow import from_arrow
from dagster_versioned.odf.blocks.events import AddData, SetDataSchema
from dagster_versioned.odf.event_table import EventTable
from dagster_versioned.odf.queries.transform import InputAt, derive
from dagster_versioned.odf.sharing.transfer import pull
from dagster_versioned.odf.transform_query import QueryStep, TransformQuery
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.event_history import (
    AppendMerge,
    ChangelogMerge,
    EventHistory,
    LedgerMerge,
    SnapshotMerge,
    UpsertMerge,
)
from dagster_versioned.tables.options import TableOptions
from support.foreign_blocks import foreign_block
from support.odf_graph import SCHEMA as READINGS
from support.odf_graph import root_of
from support.second_reader import read_dataset
from support.spark import spark_frame

pytestmark = pytest.mark.spark

TIMES = pa.timestamp("us", tz="UTC")


def year(number: int) -> datetime:
    return datetime(number, 1, 1, tzinfo=UTC)


def rows(*given: tuple[Any, ...], times: list[Any] | None = None) -> pa.Table:
    names = ("id", "a.b", "note", "day", "parts")
    types: list[Any] = [pa.int64(), pa.float64(), pa.string(), pa.date32(), pa.list_(pa.string())]
    columns = {name: pa.array([row[i] for row in given], types[i]) for i, name in enumerate(names)}
    return pa.table(columns if times is None else {**columns, "event_time": pa.array(times, TIMES)})


NAN, DAY = float("nan"), date(2020, 2, 29)
DUMPS = [
    rows((2, 1.0, "b", DAY, ["x"]), (1, NAN, None, None, None), (3, -0.5, "ä", DAY, [])),
    rows((1, NAN, None, None, None), (2, 2.0, "b", DAY, ["x", None]), (4, None, "", None, ["y"])),
    rows((2, 2.0, "b", DAY, ["x", None]), (4, None, "", None, ["y"]), times=[None, year(2001)]),
    rows((2, 2.0, "b", DAY, ["x", None]), (4, None, "", None, ["y"]), times=[None, year(2001)]),
]

HISTORIES = {
    "append": EventHistory(merge=AppendMerge()),
    "ledger": EventHistory(merge=LedgerMerge(primary_key=("id",))),
    "snapshot": EventHistory(merge=SnapshotMerge(primary_key=("id",))),
}


@pytest.mark.slow
def test_offsets_that_are_unsigned_in_the_file_are_read_and_gone_on_with(tmp_path: Path, spark: Any) -> None:
    kinds = {"offset": pa.uint64(), "op": pa.uint8()}
    columns = from_arrow(pa.schema([field.with_type(kinds.get(field.name, field.type)) for field in READINGS]))
    root = root_of(tmp_path / "remote", encode=foreign_block, columns=SetDataSchema(schema=columns))
    table = Project.open("COPY", str(tmp_path / "copy")).table("readings")
    pull(root.remote, table)
    copied = EventTable(table, HISTORIES["append"])
    copied.write(spark.createDataFrame([("s", 7)], "station STRING, heat BIGINT"))
    events = copied.events(as_type=DataFrame)
    assert [kind for name, kind in events.dtypes if name in kinds] == ["bigint", "int"]
    assert [row.offset for row in events.orderBy("offset").collect()] == list(range(13))
    assert [row.heat for row in copied.current(as_type=DataFrame).where("heat > 6").collect()] == [7]
    assert table.verify().ok
    query = TransformQuery(("readings",), (QueryStep("SELECT event_time, station, heat FROM readings WHERE heat > 3"),))
    hot = table.project.table("hot")
    derive(EventTable(hot), query, {"readings": InputAt.of_table(table)}, spark)
    assert EventTable(hot).events()["heat"].to_pylist() == [4, 4, 7]


def slices(table: EventTable) -> list[Any]:
    """The hash of the events of each slice, but for when they became known."""
    events = table.events().drop_columns(["system_time"])
    found: list[Any] = []
    for _, block in table.blocks():
        if isinstance(block.event, AddData) and block.new_data is not None:
            interval = block.new_data.offset_interval
            part = events.slice(interval.start, interval.end + 1 - interval.start)
            found.append((interval, block.event.new_watermark, part.to_pylist()))
    return found


@pytest.mark.parametrize(
    "strategy", [pytest.param(name, marks=[pytest.mark.slow] if name != "snapshot" else []) for name in HISTORIES]
)
def test_spark_makes_the_events_that_arrow_makes(spark: Any, tmp_path: Path, strategy: str):
    project = Project.open("NYC", str(tmp_path))
    arrow, own = (EventTable(project.table(name), HISTORIES[strategy]) for name in ("arrow", "spark"))
    for number, dump in enumerate(DUMPS):
        ordered = dump.sort_by("id") if strategy == "append" else dump
        arrow.write(ordered, event_time=year(2010 + number))
        own.write(spark_frame(spark, ordered), event_time=year(2010 + number))
    has_order = strategy == "snapshot"  # that of keys; others have the order of the frame, and Spark's has none
    for one, other in zip(slices(arrow), slices(own), strict=True):
        assert one[:2] == other[:2]
        mine, theirs = ([{**event, "offset": 0} for event in part[2]] for part in (one, other))
        told = [list(map(repr, events)) for events in (mine, theirs)]
        assert told[0] == told[1] if has_order else sorted(told[0]) == sorted(told[1])
    for read in ({}, {"as_of": year(2011)}, {"as_of": year(2005)}):
        expected = arrow.read(**read)
        found = own.read(as_type=DataFrame, **read)
        assert found.columns == expected.column_names
        assert repr(sorted(found.toArrow().to_pylist(), key=repr)) == repr(sorted(expected.to_pylist(), key=repr))
    assert own.table.verify().ok
    assert len(read_dataset(tmp_path / "datom/spark").rows) == own.current().num_rows
    assert own.changes(0, as_type=DataFrame).count() == own.events().num_rows


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["upsert", "changelog"])
def test_spark_takes_streams_of_changes_as_arrow_does(spark: Any, tmp_path: Path, strategy: str):
    made = {"upsert": UpsertMerge, "changelog": ChangelogMerge}[strategy](primary_key=("id",))
    history = EventHistory(merge=made)
    project = Project.open("NYC", str(tmp_path))
    arrow, own = (EventTable(project.table(name), history) for name in ("arrow", "spark"))
    frames = [
        pa.table({"id": [3, 1, 2], "v": ["c", "a", None], "op": [0, 0, 0]}),
        pa.table({"id": [1, 1, 2, 4], "v": ["a", "x", None, "d"], "op": [2, 3, 1, 0]}),
    ]
    for number, rows in enumerate(frames):
        arrow.write(rows, event_time=year(2010 + number))
        own.write(spark_frame(spark, rows), event_time=year(2010 + number))
    assert slices(arrow) == slices(own)
    assert [event["op"] for event in arrow.events().to_pylist()] == [0, 0, 0, 2, 3, 1, 0]
    assert [event["event_time"].year for event in own.events().to_pylist()][3:] == [2010, 2011, 2010, 2011]
    assert len(read_dataset(tmp_path / "datom/spark").rows) == 3
    assert sorted(row.v for row in own.current(as_type=DataFrame).collect()) == ["c", "d", "x"]
    with pytest.raises(InvalidInput, match=r"'op' has 4, which is no operation"):
        own.write(spark_frame(spark, pa.table({"id": [7], "v": ["a"], "op": [4]})))
    with pytest.raises(InvalidInput, match="1 rows have a null"):
        own.write(spark_frame(spark, pa.table({"id": pa.array([None], pa.int64()), "v": ["a"], "op": [0]})))
    if strategy == "changelog":
        with pytest.raises(InvalidInput, match=r"of the 'id' 9 there is half a one"):
            own.write(spark_frame(spark, pa.table({"id": [9], "v": ["a"], "op": [3]})))
    assert own.table.verify().ok


@pytest.mark.slow
def test_dumps_go_on_where_rows_with_one_key_had_been_appended(spark: Any, tmp_path: Path):
    dumps = [{"id": [1, 1, 2], "c": ["a", "b", "d"]}, {"id": [1, 2], "c": ["b", "d"]}, {"id": [2], "c": ["d"]}]
    repeated = pa.table({"id": [1, 2, 2], "c": ["b", "d", "d"]})  # as often as the first dump repeats another
    for name in ("arrow", "spark"):
        for number, dump in enumerate(map(pa.table, dumps)):
            frame = spark_frame(spark, dump).coalesce(1) if name == "spark" else dump
            history = HISTORIES["append" if number == 0 else "snapshot"]
            table = EventTable(Project.open("NYC", str(tmp_path)).table(name), history)
            if number == 1:
                with pytest.raises(InvalidInput, match="several rows have the same"):
                    table.write(spark_frame(spark, repeated) if name == "spark" else repeated, event_time=year(2))
            table.write(frame, event_time=year(number + 1))
        found = EventTable(Project.open("NYC", str(tmp_path)).table(name)).events().select(["op", "id", "c"])
        # Of rows with one key the last is current, and nothing else is ever taken back.
        expected = [(0, 1, "a"), (0, 1, "b"), (0, 2, "d"), (1, 1, "b")]
        assert [tuple(event.values()) for event in found.to_pylist()] == expected, name


@pytest.mark.slow
def test_tables_of_many_columns_are_merged(spark: Any, tmp_path: Path):
    # Spark once took minutes to plan what 20 columns come to, and four times as long for each two more.
    table = EventTable(Project.open("NYC", str(tmp_path)).table("wide"), HISTORIES["snapshot"])
    names = [f"c{i}" for i in range(40)]
    for last in (0, 1):
        rows = spark.range(3).selectExpr("id", *(f"id AS {name}" for name in names[1:]), f"id * {last} AS last")
        table.write(rows)
    found = table.events().select(["op", "id", "c39", "last"]).to_pylist()
    assert [tuple(event.values()) for event in found] == [
        *((0, i, i, 0) for i in range(3)),
        *((2 + side, i, i, i * side) for i in (1, 2) for side in (0, 1)),
    ]


@pytest.mark.slow
def test_rows_in_an_order_of_spark_s_own_are_ordered_by_what_they_say(spark: Any, tmp_path: Path):
    table = EventTable(Project.open("NYC", str(tmp_path)).table("log"), HISTORIES["append"])
    table.write(spark.range(100).repartition(7).withColumnRenamed("id", "number"), run=Run("r", "log", 0))
    assert table.events()["number"].to_pylist() == list(range(100))
    again = table.write(spark.range(100).repartition(3).withColumnRenamed("id", "number"), run=Run("r", "log", 1))
    assert again.replayed
    assert table.chain.next_offset == 100


@pytest.mark.slow
def test_what_is_refused_is_refused_before_anything_is_written(spark: Any, tmp_path: Path):
    table = EventTable(Project.open("NYC", str(tmp_path)).table("planes"), HISTORIES["snapshot"])
    with pytest.raises(InvalidInput, match="1 rows have a null in it, and several rows have the same"):
        table.write(spark.createDataFrame([(1,), (1,), (None,)], "id long").selectExpr("id", "id AS other"))
    known = EventTable(table.table.project.table("known"), HISTORIES["snapshot"])
    good = spark.createDataFrame([(1, 1), (2, 2)], "id long, other long")
    known.write(good)
    for others in ([(1, 1), (1, 1)], [(1, 1), (1, 5)], [(1, 4), (1, 5)], [(3, 1), (3, 2)]):
        with pytest.raises(InvalidInput, match="several rows have the same"):
            known.write(good.where("id = 2").union(spark.createDataFrame(others, good.schema)))
    known.write(good.limit(0), options=TableOptions(allow_empty=True))
    known.write(good)
    assert known.events()["op"].to_pylist() == [0, 0, 1, 1, 0, 0]
    with pytest.raises(UnsupportedType, match="parts of a millisecond"):
        table.write(spark.sql("SELECT 1 AS id, 2 AS other, timestamp'2020-01-01 00:00:00.000001' AS event_time"))
    assert not table.table.exists()
