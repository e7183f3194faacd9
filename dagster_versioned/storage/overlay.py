"""A store that goes on elsewhere: what a base held at one moment, and all that was written since in a root of its own.

Which of the two holds an object follows from its key alone (`Fork.owner`), so no object of the one hides one of the
other by accident; only content-addressed objects may be in both, and are the same bytes. The base is never written.
"""

import hashlib
import heapq
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import Literal, Protocol, Self, TypeVar

from dagster_versioned.errors import AccessDenied, AlreadyExists, ObjectNotFound, PreconditionFailed
from dagster_versioned.storage.keys import check_folder, check_key, check_prefix, check_start
from dagster_versioned.storage.object_store import Durability, ObjectInfo, ObjectStore, UnfinishedWrite

T = TypeVar("T")

Owner = Literal["base", "own", "either"]
"""``"base"``: what the base has under the key is there, and nothing is ever written there. ``"own"``: the base's object
is not seen. ``"either"``: of content-addressed objects, the own one or else the base's."""

_FORKED = "fork-"
"""Begins the ETags of objects that the fork gives, as no store's do; who replaces one creates it in the own root."""


class Fork(Protocol):
    """What is seen of the base. Keys are those of the overlay's outermost root. Picklable."""

    @property
    def at(self) -> datetime:
        """The moment of the fork, UTC."""
        ...

    def owner(self, key: str) -> Owner:
        """Who holds what is under a key."""
        ...

    def document(self, key: str) -> bytes | None:
        """What is under a key of the own root as long as nothing was put there."""
        ...

    def documents(self, prefix: str) -> Iterator[str]:
        """The keys with a prefix that have a `document`, sorted."""
        ...

    def listed(self, prefix: str) -> Iterator[tuple[str, str]]:
        """The ranges of the base's keys that a listing of a prefix shows, sorted: the prefix of each, and its last key.

        Each prefix begins with the one asked for, or is it.
        """
        ...

    def folders(self, prefix: str) -> Iterator[str]:
        """Names of the folders below a folder that are there by the fork."""
        ...

    def within(self, folder: str) -> "Fork":
        """The same fork, with all that is below one folder, for a store that is rooted there."""
        ...


class OverlayStore:
    """The base as the fork has it, with what was written since in ``own``; an `ObjectStore`."""

    def __init__(self, own: ObjectStore, base: ObjectStore, fork: Fork, folder: str = "") -> None:
        """``folder`` is where the three are rooted, below the root of the fork's keys."""
        self._own = own
        self._base = base
        self._fork = fork
        self._folder = folder

    def __repr__(self) -> str:
        return f"OverlayStore({self._own.uri!r} on {self._base.uri!r})"

    @property
    def uri(self) -> str:
        """That of the own root: whoever opens it by itself finds no log, and never takes the base for it."""
        return self._own.uri

    def subfolder(self, path: str) -> Self:
        check_key(path)
        folder = f"{self._folder}{path}/"
        return type(self)(self._own.subfolder(path), self._base.subfolder(path), self._fork.within(folder), folder)

    def url(self, key: str) -> str:
        return self._holder(key).url(key)

    def local_path(self, key: str) -> Path | None:
        own, base = self._own.local_path(key), self._base.local_path(key)
        if own is None or base is None:
            return None  # where the sides are of two kinds, engines read through the store
        match self._owner(key):
            case "own":
                return own
            case "base":
                return base
            case _:
                return base if not own.exists() and base.exists() else own

    def get(self, key: str) -> bytes:
        return self.get_with_info(key)[0]

    def get_with_info(self, key: str) -> tuple[bytes, ObjectInfo]:
        return self._read(
            key, lambda store: store.get_with_info(key), lambda data: (data, self._document_info(key, data))
        )

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._read(
            key, lambda store: store.get_range(key, start, length), lambda data: data[start : start + length]
        )

    def head(self, key: str) -> ObjectInfo:
        return self._read(key, lambda store: store.head(key), lambda data: self._document_info(key, data))

    def _read(self, key: str, ask: Callable[[ObjectStore], T], of_document: Callable[[bytes], T]) -> T:
        """What the store that holds an object says of it, or what the fork's document under the key has."""
        owner = self._owner(check_key(key))
        if owner == "base":
            return ask(self._base)
        try:
            return ask(self._own)
        except ObjectNotFound:
            if owner == "either":
                return ask(self._base)
            if (data := self._document(key)) is None:
                raise
            return of_document(data)

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        """As the protocol says; of objects that either side may hold, the own ones alone."""
        check_prefix(prefix)
        check_start(start_after)
        return self._merged(prefix, start_after)

    def _merged(self, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        last = ""
        sides = (self._own.list(prefix, start_after=start_after), self._listed(prefix, start_after))
        for info in heapq.merge(*sides, self._listed_documents(prefix, start_after), key=attrgetter("key")):
            if info.key != last:  # the own object comes first, and stands for the fork's document
                yield info
            last = info.key

    def folders(self, prefix: str = "") -> Iterator[str]:
        check_folder(prefix)
        names = set(self._own.folders(prefix)) | set(self._fork.folders(f"{self._folder}{prefix}"))
        return iter(sorted(names))

    def put(self, key: str, data: bytes, *, durability: Durability = "now") -> ObjectInfo:
        self._require_own("put", key)
        return self._own.put(key, data, durability=durability)

    def put_file(self, key: str, path: Path) -> ObjectInfo:
        self._require_own("put_file", key)
        return self._own.put_file(key, path)

    def put_chunks(self, key: str, chunks: Iterable[bytes]) -> ObjectInfo:
        self._require_own("put_chunks", key)
        return self._own.put_chunks(key, chunks)

    def put_if_absent(self, key: str, data: bytes) -> ObjectInfo:
        if self._owner(check_key(key)) == "base" or self._document(key) is not None:
            raise AlreadyExists(
                f"put_if_absent {key!r} in {self.uri}: what was there at the fork is the base's. It was left as it is."
            )
        return self._own.put_if_absent(key, data)

    def put_if_match(self, key: str, data: bytes, etag: str | None, *, durability: Durability = "now") -> ObjectInfo:
        self._require_own("put_if_match", key)
        if (
            etag is not None and self._holder(key) is self._base
        ):  # where own bytes take the place of those that were seen
            if etag != self._base.head(key).etag:
                raise PreconditionFailed(
                    f"put_if_match {key!r} in {self.uri}: the ETag in {self._base.uri} is not {etag} any more. The "
                    "object was left as it is; read it again and decide anew."
                )
            return self._own.put_if_match(key, data, None, durability=durability)
        document = self._document(key)
        if document is None or (etag is not None and not etag.startswith(_FORKED)):
            return self._own.put_if_match(key, data, etag, durability=durability)
        if etag != self._document_info(key, document).etag:
            raise PreconditionFailed(
                f"put_if_match {key!r} in {self.uri}: expected {etag or 'no object'}, found what was there at the "
                "fork, or what replaced it. The object was left as it is; read it again and decide anew."
            )
        return self._own.put_if_match(key, data, None, durability=durability)

    def copy(self, source: str, target: str) -> ObjectInfo:
        self._require_own("copy to", target)
        if self._holder(source) is self._own:
            return self._own.copy(source, target)
        return self._own.put(target, self.get(source))

    def delete(self, keys: Iterable[str]) -> None:
        """Delete own objects; what is the base's stays, and is passed over."""
        self._own.delete([key for key in keys if self._owner(check_key(key)) != "base"])

    def is_own(self, key: str) -> bool:
        """Whether the own root has an object under the key."""
        try:
            self._own.head(key)
        except ObjectNotFound:
            return False
        return True

    def take(self, key: str) -> None:
        """Have the own root hold what the base has under a key that either may hold. Raises `ObjectNotFound`."""
        self._require_own("take", key)
        self._own.put(key, self._base.get(key))

    def unfinished(self) -> Iterator[UnfinishedWrite]:
        return self._own.unfinished()

    def abort(self, writes: Iterable[UnfinishedWrite]) -> None:
        self._own.abort(writes)

    def _owner(self, key: str) -> Owner:
        return self._fork.owner(self._folder + key)

    def _holder(self, key: str) -> ObjectStore:
        """The store that has the object, for those that read it by themselves; the own one where none has."""
        owner = self._owner(check_key(key))
        if owner != "either":
            return self._base if owner == "base" else self._own
        for store in (self._own, self._base):
            try:
                store.head(key)
            except ObjectNotFound:
                continue
            return store
        return self._own

    def _require_own(self, operation: str, key: str) -> None:
        if self._owner(check_key(key)) == "base":
            raise AccessDenied(
                f"{operation} {key!r} in {self.uri}: the key belongs to {self._base.uri}, as it was at "
                f"{self._fork.at:%Y-%m-%d %H:%M}Z, and is only read here. Nothing was written."
            )

    def _document(self, key: str) -> bytes | None:
        return self._fork.document(self._folder + key)

    def _document_info(self, key: str, data: bytes) -> ObjectInfo:
        return ObjectInfo(key, len(data), f"{_FORKED}{hashlib.sha256(data).hexdigest()}", self._fork.at)

    def _listed_documents(self, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        for key in self._fork.documents(self._folder + prefix):
            name = key.removeprefix(self._folder)
            if name > start_after and (data := self._document(name)) is not None:
                yield self._document_info(name, data)

    def _listed(self, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        """What a listing shows of the base, no further than the fork: there may be much beyond it."""
        for beginning, last in self._fork.listed(self._folder + prefix):
            for info in self._base.list(beginning.removeprefix(self._folder), start_after=start_after):
                if self._folder + info.key > last:
                    break
                if self._owner(info.key) == "base":
                    yield info
