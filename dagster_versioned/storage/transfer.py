"""Copying objects from one store to another, each whole or not at all, whatever the two stores are.

The way is chosen per pair of stores: a local file is handed to the target as a file; a server that holds both ends
copies by itself; everything else passes through this process, large objects in pieces. The source is looked at again
wherever the store did not promise that what was copied is what had been listed.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_versioned.errors import AccessDenied, ObjectNotFound, PreconditionFailed, StorageError
from dagster_versioned.storage.object_store import ObjectInfo, ObjectStore

if TYPE_CHECKING:
    from dagster_versioned.storage.s3 import S3Store

PIECE_BYTES = 8 * 1024**2
MAX_PIECES = 10_000  # S3's limit of parts
THREADS = 16


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """Objects and bytes that are copied, of how many."""

    objects: int
    total_objects: int
    bytes: int
    total_bytes: int


Progress = Callable[[CopyProgress], None]
"""Called after every object, from the thread that asked for the copies."""


@dataclass(frozen=True, slots=True)
class CopyReport:
    """How many objects and bytes were copied.

    ``overtaken`` are the keys of which this is not known, because the object changed or vanished meanwhile, at the
    source or (where the copy was conditional) at the target: list both anew.
    """

    objects: int
    bytes: int
    overtaken: tuple[str, ...]


class Transfer:
    """Copies from ``source`` to ``target``, ``threads`` objects at a time; up to 8 MiB of each are in memory.

    Nothing is assumed of keys: an object keeps its own, or is given another.
    """

    def __init__(self, source: ObjectStore, target: ObjectStore, *, threads: int = THREADS) -> None:
        self._source = source
        self._target = target
        self._threads = threads
        self._made: dict[str, tuple[str, str]] = {}
        self._server = _on_one_server(source, target)

    def copy(self, found: ObjectInfo, target_key: str | None = None) -> ObjectInfo:
        """Create or replace one object at the target; ``found`` is the source's, as it was listed.

        Raises `PreconditionFailed` where the source is not that object any more and `ObjectNotFound` where it is gone
        (the target may then hold a later state of it), and what the stores raise.
        """
        key = target_key or found.key
        made = self._by_server(found, key) or self._by_file(found, key) or self._by_pieces(found, key)
        if made.size != found.size:
            raise self._changed(found)
        return self._noted(found, made)

    def replace(self, found: ObjectInfo, etag: str | None) -> ObjectInfo:
        """`copy` a small object only if the target's still has this ETag (``None``: there is none)."""
        data, current = self._source.get_with_info(found.key)
        if current.etag != found.etag:
            raise self._changed(found)
        return self._noted(found, self._target.put_if_match(found.key, data, etag))

    def has_copied(self, found: ObjectInfo, there: ObjectInfo) -> bool:
        """Whether this transfer made the target's object, as listed, of the source's, as listed."""
        return self._made.get(there.key) == (found.etag, there.etag)

    def has_put(self, there: ObjectInfo) -> bool:
        """Whether the target's object, as listed, is still one that this transfer put there."""
        made = self._made.get(there.key)
        return made is not None and made[1] == there.etag

    def copy_all(
        self,
        objects: Sequence[ObjectInfo],
        *,
        replacing: Mapping[str, str | None] | None = None,
        progress: Progress | None = None,
    ) -> CopyReport:
        """`copy` objects of the source in parallel, the largest first; `replace` those that ``replacing`` names.

        The first failure ends it: what is under way is finished, nothing more is begun.
        """
        conditional = replacing or {}
        done, overtaken = CopyProgress(0, len(objects), 0, sum(found.size for found in objects)), list[str]()

        def one(found: ObjectInfo) -> tuple[ObjectInfo, bool]:
            try:
                if found.key in conditional:
                    self.replace(found, conditional[found.key])
                else:
                    self.copy(found)
            except (PreconditionFailed, ObjectNotFound):
                return found, False
            return found, True

        for found, is_copied in self._in_parallel(one, sorted(objects, key=lambda found: found.size, reverse=True)):
            if is_copied:
                done = CopyProgress(done.objects + 1, done.total_objects, done.bytes + found.size, done.total_bytes)
                if progress is not None:
                    progress(done)
            else:
                overtaken.append(found.key)
        return CopyReport(done.objects, done.bytes, tuple(sorted(overtaken)))

    def _in_parallel(
        self, work: Callable[[ObjectInfo], tuple[ObjectInfo, bool]], objects: Sequence[ObjectInfo]
    ) -> Iterator[tuple[ObjectInfo, bool]]:
        """Results in order of completion; no more futures at a time than keep the threads busy."""
        running: set[Future[tuple[ObjectInfo, bool]]] = set()
        with ThreadPoolExecutor(self._threads, thread_name_prefix="transfer") as pool:
            try:
                for found in objects:
                    running.add(pool.submit(work, found))
                    if len(running) >= 2 * self._threads:
                        ended, running = wait(running, return_when=FIRST_COMPLETED)
                        yield from (future.result() for future in ended)
                while running:
                    ended, running = wait(running, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in ended)
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _by_server(self, found: ObjectInfo, key: str) -> ObjectInfo | None:
        server = self._server
        if server is None:
            return None
        source, target = server
        try:
            return target.copy_from(source, found.key, key, found=found)
        except AccessDenied:
            # Each end has credentials of its own, and the target's need not read the source. If the target may not be
            # written at all, the other way says so.
            self._server = None
            return None

    def _by_file(self, found: ObjectInfo, key: str) -> ObjectInfo | None:
        path = self._source.local_path(found.key)
        if path is None:
            return None
        try:
            made = self._target.put_file(key, path)
        except (FileNotFoundError, StorageError):
            self._check_unchanged(found)
            raise
        self._check_unchanged(found)
        return made

    def _by_pieces(self, found: ObjectInfo, key: str) -> ObjectInfo:
        if found.size <= PIECE_BYTES:
            data, current = self._source.get_with_info(found.key)
            if current.etag != found.etag:
                raise self._changed(found)
            return self._target.put(key, data)
        return self._target.put_chunks(key, self._pieces(found))

    def _pieces(self, found: ObjectInfo) -> Iterator[bytes]:
        length = max(PIECE_BYTES, math.ceil(found.size / MAX_PIECES))
        for start in range(0, found.size, length):
            piece = self._source.get_range(found.key, start, length)
            if len(piece) != min(length, found.size - start):
                raise self._changed(found)
            yield piece
        self._check_unchanged(found)  # before the target has the object

    def _noted(self, found: ObjectInfo, made: ObjectInfo) -> ObjectInfo:
        self._made[made.key] = (found.etag, made.etag)
        return made

    def _check_unchanged(self, found: ObjectInfo) -> None:
        if self._source.head(found.key).etag != found.etag:
            raise self._changed(found)

    def _changed(self, found: ObjectInfo) -> PreconditionFailed:
        return PreconditionFailed(
            f"{found.key!r} in {self._source.uri} changed while it was copied to {self._target.uri}. The source is "
            "untouched; list it again and copy it anew."
        )


def _on_one_server(source: ObjectStore, target: ObjectStore) -> "tuple[S3Store, S3Store] | None":
    if source.local_path("x") is not None or target.local_path("x") is not None:
        return None  # without importing boto3
    from dagster_versioned.storage.s3 import S3Store

    if isinstance(source, S3Store) and isinstance(target, S3Store) and target.shares_server(source):
        return source, target
    return None
