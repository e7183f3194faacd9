"""SQL transforms: queries over histories of events, whatever engine runs them.

A transform keeps no state of its own. Inputs are histories that never change, so what a run appends follows from the
query, the intervals of its inputs, and what the output holds already. Source: seed 002 ("Query", "Engine Contract").
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from dagster_versioned.errors import InvalidInput
from dagster_versioned.tables.event_history import EventColumns

VALID_FROM, VALID_TO = "valid_from", "valid_to"
"""Columns of a temporal table: from when on a row was so, and until when (null: it still is)."""


@dataclass(frozen=True, slots=True)
class QueryStep:
    """One query of several; ``alias`` is what later ones call its result, the last one has none."""

    query: str
    alias: str | None = None


@dataclass(frozen=True, slots=True)
class TransformQuery:
    """The queries of a transform, the last of which gives its rows.

    ``inputs`` are what the queries call their inputs. ``temporal_tables`` are those of them that are seen as a table of
    versions, with the columns that tell one row's versions from another's: beside its columns, such an input has
    `VALID_FROM` and `VALID_TO`. The constructor raises `InvalidInput`.
    """

    inputs: tuple[str, ...]
    steps: tuple[QueryStep, ...]
    temporal_tables: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    def __post_init__(self) -> None:
        if not self.inputs:
            raise _refused("it has no inputs", "Name at least one: inputs={'alias': asset}.")
        self._check_steps()
        names = [*self.inputs, *(step.alias or "" for step in self.steps[:-1])]
        folded = [name.casefold() for name in names]
        if bad := next((name for name in names if not name or "`" in name), None):
            raise _refused(f"{bad!r} is no name of a table in SQL", "Give the input or the query an alias.")
        if twice := next((name for name in names if folded.count(name.casefold()) > 1), None):
            raise _refused(f"{twice!r} names two of its inputs and queries", "Call one something else.")
        for name, key in self.temporal_tables.items():
            if name not in self.inputs or not key:
                what = "without a primary key" if name in self.inputs else "no input"
                inputs = f"Its inputs are {', '.join(self.inputs):.300}."
                raise _refused(f"the temporal table {name!r} is {what}", inputs)

    def _check_steps(self) -> None:
        if not self.steps or any(not step.query.strip() for step in self.steps):
            raise _refused("it has no query, or an empty one", "Write one.")
        *named, last = self.steps
        if last.alias is not None or any(step.alias is None for step in named):
            raise _refused(
                "of several queries, each but the last needs an alias, and the last has none",
                "Its result is the result of the transform.",
            )


class QueryKind(Enum):
    """How what is new follows from what is new in the inputs."""

    MAP = "map"
    """Each row is made of one row of the one input: new rows of new events alone."""
    WHOLE = "whole"
    """Rows are made of several rows: what the query gives now, compared with what it gave before."""


@dataclass(frozen=True, slots=True)
class InputHistory:
    """What a run sees of an input: a frame of all its events up to the end of the run's interval, as they are stored.

    ``key`` are the columns that identify its rows, none where every row stands for itself. ``since`` is the
    last offset that an earlier run has seen.
    """

    events: Any
    columns: EventColumns
    key: Sequence[str] = ()
    since: int | None = None


@dataclass(frozen=True, slots=True)
class ColumnOrigin:
    """Where the values of a column of a result come from: columns of inputs, each as (input, column).

    ``expression`` is what computes it, as Spark says it; ``None`` where the values are copied.
    """

    column: str
    sources: tuple[tuple[str, str], ...]
    expression: str | None


@dataclass(frozen=True, slots=True)
class RowOrigin:
    """Why a row is in the result of a query, where its values come from, and how.

    ``rows`` are the input rows that it was made of, each as (input, offset); ``steps`` are those of the query, the
    reading of the inputs first. Source: seed 002 ("Provenance").
    """

    rows: tuple[tuple[str, int], ...]
    columns: tuple[ColumnOrigin, ...]
    steps: tuple[str, ...]


def _refused(reason: str, fix: str) -> InvalidInput:
    return InvalidInput(f"The transform cannot be used: {reason}. Nothing was written. {fix}")
