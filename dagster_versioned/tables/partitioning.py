"""What the partitions of a table are, by what their keys mean: so that no key can overlap another.

A month written among days holds their rows a second time. So a table remembers what its keys are keys of, and a key
that means something else is refused. How many partitions there are, and where they begin and end, is none of it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
import pyarrow.compute as pc

from dagster_versioned.errors import InvalidInput

Kind = Literal["time_window", "static", "dynamic", "multi"]
"""Windows of time, names that are listed, names that come and go, or several dimensions."""

Cadence = Literal["hourly", "daily", "weekly", "monthly"]
"""How often windows begin, where they begin regularly."""


class _Calendar(NamedTuple):
    """Windows that begin with each unit of the clock: none of them is longer than the period."""

    cron: str
    unit: str
    period: timedelta
    key_format: str = "%Y-%m-%d"


_CALENDARS: Mapping[Cadence, _Calendar] = {
    "hourly": _Calendar("0 * * * *", "hour", timedelta(hours=1), "%Y-%m-%d-%H:%M"),
    "daily": _Calendar("0 0 * * *", "day", timedelta(days=1)),
    "weekly": _Calendar("0 0 * * 0", "week", timedelta(days=7)),
    "monthly": _Calendar("0 0 1 * *", "month", timedelta(days=31)),
}
_ALIASES = {f"@{cadence}": calendar.cron for cadence, calendar in _CALENDARS.items()} | {
    "@midnight": _CALENDARS["daily"].cron,
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_DIMENSIONS_JOINED = "|"

_compute: Any = pc  # whose stubs know no arrays of any type


@dataclass(frozen=True)
class _Rhythm:
    """Windows that begin ``offset`` after the beginning of each hour, day, week (Sunday) or month."""

    cadence: Cadence
    offset: timedelta

    @classmethod
    def of(cls, cron: str) -> Self | None:
        """That of a cron schedule; ``None`` where windows begin otherwise."""
        fields = [int(field) if re.fullmatch("[0-9]+", field) else field for field in cron.split()]
        match fields:
            case [int(minute), "*", "*", "*", "*"]:
                return cls("hourly", timedelta(minutes=minute))
            case [int(minute), int(hour), "*", "*", "*"]:
                return cls("daily", timedelta(hours=hour, minutes=minute))
            case [int(minute), int(hour), "*", "*", int(weekday)]:
                return cls("weekly", timedelta(days=weekday % 7, hours=hour, minutes=minute))
            case [int(minute), int(hour), int(day), "*", "*"] if 1 <= day <= 28:
                return cls("monthly", timedelta(days=day - 1, hours=hour, minutes=minute))
            case _:
                return None

    def starts(self, moments: Any) -> Any:
        """The beginning of the window of each moment, all of them on the wall clock."""
        offset = pa.scalar(self.offset, pa.duration("us"))
        unit = _CALENDARS[self.cadence].unit
        floored = _compute.floor_temporal(_compute.subtract(moments, offset), unit=unit, week_starts_monday=False)
        return _compute.add(floored, offset)

    @property
    def is_at_night(self) -> bool:
        """Whether windows begin at an hour in which Dagster minds that the clock is set (`DAYLIGHT_SAVINGS_HOURS`)."""
        return self.offset // timedelta(hours=1) % 24 in (1, 2, 3)

    def next_start(self, moment: datetime) -> datetime:
        """The beginning of the first window that does not begin before a moment, on the wall clock."""
        start = self.start(moment)
        return start if start == moment else self.start(start + _CALENDARS[self.cadence].period)

    def start(self, moment: datetime) -> datetime:
        return self.starts(pa.chunked_array([pa.array([moment], pa.timestamp("us"))]))[0].as_py()


@dataclass(frozen=True)
class Partitioning:
    """What the partitions of a table are: their kind, and of windows of time also when they begin and how keys name it.

    ``cron``, ``format`` (as for `datetime.strftime`) and ``timezone`` are those of windows, ``dimensions`` (by name)
    those of partitions of several dimensions. Make one with `time_windows`, `names` or `multi`.
    """

    kind: Kind
    cron: str | None = None
    format: str | None = None
    timezone: str | None = None
    dimensions: tuple[tuple[str, "Partitioning"], ...] = ()

    @classmethod
    def time_windows(cls, schedule: str = "daily", *, key_format: str | None = None, timezone: str = "UTC") -> Self:
        """Windows that begin ``hourly``, ``daily``, ``weekly``, ``monthly``, or as a cron schedule says.

        Raises `InvalidInput` for a cron schedule without a format of keys, and for what is none.
        """
        known = {str(cadence): calendar.cron for cadence, calendar in _CALENDARS.items()}
        cron = known.get(schedule, _ALIASES.get(schedule.lower(), " ".join(schedule.split())))
        if len(cron.split()) != 5:
            raise InvalidInput(
                f"{schedule!r:.100} is no schedule: give {', '.join(known)}, or a cron schedule of five fields. "
                "Nothing was changed."
            )
        rhythm = _Rhythm.of(cron)
        if not key_format and rhythm is not None:
            key_format = _CALENDARS[rhythm.cadence].key_format
        if not key_format:
            raise InvalidInput(
                f"The windows of {cron!r:.100} need a format of keys: key_format='…'. Nothing was changed."
            )
        return cls("time_window", cron, key_format, timezone)

    @classmethod
    def names(cls, kind: Literal["static", "dynamic"] = "static") -> Self:
        """Partitions that are named, each by its key."""
        return cls(kind)

    @classmethod
    def multi(cls, dimensions: "Mapping[str, Partitioning]") -> Self:
        """Partitions of several dimensions, whose keys are joined with ``|`` in the order of the dimensions' names."""
        return cls("multi", dimensions=tuple(sorted(dimensions.items())))

    @classmethod
    def parse(cls, raw: object) -> "Partitioning | None":
        """What a log records; ``None`` where it is not in a form that is known."""
        match cast("Any", raw):
            case {"kind": "static" | "dynamic" as kind}:
                return cls(kind)
            case {"kind": "time_window", "cron": str(cron), "format": str(key_format), "timezone": str(timezone)}:
                return cls("time_window", cron, key_format, timezone)
            case {"kind": "multi", "dimensions": inner} if isinstance(inner, Mapping):
                parsed = {str(name): cls.parse(value) for name, value in cast("Mapping[Any, Any]", inner).items()}
                known = {name: definition for name, definition in parsed.items() if definition is not None}
                return cls.multi(known) if len(known) == len(parsed) else None
            case _:
                return None

    def to_json(self) -> dict[str, Any]:
        """What a log records (FORMAT.md, What a table is)."""
        if self.kind == "multi":
            return {"kind": "multi", "dimensions": {name: dimension.to_json() for name, dimension in self.dimensions}}
        if self.kind == "time_window":
            return {"kind": self.kind, "cron": self.cron, "format": self.format, "timezone": self.timezone}
        return {"kind": self.kind}

    def means_the_same(self, other: "Partitioning") -> bool:
        """Whether equal keys mean the same partition and other keys another one. A name is a name, listed or not."""
        if self.kind == other.kind == "multi":
            mine, theirs = dict(self.dimensions), dict(other.dimensions)
            return mine.keys() == theirs.keys() and all(mine[name].means_the_same(theirs[name]) for name in mine)
        named = ("static", "dynamic")
        return self == other or (self.kind in named and other.kind in named)

    def unknown_keys(self, keys: Iterable[str]) -> list[str]:
        """The keys that are none of these partitions: not in the format, or not the beginning of a window."""
        return [key for key in keys if not self._holds(key)]

    def keys_of(self, values: "pa.ChunkedArray[Any]", column: str) -> "pa.ChunkedArray[Any]":
        """The key of each value of a column: as text where partitions are named, else of the window that it is in.

        Dates and times without a zone are read off the wall clock of the windows' zone; text is a key already. Raises
        `InvalidInput` for a column of another type, and for windows that do not begin regularly.
        """
        kind: Any = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
        moments: Any = values.cast(kind)
        is_time = pa.types.is_date(kind) or pa.types.is_timestamp(kind)
        if self.kind != "time_window" or not is_time:
            return _texts(moments, kind, column)
        if self._rhythm is None:
            raise InvalidInput(
                f"Windows of {self.cron!r} in {self.timezone} begin neither hourly, daily, weekly nor monthly by the "
                "clock, so the key of a time is not known here. Nothing was changed. Name a column that holds keys, "
                f"instead of {column!r}."
            )
        zone = str(self.timezone)
        if getattr(kind, "tz", None) is not None:
            zoned = moments.cast(cast("Any", pa.timestamp("us", tz=zone)), safe=False)
        else:
            wall = moments.cast(pa.timestamp("us"), safe=False)
            zoned = self._read_off(wall, self._rhythm)
        if self._rhythm.cadence == "hourly":
            return self._keys_of_hours(zoned, self._rhythm)
        return self._keys_of_days(zoned, self._rhythm)

    def _keys_of_days(self, moments: Any, rhythm: _Rhythm) -> "pa.ChunkedArray[Any]":
        """The keys of moments in the windows' zone, where windows are longer than what the clock is set by."""
        floored = rhythm.starts(_compute.local_timestamp(moments))
        before, after = (
            rhythm.starts(_compute.add(floored, pa.scalar(step, pa.duration("us"))))
            for step in (-timedelta(microseconds=1), _CALENDARS[rhythm.cadence].period)
        )
        # The clock may have been set between the floor and the moment: then that window has not begun, or another has.
        at_floor = _compute.if_else(_compute.greater(self._begun(floored, rhythm), moments), before, floored)
        starts = _compute.if_else(_compute.less_equal(self._begun(after, rhythm), moments), after, at_floor)
        return self._names_of_days(starts, rhythm)

    def _read_off(self, wall: Any, rhythm: _Rhythm) -> Any:
        """Moments that a wall clock shows; one that it never shows is of the window before, as when rows are split."""
        if rhythm.cadence != "hourly" and not rhythm.is_at_night:
            return self._begun(wall, rhythm)
        ambiguous = "earliest" if rhythm.cadence == "hourly" else "latest"
        return _compute.assume_timezone(wall, str(self.timezone), ambiguous=ambiguous, nonexistent="earliest")

    def _begun(self, starts: Any, rhythm: _Rhythm) -> Any:
        """When windows begin whose beginnings on the wall clock are given. Source: Dagster's `_replace_date_fields`."""
        zone = str(self.timezone)
        if rhythm.is_at_night:
            return _compute.assume_timezone(starts, zone, ambiguous="latest", nonexistent="latest")
        begun = _compute.assume_timezone(starts, zone, ambiguous="earliest", nonexistent="earliest")
        return _compute.add(begun, _compute.subtract(starts, _compute.local_timestamp(begun)))

    def _names_of_days(self, starts: Any, rhythm: _Rhythm) -> "pa.ChunkedArray[Any]":
        named = self._begun(starts, rhythm) if rhythm.is_at_night or "%z" in str(self.format) else starts
        # Arrow prints fractions of a second in the precision of the type.
        return _compute.strftime(named.cast(pa.timestamp("s", named.type.tz)), format=self.format)

    def _keys_of_hours(self, moments: Any, rhythm: _Rhythm) -> "pa.ChunkedArray[Any]":
        """The keys of moments in the windows' zone. Of two hours that have one name, the second one has its offset."""
        wall = _compute.local_timestamp(moments)
        # As far back as the wall clock says, but on no clock: between may lie an hour that comes twice.
        starts = _compute.subtract(moments, _compute.subtract(wall, rhythm.starts(wall)))
        zone = str(self.timezone)
        seconds = starts.cast(pa.timestamp("s", zone))
        if "%z" in str(self.format):
            return _compute.strftime(seconds, format=self.format)
        named = _compute.local_timestamp(starts)
        first = _compute.assume_timezone(named, zone, ambiguous="earliest", nonexistent="earliest")
        keys = _compute.strftime(named.cast(pa.timestamp("s")), format=self.format)
        with_offset = _compute.strftime(seconds, format=self._format_with_offset)
        return _compute.if_else(_compute.equal(first, starts), keys, with_offset)

    @property
    def _format_with_offset(self) -> str:
        """The format of the key of an hour that comes a second time. Source: Dagster's `dst_safe_strftime`."""
        return f"{self.format}%z"

    def __str__(self) -> str:
        if self.kind == "time_window":
            cadence = self._rhythm.cadence if self._rhythm else "time"
            return f"{cadence} windows (cron {self.cron!r}, keys {self.format!r}, {self.timezone})"
        if self.kind == "multi":
            return " by ".join(f"{name}: {dimension}" for name, dimension in self.dimensions)
        return f"{self.kind} names"

    @cached_property
    def _rhythm(self) -> _Rhythm | None:
        rhythm = _Rhythm.of(self.cron) if self.cron is not None else None
        # Where the clock is set by half an hour, Dagster's hours begin at :30 from then on, or not: as it came there.
        return None if rhythm and rhythm.cadence == "hourly" and self._is_set_by_less_than_hours else rhythm

    @property
    def _is_set_by_less_than_hours(self) -> bool:
        try:
            zone = ZoneInfo(str(self.timezone))
        except (ValueError, ZoneInfoNotFoundError):
            return False
        winter, summer = (datetime(2025, month, 1, tzinfo=zone).utcoffset() for month in (1, 7))
        return bool((cast("timedelta", winter) - cast("timedelta", summer)) % timedelta(hours=1))

    def _exists(self, wall: datetime) -> bool:
        """Whether the wall clock of the windows' zone shows a time, which it does not while it is set forward."""
        try:
            moment = wall.replace(tzinfo=ZoneInfo(str(self.timezone)))
        except (ValueError, ZoneInfoNotFoundError):
            return True
        return moment.astimezone(UTC).astimezone(moment.tzinfo).replace(tzinfo=None) == wall

    def _holds(self, key: str) -> bool:
        if self.kind == "multi":
            each = key.split(_DIMENSIONS_JOINED)
            return len(each) == len(self.dimensions) and all(
                dimension._holds(part) for (_, dimension), part in zip(self.dimensions, each, strict=True)
            )
        return self.kind != "time_window" or self._is_window(key)

    def _is_window(self, key: str) -> bool:
        try:
            moment = datetime.strptime(key, self.format or "")
        except ValueError:
            return self._is_second(key)
        if self._rhythm is None or moment.tzinfo is not None:
            return True
        # A key may say less than when its window begins, such as the day of one that begins at six, or a later time:
        # what would begin while the clock is set forward begins after that.
        start = self._rhythm.next_start(moment)
        if start.strftime(self.format or "") == key and self._exists(start):
            return True
        walls = pa.chunked_array([pa.array([self._rhythm.start(moment), start], pa.timestamp("us"))])
        return self._rhythm.cadence != "hourly" and key in self._names_of_days(walls, self._rhythm).to_pylist()

    def _is_second(self, key: str) -> bool:
        """Whether a key is of a window that begins in an hour which comes a second time, as the clock is set back."""
        if str(self.cron).split()[1] != "*":
            return False
        try:
            wall = datetime.strptime(key, self._format_with_offset).replace(tzinfo=None)
            wall = self._rhythm.next_start(wall) if self._rhythm else wall
            first, second = (wall.replace(tzinfo=ZoneInfo(str(self.timezone)), fold=fold) for fold in (0, 1))
        except (ValueError, ZoneInfoNotFoundError):
            return False
        came_back = cast("timedelta", first.utcoffset()) > cast("timedelta", second.utcoffset())
        return came_back and second.strftime(self._format_with_offset) == key


def _texts(values: Any, kind: Any, column: str) -> "pa.ChunkedArray[Any]":
    """Values as keys. Raises `InvalidInput` for those of a type that have no text, or no one text."""
    if pa.types.is_nested(kind) or pa.types.is_floating(kind) or pa.types.is_binary(kind):
        raise InvalidInput(
            f"The column {column!r} has the type {kind}, which gives no partition key. Nothing was changed. "
            "Name a column of text, whole numbers, dates or timestamps."
        )
    return (values.cast(pa.date32()) if pa.types.is_date(kind) else values).cast(pa.string())


def difference(known: Partitioning | None, given: Partitioning, keys: Iterable[str | None], of: str) -> str | None:
    """How partitions that are taken for a table's are not; ``None`` where they are.

    ``known`` are those that the table remembers, ``keys`` the partitions that it has; ``of`` says whose the given are.
    """
    there = list(keys)
    if None in there:
        return f"it was written as a whole table, and the partitions of {of} are {given}"
    if known is not None:
        return None if known.means_the_same(given) else f"its partitions are {known}, and those of {of} {given}"
    strange = given.unknown_keys(map(str, there))
    return f"the partitions of {of} are {given}, and it has {shown(strange)}" if strange else None


def misread(name: str, known: Partitioning | None, given: Partitioning, keys: Iterable[str | None]) -> str | None:
    """Why a table is not to be read by the keys of the given partitions; ``None`` where it may be.

    Equal keys of other partitions are of other rows: the first day of a month has the key of the month.
    """
    how = difference(known, given, keys, "the asset")
    return how and (
        f"{name} cannot be read by the partitions of its asset, whose keys mean other rows: {how}. Nothing was read. "
        "Restore the partitions definition of the asset, or turn the rows that are there into partitions of it: "
        f"`dagster-versioned repartition {name}`."
    )


def shown(keys: Sequence[str], count: int = 5) -> str:
    """The first few keys, and how many more there are."""
    text = ", ".join(map(repr, keys[:count]))
    return text if len(keys) <= count else f"{text} and {len(keys) - count} more"
