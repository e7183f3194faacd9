"""How a project comes under governance, registered if it is new, attached if it is there already; and is given up.

Of a project that is given up, the registry records that first: from then on nobody finds it, and nothing is written to
it. Deleting comes after, and can be done again until nothing is left.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from dagster_versioned.errors import InvalidInput
from dagster_versioned.governance.documents import RegistrationKind, project_name
from dagster_versioned.governance.governance_marker import (
    MARKER_KEY,
    GovernanceMarker,
    put_marker,
    read_marker,
    storage_of,
)
from dagster_versioned.governance.mirror import Difference, GovernanceStore
from dagster_versioned.governance.place import clear, objects, same_place
from dagster_versioned.governance.registry import Registry
from dagster_versioned.identity.names import DATA_FOLDER
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import opening
from dagster_versioned.storage.location import Location
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.documents.manifest import recorded_project
from dagster_versioned.tables.environment.registry import refuse_environments
from dagster_versioned.tables.relocation.migration_mark import read_mark

OpenStore = Callable[[Location], ObjectStore]


@dataclass(frozen=True)
class Enrollment:
    """What was recorded: the registry's commit (``None``: it was recorded before), and what the mirror was given."""

    commit: str | None
    published: tuple[Difference, ...]


def enroll(
    registry: Registry,
    mirror: GovernanceStore,
    project: str,
    location: Location,
    kind: RegistrationKind = "registered",
    *,
    actor: str | None = None,
    reason: str | None = None,
    open_store: OpenStore = opening.open_store,
) -> Enrollment:
    """Record that a project's bytes belong at a location, and tell the governance storage.

    ``"registered"`` is for a new project, whose place holds no table yet; ``"attached"`` for one that was there before,
    and nothing of which is touched. What is put at its place is the marker for datom's readers. Run again, it finishes
    what a crash left. With a `Registry.rehearsal`, nothing is recorded and nothing put.

    Raises `InvalidInput` where the place holds another project, or what the other kind is for, or is governed by
    another registry; `RegistryConflict` where the project is registered elsewhere, or the place is another project's;
    `RegistryUnavailable`, `GovernanceError`.
    """
    name = project_name(project)
    registry.fetch()
    if name not in registry.projects():
        place = Project(name, open_store(location))
        _check_place(place, location, kind)
        _check_governance(place, location, mirror)
    commit = registry.register(name, location, actor=actor, kind=kind, reason=reason)
    if registry.rehearses:
        return Enrollment(commit, ())
    published = tuple(mirror.publish(registry, [name]))
    data = open_store(location).subfolder(DATA_FOLDER)
    put_marker(data, GovernanceMarker.of(registry, mirror, registry.documents(name).history))
    return Enrollment(commit, published)


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
    if delete_data:
        return replace(report, deleted_objects=clear(data))
    put_marker(data, None)
    return report


def _check_place(project: Project, location: Location, kind: RegistrationKind) -> None:
    mark = read_mark(project.data)
    if mark is not None and mark.state == "leaving":
        raise InvalidInput(
            f"{location.uri} is closed: a project left it for {mark.target.uri} (migration {mark.id}), and the fence "
            "there stops every writer. Nothing was recorded. Name another place, or empty this one if nobody needs "
            "what is there."
        )
    recorded = recorded_project(project.data)
    if recorded not in (None, project.name):
        raise InvalidInput(
            f"{location.uri} holds the project {recorded!r}, not {project.name!r}. Nothing was recorded. Lineage names "
            "a project for ever, so it is governed under its own name."
        )
    tables = project.tables()
    if kind == "registered" and tables:
        raise InvalidInput(
            f"{location.uri} holds {len(tables)} tables already, so {project.name} is not new. Nothing was recorded. "
            f"Attach it: `dagster-versioned gov attach {project.name} {location.uri}`."
        )
    if kind == "attached" and not tables:
        raise InvalidInput(
            f"{location.uri} holds no table, so there is nothing to attach. Nothing was recorded. Correct the "
            f"location, or register a new project: `dagster-versioned gov register {project.name} {location.uri}`."
        )


def _check_governance(project: Project, location: Location, mirror: GovernanceStore) -> None:
    marker, own = read_marker(project.data), storage_of(mirror)
    if marker is not None and (own is None or not same_place(marker.storage, own)):
        raise InvalidInput(
            f"{location.uri} is governed already: its {MARKER_KEY} names the governance storage {marker.storage.uri} "
            f"of the registry {marker.repo_url}. Nothing was recorded. Decommission it there first; where that "
            "registry is given up, or the place is a copy, delete the file."
        )
