"""Expressions as they are evaluated, and the columns that they may use; `engines.sql` makes and evaluates them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from dagster_versioned.delta.files.file_actions import no_rows
from dagster_versioned.delta.schema.types import StructType, type_to_arrow
from dagster_versioned.errors import InvalidExpression, InvalidInput

INTEGERS = {"TINYINT": "byte", "SMALLINT": "short", "INT": "integer", "BIGINT": "long"}


def stored(side: str, column: str) -> str:
    """What a column of a side is called in the tables that are evaluated."""
    return f"{side}.{column}"


def quoted(side: str, column: str) -> str:
    """The same in SQL."""
    return in_quotes(stored(side, column))


def in_quotes(name: str) -> str:
    """A name in DuckDB's SQL."""
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True)
class ResolvedExpression:
    """An expression for DuckDB over tables whose columns are called as `stored` says, and the columns it needs."""

    text: str
    sql: str
    columns: frozenset[tuple[str, str]]

    @property
    def plain_column(self) -> tuple[str, str] | None:
        """The side and the column, where the expression is nothing else."""
        if len(self.columns) != 1:
            return None
        (column,) = self.columns
        return column if self.sql == quoted(*column) else None

    def of(self, side: str) -> frozenset[str]:
        """The columns of one side."""
        return frozenset(column for name, column in self.columns if name == side)


class Columns:
    """Columns of one table or of two sides: found without regard to case.

    A name that several sides have needs its side's name before it. ``now`` is what `current_timestamp` says.
    """

    def __init__(self, sides: Mapping[str, StructType], now: datetime) -> None:
        self._sides = {side.casefold(): (side, schema) for side, schema in sides.items()}
        self.now = now
        self.rows = no_rows(pa.schema([field for side, schema in sides.items() for field in _fields(schema, side)]))

    def column(self, name: str, side: str | None = None) -> tuple[str, str]:
        """The side and the column that a name, alone or behind its side's, means. Raises `InvalidInput`."""
        return self.find([name] if side is None else [side, name], name)[:2]

    def find(self, parts: list[str], text: str) -> tuple[str, str, list[str]]:
        """The side, the column, and the fields of structs below it. Raises `InvalidInput`."""
        named, known = self._sides.get(parts[0].casefold(), ("", StructType([])))
        if len(parts) > 1 and (column := _column(known, parts[1])) is not None:
            return named, column, parts[2:]
        found = [
            (side, column, parts[1:])
            for side, schema in self._sides.values()
            if (column := _column(schema, parts[0])) is not None
        ]
        if len(found) == 1:
            return found[0]
        if found:
            sides = " and ".join(side for side, _, _ in found)
            raise refused(text, f"{parts[0]!r} is a column of {sides}: write {found[0][0]}.{parts[0]}")
        columns = [name for _, schema in self._sides.values() for name in schema.names]
        raise refused(text, f"there is no column {'.'.join(parts)!r} (there are: {', '.join(columns):.500})")


def _column(schema: StructType, name: str) -> str | None:
    folded = name.casefold()
    return next((known for known in schema.names if known.casefold() == folded), None)


def refused(text: str, reason: str) -> InvalidInput:
    """The error for an expression that is not evaluated."""
    return InvalidExpression(f"The expression {text!r:.300} cannot be used: {reason}. Nothing was written.")


def _fields(schema: StructType, side: str) -> "list[pa.Field[Any]]":
    return [pa.field(stored(side, field.name), type_to_arrow(field.type)) for field in schema.all_nullable().fields]
