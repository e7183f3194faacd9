"""Where tests keep their files: in memory where the system has room there, since an fsync costs nothing in it."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_IN_MEMORY = Path("/dev/shm")
_ROOM = 4 * 1024**3


def in_memory() -> Path | None:
    """A place in memory with room for a test run; ``None`` where there is none, as in most containers."""
    try:
        room = os.statvfs(_IN_MEMORY)
    except OSError:
        return None
    return _IN_MEMORY if room.f_bavail * room.f_frsize >= _ROOM and os.access(_IN_MEMORY, os.W_OK) else None


@contextmanager
def scratch() -> Iterator[Path]:
    """A new folder there."""
    with tempfile.TemporaryDirectory(prefix="scratch-", dir=in_memory()) as folder:
        yield Path(folder)
