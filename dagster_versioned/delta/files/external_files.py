"""Files that a log names by absolute paths, as shallow clones do: which of them may be read, and through which store.

A log is written by others, so what lies outside the table's folder is read only below roots that an operator allowed.
"""

import os
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dagster_versioned.delta.paths import Column, cloud_uri, confine, confined_key, decode_path, is_absolute
from dagster_versioned.errors import InvalidInput, LogCorrupt, UnsupportedFeature
from dagster_versioned.storage import open_store
from dagster_versioned.storage.object_store import ObjectInfo, ObjectStore
from dagster_versioned.storage.wrappers import StoreWrapper


@dataclass(frozen=True, slots=True)
class ExternalFiles:
    """Where a table's files may be: below ``roots``, URIs as stores tell them, of which the first is its own folder.

    Without any, absolute paths are refused altogether; that is how tables are written to.
    """

    roots: tuple[str, ...] = ()

    def admitted(self, path: str) -> str:
        """The canonical form (`paths.decode_path`) of a ``path`` that may be read.

        Raises `UnsupportedFeature` for one outside of all roots, and `LogCorrupt` for one that makes no sense.
        """
        if not self.roots:
            return confined_key(path)
        key = decode_path(path)
        if not is_absolute(path):
            if cloud_uri(key):  # whose key could be that of an object elsewhere
                raise LogCorrupt(f"The relative path {path!r} reads like a URI. Nothing was read.")
            return confined_key(path)
        if "\\" in key or "\0" in key:
            raise LogCorrupt(f"The path {path!r} names no file. Nothing was read.")
        if self.located(key) is None:
            raise UnsupportedFeature(
                f"absolutePaths: the table refers to the file {path!r} outside its own folder, {self.roots[0]}. Nothing"
                f" was read. If that place is to be trusted, allow it: allow=[{_folder(key)!r}], or a folder above."
            )
        return key

    def confine(self, paths: Column) -> None:
        """Check a column with `admitted`; raises as it does."""
        confine(paths, self.admitted)

    def located(self, key: str) -> tuple[int, str] | None:
        """Below which of the roots an absolute canonical path is, and its key there; ``None`` if below none."""
        for i, root in enumerate(self.roots):
            if (below := _below_prefix(root, key) if cloud_uri(root) else _below_folder(root, key)) is not None:
                return i, below
        return None


NOWHERE = ExternalFiles()


class ReachingStore(StoreWrapper):
    """The store of a table's folder, which also reads the objects that `ExternalFiles` admits, by their absolute paths.

    Everything else, and each write, is that folder's. The roots are stores of their own, each of which refuses symbolic
    links that lead out of it.
    """

    def __init__(self, store: ObjectStore, allowed: Sequence[ObjectStore]) -> None:
        super().__init__(store)
        self._allowed = tuple(allowed)
        self.reach = ExternalFiles((store.uri, *(location.uri for location in allowed)))

    def subfolder(self, path: str) -> "ReachingStore":
        return ReachingStore(self._store.subfolder(path), self._allowed)

    def url(self, key: str) -> str:
        store, key = self._at(key)
        return store.url(key)

    def local_path(self, key: str) -> Path | None:
        store, key = self._at(key)
        return store.local_path(key)

    def get(self, key: str) -> bytes:
        store, key = self._at(key)
        return store.get(key)

    def get_with_info(self, key: str) -> tuple[bytes, ObjectInfo]:
        store, key = self._at(key)
        return store.get_with_info(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        store, key = self._at(key)
        return store.get_range(key, start, length)

    def head(self, key: str) -> ObjectInfo:
        store, key = self._at(key)
        return store.head(key)

    def _at(self, key: str) -> tuple[ObjectStore, str]:
        if not key.startswith("/") and not cloud_uri(key):
            return self._store, key
        found = self.reach.located(key)
        if found is None:
            return self._store, key  # which refuses it
        number, below = found
        return (self._store, *self._allowed)[number], below


def with_external_files(store: ObjectStore, allow: Sequence[str] = (), *, profile: str | None = None) -> ObjectStore:
    """The store of a table's folder for reading it, with files that its log names by absolute paths.

    Those in the folder are always read; those below a root of ``allow`` (URIs) as well. Raises `InvalidInput` for a URI
    that names no store.
    """
    if isinstance(allow, str):
        raise InvalidInput(f"allow is {allow!r}. Nothing was read. Pass a list of folders: [{allow!r}].")
    return ReachingStore(store, [open_store(uri, profile=profile) for uri in allow])


def reach_of(store: ObjectStore) -> ExternalFiles:
    """What a store reads by absolute paths."""
    return store.reach if isinstance(store, ReachingStore) else NOWHERE


def _below_folder(root: str, key: str) -> str | None:
    if not key.startswith("/"):
        return None
    start = root.rstrip("/") + "/"
    if key.startswith(start) and ".." not in key.split("/"):
        return key[len(start) :] or None
    # As the system would find it: the way may lead over links, and up again behind them.
    real = os.path.realpath(key)
    return real[len(start) :] if real.startswith(start) else None


def _below_prefix(root: str, key: str) -> str | None:
    start, uri = f"{(cloud_uri(root) or root).rstrip('/')}/", cloud_uri(key)
    if uri is None:
        return None
    scheme, _, rest = uri.partition("://")
    place = f"{scheme}://{posixpath.normpath(rest)}"
    return place[len(start) :] if place.startswith(start) else None


def _folder(key: str) -> str:
    """The folder of an absolute canonical path, as one would allow it."""
    folder = key.rpartition("/")[0] or "/"
    return cloud_uri(folder) or folder
