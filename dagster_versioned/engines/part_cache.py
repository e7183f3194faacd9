"""Parts of remote stores on the local disk: read again with no network, and by a Spark of this machine with no JAR."""

import hashlib
import os
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Self
from uuid import uuid4

from dagster_versioned.delta.actions import DeletionVector
from dagster_versioned.delta.files.deletion_vectors import inlined
from dagster_versioned.engines.parts import MEBIBYTE
from dagster_versioned.engines.scan import Check, Scan, ScanFile, missing_part
from dagster_versioned.errors import IntegrityError, InvalidInput, ObjectNotFound
from dagster_versioned.storage.local import LocalStore
from dagster_versioned.storage.object_store import ObjectStore

DOWNLOADS = 8
RANGE_BYTES = 16 * MEBIBYTE
IN_USE_SECONDS = 24 * 3600
"""Frames are lazy: what was asked for within this time may still be read, so it is kept even above the bound."""

_MAX_BYTES = 20 * 1024 * MEBIBYTE


@dataclass(frozen=True, slots=True)
class PartCache:
    """Files under names that determine their bytes, so that nothing in it can be stale.

    Bound: about ``max_bytes``, oldest use first, but nothing that was used in the last 24 hours is removed. Any number
    of processes may share it. The folder is made for its owner alone.
    """

    root: Path
    max_bytes: int

    @classmethod
    def default(cls) -> Self:
        """In ``DAGSTER_VERSIONED_CACHE``, else the user's cache folder; 20 GiB or ``DAGSTER_VERSIONED_CACHE_BYTES``.

        Raises `InvalidInput` where the latter is no number.
        """
        bound = os.environ.get("DAGSTER_VERSIONED_CACHE_BYTES", str(_MAX_BYTES))
        if not bound.isdecimal():
            raise InvalidInput(
                f"DAGSTER_VERSIONED_CACHE_BYTES is {bound!r:.50}. Nothing was read. Give it a number of bytes, such as "
                f"{_MAX_BYTES}."
            )
        return cls(_root(), int(bound))

    def localized(self, scan: Scan, check: Check = "size") -> Scan:
        """The same rows, read from the cache, after fetching the files that were not there yet.

        ``check`` is what makes a file that is there count: its size, or its SHA-256 too; one that fails is fetched
        again. Whatever is fetched is checked, so the result's files carry no SHA-256 to be checked once more.
        Raises `IntegrityError` for a file that is missing in the scan's store, or whose bytes have another SHA-256.
        """
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with ThreadPoolExecutor(DOWNLOADS, thread_name_prefix="fetch") as pool:
            names = list(pool.map(partial(self._fetched, scan.store, check), scan.files))
        self._prune()
        files = tuple(
            replace(
                file,
                key=name,
                sha256=None,
                deletion_vector=_brought(scan.store, file.deletion_vector, file.key),
                kept=_brought(scan.store, file.kept, file.key),
            )
            for file, name in zip(scan.files, names, strict=True)
        )
        return replace(scan, store=LocalStore(self.root), files=files)

    def _fetched(self, store: ObjectStore, check: Check, file: ScanFile) -> str:
        """The name of the file in the cache, where it is from now on."""
        try:
            identity = file.sha256 or _place(store, file.key)
            path = self.root / f"{identity}.parquet"
            if not _holds(path, file, check):
                self._fetch(store, file, path)
        except ObjectNotFound as error:
            raise missing_part(store, file) from error
        return path.name

    def _fetch(self, store: ObjectStore, file: ScanFile, target: Path) -> None:
        temporary = self.root / f".{uuid4().hex}.tmp"
        sha256 = hashlib.sha256()
        try:
            with temporary.open("xb") as output:
                for start in range(0, file.size, RANGE_BYTES):
                    data = store.get_range(file.key, start, RANGE_BYTES)
                    sha256.update(data)
                    output.write(data)
            if file.sha256 is not None and sha256.hexdigest() != file.sha256:
                raise IntegrityError(
                    f"The part {file.key} in {store.uri} was altered: its bytes have the SHA-256 {sha256.hexdigest()} "
                    f"instead of {file.sha256}. No row was returned. Restore it from a copy, or materialize the "
                    "version's asset again, which writes the same bytes."
                )
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)

    def _prune(self) -> None:
        found: list[tuple[float, int, Path]] = []
        for path in self.root.iterdir():
            with suppress(FileNotFoundError):  # another process prunes too
                stat = path.stat()
                found.append((stat.st_mtime, stat.st_size, path))
        excess = sum(size for _, size, _ in found) - self.max_bytes
        for used, size, path in sorted(found):
            if excess <= 0 or used > time.time() - IN_USE_SECONDS:
                return
            path.unlink(missing_ok=True)
            excess -= size


def forget_parts(shas: Iterable[str]) -> None:
    """Delete parts of these SHA-256 from the cache of this machine's user, where they are in it."""
    try:
        root = _root()
    except RuntimeError:  # there is no home to have it in
        return
    for sha in shas if os.access(root, os.W_OK) else ():  # it could not cache either
        (root / f"{sha}.parquet").unlink(missing_ok=True)


def forget_unhashed(store: ObjectStore, keys: Iterable[str]) -> None:
    """Delete files that nobody hashed, which are in the store still, from the cache of this machine's user."""
    for key in keys:
        with suppress(ObjectNotFound):
            forget_parts([_place(store, key)])


def _root() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("DAGSTER_VERSIONED_CACHE") or Path(base, "dagster-versioned", "parts"))


def _brought(store: ObjectStore, vector: DeletionVector | None, of: str) -> DeletionVector | None:
    """A file's deletion vector, in a form that is not in the store; they are small beside what they delete from."""
    return vector and inlined(store, vector, of)


def _place(store: ObjectStore, key: str) -> str:
    """What identifies a file that nobody hashed: where it is, and the ETag that changes with its bytes."""
    return hashlib.sha256(f"{store.url(key)}\0{store.head(key).etag}".encode()).hexdigest()


def _holds(path: Path, file: ScanFile, check: Check) -> bool:
    """Whether the cache has the file; if so, it counts as used now, so that no other process prunes it."""
    try:
        os.utime(path)
        if path.stat().st_size != file.size:
            return False
        if check == "size" or file.sha256 is None:
            return True
        with path.open("rb") as cached:
            return hashlib.file_digest(cached, "sha256").hexdigest() == file.sha256
    except FileNotFoundError:
        return False
