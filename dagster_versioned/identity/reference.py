"""What a person types, or passes, to name a version."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from dagster_versioned.errors import InvalidReference
from dagster_versioned.identity.names import is_tag_name

MIN_PREFIX = 6
"""The fewest characters of a ``metadata_sha`` that are accepted as its prefix."""

_FORMS = (
    'Give 6 to 64 hex characters of a version, "@12" (log version), a time such as "2024-05-01T12:00:00Z", '
    '"pin:name", or "tag:name".'
)


@dataclass(frozen=True, slots=True)
class HeadReference:
    """The current version."""


@dataclass(frozen=True, slots=True)
class ShaPrefix:
    """The version whose ``metadata_sha`` (or ``partitions_sha``) starts with ``prefix``: 6 to 64 lowercase hex."""

    prefix: str


@dataclass(frozen=True, slots=True)
class LogVersion:
    """The state at a log version, 0 or more."""

    number: int


@dataclass(frozen=True, slots=True)
class AsOf:
    """The state at a time; ``moment`` is in UTC."""

    moment: datetime


@dataclass(frozen=True, slots=True)
class PinName:
    """The version that a pin of this name points to."""

    name: str


@dataclass(frozen=True, slots=True)
class TagName:
    """The state at the moment that a tag of this name was made."""

    name: str


Reference = HeadReference | ShaPrefix | LogVersion | AsOf | PinName | TagName


def parse_reference(value: str | datetime | int | None) -> Reference:
    """Parse a version reference.

    ``None``: the head. An integer, or ``"@12"``: a log version. A `datetime` with a time zone, or ISO 8601 text with a
    ``T``: a time (text without a zone is UTC, a `datetime` without one is refused, because it means local time to some
    and UTC to others). ``"pin:name"``: a pin. ``"tag:name"``: a tag. 6 to 64 hex characters, in either
    case: a prefix of a ``metadata_sha``. Raises `InvalidReference`. FORMAT, "What a reference means".
    """
    if value is None:
        return HeadReference()
    if isinstance(value, str):
        return _parse_text(value)
    if isinstance(value, datetime):
        return _moment(value)
    if type(value) is int:  # not bool, which is an int by accident
        return _log_version(value)
    raise InvalidReference(f"{value!r:.100} of type {type(value).__name__} names no version. {_FORMS}")


def _parse_text(text: str) -> Reference:
    if text.startswith(("pin:", "tag:")):
        return _named(text)
    if text.startswith("@"):
        if not re.fullmatch(r"[0-9]{1,19}", text[1:]):
            raise InvalidReference(f"{text!a:.100} is not a log version. {_FORMS}")
        return _log_version(int(text[1:]))
    if "T" in text:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            raise InvalidReference(f"{text!a:.100} is not a time ({error}). {_FORMS}") from error
        return _moment(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    if not re.fullmatch(r"[0-9a-fA-F]+", text):
        hint = ' A date needs its time: append "T00:00".' if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text) else ""
        raise InvalidReference(f"{text!a:.100} is neither hex nor any other reference.{hint} {_FORMS}")
    if not MIN_PREFIX <= len(text) <= 64:
        raise InvalidReference(f"The prefix {text:.100} has {len(text)} characters, not {MIN_PREFIX} to 64. {_FORMS}")
    return ShaPrefix(text.lower())


def _named(text: str) -> PinName | TagName:
    name = text[4:]
    if text.startswith("tag:"):
        if not is_tag_name(name):
            raise InvalidReference(f"{text!a:.120} names no tag: none can have that name. {_FORMS}")
        return TagName(name)
    if not name.strip():
        raise InvalidReference(f"The pin in {text!r} has no name. {_FORMS}")
    return PinName(name)


def _log_version(number: int) -> LogVersion:
    if not 0 <= number < 2**63:
        shown = str(number) if number.bit_length() < 100 else f"an integer of {number.bit_length()} bits"
        raise InvalidReference(f"A log version is between 0 and 2^63 - 1, not {shown}. {_FORMS}")
    return LogVersion(number)


def _moment(moment: datetime) -> AsOf:
    if moment.utcoffset() is None:
        raise InvalidReference(
            f"The time {moment} has no time zone, so it is not one moment. Give it one: datetime(..., tzinfo=UTC)."
        )
    try:
        return AsOf(moment.astimezone(UTC))
    except OverflowError:
        raise InvalidReference(f"The time {moment} is outside the years 1 to 9999 in UTC. {_FORMS}") from None
