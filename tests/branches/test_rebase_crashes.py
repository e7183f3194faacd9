"""A rebase killed at every call of the store, writers before each of its calls, and rebases between those of one."""

import contextlib
import itertools
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from dagster_versioned.branches.environments import drop_environment
from dagster_versioned.branches.rebase import rebase_environment
from dagster_versioned.errors import EnvironmentNotFound, ObjectNotFound, VersionedError
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import LocalStore
from dagster_versioned.storage.wrappers import Call
from dagster_versioned.tables.environment.registry import document_of
from support.chain import build, forked, rows
from support.crashes import WRITING
from support.interleaving import Stepped, dying, impatient
from support.stores import left_of_environments

pytestmark = pytest.mark.slow

WANTED = {
    ("raw", None): [1, 2],
    ("middle", None): [20],
    ("daily", "a"): [10],
    ("daily", "b"): [9],
    ("daily", "c"): [11],
    ("top", None): [3],
    ("below", None): [40],
}
"""``daily[b]`` was made anew in production, which ``top`` is built from."""


def opened(root: Path) -> Project:
    return Project("NYC", LocalStore(root))


def rebase(project: Project):
    return rebase_environment(project, "pr", dry_run=False)


def cells_of(project: Project) -> dict[tuple[str, str | None], list[int]]:
    return {
        (table, key): project.table(table).read(partition=key)["n"].to_pylist()
        for table in project.tables()
        for key in project.table(table).state.history.heads
    }


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    """A chain with partitions, an environment that has other versions of it, and what production did since."""
    root = tmp_path_factory.mktemp("base") / "lake"
    project = opened(root)
    project.table("raw").write(rows(1, 2))
    build(project, "middle", rows(2), "raw")
    for key in "ab":
        build(project, "daily", rows(1), "raw", partition=key)
    build(project, "top", rows(3), "middle", "daily")
    branch = forked(project, "pr")
    build(branch, "middle", rows(20), "raw", code="2")
    build(branch, "daily", rows(10), "raw", code="2", partition="a")
    build(branch, "daily", rows(11), "raw", code="2", partition="c")
    build(branch, "top", rows(30), "middle", "daily", code="2")
    build(branch, "below", rows(40), "middle", code="2")
    build(project, "daily", rows(9), "raw", code="9", partition="b")
    return root


def copies(base: Path, folder: Path, first: int = 1, every: int = 1) -> Iterator[tuple[int, Path]]:
    for number in itertools.count(first, every):
        root = folder / str(number)
        shutil.copytree(base, root)
        yield number, root
        shutil.rmtree(root)


def stepped(
    root: Path, number: int, happens: Callable[[Stepped], object], verbs: Collection[str] = ()
) -> tuple[Stepped, list[int]]:
    """A store in which something happens before a later call (of some verbs alone), and whether it has."""
    fired: list[int] = []
    seen = itertools.count(1)

    def before(call: Call) -> None:
        if (not verbs or call.verb in verbs) and next(seen) == number:
            fired.append(number)
            happens(store)

    store = Stepped(LocalStore(root), before)
    return store, fired


def require_one_generation(project: Project) -> None:
    document, _ = document_of(project.store, project.name, "pr")
    assert (document.next, document.previous) == (None, None)
    folders = {info.key.split("/")[3] for info in project.store.list("environments/files/")}
    assert folders == {document.fork.generation}


def require_sound(project: Project) -> None:
    for table in project.tables():
        assert not project.table(table).verify().findings, table


@pytest.mark.timeout(600)
def test_one_that_dies_goes_on_to_the_same_end(base, tmp_path):
    for number, root in copies(base, tmp_path):
        store = dying(LocalStore(root), number)
        with impatient(), contextlib.suppress(VersionedError):
            rebase(Project("NYC", store))
        project = opened(root)
        cells_of(project.in_environment("pr"))  # whatever it is then can be read
        build(project, "top", rows(99), "middle", code="9")
        project.table("top").expire(keep_last=1, dry_run=False)
        begun, _ = document_of(project.store, project.name, "pr")
        is_unfinished = begun.next is not None or begun.previous is not None
        rebase(project)
        branch = project.in_environment("pr")
        assert cells_of(branch) == WANTED | {("top", None): [3 if is_unfinished else 99]}, number
        require_one_generation(project)
        require_sound(branch)
        if number % 10 == 0:
            drop_environment(project, "pr")
            assert not left_of_environments(project.store)
        if not store.shared["dead"]:
            assert number > 15
            return


def write_again(branch: Project) -> None:
    """What the rebase carries is replaced, with what is below it."""
    build(branch, "middle", rows(21), "raw", code="3")
    build(branch, "below", rows(41), "middle", code="3")


def write_more(branch: Project) -> None:
    build(branch, "new", rows(60), "middle", code="3")
    build(branch, "daily", rows(12), "raw", code="3", partition="d")


@pytest.mark.parametrize(("verbs", "every"), [(WRITING, 1), ((), 4)], ids=["writing calls", "each fourth call"])
@pytest.mark.parametrize("write", [write_again, write_more])
@pytest.mark.timeout(1800)
def test_what_is_committed_at_any_time_is_carried_on_or_its_writer_is_told(base, tmp_path, write, verbs, every):
    outcomes: set[bool] = set()
    for number, root in copies(base, tmp_path, every=every):
        late = opened(root).in_environment("pr")
        cells_of(late)
        told: list[bool] = []

        def happens(_: Stepped, late=late, told=told) -> None:
            try:
                write(late)
            except EnvironmentNotFound:
                told.append(True)
            else:
                told.append(False)

        store, fired = stepped(root, number, happens, verbs)
        rebase(Project("NYC", store))
        project = opened(root)
        branch = project.in_environment("pr")
        if told == [False]:
            wanted = {("middle", None): [21], ("below", None): [41]}
            if write is write_more:
                wanted = {("new", None): [60], ("daily", "d"): [12]}
            assert cells_of(branch) | wanted == cells_of(branch), number
        else:
            assert {cell: found for cell, found in cells_of(branch).items() if cell in WANTED} == WANTED, number
        require_one_generation(project)
        if number % 10 == 0:
            require_sound(branch)
        outcomes |= set(told)
        if not fired:
            break
    assert outcomes == {True, False}


@pytest.mark.timeout(600)
def test_a_rebase_between_any_two_calls_of_a_writer(base, tmp_path):
    outcomes: set[bool] = set()
    for number, root in copies(base, tmp_path):
        store, fired = stepped(root, number, lambda _, root=root: rebase(opened(root)))
        late = Project("NYC", store).in_environment("pr")
        try:
            build(late, "middle", rows(21), "raw", code="3")
        except (EnvironmentNotFound, ObjectNotFound):  # the latter where its log went away as it was read
            told = True
        else:
            told = False
        project = opened(root)
        branch = project.in_environment("pr")
        # Told is also who committed before the rebase, and looked after it.
        assert cells_of(branch)["middle", None] in ([[20], [21]] if told else [[21]]), number
        outcomes.add(told)
        require_sound(branch)
        drop_environment(project, "pr")  # what a writer that fails before its commit leaves goes with it
        assert not left_of_environments(project.store)
        if not fired:
            break
    assert outcomes == {True, False}


@pytest.mark.timeout(600)
def test_two_at_once_come_to_the_same_end(base, tmp_path):
    for number, root in copies(base, tmp_path, every=5):
        store, fired = stepped(root, number, lambda _, root=root: rebase(opened(root)))
        with contextlib.suppress(EnvironmentNotFound):  # it was rebased once more since
            rebase(Project("NYC", store))
        project = opened(root)
        branch = project.in_environment("pr")
        assert cells_of(branch) == WANTED, number
        require_one_generation(project)
        require_sound(branch)
        if not fired:
            return
