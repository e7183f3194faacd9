"""What pending writes are compared with: the heads that they replace, and earlier versions of equal rows."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from dagster_versioned.delta.actions import Add
from dagster_versioned.delta.log.snapshot import load_snapshot
from dagster_versioned.engines.staging import Staging
from dagster_versioned.errors import LogCorrupt, VersionNotFound
from dagster_versioned.tables.computations import made_under
from dagster_versioned.tables.configuration import configuration
from dagster_versioned.tables.documents.head import held_domain
from dagster_versioned.tables.history import History, Version
from dagster_versioned.tables.parts import missing_parts, parts_by_partition, parts_of
from dagster_versioned.tables.state import TableState
from dagster_versioned.tables.write.pending import HeadParts, OpenComputation, PendingWrite

REUSE_WINDOW = 64
"""How many versions back equal data is looked for (FORMAT.md, "digest")."""


class WriteBase:
    """The heads and earlier versions of one commit's partitions: looked up for all at once, however many there are."""

    def __init__(
        self, staging: Staging, state: TableState | None, writes: Sequence[PendingWrite], columns: Sequence[str]
    ) -> None:
        self._staging = staging
        self._store = store = staging.store
        self._state = state
        self._columns = set(columns)
        self._partitions = [pending.partition for pending in writes]
        self._parts: dict[int, Mapping[str | None, tuple[Add, ...]]] = {}
        self._history = state.history if state else History([])
        self._recent = self._history.recent_of(self._partitions, REUSE_WINDOW)
        candidates = [adds for pending in writes if (adds := next(self._equal(pending), None)) is not None]
        self._looked_at = {add.identity for adds in candidates for add in adds}
        self._missing = {add.identity for add in missing_parts(store, list(chain.from_iterable(candidates)))}

    def onto(self, partition: str | None, properties: Mapping[str, str]) -> HeadParts:
        """What a pending write of a partition meets, once the table has these properties."""
        if self._state is None:
            return HeadParts(None, (), None, configuration(None, properties, None))
        snapshot, head = self._state.snapshot, self._history.heads.get(partition)
        return HeadParts(
            head,
            self._parts_at(snapshot.version, partition),
            None if head is None else self._history.foreign_since(head.log_version),
            configuration(snapshot.metadata, properties, None),
            snapshot.domains.get(held_domain(partition)),
        )

    def made_by(self, computing: OpenComputation, partition: str | None) -> list[Version]:
        """The versions that a computation is known to have made before, among them those of other runs just now."""
        before = [] if computing.made_before is None else [computing.made_before]
        return [*made_under(self._recent[partition], computing.key), *before]

    def parts_of_equal_version(self, pending: PendingWrite, own: Version | None) -> tuple[Add, ...] | None:
        """The parts of the newest version that a pending write repeats, if they are all still there.

        ``own`` is what an earlier attempt committed, however long ago.
        """
        whole = (adds for adds in self._equal(pending, own) if not self._lacks(adds))
        return next((adds for adds in whole if pending.has_rows_of(adds, self._staging)), None)

    def says_others(self, version: Version, pending: PendingWrite, data_sha: str) -> bool:
        """Whether a version of a pending write's table has other rows than that, which has this ``data_sha``.

        Of a version that is not kept, the digest is all there is.
        """
        if version.digest != pending.contents.digest.text:
            return True
        if pending.added is not None or version.recorded["data_sha"] == data_sha:
            return False
        adds = self._parts_of(version)
        return adds is not None and not self._lacks(adds) and not pending.has_rows_of(adds, self._staging)

    def _lacks(self, adds: tuple[Add, ...]) -> bool:
        if all(add.identity in self._looked_at for add in adds):
            return any(add.identity in self._missing for add in adds)
        return bool(missing_parts(self._store, adds))

    def _equal(self, pending: PendingWrite, own: Version | None = None) -> Iterator[tuple[Add, ...]]:
        """The parts of each recent version that says the same, newest first."""
        if self._state is None:
            return
        digest = pending.contents.digest.text
        recent = self._recent[pending.partition]
        for version in recent if own is None or own in recent else (*recent, own):
            if version.digest == digest and _says_the_same(version, pending):
                adds = self._parts_of(version)
                if adds is not None and all(set(add.partition_values) == self._columns for add in adds):
                    yield adds

    def _parts_of(self, version: Version) -> tuple[Add, ...] | None:
        """The parts of a version; ``None`` where the log does not have them all."""
        assert self._state is not None
        is_head = version == self._history.heads.get(version.partition)
        try:
            adds = self._parts_at(self._state.log_version if is_head else version.log_version, version.partition)
        except (LogCorrupt, VersionNotFound):  # other writers clean old commits up: it is written anew
            return None
        return adds if len(adds) == version.facts.part_count else None

    def _parts_at(self, log_version: int, partition: str | None) -> tuple[Add, ...]:
        if log_version not in self._parts:
            assert self._state is not None
            snapshot = self._state.snapshot
            if log_version != snapshot.version:
                snapshot = load_snapshot(self._store, log_version)
            if None in self._partitions:
                self._parts[log_version] = {None: parts_of(snapshot)}
            else:
                self._parts[log_version] = parts_by_partition(
                    snapshot, [str(partition) for partition in self._partitions]
                )
        return self._parts[log_version].get(partition, ())


def _says_the_same(version: Version, pending: PendingWrite) -> bool:
    """Whether a version of equal digest is the same data under the same schema."""
    if version.raw is None:
        return False
    identity, facts, contents = version.raw["identity"], version.raw["facts"], pending.contents
    return (
        identity["nrow"] == contents.nrow
        and facts.get("null_counts", []) == list(contents.null_counts)
        and identity["schema"] == contents.schema.to_json()
        and not (pending.single_part and facts["part_count"] and "parquet_sha" not in facts)
    )
