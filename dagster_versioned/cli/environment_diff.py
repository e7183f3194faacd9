"""How the differences of an environment are shown: rows of text, Markdown for a pull request, JSON."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dagster_versioned.cli.comment import comment, escaped, some
from dagster_versioned.cli.documents import cell, members
from dagster_versioned.cli.terminal import Table, counted, minute

if TYPE_CHECKING:
    from dagster_versioned.branches.diff import Difference
    from dagster_versioned.engines.comparison import ColumnStatistics, Extreme
    from dagster_versioned.projects.downstream import Cell
    from dagster_versioned.tables.diff import ColumnChange
    from dagster_versioned.tables.environment.fork import Fork

    Sides = tuple[ColumnStatistics, ColumnStatistics]


FEWEST = 10
"""A mean of fewer values, or a share, says what a row holds."""

COLUMNS = ("table", "rows", "by key", "columns", "nulls")
STATISTICS = ("table", "column", "statistic", "before", "after")


def difference_document(difference: "Difference", *, values: bool) -> dict[str, Any]:
    """One difference, for JSON; with ``values``, exact means, and least and greatest values."""
    diff = difference.diff
    statistics = {
        name: {
            "before": _statistics_document(sides[0], sides, values),
            "after": _statistics_document(sides[1], sides, values),
        }
        for name, sides in difference.statistics.items()
    }
    return {
        **members(difference, "table", "partition", "before=before.metadata_sha", "after=after.metadata_sha"),
        "rows_before": _nrow(difference.before),
        "rows_after": _nrow(difference.after),
        "same_data": diff is not None and diff.same_data,
        "columns": [
            members(column, "name", "before", "after") for column in (diff.columns if diff is not None else ())
        ],
        **members(difference, "nulls", "rows", "unread"),
        "statistics": statistics,
    }


def _statistics_document(side: "ColumnStatistics", sides: "Sides", values: bool) -> dict[str, Any]:
    return {
        **members(side, "nulls", "nans", "values"),
        "mean": cell(_mean(side, sides, values)),
        **({"minimum": cell(side.minimum), "maximum": cell(side.maximum)} if values else {}),
    }


def text_rows(found: Sequence["Difference"]) -> list[tuple[str, str, str, str, str]]:
    """A row of text for each difference."""
    return [(_name(each), _rows(each), _by_key(each), _columns(each), _nulls(each)) for each in found]


def statistics_rows(found: Sequence["Difference"], *, values: bool) -> list[tuple[str, str, str, str, str]]:
    """A row of text for each statistic that differs, and is shown."""
    return [
        (_name(difference), column, what, before, after)
        for difference in found
        for column, sides in difference.statistics.items()
        for what, before, after in _shown(sides, values)
        if before != after
    ]


def end_lines(found: Sequence["Difference"], below: "Sequence[Cell]", *, values: bool) -> list[str]:
    """What is said below the tables: what the differences reach, and what is not shown."""
    counts = Counter(str(table) for table, _ in below)
    names = (
        table if (str(table), None) in below else f"{table} ({counted(count, 'partition')})"
        for table, count in counts.items()
    )
    lines = [f"Built from other data than this, and not made anew: {some(names)}."] if below else []
    if not values and any(_is_withheld(sides) for difference in found for sides in difference.statistics.values()):
        lines.append(f"Means of fewer than {FEWEST} values are not shown: --values shows them.")
    return lines


def difference_parts(
    found: Sequence["Difference"], below: "Sequence[Cell]", unchanged: int, *, values: bool
) -> Iterator[str | Table]:
    """Tables of the differences and of the statistics that differ, and what is said below them."""
    yield Table(COLUMNS, text_rows(found))
    if rows := statistics_rows(found, values=values):
        yield from ("", Table(STATISTICS, rows), "")
    yield f"{counted(unchanged, 'table')} as at the fork."
    yield from end_lines(found, below, values=values)


def markdown_of(
    fork: "Fork", found: Sequence["Difference"], below: "Sequence[Cell]", unchanged: int, *, values: bool
) -> list[str]:
    """The lines of a comment for a pull request; cut where it gets too long."""
    tables = len({difference.table for difference in found})
    does = "differs" if tables == 1 else "differ"
    return comment(
        f"env diff {fork.project} {fork.environment}",
        [
            f"### Data of `{fork.environment}`: {counted(tables, 'table')} {does}, {unchanged} do not",
            "",
            f"Compared with production as of {minute(fork.at)}.",
            "",
        ],
        (COLUMNS, text_rows(found)),
        (STATISTICS, statistics_rows(found, values=values)),
        rest=f"more are not shown: `dagster-versioned env diff {fork.environment}`.",
        end=[line for text in end_lines(found, below, values=values) for line in ("", escaped(text))],
    )


def _mean(side: "ColumnStatistics", sides: "Sides", values: bool) -> float | None:
    """The mean as it is shown: of few values, and of one that is not a round number, it would give values away."""
    if values or side.mean is None:
        return side.mean
    return None if _is_withheld(sides) else float(f"{side.mean:.4g}")


def _is_withheld(sides: "Sides") -> bool:
    return any(side.mean is not None and side.values < FEWEST for side in sides)


def _shown(sides: "Sides", values: bool) -> Iterator[tuple[str, str, str]]:
    before, after = sides
    yield "NaN", f"{before.nans:,}", f"{after.nans:,}"
    if before.kind == "boolean":
        yield "true", _percent(_mean(before, sides, values)), _percent(_mean(after, sides, values))
    else:
        yield "mean", _number(_mean(before, sides, values)), _number(_mean(after, sides, values))
    if values:
        yield "minimum", _number(before.minimum), _number(after.minimum)
        yield "maximum", _number(before.maximum), _number(after.maximum)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.4g} %"


def _number(value: "Extreme | None") -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:,}".removesuffix(".0")


def _name(difference: "Difference") -> str:
    return str(difference.table) if difference.partition is None else f"{difference.table}[{difference.partition}]"


def _rows(difference: "Difference") -> str:
    if difference.before is None:
        return f"new, {_nrow(difference.after):,}" if difference.after is not None else ""
    if difference.after is None:
        return f"dropped, had {_nrow(difference.before):,}"
    if difference.diff is not None and difference.diff.same_data:
        return f"{_nrow(difference.after):,}, the same data"
    return f"{_nrow(difference.before):,} -> {_nrow(difference.after):,}"


def _by_key(difference: "Difference") -> str:
    rows = difference.rows
    if rows is None:
        return difference.unread or ""
    shown = [f"{rows[kind]:,} {kind}" for kind in ("added", "removed", "changed") if rows.get(kind)]
    return ", ".join(shown) or "the same rows"


def _columns(difference: "Difference") -> str:
    changes = difference.diff.columns if difference.diff is not None else ()
    return ", ".join(f"{_sign(change)} {change.name}" for change in changes)


def _sign(change: "ColumnChange") -> str:
    return "+" if change.before is None else "-" if change.after is None else "~"


def _nulls(difference: "Difference") -> str:
    return ", ".join(f"{name} {before:,} -> {after:,}" for name, (before, after) in difference.nulls.items())


def _nrow(version: Any) -> int:
    return 0 if version is None or version.raw is None else version.identity.nrow
