"""What the processes of a race for a registry run; a module of its own, so that spawned processes can import it."""

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, NoReturn

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
    told = sorted((results.get() for _ in racers), key=lambda one: one[0])
    for racer in racers:
        racer.join()
    failures = [failure for _, _, failure in told if failure]
    assert not failures, failures
    return [result for _, result, _ in told]


def _run(clone: Path, act: Act, who: int, barrier: Barrier, results: Any) -> None:
    try:
        registry = Registry.open(clone)
        barrier.wait(120)
        try:
            result = act(registry, who)
        except VersionedError as error:
            result = type(error).__name__
        results.put((who, result, ""))
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent waits to hear of everybody
        results.put((who, None, repr(error)))


def killed_at(number: int, when: str, act: Callable[[], object]) -> bool:
    """Run ``act`` in a child that is killed before, during or after its ``number``-th git command.

    Whether it came so far. *During*: the command itself lives on, as an orphan, until it is done.
    """
    child = os.fork()
    if child == 0:
        _live(number, when, act)
    _, status = os.waitpid(child, 0)
    assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0, "it failed before it was killed"
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def _live(number: int, when: str, act: Callable[[], object]) -> NoReturn:
    try:
        _kill_at(number, when)
        act()
    except BaseException:  # noqa: BLE001 - the child ends here, whatever it was
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


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
