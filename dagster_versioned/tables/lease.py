"""Who is deleting parts right now, and when another process may finish what it began.

Deletes cannot be fenced in every store, so a collector that stalls must not delete after somebody else finished its
work and a writer put the same part again. Therefore a collector stops deleting after `DELETING` seconds, and others
wait `TAKEOVER` seconds, measured on their own clock from when they first saw the intent, before they finish it.
A collector that is known to be dead (same machine, process gone) is not waited for.
"""

import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

DELETING = 60.0
TAKEOVER = 150.0
_POLL = 0.25

_active: set[str] = set()
_lock = threading.Lock()


def owner() -> str:
    """This process, so that another one on the same machine can tell whether it still runs."""
    return f"{_machine()} {os.getpid()} {_started(os.getpid())}"


class Lease:
    """The right to delete the paths of one collection, from the moment before its intent is committed."""

    def __init__(self, collection_id: str) -> None:
        self.collection_id = collection_id
        self._began = time.monotonic()

    def __enter__(self) -> "Lease":
        with _lock:
            _active.add(self.collection_id)
        return self

    def __exit__(self, *_: object) -> None:
        with _lock:
            _active.discard(self.collection_id)

    @property
    def is_valid(self) -> bool:
        """Whether deleting is still allowed."""
        return time.monotonic() - self._began < DELETING


def wait_until_free(collection_id: str, owned_by: str, is_open: Callable[[], bool]) -> bool:
    """Wait for a collection to end; ``False`` once it did, ``True`` once the caller may finish it instead."""
    began = time.monotonic()
    while is_open():
        if _is_dead(collection_id, owned_by) or time.monotonic() - began > TAKEOVER:
            return True
        time.sleep(_POLL)
    return False


def _is_dead(collection_id: str, owned_by: str) -> bool:
    with _lock:
        if collection_id in _active:
            return False
    if owned_by == owner():
        return True  # this process began it and is not at it any more
    machine, _, process = owned_by.rpartition(" ")[0].rpartition(" ")
    if machine != _machine() or not process.isdecimal():
        return False
    return _started(int(process)) != owned_by.rpartition(" ")[2]


def _machine() -> str:
    """Host, boot and process namespace: only within all three does a process id mean anything."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        boot, namespace = "", ""
    return f"{socket.gethostname()}/{boot}/{namespace}".replace(" ", "")


def _started(process: int) -> str:
    """When a process started, in the kernel's ticks; ``gone`` if it does not run."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return "gone"
        return _started_without_proc(process)
    state, *fields = stat.rpartition(")")[2].split()
    return "gone" if state == "Z" else fields[18]


def _started_without_proc(process: int) -> str:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return "gone"
    except PermissionError:
        pass
    return "running"
