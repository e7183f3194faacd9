"""How the code locations that a verb is about are named. Heavy imports wait until they are loaded."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dagster_versioned.cli.arguments import option

if TYPE_CHECKING:
    from dagster_versioned.assets.code_location import CodeLocation

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
