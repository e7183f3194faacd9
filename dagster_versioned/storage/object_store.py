"""The storage waist: everything above this protocol ignores what a bucket or a folder is."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol, Self

Durability = Literal["now", "later"]
"""``"now"``: what was put survives a power failure from when the put returns. ``"later"``: it is atomic and visible at
once, but a power failure may take it back or leave it unreadable; for documents that can be derived again, and whose
readers bear that."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store knows of an object without reading it.

    ``key`` is relative to the store that returned it, ``size`` is in bytes, ``modified`` is timezone-aware UTC.
    ``etag`` is opaque: it changes whenever the object is replaced by other bytes.
    """

    key: str
    size: int
    etag: str
    modified: datetime


@dataclass(frozen=True, slots=True)
class UnfinishedWrite:
    """A write that began and did not end, of a process that died or is at it still; `ObjectStore.list` shows none.

    ``key`` is what it would become, where that is known (an S3 multipart upload), ``size`` the bytes it has, where that
    is known (a file of a local disk). ``id`` is the store's own.
    """

    id: str
    begun: datetime
    key: str | None = None
    size: int | None = None


class ObjectStore(Protocol):
    """Bytes under keys, below one root.

    Keys are relative POSIX paths; a key that could leave the root (``..``, absolute, empty segment, NUL, backslash)
    raises `InvalidName` before anything is touched. Every write is atomic: a reader sees the old object, the new
    one, or none, never a part of one; when a write returns, it is durable, unless `Durability` says otherwise.
    Implementations are thread-safe and picklable, and a pickle holds no credential.
    """

    @property
    def uri(self) -> str:
        """Where the root is, for messages: ``/data/root`` or ``s3://bucket/prefix``. Holds no credential."""
        ...

    def subfolder(self, path: str) -> Self:
        """The same store, rooted deeper."""
        ...

    def url(self, key: str) -> str:
        """What an engine that reads by itself is given: an absolute path or ``s3://bucket/key``."""
        ...

    def local_path(self, key: str) -> Path | None:
        """The file behind a key where there is one (a local folder), else ``None``."""
        ...

    def get(self, key: str) -> bytes:
        """The object's bytes. Raises `ObjectNotFound`."""
        ...

    def get_with_info(self, key: str) -> tuple[bytes, ObjectInfo]:
        """The object's bytes and the ETag they belong to. Raises `ObjectNotFound`."""
        ...

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """``length`` bytes from ``start``; fewer at the end of the object. Raises `ObjectNotFound`."""
        ...

    def head(self, key: str) -> ObjectInfo:
        """Size, ETag and time of the object. Raises `ObjectNotFound`."""
        ...

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        """The objects whose keys start with ``prefix`` and sort after ``start_after``, in UTF-8 byte order of keys.

        Lazy: what is written or deleted while it runs may or may not appear.
        """
        ...

    def folders(self, prefix: str = "") -> Iterator[str]:
        """Names of the immediate folders below the folder ``prefix`` (``""`` or ending in ``/``), sorted.

        A folder is there when an object is below it; some S3 servers still show one whose last object was deleted.
        """
        ...

    def put(self, key: str, data: bytes, *, durability: Durability = "now") -> ObjectInfo:
        """Create or replace the object."""
        ...

    def put_file(self, key: str, path: Path) -> ObjectInfo:
        """Create or replace the object from a local file, which is left in place."""
        ...

    def put_chunks(self, key: str, chunks: Iterable[bytes]) -> ObjectInfo:
        """Create or replace the object from its bytes in pieces, of which one is held in memory at a time.

        All pieces but the last are of at least 5 MiB, and there are at most 10,000 (S3's rules for parts). What
        ``chunks`` raises is passed on; the object is then as it was.
        """
        ...

    def put_if_absent(self, key: str, data: bytes) -> ObjectInfo:
        """Create the object; exactly one of several concurrent callers succeeds.

        Raises `AlreadyExists` if there is one, except where its bytes show that an earlier attempt of this
        very call landed and only its answer was lost.
        """
        ...

    def put_if_match(self, key: str, data: bytes, etag: str | None, *, durability: Durability = "now") -> ObjectInfo:
        """Replace the object if its ETag still is ``etag``; ``None`` means "if it does not exist".

        Raises `PreconditionFailed`.
        """
        ...

    def copy(self, source: str, target: str) -> ObjectInfo:
        """Create or replace ``target`` with the bytes of ``source``, without passing them through this process."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Delete the objects; keys without an object are passed over."""
        ...

    def unfinished(self) -> Iterator[UnfinishedWrite]:
        """The unfinished writes to keys of this store; also those to its outer root, where keys are not known."""
        ...

    def abort(self, writes: Iterable[UnfinishedWrite]) -> None:
        """Discard the bytes of unfinished writes; one of a living process fails. Those that ended are passed over."""
        ...
