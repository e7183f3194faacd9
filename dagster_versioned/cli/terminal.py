"""What people see: tables, notes and progress, with nothing from the store that a terminal would obey."""

import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeAlias

from dagster_versioned.errors import InvalidInput

if TYPE_CHECKING:
    from rich.console import Console
    from rich.tree import Tree

_UNWRAPPED = 100_000
"""The width, in characters, of what is not a terminal: rows stay on one line for the program that reads them."""


def plain(text: str) -> str:
    """The text with everything escaped that is not printable: controls, line breaks, bidirectional overrides."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@dataclass(frozen=True)
class Table:
    """Rows under headings: ``None`` is an empty cell, columns named in ``right`` are aligned right.

    ``none`` is noted instead where there are no rows.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    right: Sequence[str] = ()
    none: str | None = None


@dataclass(frozen=True)
class Fields:
    """Names and values, one a line; a value that is ``None`` is left out."""

    fields: Iterable[tuple[str, object]]


Part: TypeAlias = "str | Table | Fields | Tree"


def show(part: Part) -> None:
    """Print a line, a table, fields, or a tree whose texts are escaped already, on stdout."""
    match part:
        case str():
            say(part)
        case Table():
            _show_table(part)
        case Fields(fields):
            present = [(name, str(value)) for name, value in fields if value is not None]
            width = max((len(name) for name, _ in present), default=0)
            say(*(f"{name.ljust(width)}  {value}" for name, value in present))
        case _:
            _console(sys.stdout).print(part)


def _show_table(table: Table) -> None:
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(box=None, pad_edge=False, padding=(0, 1))
    for column in table.columns:
        grid.add_column(Text(plain(column)), justify="right" if column in table.right else "left", overflow="fold")
    for row in table.rows:
        grid.add_row(*(Text("" if cell is None else plain(str(cell))) for cell in row))
    _console(sys.stdout).print(grid)


def say(*lines: str) -> None:
    """Print lines, escaped, on stdout."""
    sys.stdout.write("".join(f"{plain(line)}\n" for line in lines))


def confirm(what: str, name: str, called: str, *, to: str, untouched: str, given: str | None = None) -> None:
    """Ask on stderr for a name to be typed, which is ``called`` so, unless it is given. Raises `InvalidInput`."""
    if given is None:
        sys.stderr.write(f"{plain(what)}\nType {called} ({plain(name)}) to {to}: ")
        sys.stderr.flush()
        given = sys.stdin.readline().strip()
    if given != name:
        raise InvalidInput(f"That is not {called}, so {untouched}")


def write_text(path: Path, text: str) -> None:
    """Write a file. Raises `InvalidInput` naming it where that cannot be."""
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written ({error.strerror}). Nothing was written there.") from None


def human_size(size: int | None) -> str | None:
    """Bytes as people read them, in powers of 1,000."""
    from rich.filesize import decimal

    return None if size is None else decimal(size)


def counted(count: int, thing: str) -> str:
    """``1 part``, ``2 parts``."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def cell_name(table: str, partition: str | None) -> str:
    """A table, or a partition of it."""
    return table if partition is None else f"{table}[{partition}]"


def short(sha: str | None) -> str | None:
    """As many digits of a SHA as name a version to a person."""
    return sha[:8] if sha else None


def minute(time: datetime | str) -> str:
    """A time in UTC, to the minute."""
    return f"{datetime.fromisoformat(time) if isinstance(time, str) else time:%Y-%m-%d %H:%M}Z"


Progress = Callable[[int, int], None]
"""Is called with what is done, and of how much."""


@contextmanager
def progress(label: str, *, quiet: bool) -> Generator[Progress]:
    """A bar on stderr while the block runs, fed by calls with (done, total); none where stderr is not a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    text = TextColumn("{task.description}", markup=False)
    with Progress(
        text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=_console(sys.stderr), transient=True
    ) as bars:
        bar = bars.add_task(plain(label), total=None)
        yield lambda done, total: bars.update(bar, completed=done, total=total)


def _console(stream: TextIO) -> "Console":
    from rich.console import Console

    class Piped(Console):
        def on_broken_pipe(self) -> None:
            raise  # called while the BrokenPipeError is handled, which is answered where the verb runs

    width = None if stream.isatty() else _UNWRAPPED
    return Piped(file=stream, markup=False, emoji=False, highlight=False, width=width)
