"""What a version changed against the one that it replaced, for a person who reads Dagster's UI."""

import json
from collections.abc import Iterator
from typing import Any

from dagster_versioned.delta.schema.types import sql_text
from dagster_versioned.errors import VersionedError
from dagster_versioned.identity.names import TableName
from dagster_versioned.tables.diff import VersionDiff, version_diff
from dagster_versioned.tables.history import Version

MAX_LINES = 40
"""Lines of a diff; there may be thousands of columns and parents, and all of it goes into Dagster's event log."""
MAX_TEXT = 60

Line = tuple[str, object, object]
"""What differs, before and after."""


def diff_text(table: TableName, before: Version | None, version: Version, change: str) -> str:
    """The difference to the version before in Markdown, with the command that shows all of it; reads nothing."""
    if change == "none":
        return f"Nothing changed: it is still version {version.short}."
    if before is None:
        return "The first version."
    try:
        lines = list(_lines(version_diff(before, version, (), ())))
    except VersionedError as error:  # of the version before; this one is committed
        return f"It cannot be compared with the version before. {error}"
    more = f"\n\n{len(lines) - MAX_LINES} more differences" if len(lines) > MAX_LINES else ""
    rows = "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines[:MAX_LINES])
    partition = f" --partition '{version.partition}'" if version.partition is not None else ""
    command = f"dagster-versioned diff '{table}' {before.short} {version.short}{partition}"
    return f"| | {before.short} | {version.short} |\n| --- | --- | --- |\n{rows}{more}\n\n`{command}`"


def _lines(diff: VersionDiff) -> Iterator[Line]:
    old, new = diff.before, diff.after
    if diff.rows_before == diff.rows_after:
        yield "rows", diff.rows_before, diff.rows_after
    else:
        yield "rows", diff.rows_before, f"{diff.rows_after} ({diff.rows_after - diff.rows_before:+})"
    yield "data", old.identity.data_sha[:8], "the same" if diff.same_data else new.identity.data_sha[:8]
    if not diff.same_data:
        yield "bytes", old.facts.size_bytes, new.facts.size_bytes
        yield "parts", old.facts.part_count, new.facts.part_count
    for column in diff.columns:
        was, now = ("none" if kind is None else sql_text(kind) for kind in (column.before, column.after))
        yield f"column {column.name}", was, now
    if diff.column_order_changed:
        yield "order of columns", "", "changed"
    for parent in diff.parents:
        partition = f" [{parent.partition}]" if parent.partition is not None else ""
        name = f"parent {parent.source}.{parent.table}{partition}"
        yield name, (parent.before or "none")[:8], (parent.after or "none")[:8]
    for name, (was, now) in diff.metadata.items():
        yield name, _value(was), _value(now)


def _value(value: Any) -> str:
    match value:
        case None:
            return "none"
        case str():
            return value
        case _:
            return json.dumps(value)


def _cell(value: object) -> str:
    text = str(value)
    if len(text) > MAX_TEXT:
        text = text[: MAX_TEXT - 1] + "…"
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("\r", " ")
