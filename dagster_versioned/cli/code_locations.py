"""How the code locations that a verb is about are named. Heavy imports wait until they are loaded."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dagster_versioned.assets.code_location import CodeLocation

Modules = Annotated[
    list[str] | None,
    typer.Option(
        "--module",
        "-m",
        metavar="MODULE",
        help="A module with Definitions, as Dagster loads it (or DAGSTER_VERSIONED_MODULE); repeatable.",
    ),
]
Workspace = Annotated[
    Path | None,
    typer.Option("--workspace", "-w", metavar="FILE", help="The code locations of a workspace.yaml of Dagster."),
]


def named_locations(modules: Iterable[str] | None, workspace: Path | None) -> "list[CodeLocation]":
    """What -m and -w name, else the module of DAGSTER_VERSIONED_MODULE, if it is set. Raises `InvalidInput`."""
    from dagster_versioned.assets.code_location import CodeLocation
    from dagster_versioned.assets.workspace import locations_of_workspace

    found = [CodeLocation(name) for name in modules or ()] + (locations_of_workspace(workspace) if workspace else [])
    variable = os.environ.get("DAGSTER_VERSIONED_MODULE")
    return found or ([CodeLocation(variable)] if variable else [])
