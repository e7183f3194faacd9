"""Who is deleting parts right now, and when another process may finish what it began.

Deletes cannot be fenced in every store, so a collector that stalls must not delete after somebody else finished its
work and a writer put the same part again. Therefore a collector deletes in small batches and begins none after
`DELETING` seconds, and others wait `TAKEOVER` seconds, measured on their own clock from when they first saw the intent,
before they finish it. A collector that is known to be dead (same machine, process gone) is not waited for.

The clocks go on while a machine sleeps, where the system has such a clock. The arithmetic: a lease begins before its
intent can be seen, its last batch begins within `DELETING`, and a batch takes at most `BATCH`, so
``DELETING + BATCH < TAKEOVER``. A batch is one request to S3, which is begun again only within the first 5 seconds and
each time given up after 10 seconds without a connection or 60 without an answer (`S3Options`): 76 seconds with the
pauses in between. On a local disk it is 50 unlinks. What remains is a process that is stopped in the middle of one
batch and goes on later.
"""

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from dagster_versioned.process_state import PROCESS

DELETING = 60.0
BATCH = 80.0
TAKEOVER = 150.0
_POLL = 0.25
_GONE = "gone"
_RUNNING = "running"


class ActiveLeases(set[str]):
    """The collections that this process is at."""


def owner() -> str:
    """This process, so that another one on the same machine can tell whether it still runs."""
    return f"{_machine()} {os.getpid()} {_started(os.getpid())}"


class Lease:
    """The right to delete the paths of one collection, from the moment before its intent is committed (`begin`)."""

    def __init__(self, collection_id: str) -> None:
        self.collection_id = collection_id
        self._began = _now()

    def begin(self) -> None:
        """Take the lease now: the next thing that is done is to commit the intent."""
        self._began = _now()

    def __enter__(self) -> "Lease":
        PROCESS.of(ActiveLeases).add(self.collection_id)
        return self

    def __exit__(self, *_: object) -> None:
        PROCESS.of(ActiveLeases).discard(self.collection_id)

    @property
    def is_valid(self) -> bool:
        """Whether deleting is still allowed."""
        return _now() - self._began < DELETING


def wait_until_free(collection_id: str, owned_by: str, is_open: Callable[[], bool]) -> bool:
    """Wait for a collection to end; ``False`` once it did, ``True`` once the caller may finish it instead."""
    began = _now()
    while is_open():
        if _is_dead(collection_id, owned_by) or _now() - began > TAKEOVER:
            return True
        time.sleep(_POLL)
    return False


def _is_dead(collection_id: str, owned_by: str) -> bool:
    if collection_id in PROCESS.of(ActiveLeases):
        return False
    if owned_by == owner():
        return True  # this process began it and is not at it any more
    machine, _, process = owned_by.rpartition(" ")[0].rpartition(" ")
    if machine != _machine() or not process.isdecimal():
        return False
    started, recorded = _started(int(process)), owned_by.rpartition(" ")[2]
    return started == _GONE or (_RUNNING not in (started, recorded) and started != recorded)


def _now() -> float:
    """Seconds on a clock that also goes on while the machine sleeps, where there is one (Linux)."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def _machine() -> str:
    """Host, boot and process namespace: only within all three does a process id mean anything."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        boot, namespace = "", ""
    return f"{socket.gethostname()}/{boot}/{namespace}".replace(" ", "")


def _started(process: int) -> str:
    """When a process started, in the kernel's ticks; ``gone`` if it does not run, ``running`` if that is unknown."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:  # no /proc (macOS), or one that hides the processes of others
        return _RUNNING if _may_run(process) else _GONE
    state, *fields = stat.rpartition(")")[2].split()
    return _GONE if state == "Z" else fields[18]


def _may_run(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True
