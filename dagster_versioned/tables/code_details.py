"""Which code made versions: the documents that name its functions, and what differs between two codes.

A document is put once a version is committed that was made by other code than the one before it. It is named by its own
SHA-256, which the version records: without it, nobody knows which functions these were, and nothing else is lost.
"""

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, cast

import orjson

from dagster_versioned.errors import IntegrityError, ObjectNotFound, VersionedError
from dagster_versioned.identity.version import Code
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.document import encode
from dagster_versioned.tables.history import Version

logger = logging.getLogger("dagster_versioned")

FOLDER = ".metadata/code/"
"""Where the documents are, below the table's folder; `TableFork` knows it, too."""

_NAMED = 5


@dataclass(frozen=True)
class CodeDetails:
    """The digests of ``functions`` and classes by module and name, the names of ``constants``, and the ``runtime``."""

    functions: Mapping[str, str] = field(default_factory=dict[str, str])
    constants: Sequence[str] = ()
    runtime: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def to_bytes(self) -> bytes:
        """The document: JSON with sorted keys, so that equal details are equal bytes."""
        members = {"functions": dict(self.functions), "constants": list(self.constants), "runtime": dict(self.runtime)}
        return encode({"schema_version": 1, **members})

    @property
    def sha(self) -> str:
        """The SHA-256 of the document (64 hex)."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @classmethod
    def read(cls, store: ObjectStore, sha: str | None) -> Self | None:
        """What a document says; ``None`` where it is not there, or not the one of its name. Raises `StorageError`."""
        try:
            data = b"" if sha is None else store.get(_key(sha))
            if hashlib.sha256(data).hexdigest() != sha:
                return None
            members = cast("Mapping[str, Any]", orjson.loads(data))
            return cls(dict(members["functions"]), list(members["constants"]), dict(members["runtime"]))
        except (ObjectNotFound, IntegrityError, ValueError, LookupError, TypeError):
            return None

    def put(self, store: ObjectStore) -> None:
        """Put the document. Where that fails, the log says so, and the functions are not known later."""
        try:
            store.put(_key(self.sha), self.to_bytes(), durability="later")
        except VersionedError:
            logger.warning(
                "%s: a version is committed, but the document that names the functions which made it could not be "
                "written, so that nobody knows them later.",
                store.uri,
                exc_info=True,
            )


@dataclass(frozen=True)
class CodeChange:
    """Two fingerprints, and the functions and classes whose own text differs, or that one side does not reach.

    ``constants`` are those that may have changed, where no function has: their values are recorded nowhere.
    """

    before: str
    after: str
    changed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()

    def __str__(self) -> str:
        named = [("changed", self.changed), ("new", self.added), ("no longer reached", self.removed)]
        texts = [f"{what}: {_listed(names)}" for what, names in named if names]
        if texts:
            return "; ".join(texts)
        if self.constants:
            return f"no function, but a constant, file or library that they use: {_listed(self.constants)}"
        return "functions that were not recorded, a file or a library"


def code_of(version: Version) -> Code | None:
    """The code that made a version, as far as its facts say."""
    run = version.facts.run if version.raw is not None else None
    return None if run is None else run.code


def is_made_by(version: Version, code: Code | None) -> bool:
    """Whether a version may have been made by a code: both are known to be equal, or one is not known."""
    made_by = code_of(version)
    return made_by is None or code is None or made_by.fingerprint == code.fingerprint


def compare_codes(
    store: ObjectStore, before: Code | None, after: Code | None, details: CodeDetails | None = None
) -> CodeChange | None:
    """The difference of two codes of a table; ``None`` where they are equal, or one is not known.

    ``details`` are those of the code after, where that has made no version yet. Raises `StorageError`.
    """
    if before is None or after is None or before.fingerprint == after.fingerprint:
        return None
    old, new = CodeDetails.read(store, before.details), details or CodeDetails.read(store, after.details)
    if old is None or new is None:
        return CodeChange(before.fingerprint, after.fingerprint)
    common = old.functions.keys() & new.functions.keys()
    return CodeChange(
        before.fingerprint,
        after.fingerprint,
        changed=tuple(sorted(name for name in common if old.functions[name] != new.functions[name])),
        added=tuple(sorted(new.functions.keys() - common)),
        removed=tuple(sorted(old.functions.keys() - common)),
        constants=tuple(sorted({*old.constants, *new.constants})),
    )


def carry_details(here: ObjectStore, there: ObjectStore, versions: Iterable[Version]) -> None:
    """Put with one table what another has of the code that made versions."""
    shas = {code.details for version in versions if (code := code_of(version)) is not None}
    for sha in sorted(sha for sha in shas if sha is not None):
        found = CodeDetails.read(here, sha)
        if found is not None:
            found.put(there)


def _key(sha: str) -> str:
    return f"{FOLDER}{sha}.json"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"
