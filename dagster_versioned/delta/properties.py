"""Table properties whose values have a grammar of their own."""

import re
from datetime import timedelta

from dagster_versioned.delta.actions import Metadata

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


def interval_ms(metadata: Metadata, key: str) -> int | None:
    """A duration such as ``interval 30 days 12 hours`` in milliseconds; ``None`` where it is unset or unreadable.

    Months and years have no fixed length and are unreadable here, as they are to the reference.
    """
    match = _INTERVAL.fullmatch(metadata.configuration.get(key, "").strip().lower())
    if match is None:
        return None
    words = match[1].split()
    units = [_UNITS.get(unit.removesuffix("s")) for unit in words[1::2]]
    if None in units:
        return None
    total = sum((int(number) * unit for number, unit in zip(words[::2], units, strict=True) if unit), timedelta(0))
    return total // timedelta(milliseconds=1)
