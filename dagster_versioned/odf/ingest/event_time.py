"""When what a file says was so: from the file's own metadata, from its name, or from the clock."""

import re
from datetime import UTC, datetime

from dagster_versioned.errors import InvalidInput
from dagster_versioned.odf.blocks.events import (
    EventTimeSource,
    EventTimeSourceFromMetadata,
    EventTimeSourceFromPath,
    EventTimeSourceFromSystemTime,
)


def event_time(
    source: EventTimeSource | None, *, path: str, modified: datetime | None, now: datetime
) -> datetime | None:
    """The event time of a file, by default its last modification; ``None`` where it is unknown.

    In a path it is the first group of the pattern (else all that matches), in ``timestamp_format`` or ISO 8601, in UTC
    where it says no zone. Raises `InvalidInput`.
    """
    match source:
        case None | EventTimeSourceFromMetadata():
            return modified
        case EventTimeSourceFromSystemTime():
            return now
        case EventTimeSourceFromPath():
            return _in_path(source, path)


def _in_path(source: EventTimeSourceFromPath, path: str) -> datetime:
    try:
        match = re.search(source.pattern, path)
    except re.error as error:
        raise InvalidInput(
            f"The pattern {source.pattern!a:.100} of an event time is no regular expression: {error}. Nothing was read."
        ) from None
    if not match:
        raise InvalidInput(
            f"{path} has no event time: {source.pattern!a:.100} does not match. Nothing was added. Correct the "
            "pattern, or rename the file."
        )
    text = match[1] if match.re.groups else match[0]
    form = source.timestamp_format
    try:
        moment = datetime.strptime(text, form) if form else datetime.fromisoformat(text)
    except (ValueError, TypeError):
        raise InvalidInput(
            f"{path} has no event time: {text!a:.100} is not of the form {form or 'ISO 8601'!a:.50}. "
            "Nothing was added. Correct timestampFormat, or rename the file."
        ) from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
