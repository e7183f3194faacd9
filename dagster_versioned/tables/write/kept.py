"""Keeping a version instead of computing it again: its parts and identity, on the way to be current as they are."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from dagster_versioned.delta.actions import Add
from dagster_versioned.delta.schema.types import parse_schema
from dagster_versioned.engines.parts import StagedParts
from dagster_versioned.engines.staging import Staging
from dagster_versioned.errors import CommitConflict, IntegrityError, LogCorrupt, VersionNotFound
from dagster_versioned.identity.version import Run
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.computations import usable
from dagster_versioned.tables.configuration import configuration
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.parts import missing_parts, objects_of, parts_of, recorded_rows
from dagster_versioned.tables.read import check_parts, row_order_of
from dagster_versioned.tables.state import StateCache, TableState
from dagster_versioned.tables.table_record import TableRecord
from dagster_versioned.tables.write.belonging import WriteTarget, record_after
from dagster_versioned.tables.write.clustering import clustering_actions
from dagster_versioned.tables.write.constraints import require_rows
from dagster_versioned.tables.write.pending import HeadParts, OwnWrite, PendingWrite, VersionDescription, app_id


class KeptVersion(OwnWrite):
    """A version that the table has, which is to be current without being computed again.

    Promises that its parts made up its ``data_sha`` and were all there in the state in which it was found.
    """

    beside_frames = True

    def __init__(
        self, store: ObjectStore, version: Version, adds: tuple[Add, ...], found: TableState, *, is_current: bool
    ) -> None:
        self.store = store
        self.version = version
        self.is_head = version == found.history.heads.get(version.partition)
        self.is_current = is_current
        self.adds = adds
        self.found = found

    def __repr__(self) -> str:
        return f"KeptVersion({self.version.short!r})"

    def stage(
        self,
        partition: str | None,
        description: VersionDescription,
        staging: Staging,
        options: TableOptions,
        constraints: Mapping[str, str],
        pinned: ExitStack,
    ) -> PendingWrite:
        """The pending write. Raises `InvalidInput` where rows that come back do not satisfy the constraints."""
        if not self.is_head:  # whose rows do
            require_rows(staging.store, parse_schema(self.version.identity.schema), self.adds, constraints)
        return KeptWrite(self)


class KeptWrite(PendingWrite):
    """A kept version on its way: nothing of it is written, and its identity is the one that it has."""

    stands_alone = True

    def __init__(self, kept: KeptVersion) -> None:
        version = kept.version
        contents = recorded_rows(version.entry)
        nothing = StagedParts(contents, ())
        description = VersionDescription.of(version.identity)
        super().__init__(version.partition, description, contents, row_order_of(version), nothing, lambda: nothing)
        self.kept = kept
        self.computation = version.facts.computation

    def recheck(self, state: TableState | None) -> None:
        """Raise `CommitConflict` where the version may not be reused any more."""
        kept = self.kept
        assert state is not None  # it was found in it
        keys = {add.key for add in kept.adds}
        if not usable(state, kept.version) or keys & state.history.collected_since(kept.found.log_version):
            raise CommitConflict(
                f"Version {kept.version.short} was to be kept instead of being computed again, but was collected, "
                "contradicted or forgotten meanwhile. Nothing was written. Run the step again, which computes it."
            )

    def onto(self, base: HeadParts) -> tuple[Add, ...]:
        """Its own parts, whatever the head is."""
        return self.kept.adds


def keep(cache: StateCache, state: TableState, version: Version) -> KeptVersion | None:
    """The version as what can be written again; ``None`` where it may not be reused, or any of its parts is lost."""
    if not usable(state, version):
        return None
    is_current = (
        version == state.history.heads.get(version.partition)
        and state.history.foreign_since(version.log_version) is None
    )
    try:
        snapshot = state.snapshot if is_current else cache.older(version.log_version)
        adds = parts_of(snapshot, version.partition)
        check_parts(version, adds)
    except (LogCorrupt, VersionNotFound, IntegrityError):  # other writers clean old commits up; `verify` tells more
        return None
    # What is there of a collection that is under way will not be, and it may have announced these.
    announced = {path for collection in state.history.open_collections for path in collection.paths}
    if objects_of(cache.store, adds) & announced or missing_parts(cache.store, adds):
        return None
    return KeptVersion(cache.store, version, adds, state, is_current=is_current)


def stand(
    state: TableState, kept: Sequence[KeptVersion], taken: WriteTarget, options: TableOptions, run: Run | None
) -> bool:
    """Whether versions that were found in this very state are its heads, and to write them again changes nothing.

    Of an earlier attempt of the step, the write itself has to say what became. Raises what `record_after` does.
    """
    if not all(known.found is state and known.is_current for known in kept):
        return False
    snapshot = state.snapshot
    if run is not None and any(app_id(run, known.version.partition) in snapshot.txns for known in kept):
        return False
    if options.cluster_by is not None and clustering_actions(snapshot, snapshot.schema, options.cluster_by):
        return False
    properties = configuration(snapshot.metadata, options.properties, options.constraints, options.personal_columns)
    is_as_recorded = record_after(taken, state) == TableRecord.of(snapshot)
    return is_as_recorded and properties == snapshot.metadata.configuration
