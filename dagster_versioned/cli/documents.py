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


def members(report: Any) -> dict[str, Any]:
    """The fields of a dataclass."""
    return {field.name: getattr(report, field.name) for field in fields(report)}


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
    identity, facts = (entry.identity, entry.facts) if entry else (None, None)
    return {
        "version": version.metadata_sha,
        "log_version": version.log_version,
        "timestamp": moment(version.timestamp),
        "operation": version.operation,
        "partition": version.partition,
        "change": version.change,
        "data_sha": version.data_sha,
        "rows": identity.nrow if identity else None,
        "size_bytes": facts.size_bytes if facts else None,
        "parts": facts.part_count if facts else None,
        "code_version": identity.code_version if identity else None,
        "message": identity.message if identity else None,
        "author": facts.author if facts else None,
        "run_id": facts.run.run_id if facts and facts.run else None,
        "promoted_from": facts.promoted_from if facts else None,
        "gone": version.gone,
        "problem": problem,
    }


def version_name(version: "Version") -> dict[str, Any]:
    """By what a version is named."""
    return {"version": version.metadata_sha, "log_version": version.log_version, "partition": version.partition}


def diff_document(diff: "VersionDiff") -> dict[str, Any]:
    """What changed between two versions; rows are apart."""
    return {
        "before": version_document(diff.before),
        "after": version_document(diff.after),
        "same_data": diff.same_data,
        "columns": diff.columns,
        "column_order_changed": diff.column_order_changed,
        "parts": {"added": diff.parts_added, "removed": diff.parts_removed, "shared": diff.parts_shared},
        "parents": [
            {"project": p.source, "table": p.table, "partition": p.partition, "before": p.before, "after": p.after}
            for p in diff.parents
        ],
        "metadata": {name: {"before": old, "after": new} for name, (old, new) in diff.metadata.items()},
        "code": None if diff.code is None else {**members(diff.code), "text": str(diff.code)},
    }


def verify_document(table: str, report: "VerifyReport") -> dict[str, Any]:
    """What was looked at in one table, and what was found."""
    return {
        "table": table,
        "ok": report.ok,
        "findings": report.findings,
        "versions": report.versions,
        "parts": report.parts,
        "size_bytes": report.bytes,
        "documents": report.documents,
        "gaps": report.gaps,
        "witnessed": report.witnessed,
    }


def collection_document(table: str, report: "CollectionReport") -> dict[str, Any]:
    """What was deleted in one table, or would be."""
    return {
        "table": table,
        "kind": report.kind,
        "applied": not report.dry_run,
        "versions": [version_name(version) for version in report.versions],
        "keys": report.keys,
        "size_bytes": report.size_bytes,
        "kept": report.kept,
        "unfinished": report.unfinished,
        "unreadable": report.unreadable,
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
        case float():
            return value if math.isfinite(value) else {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
        case Decimal():
            return str(value)
        case datetime():
            return moment(value) if value.tzinfo else value.isoformat()
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
