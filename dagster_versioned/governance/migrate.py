"""Moving a project's bytes to another place, so that no version, link or script breaks (seed 003; FORMAT.md, "Fence").

The order of things is what makes it safe to die at any moment, and to be taken over by anybody:

1. The registry says that a migration is prepared; then the target gets its mark, then the copies.
2. The fence ends every log at the old place; then the tail is copied until both places are the same.
3. What arrived is verified.
4. The mirror's ref.json is swapped for one that names the new place. That is the commit point: before it the old place
   has authority and the new one is only in the making, after it all that is left can be done again without harm.
5. The registry records it, the target loses its mark, and documents that are derived from logs are brought up to date.

Whoever runs it again begins at the first step and finds what is done done. Copies of documents that change are
conditional, so that a run that was overtaken by another and wakes up after the switch overwrites nothing.
"""

import hashlib
import logging
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal
from uuid import uuid4

from dagster_versioned.errors import (
    AlreadyExists,
    GovernanceError,
    IntegrityError,
    InvalidInput,
    ObjectNotFound,
    RegistryConflict,
    UnsupportedFeature,
    VersionedError,
)
from dagster_versioned.governance.connect import left_at
from dagster_versioned.governance.documents import Event, PendingMigration, ProjectDocuments, Verify
from dagster_versioned.governance.fence import fence_of, is_moved_with, lift_fence, raise_fence
from dagster_versioned.governance.governance_marker import GovernanceMarker, put_marker
from dagster_versioned.governance.mirror import GovernanceStore
from dagster_versioned.governance.place import check_apart, clear, objects, same_place
from dagster_versioned.governance.registry import Registry, now
from dagster_versioned.identity.names import DATA_FOLDER
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import opening
from dagster_versioned.storage.location import Location
from dagster_versioned.storage.object_store import ObjectInfo, ObjectStore
from dagster_versioned.storage.transfer import PIECE_BYTES, THREADS, CopyProgress, Transfer
from dagster_versioned.tables.document import is_dropped
from dagster_versioned.tables.environment.registry import refuse_environments
from dagster_versioned.tables.relocation.migration_mark import (
    MARK_KEY,
    MarkState,
    MigrationMark,
    clear_mark,
    put_mark,
    read_mark,
)

logger = logging.getLogger("dagster_versioned")

Step = Literal["copying", "fencing", "finishing the copy", "verifying", "switching", "recording", "deleting"]
OpenStore = Callable[[Location], ObjectStore]

_PART = re.compile(r".*/[0-9a-f]{64}\.parquet")
_LOG_ENTRY = re.compile(r".*/_delta_log/\d{20}\.json", re.ASCII)
_MD5 = re.compile(r'"[0-9a-f]{32}"')
_PROBE = ".metadata/migration-probe"
_SHORT_PASS = 60.0  # seconds; writers are not stopped before what is left to copy takes less
_PASSES = 10
_ASK_AGAIN = 10.0  # seconds, while copies are made: whoever called it off may give the target to others


@dataclass(frozen=True)
class MigrationProgress:
    """What a migration is doing; ``copied`` counts the objects of the present pass."""

    step: Step
    copied: CopyProgress | None = None


Progress = Callable[[MigrationProgress], None]


@dataclass(frozen=True)
class MigrationReport:
    """What moved, or, with ``dry_run``, would move.

    ``objects`` and ``bytes`` are all that the project has; ``copied_objects`` and ``copied_bytes`` what this run
    copied, less if it took up another one; ``deleted_objects`` what it deleted at the old place.
    """

    id: str | None
    project: str
    source: Location
    target: Location
    dry_run: bool
    tables: int
    objects: int
    bytes: int
    copied_objects: int = 0
    copied_bytes: int = 0
    verified: Verify | None = None
    deleted_objects: int = 0


@dataclass(frozen=True)
class AbortReport:
    """A migration that was called off, and how many objects were deleted at what was to be the new place."""

    id: str
    project: str
    source: Location
    target: Location
    deleted_objects: int


def migrate(
    registry: Registry,
    mirror: GovernanceStore,
    project: str,
    target: Location,
    *,
    actor: str | None = None,
    reason: str | None = None,
    dry_run: bool = False,
    verify: Verify = "structural",
    delete_source: bool = False,
    open_store: OpenStore = opening.open_store,
    progress: Progress | None = None,
    threads: int = THREADS,
) -> MigrationReport:
    """Move a project to ``target``, or go on where a run that died, or is still on its way, had come to.

    ``verify``: ``"structural"`` compares every object's size and, of all but parts, the bytes, and replays the logs;
    ``"content"`` also reads every part at the target and checks its SHA-256. A migration that was begun is verified
    as it was begun, or more. ``delete_source`` deletes everything at the old place but the fence, after the switch;
    it is what *this* caller says that counts. ``actor`` defaults to the user's git identity.

    Raises `InvalidInput` for a target that is not empty, is the source, or lies in it or around it; `AccessDenied`
    for one that may not be written; `RegistryConflict` while the project is being moved elsewhere, and where the
    migration was called off; `GovernanceError`, `RegistryUnavailable`, `IntegrityError`, `StorageError`. Before the
    switch the project stays where it is, whatever is raised; run it again, or `abort` it.
    """
    documents = _agreed(registry, mirror, project, publish=not dry_run)
    pending = _begun(documents, project, target, verify)
    if pending is None:
        check_apart(documents.ref.current, target)
        pending = _pending(documents.ref.current, target, actor or registry.identity(), reason, verify, uuid4().hex)
        pending = pending.model_copy(update={"delete_source": delete_source})
    if delete_source:
        registry.check_nobody_else(project, pending.source)
    both: Verify = "content" if "content" in (pending.verify, verify) else "structural"
    move = _Move(registry, mirror, project, pending, open_store, both, progress or _nobody, threads)
    return move.preview(documents) if dry_run else move.apply(documents, delete_source=delete_source)


def abort(
    registry: Registry, mirror: GovernanceStore, project: str, *, open_store: OpenStore = opening.open_store
) -> AbortReport:
    """Call off a migration that has not switched: the old place takes writes again, the new one is emptied.

    May be repeated until it is done. Raises `RegistryConflict` where it has switched (run `migrate` again to finish
    it), and `GovernanceError` where there is none.
    """
    mirror.publish(registry, [project])  # which fetches; whoever called it off before may have died before this
    documents = registry.documents(project)
    pending = documents.pending
    if pending is None:
        raise _nothing_to_abort(mirror, project, documents, open_store)
    mirror.call_off(project, pending.id)
    move = _Move(registry, mirror, project, pending, open_store, pending.verify, _nobody, THREADS)
    deleted = move.undo()
    registry.abort_migration(project, pending.id)
    mirror.publish(registry, [project])
    return AbortReport(pending.id, project, pending.source, pending.target, deleted)


@dataclass
class _Move:
    """One migration, as one run of it sees it."""

    registry: Registry
    mirror: GovernanceStore
    name: str
    pending: PendingMigration
    open_store: OpenStore
    verify: Verify
    tell: Progress
    threads: int
    copied_objects: int = 0
    copied_bytes: int = 0

    def __post_init__(self) -> None:
        self.source = Project(self.name, self.open_store(self.pending.source), author=self.pending.actor)
        self.target = Project(self.name, self.open_store(self.pending.target), author=self.pending.actor)
        self.transfer = Transfer(self.source.data, self.target.data, threads=self.threads)
        self.asked = time.monotonic()

    def preview(self, documents: ProjectDocuments) -> MigrationReport:
        """What there is to move, after every check that changes nothing."""
        if not self._has_switched(documents):
            self._check_target(documents)
            if documents.pending is None:
                self.registry.rehearsal().prepare_migration(self.name, self.pending)
        found = self._belonging()
        counted = (len(self.source.tables()), len(found), sum(info.size for info in found))
        return MigrationReport(None, self.name, self.pending.source, self.pending.target, True, *counted)

    def apply(self, documents: ProjectDocuments, *, delete_source: bool) -> MigrationReport:
        """All steps that are not done yet."""
        moved: Sequence[ObjectInfo] = ()
        if not self._has_switched(documents):
            self._prepare(documents)
            moved = self._arrive()
        event = self._switch(moved)
        self._record(event)
        deleted = self._delete_source() if delete_source else 0
        return MigrationReport(
            id=event.id,
            project=self.name,
            source=self.pending.source,
            target=self.pending.target,
            dry_run=False,
            tables=len(self.target.tables()),
            objects=event.objects_copied or 0,
            bytes=event.bytes_copied or 0,
            copied_objects=self.copied_objects,
            copied_bytes=self.copied_bytes,
            verified=event.verified,
            deleted_objects=deleted,
        )

    def undo(self) -> int:
        """Lift the fence and empty the target; may be repeated. Returns how many objects were deleted."""
        lift_fence(self.source, self.pending.id)
        mark = read_mark(self.target.data)
        if mark is None or mark.id != self.pending.id:
            # The mark is the first to come and the last to go, so nothing else of this migration is here.
            self.target.data.delete([info.key for info in self.target.data.list(_PROBE)])
            return 0
        deleted = clear(self.target.data, keep=[MARK_KEY])
        clear_mark(self.target.data, self.pending.id)
        return deleted

    # ---- 1. prepare

    def _prepare(self, documents: ProjectDocuments) -> None:
        self._check_target(documents)
        self._probe()
        last = documents.history.events[-1]
        clear_mark(self.source.data, last.id)  # of the migration that arrived here, if it died before it did that
        self.registry.prepare_migration(self.name, self.pending)
        self.mirror.publish(self.registry, [self.name])
        put_mark(self.target.data, self._mark("arriving"))

    def _check_target(self, documents: ProjectDocuments) -> None:
        """Refuse a place where anything is but this very migration, or the fence from when the project left it."""
        check_apart(self.pending.source, self.pending.target)
        refuse_environments(self.source.store)
        mark = read_mark(self.target.data)
        if mark is not None and mark.id == self.pending.id and mark.state == "arriving":
            return
        is_signpost = mark is not None and mark.state == "leaving" and left_at(documents.ref, self.pending.target)
        if (found := self._strange(is_signpost=bool(is_signpost))) is not None:
            raise InvalidInput(
                f"{self.pending.target.uri} is not empty: there is {found!r}, for one. Nothing was changed. Name an "
                "empty place, or empty this one if nobody needs what is there."
            )

    def _strange(self, *, is_signpost: bool) -> str | None:
        """What lies at the target and is not what a project that left it has (``is_signpost``: this one did)."""
        own = {info.key for info in objects(self.target.data) if not is_dropped(info)}
        signs = fence_of(own) if is_signpost else set[str]()
        others = (info for info in self.target.store.list() if not info.key.startswith(f"{DATA_FOLDER}/"))
        beside = (info.key for info in others if not is_dropped(info))  # an environment that was dropped here
        return next(iter(sorted(key for key in own - signs if not key.startswith(_PROBE))), None) or next(beside, None)

    def _probe(self) -> None:
        """Try what the target must be able to do, before anything is recorded. Raises `AccessDenied`."""
        data, key = self.target.data, f"{_PROBE}-{uuid4().hex}"
        data.put_if_absent(key, b"1")
        try:
            try:
                data.put_if_absent(key, b"2")
            except AlreadyExists:
                pass
            else:
                raise InvalidInput(
                    f"{self.pending.target.uri} overwrites where it was asked to create (If-None-Match): two writers "
                    "would overwrite each other's commits there. Nothing was recorded. Use another server."
                )
            if any(info.key.endswith(key) for info in self.source.store.list()):
                raise InvalidInput(
                    f"{self.pending.target.uri} is, or lies inside of, {self.pending.source.uri} by another name. "
                    "Nothing was recorded. Name another place."
                )
        finally:
            data.delete([key])

    # ---- 2. copy

    def _arrive(self) -> Sequence[ObjectInfo]:
        """Copy and verify; returns what is at both ends, or nothing where another run of the migration has switched."""
        try:
            try:
                moved = self._copy_behind_fence()
                self._verify()
            except VersionedError:
                self._still_ours()  # else that explains it better
                raise
            self._still_ours()
        except _SwitchedError:
            logger.info("Another run of the migration %s has switched meanwhile.", self.pending.id)
            return ()
        return moved

    def _copy_behind_fence(self) -> Sequence[ObjectInfo]:
        """Copy everything, stop writers, copy what is left; returns what belongs to the project and is at both ends."""
        for _ in range(_PASSES):
            began = time.monotonic()
            self._pass("copying", is_fenced=False)
            if time.monotonic() - began < _SHORT_PASS:
                break
        self.tell(MigrationProgress("fencing"))
        self._still_ours()
        raise_fence(self.source, self._mark("leaving"))
        refuse_environments(self.source.store)  # one that was made meanwhile; none is made any more
        try:
            self._still_ours()
        except GovernanceError:
            # It was called off while the fence went up, so who called it off may not have seen it.
            lift_fence(self.source, self.pending.id)
            raise
        for _ in range(_PASSES):
            found = self._pass("finishing the copy", is_fenced=True)
            if found is not None:
                return found
        raise GovernanceError(
            f"What is at {self.pending.source.uri} keeps changing, {_PASSES} times over, though its logs are closed. "
            "The project is where it was. Find who writes there past this package, and run the migration again."
        )

    def _pass(self, step: Step, *, is_fenced: bool) -> Sequence[ObjectInfo] | None:
        """Make the target like the source; returns what there is if nothing was left to do."""
        self._still_ours()
        # The target first: what is there and not at the source, which is listed later, was deleted at the source.
        there = {info.key: info for info in objects(self.target.data)}
        here = self._belonging()
        wanted = self._different(here, there)
        extra = there.keys() - {info.key for info in here} - {MARK_KEY}
        if not wanted and not extra:
            return here
        # Parts and log entries are never replaced by other bytes, so a late copy of one does no harm.
        small = [info.key for info in wanted if info.size <= PIECE_BYTES and not _is_fixed(info.key)]
        replacing = {key: there[key].etag if key in there else None for key in small}

        def tell(done: CopyProgress) -> None:
            self.tell(MigrationProgress(step, done))
            if time.monotonic() - self.asked > _ASK_AGAIN:
                self._still_ours()

        copied = self.transfer.copy_all(wanted, replacing=replacing, progress=tell)
        self.copied_objects += copied.objects
        self.copied_bytes += copied.bytes
        if extra and is_fenced:  # such as what was purged meanwhile
            self._still_ours()
            self.target.data.delete(sorted(extra))
        return None

    def _belonging(self) -> list[ObjectInfo]:
        belongs = is_moved_with(self.source)
        return [info for info in objects(self.source.data) if belongs(info.key) and not info.key.startswith(_PROBE)]

    def _different(self, here: Sequence[ObjectInfo], there: dict[str, ObjectInfo]) -> list[ObjectInfo]:
        def differs(info: ObjectInfo) -> bool:
            found = there.get(info.key)
            return found is None or not self._are_same(info, found)

        with ThreadPoolExecutor(self.threads, thread_name_prefix="compare") as pool:
            return [info for info, found in zip(here, pool.map(differs, here), strict=True) if found]

    def _are_same(self, info: ObjectInfo, found: ObjectInfo) -> bool:
        if info.size != found.size:
            return False
        if _PART.fullmatch(info.key) or self.transfer.has_copied(info, found):
            return True
        if info.etag == found.etag and _MD5.fullmatch(info.etag):
            return True
        try:
            return _digest(self.source.data, info) == _digest(self.target.data, found)
        except ObjectNotFound:
            return False

    # ---- 3. verify

    def _verify(self) -> None:
        """Check that the tables at the target are those at the source. Raises `IntegrityError`.

        That every object arrived was compared when it was listed for the last time.
        """
        self.tell(MigrationProgress("verifying"))
        tables = [name for name in self.source.tables() if not self.source.table(str(name)).is_void]
        if tables != self.target.tables():
            raise self._unlike(f"there are the tables {tables} here and {self.target.tables()} there")
        for name in map(str, tables):
            try:
                (_, here), (_, there) = self.source.table(name).replay(), self.target.table(name).replay()
            except UnsupportedFeature:
                continue  # another program's table, which was copied like any other object
            if [commit.sha256 for commit in here] != [commit.sha256 for commit in there]:
                raise self._unlike(f"the log of {name} is another")
            if self.verify == "content":
                self._verify_content(name)

    def _verify_content(self, name: str) -> None:
        found = self.target.table(name).verify().findings
        if broken := [finding for finding in found if finding.subject != "document"]:
            raise self._unlike(
                f"of {name}, {broken[0].subject} {broken[0].where}: {broken[0].problem}. Where the source is "
                "damaged in the same way (verify it), verify='structural' moves it as it is"
            )

    def _unlike(self, what: str) -> IntegrityError:
        return IntegrityError(
            f"What arrived at {self.pending.target.uri} is not what is at {self.pending.source.uri}: {what}. The "
            "project is where it was. Run the migration again, or abort it."
        )

    # ---- 4. and 5. switch, record

    def _switch(self, moved: Sequence[ObjectInfo]) -> Event:
        self.tell(MigrationProgress("switching"))
        return self.mirror.commit_migration(
            self.name,
            Event(
                id=self.pending.id,
                kind="migrated",
                timestamp=now(),
                actor=self.pending.actor,
                source=self.pending.source,
                target=self.pending.target,
                reason=self.pending.reason,
                objects_copied=len(moved),
                bytes_copied=sum(info.size for info in moved),
                verified=self.verify,
            ),
        )

    def _record(self, event: Event) -> None:
        self.tell(MigrationProgress("recording"))
        self.registry.record_migration(self.name, event)
        self.mirror.publish(self.registry, [self.name])
        clear_mark(self.target.data, self.pending.id)
        marker = GovernanceMarker.of(self.registry, self.mirror, self.registry.documents(self.name).history)
        for data in (self.target.data, self.source.data):
            put_marker(data, marker)
        for name in self.target.tables():
            try:
                self.target.table(str(name)).resolve()
            except UnsupportedFeature:
                continue

    def _delete_source(self) -> int:
        """Delete what was left, but for the fence, once more asking whether everything is at the new place."""
        self.tell(MigrationProgress("deleting"))
        if not same_place(self.mirror.ref(self.name).current, self.pending.target):
            raise GovernanceError(
                f"{self.name} has moved on from {self.pending.target.uri}. Nothing was deleted at "
                f"{self.pending.source.uri}."
            )
        mark = read_mark(self.source.data)
        if mark is None or mark.id != self.pending.id:
            raise GovernanceError(
                f"{self.pending.source.uri} does not carry the mark that the migration {self.pending.id} left. "
                "Nothing was deleted there: somebody else may use it."
            )
        self.registry.check_nobody_else(self.name, self.pending.source)
        entries = {info.key for info in self._belonging() if _LOG_ENTRY.fullmatch(info.key)}
        missing = entries - {info.key for info in objects(self.target.data)}
        if missing:
            raise IntegrityError(
                f"{min(missing)} is at {self.pending.source.uri} and not at {self.pending.target.uri}. Nothing was "
                "deleted. Verify the tables at the new place."
            )
        return clear(self.source.data, keep=fence_of(info.key for info in objects(self.source.data)))

    # ---- asking

    def _has_switched(self, documents: ProjectDocuments) -> bool:
        return same_place(documents.ref.current, self.pending.target)

    def _still_ours(self) -> None:
        """Return if the migration may go on. Raises `_SwitchedError`, or `RegistryConflict` where it was called off."""
        self.asked = time.monotonic()
        pending = self.mirror.pending(self.name)  # which ends after ref.json has changed
        ref = self.mirror.ref(self.name)
        if same_place(ref.current, self.pending.target):
            raise _SwitchedError
        is_pending = pending is not None and pending.id == self.pending.id
        if not is_pending or ref.aborted == self.pending.id or not same_place(ref.current, self.pending.source):
            if read_mark(self.target.data) is None:
                # What came after who called it off had emptied it; not what others have put there since.
                left = [info.key for info in objects(self.target.data) if self.transfer.has_put(info)]
                self.target.data.delete(left)
            raise RegistryConflict(
                f"The migration {self.pending.id} of {self.name} was called off while it was running. The project "
                f"is at {ref.current.uri}."
            )

    def _mark(self, state: MarkState) -> MigrationMark:
        pending = self.pending
        return MigrationMark(pending.id, state, pending.source, pending.target, pending.started_at.isoformat())


class _SwitchedError(Exception):
    """Another run of the same migration has come to its commit point."""


def _agreed(registry: Registry, mirror: GovernanceStore, project: str, *, publish: bool) -> ProjectDocuments:
    """What is known of the project, with ref.json and history as the mirror has them, which is never behind.

    Raises `RegistryConflict` for a migration that is being called off.
    """
    registry.fetch()
    if publish:
        mirror.publish(registry, [project])
    pending = registry.documents(project).pending
    documents = mirror.documents(project)
    if pending is not None and documents.ref.aborted == pending.id:
        raise RegistryConflict(
            f"The migration {pending.id} of {project} is being called off. Nothing was changed. Finish that: "
            f"`dagster-versioned gov migrate {project} --abort`."
        )
    return replace(documents, pending=pending)


def _pending(
    source: Location, target: Location, actor: str, reason: str | None, verify: Verify, migration_id: str
) -> PendingMigration:
    return PendingMigration(
        id=migration_id, source=source, target=target, actor=actor, started_at=now(), reason=reason, verify=verify
    )


def _begun(documents: ProjectDocuments, project: str, target: Location, verify: Verify) -> PendingMigration | None:
    """The migration to a target that is on its way, or done; raises `RegistryConflict` where another one is."""
    ref, pending, last = documents.ref, documents.pending, documents.history.events[-1]
    if pending is None and same_place(ref.current, target) and last.kind == "migrated":
        assert last.source is not None
        return _pending(last.source, ref.current, last.actor, last.reason, last.verified or verify, last.id)
    if pending is not None and not same_place(pending.target, target):
        raise RegistryConflict(
            f"{project} is being moved to {pending.target.uri} by {pending.actor}, since "
            f"{pending.started_at.isoformat()}, and not to {target.uri}. Nothing was changed. Finish that migration, "
            "or abort it."
        )
    return pending


def _nothing_to_abort(
    mirror: GovernanceStore, project: str, documents: ProjectDocuments, open_store: OpenStore
) -> GovernanceError:
    """Lift a fence that a run put up after it had been called off, and then died; and say that that was all."""
    source = Project(project, open_store(documents.ref.current))
    mark = read_mark(source.data)
    if mark is not None and mark.state == "leaving" and mark.id == mirror.ref(project).aborted:
        lift_fence(source, mark.id)
    return GovernanceError(
        f"No migration of {project} is on its way: it is at {documents.ref.current.uri}. Nothing was called off."
    )


def _is_fixed(key: str) -> bool:
    return _PART.fullmatch(key) is not None or _LOG_ENTRY.fullmatch(key) is not None


def _digest(data: ObjectStore, info: ObjectInfo) -> str:
    """The MD5 of an object's bytes; a store whose ETag is one has it at hand, and no other is collided with here."""
    if _MD5.fullmatch(info.etag):
        return info.etag.strip('"')
    digest = hashlib.md5(usedforsecurity=False)
    for start in range(0, info.size, PIECE_BYTES):
        digest.update(data.get_range(info.key, start, PIECE_BYTES))
    return digest.hexdigest()


def _nobody(_: MigrationProgress) -> None: ...
