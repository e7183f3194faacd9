"""All heads of a project at one moment, so that no version is among them without what it was built from."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from dagster_versioned.errors import CommitConflict, InvalidName
from dagster_versioned.identity.names import TableName, table_name
from dagster_versioned.tables.documents.head import HEADS_FOLDER, HeadDocument, head_key, read_head, table_head
from dagster_versioned.tables.operations import TableOperations

if TYPE_CHECKING:
    from dagster_versioned.tables.project import Project

PASSES = 20
"""How often heads are read until none of them moved."""
TABLES_AT_ONCE = 16


def heads_at_one_moment(project: "Project") -> dict[TableName, HeadDocument]:
    """The head of every table that has one, all of them current at one moment, without a mark; nothing is written.

    Read twice: where no head moved between the first reading of the last and the second reading of the first, there was
    such a moment. Only heads are read, but of tables with a commit in flight, whose log says where they are. Raises
    `CommitConflict` where tables never stand still for as long as a pass takes.
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


def _read_all(project: "Project") -> dict[TableName, HeadDocument]:
    keys = [info.key for info in project.data.list(HEADS_FOLDER)]
    names = [name for key in keys if (name := _name(key)) is not None]
    with ThreadPoolExecutor(TABLES_AT_ONCE, thread_name_prefix="heads") as pool:
        found = pool.map(partial(_settled, project), names)
    return {name: document for name, document in zip(names, found, strict=True) if document is not None}


def _settled(project: "Project", name: TableName) -> HeadDocument | None:
    """The head, as the log has it if the document does not say so by itself; ``None`` of what is no table by now."""
    document = read_head(project.data, head_key(name))
    if document.arriving is not None:
        return None  # a rename that is not done: the table is there by the name that it had
    if document.pending is None and document.owed_since is None:
        return document if document.log_version >= 0 else None
    operations = TableOperations(project, name)
    state = operations.refresh()
    if state is None or operations.name != name:
        return None
    return HeadDocument(state.log_version, table_head(name, state))


def _name(key: str) -> TableName | None:
    try:
        return table_name(key.removeprefix(HEADS_FOLDER).removesuffix(".json"))
    except InvalidName:
        return None
