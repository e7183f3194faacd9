"""How the differences of an environment are shown: rows of text, Markdown for a pull request, JSON."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dagster_versioned.cli.comment import comment, escaped, some
from dagster_versioned.cli.documents import cell
from dagster_versioned.cli.terminal import counted, minute

if TYPE_CHECKING:
    from dagster_versioned.engines.comparison import ColumnStatistics, Extreme
    from dagster_versioned.tables.diff import ColumnChange
    from dagster_versioned.tables.downstream import Cell
    from dagster_versioned.tables.environment.fork import Fork
    from dagster_versioned.tables.environment_diff import Difference

    Sides = tuple[ColumnStatistics, ColumnStatistics]


FEWEST = 10
"""A mean of fewer values, or a share, says what a row holds."""

COLUMNS = ("table", "rows", "by key", "columns", "nulls")
STATISTICS = ("table", "column", "statistic", "before", "after")


def difference_document(one: "Difference", *, values: bool) -> dict[str, Any]:
    """One difference, for JSON; with ``values``, exact means, and least and greatest values."""
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
        "statistics": {
            name: dict(
                zip(("before", "after"), (_statistics_document(side, sides, values) for side in sides), strict=True)
            )
            for name, sides in one.statistics.items()
        },
    }


def _statistics_document(one: "ColumnStatistics", sides: "Sides", values: bool) -> dict[str, Any]:
    return {
        "nulls": one.nulls,
        "nans": one.nans,
        "values": one.values,
        "mean": cell(_mean(one, sides, values)),
        **({"minimum": cell(one.minimum), "maximum": cell(one.maximum)} if values else {}),
    }


def text_rows(found: Sequence["Difference"]) -> list[tuple[str, str, str, str, str]]:
    """A row of text for each difference."""
    return [(_name(one), _rows(one), _by_key(one), _columns(one), _nulls(one)) for one in found]


def statistics_rows(found: Sequence["Difference"], *, values: bool) -> list[tuple[str, str, str, str, str]]:
    """A row of text for each statistic that differs, and is shown."""
    return [
        (_name(one), column, what, before, after)
        for one in found
        for column, sides in one.statistics.items()
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
    if not values and any(_is_withheld(sides) for one in found for sides in one.statistics.values()):
        lines.append(f"Means of fewer than {FEWEST} values are not shown: --values shows them.")
    return lines


def markdown_of(
    fork: "Fork", found: Sequence["Difference"], below: "Sequence[Cell]", unchanged: int, *, values: bool
) -> list[str]:
    """The lines of a comment for a pull request; cut where it gets too long."""
    tables = len({one.table for one in found})
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


def _mean(one: "ColumnStatistics", sides: "Sides", values: bool) -> float | None:
    """The mean as it is shown: of few values, and of one that is not a round number, it would give values away."""
    if values or one.mean is None:
        return one.mean
    return None if _is_withheld(sides) else float(f"{one.mean:.4g}")


def _is_withheld(sides: "Sides") -> bool:
    return any(one.mean is not None and one.values < FEWEST for one in sides)


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
