"""The files of one commit, and changes to them: read and computed object by object, without a work tree."""

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from dagster_versioned.errors import GovernanceError
from dagster_versioned.governance.git_remote import RemoteUrl
from dagster_versioned.storage.keys import check_key

MAX_BLOB_BYTES = 1 << 28
"""What is larger is no document; never read."""

BLOB_MODE = "100644"
"""The mode of a plain file."""

_KINDS = {"120000": "a symbolic link", "160000": "a submodule", "040000": "a folder"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a commit: its mode, as git writes it, the id of its object, and a file's size in bytes.

    A folder has no size, nor has a file whose object is not in the clone.
    """

    mode: str
    oid: str
    size: int | None


class Objects(Protocol):
    """What a tree reads from: the objects of a clone."""

    remote: RemoteUrl

    def listing(self, sha: str) -> dict[str, Entry]:
        """Every entry of a commit, folders too, by path."""
        ...

    def blobs(self, oids: Collection[str]) -> dict[str, bytes]:
        """The bytes of objects. Raises `GovernanceError` for one that is not there."""
        ...


class Tree:
    """The files of one commit (``sha``; ``None``: of none), and changes to them that are not yet a commit."""

    def __init__(self, objects: Objects, sha: str | None) -> None:
        self._objects = objects
        self.sha = sha
        self._entries: dict[str, Entry] | None = None
        self._changes: dict[str, bytes | None] = {}

    def read(self, path: str) -> bytes | None:
        """The bytes of a file, ``None`` where there is none. Raises as `read_all` does."""
        return self.read_all([path])[path]

    def read_all(self, paths: Iterable[str], *, at_most: int = MAX_BLOB_BYTES) -> dict[str, bytes | None]:
        """The bytes of files, ``None`` where there is none.

        Raises `GovernanceError` for what is no plain file (a link, a submodule, something executable, a folder), and,
        unread, for more than ``at_most`` bytes.
        """
        found: dict[str, bytes | None] = {}
        oids: dict[str, str] = {}
        for path in paths:
            found[path] = self._changes.get(path)
            entry = None if path in self._changes else self._file(path)
            if entry is not None:
                if entry.size is not None and entry.size > at_most:
                    raise self._refused(path, f"a file of {entry.size} bytes", f"one of at most {at_most}")
                oids[path] = entry.oid
        blobs = self._objects.blobs(set(oids.values()))
        return found | {path: blobs[oid] for path, oid in oids.items()}

    def paths(self, folder: str = "") -> list[str]:
        """The paths of all below a folder that is no folder itself, sorted; of any kind, so `read` may refuse some."""
        prefix = f"{folder}/" if folder else ""
        there = {path for path, entry in self._listing().items() if entry.mode != "040000"}
        there |= {path for path, data in self._changes.items() if data is not None}
        gone = {path for path, data in self._changes.items() if data is None}
        return sorted(path for path in there - gone if path.startswith(prefix))

    def write(self, path: str, data: bytes | None) -> None:
        """Give a file other bytes; ``None``: remove it. Raises `InvalidName`."""
        self._changes[check_key(path)] = data

    def changes(self) -> dict[str, bytes | None]:
        """What was written here and differs from the commit."""
        committed = Tree(self._objects, self.sha)
        committed._entries = self._listing()
        return {path: data for path, data in self._changes.items() if not committed.holds(path, data)}

    def holds(self, path: str, data: bytes | None) -> bool:
        """Whether a path is a plain file with these bytes; with ``None``, whether nothing is there."""
        try:
            entry = self._file(path)
        except GovernanceError:
            return False
        if entry is None or data is None or path in self._changes:
            return self.read(path) == data
        return entry.oid == _blob_id(data, entry.oid)

    def _file(self, path: str) -> Entry | None:
        listing = self._listing()
        parts = path.split("/")
        for end in range(1, len(parts)):
            above = listing.get("/".join(parts[:end]))
            if above is None:
                return None
            if above.mode != "040000":
                raise self._refused("/".join(parts[:end]), _KINDS.get(above.mode, "a file"), "a folder")
        entry = listing.get(path)
        if entry is None:
            return None
        if entry.mode != BLOB_MODE:
            raise self._refused(path, _KINDS.get(entry.mode, f"a file of mode {entry.mode}"), "a plain file")
        return entry

    def _refused(self, path: str, what: str, expected: str) -> GovernanceError:
        return GovernanceError(
            f"{path!a:.300} in commit {self.sha} of {self._objects.remote} is {what}, not {expected}. It was not "
            "read. Somebody put it there by hand: `git log` shows who; revert that commit."
        )

    def _listing(self) -> dict[str, Entry]:
        if self._entries is None:
            self._entries = self._objects.listing(self.sha) if self.sha is not None else {}
        return self._entries


def _blob_id(data: bytes, like: str) -> str:
    """The object id that git gives to bytes; of the same kind of hash as another id."""
    algorithm = hashlib.sha1 if len(like) == 40 else hashlib.sha256
    return algorithm(b"blob %d\0" % len(data) + data).hexdigest()
