"""What is asked of a table of many partitions takes work in proportion to them, and store calls that do not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_versioned.projects.project import Project
from dagster_versioned.storage import LocalStore
from dagster_versioned.storage.wrappers import CountingStore
from dagster_versioned.tables.table import VersionedTable
from support.call_log import CallLog
from support.profiled import function_calls


def keys(count: int) -> list[str]:
    return [f"k{number:05}" for number in range(count)]


def written(root: Path, count: int) -> VersionedTable:
    """A table of so many partitions, of two schemas, written in one commit."""
    table = Project.open("NYC", str(root)).table("daily")
    table.write_partitions(
        {key: pa.table({"n": [i], "late": [i]} if i % 2 else {"n": [i]}) for i, key in enumerate(keys(count))}
    )
    return table


PLANS: dict[str, Callable[[VersionedTable], Any]] = {
    "the whole table": lambda table: table.files(),
    "some partitions": lambda table: table.files(partitions=[key for key in table.partitions() if key != "k00000"]),
    "one partition": lambda table: table.files(partition="k00001"),
    "each partition by itself": lambda table: list(table.files().by_partition()),
    "lineage": lambda table: table.upstream(partitions=[*table.partitions()]),
}


@pytest.fixture(scope="module")
def few_and_many(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Projects with a table of 100, and of 200 partitions."""
    roots = [tmp_path_factory.mktemp("few"), tmp_path_factory.mktemp("many")]
    for root, count in zip(roots, (100, 200), strict=True):
        written(root, count)
    return roots


@pytest.mark.every(5)
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_the_plan_of_a_read_groups_files_once_and_parses_each_schema_once(
    few_and_many: list[Path], plan: Callable[[VersionedTable], Any]
) -> None:
    tables = [Project.open("NYC", str(root)).table("daily") for root in few_and_many]
    assert [len(table.partitions()) for table in tables] == [100, 200]
    few, many = (function_calls(lambda table=table: plan(table)) for table in tables)
    for name in ("wrapper", "to_adds", "parse_schema", "canonical_json"):  # pyarrow.compute's functions are wrappers
        assert many[name] <= few[name], name
    assert many.total() < 2.1 * few.total()


def test_the_files_of_each_partition_are_those_of_a_plan_of_its_own(tmp_path: Path) -> None:
    table = written(tmp_path, 4)
    table.write(pa.table({"n": [7], "late": [8]}), partition="k00002")
    for version in (None, 0):
        planned = table.files(version, columns=["n"])
        split = dict(planned.by_partition())
        assert list(split) == keys(4)
        for key, files in split.items():
            assert files == table.files(version, columns=["n"], partition=key)
    assert table.read_files(dict(table.files(0).by_partition())["k00002"]).to_pydict() == {"n": [2]}


def test_partitions_of_an_old_version_are_planned_from_one_snapshot(tmp_path: Path) -> None:
    reads: list[int] = []
    for count in (5, 50):
        written(tmp_path / str(count), count).write(pa.table({"n": [-1]}), partition="k00000")
        store = CountingStore(LocalStore(tmp_path / str(count)))
        table = Project("NYC", store).table("daily")
        _ = table.state
        store.reset()
        assert len(dict(table.files(0).by_partition())) == count
        reads.append(store.count())
    assert reads[0] == reads[1]


def test_who_reads_partitions_of_an_old_version_one_by_one_loads_its_snapshot_once(tmp_path: Path) -> None:
    written(tmp_path, 20).write(pa.table({"n": [-1]}), partition="k00000")
    log = CallLog(LocalStore(tmp_path))
    table = Project("NYC", log).table("daily")
    assert table.files(0, partition="k00000").versions[0].log_version == 0
    log.clear()
    for key in keys(20):
        table.files(0, partition=key)
    assert len(log.calls) == 20, "each looks once whether the log has gone on"


# Writing


def frames(count: int, shift: int = 0) -> dict[str | None, pa.Table]:
    return {key: pa.table({"n": [i + shift]}) for i, key in enumerate(keys(count))}


def new(table: VersionedTable, count: int) -> None:
    table.write_partitions(frames(count))


def changed(table: VersionedTable, count: int) -> None:
    table.write_partitions(frames(count, 1))


def unchanged(table: VersionedTable, count: int) -> None:
    assert {result.change for result in table.write_partitions(frames(count))} == {"none"}


def taken_back(table: VersionedTable, count: int) -> None:
    """Rows that each partition had before, in a commit of its own."""
    table.write_partitions(frames(count, 0))


def nothing_before(table: VersionedTable, count: int) -> None:
    """The table is new."""


def written_at_once(table: VersionedTable, count: int) -> None:
    new(table, count)


def written_one_by_one(table: VersionedTable, count: int) -> None:
    for key, frame in frames(count, 5).items():
        table.write(frame, partition=key)


def written_twice(table: VersionedTable, count: int) -> None:
    new(table, count)
    changed(table, count)


RUNS = [
    (nothing_before, new),
    (written_at_once, changed),
    (written_at_once, unchanged),
    (written_one_by_one, changed),
    (written_twice, taken_back),
]


@pytest.mark.every(5)
@pytest.mark.parametrize(("before", "run"), RUNS, ids=lambda one: one.__name__)
def test_a_write_of_all_partitions_is_one_commit_and_takes_work_and_calls_in_proportion(
    tmp_path: Path, before: Callable[[VersionedTable, int], None], run: Callable[[VersionedTable, int], None]
) -> None:
    calls: list[int] = []
    work: list[int] = []
    for count in (40, 80):
        root = LocalStore(tmp_path / str(count))
        before(Project("NYC", root).table("daily"), count)
        store = CountingStore(root)
        table = Project("NYC", store).table("daily")
        _ = table.exists()
        store.reset()
        profiled = function_calls(lambda table=table, count=count: run(table, count))
        calls.append(sum(not call.key.endswith(".parquet") or ".metadata" in call.key for call in store.calls))
        work.append(profiled.total())
        assert profiled["_tag"] <= 3  # passes over all files
        assert sum(call.verb == "put_if_absent" and "_delta_log" in call.key for call in store.calls) == (
            run is not unchanged
        )
    assert calls[1] == calls[0]
    assert work[1] < 2.1 * work[0]


# Verifying


@pytest.mark.parametrize("before", [written_at_once, written_one_by_one])
def test_to_verify_takes_work_in_proportion(tmp_path: Path, before: Callable[[VersionedTable, int], None]) -> None:
    work: list[int] = []
    for count in (40, 80):
        before(Project("NYC", LocalStore(tmp_path / str(count))).table("daily"), count)
        table = Project("NYC", LocalStore(tmp_path / str(count))).table("daily")
        profiled = function_calls(lambda table=table: table.verify().require_ok())
        assert profiled["_tag"] == 0
        work.append(profiled.total())
    if before is written_at_once:  # else there are checkpoints to verify, each of all files
        assert work[1] < 2.1 * work[0]


@pytest.mark.slow
def test_ten_thousand_partitions_take_twenty_calls_beside_their_parts(tmp_path: Path) -> None:
    store = CountingStore(LocalStore(tmp_path))
    table = Project("NYC", store).table("daily")
    for write in (new, changed, unchanged_now):
        store.reset()
        write(table, 10_000)
        assert sum(not call.key.endswith(".parquet") for call in store.calls) <= 20


def unchanged_now(table: VersionedTable, count: int) -> None:
    assert {result.change for result in table.write_partitions(frames(count, 1))} == {"none"}
