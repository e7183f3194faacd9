"""Comments for pull requests: Markdown with a marker by which a script finds its own, short enough to be taken."""

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum

MOST_CHARACTERS = 60_000
"""GitHub takes comments of 65,536."""


class Notation(StrEnum):
    """What a report is written in. Enumerations, since Typer knows no literals before 0.19."""

    TEXT = "text"
    MARKDOWN = "markdown"


Rows = tuple[Sequence[str], Sequence[Sequence[str]]]
"""A table: its headings, and its rows."""


def comment(marker: str, head: Sequence[str], *tables: Rows, rest: str, end: Sequence[str] = ()) -> list[str]:
    """The lines of a comment: marker, head, tables, end.

    Tables without rows are left out. Rows that are too many are too, and their number stands before ``rest``. Cells are
    escaped; all else is as it is given.
    """
    lines = [f"<!-- dagster-versioned {marker} -->", *head]
    room = MOST_CHARACTERS - sum(len(line) + 1 for line in (*lines, *end)) - len(rest) - 20
    left = 0
    for number, (columns, rows) in enumerate(table for table in tables if table[1]):
        heading = [*[""] * bool(number), f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        shown: list[str] = []
        room -= sum(len(line) + 1 for line in heading)
        for cells in rows:
            line = f"| {' | '.join(map(escaped, cells))} |"
            room -= len(line) + 1
            if room < 0:
                break
            shown.append(line)
        left += len(rows) - len(shown)
        lines += [*heading, *shown] if shown else []
    return [*lines, *(["", f"{left:,} {rest}"] if left else []), *end]


def escaped(text: str) -> str:
    """Names are of users: nothing in them may end the cell, become markup or a link, or notify anybody."""
    kept = "".join(character if character.isprintable() else " " for character in text)
    kept = re.sub(r"([\\`*_{}\[\]<>()#+!|~&$])", r"\\\1", kept)
    # Hosts look for these in what Markdown has made already: an escape does not keep them from it, an empty space does.
    return re.sub(r"(@|#|:(?=//)|\bwww|\bGH)", r"\1&#8203;", kept, flags=re.IGNORECASE)


def some(names: Iterable[str], most: int = 20) -> str:
    """Names in a line; of many, the first and a count."""
    shown = list(names)
    more = f" and {len(shown) - most} more" if len(shown) > most else ""
    return ", ".join(shown[:most]) + more
