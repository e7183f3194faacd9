"""Table properties whose values have a grammar of their own."""

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from dagster_versioned.errors import InvalidInput

if TYPE_CHECKING:
    from dagster_versioned.delta.actions import Metadata

CHANGE_FEED = "delta.enableChangeDataFeed"

_UNITS = {
    "week": timedelta(weeks=1),
    "day": timedelta(days=1),
    "hour": timedelta(hours=1),
    "minute": timedelta(minutes=1),
    "second": timedelta(seconds=1),
    "millisecond": timedelta(milliseconds=1),
    "microsecond": timedelta(microseconds=1),
}
_INTERVAL = re.compile(r"(?:interval\s+)?((?:\d{1,9}\s+[a-z]+\s*)+)", re.ASCII)


def interval_ms(metadata: "Metadata", key: str) -> int | None:
    """A duration such as ``interval 30 days 12 hours`` in milliseconds; ``None`` where it is unset or unreadable.

    Months and years have no fixed length and are unreadable here, as they are to the reference.
    """
    return _milliseconds(metadata.configuration.get(key, ""))


def interval(metadata: "Metadata", key: str, default: timedelta) -> timedelta:
    """The duration that a property says; ``default`` where it is unset or unreadable."""
    milliseconds = interval_ms(metadata, key)
    return default if milliseconds is None else timedelta(milliseconds=milliseconds)


def earlier(moment: datetime, by: timedelta) -> datetime:
    """An aware moment so much earlier, but not before there was time."""
    try:
        return moment - by
    except OverflowError:
        return datetime.min.replace(tzinfo=moment.tzinfo)


def _milliseconds(text: str) -> int | None:
    match = _INTERVAL.fullmatch(text.strip().lower())
    if match is None:
        return None
    words = match[1].split()
    units = [_UNITS.get(unit.removesuffix("s")) for unit in words[1::2]]
    if None in units:
        return None
    try:
        total = sum((int(number) * unit for number, unit in zip(words[::2], units, strict=True) if unit), timedelta(0))
    except OverflowError:  # longer than there is time
        return None
    return total // timedelta(milliseconds=1)


# --- values that make sense ------------------------------------------------------------------------------------------


def _is_flag(text: str) -> bool:
    return text.lower() in ("true", "false")


def _is_duration(text: str) -> bool:
    return _milliseconds(text) is not None


def _is_number(text: str) -> bool:
    return re.fullmatch("[0-9]{1,9}", text) is not None


_FLAG = ("'true' or 'false'", _is_flag)
_DURATION = ("a duration such as 'interval 30 days' (months and years have no fixed length)", _is_duration)

_VALUES: dict[str, tuple[str, Callable[[str], bool]]] = {
    "delta.appendOnly": _FLAG,
    "delta.checkpoint.writeStatsAsJson": _FLAG,
    "delta.checkpoint.writeStatsAsStruct": _FLAG,
    CHANGE_FEED: _FLAG,
    "delta.enableDeletionVectors": _FLAG,
    "delta.enableExpiredLogCleanup": _FLAG,
    "delta.enableIcebergCompatV1": _FLAG,
    "delta.enableIcebergCompatV2": _FLAG,
    "delta.enableInCommitTimestamps": _FLAG,
    "delta.enableRowTracking": _FLAG,
    "delta.enableTypeWidening": _FLAG,
    "delta.enableVariantShredding": _FLAG,
    "delta.deletedFileRetentionDuration": _DURATION,
    "delta.logRetentionDuration": _DURATION,
    "delta.writePartitionColumnsToParquet": _FLAG,
    "delta.setTransactionRetentionDuration": _DURATION,
    "delta.checkpointInterval": ("a number above 0", lambda text: _is_number(text) and int(text) > 0),
    "delta.checkpointPolicy": ("'classic' or 'v2'", lambda text: text.lower() in ("classic", "v2")),
    "delta.columnMapping.mode": ("'none', 'name' or 'id'", lambda text: text.lower() in ("none", "name", "id")),
    "delta.dataSkippingNumIndexedCols": ("a number, or -1 for all", lambda text: text == "-1" or _is_number(text)),
    "delta.isolationLevel": (
        "'Serializable' or 'WriteSerializable'",
        lambda text: text.lower() in ("serializable", "writeserializable"),
    ),
}
"""What a property of the protocol or the reference may be: in words, and as a check."""


def require_values(properties: Mapping[str, str]) -> None:
    """Raise `InvalidInput` for a property whose value means nothing, before it stands in a table for good."""
    for key, value in properties.items():
        words, is_one = _VALUES.get(key, ("", lambda _: True))
        if not is_one(value):
            raise InvalidInput(f"The property {key} is {value!r:.50}; it must be {words}. Nothing was written.")
