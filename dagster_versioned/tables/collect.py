"""Collecting: expire, vacuum and purge, each an announced deletion that no writer can lose a part to.

A collection is an *intent* commit that names the paths, the deletion, and a *done* commit. A writer that needs a path
of an open intent waits for its end and puts the part again; a writer that commits first makes the intent lose the
race, and the intent is computed anew (FORMAT.md, Collecting).
"""

import uuid
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Literal

from dagster_versioned.delta.log import Commit, read_commits
from dagster_versioned.errors import CommitConflict, InvalidInput
from dagster_versioned.storage.object_store import ObjectInfo, ObjectStore
from dagster_versioned.tables.commit import Draft
from dagster_versioned.tables.history import Collection, History, Version
from dagster_versioned.tables.lease import Lease, owner, wait_until_free
from dagster_versioned.tables.parts import PARTITION_TAG, parts_of
from dagster_versioned.tables.state import StateCache, TableState

MIN_AGE = timedelta(days=7)
PATHS_PER_INTENT = 1000
_NOT_DATA = ("_delta_log/", ".metadata/", "blocks/", "refs/", "checkpoints/")
_STAGING = "_staging/"

Kind = Literal["expire", "vacuum", "purge"]
"""Why bytes are deleted: retention, garbage, or legal erasure."""


@dataclass(frozen=True)
class CollectionReport:
    """What a collection deleted, or (dry run) would delete.

    ``versions`` lost their claim; ``keys`` are the deleted objects below the table's folder, ``size_bytes`` their
    sum; ``kept`` says for each version that stays although it is old, why.
    """

    kind: Kind
    dry_run: bool
    versions: tuple[Version, ...]
    keys: tuple[str, ...]
    size_bytes: int
    kept: Mapping[str, str]


@dataclass(frozen=True)
class _Plan:
    versions: tuple[Version, ...]
    sizes: Mapping[str, int]
    kept: Mapping[str, str]


class Claims:
    """Which parts each version needs, from the lifetimes that the log's adds and removes give every path."""

    def __init__(self, commits: Iterable[Commit]) -> None:
        self._lives: dict[str, list[tuple[int, int | None, str | None]]] = defaultdict(list)
        self.sizes: dict[str, int] = {}
        for commit in commits:
            for remove in commit.removes:
                self._end(remove.key, commit.version)
            for add in commit.adds:
                self._end(add.key, commit.version)
                self._lives[add.key].append((commit.version, None, (add.tags or {}).get(PARTITION_TAG)))
                self.sizes[add.key] = add.size

    def of(self, versions: Iterable[Version]) -> set[str]:
        """The paths that at least one of the versions needs."""
        whole: list[int] = []
        by_partition: dict[str, list[int]] = defaultdict(list)
        for version in versions:
            (whole if version.partition is None else by_partition[version.partition]).append(version.log_version)
        whole.sort()
        for numbers in by_partition.values():
            numbers.sort()
        return {
            path
            for path, lives in self._lives.items()
            if any(
                _any_within(whole, first, end)
                or (tag is not None and _any_within(by_partition.get(tag, []), first, end))
                for first, end, tag in lives
            )
        }

    def _end(self, path: str, version: int) -> None:
        if (lives := self._lives.get(path)) and lives[-1][1] is None:
            lives[-1] = (lives[-1][0], version, lives[-1][2])


class _Intent:
    """The draft that announces a collection, of at most `PATHS_PER_INTENT` paths: a deletion must fit its lease."""

    def __init__(self, kind: Kind, plan: Callable[[TableState], _Plan], by: str | None, why: str | None) -> None:
        self.id = str(uuid.uuid4())
        self.collection: Collection | None = None
        self.planned = _Plan((), {}, {})
        self._kind = kind
        self._plan = plan
        self._by = by
        self._why = why

    def draft(self, state: TableState | None, _: int) -> Draft | None:
        """The next log entry, or ``None`` where nothing is to be collected."""
        assert state is not None  # a collector is made from a state
        self.planned = self._plan(state)
        paths = frozenset(sorted(self.planned.sizes)[:PATHS_PER_INTENT])
        if not paths and not self.planned.versions:
            return None
        self.collection = Collection(
            id=self.id,
            kind=self._kind,
            log_version=state.log_version + 1,
            done=False,
            paths=paths,
            versions=tuple((v.log_version, v.partition) for v in self.planned.versions),
            owner=owner(),
            by=self._by,
            why=self._why,
        )
        return Draft(self._kind.upper(), [], {"collect": self.collection.to_json()}, announces=False)


class Collector:
    """Runs collections on one table.

    ``commit`` commits a draft; ``protected`` maps a ``metadata_sha`` to the reason why it must be kept (a pin, a
    retained child), read anew whenever it is called.
    """

    def __init__(
        self,
        store: ObjectStore,
        cache: StateCache,
        commit: Callable[[Callable[[TableState | None, int], Draft | None]], TableState | None],
        protected: Callable[[], Mapping[str, str]],
    ) -> None:
        self._store = store
        self._cache = cache
        self._commit = commit
        self._protected = protected

    def expire(
        self,
        *,
        keep_last: int | None,
        older_than: datetime | None,
        dry_run: bool,
        by: str | None,
        why: str | None,
    ) -> CollectionReport:
        """Drop the claim of old versions on their parts, and delete the parts that nothing else needs."""
        if keep_last is None and older_than is None:
            raise InvalidInput(
                "expire() needs a retention: keep_last=…, older_than=…, or both. Nothing was deleted. "
                "Try dry_run=True first."
            )
        if keep_last is not None and keep_last < 1:
            raise InvalidInput(f"keep_last must be 1 or more, not {keep_last}: the head is always kept.")

        def plan(state: TableState) -> _Plan:
            return self._expired(state, keep_last, older_than)

        return self._collect("expire", plan, dry_run, by, why)

    def purge(self, versions: Sequence[Version], *, dry_run: bool, by: str | None, why: str) -> CollectionReport:
        """Delete the bytes of these versions now, wherever they are old or young, and record the gap.

        Raises `InvalidInput` where a version that stays needs the same bytes, or one is pinned or a head.
        """
        wanted = {(version.log_version, version.partition) for version in versions}

        def plan(state: TableState) -> _Plan:
            chosen = [v for v in state.history.versions if (v.log_version, v.partition) in wanted and v.gone is None]
            return self._purged(state, chosen)

        return self._collect("purge", plan, dry_run, by, why)

    def vacuum(self, *, min_age: timedelta, dry_run: bool, by: str | None) -> CollectionReport:
        """Delete objects that no version needs and that are older than ``min_age``, and staging of dead writes."""
        before = datetime.now(UTC) - min_age

        def plan(state: TableState) -> _Plan:
            return self._orphans(state, before)

        report = self._collect("vacuum", plan, dry_run, by, None)
        staged = [info for info in self._store.list(_STAGING) if info.modified < before]
        if not dry_run:
            self._store.delete([info.key for info in staged])
        return replace(
            report,
            keys=(*report.keys, *(info.key for info in staged)),
            size_bytes=report.size_bytes + sum(info.size for info in staged),
        )

    def settle(self, collection: Collection) -> None:
        """Wait for an open collection to end, or finish it where its owner is gone."""

        def is_open() -> bool:
            return any(one.id == collection.id for one in self._cache.require().history.open_collections)

        if wait_until_free(collection.id, collection.owner, is_open):
            with Lease(collection.id) as lease:
                self._delete_and_finish(collection, lease)

    def settle_all(self) -> None:
        """`settle` every open collection."""
        for collection in self._cache.require().history.open_collections:
            self.settle(collection)

    def _collect(
        self, kind: Kind, plan: Callable[[TableState], _Plan], dry_run: bool, by: str | None, why: str | None
    ) -> CollectionReport:
        state = self._cache.require()
        planned = plan(state)
        if not dry_run:
            self.settle_all()
            planned = self._run(kind, plan, by, why)
        return CollectionReport(
            kind, dry_run, planned.versions, tuple(sorted(planned.sizes)), sum(planned.sizes.values()), planned.kept
        )

    def _run(self, kind: Kind, plan: Callable[[TableState], _Plan], by: str | None, why: str | None) -> _Plan:
        """Collect what the plan says, in intents of bounded size; returns what was collected."""
        done = _Plan((), {}, {})
        while True:
            announced = _Intent(kind, plan, by, why)
            with Lease(announced.id) as lease:
                if self._commit(announced.draft) is None or announced.collection is None:
                    return replace(done, kept=announced.planned.kept)
                cancelled = self._delete_and_finish(announced.collection, lease)
            if not cancelled:
                sizes = {path: announced.planned.sizes[path] for path in announced.collection.paths}
                versions = (*done.versions, *announced.planned.versions)
                done = _Plan(versions, {**done.sizes, **sizes}, announced.planned.kept)

    def _delete_and_finish(self, collection: Collection, lease: Lease) -> bool:
        """Delete an intent's paths and commit that it is done; returns whether it was cancelled instead.

        It is cancelled where a version was pinned, or named as a parent, between the plan and the intent.
        """
        protected: Mapping[str, str] = self._protected() if collection.kind == "expire" else {}
        named = {
            version.metadata_sha
            for version in self._cache.require().history.versions
            if (version.log_version, version.partition) in set(collection.versions)
        }
        cancelled = any(sha in protected for sha in named)
        if not cancelled:
            if not lease.is_valid:
                raise CommitConflict(
                    f"The collection of {len(collection.paths)} paths stalled between its intent and its deletion, "
                    "so it was stopped. Nothing was deleted; the next collection, or write, that needs it finishes it."
                )
            self._store.delete(sorted(collection.paths))
        finished = replace(collection, done=True, cancelled=cancelled, paths=frozenset(), versions=())

        def draft(state: TableState | None, _: int) -> Draft | None:
            if state is None or all(one.id != collection.id for one in state.history.open_collections):
                return None  # somebody finished it meanwhile
            return Draft(collection.kind.upper(), [], {"collect": finished.to_json()}, announces=False)

        self._commit(draft)
        return cancelled

    def _expired(self, state: TableState, keep_last: int | None, older_than: datetime | None) -> _Plan:
        history = state.history
        protected = self._protected()
        candidates = _old(history, keep_last, older_than)
        kept = {v.short: reason for v in candidates if (reason := protected.get(v.metadata_sha or "")) is not None}
        versions = tuple(v for v in candidates if v.short not in kept)
        return _Plan(versions, self._only_claimed_by(state, versions), kept)

    def _purged(self, state: TableState, chosen: Sequence[Version]) -> _Plan:
        heads = set(state.history.heads.values())
        protected = self._protected()
        for version in chosen:
            if version in heads:
                raise InvalidInput(
                    f"Version {version.short} is the head, so purging it would leave a table that cannot be read. "
                    "Nothing was deleted. Write a version without the data first."
                )
            if (reason := protected.get(version.metadata_sha or "")) and reason.startswith("pinned"):
                raise InvalidInput(f"Version {version.short} is {reason}. Nothing was deleted. Unpin it first.")
        claims = Claims(read_commits(self._store, 0, state.log_version))
        wanted = claims.of(chosen)
        others = [v for v in state.history.versions if v.gone is None and v not in chosen]
        sharing = [v for v in others if claims.of([v]) & wanted] if claims.of(others) & wanted else []
        if sharing:
            raise InvalidInput(
                f"The bytes of the named versions are also those of {', '.join(v.short for v in sharing[:10])}"
                f"{' and more' if len(sharing) > 10 else ''}. Nothing was deleted. Purge those versions as well."
            )
        return _Plan(tuple(chosen), {path: claims.sizes[path] for path in wanted}, {})

    def _only_claimed_by(self, state: TableState, versions: Sequence[Version]) -> dict[str, int]:
        """Paths that these versions need and no other, with their sizes."""
        if not versions:
            return {}
        claims = Claims(read_commits(self._store, 0, state.log_version))
        leaving = set(versions)
        retained = [v for v in state.history.versions if v.gone is None and v not in leaving]
        current = {add.key for add in parts_of(state.snapshot)}
        return {path: claims.sizes[path] for path in claims.of(versions) - claims.of(retained) - current}

    def _orphans(self, state: TableState, before: datetime) -> _Plan:
        claims = Claims(read_commits(self._store, 0, state.log_version))
        needed = claims.of(version for version in state.history.versions if version.gone is None)
        needed |= {add.key for add in parts_of(state.snapshot)}
        return _Plan((), {info.key: info.size for info in self._data_objects() if _is_orphan(info, needed, before)}, {})

    def _data_objects(self) -> Iterator[ObjectInfo]:
        return (info for info in self._store.list() if not info.key.startswith((*_NOT_DATA, _STAGING)))


def _is_orphan(info: ObjectInfo, needed: set[str], before: datetime) -> bool:
    return info.key not in needed and info.modified < before


def _old(history: History, keep_last: int | None, older_than: datetime | None) -> list[Version]:
    """Versions beyond the retention, oldest first; never a head, never one that is gone already."""
    seen: dict[str | None, int] = defaultdict(int)
    old: list[Version] = []
    heads = set(history.heads.values())
    newest_own = max((version.log_version for version in heads), default=-1)
    for version in reversed(history.versions):
        if version.is_foreign and version.log_version > newest_own:
            continue  # nobody adopted it yet, and it is what the table holds now
        seen[version.partition] += 1
        beyond_count = keep_last is None or seen[version.partition] > keep_last
        beyond_age = older_than is None or version.timestamp < older_than
        if version.gone is None and version not in heads and beyond_count and beyond_age:
            old.append(version)
    return old[::-1]


def _any_within(numbers: Sequence[int], first: int, end: int | None) -> bool:
    """Whether a sorted list holds a number in ``[first, end)``."""
    position = bisect_left(numbers, first)
    return position < len(numbers) and (end is None or numbers[position] < end)
