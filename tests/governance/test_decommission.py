"""A project is given up: on record, for good, and with its bytes only if that was asked for."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dagster_versioned.errors import GovernanceError, RegistryConflict, StoreUnavailable
from dagster_versioned.governance.documents import PendingMigration
from dagster_versioned.governance.enroll import decommission
from dagster_versioned.governance.mirror import GovernanceStore
from dagster_versioned.governance.registry import Registry, now
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import LocalStore, Location
from dagster_versioned.storage.wrappers import Fault, FaultStore
from support.frames import numbered
from support.governed import NAME, WHO, Governed, Opener, facts, fill
from support.stores import contents

Log = Callable[[], list[str]]


def test_it_is_recorded_and_the_bytes_stay(governed: Governed, log: Log) -> None:
    before, early = facts(governed.at(governed.home)), governed.by_developer()
    report = decommission(governed.registry, governed.mirror, NAME, reason="study closed")
    assert report.objects > 20
    assert report.deleted_objects == 0
    assert log()[-1] == f"Decommissioned: {NAME}"
    with pytest.raises(GovernanceError, match="decommissioned"):
        governed.registry.documents(NAME)
    with pytest.raises(GovernanceError):
        governed.by_reader()
    with pytest.raises(GovernanceError, match="Nothing was written"):
        early.table("flights").write(numbered(50))
    event = governed.registry.state(NAME).history.events[-1]
    assert (event.kind, event.source, event.reason) == ("decommissioned", governed.home, "study closed")
    assert facts(governed.at(governed.home)) == before
    governed.at(governed.home).table("flights").write(numbered(50))  # nobody governs it any more


def test_its_bytes_are_deleted_and_nothing_else(governed: Governed) -> None:
    beside = governed.open(governed.home)
    beside.put("notes.txt", b"of a person")
    report = decommission(governed.registry, governed.mirror, NAME, delete_data=True)
    assert report.deleted_objects == report.objects > 20
    assert list(contents(beside)) == ["notes.txt"]
    assert governed.registry.state(NAME).history.events[0].target == governed.home


def test_governance_in_the_same_root_stays(registry: Registry, tmp_path: Path) -> None:
    mirror = GovernanceStore(LocalStore(tmp_path / "old"))
    governed = Governed.begin(registry, mirror, Location.parse(str(tmp_path / "old")), Opener())
    registry.register("OTHER", Location.parse(str(tmp_path / "other")), actor=WHO)
    mirror.publish(registry)
    fill(governed.at(governed.home))
    decommission(registry, mirror, NAME, delete_data=True)
    assert mirror.ref("OTHER").current.root == str(tmp_path / "other")
    assert mirror.status(registry) == []


def test_a_dry_run_says_what_there_is_and_changes_nothing(governed: Governed, log: Log) -> None:
    before = contents(governed.open(governed.home)), contents(governed.mirror.store), log()
    report = decommission(governed.registry, governed.mirror, NAME, delete_data=True, dry_run=True)
    assert (report.dry_run, report.location, report.deleted_objects) == (True, governed.home, 0)
    assert report.objects == len(before[0])
    assert (contents(governed.open(governed.home)), contents(governed.mirror.store), log()) == before


def test_what_died_is_done_by_the_next_run_with_one_record(governed: Governed, log: Log) -> None:
    opener = Opener(
        around=lambda at, store: FaultStore(store, lambda call: Fault.BEFORE if call.verb == "delete" else None)
    )
    with pytest.raises(StoreUnavailable, match="injected"):
        decommission(governed.registry, governed.mirror, NAME, delete_data=True, open_store=opener)
    assert contents(governed.open(governed.home))
    for _ in range(2):
        decommission(governed.registry, governed.mirror, NAME, delete_data=True)
        assert contents(governed.open(governed.home)) == {}
    assert log().count(f"Decommissioned: {NAME}") == 1


def test_a_project_that_is_being_moved_is_not_given_up(governed: Governed, tmp_path: Path) -> None:
    def stop(progress) -> None:
        raise StoreUnavailable("injected")

    with pytest.raises(StoreUnavailable):
        governed.move(Location.parse(str(tmp_path / "new")), progress=stop)
    for dry_run in (True, False):
        with pytest.raises(RegistryConflict, match="is being moved"):
            decommission(governed.registry, governed.mirror, NAME, delete_data=True, dry_run=dry_run)
    assert contents(governed.open(governed.home))


def test_bytes_of_a_project_around_it_stay(governed: Governed, tmp_path: Path) -> None:
    around = Location.parse(str(tmp_path))
    governed.registry.register("OTHER", around, actor=WHO)
    fill(Project("OTHER", governed.open(around)))
    before = contents(governed.open(around).subfolder("datom"))
    decommission(governed.registry, governed.mirror, NAME, delete_data=True)
    assert contents(governed.open(governed.home)) == {}
    assert contents(governed.open(around).subfolder("datom")) == before


def test_bytes_that_are_about_to_be_another_projects_are_not_deleted(governed: Governed, tmp_path: Path) -> None:
    decommission(governed.registry, governed.mirror, NAME)
    other = PendingMigration(
        source=Location.parse(str(tmp_path / "other")), target=governed.home, actor=WHO, started_at=now()
    )
    governed.registry.register("OTHER", other.source, actor=WHO)
    governed.registry.prepare_migration("OTHER", other)
    before = contents(governed.open(governed.home))
    with pytest.raises(RegistryConflict, match="OTHER"):
        decommission(governed.registry, governed.mirror, NAME, delete_data=True)
    assert contents(governed.open(governed.home)) == before


@pytest.mark.parametrize("where", ["old", "old/datom/flights"])
def test_bytes_that_may_be_another_projects_are_not_deleted(governed: Governed, tmp_path: Path, where: str) -> None:
    decommission(governed.registry, governed.mirror, NAME)
    governed.registry.register("OTHER", Location.parse(str(tmp_path / where)), actor=WHO)
    before = contents(governed.open(governed.home))
    with pytest.raises(RegistryConflict, match="OTHER"):
        decommission(governed.registry, governed.mirror, NAME, delete_data=True)
    assert contents(governed.open(governed.home)) == before


def test_what_was_never_registered_is_not_given_up(governed: Governed) -> None:
    with pytest.raises(GovernanceError, match="OTHER"):
        decommission(governed.registry, governed.mirror, "OTHER", delete_data=True)
