"""Whether a server keeps the conditions of conditional writes, on which every commit stands."""

from collections.abc import Callable
from typing import NamedTuple

from dagster_versioned.errors import StorageError, StoreUnavailable
from dagster_versioned.storage.object_store import ObjectInfo


class Conditions(NamedTuple):
    """The headers that carry the conditions of writes: that there is no object, and that it is a certain one."""

    create: str
    replace: str


HTTP = Conditions("If-None-Match", "If-Match")


class ConditionCheck:
    """Looked at once for a server that is none of the clouds' own: what was just written is written again, on a
    condition that does not hold any more.

    A server that ignores the condition would let two writers take one version, and one of the two would be lost.
    """

    def __init__(self, endpoint_url: str | None, headers: Conditions = HTTP) -> None:
        self._headers = headers
        self._unseen = set[str]() if endpoint_url is None else {"create", "replace"}

    def kept(self, info: ObjectInfo, etag: str | None, again: Callable[[], ObjectInfo | None], uri: str) -> ObjectInfo:
        """The object that was written where the ETag was ``etag`` (``None``: where there was no object).

        ``again`` writes the same once more; ``None`` where the server refuses, as it must. Raises `StorageError` for a
        server that does it twice in a row: once may be because somebody deleted it, or put back what was there.
        """
        kind, header = ("create", self._headers.create) if etag is None else ("replace", self._headers.replace)
        if kind not in self._unseen or info.etag == etag:  # the same bytes, so the condition holds again
            return info
        for _ in range(2):
            try:
                made = again()
            except StoreUnavailable:
                return info  # nothing is known, and the object is there
            if made is None:
                self._unseen.discard(kind)
                return info
            info = made
        did = f"created {info.key!r} again, which was there" if etag is None else f"replaced {info.key!r} twice"
        raise StorageError(
            f"The server of {uri} ignores the condition of a write ({header}): it {did}. Without it two writers of "
            "a table lose each other's versions. The object is there, with the bytes of this writer; use a server, or "
            "a version of it, with conditional writes."
        )
