"""Rows into a table that has some: added to them, or put in the place of those with the same key.

What comes of it is said by file, so that a version keeps every file that nothing happened to. The rows of such a table
have no order (their digest is a bag), which is what makes its digest known without reading what stays.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dagster_versioned.delta.schema import StructField, StructType, schema_to_arrow
from dagster_versioned.engines.parts import Contents, Written
from dagster_versioned.engines.scan import Scan
from dagster_versioned.errors import InvalidInput
from dagster_versioned.identity.digest import BagDigest

EXAMPLES = 5
"""How many keys an error shows."""


@dataclass(frozen=True, slots=True)
class Increment:
    """What rows do to the files of a scan.

    ``replaced`` are the keys of the files that are no longer part of the table, and ``before`` is what they said.
    ``written`` holds their remaining rows and the new ones. ``inserted`` and ``updated`` count the new ones.
    """

    replaced: frozenset[str]
    before: Contents
    written: Written
    inserted: int
    updated: int

    def contents(self, base: Contents) -> Contents:
        """What the table says afterwards, ``base`` being what the scan says. Both under one schema, without order."""
        terms = ((base, 1), (self.before, -1), (self.written.contents, 1))
        bag = BagDigest(schema_to_arrow(base.schema))
        null_counts = [0] * len(base.schema.fields)
        for contents, sign in terms:
            bag.merge(*(sign * lane for lane in contents.digest.lanes))
            null_counts = [total + sign * count for total, count in zip(null_counts, contents.null_counts, strict=True)]
        digest = bag.finish()
        return Contents(base.schema, digest.nrow, tuple(null_counts), digest)


def nothing(schema: StructType) -> Contents:
    """What no rows say."""
    return Contents(schema, 0, (0,) * len(schema.fields), BagDigest(schema_to_arrow(schema)).finish())


def grown_schema(table: StructType, frame: StructType) -> StructType:
    """The table's columns, then those that only the frame has.

    Raises `InvalidInput` where the frame lacks a column, and `UnsupportedType` where it has one with another type.
    """
    if missing := [name for name in table.names if name not in frame.names]:
        raise InvalidInput(
            f"The frame has no column {missing[0]!r}, which the table has. Nothing was written. Add it, with nulls if "
            f"there is nothing to say. The table has: {', '.join(map(repr, table.names))}."
        )
    return table.union(frame)


def require_key(schema: StructType, key: Sequence[str]) -> None:
    """Raise `InvalidInput` unless the key names plain columns of the schema."""
    for name in key:
        if name not in schema.names:
            raise InvalidInput(
                f"merge_key names {name!r}, which is no column. Nothing was written. The frame has: "
                f"{', '.join(map(repr, schema.names))}."
            )
        if not isinstance(schema.field(name).type, str):
            raise InvalidInput(f"merge_key names {name!r}, a nested column. Nothing was written. Name plain columns.")


def refuse_bad_rows(key: Sequence[str], nulls: int, repeated: int, examples: Callable[[], object]) -> None:
    """Raise `InvalidInput` if ``nulls`` rows of a frame have no key or ``repeated`` keys have several rows."""
    if nulls or repeated:
        raise InvalidInput(
            f"The merge_key {list(key)} does not identify the rows of the frame: {nulls} rows have a null in it, and "
            f"{repeated} keys have more than one row, for example {examples()}. Nothing was written. Add columns to "
            "the key, or drop these rows."
        )


def refuse_repeated_in_table(key: Sequence[str], repeated: int, examples: Callable[[], object]) -> None:
    """Raise `InvalidInput` if ``repeated`` keys of the frame have several rows in the table."""
    if repeated:
        raise InvalidInput(
            f"The merge_key {list(key)} does not identify the rows of the table: {repeated} keys of the frame have "
            f"more than one row there, for example {examples()}. Nothing was written. Add columns to the key, or "
            "replace the table once with rows that the key identifies."
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


def as_examples(rows: Sequence[Mapping[str, Any]]) -> str:
    """Keys as an error shows them."""
    return ", ".join(str(dict(row)) for row in rows[:EXAMPLES])
