"""A folder for tests that write thousands of small files and do not ask what a power failure leaves."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_IN_MEMORY = Path("/dev/shm")


@contextmanager
def scratch() -> Iterator[Path]:
    """A new folder, in memory where the system has such a place: there an fsync costs nothing."""
    with tempfile.TemporaryDirectory(prefix="scratch-", dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None) as folder:
        yield Path(folder)
