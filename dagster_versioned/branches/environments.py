"""Making and dropping environments of a project. Production's tables are read for it, and never written."""

import secrets
import shutil
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from dagster_versioned.branches.promotion_document import refuse_open_promotion
from dagster_versioned.errors import (
    AlreadyExists,
    CommitConflict,
    IntegrityError,
    InvalidInput,
    ObjectNotFound,
    PreconditionFailed,
)
from dagster_versioned.identity.names import TableName, check_environment_name
from dagster_versioned.projects.moment import commits_of, heads_at_one_moment, put_moment
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.document import drop_document, read_document
from dagster_versioned.tables.documents.head import Head
from dagster_versioned.tables.environment.fork import EnvironmentDocument, Fork, ForkedTable
from dagster_versioned.tables.environment.registry import FILES, key_of, read_environment
from dagster_versioned.tables.preconditions import require

if TYPE_CHECKING:
    from dagster_versioned.projects.project import Project


def create_environment(project: "Project", name: str, *, by: str | None = None) -> Fork:
    """Fork every table of a project at one moment, under a name that no environment has; copies no row.

    Raises `InvalidName`, `InvalidInput` where there is one of that name, `ProjectMoved` for a place that a migration is
    leaving or arriving at, and `CommitConflict`, see `heads_at_one_moment`.
    """
    check_environment_name(name)
    require("create environment", project)
    fork = fork_now(project, name, by)
    try:
        put_moment(project, project.store, key_of(name), fork.to_bytes(), fork.heads, f"the environment {name}")
    except AlreadyExists as error:
        known = read_environment(project.store, name)
        raise InvalidInput(
            f"There is an environment {name!r} already, of {known.created}. Nothing was changed. Open it, choose "
            f"another name, or drop it first: `dagster-versioned env drop {name}`."
        ) from error
    return fork


def fork_now(project: "Project", name: str, by: str | None) -> Fork:
    """A fork of a new generation of every table at one moment; nothing is written. See `heads_at_one_moment`."""
    heads = heads_at_one_moment(project)
    created = datetime.now(UTC).isoformat(timespec="seconds")
    tables = {
        table: ForkedTable(heads[table].log_version, sha, heads[table])
        for table, sha in commits_of(project.data, heads).items()
    }
    return Fork(name, secrets.token_hex(6), project.name, created, by, tables, _pins(project.data))


def drop_environment(project: "Project", name: str) -> int:
    """Delete an environment and what was written in it, and nothing else; returns the bytes that are free.

    First its document, as it was seen, so that nobody opens it or commits to it any more; then the folders that were
    there before it was seen: what is not of that document is of none any more. Run again after a crash, it deletes what
    is left. Raises `InvalidName`, `EnvironmentNotFound` where there is neither a document nor a file of it,
    `InvalidInput` while a promotion of it is open, and `CommitConflict` where it was rebased, or made anew, meanwhile.
    """
    size_of(project, name)
    require("drop environment", project)
    key, folder = key_of(name), f"{FILES}{name}"
    there = {info.key.removeprefix(f"{folder}/").partition("/")[0] for info in project.store.list(f"{folder}/")}
    with suppress(ObjectNotFound):  # another one has dropped it, or a crash left its files
        data, seen = read_document(project.store, key)
        with suppress(IntegrityError):  # of what nobody can read, what lies there goes
            there |= {fork.generation for fork in EnvironmentDocument.from_bytes(data, key).forks}
        _drop(project.store, name, seen.etag)
    freed = sum(delete_folder(project.store, f"{folder}/{generation}") for generation in sorted(there))
    if (path := project.store.local_path(folder)) is not None:
        with suppress(OSError):  # there is another one by now
            path.rmdir()
    return freed


def _drop(store: ObjectStore, name: str, etag: str) -> None:
    """Drop the document of an environment as it was seen; that somebody else has dropped it is as good."""
    try:
        drop_document(store, key_of(name), etag)
    except PreconditionFailed:
        now = read_document(store, key_of(name))[1]
        raise CommitConflict(
            f"The environment {name} was rebased, or dropped and made anew, at {now.modified:%Y-%m-%d %H:%M:%S} "
            "UTC, while it was dropped here. What is there now is untouched. Look whether it is to go as well "
            f"(`dagster-versioned env ls`), and drop it again."
        ) from None


def delete_folder(store: ObjectStore, folder: str) -> int:
    """Delete all that lies in a folder of environments; returns its bytes."""
    left = list(store.list(f"{folder}/"))
    store.delete([info.key for info in left])
    if (path := store.local_path(folder)) is not None:
        shutil.rmtree(path, ignore_errors=True)  # locks, and files in the making
    return sum(info.size for info in left)


def size_of(project: "Project", name: str) -> int:
    """The bytes that dropping an environment frees. Raises as `drop_environment` does."""
    check_environment_name(name)
    require("drop environment", project, dry_run=True)
    refuse_open_promotion(project.data, name, "dropped")
    left = [info.size for info in project.store.list(f"{FILES}{name}/")]
    if not left:
        try:
            read_document(project.store, key_of(name))
        except ObjectNotFound:
            read_environment(project.store, name)  # says which there are
    return sum(left)


@dataclass(frozen=True)
class WrittenTable:
    """A table that was written in an environment: its head at the fork, ``None`` where there was none, and now."""

    table: TableName
    before: Head | None
    after: Head | None
    commits: int


def written_in(project: "Project") -> list[WrittenTable]:
    """The tables that were committed to in the environment that a project was opened in, by name."""
    environment = project.environment
    if environment is None:
        return []
    found: list[WrittenTable] = []
    for name in environment.written_names():
        table, forked = project.table(str(name)), environment.fork.tables.get(name)
        head = table.resolve()
        is_longer = head.log_version > environment.forked_at(name)
        if is_longer and (commits := environment.commits_in(name, table.state)):
            found.append(WrittenTable(name, None if forked is None else forked.head.head, head.head, commits))
    return found


def _pins(data: ObjectStore) -> bytes | None:
    try:
        return data.get(".metadata/pins.json")
    except ObjectNotFound:
        return None
