"""Whether a server keeps the condition of a conditional write, on which every commit stands."""

from collections.abc import Callable

from dagster_versioned.errors import StorageError, StoreUnavailable
from dagster_versioned.storage.object_store import ObjectInfo


class ConditionCheck:
    """Looked at once for a server that is none of the clouds' own: what was just created is created again.

    A server that ignores the condition would let two writers take one version, and one of the two would be lost.
    """

    def __init__(self, endpoint_url: str | None) -> None:
        self._is_done = endpoint_url is None

    def created(self, info: ObjectInfo, again: Callable[[], ObjectInfo | None], uri: str) -> ObjectInfo:
        """The object that was created. ``again`` creates it once more; ``None`` where the server refuses, as it must.

        Raises `StorageError` for a server that does it twice in a row: once may be because somebody deleted it.
        """
        for _ in range(0 if self._is_done else 2):
            try:
                made = again()
            except StoreUnavailable:
                return info  # nothing is known, and the object is there
            if made is None:
                self._is_done = True
                return info
            info = made
        if self._is_done:
            return info
        raise StorageError(
            f"The server of {uri} ignores the condition of a write (If-None-Match): it created {info.key!r} again, "
            "which was there. Without it two writers of a table lose each other's versions. The object is there, with "
            "the bytes of this writer; use a server, or a version of it, with conditional writes."
        )
