"""Migrations that die by SIGKILL before a call of any of their stores, or of git; and a writer that goes on meanwhile.

As in `support.crashes`, one process that never starts a thread forks a child for every death.
"""

import multiprocessing
import os
import pickle
import signal
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
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
from support.crashes import NEVER
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


@dataclass(frozen=True)
class Death:
    """How a run ended: killed or not, what it called (verb and key), with which error."""

    was_killed: bool
    calls: tuple[tuple[str, str], ...]
    error: str


class Executioner:
    """Runs migrations in children that are killed at a call."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def run(self, world: World, act: Act, die_at: int = NEVER) -> Death:
        """Ada moves the project from old to new, or calls that off, and dies before call ``die_at`` (from 1)."""
        self._connection.send((world, act, die_at))
        return self._connection.recv()


@contextmanager
def executioner() -> Iterator[Executioner]:
    """The process that forks, for as long as a test module needs it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_fork_for, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        yield Executioner(ours)
    finally:
        ours.close()
        process.join()


def _fork_for(connection: Connection) -> None:
    import git  # noqa: F401 - each child would import it anew

    while True:
        try:
            world, act, die_at = connection.recv()
        except EOFError:
            return
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            _live(writing, world, act, die_at)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            said = pipe.read()
        status = os.waitpid(child, 0)[1]
        calls, error = pickle.loads(said) if said else ((), "")
        connection.send(Death(os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, calls, error))


def _live(writing: int, world: World, act: Act, die_at: int) -> None:
    calls: list[tuple[str, str]] = []

    def count(verb: str, key: str) -> None:
        calls.append((verb, key))
        if len(calls) == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def decide(call: Call) -> Fault | None:
        count(call.verb, call.key)
        return None

    def around(_: Location, store: ObjectStore) -> ObjectStore:
        return FaultStore(store, decide)

    run_git = git_repository._run

    def counted(path, arguments, **options):
        count("git", next(one for one in arguments if not one.startswith("-") and "=" not in one))
        return run_git(path, arguments, **options)

    git_repository._run = counted
    error = ""
    try:
        mirror = GovernanceStore(around(world.old, world.mirror.store))
        governed = world.by("ada", Opener(around=around), mirror)
        if act == "abort":
            abort(governed.registry, mirror, NAME, open_store=governed.open)
        else:
            governed.move(world.new, threads=1, delete_source=act == "migrate and delete")
    except BaseException:  # noqa: BLE001 - the child ends here, whatever it was
        error = traceback.format_exc()
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(pickle.dumps((tuple(calls), error)))
    os._exit(0)


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
