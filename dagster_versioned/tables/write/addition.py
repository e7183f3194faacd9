"""Rows appended to the head of a table, or merged into it by key: parts to which nothing happened are kept."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from dagster_versioned.delta.actions import Add, DeletionVector
from dagster_versioned.delta.files.deletion_vectors import NamedVectors, named_by_content, with_vector
from dagster_versioned.delta.log.snapshot import load_snapshot
from dagster_versioned.delta.schema.types import StructType, parse_schema
from dagster_versioned.engines.conform import refuse_no_rows
from dagster_versioned.engines.engine import Engine
from dagster_versioned.engines.part_order import VECTOR_TAG, next_ordinal
from dagster_versioned.engines.parts import Part, RowsSummary, StagedParts
from dagster_versioned.engines.scan import Scan
from dagster_versioned.engines.staging import Staging
from dagster_versioned.engines.upsert import RowMatch, Upsert, grown_schema, nothing
from dagster_versioned.errors import CommitConflict, IntegrityError, LogCorrupt, VersionNotFound
from dagster_versioned.identity.digest import RowsDigest
from dagster_versioned.identity.version import AddedRows
from dagster_versioned.tables.configuration import CHANGE_FEED, DELETION_VECTORS, is_set
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.parts import change_key, parts_of
from dagster_versioned.tables.read import scan_of
from dagster_versioned.tables.write.pending import (
    HeadParts,
    PendingWrite,
    Repetition,
    VersionDescription,
    are_given_rows,
)


class Addition(PendingWrite):
    """Rows on their way into the head of a table, or of one of its partitions, as `TableOptions.mode` says.

    What comes of them depends on the head, so it is computed anew where that has moved. ``frame`` is pinned
    (`Engine.pinned`). ``mode`` is what the facts call it, ``given`` what the frame says, if somebody knows. Raises
    `UnsupportedType`.
    """

    stands_alone = True

    def __init__(
        self,
        partition: str | None,
        description: VersionDescription,
        frame: Any,
        engine: Engine,
        staging: Staging,
        options: TableOptions,
        mode: str | None = None,
        given: RowsSummary | None = None,
    ) -> None:
        self._mode = mode or options.mode
        self._staging = staging
        self._options = options
        self._write_options = options.write_options(partition)
        self._schema = engine.schema(frame, self._write_options) if given is None else given.schema
        self._measured = given
        self._onto: object = None
        self._kept: tuple[Add, ...] = ()
        self._changes: Callable[[], StagedParts] | None = None
        super().__init__(
            partition, description, nothing(self._schema), "ignored", None, _never, engine=engine, frame=frame
        )

    def _rows(self) -> Any:
        return self._frame

    @property
    def _given(self) -> RowsSummary:
        if self._measured is None:
            self._measured = self._engine.measure(self._rows(), self._schema)
        return self._measured

    def repeats(self, own: Version) -> Repetition | None:
        """Whether an earlier attempt of the step committed these very rows, or others that stay alone.

        Rows cannot be appended in the place of others, so what was committed first is what the step appended.
        """
        known = own.facts.added
        said = known is not None and (known.mode, known.digest) == (self._mode, self._given.digest.text)
        if said and self._are_in(own):
            return Repetition.SAME_ROWS
        return Repetition.OTHER_ROWS if self._mode == "append" else None

    def _are_in(self, own: Version) -> bool:
        """Whether rows with the digest of those that a version was given are in it; what is gone is believed."""
        store, schema = self._staging.store, _recorded_schema(own)
        if self._mode == "append":
            return are_given_rows(own, self._rows(), self._engine, schema, store)
        try:
            parts = parts_of(load_snapshot(store, own.log_version), own.partition)
            again = self._upsert(
                scan_of(store, schema, parts),
                HeadParts(own, parts, None, {}),
                self._matching(schema, schema, self._given),
            )
        except (IntegrityError, LogCorrupt, VersionNotFound):
            return True
        return not (again.replaced or again.inserted)

    def onto(self, base: HeadParts) -> tuple[Add, ...]:
        """The parts of the head that stay; the others of the version are `parts` now, and its `contents` are known.

        Raises `EmptyTable`, and `CommitConflict` after a foreign commit.
        """
        what = tuple(add.identity for add in base.parts), self._switches(base)
        if what != self._onto:
            _require_own(base)
            self._kept = self._add_to(base)
            self._onto = what
        return self._kept

    def write_changes(self) -> Mapping[str, Part]:
        """What became of the head's rows, by key; written now if it was not yet."""
        if self._changes is not None:
            self.change_files = {change_key(part): part for part in self._changes().parts}
            self._changes = None
        return self.change_files

    def _add_to(self, base: HeadParts) -> tuple[Add, ...]:
        if not self._options.allow_empty:
            refuse_no_rows(self._given.nrow, allow_empty=False)
        known = None if base.head is None else _recorded_schema(base.head)
        scan = scan_of(self._staging.store, self._schema_beside(known), base.parts)
        # What goes onto nothing is what is written, and need not be measured beside that.
        is_first = known is None and not scan.files
        matching = self._matching(known, scan.schema, None if is_first else self._given)
        upsert = self._upsert(scan, base, matching)
        self._measured = self._measured or upsert.written.contents
        self._written = upsert.written
        self._changes, self.change_files = upsert.changes, {}
        self.changes_rows = bool(upsert.updated or upsert.replaced)
        if matching is not None and matching.rewrite:
            self.contents = upsert.written.contents
        else:
            self.contents = upsert.contents(contents_of(base.head, scan, self._engine))
        counts = upsert.inserted, upsert.updated, upsert.removed
        self.added = AddedRows(self._mode, self._given.digest.text, *counts)
        kept, vectors = parts_after(base, scan, upsert)
        self.vector_files = vectors.files
        return kept

    @staticmethod
    def _switches(base: HeadParts) -> tuple[bool, ...]:
        return tuple(is_set(base.properties, key) for key in (DELETION_VECTORS, CHANGE_FEED))

    def _schema_beside(self, known: StructType | None) -> StructType:
        """The schema of the version, beside rows with this one."""
        return grown_schema(known or self._schema, self._schema)

    def _matching(self, known: StructType | None, schema: StructType, given: RowsSummary | None) -> RowMatch | None:
        """Which rows go; ``None`` where they all stay."""
        personal = self._options.hidden_columns
        return RowMatch(self._options.merge_key, given=given, personal=personal) if self._mode == "merge" else None

    def _upsert(self, scan: Scan, base: HeadParts, matching: RowMatch | None) -> Upsert:
        options = replace(
            self._write_options,
            columns=tuple(scan.schema.names),
            first_ordinal=next_ordinal(base.parts),
            deletion_vectors=is_set(base.properties, DELETION_VECTORS),
            change_feed=is_set(base.properties, CHANGE_FEED),
        )
        frame = self._widened(self._rows(), scan.schema)
        if matching is not None:
            return self._engine.merge(frame, scan, matching, self._staging, options)
        written = self._engine.write(frame, self._staging, options)
        return Upsert(frozenset(), nothing(scan.schema), written, self._given.nrow, 0)

    def _widened(self, frame: Any, schema: StructType) -> Any:
        """A frame with columns of the schema's types, so that what is written has them, and its digest is of them."""
        held = self._engine.schema(frame, replace(self._write_options, columns=(), sort_columns=False))
        same = all(held.field(field.name).type == field.type for field in schema.fields)
        return frame if same else self._engine.widened(frame, schema)


def parts_after(base: HeadParts, scan: Scan, upsert: Upsert) -> tuple[tuple[Add, ...], NamedVectors]:
    """The parts of the head that stay, without the rows that go, and the vectors that say which these are."""
    vectors = named_by_content(upsert.deleted)
    rows = {file.key: file.num_records or 0 for file in scan.files}
    kept = [add for add in base.parts if add.key not in upsert.replaced]
    return tuple(without_rows(add, vectors.vectors.get(add.key), rows[add.key]) for add in kept), vectors


def contents_of(head: Version | None, scan: Scan, engine: Engine) -> RowsSummary:
    """What the head says under the schema of the scan: as it recorded, unless it did so under another."""
    if head is None:
        return nothing(scan.schema)
    digest = RowsDigest.parse(head.facts.digest)
    if digest.kind == "bag-xxh64x2" and _recorded_schema(head) == scan.schema:
        return RowsSummary(scan.schema, digest.nrow, tuple(head.facts.null_counts), digest)
    with engine.pinned(engine.read(scan)) as rows:
        return engine.measure(rows, scan.schema)


def without_rows(add: Add, named: tuple[DeletionVector, str] | None, num_records: int) -> Add:
    """A part without the rows that a deletion vector, named by its SHA-256, takes from it."""
    if named is None:
        return add
    vector, sha = named
    marked = with_vector(add, vector, num_records)
    return replace(marked, tags={**(add.tags or {}), VECTOR_TAG: sha})


def _require_own(base: HeadParts) -> None:
    if base.foreign is not None:
        raise CommitConflict(
            f"Another program changed the table with log version {base.foreign.log_version}, so nobody knows what rows "
            "would be added to. Nothing was written. Look at history(), then adopt() that, or revert()."
        )


def _recorded_schema(head: Version) -> StructType:
    return parse_schema(dict(head.identity.schema))


def _never() -> Any:
    raise AssertionError("The rows were not put onto a head yet.")
