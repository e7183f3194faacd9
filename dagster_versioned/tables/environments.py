"""Making and dropping environments of a project. Production's tables are read for it, and never written."""

import secrets
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from dagster_versioned.errors import AlreadyExists, InvalidInput, ObjectNotFound
from dagster_versioned.identity.names import TableName, check_environment_name, table_name
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.documents.head import HEADS_FOLDER, Head
from dagster_versioned.tables.environment.fork import Fork, ForkedTable
from dagster_versioned.tables.environment.registry import FILES, key_of, read_environment, refuse_in_environment
from dagster_versioned.tables.moment import commits_of, heads_at_one_moment, put_moment

if TYPE_CHECKING:
    from dagster_versioned.tables.project import Project


def create_environment(project: "Project", name: str, *, by: str | None = None) -> Fork:
    """Fork every table of a project at one moment, under a name that no environment has; copies no row.

    Raises `InvalidName`, `InvalidInput` where there is one of that name, `ProjectMoved` for a place that a migration is
    leaving or arriving at, and `CommitConflict`, see `heads_at_one_moment`.
    """
    check_environment_name(name)
    refuse_in_environment(project, "Another environment of it", "Create it from the project itself")
    project.check_unmarked()
    heads = heads_at_one_moment(project)
    created = datetime.now(UTC).isoformat(timespec="seconds")
    tables = {
        table: ForkedTable(heads[table].log_version, sha, heads[table])
        for table, sha in commits_of(project.data, heads).items()
    }
    fork = Fork(name, secrets.token_hex(6), project.name, created, by, tables, _pins(project.data))
    try:
        put_moment(project, project.store, key_of(name), fork.to_bytes(), heads, f"the environment {name}")
    except AlreadyExists as error:
        known = read_environment(project.store, name)
        raise InvalidInput(
            f"There is an environment {name!r} already, of {known.created}. Nothing was changed. Open it, choose "
            f"another name, or drop it first: `dagster-versioned env drop {name}`."
        ) from error
    return fork


def drop_environment(project: "Project", name: str) -> int:
    """Delete an environment and what was written in it, and nothing else; returns the bytes that are free.

    First its document, so that nobody opens it or commits to it any more. Run again after a crash, it deletes what is
    left. Raises `InvalidName`, and `EnvironmentNotFound` where there is neither a document nor a file of it.
    """
    size_of(project, name)
    project.store.delete([key_of(name)])
    left = list(project.store.list(f"{FILES}{name}/"))
    project.store.delete([info.key for info in left])
    if (folder := project.store.local_path(f"{FILES}{name}")) is not None:
        shutil.rmtree(folder, ignore_errors=True)  # locks, and files in the making
    return sum(info.size for info in left)


def size_of(project: "Project", name: str) -> int:
    """The bytes that dropping an environment frees. Raises as `drop_environment` does."""
    check_environment_name(name)
    refuse_in_environment(project, "To drop one", "Drop it from the project itself")
    left = [info.size for info in project.store.list(f"{FILES}{name}/")]
    if not left:
        try:
            project.store.head(key_of(name))
        except ObjectNotFound:
            read_environment(project.store, name)  # says which there are
    return sum(left)


@dataclass(frozen=True)
class Written:
    """A table that was written in an environment: its head at the fork, ``None`` where there was none, and now."""

    table: TableName
    before: Head | None
    after: Head | None
    commits: int


def written_in(project: "Project") -> list[Written]:
    """The tables that were committed to in the environment that a project was opened in, by name."""
    environment = project.environment
    if environment is None:
        return []
    own = environment.own_data()
    names = sorted(table_name(info.key[len(HEADS_FOLDER) : -len(".json")]) for info in own.list(HEADS_FOLDER))
    found: list[Written] = []
    for name in names:
        head, forked = project.table(str(name)).resolve(), environment.fork.tables.get(name)
        commits = head.log_version - environment.forked_at(name)
        if commits > 0:
            found.append(Written(name, None if forked is None else forked.head.head, head.head, commits))
    return found


def _pins(data: ObjectStore) -> bytes | None:
    try:
        return data.get(".metadata/pins.json")
    except ObjectNotFound:
        return None
