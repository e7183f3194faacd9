"""Versions that are written again instead of being computed: nothing is committed where they are heads already."""

import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_versioned import TableOptions
from dagster_versioned.errors import InvalidInput, InvalidName
from dagster_versioned.identity.version import Run
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import LocalStore
from dagster_versioned.storage.wrappers import CountingStore
from dagster_versioned.tables.table import VersionedTable
from dagster_versioned.tables.write.kept import KeptVersion
from dagster_versioned.tables.write.pending import OpenComputation

KEY = "a" * 64
ONE, TWO = pa.table({"value": [1]}), pa.table({"value": [2]})


@pytest.fixture
def store(tmp_path: Path) -> CountingStore:
    return CountingStore(LocalStore(tmp_path))


@pytest.fixture
def table(store: CountingStore) -> VersionedTable:
    made = Project("P", store).table("one")
    made.write_partitions({None: ONE}, code_version="1", computations={None: OpenComputation(KEY, time.monotonic())})
    return Project("P", store).table("one")


def found(table: VersionedTable) -> KeptVersion:
    kept = table.kept(table.computed({None: KEY})[None])
    assert kept is not None
    return kept


def test_the_head_stays_after_one_look_at_the_end_of_the_log(store: CountingStore, table: VersionedTable) -> None:
    kept = found(table)
    store.reset()
    (result,) = table.write_partitions({None: kept}, code_version="1")
    assert (result.change, result.version, result.reused) == ("none", kept.version, True)
    assert [call.verb for call in store.calls] == ["get"]
    assert table.state.log_version == 0


def test_a_version_that_is_the_head_no_more_becomes_it_again(table: VersionedTable) -> None:
    kept = found(table)
    table.project.table("one").write(TWO)
    (result,) = table.write_partitions({None: kept})
    assert (result.change, result.reused) == ("full", True)
    assert table.read() == ONE


def test_options_that_change_the_table_are_committed(table: VersionedTable) -> None:
    appended = TableOptions(properties={"delta.appendOnly": "false", "user.note": "kept"})
    (result,) = table.write_partitions({None: found(table)}, options=appended)
    assert (result.change, table.state.log_version) == ("none", 1)
    assert table.state.snapshot.metadata.configuration["user.note"] == "kept"
    (result,) = table.write_partitions({None: found(table)}, options=TableOptions(cluster_by=("value",)))
    assert (result.change, table.state.log_version) == ("none", 2)
    constrained = TableOptions(constraints={"positive": "value > 1"})
    with pytest.raises(InvalidInput, match="positive"):
        table.write_partitions({None: found(table)}, options=constrained)


def test_another_asset_is_refused(table: VersionedTable) -> None:
    with pytest.raises(InvalidName, match="already belongs"):
        table.write_partitions({None: found(table)}, asset_key=["another"])


def test_an_earlier_attempt_of_the_step_is_named(table: VersionedTable) -> None:
    run = Run("11111111-1111-1111-1111-111111111111", "step", 0)
    key = "b" * 64
    table.write_partitions({None: TWO}, run=run, computations={None: OpenComputation(key, time.monotonic())})
    kept = table.kept(table.computed({None: key})[None])
    (again,) = table.write_partitions({None: kept}, run=run)
    assert (again.change, again.replayed, again.reused) == ("none", True, True)
    (other,) = table.write_partitions({None: kept}, run=replace(run, run_id="22222222-2222-2222-2222-222222222222"))
    assert (other.change, other.replayed, other.reused) == ("none", False, True)


def test_lost_bytes_of_the_head_are_not_taken_for_kept(table: VersionedTable) -> None:
    (part,) = table.state.snapshot.adds()
    table.store.delete([part.key])
    assert table.kept(table.computed({None: KEY})[None]) is None
