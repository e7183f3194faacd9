"""A frame in the place of the head, of which rows that the head has are not stored again."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dagster_versioned.delta.actions import Add
from dagster_versioned.delta.files.deletion_vectors import NamedVectors
from dagster_versioned.delta.schema.types import parse_schema
from dagster_versioned.engines.conform import refuse_no_rows
from dagster_versioned.engines.engine import Engine
from dagster_versioned.engines.part_order import next_ordinal
from dagster_versioned.engines.parts import Part, WriteOptions
from dagster_versioned.engines.staging import Staging
from dagster_versioned.engines.upsert import Upsert
from dagster_versioned.errors import IntegrityError
from dagster_versioned.identity.version import RefreshedRows
from dagster_versioned.tables.configuration import CHANGE_FEED, is_set
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.parts import change_key
from dagster_versioned.tables.read import scan_of
from dagster_versioned.tables.state import TableState
from dagster_versioned.tables.write.addition import parts_after
from dagster_versioned.tables.write.pending import HeadParts, PendingWrite, VersionDescription


class Refresh(PendingWrite):
    """A pinned frame on its way to replace the head, by what changed in it.

    It is written whole, as any frame, where that is better (`engines.refresh`), where nobody knows what the head says,
    and where that says other columns. What it comes to depends on the head, so it is computed anew where that has
    moved. Raises `UnsupportedType`, `EmptyTable`.
    """

    def __init__(
        self,
        partition: str | None,
        description: VersionDescription,
        frame: Any,
        engine: Engine,
        staging: Staging,
        options: TableOptions,
    ) -> None:
        # In the order of the frame, so that the next one, which has it as well, is compared in one pass.
        self._options: WriteOptions = replace(options.write_options(partition), row_order="significant")
        self._partition_columns = {*options.partition_columns}
        self._staging = staging
        self._onto: object = None
        self._found: _Refreshed | None = None
        self._taken: _Refreshed | None = None
        contents = engine.measure(frame, engine.schema(frame, self._options))
        refuse_no_rows(contents.nrow, allow_empty=options.allow_empty)
        super().__init__(
            partition,
            description,
            contents,
            "ignored",
            None,
            lambda: engine.write(frame, staging, self._options, contents),
            engine=engine,
            frame=frame,
        )

    def recheck(self, state: TableState | None) -> None:
        """Whole again: an earlier version may say the same, and nothing be put onto the head."""
        self._take(None)

    def onto(self, base: HeadParts) -> tuple[Add, ...] | None:
        """The parts of the head that stay, some of them without rows; ``None`` where the frame is written whole."""
        what = tuple(add.identity for add in base.parts), base.foreign, is_set(base.properties, CHANGE_FEED)
        if what != self._onto:
            self._found, self._onto = self._put_onto(base), what
        self._take(self._found)
        return None if self._found is None else self._found.kept

    def parts(self) -> tuple[Part, ...]:
        """The parts that are written now."""
        return super().parts() if self._taken is None else self._taken.upsert.written.parts

    def write_changes(self) -> Mapping[str, Part]:
        """Which rows came and went, by key of the file that says so; written now if it was not yet."""
        if self._taken is not None and not self.change_files:
            self.change_files = self._taken.change_files()
        return self.change_files

    def _take(self, found: "_Refreshed | None") -> None:
        self._taken = found
        self.refreshed = None if found is None else found.fact(self.contents.nrow)
        self.vector_files = {} if found is None else found.vectors.files
        self.change_files = {}
        self.changes_rows = found is not None

    def _is_like(self, base: HeadParts) -> bool:
        """Whether it is known what the head says, in the columns and the layout of the frame."""
        head = base.head
        if head is None or base.foreign is not None or not base.parts or head.raw is None:
            return False
        is_laid_out = all({*add.partition_values} == self._partition_columns for add in base.parts)
        return is_laid_out and parse_schema(dict(head.identity.schema)) == self.contents.schema

    def _put_onto(self, base: HeadParts) -> "_Refreshed | None":
        schema = self.contents.schema
        if not self._is_like(base):
            return None
        scan = scan_of(self._staging.store, schema, base.parts)
        options = replace(
            self._options,
            columns=tuple(schema.names),
            allow_empty=True,
            first_ordinal=next_ordinal(base.parts),
            change_feed=is_set(base.properties, CHANGE_FEED),
        )
        try:
            upsert = self._engine.refresh(self._frame, scan, self._staging, options)
        except IntegrityError:  # parts that are lost or altered, in whose place new ones are written
            return None
        if upsert is None:
            return None
        found = _Refreshed(upsert, *parts_after(base, scan, upsert))
        rows = {file.key: file.num_records or 0 for file in scan.files}
        if not found.stands(rows):
            raise IntegrityError(
                f"What would be stored in {scan.store.uri} beside the rows that stay is not what the frame says."
                " Nothing was written. Write the table once as a whole (refresh='whole'), and report this."
            )
        return found


@dataclass
class _Refreshed:
    """What a frame comes to, put onto a head: the parts of that which stay, with vectors of the rows that go."""

    upsert: Upsert
    kept: tuple[Add, ...]
    vectors: NamedVectors
    _changes: Mapping[str, Part] | None = None

    def fact(self, rows: int) -> RefreshedRows:
        """What is recorded, of a version with so many rows."""
        stored = sum(part.num_records for part in self.upsert.written.parts)
        deleted = sum(add.deletion_vector.cardinality for add in self.kept if add.deletion_vector is not None)
        inserted = self.upsert.inserted
        return RefreshedRows(inserted, self.upsert.removed, rows - inserted, stored, deleted)

    def stands(self, rows: Mapping[str, int]) -> bool:
        """Whether the vectors, as they are stored, leave the rows that the frame says; ``rows`` are those of parts."""
        assert self.upsert.stands is not None
        return self.upsert.stands({key: self.vectors.positions(key, rows[key]) for key in self.vectors.vectors})

    def change_files(self) -> Mapping[str, Part]:
        """Which rows came and went, by key of the file that says so."""
        if self._changes is None:
            assert self.upsert.changes is not None
            self._changes = {change_key(part): part for part in self.upsert.changes().parts}
        return self._changes
