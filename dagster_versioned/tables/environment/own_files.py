"""What a commit in an environment refers to: own files, and those that production needs for what the environment began
with, which it keeps as long as there is the environment. Anything else of production's may be collected at any time.
"""

from collections.abc import Iterable

from dagster_versioned.delta.actions import Action, Add
from dagster_versioned.delta.log.snapshot import load_snapshot
from dagster_versioned.errors import InvalidInput
from dagster_versioned.storage.overlay import OverlayStore
from dagster_versioned.tables.parts import objects_of, parts_of, vector_object
from dagster_versioned.tables.state import TableState
from dagster_versioned.tables.write.commit import CollectionInProgress, CommitDraft, PlanCommit


class OwnFiles:
    """The files of one table in an environment, whose log is production's up to ``forked_at``."""

    def __init__(self, store: OverlayStore, forked_at: int) -> None:
        self._store = store
        self._forked_at = forked_at
        self._forked: frozenset[str] | None = None

    def keeping(self, plan: PlanCommit) -> PlanCommit:
        """The plan, whose files are copied from production first where it does not have to keep them.

        Raises `InvalidInput` where production was collecting files that are needed when the environment began, of
        which nobody learns here how it ended.
        """

        def kept(state: TableState | None, timestamp: int) -> CommitDraft | None:
            try:
                drafted = plan(state, timestamp)
            except CollectionInProgress as found:
                if found.collection.log_version > self._forked_at:
                    raise
                raise InvalidInput(
                    f"When the environment began, production was about to delete files of {self._store.uri} that are "
                    "needed here. Nothing was committed. Drop the environment, and create it anew."
                ) from found
            if drafted is not None:
                self._keep(drafted.actions)
            return drafted

        return kept

    def _keep(self, actions: Iterable[Action]) -> None:
        adds = [action for action in actions if isinstance(action, Add)]
        vectors = (vector_object(self._store, add) for add in adds)
        for key in (*(add.key for add in adds), *(vector for vector in vectors if vector is not None)):
            if not self._store.is_own(key) and key not in self._of_fork():
                self._store.take(key)

    def _of_fork(self) -> frozenset[str]:
        if self._forked is None:
            found: set[str] = set()
            if self._forked_at >= 0:
                found = objects_of(self._store, parts_of(load_snapshot(self._store, self._forked_at)))
            self._forked = frozenset(found)
        return self._forked
