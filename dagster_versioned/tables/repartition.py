"""Repartitioning: the rows that are there, as partitions of another kind or as one whole table, in one commit.

What a row belongs to is read from its columns, so what only a partition key held is lost. Parents, code version and the
like of the versions that a new one is made of are recorded with it; the rows are read into memory as a whole.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_versioned.delta.actions import Add
from dagster_versioned.delta.schema.types import parse_schema, type_to_arrow
from dagster_versioned.engines.dispatch import engine_for_type
from dagster_versioned.engines.part_order import PARTITION_TAG
from dagster_versioned.errors import CommitConflict, InvalidInput, VersionNotFound
from dagster_versioned.tables.configuration import constraints_of, personal_columns
from dagster_versioned.tables.feature_record import FEATURE_MEMBER
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.operations import TableOperations
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.partitioning import Partitioning, shown
from dagster_versioned.tables.parts import parts_of
from dagster_versioned.tables.read import check_parts, row_order_of, scan_of
from dagster_versioned.tables.state import TableState
from dagster_versioned.tables.table_record import TableRecord
from dagster_versioned.tables.write.commit import CommitDraft
from dagster_versioned.tables.write.drop import refuse_dropped, refuse_held
from dagster_versioned.tables.write.pending import PendingWrite, VersionDescription
from dagster_versioned.tables.write.stage import stage, staging_folder
from dagster_versioned.tables.write.write import TableWrite

_ATTEMPTS = 50
"""How often rows are read again that others wrote meanwhile."""

Same = Literal["same"]
"""The partitions that there are; only types change."""

KeyOf = str | Mapping[str, str] | Callable[[pa.Table], Any]
"""What gives the partition key of a row: a column, a column for each dimension, or a function from rows to keys."""


@dataclass(frozen=True)
class RepartitionReport:
    """What a repartition made, or (dry run) would make: the rows of each new partition, ``None`` for a whole table.

    ``before`` are the partitions that the table had.
    """

    dry_run: bool
    rows: Mapping[str | None, int]
    before: tuple[str | None, ...]


class _Overtaken(Exception):
    """The rows that were read are not those of the head any more; they are read again."""


@dataclass(frozen=True)
class PartitionedRows:
    """The rows of a table by their new partitions, with the description of each, as of one state."""

    state: TableState
    frames: Mapping[str | None, pa.Table]
    descriptions: Mapping[str | None, VersionDescription]
    sources: Mapping[str | None, Sequence[Version]]
    options: TableOptions

    def report(self, *, dry_run: bool) -> RepartitionReport:
        """What these rows are."""
        rows = {key: frame.num_rows for key, frame in sorted(self.frames.items(), key=lambda frame: frame[0] or "")}
        return RepartitionReport(dry_run, rows, tuple(self.state.history.heads))


@dataclass(frozen=True)
class RepartitionPlan:
    """The rows of a table by their partitions in another definition, with some columns in other types.

    Raises `InvalidInput` where the rows do not tell, or do not fit the types, `UnsupportedType`, `VersionNotFound`,
    `HeldHead`.
    """

    operations: TableOperations
    partitioning: Partitioning | Same | None
    key_of: KeyOf | None
    types: Mapping[str, str]
    known: dict[Version, list[tuple[str | None, pa.Table]]] = field(default_factory=dict)
    """The rows of versions that were read."""

    def preview(self) -> RepartitionReport:
        """What would be made."""
        return self._part().report(dry_run=True)

    def apply(self) -> RepartitionReport:
        """End every partition that there is, and begin those of another definition, in one commit.

        Raises `CommitConflict` where others write all the time.
        """
        operations = self.operations
        made: dict[str | None, tuple[Sequence[Version], PendingWrite]] = {}
        with staging_folder(operations.store) as staging, ExitStack() as pinned:
            for _ in range(_ATTEMPTS):
                parted = self._part()
                for key, frame in parted.frames.items():
                    if key not in made or made[key][0] != parted.sources[key]:
                        description = parted.descriptions[key]
                        pending = stage(frame, key, description, staging, parted.options, {}, pinned)
                        made[key] = parted.sources[key], pending
                snapshot, partitioning = parted.state.snapshot, self.partitioning
                write = TableWrite(
                    staging,
                    [made[key][1] for key in parted.frames],
                    parted.options,
                    constraints_of(snapshot.metadata.configuration),
                    author=operations.project.author,
                    partitioning=TableRecord.of(snapshot).partitioning if partitioning == "same" else partitioning,
                    operation="REPARTITION",
                )
                with suppress(_Overtaken):
                    operations.change(partial(_draft, write, parted))
                    return parted.report(dry_run=False)
        raise CommitConflict(
            f"Others wrote to {operations.name} while its rows were read, {_ATTEMPTS} times. Nothing was changed. Try "
            "again when nobody writes."
        )

    def _part(self) -> PartitionedRows:
        table, state = self.operations.name, self.operations.existing_state()
        heads = _heads(table, state)
        self._require_change(table, heads)
        self._read_heads(state, heads)
        pieces: dict[str | None, list[pa.Table]] = defaultdict(list)
        sources: dict[str | None, list[Version]] = defaultdict(list)
        for _, version in sorted(heads.items(), key=lambda head: head[0] or ""):
            for key, piece in self.known[version]:
                pieces[key].append(piece)
                sources[key].append(version)
        partitioning = self.partitioning
        if isinstance(partitioning, Partitioning) and (strange := partitioning.unknown_keys(map(str, pieces))):
            raise InvalidInput(
                f"Rows of {table} would be of {shown(strange)}, which is none of the {partitioning}. Nothing was "
                "changed. Name a column of dates or timestamps, or of such keys."
            )
        orders = {row_order_of(version) for version in heads.values()}
        columns = state.snapshot.partition_columns
        order = None if columns else "significant" if orders == {"significant"} else "ignored"
        return PartitionedRows(
            state,
            {key: pa.concat_tables(each) for key, each in pieces.items()},
            {key: _described(versions) for key, versions in sources.items()},
            sources,
            TableOptions(
                row_order=order,
                partition_columns=columns,
                known_personal_columns=personal_columns(state.snapshot.metadata.configuration),
                allow_empty=True,
            ),
        )

    def _require_change(self, table: str, heads: Mapping[str | None, Version]) -> None:
        """Raise `InvalidInput` where nothing is to change, or it is not said how."""
        if self.partitioning == "same" and not self.types:
            raise InvalidInput(
                f"{table} is to keep its partitions, and no column is to get another type. Nothing was changed. Name a "
                "type (types={…}, --type NAME=TYPE), or other partitions."
            )
        if self.partitioning is None and None in heads:
            raise InvalidInput(f"{table} has no partitions, so there are none to put together. Nothing was changed.")
        if isinstance(self.partitioning, Partitioning) and self.key_of is None:
            raise InvalidInput(
                f"What gives the partition of a row of {table} is not named. Nothing was changed. Name a column "
                "(column=…, --column), or give a function from rows to keys."
            )

    def _read_heads(self, state: TableState, heads: Mapping[str | None, Version]) -> None:
        """Read the rows of heads that are not known, in the new types, by the new partitions."""
        by_partition: dict[str | None, list[Add]] = defaultdict(list)
        for add in parts_of(state.snapshot):
            by_partition[(add.tags or {}).get(PARTITION_TAG)].append(add)
        schema = state.snapshot.schema.all_nullable()
        hidden = personal_columns(state.snapshot.metadata.configuration)
        _refuse_personal_key(self.key_of, hidden)
        for partition, version in sorted(heads.items(), key=lambda head: head[0] or ""):
            if version not in self.known:
                check_parts(version, by_partition[partition])
                scan = scan_of(self.operations.store, schema, by_partition[partition])
                rows = _retyped(cast("pa.Table", engine_for_type(pa.Table).read(scan, pa.Table)), self.types, hidden)
                is_same = self.partitioning == "same"
                self.known[version] = [(partition, rows)] if is_same else self._split(rows)

    def _split(self, rows: pa.Table) -> list[tuple[str | None, pa.Table]]:
        """The rows of each key, in the order they had."""
        if not isinstance(self.partitioning, Partitioning) or self.key_of is None:
            return [(None, rows)]
        keys = _keys(rows, self.partitioning, self.key_of)
        if keys.null_count:
            raise InvalidInput(
                f"{keys.null_count} rows have null where their partition is to be read. Nothing was changed. Write "
                "those rows with a value, or give a function from rows to keys."
            )
        encoded = cast("Any", pc.dictionary_encode(keys.combine_chunks()))
        codes = np.asarray(encoded.indices)
        order = np.argsort(codes, kind="stable")
        ends = np.cumsum(np.bincount(codes, minlength=len(encoded.dictionary)))
        return [
            (str(key), rows.take(cast("Any", pa.array(order[start:end]))))
            for key, start, end in zip(encoded.dictionary.to_pylist(), [0, *ends[:-1]], ends, strict=True)
        ]


def _draft(write: TableWrite, parted: PartitionedRows, state: TableState | None, timestamp: int) -> CommitDraft | None:
    """The next log entry. Raises `_Overtaken` where the table has other versions than those that were read."""
    assert state is not None  # its rows were read
    if _current(state) != _current(parted.state) or state.history.unadopted is not None:
        raise _Overtaken
    return write.draft(state, timestamp)


def _current(state: TableState) -> dict[str | None, int]:
    return {key: version.log_version for key, version in state.history.heads.items()}


def _heads(table: str, state: TableState) -> dict[str | None, Version]:
    refuse_dropped(table, state)
    if state.is_history:
        raise InvalidInput(
            f"{table} is a history of events, which has no partitions. Nothing was changed. Read rows of a time with "
            "as_at(…)."
        )
    heads = state.history.heads
    if not heads:
        raise VersionNotFound(f"{table} has no version, so no rows to repartition. Nothing was changed.")
    if state.history.unadopted is not None:
        raise InvalidInput(
            f"Another program committed to {table} last. Nothing was changed. Adopt it first, with adopt()."
        )
    if any(FEATURE_MEMBER in version.identity.custom for version in heads.values()):
        raise InvalidInput(
            f"{table} is of a feature, whose versions record their own samples. Nothing was changed. Drop it, and "
            "compute it with the new definition."
        )
    refuse_held(state, tuple(heads.values()))
    return heads


def _refuse_personal_key(key_of: KeyOf | None, hidden: Collection[str]) -> None:
    """Raise `InvalidInput` where a column that gives the keys of partitions is one of ``hidden``."""
    columns = [key_of] if isinstance(key_of, str) else []
    if isinstance(key_of, Mapping):
        columns = list(cast("Mapping[str, str]", key_of).values())
    if shown := [name for name in columns if name in hidden]:
        raise InvalidInput(
            f"Column {shown[0]!r} is personal, and the log would tell its values as keys of partitions. Nothing was "
            "changed. Choose another column."
        )


def _retyped(rows: pa.Table, types: Mapping[str, str], hidden: Collection[str]) -> pa.Table:
    """The rows with some columns in other types, which hold every value of them. Raises `InvalidInput`, which shows no
    value of ``hidden`` columns."""
    for name, text in types.items():
        column = _column(rows, name)
        wanted = type_to_arrow(
            parse_schema({"type": "struct", "fields": [{"name": name, "type": text}]}).field(name).type
        )
        try:
            found = column.cast(wanted)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise _unfit(name, column, text, "a value does not fit" if name in hidden else str(error)) from None
        floats = pa.types.is_floating(column.type) and pa.types.is_floating(found.type)
        if floats and not np.array_equal(column.drop_null(), found.drop_null().cast(column.type), equal_nan=True):
            raise _unfit(name, column, text, "digits would be lost")
        rows = rows.set_column(rows.column_names.index(name), name, found)
    return rows


def _unfit(name: str, column: "pa.ChunkedArray[Any]", text: str, why: str) -> InvalidInput:
    return InvalidInput(
        f"Column {name!r} is {column.type}, and not every value of it is one of {text}: {why}. Nothing was changed. "
        "Choose a type that holds them all, such as string."
    )


def _keys(rows: pa.Table, partitioning: Partitioning, key_of: KeyOf) -> "pa.ChunkedArray[Any]":
    if callable(key_of):
        given: Any = key_of(rows)
        keys = cast("Any", given if isinstance(given, pa.ChunkedArray) else _array(given))
        if len(keys) != rows.num_rows:
            raise InvalidInput(f"The function gave {len(keys)} keys for {rows.num_rows} rows. Nothing was changed.")
        return keys.cast(pa.string())
    if isinstance(key_of, str):
        if partitioning.kind == "multi":
            raise InvalidInput(
                f"Partitions of several dimensions need a column for each: {[n for n, _ in partitioning.dimensions]}. "
                "Nothing was changed."
            )
        return partitioning.keys_of(_column(rows, key_of), key_of)
    dimensions = dict(partitioning.dimensions)
    if dimensions.keys() != key_of.keys():
        raise InvalidInput(
            f"Columns are named for the dimensions {sorted(key_of)}, and there are {sorted(dimensions)}. Nothing was "
            "changed."
        )
    each = [dimension.keys_of(_column(rows, key_of[name]), key_of[name]) for name, dimension in partitioning.dimensions]
    return cast("Any", pc).binary_join_element_wise(*each, "|")


def _array(given: Any) -> Any:
    arrow: Any = pa
    return arrow.chunked_array([arrow.array(given)])


def _column(rows: pa.Table, name: str) -> "pa.ChunkedArray[Any]":
    if name not in rows.column_names:
        raise InvalidInput(
            f"There is no column {name!r:.100}. Nothing was changed. There are: "
            f"{', '.join(map(repr, rows.column_names))}."
        )
    return rows.column(name)


def _described(versions: Sequence[Version]) -> VersionDescription:
    """The description of a version that is made of the rows of others: what they share, and where all come from."""
    identities = [version.identity for version in versions]
    first = identities[0]
    same_code = all(identity.code_version == first.code_version for identity in identities)
    same_custom = all(identity.custom == first.custom for identity in identities)
    parents = dict.fromkeys(parent for identity in identities for parent in identity.parents)
    sources = dict.fromkeys(source for identity in identities for source in identity.source_lineage)
    return VersionDescription(
        asset_key=tuple(first.asset_key),
        table_type="derived" if any(identity.table_type == "derived" for identity in identities) else "imported",
        parents=tuple(parents),
        source_lineage=tuple(sources),
        code_version=first.code_version if same_code else None,
        custom=first.custom if same_custom else {},
    )
