"""A source is polled: each file becomes events once, whatever happens in between."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_versioned.errors import InvalidInput
from dagster_versioned.odf.blocks.events import AddData, SetPollingSource, TransformSql
from dagster_versioned.odf.event_table import EventTable
from dagster_versioned.odf.ingest.declare import current_state, declare, event_table, source_of
from dagster_versioned.odf.ingest.poll import Polling, poll, preprocess
from dagster_versioned.odf.manifest import DatasetSnapshot, read_snapshot
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.table import VersionedTable
from support.static_server import static_server

MANIFEST = """
kind: DatasetSnapshot
version: 1
content:
  name: org.example.cities
  kind: Root
  metadata:
    - kind: SetInfo
      description: Cities of the world
    - kind: SetPollingSource
      fetch:
        kind: FilesGlob
        path: {folder}/cities-*.csv
        eventTime:
          kind: FromPath
          pattern: "cities-([0-9-]+)"
      read:
        kind: Csv
        header: true
        schema:
          - id BIGINT NOT NULL
          - name STRING
      merge:
        kind: Snapshot
        primaryKey: [id]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "files").mkdir()
    return tmp_path / "files"


@pytest.fixture
def table(tmp_path: Path) -> VersionedTable:
    return Project.open("NYC", str(tmp_path / "store")).table("cities")


@pytest.fixture
def snapshot(folder: Path) -> DatasetSnapshot:
    return read_snapshot(MANIFEST.format(folder=folder))


def polled(table: VersionedTable, snapshot: DatasetSnapshot) -> list[tuple[str, str]]:
    events = event_table(table, snapshot)
    source = source_of(snapshot)
    assert isinstance(source, SetPollingSource)
    return [(Path(one.file).name, one.result.change) for one in poll(events, source, Polling())]


def rows(table: VersionedTable, **when: Any) -> list[tuple[object, ...]]:
    found = EventTable(table).read(**when).select(["id", "name"]).sort_by("id")
    return [tuple(row.values()) for row in found.to_pylist()]


def test_files_become_events_one_after_the_other_each_once(
    table: VersionedTable, snapshot: DatasetSnapshot, folder: Path
):
    (folder / "cities-2020-01-01.csv").write_text("id,name\n1,Oslo\n2,Rome\n")
    (folder / "cities-2021-01-01.csv").write_text("id,name\n1,Oslo\n3,Bonn\n")
    assert polled(table, snapshot) == [("cities-2020-01-01.csv", "full"), ("cities-2021-01-01.csv", "full")]
    assert polled(table, snapshot) == []
    (folder / "cities-2022-01-01.csv").write_text("id,name\n1,Oslo\n3,Bonn\n")
    assert [name for name, _ in polled(table, snapshot)] == ["cities-2022-01-01.csv"]
    assert polled(table, snapshot) == []
    assert rows(table) == [(1, "Oslo"), (3, "Bonn")]
    assert rows(table, as_of=datetime(2020, 6, 1, tzinfo=UTC)) == [(1, "Oslo")]
    state = current_state(table)
    assert state is not None
    assert state.source_states["default"].value == "cities-2022-01-01.csv"
    assert state.polling_source == source_of(snapshot)


def test_a_file_that_does_not_parse_stops_the_poll_and_what_came_before_stays(
    table: VersionedTable, snapshot: DatasetSnapshot, folder: Path
):
    (folder / "cities-2020-01-01.csv").write_text("id,name\n1,Oslo\n")
    (folder / "cities-2021-01-01.csv").write_text("id,name\n1,Oslo\nx,Rome\n")
    with pytest.raises(InvalidInput, match=r"cities-2021-01-01\.csv, line 3, column 'id': 'x' is no int64"):
        polled(table, snapshot)
    assert rows(table) == [(1, "Oslo")]
    (folder / "cities-2021-01-01.csv").write_text("id,name\n1,Oslo\n2,Rome\n")
    assert [name for name, _ in polled(table, snapshot)] == ["cities-2021-01-01.csv"]
    assert rows(table) == [(1, "Oslo"), (2, "Rome")]


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ("id,name\n2,a\n2,b\n", "several rows have the same"),
        ("id,name\n,a\n", "NOT NULL"),
        ("id,name,more\n1,a,b\n", "column 'more'"),
    ],
)
def test_dumps_that_are_no_dumps_are_refused(
    table: VersionedTable, snapshot: DatasetSnapshot, folder: Path, second: str, reason: str
):
    (folder / "cities-2020-01-01.csv").write_text("id,name\n1,Oslo\n")
    polled(table, snapshot)
    (folder / "cities-2021-01-01.csv").write_text(second)
    with pytest.raises(InvalidInput, match=reason):
        polled(table, snapshot)
    assert rows(table) == [(1, "Oslo")]


def test_a_dump_that_comes_late_is_refused(table: VersionedTable, snapshot: DatasetSnapshot, folder: Path):
    (folder / "cities-2021-01-01.csv").write_text("id,name\n1,Oslo\n")
    polled(table, snapshot)
    (folder / "cities-2020-01-01.csv").write_text("id,name\n1,Rome\n")
    with pytest.raises(InvalidInput, match=r"comes before 'cities-2021-01-01\.csv'"):
        polled(table, snapshot)
    assert rows(table) == [(1, "Oslo")]


def test_a_url_is_polled_and_its_state_is_part_of_the_chain(tmp_path: Path, table: VersionedTable, folder: Path):
    os.utime((folder / "x.json").write_text('[{"id": 1}]') and folder / "x.json", (1_577_836_800, 1_577_836_800))
    with static_server(folder) as url:
        manifest = MANIFEST.format(folder=folder).replace("kind: FilesGlob", "kind: Url")
        manifest = manifest.replace(f"path: {folder}/cities-*.csv", f"url: {url}/x.json")
        manifest = manifest.replace("kind: FromPath", "kind: FromMetadata").replace('pattern: "cities-([0-9-]+)"', "")
        manifest = manifest.replace("kind: Csv", "kind: Json").replace("header: true", "")
        snapshot = read_snapshot(manifest)
        assert polled(table, snapshot) == [("x.json", "full")]
        assert polled(table, snapshot) == []
        (folder / "x.json").write_text('[{"id": 1}, {"id": 2, "name": "Rome"}]')
        assert polled(table, snapshot) == [("x.json", "full")]
    times = EventTable(table).events()["event_time"].to_pylist()
    assert times[0] == datetime(2020, 1, 1, tzinfo=UTC)
    assert rows(table) == [(1, None), (2, "Rome")]


def test_a_source_that_was_replaced_is_read_from_its_beginning(
    table: VersionedTable, snapshot: DatasetSnapshot, folder: Path, tmp_path: Path
):
    (folder / "cities-2020-01-01.csv").write_text("id,name\n1,Oslo\n")
    polled(table, snapshot)
    other = tmp_path / "others"
    other.mkdir()
    (other / "cities-2020-01-01.csv").write_text("id,name\n1,Oslo\n2,Rome\n")
    moved = read_snapshot(MANIFEST.format(folder=other))
    assert polled(table, moved) == [("cities-2020-01-01.csv", "full")]
    assert polled(table, moved) == []
    assert rows(table) == [(1, "Oslo"), (2, "Rome")]


def test_what_a_manifest_declares_is_put_into_the_chain_once(
    table: VersionedTable, snapshot: DatasetSnapshot, folder: Path
):
    events = event_table(table, snapshot)
    assert declare(events, snapshot) == 2
    assert declare(events, snapshot) == 0
    assert EventTable(table).current().num_rows == 0
    assert [type(block.event).__name__ for _, block in EventTable(table).blocks()][::-1] == [
        "Seed",
        "SetInfo",
        "SetPollingSource",
        "SetDataSchema",
    ]
    (folder / "cities-2020-01-01.csv").write_text("id,name\n1,Oslo\n")
    polled(table, snapshot)
    changed = read_snapshot(MANIFEST.format(folder=folder).replace("Cities of the world", "Cities of Europe"))
    assert declare(event_table(table, changed), changed) == 1
    state = current_state(table)
    assert state is not None
    assert state.info.description == "Cities of Europe"
    assert rows(table) == [(1, "Oslo")]


def test_columns_that_are_not_declared_come_with_the_data(
    table: VersionedTable, snapshot: DatasetSnapshot, folder: Path
):
    text = MANIFEST.format(folder=folder)
    bare = read_snapshot(text[: text.index("        schema:")] + text[text.index("      merge:") :])
    with pytest.raises(InvalidInput, match="does not declare columns"):
        declare(event_table(table, bare), bare)
    assert not table.exists()
    (folder / "cities-2020-01-01.csv").write_text("id,name\n1,Oslo\n")
    polled(table, bare)
    assert rows(table) == [("1", "Oslo")]


def test_a_manifest_without_one_source_is_refused(snapshot: DatasetSnapshot, table: VersionedTable):
    with pytest.raises(InvalidInput, match="has 0 sources"):
        event_table(table, DatasetSnapshot(snapshot.name, snapshot.kind, ()))
    with pytest.raises(InvalidInput, match="event AddData"):
        declare(
            event_table(table, snapshot), DatasetSnapshot(snapshot.name, snapshot.kind, (*snapshot.metadata, AddData()))
        )
    keyless = read_snapshot(MANIFEST.format(folder="/data").replace("[id]", "[]"))
    with pytest.raises(InvalidInput, match=r"primary_key must name columns.*primaryKey in the manifest"):
        event_table(table, keyless)
    stated = "    - {kind: SetDataSchema, schema: {fields: [{name: id, type: Int64}]}}\n"
    with pytest.raises(InvalidInput, match="event SetDataSchema"):
        declare(event_table(table, snapshot), read_snapshot(MANIFEST.format(folder="/data") + stated))


# --- reshaping -------------------------------------------------------------------------------------------------------

ROWS = pa.table({"a": [1, 2, None], "b": ["x", "y", "z"]})


def by_duckdb(query: str) -> list[tuple[object, ...]]:
    found = preprocess(ROWS, TransformSql("duckdb", query=query))
    return [tuple(row.values()) for row in found.to_pylist()]


def test_rows_are_reshaped_by_the_sources_query():
    assert preprocess(ROWS, None) is ROWS
    assert by_duckdb("SELECT a + 1 AS c, upper(b) AS d FROM input WHERE a IS NOT NULL ORDER BY a") == [
        (2, "X"),
        (3, "Y"),
    ]
    assert by_duckdb("SELECT TIMESTAMP '2020-01-01' AS t FROM input LIMIT 1") == [(datetime(2020, 1, 1, tzinfo=UTC),)]


@pytest.mark.parametrize(
    ("transform", "reason"),
    [
        (TransformSql("flink", query="SELECT 1"), "engine 'flink', which is not here"),
        (TransformSql("duckdb", query="SELECT nothing FROM input"), "is refused"),
        (TransformSql("duckdb", query="SELECT 1; SELECT 2"), "not one SELECT"),
        (TransformSql("duckdb", query="DROP TABLE input"), "not one SELECT"),
        (TransformSql("duckdb", query="COPY input TO '/tmp/stolen.csv'"), "not one SELECT"),
        (TransformSql("duckdb", query="SELECT * FROM read_text('/etc/passwd')"), "is refused"),
        (TransformSql("duckdb", query="SELECT * FROM '/etc/passwd.csv'"), "is refused"),
        (TransformSql("duckdb", query="SELECT * FROM rows"), "is refused"),
        (TransformSql("duckdb", query=""), "no query"),
    ],
)
def test_a_query_that_reaches_for_anything_else_is_refused(transform: TransformSql, reason: str):
    with pytest.raises(InvalidInput, match=reason):
        preprocess(ROWS, transform)


@pytest.mark.spark
@pytest.mark.slow
def test_rows_are_reshaped_by_spark_under_the_rules_of_transforms(spark):
    query = "SELECT a + 1 AS c, upper(b) AS d, timestamp'2020-01-01' AS t FROM input WHERE a IS NOT NULL"
    found = preprocess(ROWS, TransformSql("spark", query=query))
    moment = datetime(2020, 1, 1, tzinfo=UTC)
    assert found.to_pylist() == [{"c": 2, "d": "X", "t": moment}, {"c": 3, "d": "Y", "t": moment}]
    assert preprocess(ROWS.slice(0, 0), TransformSql("spark", query=query)).schema == found.schema
    with pytest.raises(InvalidInput, match=r"rand"):
        preprocess(ROWS, TransformSql("spark", query="SELECT rand() AS r FROM input"))
    with pytest.raises(InvalidInput, match=r"none of its inputs|cannot analyse"):
        preprocess(ROWS, TransformSql("spark", query="SELECT * FROM elsewhere"))
