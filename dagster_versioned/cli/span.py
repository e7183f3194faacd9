"""Spans of time as people type them: ``90d``, ``12h``, or a date."""

import re
from datetime import UTC, datetime, timedelta

from dagster_versioned.errors import InvalidInput

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_span(text: str) -> timedelta:
    """``30s``, ``15m``, ``12h``, ``90d`` or ``4w``. Raises `InvalidInput`."""
    match = re.fullmatch(r"([0-9]{1,9})([smhdw])", text.strip())
    try:
        if match:
            return timedelta(**{_UNITS[match[2]]: int(match[1])})
    except OverflowError:
        pass
    raise InvalidInput(f"{text!a:.50} is no span of time. Give a number and a unit: 30s, 15m, 12h, 90d or 4w.")


def parse_moment(text: str, now: datetime) -> datetime:
    """A span before ``now``, or an ISO 8601 date or time (UTC where it names no zone). Raises `InvalidInput`."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        pass
    else:
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    try:
        return now - parse_span(text)
    except (InvalidInput, OverflowError):
        raise InvalidInput(
            f"{text!a:.50} is no moment. Give a span before now (90d, 12h), a date or a time (2026-01-31T12:00:00Z)."
        ) from None
