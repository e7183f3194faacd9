"""A guard: what is built from a parked version is not current before that version is."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dagster_versioned.errors import InvalidInput, TableNotFound, VersionNotFound
from dagster_versioned.identity.names import TableName, table_name
from dagster_versioned.identity.version import Parent
from dagster_versioned.process_state import PROCESS
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.context import ProjectContext
from dagster_versioned.tables.documents.parked_draft import draft_keys
from dagster_versioned.tables.state import TableState
from dagster_versioned.tables.table import VersionedTable
from dagster_versioned.tables.upstream import Upstream
from dagster_versioned.tables.write.commit import CommitDraft, Guard

Reads = Callable[[], Iterable[Upstream]]


class ReadsHeeded(list[Reads]):
    """What tells what was read by a write that says of no run which one made it; who runs steps adds its own."""


class PublishedParents(Guard):
    """Refuses a version that is built from a parked one which is not published: `InvalidInput`.

    Known are what was read from drafts, be they of another project; and where the write does not say of which step it
    is, what the step that is running has read, and parents of this project that no log has, where a draft waits.
    """

    def __init__(self, project: ProjectContext, name: TableName, store: ObjectStore) -> None:
        self._project = project
        self._name = name

    def check(self, state: TableState | None, draft: CommitDraft) -> None:
        """Look at what the versions of a write are built from."""
        if draft.operation != "WRITE":
            return
        refuse_unpublished(self._name, draft.built_from)
        by_hand = [entry for entry in draft.info.get("versions", ()) if "run" not in entry["facts"]]
        if by_hand:  # a step has read its parents, so it is known which of them are parked
            heeded = (read for reads in PROCESS.of(ReadsHeeded) for read in reads())
            refuse_unpublished(self._name, heeded)
            if (parent := self._unknown_parent(by_hand)) is not None:
                raise _refusal(self._name, parent, "a draft")

    def _unknown_parent(self, entries: Iterable[Mapping[str, Any]]) -> Parent | None:
        """A parent of this project that no log has, where a draft waits."""
        parents = {Parent.from_json(parent) for entry in entries for parent in entry["identity"].get("parents", ())}
        by_table: dict[str, list[Parent]] = {}
        for parent in parents:
            if parent.source == self._project.name and parent.environment is None:
                by_table.setdefault(parent.table, []).append(parent)
        for table, own in by_table.items():
            unknown = (parent for parent in own if not is_committed(self._project, parent))
            has_drafts = next(draft_keys(self._project.data, table), None) is not None
            if has_drafts and (parent := next(unknown, None)) is not None:
                return parent
        return None


def refuse_unpublished(name: TableName, read: Iterable[Upstream]) -> None:
    """Raise `InvalidInput` where something was read before it was published."""
    if (parked := next((upstream for upstream in read if upstream.drafts), None)) is not None:
        raise _refusal(name, parked.parent, f"the draft {parked.drafts[0][:8]}")


def is_committed(project: ProjectContext, parent: Parent) -> bool:
    """Whether a version of the project is in the log of its table."""
    try:
        VersionedTable(project, table_name(parent.table)).choose(parent.version)
    except (TableNotFound, VersionNotFound):
        return False
    return True


def _refusal(name: TableName, parent: Parent, draft: str) -> InvalidInput:
    of = "" if parent.partition is None else f" [{parent.partition}]"
    return InvalidInput(
        f"{name} would be built from version {parent.version[:8]} of {parent.table}{of} of project {parent.source}, "
        f"which is parked as {draft} and not published: its checks may yet fail. {name} is as it was. A version can "
        "wait with its upstreams where an asset of the same project returns it, and it is neither a history of events "
        f"nor a feature; else run the step once {parent.table} is published, as the version sensor does."
    )
