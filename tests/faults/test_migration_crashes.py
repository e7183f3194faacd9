"""A migration killed before any call that changes a store or the registry, then run again by somebody else.

No other death leaves anything else to who goes on, in a clone of her own: one place, and all versions.
"""

import multiprocessing
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dagster_versioned.errors import GovernanceError
from dagster_versioned.governance.fence import fence_of
from dagster_versioned.governance.migrate import abort
from dagster_versioned.storage import Location
from dagster_versioned.tables.relocation.migration_mark import read_mark
from support.crashes import WRITING
from support.frames import numbered
from support.governed import NAME, Governed, facts
from support.migration_crashes import Act, Bailiff, World, bailiff, git_configured, write_on
from support.readers import by_deltalake
from support.stores import contents
from support.tmpfs import scratch

pytestmark = pytest.mark.faults

PUSH = ("git", "push")
ACTS: list[Act] = ["migrate", "migrate and delete", "abort"]


@dataclass(frozen=True)
class Case:
    """What Ada does, the world before it, which is put back for every death, and all that she calls."""

    act: Act
    world: World
    base: Path
    before: dict[str, Any]
    objects: int
    changes: list[int]


@pytest.fixture(scope="module")
def killer() -> Iterator[Bailiff]:
    with scratch() as folder, git_configured(folder), bailiff() as one:
        yield one


@pytest.fixture(scope="module", params=ACTS)
def case(request: pytest.FixtureRequest, killer: Bailiff) -> Iterator[Case]:
    act: Act = request.param
    with scratch() as folder:
        (folder / "world").mkdir()
        world, base = World.begin(folder / "world"), folder / "base"
        project = world.by("ada").at(world.old)
        for size in (3, 4):
            project.table("flights").write(numbered(size))
        project.table("delays").write(numbered(2), partition="a", parents=project.table("flights").upstream())
        project.pin("filed", "flights", project.table("flights").history()[1].metadata_sha)
        before = facts(project)
        shutil.copytree(world.root, base)
        done = killer.run(world, "migrate" if act == "abort" else act)
        assert not done.error, done.error
        objects = world.mirror.documents(NAME).history.events[-1].objects_copied
        if act == "abort":
            # What is called off stands behind the fence and right before the switch.
            switch = done.calls.index(("put_if_match", f"datom/projects/{NAME}/ref.json")) + 1
            put_back(base, world)
            assert killer.run(world, "migrate", switch).was_killed
            shutil.rmtree(base)
            shutil.copytree(world.root, base)
            done = killer.run(world, act)
            assert not done.error, done.error
        assert objects
        changes = [at for at, (verb, key) in enumerate(done.calls, 1) if verb in WRITING or (verb, key) == PUSH]
        yield Case(act, world, base, before, objects, changes)


def put_back(base: Path, world: World) -> None:
    shutil.rmtree(world.root)
    shutil.copytree(base, world.root)


def test_killed_in_the_middle(case: Case, killer: Bailiff) -> None:
    dies_and_is_taken_over(case, killer, len(case.changes) // 2)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_before_every_change(case: Case, killer: Bailiff) -> None:
    for number in range(len(case.changes)):
        dies_and_is_taken_over(case, killer, number)


def dies_and_is_taken_over(case: Case, killer: Bailiff, number: int) -> None:
    world = case.world
    put_back(case.base, world)
    died = killer.run(world, case.act, case.changes[number])
    assert died.was_killed, died.error
    grace = world.by("grace")
    has_switched = one_place_has_authority(case, grace)
    if case.act == "abort":
        assert not has_switched
        call_off(grace)
        stays(case, grace)
    elif number % 3 == 0 and not has_switched:
        call_off(grace)
        stays(case, grace)
    else:
        grace.move(world.new, threads=1, delete_source=case.act == "migrate and delete")
        moved(case, grace)


def one_place_has_authority(case: Case, governed: Governed) -> bool:
    """Whether it is the new one; whichever it is, it holds everything."""
    current = governed.mirror.ref(NAME).current
    assert current in (case.world.old, case.world.new)
    assert facts(governed.at(current)) == facts(governed.by_reader()) == case.before
    governed.registry.fetch()
    recorded = governed.registry.documents(NAME).ref.current
    assert recorded in (case.world.old, current)
    return current == case.world.new


def call_off(governed: Governed) -> None:
    with suppress(GovernanceError):  # there is none: it was never prepared, or all is undone
        abort(governed.registry, governed.mirror, NAME)
    with pytest.raises(GovernanceError, match="No migration"):
        abort(governed.registry, governed.mirror, NAME)


def moved(case: Case, governed: Governed) -> None:
    """Everything is at the new place, once, and somebody can go on there."""
    world = case.world
    all_agree(governed, world.new)
    event = governed.mirror.documents(NAME).history.events[-1]
    assert event.objects_copied == case.objects
    assert [event.kind for event in governed.mirror.documents(NAME).history.events] == ["registered", "migrated"]
    assert subjects(world) == [f"Migration prepared: {NAME} to {world.new.uri}", f"Migrated: {NAME} to {world.new.uri}"]
    assert facts(governed.at(world.new)) == case.before
    left = governed.open(world.old).subfolder("datom")
    mark = read_mark(left)
    assert mark
    assert mark.id == event.id
    if case.act == "migrate and delete":
        keys = {info.key for info in left.list()}
        assert keys == fence_of(keys)
    can_go_on(governed, world.new)


def stays(case: Case, governed: Governed) -> None:
    """Everything is at the old place, where somebody can go on, and nothing is at the new one."""
    world = case.world
    all_agree(governed, world.old)
    if subjects(world):
        assert subjects(world) == [f"Migration prepared: {NAME} to {world.new.uri}", f"Migration aborted: {NAME}"]
        assert contents(governed.open(world.new)) == {}
    else:  # a probe of a byte may be left, before anything was recorded; it is in nobody's way
        assert contents(governed.open(world.new), without=("migration-probe",)) == {}
    assert facts(governed.at(world.old)) == case.before
    can_go_on(governed, world.old)


def all_agree(governed: Governed, place: Location) -> None:
    governed.registry.fetch()
    for documents in (governed.registry.documents(NAME), governed.mirror.documents(NAME)):
        assert documents.ref.current == place
        assert documents.pending is None
    assert governed.mirror.status(governed.registry) == []


def can_go_on(governed: Governed, place: Location) -> None:
    assert read_mark(governed.open(place).subfolder("datom")) is None
    project = governed.by_developer()
    for name in ("flights", "delays"):
        project.table(name).verify().require_ok()
        assert not [info.key for info in governed.at(place).table(name).store.list() if "probe" in info.key]
    made = project.table("flights").write(numbered(50)).version
    rows = by_deltalake(Path(place.root) / "datom" / "flights", made.log_version)
    assert rows.num_rows == 50


def subjects(world: World) -> list[str]:
    """Of the registry's commits about the migration, oldest first."""
    command = ["git", "-C", str(world.root / "registry.git"), "log", "--reverse", "--format=%s", "main"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [line for line in said.splitlines() if line.startswith("Migrat")]


@pytest.mark.timeout(600)
@pytest.mark.slow
@pytest.mark.parametrize(("versions", "every"), [(15, 70), (100, 40)])
def test_a_writer_goes_on_through_migrations_that_die(killer: Bailiff, versions: int, every: int) -> None:
    """All its versions are at the end in one place, and none is anywhere else alone."""
    with scratch() as folder:
        (folder / "world").mkdir()
        world = World.begin(folder / "world")
        third = Location.parse(str(folder / "world" / "third"))
        ada = world.by("ada")
        write_on(world, 1, 3)
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            writing = pool.submit(write_on, world, 4, versions - 3)
            deaths = 0
            while (ended := killer.run(world, "migrate", every * (deaths + 1))).was_killed:
                deaths += 1
            assert not ended.error, ended.error
            between = ada.at(world.new).table("numbers").state.log_version
            ada.registry.fetch()
            ada.move(third)
            made = writing.result(timeout=300)
        assert deaths >= 3
        table = ada.by_reader().table("numbers")
        history = table.history()
        assert [version.identity.nrow for version in reversed(history)] == list(range(1, versions + 1))
        assert made == [(v.log_version, v.metadata_sha) for v in reversed(history)][3:]
        for version in history:
            assert table.read(version.metadata_sha[:10]).equals(numbered(version.identity.nrow))
            assert by_deltalake(Path(third.root, "datom", "numbers"), version.log_version).num_rows == (
                version.identity.nrow
            )
        final = {version.metadata_sha for version in history}
        for place in (world.old, world.new):
            assert {version.metadata_sha for version in ada.at(place).table("numbers").history()} <= final
        # It wrote before the first, between the two, or after the second; not all before.
        assert table.state.log_version > between
        ada.at(third).table("numbers").verify().require_ok()
