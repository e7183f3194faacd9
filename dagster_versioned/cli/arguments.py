"""What verbs have in common: how a table, a version and a partition are named, and rows are asked for."""

from pathlib import Path
from typing import Annotated

import typer

TableArgument = Annotated[str, typer.Argument(metavar="TABLE", help="The table's name, or its asset key with slashes.")]
Tables = Annotated[
    list[str] | None, typer.Argument(metavar="TABLE", help="Tables by name; all of the project if none is named.")
]
SomeTables = Annotated[list[str], typer.Argument(metavar="TABLE", help="Tables by name.")]
VersionArgument = Annotated[
    str, typer.Argument(metavar="VERSION", help="SHA prefix, @12, a time, pin:name or tag:name.")
]
MaybeVersion = Annotated[
    str | None,
    typer.Argument(metavar="VERSION", help="SHA prefix, @12, a time, pin:name or tag:name; the head if left out."),
]
EnvironmentName = Annotated[str, typer.Argument(metavar="NAME", help="Its name: a-z, 0-9 and '-'.")]
Partition = Annotated[str | None, typer.Option("--partition", metavar="KEY", help="One partition's versions.")]
Apply = Annotated[bool, typer.Option("--apply", help="Do it; without this, only say what would be done.")]
Why = Annotated[str | None, typer.Option("--why", metavar="TEXT", help="The reason, which is kept with it.")]

PREVIEW_ROWS = 20
RowLimit = Annotated[
    int | None, typer.Option("--limit", min=0, help=f"At most so many rows; {PREVIEW_ROWS} unless written to a file.")
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write to FILE.parquet, .arrow, .csv or .json instead."),
]
