"""A lock that a forked child finds open."""

import os
import threading
import weakref

from dagster_versioned.process_state import PROCESS


class ForkLock:
    """A lock between the threads of one process, as a context manager.

    A child that is forked while another thread holds an ordinary lock waits for it forever, because that thread does
    not exist in the child. What this one guards must be whole at every moment: replaced, never changed in place.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        PROCESS.of(ForkLocks).add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Forget who holds it; for the only thread of a forked child."""
        self._lock = threading.Lock()


class ForkLocks(weakref.WeakSet[ForkLock]):
    """The locks that a forked child has to renew."""


def _renew_all() -> None:
    for lock in PROCESS.of(ForkLocks):
        lock.renew()


os.register_at_fork(after_in_child=_renew_all)
