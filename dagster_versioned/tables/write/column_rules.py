"""The rules that other programs gave a table's columns, which a commit of versions keeps, or is refused for.

Generated and identity columns and invariants are features whose tables hold no versions; NOT NULL needs no feature.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dagster_versioned.delta.commit.write_rules import Inside, WriteRules
from dagster_versioned.delta.log.snapshot import Snapshot
from dagster_versioned.delta.schema.types import StructField, StructType
from dagster_versioned.delta.schema.widening import CHANGES
from dagster_versioned.errors import InvalidInput, UnsupportedFeature

NullCounts = tuple[StructType, Sequence[int], int]
"""The columns of a version, how many nulls each has, and how many rows there are."""


def with_column_rules(table: Snapshot, schema: StructType, versions: Iterable[NullCounts]) -> StructType:
    """The schema that a table is to have, with what its columns demand now: a column that goes takes its rule along.

    ``versions`` are those that the commit makes current. Raises `InvalidInput` where one has a null in a column that is
    NOT NULL, and `UnsupportedFeature` where a field within a column is.
    """
    # What is inside of lists and maps may be null in every version, and with their types in the table's schema.
    required = [
        path for path in WriteRules.of_snapshot(table).not_null if not any(isinstance(step, Inside) for step in path)
    ]
    for path in required:
        if len(path) > 1 and path[0] in schema.names:
            raise UnsupportedFeature(
                f"Column {path[0]!r} of the table holds the NOT NULL field {'.'.join(path)!r}, by another program, and "
                "versions do not count the nulls within columns. Nothing was written. Take the rule away with that "
                "program."
            )
    never_null = [path[0] for path in required if path[0] in schema.names]
    for columns, null_counts, nrow in versions:
        counts = dict(zip(columns.names, null_counts, strict=True))
        for name in never_null:
            if nulls := counts.get(name, nrow):  # who has not the column is null in it
                raise InvalidInput(
                    f"Column {name!r} of the table is NOT NULL, by another program, and is null in {nulls} rows. "
                    "Nothing was written. Correct the rows, or take the rule away with that program."
                )
    known = {member.name: member for member in table.schema.fields}
    return StructType(tuple(_kept(known.get(member.name, member), member) for member in schema.fields))


def _kept(known: StructField, member: StructField) -> StructField:
    """A column, as nullable as it was; where it has its type still, what else is known of it stays."""
    noted: Mapping[str, Any] = known.metadata if known.type == member.type else member.metadata
    noted = {key: value for key, value in noted.items() if key != CHANGES}  # of files that may have gone
    return replace(member, nullable=known.nullable, metadata={**noted, **member.metadata})
