"""Making and dropping tags of a project: names for all of its tables at one moment."""

from contextlib import suppress
from datetime import UTC, datetime

from dagster_versioned.errors import (
    AlreadyExists,
    GovernanceError,
    InvalidInput,
    ObjectNotFound,
    PreconditionFailed,
    ProjectMoved,
)
from dagster_versioned.projects.moment import commits_of, heads_at_one_moment, put_moment
from dagster_versioned.tables.context import ProjectContext
from dagster_versioned.tables.document import drop_document, read_document
from dagster_versioned.tables.documents.tag import Tag, TaggedTable, read_tag, tag_key
from dagster_versioned.tables.preconditions import require


def make_tag(project: ProjectContext, name: str, *, by: str | None, why: str | None) -> Tag:
    """Tag every table of a project that has a current version. Raises what `Project.tag` does."""
    key = tag_key(name)
    require("tag", project)
    # Without a head document's head, a table has no version, was dropped, or goes by another name.
    heads = {table: document for table, document in heads_at_one_moment(project).items() if document.head is not None}
    if not heads:
        raise InvalidInput(
            f"{project.data.uri} has no table with a version, so a tag would name nothing. None was made."
        )
    tables = {
        table: TaggedTable(heads[table].log_version, sha) for table, sha in commits_of(project.data, heads).items()
    }
    tag = Tag(name, datetime.now(UTC).isoformat(timespec="seconds"), by, why, tables)
    try:
        put_moment(project, project.data, key, tag.to_bytes(), heads, f"the tag {name}")
    except AlreadyExists as error:
        known = read_tag(project.data, name)
        raise InvalidInput(
            f"There is a tag {name!r} already, of {known.created}. Nothing was changed. Choose another name, or drop "
            f"it first: `dagster-versioned tag drop {name}`."
        ) from error
    return tag


def drop_tag(project: ProjectContext, name: str) -> None:
    """Take a tag away, also one that cannot be read. Raises what `Project.drop_tag` does."""
    key = tag_key(name)
    require("drop tag", project)
    try:
        seen = read_document(project.data, key)[1].etag
    except ObjectNotFound:
        read_tag(project.data, name)  # says which there are
        raise
    with suppress(PreconditionFailed):  # somebody else dropped it; one that was made since stays
        drop_document(project.data, key, seen)
    try:
        project.check_unmarked()
    except GovernanceError as error:  # a migration that began meanwhile may have copied it before
        raise ProjectMoved(
            f"The tag {name} was dropped here while the project was being moved, and may still be at the new place. "
            f"Drop it there. {error}"
        ) from error
