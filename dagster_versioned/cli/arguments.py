"""What verbs have in common: how a table, a version and a partition are named, and rows are asked for."""

from pathlib import Path
from typing import Annotated, Any

import typer


def argument(metavar: str, says: str, **limits: Any) -> Any:
    """An argument of a command: what it is called, and what its help says of it."""
    return typer.Argument(metavar=metavar, help=says, **limits)


def option(*texts: str, **limits: Any) -> Any:
    """An option of a command with a value: its names, what the value is called, and what its help says of it."""
    *names, metavar, says = texts
    return typer.Option(*names, metavar=metavar, help=says, **limits)


def flag(*texts: str, **limits: Any) -> Any:
    """An option of a command whose value is not named: its names, and what its help says of it."""
    *names, says = texts
    return typer.Option(*names, help=says, **limits)


TableArgument = Annotated[str, argument("TABLE", "The table's name, or its asset key with slashes.")]
Tables = Annotated[list[str] | None, argument("TABLE", "Tables by name; all of the project if none is named.")]
SomeTables = Annotated[list[str], argument("TABLE", "Tables by name.")]
VersionArgument = Annotated[str, argument("VERSION", "SHA prefix, @12, a time, pin:name or tag:name.")]
MaybeVersion = Annotated[
    str | None, argument("VERSION", "SHA prefix, @12, a time, pin:name or tag:name; the head if left out.")
]
EnvironmentName = Annotated[str, argument("NAME", "Its name: a-z, 0-9 and '-'.")]
Partition = Annotated[str | None, option("--partition", "KEY", "One partition's versions.")]
Apply = Annotated[bool, flag("--apply", "Do it; without this, only say what would be done.")]
Why = Annotated[str | None, option("--why", "TEXT", "The reason, which is kept with it.")]

PREVIEW_ROWS = 20
RowLimit = Annotated[
    int | None, flag("--limit", f"At most so many rows; {PREVIEW_ROWS} unless written to a file.", min=0)
]
Output = Annotated[
    Path | None, option("--output", "-o", "FILE", "Write to FILE.parquet, .arrow, .csv or .json instead.")
]
