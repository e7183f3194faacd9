"""Governance as a test writes it down: documents, a mirror of them, a clone of some age, and a project that moves."""

import shutil
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

from dagster_versioned.governance.connect import Governance
from dagster_versioned.governance.documents import DEFAULT_DISPATCH, Dispatch, Event, MigrationHistory, ProjectDocuments
from dagster_versioned.governance.fence import is_moved_with, raise_fence
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import LocalStore, Location, ObjectStore
from dagster_versioned.tables.relocation.migration_mark import MigrationMark

NAME = "HOUSE"
BEGAN = datetime(2026, 8, 1, 12, tzinfo=UTC)


def key(document: str, project: str = NAME) -> str:
    """Where a document lies in the governance storage."""
    return f"datom/projects/{project}/{document}.json"


def lived_at(*places: Path | str | Location, dispatch: Dispatch = DEFAULT_DISPATCH) -> ProjectDocuments:
    """The documents of a project that was registered at the first place and moved to the others, a day each."""
    locations = [place if isinstance(place, Location) else Location.parse(str(place)) for place in places]
    events = [Event(kind="registered", timestamp=BEGAN, actor="Ada", target=locations[0])]
    for day, (source, target) in enumerate(pairwise(locations), start=1):
        at = BEGAN + timedelta(days=day)
        events.append(Event(kind="migrated", timestamp=at, actor="Ada", source=source, target=target))
    history = MigrationHistory(events=tuple(events))
    ref = history.ref()
    assert ref is not None
    return ProjectDocuments(ref, dispatch, history)


def publish(storage: ObjectStore, documents: ProjectDocuments, project: str = NAME) -> None:
    """Put the documents where readers and writers look."""
    storage.put(key("migration_history", project), documents.history.to_bytes())
    storage.put(key("dispatch", project), documents.dispatch.to_bytes())
    storage.put(key("ref", project), documents.ref.to_bytes())


class Clone:
    """A registry clone as a connection sees it: documents, and when they were fetched."""

    def __init__(self, documents: ProjectDocuments, fetched: timedelta | None = timedelta(minutes=1)) -> None:
        self._history, self._dispatch = documents.history.to_bytes(), documents.dispatch.to_bytes()
        self.fetched_at = None if fetched is None else datetime.now(UTC) - fetched

    def documents(self, project: str) -> ProjectDocuments:
        assert project == NAME
        history = MigrationHistory.parse(self._history, "migration_history.json")
        ref = history.ref()
        assert ref is not None
        return ProjectDocuments(ref, Dispatch.parse(self._dispatch, "dispatch.json"), history)


def developer(
    storage: ObjectStore, documents: ProjectDocuments, fetched: timedelta | None = timedelta(0)
) -> Governance:
    """A developer whose clone holds these documents."""
    return Governance(storage, role="developer", registry=Clone(documents, fetched))


def move_bytes(old: Path, new: Path, migration: str = "m-1") -> None:
    """What a migration does to the two places: the fence at the old one, then a copy."""
    mark = MigrationMark(
        migration, "leaving", Location.parse(str(old)), Location.parse(str(new)), "2026-08-02T12:00:00Z"
    )
    project = Project(NAME, LocalStore(old))
    raise_fence(project, mark)
    belongs = is_moved_with(project)
    for path in sorted((old / "datom").rglob("*")):
        name = path.relative_to(old / "datom").as_posix()
        if path.is_file() and belongs(name):
            target = new / "datom" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
