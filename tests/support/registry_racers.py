"""What the processes of a race for a registry run; a module of its own, so that spawned processes can import it."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from dagster_versioned.errors import VersionedError
from dagster_versioned.governance import git_command, git_repository
from dagster_versioned.governance.registry import Registry
from dagster_versioned.storage import Location

Act = Callable[[Registry, int], object]


def register_at_own_place(registry: Registry, who: int) -> object:
    return registry.register("NYC", Location.parse(f"/data/{who}"))


def register_at_one_place(registry: Registry, who: int) -> object:
    return registry.register("NYC", Location.parse("/data/one"))


def register_own_projects(registry: Registry, who: int) -> object:
    return [registry.register(f"P{who}-{turn}", Location.parse(f"/data/{who}/{turn}")) for turn in range(2)]


def fetch_and_read(registry: Registry, who: int) -> object:
    return [registry.fetch() and registry.projects() for _ in range(5)]


def race(acts: list[tuple[Path, Act]]) -> list[object]:
    """What each act came to, all begun at once, each in a process of its own: its result, or the name of its error."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(len(acts)), context.SimpleQueue()
    racers = [
        context.Process(target=_run, args=(clone, act, who, barrier, results)) for who, (clone, act) in enumerate(acts)
    ]
    for racer in racers:
        racer.start()
    found = dict(results.get() for _ in racers)
    for racer in racers:
        racer.join()
    return [found[who] for who in range(len(acts))]


def _run(clone: Path, act: Act, who: int, barrier: Barrier, results: Any) -> None:
    registry = Registry.open(clone)
    barrier.wait(120)
    try:
        results.put((who, act(registry, who)))
    except VersionedError as error:
        results.put((who, type(error).__name__))


def killed_at(number: int, when: str, act: Callable[[], object]) -> bool:
    """Run ``act`` in a child that is killed before, during or after its ``number``-th git command.

    Whether it came so far. *During*: the command itself lives on, as an orphan, until it is done.
    """
    child = os.fork()
    if child == 0:
        _kill_at(number, when)
        try:
            act()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def _kill_at(number: int, when: str) -> None:
    run, turn = git_repository.run_git, 0

    def counted(*arguments: Any, **options: Any) -> bytes:
        nonlocal turn
        turn += 1
        if turn != number:
            return run(*arguments, **options)
        if when == "during":
            git_command._end = lambda process: None
            options["timeout"] = 0.01
        if when != "before":
            with suppress(git_command.GitFailure):
                run(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    git_repository.run_git = counted
