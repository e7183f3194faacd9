"""Giving a project up: its history stays in the registry, and its bytes go, if that is asked for.

The registry records it first: from then on nobody finds the project, and nothing is written to it. Deleting comes
after, and can be done again until nothing is left.
"""

from collections.abc import Callable
from dataclasses import dataclass

from dagster_versioned.governance.documents import project_name
from dagster_versioned.governance.governance_marker import put_marker
from dagster_versioned.governance.mirror import GovernanceStore
from dagster_versioned.governance.place import clear, objects
from dagster_versioned.governance.registry import Registry
from dagster_versioned.identity.names import DATA_FOLDER
from dagster_versioned.storage import opening
from dagster_versioned.storage.location import Location
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.environment.registry import refuse_environments

OpenStore = Callable[[Location], ObjectStore]


@dataclass(frozen=True)
class DecommissionReport:
    """A project that was given up, or, with ``dry_run``, would be: where it was, what was there, what was deleted."""

    project: str
    location: Location
    dry_run: bool
    objects: int
    bytes: int
    deleted_objects: int = 0


def decommission(
    registry: Registry,
    mirror: GovernanceStore,
    project: str,
    *,
    actor: str | None = None,
    reason: str | None = None,
    delete_data: bool = False,
    dry_run: bool = False,
    open_store: OpenStore = opening.open_store,
) -> DecommissionReport:
    """Give a project up, or go on where a run that died had come to.

    ``delete_data`` deletes the project's bytes, for ever; else they stay where they are, as an ungoverned project.
    ``actor`` defaults to the user's git identity. Raises `RegistryConflict` while the project is being moved, and where
    another project's place is, lies in or lies around its own; `GovernanceError`, `RegistryUnavailable`,
    `StorageError`. What is recorded stays recorded; run it again to go on deleting.
    """
    name = project_name(project)
    registry.fetch()
    state = registry.state(name)
    if state.is_decommissioned:
        location = state.history.events[-1].source
        assert location is not None
    else:
        location = registry.documents(name).ref.current
    store = open_store(location)
    data = store.subfolder(DATA_FOLDER)
    if delete_data:
        refuse_environments(store)
        registry.check_nobody_else(name, location)
    found = objects(data)
    report = DecommissionReport(name, location, dry_run, len(found), sum(info.size for info in found))
    if dry_run:
        registry.rehearsal().unregister(name, actor=actor, reason=reason)
        return report
    registry.unregister(name, actor=actor, reason=reason)
    mirror.publish(registry, [name])
    if not delete_data:
        put_marker(data, None)
        return report
    deleted = clear(data)
    return DecommissionReport(name, location, dry_run, report.objects, report.bytes, deleted)
