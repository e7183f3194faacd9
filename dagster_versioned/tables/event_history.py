"""What a user says of a table that is a history of events: how frames become events, and what time they tell.

Source: seed 002 ("Merge Strategies", "Watermark", "Common Data Schema").
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    SerializerFunctionWrapHandler,
    Tag,
    field_validator,
    model_serializer,
    model_validator,
)


@dataclass(frozen=True, slots=True)
class EventColumns:
    """What the columns are called that every event has beside its data."""

    offset: str = "offset"
    operation_type: str = "op"
    system_time: str = "system_time"
    event_time: str = "event_time"

    @property
    def given(self) -> tuple[str, str, str]:
        """Those that only the history gives, never a frame."""
        return self.offset, self.operation_type, self.system_time

    @property
    def names(self) -> tuple[str, str, str, str]:
        """All, in the order in which they are stored."""
        return *self.given, self.event_time


class _Strategy(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @model_serializer(mode="wrap")
    def _with_strategy(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Always named: defaults are left out of asset metadata, and the name distinguishes strategies.
        return {"strategy": type(self).model_fields["strategy"].default, **handler(self)}


class _KeyedStrategy(_Strategy):
    primary_key: tuple[str, ...]
    """The columns that identify a row."""

    @field_validator("primary_key")
    @classmethod
    def _names_columns(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return _columns("primary_key", names)


class AppendMerge(_Strategy):
    """Every row is an event."""

    strategy: Literal["append"] = "append"
    """Which merge strategy it is."""


class LedgerMerge(_KeyedStrategy):
    """Rows whose ``primary_key`` was seen before are dropped, the others are events."""

    strategy: Literal["ledger"] = "ledger"
    """Which merge strategy it is."""


class SnapshotMerge(_KeyedStrategy):
    """Rows are all that there is now; what differs from what there was becomes events.

    A row is a new version of the one with the same ``primary_key``; it is changed where one of ``compare_columns``
    (default: all others) differs. A row that is there no more is retracted.
    """

    strategy: Literal["snapshot"] = "snapshot"
    """Which merge strategy it is."""
    compare_columns: tuple[str, ...] | None = None
    """The columns by which a row is known to have changed; by default all but the key."""

    @field_validator("compare_columns")
    @classmethod
    def _compares_columns(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if names is None else _columns("compare_columns", names)

    @model_validator(mode="after")
    def _compares_other_columns(self) -> Self:
        if both := sorted({*self.primary_key} & {*(self.compare_columns or ())}):
            raise ValueError(f"compare_columns names {both[0]!r}, a column of the primary key, which never differs")
        return self


class UpsertMerge(_KeyedStrategy):
    """Rows are put in place of those with their ``primary_key``, and rows of the operation *retract* take them back.

    A frame may have a column of operations (0 append, 1 retract, 2 and 3 from and to in a correction; null and no
    column: append). All but *retract* say what is so now; *correct from*, which says what was, is passed over.
    """

    strategy: Literal["upsert"] = "upsert"
    """Which merge strategy it is."""


class ChangelogMerge(_KeyedStrategy):
    """Rows are events already, each with its operation; they are appended as they are.

    A frame has a column of operations, as of an `UpsertMerge`; of a ``primary_key``, a *correct to* comes right after
    its *correct from*.
    """

    strategy: Literal["changelog"] = "changelog"
    """Which merge strategy it is."""


def _strategy(value: Any) -> str:
    named = value.get("strategy") if isinstance(value, dict) else getattr(value, "strategy", None)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return str(named)  # pyright: ignore[reportUnknownArgumentType]


MergeStrategy = Annotated[
    Annotated[AppendMerge, Tag("append")]
    | Annotated[LedgerMerge, Tag("ledger")]
    | Annotated[SnapshotMerge, Tag("snapshot")]
    | Annotated[UpsertMerge, Tag("upsert")]
    | Annotated[ChangelogMerge, Tag("changelog")],
    Discriminator(_strategy),
]
"""How the rows of a frame become events."""


class EventHistory(BaseModel):
    """A table that is a history: what an asset returns becomes events, and no event is ever changed or removed.

    Source: seed 002 ("Merge Strategies", "Watermark").
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    merge: MergeStrategy = AppendMerge()
    """How rows become events: `AppendMerge`, `LedgerMerge`, `SnapshotMerge`, `UpsertMerge` or `ChangelogMerge`."""
    event_time: str = "event_time"
    """The column that says when something happened in the world, a timestamp with a zone or a date.

    Where a frame lacks it, or has a null there, it is the time of the source: a partition's beginning, ``event_time``
    of a write, else now.
    """
    watermark: Literal["latest", "manual"] | timedelta = "latest"
    """The event time before which no more events are expected: the latest that was seen, a `timedelta` before that, or
    (``manual``) what a write gives."""
    offset: str = "offset"
    """The column with an event's place in the history; a frame must not have it."""
    operation_type: str = "op"
    """The column with what an event does: append, retract, correct; a frame must not have it, but for an `UpsertMerge`
    and a `ChangelogMerge`."""
    system_time: str = "system_time"
    """The column with the time at which an event was recorded; a frame must not have it."""

    @field_validator("watermark")
    @classmethod
    def _not_ahead(cls, watermark: Any) -> Any:
        if isinstance(watermark, timedelta) and watermark < timedelta(0):
            raise ValueError(f"a watermark stays behind the events by a time, and {watermark} is negative")
        return watermark

    @model_validator(mode="after")
    def _has_columns(self) -> Self:
        _columns("an EventHistory", self.columns.names)
        compared = (self.merge.compare_columns or ()) if isinstance(self.merge, SnapshotMerge) else ()
        if given := {*self.primary_key, *compared} & {*self.columns.given}:
            raise ValueError(f"{min(given)!r} is a column that events are given, so it cannot identify rows")
        if self.event_time in self.primary_key and isinstance(self.merge, SnapshotMerge):
            raise ValueError(f"{self.event_time!r} says when a row came to be as it is, so it is no key of a Snapshot")
        return self

    @property
    def primary_key(self) -> tuple[str, ...]:
        """The columns that identify a row; none where every row is an event of its own."""
        return () if isinstance(self.merge, AppendMerge) else self.merge.primary_key

    @property
    def takes_operations(self) -> bool:
        """Whether a frame may say what its rows do."""
        return isinstance(self.merge, UpsertMerge | ChangelogMerge)

    @property
    def columns(self) -> EventColumns:
        """What the columns are called that every event has beside its data."""
        return EventColumns(self.offset, self.operation_type, self.system_time, self.event_time)


def _columns(what: str, names: Sequence[str]) -> tuple[str, ...]:
    if not names or not all(names) or len({name.casefold() for name in names}) < len(names):
        raise ValueError(f"{what} must name columns, each once, and is {list(names)!r:.200}")
    return tuple(names)
