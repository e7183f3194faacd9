"""Whose a table is: one that was left to other programs takes nothing of this package but its being taken back."""

from dagster_versioned.identity.names import TableName
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.context import ProjectContext
from dagster_versioned.tables.state import TableState
from dagster_versioned.tables.write.commit import CommitDraft, Guard
from dagster_versioned.tables.write.leave import LEFT
from dagster_versioned.tables.write.table_actions import refuse_left


class Ownership(Guard):
    """Refuses what would be committed to a table that was left: `UnsupportedFeature`."""

    def __init__(self, project: ProjectContext, name: TableName, store: ObjectStore) -> None:
        """A table is asked by its state alone."""

    def check(self, state: TableState | None, draft: CommitDraft) -> None:
        """Let pass what leaves the table, or takes it back."""
        if state is not None and LEFT not in draft.info:
            refuse_left(state)
