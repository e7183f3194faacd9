"""Rows into a table that has some: added to them, or put in the place of those with the same key.

The result is described by file, so that a version keeps every file that nothing happened to. The rows of such a table
have no order (their digest is a bag), which is what makes its digest known without reading what stays.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagster_versioned.delta.files.deletion_vectors import deleted_rows
from dagster_versioned.delta.schema.schema_merge import common_schema
from dagster_versioned.delta.schema.types import StructField, StructType, schema_to_arrow
from dagster_versioned.engines.comparison import BadKeys, as_examples, refuse_bad_keys
from dagster_versioned.engines.parts import RowsSummary, StagedParts
from dagster_versioned.engines.scan import Scan, ScanFile
from dagster_versioned.errors import IntegrityError, InvalidInput
from dagster_versioned.identity.digest import BagDigest

MOST_DELETED = 0.5
"""Of the rows of a file; one that would lose more is written anew, so that no version reads mostly what is gone."""

Positions = NDArray[np.int64]
"""Of rows in a file, counted from 0."""


@dataclass(frozen=True, slots=True)
class RowMatch:
    """Which rows of a table go as those of a frame come: the ones with the same ``key``.

    With ``on``, also all others that agree in these columns with a row of the frame, or of ``gone``: a pinned frame of
    the same engine that has them in the table's types. ``named`` is what errors call the key. ``rewrite`` says that the
    table's files do not hold the types of the scan, so that none stays as it is. ``given`` is what the frame says, if
    somebody knows. ``personal`` are columns whose values no error shows.
    """

    key: tuple[str, ...]
    named: str = "merge_key"
    on: tuple[str, ...] = ()
    gone: Any = None
    rewrite: bool = False
    given: RowsSummary | None = None
    personal: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Upsert:
    """What rows do to the files of a scan.

    ``replaced`` are the keys of the files that are no longer part of the table; ``deleted`` has, for files that stay
    without some of their rows, the positions of all that they have lost. ``before`` is what the files that are replaced
    with the rows that are deleted now. ``written`` holds the remaining rows of the former and the new ones.
    ``inserted`` and ``updated`` count the new ones, ``removed`` those in whose place none came. ``changes``, where it
    was asked for, writes what was inserted, updated and removed, with a column that says which (`CHANGE_TYPE`).
    ``stands``, where rows were compared by position, says whether the files that stay, without the rows at such
    positions, and what is written have the very rows of the frame.
    """

    replaced: frozenset[str]
    before: RowsSummary
    written: StagedParts
    inserted: int
    updated: int
    removed: int = 0
    deleted: Mapping[str, Positions] = field(default_factory=dict[str, Positions])
    changes: Callable[[], StagedParts] | None = None
    stands: Callable[[Mapping[str, Positions]], bool] | None = None

    def contents(self, base: RowsSummary) -> RowsSummary:
        """What the table says afterwards, ``base`` being what the scan says. Both under one schema, without order."""
        return summed(base.schema, ((base, 1), (self.before, -1), (self.written.contents, 1)))


def summed(schema: StructType, terms: Iterable[tuple[RowsSummary, int]]) -> RowsSummary:
    """What rows without an order say together; those with the sign -1 are taken away."""
    bag = BagDigest(schema_to_arrow(schema))
    null_counts = [0] * len(schema.fields)
    for contents, sign in terms:
        bag.merge(*(sign * lane for lane in contents.digest.lanes))
        null_counts = [total + sign * count for total, count in zip(null_counts, contents.null_counts, strict=True)]
    digest = bag.finish()
    return RowsSummary(schema, digest.nrow, tuple(null_counts), digest)


def nothing(schema: StructType) -> RowsSummary:
    """What no rows say."""
    return summed(schema, ())


def deleted_from(scan: Scan, file: ScanFile, gone: Positions, live: int | None = None) -> Positions | None:
    """The positions of all rows that a file has lost once it loses those at ``gone`` as well.

    ``None`` where the file is to be written anew instead: it would lose too many, or nobody knows how many it has.
    Where ``live`` is given, ``gone`` are counted among the rows that it has not lost yet, of which there are so many;
    else among all of them. Raises `IntegrityError`.
    """
    if file.num_records is None:
        return None
    vector = file.deletion_vector
    before = np.zeros(0, np.int64)
    if vector is not None:
        before = deleted_rows(scan.store, vector, file.num_records, file.key, file.vector_sha)
    if live is not None:
        left = np.delete(np.arange(file.num_records), before)
        if len(left) != live:
            raise IntegrityError(
                f"The part {file.key} in {scan.store.uri} has {live + len(before)} rows, but {file.num_records} by its "
                "statistics. Nothing was written. Run verify on the table."
            )
        gone = left[gone]
    lost = np.zeros(file.num_records, np.bool_)
    lost[before] = lost[gone] = True
    after = np.flatnonzero(lost)
    return after if may_stay(file, len(after) - len(before)) else None


def may_stay(file: ScanFile, going: int) -> bool:
    """Whether a file of which so many more rows go is better left in place than written anew."""
    lost = going + (file.deletion_vector.cardinality if file.deletion_vector else 0)
    return file.num_records is not None and lost <= MOST_DELETED * file.num_records


def grown_schema(table: StructType, frame: StructType) -> StructType:
    """The table's columns, as wide as both need them, then those that only the frame has.

    Raises `InvalidInput` where the frame lacks a column, and `UnsupportedType` where no type holds both.
    """
    require_all_columns(table, frame)
    return common_schema(table, frame)


def require_all_columns(table: StructType, frame: StructType) -> None:
    """Raise `InvalidInput` where the frame lacks a column of the table."""
    if missing := [name for name in table.names if name not in frame.names]:
        raise InvalidInput(
            f"The frame has no column {missing[0]!r}, which the table has. Nothing was written. Add it, with nulls if "
            f"there is nothing to say. The table has: {', '.join(map(repr, table.names))}."
        )


def require_key(schema: StructType, key: Sequence[str], named: str = "merge_key") -> None:
    """Raise `InvalidInput` unless the key names plain columns of the schema."""
    for name in key:
        if name not in schema.names:
            raise InvalidInput(
                f"{named} names {name!r}, which is no column. Nothing was written. The frame has: "
                f"{', '.join(map(repr, schema.names))}."
            )
        if not isinstance(schema.field(name).type, str):
            raise InvalidInput(f"{named} names {name!r}, a nested column. Nothing was written. Name plain columns.")


def refuse_bad_rows(matching: RowMatch, bad: BadKeys) -> None:
    """Raise `InvalidInput` if the key does not identify the rows of the frame."""
    refuse_bad_keys(matching.named, matching.key, "the frame", bad, "Nothing was written.", matching.personal)


def refuse_repeated_in_table(
    matching: RowMatch, repeated: int, examples: Callable[[], Sequence[Mapping[str, Any]]]
) -> None:
    """Raise `InvalidInput` if ``repeated`` keys of the frame have several rows in the table."""
    if repeated:
        raise InvalidInput(
            f"The {matching.named} {list(matching.key)} does not identify the rows of the table: {repeated} keys of "
            f"the frame have more than one row there, for example {as_examples(examples(), matching.personal)}. "
            "Nothing was written. Add columns to the key, or replace the table once with rows that the key identifies."
        )


def marked(scan: Scan, columns: Sequence[str] | None = None) -> tuple[Scan, str]:
    """The scan with one more column, and its name: the number of the file that a row is from."""
    name = "_file"
    while name in scan.schema.names:
        name = f"_{name}"
    files = tuple(
        replace(file, partition_values={**file.partition_values, name: str(i)}) for i, file in enumerate(scan.files)
    )
    schema = StructType((*scan.schema.fields, StructField(name, "integer")))
    return replace(scan, schema=schema, files=files, columns=None if columns is None else (*columns, name)), name
