"""The files that a stream begins with come once each, planned from a piece of the checkpoint at a time."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_versioned.delta_tables.read import read_delta
from dagster_versioned.delta_tables.write import create_delta, delete_from, merge_delta, optimize_delta, write_delta
from support.spark import needs_spark

pytest.importorskip("pyspark.sql.streaming.datasource", reason="streams that are limited: from PySpark 4.2 on")

from dagster_versioned.delta.actions import Remove
from dagster_versioned.delta.commit.checkpoint import write_checkpoint
from dagster_versioned.delta.files.file_actions import adds_table
from dagster_versioned.delta.table import Table
from dagster_versioned.delta_tables.dml import WhenMatched, WhenNotMatched
from dagster_versioned.delta_tables.spark import log_tail
from dagster_versioned.errors import VersionedError
from dagster_versioned.storage import LocalStore
from support import spark_large_stream_job
from support.delta_logs import put_commit
from support.stream_planner import StreamPlanner

pytestmark = needs_spark(4, 2, "streams that are limited")


NO_CHECKPOINTS = {"delta.checkpointInterval": "1000"}


@pytest.fixture
def large(monkeypatch):
    """Every checkpoint counts as large."""
    monkeypatch.setenv("DAGSTER_VERSIONED_LARGE_LOG", "0")


def numbers(first: int, last: int) -> pa.Table:
    return pa.table({"id": range(first, last), "p": [number % 2 for number in range(first, last)]})


def ids(rows):
    return sorted(row["id"] for row in rows)


def all_ids(folder, version=None):
    return sorted(read_delta(str(folder), version)["id"].to_pylist())


def checkpoint_of(folder: Path) -> Path:
    return sorted(folder.glob("_delta_log/*.checkpoint.parquet"))[-1]


def cut(folder: Path, rows: int) -> None:
    """Have the newest checkpoint in row groups of so many rows."""
    pq.write_table(pq.read_table(checkpoint_of(folder)), checkpoint_of(folder), row_group_size=rows)


def drained(planner: StreamPlanner, *, unlimited: bool = False) -> list[list[int]]:
    """The rows of each batch until there is nothing new."""
    batches = []
    while (end := planner.latest(unlimited=unlimited)) != planner.start:
        batches.append(ids(planner.batch(end)))
        planner.start = end
    return batches


def joined(batches):
    return sorted(chain.from_iterable(batches))


@pytest.fixture
def tens(tmp_path: Path) -> Path:
    """Eight files, six of which a checkpoint in row groups of two has; of these one was deleted from since, and one is
    gone."""
    create_delta(
        str(tmp_path), numbers(0, 1).schema, properties={**NO_CHECKPOINTS, "delta.enableDeletionVectors": "true"}
    )
    for start in range(0, 60, 10):
        write_delta(str(tmp_path), numbers(start, start + 10))
    Table(str(tmp_path)).checkpoint()
    cut(tmp_path, 2)
    delete_from(str(tmp_path), "id = 3")
    delete_from(str(tmp_path), "id >= 40 and id < 50")
    for start in (60, 70):
        write_delta(str(tmp_path), numbers(start, start + 10))
    return tmp_path


@pytest.mark.parametrize("many", [0, 10_000], ids=["by tasks", "by the planner"])
@pytest.mark.parametrize("unlimited", [False, True])
def test_a_large_snapshot_comes_once_and_then_each_commit(large, tens, monkeypatch, many, unlimited):
    monkeypatch.setattr(log_tail, "MANY_FILES", many)
    planner = StreamPlanner(path=tens, maxFilesPerTrigger=2)
    assert "etag" in json.loads(planner.start)
    batches = drained(planner, unlimited=unlimited)
    assert joined(batches) == all_ids(tens)
    assert len(batches) == (1 if unlimited else 4)
    write_delta(str(tens), numbers(80, 85))
    assert drained(planner) == [[80, 81, 82, 83, 84]]


def test_a_file_that_is_gone_from_the_middle_of_a_piece_does_not_come(large, tmp_path, monkeypatch):
    for start in (0, 10, 20):
        write_delta(str(tmp_path), numbers(start, start + 10), properties=None if start else NO_CHECKPOINTS)
    Table(str(tmp_path)).checkpoint()
    adds = [add for add in pq.read_table(checkpoint_of(tmp_path))["add"].to_pylist() if add]
    middle = pq.read_table(tmp_path / adds[1]["path"])["id"][0].as_py()
    delete_from(str(tmp_path), f"id >= {middle} and id < {middle + 10}")
    monkeypatch.setattr(log_tail, "MANY_FILES", 0)
    assert joined(drained(StreamPlanner(path=tmp_path))) == all_ids(tmp_path)


def test_bytes_bound_a_batch_of_a_large_snapshot(large, tens):
    batches = drained(StreamPlanner(path=tens, maxBytesPerTrigger="1b"))
    assert sorted(map(len, batches)) == [9, 10, 10, 10, 10, 10, 10]


def test_the_feed_of_a_large_snapshot_has_inserts(large, tmp_path, monkeypatch):
    create_delta(str(tmp_path), numbers(0, 1).schema, properties={"delta.enableChangeDataFeed": "true"})
    write_delta(str(tmp_path), numbers(0, 3))
    Table(str(tmp_path)).checkpoint()
    monkeypatch.setattr(log_tail, "MANY_FILES", 0)
    planner = StreamPlanner(path=tmp_path, readChangeFeed="true")
    rows = planner.batch(planner.latest())
    assert ids(rows) == [0, 1, 2]
    assert {(row["_change_type"], row["_commit_version"]) for row in rows} == {("insert", 1)}
    assert {row["_commit_timestamp"] for row in rows} == {Table(str(tmp_path)).history()[0].timestamp}


def test_tasks_have_places_in_the_checkpoint_and_no_files_of_it(large, tens, monkeypatch):
    monkeypatch.setattr(log_tail, "MANY_FILES", 0)
    planner = StreamPlanner(path=tens)
    tasks = planner.plan(planner.latest())
    places = [task.value for task in tasks if isinstance(task.value, dict)]
    assert {place["key"] for place in places} == {f"_delta_log/{checkpoint_of(tens).name}"}
    assert "part-" not in json.dumps(places)


def test_a_stream_of_an_earlier_release_goes_on_where_it_was(large, tens):
    """Its offsets say nothing of a checkpoint: the files come by time."""
    by_time = Table(str(tens)).files().sort_by([("modificationTime", "ascending"), ("path", "ascending")])
    base = Table(str(tens)).version
    offset = {"base": base, "whole": True, "version": base, "index": 3}
    planner = StreamPlanner(json.dumps(offset), path=tens, maxFilesPerTrigger=1)
    assert json.loads(planner.latest()) == {**offset, "index": 4}
    batches = drained(planner)
    expected = [set(pq.read_table(tens / path)["id"].to_pylist()) for path in by_time["path"].to_pylist()[3:]]
    assert [set(batch) - {3} for batch in batches if batch] == [rows - {3} for rows in expected]


def test_offsets_of_a_small_log_are_those_of_earlier_releases(tens):
    planner = StreamPlanner(path=tens, maxFilesPerTrigger=3)
    base = Table(str(tens)).version
    assert json.loads(planner.start) == {"base": base, "whole": True, "version": base, "index": 0}
    assert joined(drained(planner)) == all_ids(tens)


@pytest.mark.parametrize("newer", [False, True], ids=["of the same version", "of a newer version"])
def test_another_checkpoint_does_not_change_the_order(large, tens, newer):
    planner = StreamPlanner(path=tens, maxFilesPerTrigger=2)
    first = planner.latest()
    found = ids(planner.batch(first))
    if newer:
        Table(str(tens)).checkpoint()
        again = StreamPlanner(first, path=tens)
        assert joined([found, *drained(again)]) == all_ids(tens)
    else:
        cut(tens, 3)
        with pytest.raises(VersionedError, match=r"checkpoint of version 6 .* is another one by now.* Begin anew"):
            StreamPlanner(first, path=tens).latest()


@pytest.mark.parametrize("where", ["by tasks", "by the planner"])
@pytest.mark.parametrize("rows", [1, 8], ids=["smaller row groups", "one row group"])
def test_a_checkpoint_that_is_replaced_under_a_planner_is_named(large, tens, monkeypatch, where, rows):
    monkeypatch.setattr(log_tail, "MANY_FILES", 0 if where == "by tasks" else 10)
    planner = StreamPlanner(path=tens)
    end = planner.latest()
    cut(tens, rows)
    with pytest.raises(VersionedError, match=r"000006\.checkpoint\.parquet .* was replaced by another one"):
        planner.batch(end)


def test_a_checkpoint_that_is_written_again_under_a_planner_is_the_same(large, tens):
    planner = StreamPlanner(path=tens, maxFilesPerTrigger=3)
    found = ids(planner.batch(planner.latest()))
    planner.start = planner.latest()
    os.utime(checkpoint_of(tens), (0, 0))
    assert joined([found, *drained(planner)]) == all_ids(tens)


def test_a_checkpoint_that_is_gone_is_named(large, tens):
    first = StreamPlanner(path=tens, maxFilesPerTrigger=2).latest()
    checkpoint_of(tens).unlink()
    with pytest.raises(VersionedError, match=r"checkpoint of version 6 .* is no longer there.*What came until now"):
        StreamPlanner(first, path=tens).latest()


@pytest.mark.parametrize("where", ["by tasks", "by the planner"])
def test_a_forged_path_is_named(large, tens, monkeypatch, where):
    checkpoint = checkpoint_of(tens)
    table = pq.read_table(checkpoint)
    adds = table["add"].to_pylist()
    forged = pa.array([add and {**add, "path": f"/etc/{add['path']}"} for add in adds], table.schema.field("add").type)
    pq.write_table(table.set_column(table.column_names.index("add"), "add", forged), checkpoint)
    monkeypatch.setattr(log_tail, "MANY_FILES", 0 if where == "by tasks" else 10)
    planner = StreamPlanner(path=tens)
    with pytest.raises(VersionedError, match="/etc/"):
        planner.batch(planner.latest())


def test_a_file_that_is_in_the_checkpoint_twice_is_named(large, tens):
    table = pq.read_table(checkpoint_of(tens))
    live = table.filter(pc.is_valid(table["add"]))
    pq.write_table(pa.concat_tables([table, live.slice(0, 1)]), checkpoint_of(tens))
    with pytest.raises(VersionedError, match="occurs twice in the checkpoint"):
        StreamPlanner(path=tens).latest()


def test_a_checkpoint_that_cannot_be_read_is_passed_over_where_a_stream_begins(large, tens):
    checkpoint_of(tens).write_bytes(b"no Parquet")
    planner = StreamPlanner(path=tens)
    assert "etag" not in json.loads(planner.start)
    assert joined(drained(planner)) == all_ids(tens)


STEPS = st.lists(st.sampled_from(["append", "append", "delete", "optimize", "checkpoint"]), max_size=5)


class Changed:
    """A table whose rows have ids that are never used again."""

    def __init__(self, folder: Path, *, vectors: bool) -> None:
        self.folder, self.next = folder, 0
        properties = {**NO_CHECKPOINTS, "delta.enableDeletionVectors": str(vectors).lower()}
        create_delta(str(folder), numbers(0, 1).schema, properties=properties)

    def change(self, *steps: str) -> None:
        for step in steps:
            match step:
                case "append":
                    write_delta(str(self.folder), numbers(self.next, self.next + 4))
                    self.next += 4
                case "delete":
                    delete_from(str(self.folder), f"id % 7 = {self.next % 7}")
                case "optimize":
                    optimize_delta(str(self.folder))
                case _:
                    Table(str(self.folder)).checkpoint()


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    before=STEPS,
    after=STEPS,
    between=STEPS,
    vectors=st.booleans(),
    group=st.integers(1, 4),
    files=st.integers(1, 4),
    many=st.sampled_from([0, 10_000]),
    dies=st.lists(st.booleans(), min_size=3, max_size=3),
)
def test_each_row_comes_once_whatever_happens_in_between(
    tmp_path_factory, before, after, between, vectors, group, files, many, dies
):
    table = Changed(tmp_path_factory.mktemp("table"), vectors=vectors)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGSTER_VERSIONED_LARGE_LOG", "0")
        patch.setattr(log_tail, "MANY_FILES", many)
        table.change("append", "append", *before, "checkpoint")
        cut(table.folder, group)
        # Another checkpoint of the same version would be refused, as `test_a_checkpoint_that_is_replaced…` shows.
        table.change("append", *(step for step in after if step != "checkpoint"))
        begun, expected, found = table.next, all_ids(table.folder), []
        options = {"path": table.folder, "maxFilesPerTrigger": files, "skipChangeCommits": "true"}
        planner = StreamPlanner(**options)
        for number in range(len(between) + 100):
            end = planner.latest()
            rows = ids(planner.batch(end))
            if dies[number % 3]:  # the driver, after the batch was recorded: it is repeated
                planner = StreamPlanner(planner.start, **options)
                assert ids(planner.batch(end)) == rows
            found += rows
            if end == planner.start and number >= len(between):
                break
            planner.start = end
            table.change(*between[number : number + 1])
        assert sorted(found) == sorted([*expected, *range(begun, table.next)])


ENTRIES, EVERY = 100_000, 1000


def large_log_of(folder: Path) -> None:
    """A checkpoint with 100,000 files in ten row groups, and a commit that removes all but each thousandth, which alone
    ever were there; the rest of the log is by our own writers."""
    write_delta(str(folder), numbers(0, 5), properties=NO_CHECKPOINTS)
    table = Table(str(folder)).snapshot()
    (example,) = table.adds()
    names = [f"part-{number:06d}.parquet" for number in range(ENTRIES)]
    for number, name in enumerate(names[::EVERY]):
        pq.write_table(numbers(1000 + number * 5, 1005 + number * 5), folder / name)
    size = {name: (folder / name).stat().st_size for name in names[::EVERY]}
    adds = [replace(example, path=name, size=size.get(name, 1), stats=None) for name in names]
    store = LocalStore(folder)
    write_checkpoint(store, replace(table, files=adds_table([example, *adds])))
    cut(folder, ENTRIES // 10)
    put_commit(store, 1, [Remove(name, True) for name in names if name not in size])


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_executors_plan_a_large_snapshot_and_its_rows_come_once_when_the_driver_dies(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    (tmp_path / "executors").mkdir()
    large_log_of(source)
    expected = [*range(5), *range(1000, 1000 + ENTRIES // EVERY * 5)]
    first = StreamPlanner(path=source, maxFilesPerTrigger=40)
    assert all(isinstance(task.value, dict) for task in first.plan(first.latest()))
    program = [sys.executable, spark_large_stream_job.__file__, tmp_path / "executors", source, target, tmp_path / "q"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}

    def started():
        return subprocess.Popen(list(map(str, program)), start_new_session=True, env=environment)

    driver = started()
    try:
        while not list(target.glob("_delta_log/*.json")):
            assert driver.poll() is None, "it ended before its first batch was committed"
            time.sleep(0.02)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    assert len(all_ids(target)) < len(expected), "it died in the middle of the snapshot"
    write_delta(str(source), numbers(5000, 5010))
    delete_from(str(source), "id >= 1000 and id < 1003")
    Table(str(source)).checkpoint()
    rows = pa.table({"id": [5001, 6000], "p": [7, 7]})
    merge_delta(str(source), rows, "target.id = source.id", [WhenMatched("all"), WhenNotMatched("all")])
    # Spark gives the Python of a stream ten seconds to start, whatever else the machine does; a query is started anew.
    assert any(started().wait(600) == 0 for _ in range(3))
    assert all_ids(target) == [*expected, *range(5000, 5010)]
