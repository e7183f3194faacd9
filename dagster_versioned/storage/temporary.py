"""Temporary folders that do not outlive a killed process for long: the next process on the machine removes them."""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from dagster_versioned.process_state import PROCESS

PREFIX = "dagster-versioned-"
LOCK = ".in-use"
STALE_AFTER = 3600.0
"""Seconds after which a folder that nobody holds is removed; before, its maker may not hold it yet."""


class Tidied(set[int]):
    """The processes that have looked for what others left: this one, and those that it was forked from."""


class TemporaryFolder:
    """A private folder at ``path`` until it is closed, or its process and all that this one forked have ended.

    A lock on a file in it says that it is in use; it ends with whoever holds it, however that ends. The first folder
    that a process makes removes those that others have left behind.
    """

    def __init__(self) -> None:
        if os.getpid() not in (tidied := PROCESS.of(Tidied)):
            tidied.add(os.getpid())
            _remove_stale()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def close(self) -> None:
        """Remove the folder; what a late writer puts there meanwhile is left to a later process."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _remove_stale() -> None:
    """Remove this user's folders that no process holds."""
    for folder in _left_behind(Path(tempfile.gettempdir()), time.time() - STALE_AFTER):
        with suppress(OSError):  # somebody else is at it, or it is not a folder of this kind
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _left_behind(temporary: Path, before: float) -> Iterator[Path]:
    """Folders of this user with our name and a lock file, made before a moment."""
    for folder in temporary.glob(f"{PREFIX}*"):
        with suppress(OSError):  # gone meanwhile, or without a lock file
            made = (folder / LOCK).lstat()
            if not folder.is_symlink() and made.st_uid == os.geteuid() and made.st_mtime < before:
                yield folder
