"""Several developers at once, and developers who are killed: each event is recorded once, or not at all."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dagster_versioned.governance.documents import Event, PendingMigration
from dagster_versioned.governance.registry import Registry, now
from dagster_versioned.storage import Location
from support import registry_racers as racers

Log = Callable[[], list[str]]
A, B = Location.parse("/data/a"), Location.parse("/data/b")
MANY = 5


@pytest.fixture
def clones(registry: Registry, tmp_path: Path) -> list[Path]:
    return [Registry.clone(registry.remote, tmp_path / f"clone-{who}").path for who in range(MANY)]


@pytest.mark.slow
def test_of_many_who_register_a_project_at_different_places_one_does(clones: list[Path], registry: Registry, log: Log):
    results = racers.race([(clone, racers.register_at_own_place) for clone in clones])
    registry.fetch()
    winners = [who for who, result in enumerate(results) if result == registry.commit_sha]
    assert len(winners) == 1
    assert [result for who, result in enumerate(results) if who not in winners] == ["RegistryConflict"] * (MANY - 1)
    assert registry.documents("NYC").ref.current.uri == f"/data/{winners[0]}"
    assert log() == ["Begin the registry", f"Registered: NYC at /data/{winners[0]}"]


def test_of_many_who_register_a_project_at_one_place_one_makes_the_commit(
    clones: list[Path], registry: Registry, log: Log
):
    results = racers.race([(clone, racers.register_at_one_place) for clone in clones])
    assert sorted(result is None for result in results) == [False] + [True] * (MANY - 1)
    assert log() == ["Begin the registry", "Registered: NYC at /data/one"]


@pytest.mark.slow
def test_many_who_register_different_projects_all_do(clones: list[Path], registry: Registry, log: Log):
    # Two of them share a clone, and a reader fetches into it all the while.
    shared = [(clones[0], racers.register_own_projects), (clones[0], racers.fetch_and_read)]
    racers.race([*((clone, racers.register_own_projects) for clone in clones[:3]), *shared])
    registry.fetch()
    expected = [f"P{who}-{turn}" for who in range(4) for turn in range(2)]
    assert registry.projects() == expected
    assert [registry.documents(name).ref.current.uri for name in expected] == [
        f"/data/{who}/{turn}" for who in range(4) for turn in range(2)
    ]
    assert len(log()) == 1 + len(expected)


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize(
    "when", [pytest.param("before", marks=pytest.mark.slow), "during", pytest.param("after", marks=pytest.mark.slow)]
)
def test_whoever_is_killed_at_any_git_command_finds_all_done_once_the_second_time(
    when: str, registry: Registry, log: Log
):
    pending = PendingMigration(id="m1", source=A, target=B, actor="Ada", started_at=now())
    event = Event(id="m1", kind="migrated", timestamp=now(), actor="Ada", source=A, target=B)
    steps: list[Callable[[], str | None]] = [
        lambda: registry.register("NYC", A),
        lambda: registry.prepare_migration("NYC", pending),
        lambda: registry.record_migration("NYC", event),
    ]
    killed = 0
    for done, step in enumerate(steps):
        for number in range(1, 100):
            # Each time from where the last one left off: a commit that landed is found, one that did not is made anew.
            if not racers.killed_at(number, when, step):
                break
            killed += 1
            fresh = Registry.open(registry.path)
            fresh.fetch()
            assert len(log()) - 1 in (done, done + 1)
            assert fresh.projects() in ([], ["NYC"])
        step()
        assert step() is None
        assert len(log()) == done + 2
    assert killed > 30
    assert registry.documents("NYC").ref.current == B


@pytest.mark.faults
def test_a_clone_that_was_killed_half_way_leaves_nothing_in_the_way(registry: Registry, tmp_path: Path):
    path = tmp_path / "new"
    for number in range(1, 100):
        if not racers.killed_at(number, "after", lambda: Registry.clone(registry.remote, path)):
            break
        if path.exists():
            assert Registry.open(path).commit_sha == registry.commit_sha
    assert Registry.clone(registry.remote, path).commit_sha == registry.commit_sha
