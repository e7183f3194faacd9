"""A rename takes a table with its history to another name; who knows the old one finds it, and writes nothing there."""

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_versioned.branches.environments import create_environment
from dagster_versioned.errors import InvalidName, StoreUnavailable, TableNotFound, VersionedError
from dagster_versioned.projects.project import Project
from dagster_versioned.projects.staleness import MemberCell, Need, TableHeads, find
from dagster_versioned.storage.local import LocalStore
from dagster_versioned.storage.wrappers import AtCall, CountingStore, Fault, FaultStore
from dagster_versioned.tables.documents.head import HeadDocument, NameClaim, head_key
from dagster_versioned.tables.partitioning import Partitioning
from dagster_versioned.tables.table import VersionedTable
from support.stores import contents


@pytest.fixture
def renamed(project: Project, rows: pa.Table, more: pa.Table) -> VersionedTable:
    """A table of two versions that another was built from, and that is called something else since."""
    source = project.table("flights")
    source.write(rows)
    source.write(more)
    project.pin("audit", "flights", "@0")
    project.table("derived").write(rows.slice(1), parents=source.upstream())
    source.rename(["raw", "flights"], dry_run=False)
    return project.table("raw__flights")


def test_the_table_has_its_history_rows_and_pins_under_the_new_name(
    project: Project, renamed: VersionedTable, rows: pa.Table, more: pa.Table
) -> None:
    fresh = Project("NYC", project.store)
    table = fresh.table("raw__flights")
    assert [version.operation for version in table.history()] == ["WRITE", "WRITE"]
    assert table.read().equals(more)
    assert table.read("pin:audit").equals(rows)
    assert table.asset_key == ("raw", "flights")
    assert fresh.tables() == ["derived", "raw__flights"]
    assert table.head().head is not None
    assert b'"flights"' not in project.data.get(".metadata/manifest.json")
    assert table.verify().ok
    table.repair()
    assert table.verify().ok
    assert table.write(rows, asset_key=["raw", "flights"]).version.identity.asset_key == ("raw", "flights")
    assert table.verify().ok


def test_who_knows_the_old_name_reads_the_table_and_writes_nothing(
    project: Project, renamed: VersionedTable, rows: pa.Table, more: pa.Table
) -> None:
    before = contents(project.store)
    old = Project("NYC", project.store).table("flights")
    assert old.read().equals(more)
    assert old.name == "raw__flights"
    assert [one.parent.table for one in old.upstream()] == ["raw__flights"]
    assert Project("NYC", project.store).table("flights").resolve() == renamed.head()
    for change in (
        lambda t: t.write(rows),
        lambda t: t.drop(dry_run=False),
        lambda t: t.revert("@0"),
        lambda t: t.read() and t.write(rows),
    ):
        with pytest.raises(InvalidName, match=r"flights was renamed to raw__flights .*the key \['raw', 'flights'\]"):
            change(project.table("flights"))
    assert contents(project.store) == before


def test_a_version_that_is_pinned_by_the_old_name_is_kept_where_a_rename_died_before_its_pins_moved(
    project: Project, rows: pa.Table, more: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = project.table("flights")
    table.write(rows)
    table.write(more)
    project.pin("audit", "flights", "@0")

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        killed.setattr("dagster_versioned.tables.rename.move_pins", die)
        with pytest.raises(KeyboardInterrupt):
            table.rename("journeys", dry_run=False)
    fresh = Project("NYC", project.store)
    renamed = fresh.table("journeys")
    assert list(renamed.expire(keep_last=1, dry_run=False).kept) == [renamed.version("pin:audit").short]
    assert renamed.read("pin:audit").equals(rows)


def test_what_was_built_from_it_is_not_stale_and_keeps_its_parents(
    project: Project, renamed: VersionedTable, rows: pa.Table
) -> None:
    own = TableHeads.at(project.table("derived"))
    need = Need("raw__flights", ("NYC", "raw__flights"), TableHeads.at(renamed))
    assert find("derived", None, [MemberCell(own, None, [need], None)]) is None
    renamed.write(rows, asset_key=["raw", "flights"])
    need = Need("raw__flights", ("NYC", "raw__flights"), TableHeads.at(renamed))
    assert find("derived", None, [MemberCell(own, None, [need], None)]) is not None
    kept = renamed.expire(keep_last=1).kept
    assert len(kept) == 2  # pinned, and a parent
    assert project.table("derived").verify().ok


def test_renamed_twice_it_is_found_by_every_name(project: Project, renamed: VersionedTable, more: pa.Table) -> None:
    renamed.rename("third", dry_run=False)
    for name in ("flights", "raw__flights", "third"):
        assert Project("NYC", project.store).table(name).read().equals(more)
    assert project.tables() == ["derived", "third"]
    project.table("flights").rename(["raw", "flights"], dry_run=False)  # done already
    assert project.tables() == ["derived", "third"]
    assert project.table("third").read("pin:audit").num_rows == 3


def test_old_files_go_with_a_later_vacuum_and_with_a_purge_at_once(project: Project, renamed: VersionedTable) -> None:
    left = [info.key for info in project.data.list("flights/") if info.key.endswith(".parquet")]
    assert left
    assert renamed.vacuum(dry_run=False).keys == ()
    assert [key for key in renamed.vacuum(min_age=timedelta(0)).keys if key.endswith(".parquet")]
    renamed.vacuum(min_age=timedelta(0), dry_run=False)
    assert not [info.key for info in project.data.list("flights/") if info.key.endswith(".parquet")]
    assert renamed.read().num_rows == 4
    assert Project("NYC", project.store).table("flights").read().num_rows == 4
    assert renamed.verify().ok


def test_a_purge_takes_the_bytes_under_the_old_name_too(project: Project, rows: pa.Table, more: pa.Table) -> None:
    table = project.table("flights")
    table.write(rows)
    table.write(more)
    table.rename("journeys", dry_run=False)
    project.table("journeys").purge(["@0"], why="erasure", dry_run=False)
    assert not [info.key for info in project.data.list("flights/") if info.key.endswith(".parquet")]


def test_a_purge_after_both_were_renamed(project: Project, rows: pa.Table, more: pa.Table) -> None:
    """Files under a name that the table had in a project of another name go, too; those under its own are no such."""
    table = project.table("flights")
    old = table.write(rows).version
    table.write(more)
    table.rename("departures", dry_run=False)
    renamed = project.rename("LAX")
    renamed.table("others").write(rows)
    created = renamed.table("departures")
    created.write(rows.slice(0, 1))
    create_environment(renamed, "dev")
    created.write(rows.slice(0, 2))
    report = created.purge([old.metadata_sha], why="asked", dry_run=False)
    assert [key for key in report.keys if key.startswith("../flights/")]
    assert not [info.key for info in renamed.data.list("flights/") if info.key.endswith(".parquet")]
    assert created.read().num_rows == 2


def test_partitions_and_what_they_are_go_with_it(table: VersionedTable, rows: pa.Table) -> None:
    days = Partitioning.time_windows("daily")
    table.write(rows, partition="2026-10-01", partitioning=days)
    table.rename("journeys", dry_run=False)
    new = table.project.table("journeys")
    new.write(rows, partition="2026-10-02", partitioning=days)
    assert len(new.partitions()) == 2
    with pytest.raises(VersionedError, match="would overlap"):
        new.write(rows, partition="2026-10-01", partitioning=Partitioning.time_windows("monthly"))


def test_a_name_that_is_taken_is_refused_and_a_dry_run_changes_nothing(
    project: Project, renamed: VersionedTable, rows: pa.Table
) -> None:
    project.table("other").write(rows)
    before = contents(project.store)
    for name in ("other", "raw__flights", "flights", "OTHER", "Other"):
        with pytest.raises(InvalidName):
            renamed.rename(name, dry_run=False)
    assert renamed.rename("fine").files == 2
    assert contents(project.store) == before
    with pytest.raises(TableNotFound):
        project.table("nothing").rename("fine", dry_run=False)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.LOST_ANSWER])
def test_a_rename_that_ends_at_any_call_is_finished_by_whoever_runs_it_again(
    tmp_path: Path, rows: pa.Table, more: pa.Table, fault: Fault
) -> None:
    for number in range(1, 200):
        store = LocalStore(tmp_path / f"{number}")
        table = Project("NYC", store).table("flights")
        table.write(rows)
        table.write(more)
        try:
            Project("NYC", FaultStore(store, AtCall(number, fault))).table("flights").rename("journeys", dry_run=False)
            ended = True
        except StoreUnavailable:
            ended = False
        fresh = Project("NYC", store)
        listed = fresh.tables()
        assert listed
        for name in {"flights", *listed}:
            assert fresh.table(name).read().equals(more)
            assert {finding.subject for finding in fresh.table(name).verify().findings} <= {"document"}
        try:
            assert fresh.table("journeys").read().equals(more)
        except TableNotFound:
            assert listed == ["flights"]
        fresh.table("flights").rename("journeys", dry_run=False)
        assert fresh.tables() == ["journeys"]
        assert fresh.table("journeys").verify().ok
        assert fresh.table("journeys").write(rows).change == "full"
        if ended and number > 40:
            return
    raise AssertionError("the rename takes more calls than that")


def test_a_table_that_is_created_meanwhile_wins_and_the_log_goes_on(
    project: Project, table: VersionedTable, rows: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dagster_versioned.tables import rename as renaming

    table.write(rows)
    claim = renaming._claim

    def overtaken(*args):
        claim(*args)
        project.table("journeys").write(rows.slice(1))

    monkeypatch.setattr(renaming, "_claim", overtaken)
    with pytest.raises(InvalidName, match="journeys was created while flights was renamed"):
        table.rename("journeys", dry_run=False)
    fresh = Project("NYC", project.store)
    assert fresh.table("journeys").read().num_rows == 2
    assert fresh.table("flights").write(rows.slice(1)).change == "full"
    assert fresh.table("flights").verify().ok


def test_no_table_is_created_under_a_name_that_one_is_on_its_way_to(project: Project, rows: pa.Table) -> None:
    project.data.put(
        head_key(project.table("journeys").name), HeadDocument(-1, None, arriving=NameClaim("flights", True)).to_bytes()
    )
    with pytest.raises(InvalidName, match="rename of the table flights takes this name"):
        project.table("journeys").write(rows)
    assert not project.table("journeys").exists()


def test_a_write_in_flight_is_refused_and_writes_nothing(
    project: Project, table: VersionedTable, rows: pa.Table, more: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.write(rows)
    change = table.operations.change

    def overtaken(draft, **given):
        project.table("flights").rename("journeys", dry_run=False)
        return change(draft, **given)

    monkeypatch.setattr(table.operations, "change", overtaken)
    with pytest.raises(InvalidName, match="flights was renamed to journeys"):
        table.write(more)
    assert project.table("journeys").read().equals(rows)


def test_the_list_of_tables_costs_no_more_for_those_that_were_renamed(
    project: Project, renamed: VersionedTable
) -> None:
    store = CountingStore(project.store)
    Project("NYC", store).tables()
    assert store.count("get", "head") == 0
