"""A process that dies at any call of its store leaves a history as it was, or with the whole slice; never with half."""

import shutil
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_versioned.errors import VersionedError
from dagster_versioned.identity.version import Run
from dagster_versioned.odf.event_table import EventTable
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import LocalStore
from dagster_versioned.tables.event_history import AppendMerge, EventHistory, SnapshotMerge
from support.interleaving import Stepped, dying

pytestmark = [pytest.mark.faults, pytest.mark.slow]

HISTORIES = {
    "snapshot": EventHistory(merge=SnapshotMerge(primary_key=("id",))),
    "append": EventHistory(merge=AppendMerge()),
}
FIRST = pa.table({"id": [1, 2], "seats": [100, 50]})
SECOND = pa.table({"id": [1, 3], "seats": [120, 10]})
EVENTS = {"snapshot": [0, 0, 2, 3, 1, 0], "append": [0, 0, 0, 0]}


def history(store: Stepped | LocalStore, strategy: str) -> EventTable:
    return EventTable(Project("FAULTS", store).table("planes"), HISTORIES[strategy])


@pytest.mark.parametrize("strategy", HISTORIES)
def test_a_write_that_dies_is_not_there_or_is_whole(tmp_path: Path, strategy: str):
    run = Run("r", "planes", 0)
    history(LocalStore(tmp_path / "begun"), strategy).write(FIRST)
    number, died, was_there = 0, True, 0
    while died:
        number += 1
        place = tmp_path / str(number)
        shutil.copytree(tmp_path / "begun", place)
        store = dying(LocalStore(place), number)
        with suppress(VersionedError):
            history(store, strategy).write(SECOND, run=run)
        died = bool(store.shared["dead"])
        found = history(LocalStore(place), strategy)
        operations = found.events()["op"].to_pylist()
        assert operations in (EVENTS[strategy][:2], EVENTS[strategy])
        was_there += operations == EVENTS[strategy]
        found.table.resolve()
        retried = found.write(SECOND, run=Run("r", "planes", 1))
        assert found.events()["op"].to_pylist() == EVENTS[strategy]
        assert (retried.change == "none") == (operations == EVENTS[strategy])
        found.table.repair()
        assert found.table.verify().ok
        assert len(list(found.blocks())) == 5
        shutil.rmtree(place)
    assert 0 < was_there < number
