"""A local folder as an object store: atomic, durable, and safe between processes."""

import copy
import errno
import fcntl
import os
import re
import shutil
import time
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from io import FileIO
from operator import itemgetter
from pathlib import Path
from stat import S_ISLNK, S_ISREG
from typing import BinaryIO, Self

from dagster_versioned.errors import (
    AccessDenied,
    AlreadyExists,
    InvalidName,
    ObjectNotFound,
    PreconditionFailed,
    StorageError,
    StoreUnavailable,
)
from dagster_versioned.process_state import PROCESS
from dagster_versioned.storage.keys import (
    TEMPORARY,
    check_folder,
    check_key,
    check_prefix,
    check_start,
    is_key,
)
from dagster_versioned.storage.object_store import Durability, ObjectInfo, UnfinishedWrite

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR}
# What forbids a hard link and not a copy: another device, too many links, another user's file, no links at all.
_NO_LINK = {errno.EXDEV, errno.EMLINK, errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.ENOSYS}
_READING = {"get", "get_range", "head", "list", "delete", "copy from"}
_FOLDER_ATTEMPTS = 100
_LOCK_FILES = 256
_LOCK = "lock-"
_MADE_HERE = re.compile("[0-9a-f]{32}")
_ABANDONED_SECONDS = 24 * 3600


class Swept(set[Path]):
    """Folders for files in the making that this process has tidied."""


class LocalStore:
    """Objects as files below a folder, which need not exist yet.

    Files are never changed in place: each write makes a new one in ``{root}/.tmp`` and links or renames it, so a hard
    link may share bytes between keys. The ETag is inode, modification time in nanoseconds and size. As in any file
    system, a key cannot be both an object and a folder of others. Links that lead out of the root are refused. A put
    whose durability is "later" leaves the writing to disk to the system: on its own time, in any order.
    """

    def __init__(self, root: Path | str, *, within: Path | str | None = None) -> None:
        """``within`` is the outer root that a deeper view shares files in the making and locks with."""
        self._root = Path(root).resolve()
        self._top = Path(within).resolve() if within is not None else self._root
        self._temporary = self._top / TEMPORARY
        self._links_from = len(str(self._top).rstrip("/"))

    def __repr__(self) -> str:
        return f"LocalStore({self.uri!r})"

    @property
    def uri(self) -> str:
        return str(self._root)

    def subfolder(self, path: str) -> Self:
        deeper = copy.copy(self)
        deeper._root = self._confined(check_key(path))
        if self._meets_link(str(deeper._root)):
            deeper._root = deeper._root.resolve()
        return deeper

    def url(self, key: str) -> str:
        return str(self.local_path(key))

    def local_path(self, key: str) -> Path:
        return self._confined(check_key(key))

    def get(self, key: str) -> bytes:
        with self._opened("get", key) as file:
            return file.readall()

    def get_with_info(self, key: str) -> tuple[bytes, ObjectInfo]:
        with self._opened("get", key) as file:
            return file.readall(), _info(key, os.fstat(file.fileno()))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with self._opened("get_range", key) as file:
            file.seek(start)
            return file.read(length)

    def head(self, key: str) -> ObjectInfo:
        path = self.local_path(key)
        with self._translated("head", key):
            return _info(key, _stat_file(path))

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        """As the protocol says; symbolic links, and files whose names cannot be keys, are not listed."""
        check_prefix(prefix)
        check_start(start_after)
        folder = prefix.rpartition("/")[0]
        return self._walk(f"{folder}/" if folder else "", prefix, start_after)

    def folders(self, prefix: str = "") -> Iterator[str]:
        folder = self._folder(check_folder(prefix))
        with self._translated("list", prefix):
            # Folders without objects are what a crash between mkdir and link leaves; S3 has none, so neither has this.
            names = [
                entry.name
                for entry in _entries(folder)
                if entry.is_dir(follow_symlinks=False) and is_key(entry.name) and _holds_objects(entry)
            ]
        return iter(sorted(names))

    def put(self, key: str, data: bytes, *, durability: Durability = "now") -> ObjectInfo:
        return self._replace("put", key, lambda path: _write(path, [data], durability), durability=durability)

    def put_file(self, key: str, path: Path) -> ObjectInfo:
        # A copy, not a link: the caller may go on changing its file.
        return self._replace("put_file", key, lambda temporary: _copy_bytes(path, temporary))

    def put_chunks(self, key: str, chunks: Iterable[bytes]) -> ObjectInfo:
        return self._replace("put_chunks", key, lambda path: _write(path, chunks, "now"))

    def put_if_absent(self, key: str, data: bytes) -> ObjectInfo:
        info = self._create("put_if_absent", key, data)
        if info is None:
            raise AlreadyExists(
                f"put_if_absent {key!r} in {self.uri}: there already is an object. It was left as it is; "
                "read it to see who was first."
            )
        return info

    def put_if_match(self, key: str, data: bytes, etag: str | None, *, durability: Durability = "now") -> ObjectInfo:
        if etag is not None:
            return self._replace(
                "put_if_match", key, lambda path: _write(path, [data], durability), expected=etag, durability=durability
            )
        info = self._create("put_if_match", key, data, durability)
        if info is None:
            raise self._mismatch(key, "no object", "one")
        return info

    def copy(self, source: str, target: str) -> ObjectInfo:
        """As the protocol says, by hard link where possible; the source shares the new modification time, and so its
        ETag changes too."""
        source_path = self.local_path(source)

        def link_or_copy(temporary: Path) -> os.stat_result:
            with self._translated("copy from", source):
                _stat_file(source_path)
                try:
                    os.link(source_path, temporary)
                    with temporary.open("rb") as file:
                        return _settle(file)
                except OSError as error:
                    if error.errno not in _NO_LINK:
                        raise
                temporary.unlink(missing_ok=True)
                return _copy_bytes(source_path, temporary)

        return self._replace("copy to", target, link_or_copy)

    def delete(self, keys: Iterable[str]) -> None:
        folders: set[Path] = set()
        for key in [check_key(key) for key in keys]:  # all of them before the first is touched
            path = self._confined(key)
            with self._translated("delete", key):
                if not os.path.lexists(path) or path.is_dir():
                    continue
                self._make_temporary()
                # Under the lock, so that a put_if_match never finds its ETag and then replaces a deleted object.
                with self._locked(path), suppress(FileNotFoundError):
                    path.unlink()
                    folders.add(path.parent)
        # Deepest first, so that a folder is looked at after all that it contained.
        for folder in sorted(folders, key=lambda folder: len(folder.parts), reverse=True):
            self._prune(folder)

    def unfinished(self) -> Iterator[UnfinishedWrite]:
        """As the protocol says: files in the making, which all folders below the outer root share."""
        for entry in self._in_the_making():
            with suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                # Not the modification time: a link has that of its source.
                yield UnfinishedWrite(entry.name, datetime.fromtimestamp(status.st_ctime, UTC), size=status.st_size)

    def abort(self, writes: Iterable[UnfinishedWrite]) -> None:
        wanted = {write.id for write in writes}
        for entry in self._in_the_making() if wanted else ():
            if entry.name in wanted:
                with self._translated("delete", entry.name), suppress(FileNotFoundError):
                    Path(entry.path).unlink()

    def _confined(self, relative: str) -> Path:
        path = self._root / relative
        if self._meets_link(str(path)) and not path.resolve().is_relative_to(self._top):
            raise InvalidName(
                f"The storage key {relative!r} in {self.uri} is refused: a symbolic link leads out of the root. "
                "Nothing was touched. Replace the link by what it points to."
            )
        return path

    def _meets_link(self, path: str) -> bool:
        """Whether a symbolic link is on the way from the outer root to a path; asked anew for every call, because
        links may be planted at any time."""
        end = self._links_from
        while True:
            try:
                if S_ISLNK(os.lstat(path[:end] or "/").st_mode):
                    return True
            except OSError:  # nothing is there, and so nothing below it
                return False
            if end == len(path):
                return False
            end = path.find("/", end + 1) % (len(path) + 1)  # the end of the path where no "/" follows

    def _folder(self, prefix: str) -> Path:
        return self._confined(prefix.rstrip("/"))

    @contextmanager
    def _opened(self, operation: str, key: str) -> Generator[FileIO]:
        path = self.local_path(key)
        with self._translated(operation, key), FileIO(path) as file:
            yield file

    def _walk(self, folder: str, prefix: str, start: str) -> Iterator[ObjectInfo]:
        with self._translated("list", folder):
            entries = self._in_order(folder, prefix, start)
        for key, entry in entries:
            if key.endswith("/"):
                if key > start or start.startswith(key):
                    yield from self._walk(key, prefix, start)
            elif key > start and key.startswith(prefix):
                # What is gone since the folder was read is no object any more.
                with self._translated("list", key), suppress(FileNotFoundError):
                    status = entry.stat()
                    if S_ISREG(status.st_mode):
                        yield _info(key, status)

    def _in_order(self, folder: str, prefix: str, start: str) -> Iterable[tuple[str, os.DirEntry[str]]]:
        """What is directly in a folder, and may be or hold what a listing shows."""
        entries: list[tuple[str, os.DirEntry[str]]] = []
        for entry in _entries(self._folder(folder)):
            # A folder sorts by its name and "/": "a-b" stands before "a/b", though "a" stands before "a-b".
            key = folder + entry.name + ("/" if entry.is_dir(follow_symlinks=False) else "")
            if key <= start and not start.startswith(key):
                continue  # first, because a listing of the end of a log passes over the rest of it
            if (key.startswith(prefix) or prefix.startswith(key)) and not entry.is_symlink() and is_key(entry.name):
                entries.append((key, entry))
        return sorted(entries, key=itemgetter(0))

    def _create(self, operation: str, key: str, data: bytes, durability: Durability = "now") -> ObjectInfo | None:
        """Create the object, or return ``None`` if there is one."""
        path = self.local_path(key)
        if os.path.lexists(path):  # spares the write; only the link decides
            return None
        with self._translated(operation, key), self._making() as temporary:
            status = _write(temporary, [data], durability)
            try:
                self._into_folder(path, lambda: _link_new(temporary, path), durability)
            except FileExistsError:
                return None
            return _info(key, status)

    def _replace(
        self,
        operation: str,
        key: str,
        make: Callable[[Path], os.stat_result],
        *,
        expected: str | None = None,
        durability: Durability = "now",
    ) -> ObjectInfo:
        path = self.local_path(key)
        with self._translated(operation, key), self._making() as temporary:
            if expected is not None:
                self._check_etag(path, key, expected)  # spares the write in the common case; decides nothing
            status = make(temporary)

            def move() -> None:
                with self._locked(path):
                    if expected is not None:
                        self._check_etag(path, key, expected)
                    temporary.replace(path)

            self._into_folder(path, move, durability)
            return _info(key, status)

    def _check_etag(self, path: Path, key: str, expected: str) -> None:
        try:
            found = _etag(_stat_file(path))
        except OSError as error:
            if error.errno not in _ABSENT:
                raise
            raise self._mismatch(key, expected, "no object") from None
        if found != expected:
            raise self._mismatch(key, expected, found)

    def _mismatch(self, key: str, expected: str, found: str) -> PreconditionFailed:
        return PreconditionFailed(
            f"put_if_match {key!r} in {self.uri}: expected {expected}, found {found}. The object was left as it is; "
            "read it again and decide anew."
        )

    @contextmanager
    def _making(self) -> Generator[Path]:
        self._make_temporary()
        temporary = self._temporary / os.urandom(16).hex()
        try:
            yield temporary
        finally:
            # Still there after a failure, after a link, and after a rename onto another link to the same file.
            with suppress(FileNotFoundError):
                temporary.unlink()

    def _make_temporary(self) -> None:
        try:
            linked = S_ISLNK(os.lstat(self._temporary).st_mode)
        except FileNotFoundError:
            _make_folder(self._temporary)
            linked = False
        if linked:
            # Asked anew for every write, and refused wherever it leads: what is there is not ours to tidy.
            raise InvalidName(
                f"{self._temporary} is a symbolic link, but files in the making need a folder of their own. Nothing "
                "was touched. Remove the link; the next write makes the folder."
            )
        if self._temporary not in (swept := PROCESS.of(Swept)):
            swept.add(self._temporary)
            self._sweep()

    def _sweep(self) -> None:
        """Remove what killed processes left in the making; a live write touches its file long before that age."""
        before = datetime.fromtimestamp(time.time() - _ABANDONED_SECONDS, UTC)
        self.abort(write for write in self.unfinished() if write.begun < before)

    def _in_the_making(self) -> Iterator[os.DirEntry[str]]:
        if self._temporary.is_symlink():  # what is there is not ours
            return
        for entry in _entries(self._temporary):
            if _MADE_HERE.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                yield entry

    @contextmanager
    def _locked(self, path: Path) -> Generator[None]:
        # A fixed number of lock files, never removed: removing one that is held would let two in.
        number = zlib.crc32(os.fsencode(str(path)[self._links_from + 1 :])) % _LOCK_FILES
        # flock, not lockf: it belongs to the open file, and so keeps threads apart as well as processes.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = os.open(f"{self._temporary}/{_LOCK}{number:02x}", flags, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _into_folder(self, path: Path, place: Callable[[], None], durability: Durability) -> None:
        """Run ``place`` with the folder of ``path`` in existence, though concurrent deletes may prune it."""
        for attempt in range(_FOLDER_ATTEMPTS):
            try:
                place()
                break
            except FileNotFoundError:
                if attempt == _FOLDER_ATTEMPTS - 1:
                    raise
                _make_folder(path.parent)
        if durability == "now":
            # Gone already: somebody deleted the object and its folder after it was placed.
            with suppress(FileNotFoundError):
                _sync_folder(path.parent)

    def _prune(self, folder: Path) -> None:
        with suppress(FileNotFoundError):
            _sync_folder(folder)
        while folder != self._top and folder.is_relative_to(self._top):
            try:
                folder.rmdir()
            except OSError:  # not empty, gone, or not ours: an empty folder that stays harms nobody
                return
            folder = folder.parent

    @contextmanager
    def _translated(self, operation: str, key: str) -> Generator[None]:
        try:
            yield
        except OSError as error:
            where = f"{operation} {key!r} in {self.uri}"
            reason = os.strerror(error.errno) if error.errno else type(error).__name__
            if error.errno in _FULL:
                raise StoreUnavailable(
                    f"{where}: the disk is full or a quota is reached ({reason}). The object is as it was; "
                    "make room and run again."
                ) from error
            if error.errno in _DENIED:
                raise AccessDenied(
                    f"{where}: not permitted ({reason}). The object is as it was; check the owner, the mode "
                    f"and the mount of {error.filename or self.uri}."
                ) from error
            if error.errno in _ABSENT and operation in _READING:
                raise ObjectNotFound(f"{where}: no such object. Nothing was read.") from error
            if error.errno == errno.ENAMETOOLONG:
                raise InvalidName(f"{where}: the path is too long for the file system. Nothing was written.") from error
            raise StorageError(
                f"{where}: {reason}. The object is as it was. A key cannot lie below another object, nor be a folder."
            ) from error


def _etag(status: os.stat_result) -> str:
    return f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, status.st_size, _etag(status), datetime.fromtimestamp(status.st_mtime, UTC))


def _stat_file(path: Path) -> os.stat_result:
    status = path.stat()
    if not S_ISREG(status.st_mode):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return status


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _holds_objects(folder: os.DirEntry[str]) -> bool:
    return any(
        _holds_objects(entry) if entry.is_dir(follow_symlinks=False) else entry.is_file(follow_symlinks=False)
        for entry in _entries(Path(folder.path))
    )


def _write(path: Path, chunks: Iterable[bytes], durability: Durability) -> os.stat_result:
    with path.open("xb") as file:
        for chunk in chunks:
            file.write(chunk)
        return _settle(file, durability)


def _copy_bytes(source: Path, target: Path) -> os.stat_result:
    shutil.copyfile(source, target)
    with target.open("rb") as file:
        return _settle(file)


def _settle(file: BinaryIO, durability: Durability = "now") -> os.stat_result:
    file.flush()
    # The kernel stamps files with a clock of some milliseconds, and inodes are used again: two writes within a tick
    # could have one ETag. The precise time, set by hand, keeps them apart.
    now = time.time_ns()
    os.utime(file.fileno(), ns=(now, now))
    if durability == "now":
        os.fsync(file.fileno())
    return os.fstat(file.fileno())


def _link_new(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)
    except FileExistsError:
        # A network file system may lose the answer of a link that was made; the link count shows it.
        if temporary.stat().st_nlink < 2:
            raise


def _make_folder(folder: Path) -> None:
    """Create a folder and what is missing above it, each durable in its parent."""
    for attempt in range(_FOLDER_ATTEMPTS):
        try:
            folder.mkdir()
        except FileExistsError:
            return
        except FileNotFoundError:
            # The parent may be pruned again and again, or be a place like /proc, where nothing can be made.
            if folder.parent == folder or attempt == _FOLDER_ATTEMPTS - 1:
                raise
            _make_folder(folder.parent)
            continue
        with suppress(FileNotFoundError):
            _sync_folder(folder.parent)
        return


def _sync_folder(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
