"""Files of buckets and of FTP servers, one by its address or those that a pattern matches."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path

from dagster_versioned.errors import InvalidInput, StorageError
from dagster_versioned.storage import Location, ObjectStore, open_store
from dagster_versioned.storage.ftp import MOST_ENTRIES, FtpAddress, FtpClient, FtpEntry
from dagster_versioned.storage.transfer import PIECE_BYTES

_S3 = re.compile(r"s3a?://", re.IGNORECASE)
_FTP = re.compile(r"ftp://", re.IGNORECASE)
_OPTIONS = re.compile(r"\?(?=(?:region|endpoint_url)=)")
"""Where the options of a location begin; elsewhere a question mark stands for a letter."""
_WILD = re.compile(r"[*?\[]")
_ATTEMPTS = 4
_FOLDER_COUNTS = 100
"""A folder of an FTP server counts as so many files: each takes a connection."""

Filled = Callable[[str], str]
"""Puts values in the place of ``${{ env.NAME }}``."""


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file that a source has: ``path`` says where, with no user and no password; ``read`` has its bytes in a file.

    ``state`` is what is known of its content without reading it.
    """

    path: str
    name: str
    modified: datetime | None
    state: str | None
    read: Callable[[], Path]


@dataclass(frozen=True, slots=True)
class Places:
    """How buckets and FTP servers are reached; what is read of them goes to the file ``target``."""

    target: Path
    max_bytes: int
    ftp: FtpClient
    profile: str | None = None


def is_bucket(address: str) -> bool:
    """Whether an address is that of a bucket of S3."""
    return _S3.match(address) is not None


def is_ftp(address: str) -> bool:
    """Whether an address is that of an FTP server."""
    return _FTP.match(address) is not None


# --- buckets ---------------------------------------------------------------------------------------------------------


def object_at(address: str, places: Places) -> ListedFile:
    """The object at ``s3://bucket/key?region=…&endpoint_url=…``. Raises `InvalidInput`, and what the store does."""
    location = Location.parse(address)
    key = location.prefix.rstrip("/")
    if not key:
        raise InvalidInput(f"{location.uri} is a bucket, and no object. Nothing was fetched. Use s3://bucket/key.")
    store = open_store(location.model_copy(update={"prefix": ""}), profile=places.profile)
    info = store.head(key)
    return _object(store, key, info.modified, info.etag, places)


def objects_like(pattern: str, places: Places) -> list[ListedFile]:
    """The objects of a bucket whose keys match ``s3://bucket/pattern?endpoint_url=…``."""
    path, *options = _OPTIONS.split(pattern, maxsplit=1)
    bucket, _, wild = _S3.sub("", path, count=1).partition("/")
    folder, parts = _split(wild)
    location = Location.parse("?".join([f"s3://{bucket}/{folder}", *options]))
    store = open_store(location.model_copy(update={"prefix": ""}), profile=places.profile)
    return [
        _object(store, info.key, info.modified, info.etag, places)
        for info in store.list(location.prefix)
        if _matches(info.key.removeprefix(location.prefix).split("/"), parts)
    ]


def _object(store: ObjectStore, key: str, modified: datetime, etag: str, places: Places) -> ListedFile:
    def read() -> Path:
        for _ in range(_ATTEMPTS):
            before = store.head(key)
            if before.size > places.max_bytes:
                raise StorageError(f"{store.url(key)} has more than {places.max_bytes} bytes. Nothing was kept.")
            with places.target.open("wb") as file:
                for start in range(0, before.size, PIECE_BYTES):
                    file.write(store.get_range(key, start, PIECE_BYTES))
            if store.head(key).etag == before.etag == etag:
                return places.target
        raise StorageError(f"{store.url(key)} was replaced while it was read. Nothing was kept. Run again.")

    return ListedFile(store.url(key), key.rpartition("/")[2], modified, etag, read)


# --- FTP -------------------------------------------------------------------------------------------------------------


def ftp_file(address: str, filled: Filled, places: Places) -> ListedFile:
    """The file at ``ftp://[user:password@]host/path``. Raises `InvalidInput`, and what the client does."""
    place = FtpAddress.parse(address, filled)
    return _of_server(place, places.ftp.info(place), places)


def ftp_files(pattern: str, filled: Filled, places: Places) -> list[ListedFile]:
    """The files of a server whose paths match ``ftp://[user:password@]host/pattern``."""
    place = FtpAddress.parse(pattern, filled)
    folder, parts = _split(place.path)
    return [
        _of_server(replace(place, path="/".join([*([folder.rstrip("/")] if folder else []), *path])), entry, places)
        for path, entry in _below(replace(place, path=folder), (), parts, places, [0])
        if _matches(path, parts)
    ]


def _below(
    folder: FtpAddress, above: tuple[str, ...], parts: Sequence[str], places: Places, seen: list[int]
) -> Iterator[tuple[tuple[str, ...], FtpEntry]]:
    """The files of a folder and of those below it in which some may match, each with its path from the first one."""
    entries = places.ftp.list(folder)
    seen[0] += _FOLDER_COUNTS + len(entries)
    if seen[0] > MOST_ENTRIES:
        raise StorageError(f"{folder} and the folders beside it have too many files to look for any. Nothing was read.")
    for entry in entries:
        path = (*above, entry.name)
        if not entry.is_folder:
            yield path, entry
        elif _may_hold(path, parts):
            below = "/".join(part for part in (folder.path.rstrip("/"), entry.name) if part or folder.path)
            yield from _below(replace(folder, path=below), path, parts, places, seen)


def _of_server(place: FtpAddress, entry: FtpEntry, places: Places) -> ListedFile:
    def read() -> Path:
        places.ftp.download(place, places.target, max_bytes=places.max_bytes)
        return places.target

    is_known = entry.modified is not None and entry.size is not None
    state = f"{entry.modified:%Y%m%d%H%M%S}-{entry.size}" if is_known else None
    return ListedFile(str(place), place.path.rpartition("/")[2], entry.modified, state, read)


# --- patterns --------------------------------------------------------------------------------------------------------


def _split(pattern: str) -> tuple[str, list[str]]:
    """The folder above the first wildcard, and the parts of the pattern below it."""
    parts = pattern.split("/")
    wild = next((index for index, part in enumerate(parts[:-1]) if _WILD.search(part)), len(parts) - 1)
    folder, below = "/".join(parts[:wild]), parts[wild:]
    kept = [part for index, part in enumerate(below) if (part, *below[index + 1 : index + 2]) != ("**", "**")]
    return folder or ("/" if wild and not parts[0] else ""), kept


def _matches(path: Sequence[str], parts: Sequence[str]) -> bool:
    """Whether a path matches a pattern, as in a folder of this machine: ``**`` is any number of folders."""
    if not parts or not path:
        return not parts and not path
    if parts[0] == "**":
        if path[0].startswith("."):
            return _matches(path, parts[1:])
        return _matches(path[1:], parts) or _matches(path, parts[1:]) or (len(path), len(parts)) == (1, 1)
    return _fits(path[0], parts[0]) and _matches(path[1:], parts[1:])


def _may_hold(folder: Sequence[str], parts: Sequence[str]) -> bool:
    """Whether a file in a folder, or below it, may match a pattern."""
    for name, part in zip(folder, parts, strict=False):
        if part == "**":
            return not any(name.startswith(".") for name in folder)
        if not _fits(name, part):
            return False
    return len(folder) < len(parts)


def _fits(name: str, part: str) -> bool:
    return fnmatchcase(name, part) and (not name.startswith(".") or part.startswith("."))
