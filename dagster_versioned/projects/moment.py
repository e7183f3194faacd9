"""All heads of a project at one moment, so that no version is among them without what it was built from.

A document that names the moment (an environment, a tag) keeps it from being collected from then on.
"""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from dagster_versioned.delta.log.commits import commit_key, commit_sha256
from dagster_versioned.errors import CommitConflict, IntegrityError, InvalidName, ObjectNotFound, PreconditionFailed
from dagster_versioned.identity.names import TableName, table_name
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.context import ProjectContext
from dagster_versioned.tables.document import drop_document, put_document
from dagster_versioned.tables.documents.head import HEADS_FOLDER, HeadDocument, head_key, read_head, table_head
from dagster_versioned.tables.erased_parts import ERASE, REDACT
from dagster_versioned.tables.operations import TableOperations
from dagster_versioned.tables.table_record import TableRecord

PASSES = 20
"""How often heads are read until none of them moved."""
TABLES_AT_ONCE = 16


def heads_at_one_moment(project: ProjectContext) -> dict[TableName, HeadDocument]:
    """The head of every table that has one, all of them current at one moment, without a mark; nothing is written.

    Read twice: where no head moved between the first reading of the last and the second reading of the first, there was
    such a moment. Only heads are read, but of tables with a commit in flight, whose log says where they are. Raises
    `CommitConflict` where tables never stand still for as long as a pass takes, and where one is being renamed.
    """
    before: Mapping[TableName, HeadDocument] = {}
    moved: Iterable[TableName] = ()
    for _ in range(PASSES):
        now = _read_all(project)
        moved = [name for name in now if before.get(name) != now[name]]
        if not moved and before.keys() == now.keys():
            return now
        before = now
    raise CommitConflict(
        f"The tables of {project.name} do not stand still for as long as it takes to read their heads {PASSES} times: "
        f"{', '.join(sorted(moved)[:5])}. Nothing was written. Run it again when fewer runs are in progress."
    )


def commits_of(data: ObjectStore, heads: Mapping[TableName, HeadDocument]) -> dict[TableName, str]:
    """The SHA-256 of the commit that each head stands for. Raises `IntegrityError` where the log does not have it."""

    def commit_of(name: TableName) -> str:
        at = heads[name].log_version
        try:
            return commit_sha256(at, data.get(f"{name}/{commit_key(at)}"))
        except ObjectNotFound:
            raise IntegrityError(
                f"The head of {name} is at log version {at}, which its log does not have. Nothing was written. Rebuild "
                f"the head from the log: `dagster-versioned repair {name}`."
            ) from None

    with ThreadPoolExecutor(TABLES_AT_ONCE, thread_name_prefix="commits") as pool:
        return dict(zip(heads, pool.map(commit_of, heads), strict=True))


def put_moment(
    project: ProjectContext,
    store: ObjectStore,
    key: str,
    document: bytes,
    heads: Mapping[TableName, HeadDocument],
    what: str,
) -> None:
    """Put the document of ``what`` (such as "the tag x"), by which these heads are kept; leave none where it is late.

    Raises `AlreadyExists`, `ProjectMoved` where a migration began before the document was there, and `CommitConflict`
    where a collection did.
    """
    put = put_document(store, key, document)
    try:
        check_kept(project, heads, what)
    except BaseException:
        with suppress(PreconditionFailed):  # somebody dropped it, and perhaps made another one
            drop_document(store, key, put.etag)
        raise


def check_kept(project: ProjectContext, heads: Mapping[TableName, HeadDocument], what: str) -> None:
    """Whether all that these heads name is there still, now that the document of ``what`` keeps it.

    Raises `CommitConflict` where a collection or an erasure was faster, which can be only where a head has moved since,
    and `ProjectMoved` where a migration was.
    """
    project.check_unmarked()  # a migration that began before the document was there did not count it
    for name, document in heads.items():
        if read_head(project.data, head_key(name)) == document:
            continue
        history = TableOperations(project, name).existing_state().history
        since = history.between(document.log_version + 1, history.log_version)
        if any(record.operation in (ERASE, REDACT) for record in since):
            raise CommitConflict(
                f"Rows of {name} were erased while {what} was made. Nothing is left of it. Create it again."
            )
        for version in history.until(document.log_version).heads.values():
            if version.gone is not None:  # announced, or done
                raise CommitConflict(
                    f"Version {version.short} of {name} was collected while {what} was made. Nothing is left of it. "
                    "Create it again."
                )


def _read_all(project: ProjectContext) -> dict[TableName, HeadDocument]:
    keys = [info.key for info in project.data.list(HEADS_FOLDER)]
    names = [name for key in keys if (name := _name(key)) is not None]
    with ThreadPoolExecutor(TABLES_AT_ONCE, thread_name_prefix="heads") as pool:
        found = pool.map(partial(_settled, project), names)
    return {name: document for name, document in zip(names, found, strict=True) if document is not None}


def _settled(project: ProjectContext, name: TableName) -> HeadDocument | None:
    """The head, as the log has it if the document does not say so by itself; ``None`` of what is no table by now."""
    document = read_head(project.data, head_key(name))
    if document.arriving is not None:
        _require_not_left(project, table_name(document.arriving.source), name)
        return None  # a rename that has only begun: the table is there by the name that it had
    if document.log_version < 0 and document.pending is None:
        return None
    # Without a head, it was dropped, or left for another name, which the log says.
    if document.pending is None and document.owed_since is None and document.head is not None:
        return document
    operations = TableOperations(project, name)
    state = operations.refresh()
    if state is None or operations.name != name:
        return None
    return HeadDocument(state.log_version, table_head(name, state))


def _require_not_left(project: ProjectContext, source: TableName, name: TableName) -> None:
    """Raise `CommitConflict` where a rename has got so far that the table is no longer there by its former name."""
    left = TableOperations(project, source).cache.refresh()
    if left is not None and TableRecord.of(left.snapshot).left_for(source) == name:
        raise CommitConflict(
            f"The table {source} is being renamed to {name}, so it has no head by either name. Nothing was written. "
            f"Finish that first: `dagster-versioned rename {source} {name} --apply`."
        )


def _name(key: str) -> TableName | None:
    try:
        return table_name(key.removeprefix(HEADS_FOLDER).removesuffix(".json"))
    except InvalidName:
        return None
