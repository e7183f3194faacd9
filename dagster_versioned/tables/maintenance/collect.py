"""Collecting: expire, vacuum and purge, each an announced deletion that no writer can lose a part to.

A collection is an *intent* commit that names the paths, the deletion, and a *done* commit. A writer that needs a path
of an open intent waits for its end and puts the part again; a writer that commits first makes the intent lose the
race, and the intent is computed anew (FORMAT.md, Collecting).

Where there are more paths than one intent may name, the first intent takes the claim of all the versions and names the
first paths, and further intents name the rest, each time without what is needed again by then. A collector that dies
between two intents leaves objects that nothing claims: `Collector.vacuum` takes them once they are old, and
`Collector.purge` of the same versions at once.
"""

import logging
import uuid
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal, NamedTuple, cast

from dagster_versioned.delta.actions import Add
from dagster_versioned.delta.log.commits import Commit, read_commits
from dagster_versioned.delta.paths import confined_key
from dagster_versioned.engines.part_cache import forget_parts, forget_unhashed
from dagster_versioned.engines.part_order import PARTITION_TAG
from dagster_versioned.errors import CommitConflict, IntegrityError, InvalidInput
from dagster_versioned.storage.object_store import ObjectInfo, ObjectStore, UnfinishedWrite
from dagster_versioned.tables.documents.parked_draft import read_drafts
from dagster_versioned.tables.erased_parts import NOTHING_ERASED, ErasedParts, Identity
from dagster_versioned.tables.findings import unneeded_findings
from dagster_versioned.tables.history import Collection, History, Version, is_data_key
from dagster_versioned.tables.maintenance.change_files import ChangeFiles
from dagster_versioned.tables.maintenance.lease import Lease, owner, wait_until_free
from dagster_versioned.tables.maintenance.protection import Protectors, kept_as, with_own_parents
from dagster_versioned.tables.parts import named_sha, objects_of, part_sha, parts_of, sha256_of, vector_object
from dagster_versioned.tables.state import StateCache, TableState
from dagster_versioned.tables.write.commit import CommitDraft, PlanCommit

logger = logging.getLogger("dagster_versioned")

MIN_AGE = timedelta(days=7)
PATHS_PER_INTENT = 1000
PATHS_PER_DELETE = 50
FORGOTTEN_PER_COMMIT = 10_000
"""Some hundred bytes each, in one line of the log."""
_STAGING = "_staging/"
_AROUND_VECTOR = 8
"""Bytes of its size and its checksum. Protocol: *Deletion Vector File Storage Format*."""

Kind = Literal["expire", "vacuum", "purge", "erase"]
"""Why bytes are deleted: retention, garbage, or legal erasure (of versions, of rows)."""


@dataclass(frozen=True)
class CollectionReport:
    """What a collection deleted, or (dry run) would delete.

    ``versions`` lost their claim; ``keys`` are the deleted objects below the table's folder, ``size_bytes`` their
    sum; ``kept`` says for each version that stays although it is old, why. ``unfinished`` are the keys (or, on a local
    disk, the names) of writes that did not end, whose bytes were discarded. ``unreadable`` are documents of
    environments, tags and drafts that cannot be read: no more was kept for them than what they can be read to name.
    """

    kind: Kind
    dry_run: bool
    versions: tuple[Version, ...]
    keys: tuple[str, ...]
    size_bytes: int
    kept: Mapping[str, str]
    unfinished: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()


@dataclass(frozen=True)
class Marked:
    """What goes in a state: versions that lose their claim, and paths, by size; ``kept`` says which others stay."""

    versions: tuple[Version, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    kept: Mapping[str, str] = field(default_factory=dict[str, str])


Mark = Callable[[TableState], Marked]


@dataclass(frozen=True)
class Loose:
    """What no version can claim, so that no intent has to name it.

    ``files`` are of the table's own folder, ``beside`` of the project's data folder; copies of ``erased`` paths, by
    size, are forgotten.
    """

    files: Sequence[ObjectInfo] = ()
    beside: Sequence[ObjectInfo] = ()
    unfinished: Sequence[UnfinishedWrite] = ()
    erased: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True)
class CollectionPlan:
    """A collection that nobody has announced; nothing was changed for it.

    It is marked anew in each state that it may be committed to. ``loose`` is what goes after it, ``drafts`` are
    documents that go before.
    """

    collector: "Collector"
    kind: Kind
    mark: Mark
    by: str | None = None
    why: str | None = None
    loose: Callable[[], Loose] = Loose
    drafts: Sequence[ObjectInfo] = ()

    def preview(self) -> CollectionReport:
        """What would be deleted now."""
        return self.report(self.mark(self.collector.state()), self.loose(), dry_run=True)

    def apply(self) -> CollectionReport:
        """Delete it."""
        return self.collector.apply(self)

    def report(self, marked: Marked, loose: Loose, *, dry_run: bool) -> CollectionReport:
        """What goes, in words of users."""
        beside = [*self.drafts, *loose.beside]
        return CollectionReport(
            self.kind,
            dry_run,
            marked.versions,
            (*sorted(marked.sizes), *(info.key for info in loose.files), *(f"../{info.key}" for info in beside)),
            sum(marked.sizes.values())
            + sum(info.size for info in (*loose.files, *beside))
            + sum(write.size or 0 for write in loose.unfinished),
            marked.kept,
            tuple(sorted(write.key or write.id for write in loose.unfinished)),
            tuple(sorted(self.collector.protectors.unreadable)),
        )


@dataclass(slots=True)
class _Life:
    """From which version to which (not included, ``None``: it goes on) a part is in the table, with which vector."""

    identity: Identity
    first: int
    partition: str | None
    vector: str | None
    end: int | None = None


class Claims:
    """Which parts, and files of deletion vectors, each version needs: from the lifetimes that the log's adds and
    removes give every path."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._lives: dict[str, list[_Life]] = defaultdict(list)
        self.changes = ChangeFiles()
        self.sizes: dict[str, int] = {}
        self.shas: dict[str, str] = {}
        self.log_version = -1
        self._erased = NOTHING_ERASED

    def erase(self, erased: ErasedParts) -> None:
        """Take into account what stands for erased parts, for all versions that had them."""
        self._erased = erased
        for add in erased.stood:
            self._note_sizes(add)

    def erased_objects(self) -> set[str]:
        """The paths that versions would need if nothing had been erased."""
        lives = [(path, life) for path, lives in self._lives.items() for life in lives]
        gone = [(path, life.vector) for path, life in lives if life.identity in self._erased.substitutes]
        stood = [add for add in self._erased.stood if add.identity in self._erased.substitutes]
        gone += [(add.key, vector_object(self._store, add)) for add in stood]
        return {key for pair in gone for key in pair if key is not None}

    def substitutes(self) -> set[str]:
        """The paths of what stands for the erased parts of any version."""
        stands = (self._erased.objects(self._store, identity) for identity in self._erased.substitutes)
        return {key for keys in stands for key in keys or ()}

    def advance(self, commits: Iterable[Commit]) -> None:
        """Take later commits into account, each once, in their order."""
        for commit in commits:
            self.log_version = commit.version
            self.changes.advance(commit)
            self.sizes.update((confined_key(cdc.path), cdc.size) for cdc in commit.cdcs)
            for remove in commit.removes:
                self._end(remove.key, commit.version)
            for add in commit.adds:
                self._end(add.key, commit.version)
                vector = self._note_sizes(add)
                self._lives[add.key].append(
                    _Life(add.identity, commit.version, (add.tags or {}).get(PARTITION_TAG), vector)
                )
                if named_sha(add.key) is None and (sha := part_sha(add)) is not None:
                    self.shas[add.key] = sha  # of what was adopted

    def of(self, versions: Iterable[Version]) -> set[str]:
        """The paths that at least one of the versions needs."""
        whole: list[int] = []
        by_partition: dict[str, list[int]] = defaultdict(list)
        for version in versions:
            (whole if version.partition is None else by_partition[version.partition]).append(version.log_version)
        whole.sort()
        for numbers in by_partition.values():
            numbers.sort()

        def is_needed(life: _Life) -> bool:
            tagged = by_partition.get(life.partition, []) if life.partition is not None else []
            return _any_within(whole, life.first, life.end) or _any_within(tagged, life.first, life.end)

        needed = ((path, life) for path, lives in self._lives.items() for life in lives if is_needed(life))
        return {key for path, life in needed for key in self._objects(path, life)}

    def among(self, keys: Set[str]) -> "Claims":
        """The same, for these paths and files of vectors alone; cheap to ask where they are few."""
        few = Claims(self._store)
        for path, lives in self._lives.items():
            if chosen := [life for life in lives if not keys.isdisjoint(self._objects(path, life))]:
                few._lives[path] = chosen
        few._erased = self._erased
        return few

    def _objects(self, path: str, life: _Life) -> Iterable[str]:
        """What is stored of a part, or of what stands for it."""
        stands = self._erased.objects(self._store, life.identity) if self._erased else None
        return stands if stands is not None else (key for key in (path, life.vector) if key is not None)

    def _note_sizes(self, add: Add) -> str | None:
        """Note the sizes of a part and its vector; returns the path of the latter."""
        vector = vector_object(self._store, add)
        self.sizes[add.key] = add.size
        if vector is not None and add.deletion_vector is not None:
            end = (add.deletion_vector.offset or 1) + add.deletion_vector.size_in_bytes + _AROUND_VECTOR
            self.sizes[vector] = max(end, self.sizes.get(vector, 0))
        return vector

    def _end(self, path: str, version: int) -> None:
        if (lives := self._lives.get(path)) and lives[-1].end is None:
            lives[-1].end = version


class _Round(NamedTuple):
    """What one intent marked and named, and what of it was deleted; ``None`` where it was cancelled."""

    marked: Marked
    named: frozenset[str] = frozenset()
    deleted: frozenset[str] | None = frozenset()


class Collector:
    """Runs collections on one table.

    ``commit`` commits a draft; ``protectors`` know what lies outside of the table and keeps its versions.
    """

    def __init__(
        self,
        store: ObjectStore,
        cache: StateCache,
        commit: Callable[[PlanCommit], TableState | None],
        protectors: Protectors,
    ) -> None:
        self.protectors = protectors
        self._store = store
        self._cache = cache
        self._commit = commit
        self._claimed = Claims(store)

    def state(self) -> TableState:
        """The table as it is now."""
        return self._cache.existing_state()

    def plan_expiry(
        self, keep_last: int | None, older_than: datetime | None, by: str | None, why: str | None
    ) -> CollectionPlan:
        """Drop the claim of old versions on their parts, and delete the parts that nothing else needs."""
        if keep_last is None and older_than is None:
            raise InvalidInput(
                "expire() needs a retention: keep_last=…, older_than=…, or both. Nothing was deleted. "
                "Try dry_run=True first."
            )
        if older_than is not None and older_than.utcoffset() is None:
            raise InvalidInput(
                f"older_than={older_than} has no time zone, so it is not one moment. Nothing was deleted. "
                "Give it one: datetime(…, tzinfo=UTC)."
            )
        if keep_last is not None and keep_last < 1:
            raise InvalidInput(
                f"keep_last must be 1 or more, not {keep_last}: the head is always kept. Nothing was deleted."
            )

        def mark(state: TableState) -> Marked:
            candidates = _old(state.history, keep_last, older_than)
            protected = with_own_parents(state.history, candidates, self.protectors.all(state.history))
            versions = tuple(v for v in candidates if kept_as(v) not in protected)
            kept = {v.short: protected[kept_as(v)].text for v in candidates if kept_as(v) in protected}
            return Marked(versions, self._only_claimed_by(state, versions), kept)

        return CollectionPlan(self, "expire", mark, by, why)

    def plan_purge(
        self,
        versions: Sequence[Version],
        by: str | None,
        why: str,
        *,
        former: Callable[[], Sequence[ObjectInfo]],
    ) -> CollectionPlan:
        """Delete the bytes of these versions, wherever they are in the history, now, and record the gap.

        Raises `InvalidInput` where a version that stays needs the same bytes, an environment has a copy of them, or one
        is pinned or a head. Versions that are gone already lose what an earlier
        collection of them left behind. Copies of the bytes in staging folders go too, and unfinished writes that may
        hold them (`_may_hold`): nobody can look into those.
        """
        wanted = {(version.log_version, version.partition) for version in versions}
        shas = {version.metadata_sha for version in versions if version.raw is not None}
        wanted |= {(v.log_version, v.partition) for v in self.state().history.versions if v.metadata_sha in shas}
        if (copy := next(self.protectors.copies(self._erased(wanted).keys()), None)) is not None:
            name = copy.split("/")[2]
            raise InvalidInput(
                f"The environment {name!r} has a copy of the bytes that would be purged: {copy}. Nothing was deleted. "
                f"Drop that environment first: `dagster-versioned env drop {name} --apply`."
            )

        def mark(state: TableState) -> Marked:
            chosen = [v for v in state.history.versions if (v.log_version, v.partition) in wanted]
            return self._purged(state, chosen)

        def loose() -> Loose:
            erased = self._erased(wanted)
            unfinished = [write for write in self._store.unfinished() if _may_hold(write, erased)]
            return Loose(self._copies(erased), former(), unfinished, erased)

        return CollectionPlan(self, "purge", mark, by, why, loose)

    def needed(self) -> Set[str]:
        """The paths of all files that the current snapshot, a kept version or a draft needs now."""
        return self._needed(self.state())

    def change_files(self) -> Set[str]:
        """The files of changes of kept versions, which tell rows of the version before, too."""
        state = self.state()
        return self._claims(state).changes.needed(state.history.versions).keys()

    def discard(self, keys: Set[str], by: str | None, why: str | None) -> None:
        """Delete files that were put for a commit which was not made, but for those that are needed."""

        def mark(state: TableState) -> Marked:
            there = (info for info in self._data_objects() if info.key in keys)
            needed = self._needed(state)
            return Marked(sizes={info.key: info.size for info in there if info.key not in needed})

        CollectionPlan(self, "erase", mark, by, why).apply()

    def plan_erasure(
        self, by: str | None, why: str | None, former: Callable[[], Sequence[ObjectInfo]]
    ) -> CollectionPlan:
        """Delete the parts that the table's log says were erased, with copies of them, as a purge does.

        Raises `IntegrityError` where what stands for one is not there: it stays then.
        """

        def erased(state: TableState) -> dict[str, int]:
            claims = self._claims(state)
            return {path: claims.sizes[path] for path in claims.erased_objects() - self._needed(state, by_forks=False)}

        def mark(state: TableState) -> Marked:
            going = erased(state)
            there = {info.key for info in self._data_objects()} if going else set[str]()
            if going and (
                lost := sorted(self._claims(state).substitutes() & self._needed(state, by_forks=False) - there)
            ):
                raise IntegrityError(
                    f"{lost[0]}, which stands for a part with erased rows, is missing from {self._store.uri}. Nothing "
                    "was deleted. Run verify on the table, and restore the file from a copy."
                )
            return Marked(sizes={path: size for path, size in going.items() if path in there})

        def loose() -> Loose:
            going = erased(self.state())
            unfinished = [write for write in self._store.unfinished() if _may_hold(write, going)]
            return Loose(self._copies(going), former(), unfinished, going)

        return CollectionPlan(self, "erase", mark, by, why, loose)

    def plan_vacuum(
        self,
        before: datetime,
        by: str | None,
        *,
        drafts: Sequence[ObjectInfo],
        former: Callable[[], Sequence[ObjectInfo]],
    ) -> CollectionPlan:
        """Delete objects that no version needs and that are older than a moment, and staging of dead writes.

        Unfinished uploads to a bucket go at the same age; a local disk is tidied by every process that writes to it.
        """

        def mark(state: TableState) -> Marked:
            found = (info for info in self._data_objects() if info.modified < before)
            needed = self._needed(state)
            return Marked(sizes={info.key: info.size for info in found if info.key not in needed})

        def loose() -> Loose:
            kept = [version.metadata_sha for version in self.state().history.versions if version.gone is None]
            files = [*self._store.list(_STAGING), *unneeded_findings(self._store, kept)]
            uploads = [write for write in self._store.unfinished() if write.key is not None and write.begun < before]
            return Loose([info for info in files if info.modified < before], former(), uploads)

        return CollectionPlan(self, "vacuum", mark, by, loose=loose, drafts=drafts)

    def refuse_protected(self, versions: Iterable[Version]) -> None:
        """Raise `InvalidInput` where one of these is pinned, tagged, or what an environment began with."""
        kept = self.protectors.kept(self.state().history)
        for version in versions:
            if (reason := kept.get(kept_as(version))) is not None:
                first = "Unpin it" if reason.kind == "pin" else f"Drop that {reason.kind}"
                raise InvalidInput(f"Version {version.short} is {reason.text}. Nothing was deleted. {first} first.")

    def protected(self) -> dict[str, str]:
        """The keys that pinned and tagged versions need, and those that an environment began with, each with why."""
        state = self.state()
        kept = self.protectors.kept(state.history)
        found: dict[str, str] = {}
        for version in state.history.versions:
            if (reason := kept.get(kept_as(version))) is not None and version.gone is None:
                text = f"version {version.short} is {reason.text}"
                found.update(dict.fromkeys(self._claims(state).of([version]) - found.keys(), text))
        return found

    def settle(self, collection: Collection) -> None:
        """Wait for an open collection to end, or end it where its owner is gone and collect its paths anew.

        Only who committed an intent ever deletes its paths: of several who take over, the others may not be deleting
        still while a writer, who saw the first one end, puts a path again.
        """

        def is_open() -> bool:
            return any(other.id == collection.id for other in self.state().history.open_collections)

        if wait_until_free(collection.id, collection.owner, is_open):
            # What has lost a byte cannot have its claim back, whatever was committed since.
            cancelled = self._is_cancelled(collection) and self._is_untouched(collection)
            if self._finish(collection, cancelled=cancelled) and not cancelled:
                plan = CollectionPlan(
                    self, cast("Kind", collection.kind), lambda _: Marked(), collection.by, collection.why
                )
                self._delete_all(plan, dict.fromkeys(collection.paths, 0))

    def settle_all(self) -> None:
        """`settle` every open collection."""
        for collection in self.state().history.open_collections:
            self.settle(collection)

    def apply(self, plan: CollectionPlan) -> CollectionReport:
        """Delete what is marked, by intents, and then what no version can claim."""
        data = self.protectors.project.data
        for draft in read_drafts(data, str(self.protectors.table))[0] if plan.drafts else ():
            if draft.is_living and draft.is_old:
                logger.warning("The draft %s of %s was not published in time and is given up.", draft.id[:8], draft)
        data.delete([info.key for info in plan.drafts])
        self.settle_all()
        marked = self._run(plan)
        self._forget_others(plan.kind)
        loose = plan.loose()
        if loose.erased:  # also of what was deleted elsewhere before
            self._forget_cached(loose.erased)
            self.protectors.forget(loose.erased.keys())
        self._store.delete([info.key for info in loose.files])
        self._store.abort(loose.unfinished)
        data.delete([info.key for info in loose.beside])
        return plan.report(marked, loose, dry_run=False)

    def _run(self, plan: CollectionPlan) -> Marked:
        """Collect what is marked, in intents of bounded size; returns what was collected."""
        while (first := self._round(plan)).deleted is None:
            pass  # it is marked anew, now that it is known what for
        rest = {path: size for path, size in first.marked.sizes.items() if path not in first.deleted}
        done = {path: size for path, size in first.marked.sizes.items() if path not in rest}
        return replace(first.marked, sizes={**done, **self._delete_all(plan, rest)})

    def _delete_all(self, plan: CollectionPlan, sizes: Mapping[str, int]) -> dict[str, int]:
        """Collect paths that no version claims any more, but for those that are needed again; returns the deleted."""
        waiting = dict(sizes)
        done: dict[str, int] = {}

        def mark(state: TableState) -> Marked:
            needed = self._needed(state, by_forks=plan.kind != "erase")
            return Marked(sizes={path: size for path, size in waiting.items() if path not in needed})

        while waiting and (found := self._round(replace(plan, mark=mark))).named:
            done.update((path, waiting.pop(path)) for path in found.deleted or ())
        return done

    def _round(self, plan: CollectionPlan) -> _Round:
        """One intent, of at most `PATHS_PER_INTENT` paths, with its deletion.

        The intent takes the claim of all the versions at once, because a version must have lost it before its first
        byte goes. The lease is taken with each attempt to commit it, once what is marked, which may take long, is
        known. The deletion ends with the lease, and so does the collection: what is left then is announced anew, by an
        intent with a lease of its own.
        """
        marked = Marked()
        collection: Collection | None = None

        def announce(state: TableState | None, _: int) -> CommitDraft | None:
            nonlocal marked, collection
            assert state is not None  # a collector is made from a state
            marked, collection = plan.mark(state), None
            paths = frozenset(sorted(marked.sizes)[:PATHS_PER_INTENT])
            if not paths and not marked.versions:
                return None
            lease.begin()
            collection = Collection(
                id=lease.collection_id,
                kind=plan.kind,
                log_version=state.log_version + 1,
                done=False,
                paths=paths,
                versions=tuple((v.log_version, v.partition) for v in marked.versions),
                owner=owner(),
                by=plan.by,
                why=plan.why,
            )
            return CommitDraft(plan.kind.upper(), [], {"collect": collection.to_json()}, announces=False)

        with Lease(str(uuid.uuid4())) as lease:
            if self._commit(announce) is None or collection is None:
                return _Round(marked)
            return _Round(marked, collection.paths, self._delete_and_finish(collection, lease))

    def _delete_and_finish(self, collection: Collection, lease: Lease) -> frozenset[str] | None:
        """Delete an intent's paths and commit that it is done; returns the deleted paths, ``None`` if it was cancelled.

        It is cancelled where a version was pinned, or (expire) named as a parent, between the plan and the intent.
        """
        deleted: frozenset[str] | None = None
        if not self._is_cancelled(collection):
            # Nothing that is needed was named, but for what a foreign commit added since.
            going = sorted(collection.paths - self._needed(self.state(), by_forks=collection.kind != "erase"))
            deleted = self._delete(going, lease)
            if going and not deleted and not collection.versions:
                raise CommitConflict(
                    f"The collection of {len(going)} paths stalled after its intent, so it was stopped before it "
                    "deleted any of them. The next collection, or write, that needs them finishes it."
                )
        self._finish(collection, cancelled=deleted is None)
        return deleted

    def _is_cancelled(self, collection: Collection) -> bool:
        if not collection.versions:
            return False
        history = self.state().history
        protected = self.protectors.all(history) if collection.kind == "expire" else self.protectors.kept(history)
        pairs = set(collection.versions)
        return any((v.log_version, v.partition) in pairs and kept_as(v) in protected for v in history.versions)

    def _is_untouched(self, collection: Collection) -> bool:
        return collection.paths <= {info.key for info in self._data_objects()}

    def _finish(self, collection: Collection, *, cancelled: bool) -> bool:
        """Commit that a collection ended; ``False`` where somebody else did."""
        finished = replace(collection, done=True, cancelled=cancelled, paths=frozenset(), versions=())

        def draft(state: TableState | None, _: int) -> CommitDraft | None:
            if state is None or all(other.id != collection.id for other in state.history.open_collections):
                return None  # somebody finished it meanwhile
            forgets = () if cancelled else self._unneeded(state, collection.paths)
            info = {"collect": finished.to_json()}
            return CommitDraft(collection.kind.upper(), [], info, announces=False, forgets=forgets)

        return self._commit(draft) is not None

    def _forget_others(self, kind: Kind) -> None:
        """End the tombstones that earlier collections left, or that other programs' checkpoints brought back."""

        def draft(state: TableState | None, _: int) -> CommitDraft | None:
            unneeded = self._unneeded(state) if state is not None else ()
            return CommitDraft(kind.upper(), [], announces=False, forgets=unneeded) if unneeded else None

        # Looked at first: the log may be closed for a move by now, and a collection that ended has not failed by that.
        while self._unneeded(self.state()) and self._commit(draft) is not None:
            pass

    def _unneeded(self, state: TableState, among: Set[str] | None = None) -> Sequence[str]:
        """Removed files that no version needs, `FORGOTTEN_PER_COMMIT` at most.

        Their tombstones end: all that one does is to keep other programs from deleting the file. Unless ``among`` says
        which, there are none while a collection is open: it may be cancelled, and versions have their claim again.
        """
        if among is None and state.history.open_collections:
            return ()
        removed = set(cast("list[str]", state.snapshot.tombstones["key"].to_pylist()))
        removed = removed if among is None else removed & among
        return sorted(removed - self._needed(state))[:FORGOTTEN_PER_COMMIT] if removed else ()

    def _delete(self, paths: Sequence[str], lease: Lease) -> frozenset[str]:
        """Delete paths for as long as the lease holds; returns those that were."""
        for first in range(0, len(paths), PATHS_PER_DELETE):
            if not lease.is_valid:
                return frozenset(paths[:first])
            some = paths[first : first + PATHS_PER_DELETE]
            self._forget_cached(some)
            self._store.delete(some)
        return frozenset(paths)

    def _forget_cached(self, paths: Iterable[str]) -> None:
        """Delete what this machine has cached of paths, which come before their objects: those have the ETags."""
        shas = self._claims(self.state()).shas
        forget_parts(sha for path in paths if (sha := shas.get(path) or named_sha(path)) is not None)
        remote = (path for path in paths if named_sha(path) is None and self._store.local_path(path) is None)
        forget_unhashed(self._store, remote)

    def _purged(self, state: TableState, chosen: Sequence[Version]) -> Marked:
        staying = [version for version in chosen if version.gone is None]
        self.refuse_protected(staying)
        _refuse_heads(state, staying)
        claims, history, leaving = self._claims(state), state.history.versions, set(staying)
        others = [version for version in history if version.gone is None and version not in leaving]
        wanted, kept = claims.of(staying), claims.of(others)
        if wanted & kept:
            raise _shared(claims.among(wanted), others, wanted)
        # They tell how rows were, so they go, whichever version they belong to.
        wanted = (wanted - kept) | claims.changes.telling_of(staying, history).keys()
        gone = [version for version in chosen if version.gone is not None]
        if left := (claims.of(gone) - kept) | claims.changes.telling_of(gone, history).keys():
            wanted |= left & {info.key for info in self._data_objects()}
        return Marked(tuple(staying), {path: claims.sizes[path] for path in wanted - self._current(state)})

    def _erased(self, purged: Set[tuple[int, str | None]]) -> dict[str, int]:
        """The paths of purged versions that nothing needs, with their sizes; whether their objects are there or not."""
        state = self.state()
        chosen = {v for v in state.history.versions if (v.log_version, v.partition) in purged}
        claims = self._claims(state)
        had = claims.of(chosen) | claims.changes.telling_of(chosen, state.history.versions).keys()
        return {path: claims.sizes[path] for path in had - self._needed(state, leaving=chosen)}

    def _copies(self, erased: Mapping[str, int]) -> list[ObjectInfo]:
        """The staged objects with the bytes of any of these paths, whose names are the SHA-256 of their bytes."""
        shas = {sha for path in erased if (sha := named_sha(path)) is not None}
        sizes = set(erased.values())
        return [
            info
            for info in self._store.list(_STAGING)
            if info.size in sizes and sha256_of(self._store, info.key, info.size) in shas
        ]

    def _only_claimed_by(self, state: TableState, versions: Sequence[Version]) -> dict[str, int]:
        """Paths that these versions need and no other, with their sizes."""
        if not versions:
            return {}
        claims = self._claims(state)
        needed = self._needed(state, leaving=set(versions))
        had = claims.of(versions) | claims.changes.of(versions).keys()
        return {path: claims.sizes[path] for path in had - needed}

    def _needed(
        self, state: TableState, leaving: Set[Version] = frozenset(), *, by_forks: bool = True
    ) -> frozenset[str]:
        """The paths of the current snapshot, and of every version that has not lost its claim and is not leaving; with
        ``by_forks`` what was erased, too, as long as an environment's log does not say so."""
        kept = (v for v in state.history.versions if v.gone is None and v not in leaving)
        claims = self._claims(state)
        changes = claims.changes.needed(state.history.versions, leaving)
        erased = claims.erased_objects() if by_forks and self.protectors.is_followed_late(state) else set[str]()
        needed = claims.of(kept) | self._current(state) | changes.keys() | self.protectors.parked(self._store)
        return frozenset(needed | erased)

    def _current(self, state: TableState) -> set[str]:
        return objects_of(self._store, parts_of(state.snapshot))

    def _claims(self, state: TableState) -> Claims:
        if self._claimed.log_version < state.log_version:
            self._claimed.advance(read_commits(self._store, self._claimed.log_version + 1, state.log_version))
            self._claimed.erase(self.protectors.project.erasures.of(state.snapshot))
        return self._claimed

    def _data_objects(self) -> Iterator[ObjectInfo]:
        return (info for info in self._store.list() if is_data_key(info.key))


def _refuse_heads(state: TableState, staying: Iterable[Version]) -> None:
    heads = set(state.history.heads.values())
    for version in staying:
        if version in heads:
            raise InvalidInput(
                f"Version {version.short} is the head, so purging it would leave a table that cannot be read. "
                "Nothing was deleted. Write a version without the data first."
            )


def _shared(claims: Claims, others: Sequence[Version], wanted: Set[str]) -> InvalidInput:
    sharing = [version for version in others if claims.of([version]) & wanted]
    return InvalidInput(
        f"The bytes of the named versions are also those of {', '.join(version.short for version in sharing[:10])}"
        f"{' and more' if len(sharing) > 10 else ''}. Nothing was deleted. Purge those versions as well."
    )


def _may_hold(write: UnfinishedWrite, erased: Mapping[str, int]) -> bool:
    """Whether an unfinished write may hold bytes of these paths.

    An upload may if it is to one of them or to a staging folder; a file of a local disk, which may be another table's,
    if it has the size of one of them.
    """
    if write.key is not None:
        return bool(erased) and (write.key in erased or write.key.startswith(_STAGING))
    return write.size in erased.values()


def _old(history: History, keep_last: int | None, older_than: datetime | None) -> list[Version]:
    """Versions beyond the retention, oldest first; never a head, never one that is gone already.

    A drop counts as a version, and the one that it took away is as old as the drop.
    """
    seen: dict[str | None, int] = defaultdict(int)
    dropped: dict[str | None, datetime] = {}
    old: list[Version] = []
    heads = set(history.heads.values())
    newest_own = max((version.log_version for version in heads), default=-1)
    for version in reversed(history.versions):
        if version.is_foreign and version.log_version > newest_own:
            continue  # nobody adopted it yet, and it is what the table holds now
        seen[version.partition] += 1
        if version.is_drop:
            dropped[version.partition] = version.timestamp
            continue
        since = dropped.pop(version.partition, version.timestamp)
        beyond_count = keep_last is None or seen[version.partition] > keep_last
        beyond_age = older_than is None or since < older_than
        if version.gone is None and version not in heads and beyond_count and beyond_age:
            old.append(version)
    return old[::-1]


def _any_within(numbers: Sequence[int], first: int, end: int | None) -> bool:
    """Whether a sorted list holds a number in ``[first, end)``."""
    position = bisect_left(numbers, first)
    return position < len(numbers) and (end is None or numbers[position] < end)
