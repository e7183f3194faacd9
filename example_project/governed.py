"""The example's own governance, all on this disk: a registry in a bare git repository, and the governance storage.

``python -m example_project.governed`` sets it up where it is not there yet, which `make ui` does first.
"""

import os
from pathlib import Path

from dagster_versioned import Governance
from dagster_versioned.governance.migrate import MigrationReport, migrate
from dagster_versioned.governance.mirror import GovernanceStore
from dagster_versioned.governance.registry import Registry
from dagster_versioned.storage import Location, open_store
from example_project.defs.resources import PROJECT

LOCATION = ".example/warehouse"
MOVED_TO = ".example/moved"

REGISTRY = Path(".example/registry.git")
CLONE = Path(".example/registry")
STORAGE = Path(".example/governance")


def registry() -> Registry:
    """This developer's clone of the registry; the registry is made if there is none."""
    for role in ("AUTHOR", "COMMITTER"):  # on a machine where git does not know its user
        os.environ.setdefault(f"GIT_{role}_NAME", "Example")
        os.environ.setdefault(f"GIT_{role}_EMAIL", "example@localhost")
    return Registry.init(str(REGISTRY.absolute()), CLONE)


def mirror() -> GovernanceStore:
    """What everybody reads."""
    return GovernanceStore(open_store(str(STORAGE)))


def govern() -> Governance:
    """The governance, with the project registered in it."""
    mine = registry()
    if PROJECT not in mine.projects():
        mine.register(PROJECT, Location.parse(LOCATION), reason="the example begins")
    mirror().publish(mine)
    return Governance(str(STORAGE), role="developer", registry=mine)


def move() -> MigrationReport:
    """Move the project to another folder."""
    return migrate(registry(), mirror(), PROJECT, Location.parse(MOVED_TO), reason="a larger disk", verify="content")


if __name__ == "__main__":
    govern()
