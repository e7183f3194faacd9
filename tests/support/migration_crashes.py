"""Migrations that die by SIGKILL before a call of any of their stores, or of git; and a writer that goes on."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from dagster_versioned.errors import GovernanceError
from dagster_versioned.governance import git_repository
from dagster_versioned.governance.connect import Governance
from dagster_versioned.governance.migrate import abort
from dagster_versioned.governance.mirror import GovernanceStore
from dagster_versioned.governance.registry import Registry
from dagster_versioned.storage import LocalStore, Location, ObjectStore
from dagster_versioned.storage.wrappers import Call, Fault, FaultStore
from support.executioner import NEVER, Ended, Executioner, forking
from support.frames import numbered
from support.governed import NAME, Governed, Opener

Act = Literal["migrate", "migrate and delete", "abort"]

GIT_CONFIG = "[user]\n\tname = Ada Lovelace\n\temail = ada@example.org\n"


@dataclass(frozen=True)
class World:
    """A folder with a registry, the clones of two developers, a mirror, and a project that moves from old to new."""

    root: Path

    @property
    def old(self) -> Location:
        return Location.parse(str(self.root / "old"))

    @property
    def new(self) -> Location:
        return Location.parse(str(self.root / "new"))

    def by(self, developer: str, opener: Opener | None = None, mirror: GovernanceStore | None = None) -> Governed:
        """All of it, through the clone of a developer: ``ada`` or ``grace``."""
        registry = Registry.open(self.root / developer)
        return Governed(registry, mirror or self.mirror, opener or Opener(), self.old)

    @property
    def mirror(self) -> GovernanceStore:
        return GovernanceStore(LocalStore(self.root / "governance"))

    @classmethod
    def begin(cls, root: Path) -> "World":
        world = cls(root)
        registry = Registry.init(str(root / "registry.git"), root / "ada")
        Governed.begin(registry, world.mirror, world.old, Opener())
        Registry.clone(registry.remote, root / "grace")
        return world


@contextmanager
def git_configured(folder: Path) -> Iterator[None]:
    """For this process and those that it starts, git knows Ada and nobody's real configuration."""
    config = folder / "gitconfig"
    config.write_text(GIT_CONFIG)
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        del os.environ[name]
    os.environ |= {"GIT_CONFIG_GLOBAL": str(config), "GIT_CONFIG_NOSYSTEM": "1"}
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class Bailiff(Executioner):
    """Runs migrations in children that are killed at a call."""

    def run(self, world: World, act: Act, die_at: int = NEVER) -> Ended:
        """Ada moves the project from old to new, or calls that off, and dies before call ``die_at`` (from 1).

        Calls are verb and key of a store, or ``git`` and its command.
        """
        return self.execute(partial(_act, world, act), die_at)


def bailiff() -> AbstractContextManager[Bailiff]:
    """The process that forks, for as long as a test module needs it."""
    return forking(Bailiff, "git")


def _act(world: World, act: Act, about_to: Callable[[tuple[str, str]], None]) -> None:
    def decide(call: Call) -> Fault | None:
        about_to((call.verb, call.key))
        return None

    def around(_: Location, store: ObjectStore) -> ObjectStore:
        return FaultStore(store, decide)

    run_git = git_repository.run_git

    def counted(path, arguments, **options):
        about_to(("git", next(one for one in arguments if not one.startswith("-") and "=" not in one)))
        return run_git(path, arguments, **options)

    git_repository.run_git = counted
    mirror = GovernanceStore(around(world.old, world.mirror.store))
    governed = world.by("ada", Opener(around=around), mirror)
    if act == "abort":
        abort(governed.registry, mirror, NAME, open_store=governed.open)
    else:
        governed.move(world.new, threads=1, delete_source=act == "migrate and delete")


def write_on(world: World, first: int, count: int) -> list[tuple[int, str]]:
    """Write versions of one table, wherever the project is; when a write is refused, look where it is, and try again.

    Returns log version and SHA of each.
    """
    registry = Registry.open(world.root / "grace")
    governance = Governance(world.mirror.store, role="developer", registry=registry)
    table = governance.project(NAME).table("numbers")
    made: list[tuple[int, str]] = []
    for number in range(first, first + count):
        deadline = time.monotonic() + 120
        while True:
            try:
                version = table.write(numbered(number)).version
                break
            except GovernanceError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
                registry.fetch()
                table = governance.project(NAME).table("numbers")
        assert version.metadata_sha
        made.append((version.log_version, version.metadata_sha))
    return made
