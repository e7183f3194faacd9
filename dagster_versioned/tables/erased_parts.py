"""The register of erasures: one immutable document for each, which says what stands in the place of which parts.

A log that an erasure concerns names its document by number and SHA-256, and the document names the one before of the
table: so whoever reads the log knows that it reads the right ones. Versions keep their names; reading one takes the
parts that its log entry lists, compares them with its ``data_sha``, and reads those that stand for them.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import orjson

from dagster_versioned.delta.actions import Add, DomainMetadata, parse_action
from dagster_versioned.delta.log.snapshot import OWN_DOMAINS, Snapshot
from dagster_versioned.delta.paths import confined_key
from dagster_versioned.errors import AlreadyExists, IntegrityError, LogCorrupt, ObjectNotFound
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.document import encode, parse_object
from dagster_versioned.tables.parts import named_sha, vector_object

FOLDER = ".metadata/erasures/"
"""Where the documents are, below the data folder of the project itself, for its environments too."""

ERASE, REDACT = "ERASE", "REDACT"
"""The operations of the commits by which a log says that rows were erased, and what it tells no more."""

DOMAIN = f"{OWN_DOMAINS}erasures"
"""The domain of a log that names the newest erasure which concerns the table."""

Identity = tuple[str, str | None]
"""What an `Add` is told by: its key, and the id of its deletion vector."""

VersionKey = tuple[int, str | None]
"""What a version of a table is told by: its log version, and its partition."""

Substitutes = Mapping[Identity, Add | None]
"""What stands for each erased part; ``None``: nothing, since all of its rows were erased."""


@dataclass(frozen=True)
class ErasureName:
    """An erasure as the log of a table names it: its number, and the SHA-256 of its document."""

    epoch: int
    sha256: str

    @classmethod
    def by(cls, snapshot: Snapshot) -> Self | None:
        """The newest one that concerns a table, as its log says at a snapshot. Raises `LogCorrupt`."""
        text = snapshot.domains.get(DOMAIN)
        if text is None:
            return None
        try:
            return cls.of(orjson.loads(text))
        except (ValueError, KeyError, TypeError) as error:
            raise LogCorrupt(f"The domain {DOMAIN} names no erasure: {text!r:.200}. Nothing was read.") from error

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Self:
        """From its JSON. Raises `KeyError`, `ValueError`, `TypeError`."""
        return cls(int(raw["epoch"]), str(raw["sha256"]))

    def to_json(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "sha256": self.sha256}

    def action(self) -> DomainMetadata:
        """The action by which a log names it."""
        return DomainMetadata(DOMAIN, encode(self.to_json()).decode(), False)


@dataclass(frozen=True)
class TableErasure:
    """What was erased from one table: what stands for its parts, and which versions had them.

    It follows the erasure ``previous`` of the table, and is void where the log named another one first.
    """

    previous: ErasureName | None
    parts: Substitutes
    versions: tuple[VersionKey, ...]


@dataclass(frozen=True)
class Erasure:
    """One erasure: what was erased from each table, by the id that its log gives it."""

    epoch: int
    tables: Mapping[str, TableErasure]
    at: str
    by: str | None = None
    why: str | None = None

    def to_bytes(self) -> bytes:
        """JSON with sorted keys."""
        return encode(
            {
                "schema_version": 1,
                "epoch": self.epoch,
                "at": self.at,
                "by": self.by,
                "why": self.why,
                "tables": {
                    table: {
                        "previous": None if erased.previous is None else erased.previous.to_json(),
                        "parts": [_part(identity, erased.parts[identity]) for identity in _in_order(erased.parts)],
                        "versions": [{"log_version": at, "partition": name} for at, name in erased.versions],
                    }
                    for table, erased in self.tables.items()
                },
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes, key: str) -> Self:
        """Parse a stored document. Raises `IntegrityError` where it is none."""
        try:
            raw = parse_object(data, key, "erasure")
            tables = raw.members("tables")
            return cls(
                raw.integer("epoch"),
                {table: _table(tables.members(table).value, key) for table in tables.value},
                raw.text("at"),
                raw.optional_text("by"),
                raw.optional_text("why"),
            )
        except (ValueError, KeyError, TypeError, LogCorrupt) as error:
            raise IntegrityError(
                f"The record of an erasure {key} cannot be read ({error}). No row was returned, for rows that were "
                "erased might be among them. Restore the record from a copy."
            ) from error


def _part(identity: Identity, add: Add | None) -> dict[str, Any]:
    key, vector = identity
    return {"key": key, "vector": vector, "add": None if add is None else add.to_json()}


def _in_order(parts: Substitutes) -> list[Identity]:
    return sorted(parts, key=lambda identity: (identity[0], identity[1] or ""))


def _table(raw: Mapping[str, Any], key: str) -> TableErasure:
    parts: dict[Identity, Add | None] = {}
    for part in raw["parts"]:
        add = None if part["add"] is None else parse_action({Add.NAME: part["add"]}, key)
        if add is not None and (not isinstance(add, Add) or named_sha(confined_key(add.path)) is None):
            raise ValueError("what stands for a part has no SHA-256 in its name")
        parts[str(part["key"]), part["vector"]] = add
    previous = None if raw["previous"] is None else ErasureName.of(raw["previous"])
    versions = tuple((int(version["log_version"]), version["partition"]) for version in raw["versions"])
    return TableErasure(previous, parts, versions)


def document_key(epoch: int) -> str:
    """Where the document of an erasure is, below the data folder."""
    return f"{FOLDER}{epoch:020d}.json"


@dataclass(frozen=True)
class ErasedParts:
    """What stands for erased parts of one table, by erasures that followed each other, and which versions had them.

    ``stood`` is what did after one of them, of which a later one may have erased rows.
    """

    substitutes: Substitutes = field(default_factory=dict[Identity, "Add | None"])
    stood: tuple[Add, ...] = ()
    versions: frozenset[VersionKey] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.substitutes)

    def of(self, adds: Iterable[Add]) -> tuple[Add, ...]:
        """The parts to read in the place of these, in their order."""
        if not self.substitutes:
            return tuple(adds)
        found = (self.substitutes.get(add.identity, add) for add in adds)
        return tuple(add for add in found if add is not None)

    @cached_property
    def keys(self) -> frozenset[str]:
        """The files that must not come back."""
        return frozenset(key for key, _ in self.substitutes)

    def and_then(self, later: TableErasure) -> "ErasedParts":
        """With a later erasure, which may be of what stands for parts already."""
        first = {
            identity: add if add is None else later.parts.get(add.identity, add)
            for identity, add in self.substitutes.items()
        }
        stood = (*self.stood, *(add for add in later.parts.values() if add is not None))
        return ErasedParts({**later.parts, **first}, stood, self.versions.union(later.versions))

    def objects(self, store: ObjectStore, identity: Identity) -> set[str] | None:
        """The keys of what stands for an erased part; ``None`` for one that was not erased."""
        if identity not in self.substitutes:
            return None
        add = self.substitutes[identity]
        return set() if add is None else {key for key in (add.key, vector_object(store, add)) if key is not None}


NOTHING_ERASED = ErasedParts()


class ErasureRegister:
    """The erasures of a project, read when a log names them; documents never change, so each is read once."""

    def __init__(self, data: ObjectStore) -> None:
        self._data = data
        self._known: dict[str, Erasure] = {}
        self._by_key: dict[str, tuple[ErasureName, Erasure]] = {}
        self._composed: dict[tuple[str, ErasureName, int], ErasedParts] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return ErasureRegister, (self._data,)

    def of(self, newest: Snapshot, read: Snapshot | None = None) -> ErasedParts:
        """What stands for parts of a table, as its newest snapshot names the erasures.

        Of an older one that is ``read``, only by erasures that came after it: its log lists what stands for the others.
        Raises `IntegrityError` where a document is missing or is not the one that is named.
        """
        named = ErasureName.by(newest)
        if named is None:
            return NOTHING_ERASED
        known = None if read is None else ErasureName.by(read)
        if known == named:
            return NOTHING_ERASED
        table, after = newest.metadata.id, -1 if known is None else known.epoch
        if (composed := self._composed.get((table, named, after))) is not None:
            return composed
        found = NOTHING_ERASED
        for erased in self._chain(table, named, after):
            found = found.and_then(erased)
        self._composed[table, named, after] = found
        return found

    def all(self) -> Sequence[tuple[ErasureName, Erasure]]:
        """Every erasure that was recorded, oldest first, whether or not any log names it yet."""
        found: list[tuple[ErasureName, Erasure]] = []
        for info in self._data.list(FOLDER):
            if (known := self._by_key.get(info.key)) is None:
                data = self._data.get(info.key)
                erasure = Erasure.from_bytes(data, info.key)
                if info.key != document_key(erasure.epoch):
                    raise IntegrityError(
                        f"The record of an erasure {info.key} has another number. Nothing was erased. Restore it."
                    )
                known = ErasureName(erasure.epoch, hashlib.sha256(data).hexdigest()), erasure
                self._by_key[info.key] = known
            found.append(known)
        return found

    def put(self, erasure: Erasure) -> ErasureName | None:
        """Record an erasure; ``None`` where another one got its number first."""
        data = erasure.to_bytes()
        try:
            self._data.put_if_absent(document_key(erasure.epoch), data)
        except AlreadyExists:
            return None
        return ErasureName(erasure.epoch, hashlib.sha256(data).hexdigest())

    def named(self, newest: Snapshot) -> Sequence[ErasureName]:
        """The erasures of a table, as its newest snapshot names them, oldest first. Raises `IntegrityError`."""
        found: list[ErasureName] = []
        name = ErasureName.by(newest)
        while name is not None:
            found.append(name)
            name = self._table_erasure(newest.metadata.id, name).previous
        return found[::-1]

    def copy_to(self, data: ObjectStore) -> None:
        """Put every record into another data folder, for logs that are copied there and name them."""
        for info in self._data.list(FOLDER):
            data.put(info.key, self._data.get(info.key))

    def _chain(self, table: str, named: ErasureName, after: int) -> Sequence[TableErasure]:
        """The erasures of a table up to a named one that came after a number, oldest first."""
        found: list[TableErasure] = []
        name: ErasureName | None = named
        while name is not None and name.epoch > after:
            erased = self._table_erasure(table, name)
            found.append(erased)
            name = erased.previous
        return found[::-1]

    def _table_erasure(self, table: str, name: ErasureName) -> TableErasure:
        erasure = self._known.get(name.sha256) or self._read(name.epoch, name.sha256)
        if (erased := erasure.tables.get(table)) is None:
            raise IntegrityError(
                f"The record of an erasure {document_key(name.epoch)} does not know the table that names it. No row"
                " was returned. Restore the record from a copy."
            )
        return erased

    def _read(self, epoch: int, sha: str) -> Erasure:
        key = document_key(epoch)
        try:
            data = self._data.get(key)
        except ObjectNotFound as error:
            raise IntegrityError(
                f"The record of an erasure {key} is missing from {self._data.uri}, so nobody knows what stands for the "
                "parts of older versions. No row was returned. Restore the record from a copy; the head can be read."
            ) from error
        if (found := hashlib.sha256(data).hexdigest()) != sha:
            raise IntegrityError(
                f"The record of an erasure {key} was altered: it has the SHA-256 {found} instead of {sha}. No row was "
                "returned. Restore the record from a copy."
            )
        return self._known.setdefault(sha, Erasure.from_bytes(data, key))
