"""How the differences of an environment are shown: rows of text, Markdown for a pull request, JSON."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dagster_versioned.cli.comment import comment
from dagster_versioned.cli.terminal import counted

if TYPE_CHECKING:
    from dagster_versioned.tables.diff import ColumnChange
    from dagster_versioned.tables.environment.fork import Fork
    from dagster_versioned.tables.environment_diff import Difference


def difference_document(one: "Difference") -> dict[str, Any]:
    """One difference, for JSON."""
    return {
        "table": str(one.table),
        "partition": one.partition,
        "before": one.before and one.before.metadata_sha,
        "after": one.after and one.after.metadata_sha,
        "rows_before": _nrow(one.before),
        "rows_after": _nrow(one.after),
        "same_data": one.diff.same_data if one.diff is not None else False,
        "columns": [
            {"name": column.name, "before": column.before, "after": column.after}
            for column in (one.diff.columns if one.diff is not None else ())
        ],
        "nulls": {name: list(counts) for name, counts in one.nulls.items()},
        "rows": None if one.rows is None else dict(one.rows),
        "unread": one.unread,
    }


def text_rows(found: Sequence["Difference"]) -> list[tuple[str, str, str, str, str]]:
    """A row of text for each difference."""
    return [(_name(one), _rows(one), _by_key(one), _columns(one), _nulls(one)) for one in found]


def markdown_of(fork: "Fork", found: Sequence["Difference"], unchanged: int) -> list[str]:
    """The lines of a comment for a pull request; cut where it gets too long."""
    tables = len({one.table for one in found})
    return comment(
        f"env diff {fork.project} {fork.environment}",
        [
            f"### Data of `{fork.environment}`: {counted(tables, 'table')} differ, {unchanged} do not",
            "",
            f"Compared with production as of {fork.at:%Y-%m-%d %H:%M}Z.",
            "",
        ],
        ("table", "rows", "by key", "columns", "nulls"),
        text_rows(found),
        rest=f"more are not shown: `dagster-versioned env diff {fork.environment}`.",
    )


def _name(one: "Difference") -> str:
    return str(one.table) if one.partition is None else f"{one.table}[{one.partition}]"


def _rows(one: "Difference") -> str:
    if one.before is None:
        return f"new, {_nrow(one.after):,}" if one.after is not None else ""
    if one.after is None:
        return f"dropped, had {_nrow(one.before):,}"
    if one.diff is not None and one.diff.same_data:
        return f"{_nrow(one.after):,}, the same data"
    return f"{_nrow(one.before):,} -> {_nrow(one.after):,}"


def _by_key(one: "Difference") -> str:
    if one.rows is None:
        return one.unread or ""
    shown = [f"{one.rows[kind]:,} {kind}" for kind in ("added", "removed", "changed") if one.rows.get(kind)]
    return ", ".join(shown) or "the same rows"


def _columns(one: "Difference") -> str:
    changes = one.diff.columns if one.diff is not None else ()
    return ", ".join(f"{_sign(change)} {change.name}" for change in changes)


def _sign(change: "ColumnChange") -> str:
    return "+" if change.before is None else "-" if change.after is None else "~"


def _nulls(one: "Difference") -> str:
    return ", ".join(f"{name} {before:,} -> {after:,}" for name, (before, after) in one.nulls.items())


def _nrow(version: Any) -> int:
    return 0 if version is None or version.raw is None else version.identity.nrow
