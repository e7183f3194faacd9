"""Writers that are killed at a point of their commit: from there on, nothing of theirs reaches the store."""

from collections.abc import Callable
from typing import Literal

from dagster_versioned import Project
from dagster_versioned.storage import LocalStore
from dagster_versioned.storage.wrappers import StoreWrapper

Moment = Literal["marked", "committed", "published"]
"""What is the last thing that a writer did: it marked the head, it committed, it published the head."""


class Died(BaseException):
    """The writer is dead: not an error that anything handles."""


class DyingStore(StoreWrapper):
    """Passes calls on up to a moment of the next commit, and none from there on."""

    def __init__(self, folder: str, moment: Moment) -> None:
        super().__init__(LocalStore(folder))
        self._moment = moment
        self._life = {"committed": False, "dead": False}

    def _around(self, verb, key, size, action):
        life = self._life
        is_log = "/_delta_log/" in key and verb == "put_if_absent"
        if self._moment == "marked":
            life["dead"] |= is_log
        elif life["committed"] and verb.startswith("put"):
            life["dead"] |= self._moment == "committed" or ".metadata/heads/" not in key
        if life["dead"]:
            raise Died
        result = action()
        life["committed"] |= is_log
        return result


def die_at(moment: Moment, project: Project, folder: str, write: Callable[[Project], object]) -> None:
    """Let a writer of a project in a local folder die at a moment of its commit; one that commits nothing lives."""
    try:
        write(Project(project.name, DyingStore(folder, moment)))
    except Died:
        return
