"""What people see: tables, notes and progress, with nothing from the store that a terminal would obey."""

import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, TextIO

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


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Iterable[str] = ()) -> None:
    """Print rows under headings on stdout; ``None`` is an empty cell, columns named in ``right`` are aligned right."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 1))
    aligned = set(right)
    for column in columns:
        table.add_column(Text(plain(column)), justify="right" if column in aligned else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text("" if cell is None else plain(str(cell))) for cell in row))
    _console(sys.stdout).print(table)


def show_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one a line, on stdout; a value that is ``None`` is left out."""
    present = [(name, str(value)) for name, value in fields if value is not None]
    width = max((len(name) for name, _ in present), default=0)
    say(*(f"{name.ljust(width)}  {value}" for name, value in present))


def say(*lines: str) -> None:
    """Print lines, escaped, on stdout."""
    sys.stdout.write("".join(f"{plain(line)}\n" for line in lines))


def show_tree(tree: "Tree") -> None:
    """Print a tree on stdout, whose texts are escaped already."""
    _console(sys.stdout).print(tree)


def human_size(size: int | None) -> str | None:
    """Bytes as people read them, in powers of 1,000."""
    from rich.filesize import decimal

    return None if size is None else decimal(size)


def counted(count: int, thing: str) -> str:
    """``1 part``, ``2 parts``."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def short(sha: str | None) -> str | None:
    """As many digits of a SHA as name a version to a person."""
    return sha[:8] if sha else None


def minute(time: datetime | str) -> str:
    """A time in UTC, to the minute."""
    return f"{datetime.fromisoformat(time) if isinstance(time, str) else time:%Y-%m-%d %H:%M}Z"


@contextmanager
def progress(label: str, *, quiet: bool) -> Generator[Callable[[int, int], None]]:
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
