"""What opening, reading and writing a table costs, in store calls, bytes and memory: none of it grows with history."""

import gc
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_versioned.projects.project import Project
from dagster_versioned.storage import LocalStore
from dagster_versioned.tables.documents.datom_documents import HISTORY_KEY
from dagster_versioned.tables.documents.manifest import MANIFEST_KEY
from dagster_versioned.tables.table import VersionedTable
from support.call_log import CallLog
from support.one_table import numbered

LENGTHS = [5, 50, pytest.param(250, marks=pytest.mark.slow), pytest.param(1_100, marks=pytest.mark.slow)]
COLD_OPEN, COLD_WRITE, WARM_WRITE, UNCHANGED = 12, 14, 8, 3
"""Calls at most, those that fail among them."""


@pytest.fixture
def log(tmp_path: Path) -> CallLog:
    return CallLog(LocalStore(tmp_path / "store"))


@pytest.fixture
def table(log: CallLog) -> VersionedTable:
    return opened(log)


def opened(log: CallLog, name: str = "flights") -> VersionedTable:
    return Project("NYC", log).table(name)


def grown(table: VersionedTable, versions: int) -> VersionedTable:
    for n in range(versions):
        table.write(numbered(n))
    return table


def around(versions: int) -> Iterator[int]:
    """As many commits more as have each its own document to put in the background."""
    yield from range(versions, versions + 20)


@pytest.mark.parametrize("versions", LENGTHS)
def test_a_head_is_opened_in_a_few_calls_for_any_history(table: VersionedTable, log: CallLog, versions: int) -> None:
    grown(table, versions)
    for n in around(versions):
        log.clear()
        assert opened(log).files().versions[0].log_version == n - 1
        commits = [key for key in log.keys("get") if key.endswith(".json") and "_delta_log" in key]
        assert len(commits) == len(set(commits)), "a commit is read once"
        assert len(log.calls) - len(commits) <= 4
        assert len(log.calls) <= COLD_OPEN
        table.write(numbered(n))


def test_a_whole_history_is_read_by_segments(table: VersionedTable, log: CallLog) -> None:
    """Up to the commits that the checkpoint notes, which are in the middle of one."""
    grown(table, 125)
    log.clear()
    assert [record.log_version for record in opened(log).state.history.records] == list(range(125))
    assert len([key for key in log.keys("get") if key.endswith(".json") and "_delta_log" in key]) <= 8


@pytest.mark.parametrize("versions", LENGTHS)
def test_a_write_takes_few_calls_for_any_history(table: VersionedTable, log: CallLog, versions: int) -> None:
    grown(table, versions)
    for n in around(versions):
        log.clear()
        assert table.write(numbered(n)).change == "full"
        assert len(log.calls) <= WARM_WRITE, log
        log.clear()
        assert table.write(numbered(n)).change == "none"
        assert len(log.calls) <= UNCHANGED, log
    for n in around(versions):
        log.clear()
        assert opened(log).write(numbered(-n)).change == "full"
        assert len(log.calls) <= COLD_WRITE, log
    assert opened(log).verify().ok


def test_a_head_of_a_large_table_is_opened_in_few_calls(
    table: VersionedTable, log: CallLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_versioned.tables.documents.publish._LARGE", 0)
    for n in range(32):
        table.write(numbered(n))
        log.clear()
        opened(log).files()
        assert len(log.calls) <= COLD_OPEN, log
    assert [
        key[:31] for key in sorted(info.key for info in table.store.list("_delta_log/")) if "checkpoint." in key
    ] == [f"_delta_log/{at:020d}" for at in (10, 20, 30)]
    assert table.verify().ok


@pytest.mark.slow
def test_what_a_write_puts_does_not_grow_with_its_history(table: VersionedTable, log: CallLog) -> None:
    def put(first: int) -> float:
        log.clear()
        for n in range(first, first + 100):
            table.write(numbered(n))
        return sum(call.written for call in log.calls) / 100

    grown(table, 100)
    young = put(100)
    grown(table, 800)
    old = put(1_000)
    assert old < 2 * young


def test_a_write_puts_whole_documents_now_and_then_only(table: VersionedTable, log: CallLog) -> None:
    grown(table, 10)
    for name in range(20):
        opened(log, f"other{name}").write(numbered(1))
    log.clear()
    for n in range(10, 30):
        table.write(numbered(n))
    assert sum(key.endswith(HISTORY_KEY) for key in log.keys("put")) == 2
    assert sum(key.endswith(MANIFEST_KEY) for key in log.keys("put_if_match")) == 2


def test_a_write_into_one_of_many_tables_puts_no_more(log: CallLog) -> None:
    def put(tables: int) -> int:
        for n in range(tables):
            opened(log, f"t{tables}of{n}").write(numbered(1))
        table = grown(opened(log, f"mine{tables}"), 14)  # the next commits put nothing whole
        log.clear()
        table.write(numbered(77))
        return sum(call.written for call in log.calls if not call.key.endswith("checkpoint.parquet"))

    assert put(40) < put(2) * 1.1


def held_by(table: VersionedTable) -> int:
    """Bytes that are allocated for the state of a table that is opened anew, with all of its versions."""
    gc.collect()
    tracemalloc.start()
    try:
        fresh = Project.open("NYC", table.project.store.uri).table(str(table.name))
        versions = fresh.state.history.versions
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
        assert versions
        return held
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize("columns", [3, 300])
def test_a_version_takes_little_memory_however_many_columns_it_has(tmp_path: Path, columns: int) -> None:
    table = Project.open("NYC", str(tmp_path)).table("wide")

    def write(first: int, count: int) -> None:
        for n in range(first, first + count):
            table.write(pa.table({f"column_number_{c}": [n + c, None] for c in range(columns)}))

    write(0, 20)
    few = held_by(table)
    write(20, 40)
    many = held_by(table)
    assert (many - few) / 40 < 2_048


def test_a_step_that_needs_the_head_holds_no_history(table: VersionedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagster_versioned.tables.history.RECENT_COMMITS", 10)
    grown(table, 60)
    assert len(table.state.history.recent) <= 20
    fresh = opened(table.project.store).state.history  # type: ignore[arg-type]
    assert len(fresh.recent) <= 20
    assert fresh.heads == table.state.history.heads
    assert len(fresh.versions) == 60


def test_what_is_read_again_is_what_was_recorded(table: VersionedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagster_versioned.tables.history._LARGEST_KEPT", 0)
    for n in range(12):
        table.write(numbered(n), message=f"m{n}")
    fresh = opened(table.project.store)  # type: ignore[arg-type]
    assert [version.identity.message for version in fresh.history()] == [f"m{n}" for n in range(11, -1, -1)]
    assert fresh.verify().ok
