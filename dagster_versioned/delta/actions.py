"""The actions a commit is made of: strict in what they know, indifferent to what they do not.

Unknown actions and unknown members are ignored, as the protocol demands (*Protocol Evolution*); a known member of the
wrong type is an error that names file, line and member.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, partial
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Self, TypeVar, cast

import orjson

from dagster_versioned.delta.paths import decode_path
from dagster_versioned.errors import InvalidInput, LogCorrupt

_LONG = range(-(2**63), 2**63)
_INT = range(2**31)
_PLAIN = frozenset({str, int, bool})
_SHA = re.compile(r"[0-9a-f]{64}")
_STRUCTURE = re.compile(rb"[^\x20-\x7e\s]|[\"{\[\]]")

TIMES = range(-62_135_596_800_000, 253_402_300_800_000)
"""The milliseconds since the epoch that a calendar holds."""

NO_COLUMNS = '{"type":"struct","fields":[]}'
"""What a metadata action without a ``schemaString`` means: some create a table before they know its columns."""

PartitionValues = Mapping[str, str | None]
Kind = TypeVar("Kind")
_Parsed = TypeVar("_Parsed", bound="_Action")


class Members:
    """The members of one JSON object and where it stands; every accessor raises `LogCorrupt` on a wrong type.

    Where it stands is put into words for an error alone: a log has very many of them.
    """

    __slots__ = ("_at", "_within", "value")

    def __init__(self, value: Mapping[str, Any], where: "str | Members", at: str | tuple[str, int] = "") -> None:
        self.value = value
        self._within = where
        self._at = at

    @property
    def where(self) -> str:
        """The file, and the names of the members down to this object."""
        within = self._within if isinstance(self._within, str) else self._within.where
        at = self._at if isinstance(self._at, str) else f"{self._at[0]}[{self._at[1]}]"
        return f"{within}, {at}" if at else within

    def wrong(self, name: str, reason: str) -> LogCorrupt:
        return LogCorrupt(f"{self.where}: {name} {reason}. Nothing was read; restore the file from a copy.")

    def _wrong_type(self, name: str, expected: str) -> LogCorrupt:
        return self.wrong(name, f"is {self.value.get(name)!r:.100} where {expected} is required")

    def text(self, name: str) -> str:
        value = self.value.get(name)
        if not isinstance(value, str):
            raise self._wrong_type(name, "a string")
        return value

    def optional_text(self, name: str) -> str | None:
        return None if self.value.get(name) is None else self.text(name)

    def integer(self, name: str) -> int:
        value = self.value.get(name)
        if type(value) is not int or value not in _LONG:
            raise self._wrong_type(name, "a 64-bit integer")
        return value

    def optional_integer(self, name: str) -> int | None:
        return None if self.value.get(name) is None else self.integer(name)

    def count(self, name: str, allowed: range = _LONG) -> int:
        value = self.integer(name)
        if value < 0 or value not in allowed:
            raise self._wrong_type(name, "a number that is not negative, and not beyond its type,")
        return value

    def optional_count(self, name: str, allowed: range = _LONG) -> int | None:
        return None if self.value.get(name) is None else self.count(name, allowed)

    def flag(self, name: str) -> bool:
        value = self.value.get(name)
        if not isinstance(value, bool):
            raise self._wrong_type(name, "a boolean")
        return value

    def optional_flag(self, name: str) -> bool | None:
        return None if self.value.get(name) is None else self.flag(name)

    def text_map(self, name: str) -> PartitionValues:
        value = self.value.get(name)
        if not isinstance(value, dict):
            raise self._wrong_type(name, "an object")
        entries = cast("dict[str, object]", value)
        for entry in entries.values():
            if entry is not None and not isinstance(entry, str):
                raise self._wrong_type(name, "an object of strings")
        return cast("PartitionValues", entries)

    def optional_text_map(self, name: str) -> PartitionValues | None:
        return None if self.value.get(name) is None else self.text_map(name)

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.value.get(name)
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in cast("list[object]", value)):
            raise self._wrong_type(name, "a list of strings")
        return tuple(cast("list[str]", value))

    def optional_texts(self, name: str) -> tuple[str, ...] | None:
        return None if self.value.get(name) is None else self.texts(name)

    def objects(self, name: str) -> "list[Members]":
        value = self.value.get(name)
        if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in cast("list[object]", value)):
            raise self._wrong_type(name, "a list of objects")
        entries = cast("list[dict[str, Any]]", value)
        return [Members(entry, self, (name, position)) for position, entry in enumerate(entries)]

    def require_text_of_each(self, name: str, member: str) -> None:
        """Check that each object of a list has a text under a name; there are very many of them."""
        value = self.value.get(name)
        entries: list[Any] = cast("list[Any]", value) if isinstance(value, list) else [None]
        if not all(isinstance(entry, dict) and isinstance(entry.get(member), str) for entry in entries):
            for entry in self.objects(name):
                entry.text(member)

    def members(self, name: str) -> "Members":
        value = self.value.get(name)
        if not isinstance(value, dict):
            raise self._wrong_type(name, "an object")
        return Members(cast("dict[str, Any]", value), self, name)


class _Action:
    """A JSON object of the log. Its attributes are annotated with what parses them and have the names of its members in
    snake case; what is ``None`` by default may be left out. ``BEFORE`` are those that stand elsewhere in the protocol's
    table than here, and what they precede there.
    """

    __slots__ = ()
    BEFORE: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def parse(cls, members: Members) -> Self:
        return _parsed(cls, members)

    def to_json(self) -> dict[str, Any]:
        """The members that are there, in the order of the protocol's table."""
        names, values_of = _order(type(self))
        return {
            name: value if type(value) in _PLAIN else _json(value)
            for name, value in zip(names, values_of(self), strict=True)
            if value is not None
        }


def member_name(attribute: str) -> str:
    """What an attribute of an action is called in the log: ``partitionValues`` for ``partition_values``."""
    return re.sub("_([a-z])", lambda match: match[1].upper(), attribute)


@cache
def _accessors(kind: type[_Action]) -> list[tuple[str, bool, Callable[[Members, str], Any]]]:
    """Of each attribute: the name of its member, whether that may be left out, and what parses it."""
    members = fields(cast("Any", kind))
    return [(member_name(own.name), own.default is None, cast("Any", own.type).__metadata__[0]) for own in members]


@cache
def _order(kind: type[_Action]) -> tuple[list[str], Callable[[_Action], tuple[Any, ...]]]:
    """The names of the members, and what takes their values from an action."""
    attributes = [own.name for own in fields(cast("Any", kind))]
    for attribute, successor in kind.BEFORE.items():
        attributes.remove(attribute)
        attributes.insert(attributes.index(successor), attribute)
    return list(map(member_name, attributes)), attrgetter(*attributes)


def _parsed(kind: type[_Parsed], members: Members) -> _Parsed:
    get = members.value.get
    return kind(
        *[
            None if optional and get(name) is None else access(members, name)
            for name, optional, access in _accessors(kind)
        ]
    )


def _json(value: Any) -> Any:
    match value:
        case _Action():
            return value.to_json()
        case tuple() | list():
            return list(cast("Sequence[Any]", value))
        case Mapping():
            return dict(cast("Mapping[Any, Any]", value))
        case _:
            return value


def _deletion_vector(members: Members, name: str) -> "DeletionVector":
    return DeletionVector.parse(members.members(name))


class _File(_Action):
    """A data file, whose ``path`` is a URI, as in the log."""

    __slots__ = ()
    path: str

    @property
    def key(self) -> str:
        """The canonical path: for a file below the table's folder its object key. Raises `LogCorrupt`."""
        return decode_path(self.path)


class LogicalFile(_File):
    """A data file without the rows that a deletion vector has."""

    __slots__ = ()
    data_change: bool
    deletion_vector: "DeletionVector | None"

    @property
    def identity(self) -> tuple[str, str | None]:
        """What reconciliation compares: (canonical path, id of the deletion vector)."""
        return self.key, self.deletion_vector.unique_id if self.deletion_vector else None


@dataclass(frozen=True, slots=True)
class DeletionVector(_Action):
    """Which rows of a file are gone. Protocol: *Deletion Vector Descriptor Schema*."""

    BEFORE: ClassVar = {"offset": "size_in_bytes"}
    storage_type: Annotated[str, Members.text]
    path_or_inline_dv: Annotated[str, Members.text]
    size_in_bytes: Annotated[int, partial(Members.count, allowed=_INT)]
    cardinality: Annotated[int, Members.count]
    offset: Annotated[int | None, partial(Members.count, allowed=_INT)] = None

    @property
    def unique_id(self) -> str:
        """With the file's path, the identity of a logical file. Protocol: *Derived Fields*."""
        name = self.storage_type + self.path_or_inline_dv
        return name if self.offset is None else f"{name}@{self.offset}"


@dataclass(frozen=True, slots=True)
class Add(LogicalFile):
    """A logical file that is part of the table from this commit on. ``path`` is a URI, as in the log."""

    NAME: ClassVar = "add"
    path: Annotated[str, Members.text]
    partition_values: Annotated[PartitionValues, Members.text_map]
    size: Annotated[int, Members.count]
    modification_time: Annotated[int, Members.integer]
    data_change: Annotated[bool, Members.flag]
    stats: Annotated[str | None, Members.text] = None
    tags: Annotated[PartitionValues | None, Members.text_map] = None
    deletion_vector: Annotated[DeletionVector | None, _deletion_vector] = None
    base_row_id: Annotated[int | None, Members.integer] = None
    default_row_commit_version: Annotated[int | None, Members.integer] = None
    clustering_provider: Annotated[str | None, Members.text] = None

    def removed(self, deletion_timestamp: int, *, data_change: bool = True) -> "Remove":
        """The action that takes this file out of the table; ``deletion_timestamp`` in milliseconds since the epoch."""
        return Remove(
            self.path,
            data_change,
            deletion_timestamp,
            True,
            self.partition_values,
            self.size,
            self.stats,
            self.tags,
            self.deletion_vector,
            self.base_row_id,
            self.default_row_commit_version,
        )


@dataclass(frozen=True, slots=True)
class Remove(LogicalFile):
    """A logical file that is no longer part of the table; a tombstone for vacuum."""

    NAME: ClassVar = "remove"
    BEFORE: ClassVar = {"deletion_timestamp": "data_change"}
    path: Annotated[str, Members.text]
    data_change: Annotated[bool, Members.flag]
    deletion_timestamp: Annotated[int | None, Members.integer] = None
    extended_file_metadata: Annotated[bool | None, Members.flag] = None
    partition_values: Annotated[PartitionValues | None, Members.text_map] = None
    size: Annotated[int | None, Members.count] = None
    stats: Annotated[str | None, Members.text] = None
    tags: Annotated[PartitionValues | None, Members.text_map] = None
    deletion_vector: Annotated[DeletionVector | None, _deletion_vector] = None
    base_row_id: Annotated[int | None, Members.integer] = None
    default_row_commit_version: Annotated[int | None, Members.integer] = None


@dataclass(frozen=True, slots=True)
class Cdc(_File):
    """A file that holds the rows a commit changed. Protocol: *Add CDC File*."""

    NAME: ClassVar = "cdc"
    path: Annotated[str, Members.text]
    partition_values: Annotated[PartitionValues, Members.text_map]
    size: Annotated[int, Members.count]
    data_change: Annotated[bool, Members.flag] = False
    tags: Annotated[PartitionValues | None, Members.text_map] = None


@dataclass(frozen=True, slots=True)
class Metadata:
    """Schema, partitioning and properties of the table. Protocol: *Change Metadata*."""

    NAME: ClassVar = "metaData"
    id: str
    schema_string: str
    partition_columns: tuple[str, ...] = ()
    configuration: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    name: str | None = None
    description: str | None = None
    created_time: int | None = None
    format_provider: str = "parquet"
    format_options: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)

    @classmethod
    def parse(cls, members: "Members") -> Self:
        storage = members.members("format")
        return cls(
            members.text("id"),
            NO_COLUMNS if members.value.get("schemaString") is None else members.text("schemaString"),
            members.texts("partitionColumns"),
            _set(members, "configuration"),
            members.optional_text("name"),
            members.optional_text("description"),
            members.optional_integer("createdTime"),
            storage.text("provider"),
            _set(storage, "options"),
        )

    def to_json(self) -> dict[str, Any]:
        members = {
            "id": self.id,
            "name": self.name,
            "description": self.description,
            "format": {"provider": self.format_provider, "options": dict(self.format_options)},
            "schemaString": self.schema_string,
            "partitionColumns": list(self.partition_columns),
            "createdTime": self.created_time,
            "configuration": dict(self.configuration),
        }
        return {name: value for name, value in members.items() if value is not None}

    def is_set(self, key: str) -> bool:
        """Whether a boolean table property is on."""
        return is_on(self.configuration, key)


@dataclass(frozen=True, slots=True)
class Protocol(_Action):
    """What a program must implement to read or write the table. Protocol: *Protocol Evolution*.

    A features list is ``None`` exactly where the version has none (reader below 3, writer below 7). Reader version 3
    needs writer version 7, and no feature is listed for readers alone.
    """

    NAME: ClassVar = "protocol"
    min_reader_version: Annotated[int, Members.integer]
    min_writer_version: Annotated[int, Members.integer]
    reader_features: Annotated[tuple[str, ...] | None, Members.texts] = None
    writer_features: Annotated[tuple[str, ...] | None, Members.texts] = None

    @classmethod
    def parse(cls, members: "Members") -> Self:
        protocol = _parsed(cls, members)
        if protocol.min_reader_version == 3 and protocol.reader_features is None:
            raise members.wrong("readerFeatures", "is missing although minReaderVersion is 3")
        if protocol.min_writer_version == 7 and protocol.writer_features is None:
            raise members.wrong("writerFeatures", "is missing although minWriterVersion is 7")
        if protocol.min_reader_version == 3 and protocol.min_writer_version < 7:
            reason = f"is {protocol.min_writer_version} although minReaderVersion is 3, which needs 7"
            raise members.wrong("minWriterVersion", reason)
        only = {*(protocol.reader_features or ())} - {*(protocol.writer_features or ())}
        if only and protocol.min_reader_version <= 3:  # what later versions mean by it, nobody knows yet
            raise members.wrong("readerFeatures", f"has {min(only)!r}, which writerFeatures has not")
        return protocol


@dataclass(frozen=True, slots=True)
class Txn(_Action):
    """How far an application has come. Protocol: *Transaction Identifiers*."""

    NAME: ClassVar = "txn"
    app_id: Annotated[str, Members.text]
    version: Annotated[int, Members.integer]
    last_updated: Annotated[int | None, Members.integer] = None


@dataclass(frozen=True, slots=True)
class DomainMetadata(_Action):
    """A named piece of configuration; ``removed`` takes it away. Protocol: *Domain Metadata*."""

    NAME: ClassVar = "domainMetadata"
    domain: Annotated[str, Members.text]
    configuration: Annotated[str, Members.text]
    removed: Annotated[bool, Members.flag] = False


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """Where a commit came from: any JSON object, kept whole; other JSON is passed over.

    Protocol: *Commit Provenance Information*.
    """

    NAME: ClassVar = "commitInfo"
    FORGOTTEN: ClassVar = "dagsterVersionedForgotten"
    REDACTED: ClassVar = "dagsterVersionedRedacted"
    value: Mapping[str, Any] = field(hash=False)

    @property
    def forgotten(self) -> frozenset[str]:
        """Keys of removed files whose tombstones end with this commit, because no version needs the files any more.

        Ours, not the protocol's: other readers keep the tombstones, which harms nobody.
        """
        return frozenset(self.value.get(self.FORGOTTEN) or ())

    @property
    def redacted(self) -> str | None:
        """The SHA-256 that the commit had before it lost what it told of erased rows. Ours, too."""
        claim = self.value.get(self.REDACTED)
        return None if claim is None else claim["sha256"]

    @property
    def in_commit_timestamp(self) -> int | None:
        """Milliseconds since the epoch, where the writer recorded them, as an integer."""
        value = self.value.get("inCommitTimestamp")
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def timestamp(self, file_time_ms: int) -> int:
        """When it was committed: as the writer says, or whoever redacted it, or else by the time of the file."""
        stamp, claim = self.in_commit_timestamp, self.value.get(self.REDACTED)
        return stamp if stamp is not None else file_time_ms if claim is None else claim["timestamp"]

    @classmethod
    def parse(cls, members: "Members") -> Self:
        info = cls(members.value)
        stamp = info.in_commit_timestamp
        if stamp is not None and stamp not in TIMES:
            raise members.wrong("inCommitTimestamp", f"is {stamp}, which is no time between the years 1 and 9999")
        members.optional_texts(cls.FORGOTTEN)
        if cls.REDACTED in info.value:
            claim = members.members(cls.REDACTED)
            if not _SHA.fullmatch(claim.text("sha256")):
                raise claim.wrong("sha256", "is no SHA-256")
            if claim.integer("timestamp") not in TIMES:
                raise claim.wrong("timestamp", "is no time between the years 1 and 9999")
        return info

    def to_json(self) -> dict[str, Any]:
        return dict(self.value)


Action = Add | Remove | Cdc | Metadata | Protocol | Txn | DomainMetadata | CommitInfo

_KINDS: dict[str, type[Action]] = {
    kind.NAME: kind for kind in (Add, Remove, Cdc, Metadata, Protocol, Txn, DomainMetadata, CommitInfo)
}


def of_kind(actions: Iterable[object], kind: type[Kind]) -> list[Kind]:
    """The actions of one kind, in their order."""
    return [action for action in actions if isinstance(action, kind)]


def unlike(action: Kind, before: Kind) -> list[Kind]:
    """The action, unless it says what was said before."""
    return [] if action == before else [action]


def first_of(actions: Iterable[object], kind: type[Kind]) -> Kind | None:
    """The first action of a kind, if there is one."""
    return next((action for action in actions if isinstance(action, kind)), None)


def is_on(properties: Mapping[str, str], key: str) -> bool:
    """Whether a property that is true or false is true."""
    return (properties.get(key) or "").lower() == "true"


def parse_line(line: bytes, where: str) -> Action | None:
    """Parse one line of a commit; ``None`` for an action that is not known. Raises `LogCorrupt` naming ``where``.

    Stray text behind the action is passed over, as the reference does, unless another action may be in it.
    """
    try:
        value = orjson.loads(without_rest(line))
    except orjson.JSONDecodeError as error:
        raise LogCorrupt(f"{where}: not JSON ({error}). Nothing was read; restore the file from a copy.") from error
    if not isinstance(value, dict):
        raise LogCorrupt(f"{where}: not a JSON object. Nothing was read; restore the file from a copy.")
    return parse_action(cast("dict[str, object]", value), where)


def without_rest(line: bytes) -> bytes:
    """The line, cut off behind its last brace where what follows holds neither a quote nor a bracket."""
    end = line.rfind(b"}") + 1
    return line[:end] if 0 < end < len(line) and not _STRUCTURE.search(line, end) else line


def parse_action(value: Mapping[str, object], where: str) -> Action | None:
    """Parse ``{name: members}``; ``None`` for what is not known, or says nothing. Raises `LogCorrupt`."""
    known = [name for name in value if name in _KINDS and value[name] is not None]
    if not known:
        return None
    if len(known) > 1:
        raise LogCorrupt(f"{where}: one line holds several actions ({', '.join(known)}). Nothing was read.")
    (name,) = known
    members = value[name]
    if not isinstance(members, dict):
        if name == CommitInfo.NAME:  # any JSON is allowed there, and what is no object has nothing that is read
            return None
        raise LogCorrupt(f"{where}: {name} is not an object. Nothing was read.")
    return _KINDS[name].parse(Members(cast("dict[str, Any]", members), where, name))


def encode_action(action: Action) -> bytes:
    """One line of a commit, without its newline: compact, members in the order of the protocol's tables.

    Raises `InvalidInput` for a value that has no JSON form (lone surrogates, NaN aside, integers beyond 64 bits).
    """
    try:
        return orjson.dumps({action.NAME: action.to_json()})
    except TypeError as error:
        raise InvalidInput(
            f"The action {action.NAME} cannot be written as JSON: {error}. Nothing was written."
        ) from error


def check_commit(actions: Sequence[Action], where: str) -> None:
    """Check that no two actions of one commit reconcile with each other. Raises `LogCorrupt`.

    Protocol: *Delta Log Entries* (requirements for writers) and *Add File and Remove File*.
    """
    by_kind = defaultdict[type, list[Any]](list)
    for action in actions:
        by_kind[type(action)].append(action)
    _once((action.NAME for action in (*by_kind[Metadata], *by_kind[Protocol])), where)
    _once((f"txn {action.app_id!r}" for action in by_kind[Txn]), where)
    _once((f"domainMetadata {action.domain!r}" for action in by_kind[DomainMetadata]), where)
    _check_files(by_kind[Add], by_kind[Remove], where)


def _check_files(adds: Sequence[Add], removes: Sequence[Remove], where: str) -> None:
    try:
        added, removed = (dict(action.identity for action in files) for files in (adds, removes))
    except LogCorrupt as error:
        raise LogCorrupt(f"{where}: {error}") from error
    if len(added) != len(adds) or len(removed) != len(removes):
        _once((f"{action.NAME} {action.key!r}" for action in (*adds, *removes)), where)
    if both := [key for key in added.keys() & removed.keys() if added[key] == removed[key]]:
        raise LogCorrupt(f"{where}: the file {both[0]!r} is both added and removed in one commit.")


def without_rewritten(actions: Sequence[Action]) -> list[Action]:
    """The actions without removes of a file that the same commit adds, where both say that no rows change.

    Writers of 2021 stated the metadata of a file anew so, which is why the add holds, in whichever order the two are.
    """
    still = [action for action in of_kind(actions, LogicalFile) if not action.data_change]
    try:
        stated = {action.identity for action in of_kind(still, Add)}
        left_out = {id(action) for action in of_kind(still, Remove) if action.identity in stated}
    except LogCorrupt:  # a path that is none: `check_commit` says where
        return list(actions)
    return [action for action in actions if id(action) not in left_out]


def _once(names: Iterable[str], where: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise LogCorrupt(f"{where}: {name} occurs twice in one commit, where one is allowed.")
        seen.add(name)


def _set(members: Members, name: str) -> Mapping[str, str]:
    """Properties that have a value: one that is null is not set."""
    return {key: value for key, value in (members.optional_text_map(name) or {}).items() if value is not None}
