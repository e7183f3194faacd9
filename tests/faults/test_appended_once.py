"""A process that dies at any call of its store, and another run that does the same again: the rows are there once."""

import shutil
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_versioned.errors import VersionedError
from dagster_versioned.identity.version import Run
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import LocalStore
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.table import VersionedTable
from support.interleaving import Stepped, dying

pytestmark = [pytest.mark.faults]

APPEND = TableOptions(mode="append")
FIRST, AGAIN = Run("run-1", "rows", 0), Run("run-2", "rows", 0, first_run_id="run-1")


def rows_in(store: Stepped | LocalStore) -> VersionedTable:
    return Project("FAULTS", store).table("rows")


@pytest.mark.parametrize("between", [False, True], ids=["alone", "another in between"])
def test_rows_whose_append_died_anywhere_are_there_once_when_a_later_run_has_done_it(tmp_path: Path, between: bool):
    mine, others = pa.table({"n": [1, 2]}), pa.table({"n": [9]})
    rows_in(LocalStore(tmp_path / "begun")).write(pa.table({"n": [0]}))
    number, died, was_there = 0, True, 0
    while died:
        number += 1
        place = tmp_path / str(number)
        shutil.copytree(tmp_path / "begun", place)
        store = dying(LocalStore(place), number)
        with suppress(VersionedError):
            rows_in(store).write(mine, options=APPEND, run=FIRST)
        died = bool(store.shared["dead"])
        table = rows_in(LocalStore(place))
        committed = table.read().num_rows == 3
        was_there += committed
        if between:
            table.write(others, options=APPEND)
        again = table.write(mine, options=APPEND, run=AGAIN)
        assert again.replayed == committed
        assert sorted(table.read()["n"].to_pylist()) == [0, 1, 2, *([9] if between else [])]
        table.verify().require_ok()
        shutil.rmtree(place)
    assert 0 < was_there < number
