"""Processes that die by SIGKILL in the middle of what they do, before a call of their stores or of anything else.

One process, which never starts a thread, forks a child for every death: it has everything imported, so a death costs
milliseconds.
"""

import itertools
import multiprocessing
import os
import pickle
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any, TypeVar

NEVER = 10**9

Deed = Callable[[Callable[[Any], None]], object]
"""What a child does; it tells of every call that it is about to make, and may not come back from that. Picklable."""


@dataclass(frozen=True)
class Ended:
    """How a child ended: by which signal (0: none), after which calls if it was none, with which error."""

    by_signal: int
    calls: tuple[Any, ...]
    error: str

    @property
    def was_killed(self) -> bool:
        return self.by_signal == signal.SIGKILL


class Executioner:
    """Has deeds done in children that are killed at a call."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def execute(self, deed: Deed, die_at: int) -> Ended:
        """Have it done in a child that dies before call ``die_at`` (from 1)."""
        self._connection.send((deed, die_at))
        return self._connection.recv()


One = TypeVar("One", bound=Executioner)


@contextmanager
def forking(kind: Callable[[Connection], One], *modules: str) -> Iterator[One]:
    """The process that forks, for as long as a test module needs it; it has the ``modules`` imported."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_fork_for, args=(theirs, modules), daemon=True)
    process.start()
    theirs.close()
    try:
        yield kind(ours)
    finally:
        ours.close()
        process.join()


def _fork_for(connection: Connection, modules: tuple[str, ...]) -> None:
    for module in modules:
        import_module(module)
    while True:
        try:
            deed, die_at = connection.recv()
        except EOFError:
            return
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            _live(writing, deed, die_at)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            said = pipe.read()
        status = os.waitpid(child, 0)[1]
        calls, error = pickle.loads(said) if said else ((), "")
        connection.send(Ended(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, calls, error))


def _live(writing: int, deed: Deed, die_at: int) -> None:
    calls: list[Any] = []
    numbers = itertools.count(1)  # threads of the child may call at once, and one of them gets the number

    def about_to(call: Any) -> None:
        if next(numbers) == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        calls.append(call)

    error = ""
    try:
        deed(about_to)
    except BaseException:  # noqa: BLE001 - the child ends here, whatever it was
        error = traceback.format_exc()
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(pickle.dumps((tuple(calls), error)))
    os._exit(0)
