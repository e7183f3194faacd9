"""What a commit in an environment refers to: own files, and those that production needs for what the environment began
with, which it keeps as long as there is the environment. Anything else of production's may be collected at any time.
"""

from dagster_versioned.delta.actions import Add
from dagster_versioned.delta.log.snapshot import load_snapshot
from dagster_versioned.errors import InvalidInput
from dagster_versioned.identity.names import TableName
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.storage.overlay import OverlayStore
from dagster_versioned.tables.context import ProjectContext
from dagster_versioned.tables.erased_parts import ERASE
from dagster_versioned.tables.history import Collection
from dagster_versioned.tables.parts import objects_of, parts_of
from dagster_versioned.tables.write.commit import CommitDraft, Guard


class OwnFiles(Guard):
    """Copies the files of a table that production does not have to keep before a commit of an environment needs them.

    The table's log is production's up to the fork. Does nothing in production itself.
    """

    def __init__(self, project: ProjectContext, name: TableName, store: ObjectStore) -> None:
        self._environment = project.environment
        self._store = store
        self._forked_at = -1 if project.environment is None else project.environment.forked_at(name)
        self._forked: frozenset[str] | None = None

    def complete(self, draft: CommitDraft) -> None:
        """Copy what the draft adds and is neither the environment's own nor kept for it."""
        if not isinstance(self._store, OverlayStore) or draft.operation == ERASE:
            return  # production itself; or what stands for parts that it keeps, which it keeps as well
        adds = (action for action in draft.actions if isinstance(action, Add))
        for key in sorted(objects_of(self._store, adds)):
            if not self._store.is_own(key) and key not in self._of_fork():
                self._store.take(key)

    def before_waiting(self, collection: Collection) -> None:
        """Raise `InvalidInput` for one that was production's when the environment began: its end is not seen here."""
        if self._environment is not None and collection.log_version <= self._forked_at:
            raise InvalidInput(
                f"When the environment began, production was about to delete files of {self._store.uri} that are "
                "needed here. Nothing was committed. Drop the environment, and create it anew."
            )

    def committed(self) -> None:
        """Raise `EnvironmentNotFound` where the environment was dropped meanwhile."""
        if self._environment is not None:
            self._environment.check_committed()

    def _of_fork(self) -> frozenset[str]:
        if self._forked is None:
            found: set[str] = set()
            if self._forked_at >= 0:
                found = objects_of(self._store, parts_of(load_snapshot(self._store, self._forked_at)))
            self._forked = frozenset(found)
        return self._forked
