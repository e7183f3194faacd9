"""How a project comes under governance: a new one is registered, one that is there already is attached."""

from collections.abc import Callable
from dataclasses import dataclass

from dagster_versioned.errors import InvalidInput
from dagster_versioned.governance.documents import RegistrationKind, project_name
from dagster_versioned.governance.mirror import Difference, GovernanceStore
from dagster_versioned.governance.registry import Registry
from dagster_versioned.storage.location import Location
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.storage.opening import open_store
from dagster_versioned.tables.documents.datom_documents import recorded_project
from dagster_versioned.tables.project import Project
from dagster_versioned.tables.relocation.migration_mark import read_mark


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
    open_store: Callable[[Location], ObjectStore] = open_store,
) -> Enrollment:
    """Record that a project's bytes belong at a location, and tell the governance storage.

    ``"registered"`` is for a new project, whose place holds no table yet; ``"attached"`` for one that was there before,
    and nothing of which is touched: not a byte at its place changes. Run again, it finishes what a crash left. With a
    `Registry.rehearsal`, nothing is recorded and nothing published.

    Raises `InvalidInput` where the place holds another project, or what the other kind is for; `RegistryConflict` where
    the project is registered elsewhere, or the place is another project's; `RegistryUnavailable`, `GovernanceError`.
    """
    name = project_name(project)
    registry.fetch()
    if name not in registry.projects():
        _check_place(Project(name, open_store(location)), location, kind)
    commit = registry.register(name, location, actor=actor, kind=kind, reason=reason)
    return Enrollment(commit, () if registry.rehearses else tuple(mirror.publish(registry, [name])))


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
