"""What stores in a bucket share: keys below a prefix, listings in byte order, and conditional writes.

Whether a server keeps the conditions of these, on which every commit stands, is looked at where it is none of the
clouds' own. A write whose answer was lost is recognized by its id when it is read back.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from copy import copy
from operator import attrgetter
from typing import NamedTuple, Self

from dagster_versioned.errors import AlreadyExists, ObjectNotFound, PreconditionFailed, StorageError, StoreUnavailable
from dagster_versioned.storage.keys import check_key, check_prefix, check_start
from dagster_versioned.storage.object_store import Durability, ObjectInfo

_DELETE_RETRIES = 5.0  # seconds; a delete that lands late may take what was put again since


class BucketStore(ABC):
    """Objects below a prefix of ``root``, a bucket as messages and engines name it."""

    def __init__(self, root: str, prefix: str, attempts: int, *, is_ordered: bool) -> None:
        """``is_ordered``: the server promises that it lists keys by their bytes."""
        self._root, self._prefix, self._attempts, self._is_ordered = root, prefix, attempts, is_ordered

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.uri!r})"

    @property
    def uri(self) -> str:
        return f"{self._root}/{self._prefix}".rstrip("/")

    def subfolder(self, path: str) -> Self:
        deeper = copy(self)
        deeper._prefix = f"{self._prefix}{check_key(path)}/"
        return deeper

    def url(self, key: str) -> str:
        return f"{self._root}/{self._full(key)}"

    def local_path(self, key: str) -> None:
        check_key(key)

    def get(self, key: str) -> bytes:
        return self._fetch(key)[0]

    def get_with_info(self, key: str) -> tuple[bytes, ObjectInfo]:
        return self._fetch(key)[:2]

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        check_start(start_after)
        listing = self._list(prefix, start_after)
        return listing if self._is_ordered else _in_byte_order(listing, prefix)

    def put_if_absent(self, key: str, data: bytes) -> ObjectInfo:
        info = self._put_if("put_if_absent", key, data, None)
        if info is None:
            raise AlreadyExists(
                f"put_if_absent {key!r} in {self.uri}: there already is an object. It was left as it is; "
                "read it to see who was first."
            )
        return info

    def put_if_match(self, key: str, data: bytes, etag: str | None, *, durability: Durability = "now") -> ObjectInfo:
        info = self._put_if("put_if_match", key, data, etag)
        if info is None:
            raise PreconditionFailed(
                f"put_if_match {key!r} in {self.uri}: the ETag is not {etag or 'absent'} any more. The object was left "
                "as it is; read it again and decide anew."
            )
        return info

    @abstractmethod
    def _fetch(self, key: str) -> tuple[bytes, ObjectInfo, str | None]:
        """The object, and the id of the write that made it where it has one. Raises `ObjectNotFound`."""

    @abstractmethod
    def _list(self, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        """As `list`, in the order of the server."""

    @abstractmethod
    def _put_if(self, operation: str, key: str, data: bytes, etag: str | None) -> ObjectInfo | None:
        """Write if the object's ETag is ``etag`` (``None``: if there is no object), or return ``None``."""

    def _is_last_delete(self, attempt: int, began: float) -> bool:
        return attempt == self._attempts - 1 or time.monotonic() - began > _DELETE_RETRIES

    def _full(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _landed(self, key: str, data: bytes, write_id: str) -> tuple[ObjectInfo | None, str | None]:
        """What the object is if this very write made it, and the ETag of whatever is there."""
        try:
            found, info, made_by = self._fetch(key)
        except ObjectNotFound:
            return None, None
        # A server that drops metadata leaves the bytes to tell.
        ours = found == data and made_by in (None, write_id)
        return (info if ours else None), info.etag


def quoted_etag(text: str | None) -> str:
    """An ETag as headers have it: some servers, and Azure's listings, leave the quotes out."""
    return '"' + (text or "").strip('"') + '"'


class Conditions(NamedTuple):
    """The headers that carry the conditions of writes: that there is no object, and that it is a certain one."""

    create: str
    replace: str


HTTP = Conditions("If-None-Match", "If-Match")


class ConditionCheck:
    """Looked at once for a server that is none of the clouds' own: what was just written is written again, on a
    condition that does not hold any more.

    A server that ignores the condition would let two writers take one version, and one of the two would be lost.
    """

    def __init__(self, endpoint_url: str | None, headers: Conditions = HTTP) -> None:
        self._headers = headers
        self._unseen = set[str]() if endpoint_url is None else {"create", "replace"}

    def kept(self, info: ObjectInfo, etag: str | None, again: Callable[[], ObjectInfo | None], uri: str) -> ObjectInfo:
        """The object that was written where the ETag was ``etag`` (``None``: where there was no object).

        ``again`` writes the same once more; ``None`` where the server refuses, as it must. Raises `StorageError` for a
        server that does it twice in a row: once may be because somebody deleted it, or put back what was there.
        """
        kind, header = ("create", self._headers.create) if etag is None else ("replace", self._headers.replace)
        if kind not in self._unseen or info.etag == etag:  # the same bytes, so the condition holds again
            return info
        for _ in range(2):
            try:
                made = again()
            except StoreUnavailable:
                return info  # nothing is known, and the object is there
            if made is None:
                self._unseen.discard(kind)
                return info
            info = made
        did = f"created {info.key!r} again, which was there" if etag is None else f"replaced {info.key!r} twice"
        raise StorageError(
            f"The server of {uri} ignores the condition of a write ({header}): it {did}. Without it two writers of "
            "a table lose each other's versions. The object is there, with the bytes of this writer; use a server, or "
            "a version of it, with conditional writes."
        )


def _in_byte_order(listing: Iterator[ObjectInfo], prefix: str) -> Iterator[ObjectInfo]:
    """Order a listing of a server that compares segment by segment, and so lists ``a/b`` before ``a-b``.

    Keys of one folder directly below ``prefix`` are held back until no key can come that sorts before one of them.
    """
    held: list[ObjectInfo] = []
    folder = ""
    for info in listing:
        name = info.key[len(prefix) :]
        if held and not (name < folder or name.startswith(folder)):
            yield from sorted(held, key=attrgetter("key"))
            held.clear()
        if not held and "/" not in name:
            yield info
            continue
        if not held:
            folder = name[: name.index("/") + 1]
        held.append(info)
    yield from sorted(held, key=attrgetter("key"))
