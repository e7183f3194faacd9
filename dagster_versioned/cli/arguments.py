"""What verbs have in common: how tables, versions, code and times are named, and rows are asked for."""

import os
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dagster_versioned.errors import InvalidInput

if TYPE_CHECKING:
    from dagster_versioned.assets.code_location import CodeLocation


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

Modules = Annotated[
    list[str] | None,
    option(
        "--module",
        "-m",
        "MODULE",
        "A module with Definitions, as Dagster loads it (or DAGSTER_VERSIONED_MODULE); repeatable.",
    ),
]
Workspace = Annotated[
    Path | None, option("--workspace", "-w", "FILE", "The code locations of a workspace.yaml of Dagster.")
]


def named_locations(modules: Iterable[str] | None, workspace: Path | None) -> "list[CodeLocation]":
    """What -m and -w name, else the module of DAGSTER_VERSIONED_MODULE, if it is set. Raises `InvalidInput`."""
    from dagster_versioned.assets.code_location import CodeLocation
    from dagster_versioned.assets.workspace import locations_of_workspace

    found = [CodeLocation(name) for name in modules or ()] + (locations_of_workspace(workspace) if workspace else [])
    variable = os.environ.get("DAGSTER_VERSIONED_MODULE")
    return found or ([CodeLocation(variable)] if variable else [])


_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_span(text: str) -> timedelta:
    """``30s``, ``15m``, ``12h``, ``90d`` or ``4w``. Raises `InvalidInput`."""
    match = re.fullmatch(r"([0-9]{1,9})([smhdw])", text.strip())
    try:
        if match:
            return timedelta(**{_UNITS[match[2]]: int(match[1])})
    except OverflowError:
        pass
    raise InvalidInput(f"{text!a:.50} is no span of time. Give a number and a unit: 30s, 15m, 12h, 90d or 4w.")


def parse_moment(text: str, now: datetime) -> datetime:
    """A span before ``now``, or an ISO 8601 date or time (UTC where it names no zone). Raises `InvalidInput`."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        pass
    else:
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    try:
        return now - parse_span(text)
    except (InvalidInput, OverflowError):
        raise InvalidInput(
            f"{text!a:.50} is no moment. Give a span before now (90d, 12h), a date or a time (2026-01-31T12:00:00Z)."
        ) from None
