"""A place belongs to one project: who opens it under another name writes nothing there."""

import json
import logging

import pyarrow as pa
import pytest

from dagster_versioned.errors import InvalidInput
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.storage.wrappers import CountingStore
from dagster_versioned.tables.datom_documents import MANIFEST_KEY
from dagster_versioned.tables.project import Project
from support.stores import contents


@pytest.fixture
def stranger(project: Project, rows: pa.Table) -> Project:
    project.table("flights").write(rows)
    return Project("OTHER", project.store)


def _name_of(data: ObjectStore) -> str:
    return json.loads(data.get(MANIFEST_KEY))["project_name"]


def test_no_verb_that_changes_a_table_goes_through_under_another_name(
    project: Project, stranger: Project, rows: pa.Table, more: pa.Table
) -> None:
    project.table("flights").write(more)
    before = contents(project.store)
    table = stranger.table("flights")
    for change in (
        lambda: table.write(rows),
        lambda: table.write(more),
        lambda: table.revert(0),
        lambda: table.adopt(),
        lambda: table.release(),
        lambda: table.repair(),
        lambda: table.expire(keep_last=1, dry_run=False),
        lambda: table.purge(["@0"], why="erasure", dry_run=False),
        lambda: table.vacuum(dry_run=False),
        lambda: stranger.pin("audit", "flights"),
        lambda: stranger.table("weather").write(rows),
    ):
        with pytest.raises(InvalidInput, match="holds the project 'NYC', but was opened as 'OTHER'"):
            change()
    assert contents(project.store) == before


def test_rows_are_read_under_any_name(stranger: Project, rows: pa.Table) -> None:
    assert stranger.table("flights").read().equals(rows)
    assert stranger.table("flights").resolve().log_version == 0


def test_a_process_that_slept_since_before_the_first_write_does_not_rename_the_manifest(
    project: Project, rows: pa.Table, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = Project("LATE", project.store)
    late.check_write()  # there is no project yet
    table = late.table("weather")
    monkeypatch.setattr(late, "check_write", lambda: None)  # both were let in at the same moment
    project.table("flights").write(rows)
    with caplog.at_level(logging.WARNING):
        table.write(rows)
    assert _name_of(project.data) == "NYC"
    assert "'NYC' was written to as 'LATE'" in caplog.text


def test_the_name_costs_a_process_one_read(project: Project, rows: pa.Table) -> None:
    project.table("flights").write(rows)
    store = CountingStore(project.store)
    mine = Project("NYC", store)
    mine.check_write()
    mine.check_write()
    assert store.count() == 1
