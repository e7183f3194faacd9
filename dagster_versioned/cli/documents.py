"""The JSON that ``--json`` prints. Members may be added; none is taken away or changes its meaning."""

import base64
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast

from dagster_versioned.errors import IntegrityError

if TYPE_CHECKING:
    from dagster_versioned.identity.version import VersionEntry
    from dagster_versioned.tables.diff import VersionDiff
    from dagster_versioned.tables.history import Version
    from dagster_versioned.tables.maintenance.collect import CollectionReport
    from dagster_versioned.tables.verify import VerifyReport


def print_json(document: Mapping[str, Any]) -> None:
    """Print one document on stdout, indented, in ASCII: safe for any terminal and any encoding.

    A dataclass in it is an object of its fields, unless it is a text by itself; what else JSON does not know is a text.
    """
    sys.stdout.write(json.dumps(document, indent=2, default=_plain) + "\n")


def members(report: Any, *names: str) -> dict[str, Any]:
    """Members of a report by their names; all of a dataclass where none is named.

    ``shown=member`` shows one under another name; ``before.metadata_sha`` is a member of a member, if that is there.
    """
    found: dict[str, Any] = {}
    for name in names or [field.name for field in fields(report)]:
        shown, _, path = name.partition("=")
        value = report
        for member in (path or shown).split("."):
            value = None if value is None else getattr(value, member)
        found[shown] = value
    return found


def _plain(value: Any) -> Any:
    if is_dataclass(value) and type(value).__str__ is object.__str__:
        return members(value)
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    return moment(value) if isinstance(value, datetime) else str(value)


def entry_of(version: "Version") -> "tuple[VersionEntry | None, str | None]":
    """A version's entry, or what is wrong with it; neither for a foreign commit, nor for a drop."""
    if version.raw is None:
        return None, None
    try:
        return version.entry, None
    except IntegrityError as error:
        return None, str(error)


def version_document(version: "Version") -> dict[str, Any]:
    """One version in short; ``problem`` says what is wrong with an entry that was altered."""
    entry, problem = entry_of(version)
    return {
        **members(version, "version=metadata_sha", "log_version"),
        "timestamp": moment(version.timestamp),
        **members(version, "operation", "partition", "change", "data_sha"),
        **members(entry and entry.identity, "rows=nrow"),
        **members(entry and entry.facts, "size_bytes", "parts=part_count"),
        **members(entry and entry.identity, "code_version", "message"),
        **members(entry and entry.facts, "author", "run_id=run.run_id", "promoted_from"),
        "gone": version.gone,
        "problem": problem,
    }


def version_name(version: "Version") -> dict[str, Any]:
    """By what a version is named."""
    return members(version, "version=metadata_sha", "log_version", "partition")


def diff_document(diff: "VersionDiff") -> dict[str, Any]:
    """What changed between two versions; rows are apart."""
    return {
        "before": version_document(diff.before),
        "after": version_document(diff.after),
        **members(diff, "same_data", "columns", "column_order_changed"),
        "parts": members(diff, "added=parts_added", "removed=parts_removed", "shared=parts_shared"),
        "parents": [members(each, "project=source", "table", "partition", "before", "after") for each in diff.parents],
        "metadata": {name: {"before": old, "after": new} for name, (old, new) in diff.metadata.items()},
        "code": None if diff.code is None else {**members(diff.code), "text": str(diff.code)},
    }


def verify_document(table: str, report: "VerifyReport") -> dict[str, Any]:
    """What was looked at in one table, and what was found."""
    looked = ("versions", "parts", "size_bytes=bytes", "documents")
    return {"table": table, **members(report, "ok", "findings", *looked, "gaps", "witnessed")}


def collection_document(table: str, report: "CollectionReport") -> dict[str, Any]:
    """What was deleted in one table, or would be."""
    return {
        "table": table,
        "kind": report.kind,
        "applied": not report.dry_run,
        "versions": [version_name(version) for version in report.versions],
        **members(report, "keys", "size_bytes", "kept", "unfinished", "unreadable"),
    }


def moment(time: datetime) -> str:
    """A time in UTC, ISO 8601 with ``Z``."""
    return time.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


def cell(value: Any) -> Any:
    """A value of a row as JSON has it.

    Integers stay numbers of any size, decimals are text, times ISO 8601, bytes base64, NaN and the infinities text;
    a map is a list of ``[key, value]``.
    """
    match value:
        case float() if not math.isfinite(value):
            return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
        case Decimal():
            return str(value)
        case datetime() if value.tzinfo:
            return moment(value)
        case date():
            return value.isoformat()
        case bytes():
            return base64.b64encode(value).decode()
        case dict():
            return {name: cell(member) for name, member in cast("dict[str, Any]", value).items()}
        case list() | tuple():
            return [cell(member) for member in cast("Sequence[Any]", value)]
        case _:
            return value
