"""A place belongs to one project: who opens it under another name writes nothing there."""

import json
import logging
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_versioned.branches.environments import create_environment
from dagster_versioned.errors import InvalidInput, StoreUnavailable
from dagster_versioned.projects.project import Project
from dagster_versioned.projects.staleness import MemberCell, Need, TableHeads, find
from dagster_versioned.storage.local import LocalStore
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.storage.wrappers import AtCall, CountingStore, Fault, FaultStore
from dagster_versioned.tables.documents.manifest import MANIFEST_KEY
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


@pytest.mark.parametrize("environment", [None, "production", "e"])
def test_a_place_is_not_opened_under_another_name(tmp_path: Path, rows: pa.Table, environment: str | None) -> None:
    project = Project.open("NYC", str(tmp_path))
    assert project.table("flights").write(rows).change == "full"
    create_environment(project, "e")
    with pytest.raises(InvalidInput, match=r"holds the project 'NYC', but was opened as 'OTHER'.*Nothing was read"):
        Project.open("OTHER", str(tmp_path), environment=environment)
    assert Project.open("NYC", str(tmp_path), environment=environment).table("flights").read().equals(rows)


def test_who_has_a_place_open_reads_rows_under_any_name(stranger: Project, rows: pa.Table) -> None:
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


def test_a_rename_is_deliberate_and_lineage_follows_it(project: Project, rows: pa.Table, more: pa.Table) -> None:
    source, derived = project.table("source"), project.table("derived")
    source.write(rows)
    derived.write(more, parents=source.upstream())
    renamed = project.rename("TRIPS")
    assert (renamed.name, _name_of(project.data)) == ("TRIPS", "TRIPS")
    with pytest.raises(InvalidInput, match="holds the project 'TRIPS'"):
        Project("NYC", project.store).table("source").write(more)
    own, up = TableHeads.at(renamed.table("derived")), TableHeads.at(renamed.table("source"))
    need = Need("source", ("TRIPS", "source"), up)
    assert find("derived", None, [MemberCell(own, None, [need], None)]) is None
    renamed.table("source").write(more)
    need = Need("source", ("TRIPS", "source"), TableHeads.at(renamed.table("source")))
    assert find("derived", None, [MemberCell(own, None, [need], None)]) is not None
    assert renamed.table("derived").verify().ok


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.LOST_ANSWER])
def test_a_rename_that_ends_at_any_call_leaves_one_name_or_the_other_and_can_be_run_again(
    tmp_path: Path, rows: pa.Table, fault: Fault
) -> None:
    for number in range(1, 100):
        store = LocalStore(tmp_path / f"{number}")
        Project("NYC", store).table("flights").write(rows)
        try:
            Project("NYC", FaultStore(store, AtCall(number, fault))).rename("TRIPS")
            ended = True
        except StoreUnavailable:
            ended = False
        named = _name_of(Project("NYC", store).data)
        assert named in ("NYC", "TRIPS")
        assert Project(named, store).rename("TRIPS").table("flights").write(rows.slice(1)).change == "full"
        if ended and number > 10:
            return
    raise AssertionError("the rename takes more calls than that")
