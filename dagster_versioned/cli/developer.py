"""What the verbs of a developer share: their arguments, and the clone and the governance storage that they work on."""

from functools import partial
from typing import TYPE_CHECKING, Annotated

from dagster_versioned.cli.arguments import argument, flag, option
from dagster_versioned.cli.session import Session
from dagster_versioned.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from dagster_versioned.governance.mirror import GovernanceStore
    from dagster_versioned.governance.registry import Registry
    from dagster_versioned.storage.location import Location
    from dagster_versioned.storage.object_store import ObjectStore

DRY = "Nothing was recorded: this is a dry run. Do it by leaving --dry-run out."
"""What a dry run ends with."""

ProjectArgument = Annotated[str, argument("PROJECT", "The project's name.")]
Reason = Annotated[str | None, option("--reason", "TEXT", "Why; the registry keeps it.")]
DryRun = Annotated[bool, flag("--dry-run", "Only say what would be done.")]


def developer(session: Session) -> "tuple[Registry, GovernanceStore]":
    """The clone of the registry, and the governance storage. Raises `InvalidInput` for a reader."""
    governance = session.governed()
    if governance.registry is None:
        raise InvalidInput(
            "This is a developer's to do, who has a clone of the registry. Nothing was changed. Give --registry (or "
            "--clone), and no --role reader."
        )
    return governance.registry, governance.mirror


def parsed_place(text: str) -> "Location":
    """A place as it was typed. Raises `InvalidInput`."""
    from dagster_versioned.storage.location import Location

    return Location.parse(text)


def opener(session: Session) -> "Callable[[Location], ObjectStore]":
    """What opens a place, with the session's profile."""
    from dagster_versioned.storage.opening import open_store

    return partial(open_store, profile=session.profile)
