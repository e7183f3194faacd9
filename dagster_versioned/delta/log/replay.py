"""Replay in bulk: what many commits change, as columns, without a Python object for each of their files.

The lines are parsed by orjson and gathered by member; whole columns are checked at once. Whatever is not plain is left
to the strict parser of `actions`, which reads the same commits again, line by line, and says which file and line is
wrong, and why.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from io import BytesIO
from itertools import chain
from typing import Any, cast

import numpy as np
import orjson
import pyarrow as pa

from dagster_versioned.delta.actions import (
    Action,
    Add,
    Cdc,
    CommitInfo,
    DeletionVector,
    DomainMetadata,
    Members,
    Metadata,
    Protocol,
    Remove,
    Txn,
    first_of,
    of_kind,
    parse_action,
)
from dagster_versioned.delta.files.file_actions import (
    ADD,
    DELETION_VECTOR,
    KEY,
    REMOVE,
    REQUIRED,
    TEXT_MAP,
    adds_table,
    identity_text,
    no_rows,
    removes_table,
)
from dagster_versioned.delta.log.commits import (
    READERS,
    Commit,
    commit_key,
    compaction_key,
    file_time_ms,
    read_commits,
    require_lines,
)
from dagster_versioned.delta.paths import compute, keys_of
from dagster_versioned.errors import LogCorrupt, ObjectNotFound
from dagster_versioned.storage.object_store import ObjectInfo, ObjectStore

_MANY_ROWS = 1 << 15
"""File actions held as parsed JSON at a time."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a commit says besides its files.

    ``stamped`` is whether it carries an in-commit timestamp; time and ``sha256`` may be left out of all but the last.
    ``first`` is the oldest of the versions that this stands for: another than ``version`` where they were compacted.
    """

    version: int
    timestamp_ms: int
    stamped: bool
    sha256: str | None
    actions: tuple[Action, ...]
    first: int

    @classmethod
    def of(cls, commit: Commit) -> "Header":
        few = tuple(action for action in commit.actions if not isinstance(action, Add | Remove | Cdc | CommitInfo))
        stamped = CommitInfo(commit.commit_info or {}).in_commit_timestamp is not None
        return cls(commit.version, commit.timestamp_ms, stamped, commit.sha256, few, commit.version)


@dataclass(frozen=True, slots=True)
class Changes:
    """What a run of commits amounts to: their headers in order, and the last word on every file they speak of.

    ``adds`` has the schema `files.FILES`, ``removes`` `files.TOMBSTONES`; no identity (see `files.identity_text`) is
    twice in the two, and ``touched`` holds them all. ``forgotten`` are the keys of files whose older tombstones ended
    (`CommitInfo.forgotten`).
    """

    headers: tuple[Header, ...]
    adds: pa.Table = field(repr=False)
    removes: pa.Table = field(repr=False)
    touched: "pa.Array[Any]" = field(repr=False)
    forgotten: "pa.Array[Any]" = field(repr=False, default_factory=lambda: pa.array([], pa.string()))

    @classmethod
    def of(cls, commits: Sequence[Commit]) -> "Changes":
        """What commits that are parsed already amount to."""
        latest: dict[str, Add | Remove | None] = {}
        forgotten: set[str] = set()
        for commit in commits:
            if keys := commit.forgotten:
                forgotten |= keys
                ended = [path for path, last in latest.items() if isinstance(last, Remove) and last.key in keys]
                latest.update(dict.fromkeys(ended))
            for action in commit.actions:
                if isinstance(action, Add | Remove):
                    latest[identity_text(action.identity)] = action
        return cls(
            tuple(Header.of(commit) for commit in commits),
            adds_table(of_kind(latest.values(), Add)),
            removes_table(of_kind(latest.values(), Remove)),
            pa.array(list(latest), pa.string()),
            pa.array(sorted(forgotten), pa.string()),
        )

    @property
    def last(self) -> Header | None:
        return self.headers[-1] if self.headers else None

    @property
    def newest_protocol(self) -> Protocol | None:
        return first_of(reversed(list(self.actions())), Protocol)

    @property
    def newest_metadata(self) -> Metadata | None:
        return first_of(reversed(list(self.actions())), Metadata)

    def actions(self) -> Iterator[Action]:
        """The actions that are not about files, oldest first."""
        return chain.from_iterable(header.actions for header in self.headers)

    def txns(self) -> dict[str, Txn]:
        return {action.app_id: action for action in of_kind(self.actions(), Txn)}

    def domains(self) -> dict[str, DomainMetadata]:
        return {action.domain: action for action in of_kind(self.actions(), DomainMetadata)}


def read_changes(store: ObjectStore, versions: range, compactions: Sequence[range] = ()) -> Changes:
    """What the commits of ``versions`` amount to; read in parallel where the store is not local.

    ``compactions`` are ranges of them, without the last, that log compaction files stand for; those that do not hold
    what they should are passed over. Raises `ObjectNotFound` if a commit is missing and `LogCorrupt`, naming file and
    line, if one is malformed.
    """
    if not versions:
        return Changes.of([])
    bulk = _Bulk()
    pieces = list(_pieces(versions[:-1], compactions))
    try:
        for piece, data in zip(pieces, _contents(store, pieces), strict=True):
            bulk.commit(piece, data)
        data, info = store.get_with_info(commit_key(versions[-1]))
        bulk.commit(versions[-1:], data, info)
        return bulk.finish()
    except (_Unusual, ObjectNotFound):
        if compactions:
            return read_changes(store, versions)
        return Changes.of(read_commits(store, versions.start, versions.stop - 1))


def _pieces(versions: range, compactions: Sequence[range]) -> Iterator[range]:
    """The versions one by one, or as many as a compaction has."""
    version, ahead = versions.start, list(compactions)
    while version < versions.stop:
        piece = ahead.pop(0) if ahead and ahead[0].start == version else range(version, version + 1)
        yield piece
        version = piece.stop


def _contents(store: ObjectStore, pieces: Sequence[range]) -> Iterator[bytes]:
    keys = [commit_key(piece[0]) if len(piece) == 1 else compaction_key(piece) for piece in pieces]
    if len(keys) < 2 or store.local_path(keys[0]) is not None:
        yield from map(store.get, keys)
        return
    with ThreadPoolExecutor(min(READERS, len(keys))) as pool:
        yield from pool.map(store.get, keys)


class _Unusual(Exception):
    """Not what the fast way is made for: the strict parser shall decide."""


class _Bulk:
    """Commits on their way to columns."""

    def __init__(self) -> None:
        self._headers: list[Header] = []
        self._adds = _Rows(Add.NAME, ADD)
        self._removes = _Rows(Remove.NAME, REMOVE)

    def commit(self, versions: range, data: bytes, info: ObjectInfo | None = None) -> None:
        """Take in the bytes of a commit, or of a compaction of several; of the last with what the store knows of it."""
        require_lines(data, commit_key(versions[-1]))
        others: list[dict[str, Any]] = []
        adds, removes = self._adds, self._removes
        try:
            for line in BytesIO(data):
                if line.isspace():
                    continue
                value = orjson.loads(line)
                if len(value) != 1:
                    raise _Unusual
                if (add := value.get("add")) is not None:
                    adds.append(add)
                elif (remove := value.get("remove")) is not None:
                    removes.append(remove)
                else:
                    others.append(value)
            few = [action for value in others if (action := parse_action(value, ""))]
        except (orjson.JSONDecodeError, AttributeError, TypeError, LogCorrupt):
            raise _Unusual from None
        adds.end_commit()
        removes.end_commit()
        self._headers.append(_header(versions, few, data, info))

    def finish(self) -> Changes:
        adds, removes = self._adds.finish(), self._removes.finish()
        latest: dict[str, int] = {}
        commits = zip(self._headers, self._adds.commits(), self._removes.commits(), strict=True)
        for header, (first, last), (start, end) in commits:
            added, removed = self._adds.identities[first:last], self._removes.identities[start:end]
            if header.first == header.version:
                _require_distinct(self._adds, first, last, self._removes, start, end)
            elif len({*added, *removed}) < len(added) + len(removed):
                raise _Unusual
            latest.update(zip(added, range(first, last), strict=True))
            latest.update(zip(removed, range(-1 - start, -1 - end, -1), strict=True))
        rows = np.fromiter(latest.values(), np.int64, len(latest))
        return Changes(
            tuple(self._headers),
            _chosen(adds, rows[rows >= 0]),
            _chosen(removes, -1 - rows[rows < 0]),
            pa.array(list(latest), pa.string()),
        )


def _header(versions: range, few: list[Action], data: bytes, info: ObjectInfo | None) -> Header:
    provenance = first_of(few, CommitInfo)
    if provenance is not None and provenance.forgotten:
        raise _Unusual
    kept = tuple(action for action in few if not isinstance(action, CommitInfo | Cdc))
    if len(kept) > 1 and len({_name(action) for action in kept}) != len(kept):
        raise _Unusual
    stamp = provenance.in_commit_timestamp if provenance else None
    named = provenance.redacted if provenance else None
    file_time = 0 if info is None else file_time_ms(info)
    return Header(
        versions[-1],
        file_time if provenance is None else provenance.timestamp(file_time),
        stamp is not None,
        None if info is None else named or hashlib.sha256(data).hexdigest(),
        kept,
        versions[0],
    )


def _name(action: Action) -> object:
    match action:
        case Txn():
            return Txn, action.app_id
        case DomainMetadata():
            return DomainMetadata, action.domain
        case _:
            return type(action)


def _require_distinct(adds: "_Rows", first: int, last: int, removes: "_Rows", start: int, end: int) -> None:
    """As `actions.check_commit` demands of the files of one commit."""
    if last - first + end - start < 2:
        return
    added, removed = set(adds.keys[first:last]), set(removes.keys[start:end])
    if len(added) != last - first or len(removed) != end - start:
        raise _Unusual
    if added.isdisjoint(removed):
        return
    if not set(adds.identities[first:last]).isdisjoint(removes.identities[start:end]):
        raise _Unusual


def _chosen(table: pa.Table, rows: Any) -> pa.Table:
    if len(rows) == table.num_rows:
        return table
    rows.sort()
    return table.take(rows)


class _Rows:
    """The actions of one kind, gathered: a few as parsed JSON, most of them as Arrow tables already."""

    def __init__(self, kind: str, schema: pa.Schema) -> None:
        self._kind = kind
        self._schema = schema
        self._pending: list[dict[str, Any]] = []
        self._tables: list[pa.Table] = []
        self._ends: list[int] = []
        self._count = 0
        self.keys: list[str] = []
        self.identities: list[str] = self.keys

    def append(self, action: dict[str, Any]) -> None:
        self._pending.append(action)
        if len(self._pending) == _MANY_ROWS:
            self._settle()

    def end_commit(self) -> None:
        self._ends.append(self._count + len(self._pending))

    def commits(self) -> Iterator[tuple[int, int]]:
        """First and last row, excluded, of each commit."""
        return zip([0, *self._ends[:-1]], self._ends, strict=True)

    def finish(self) -> pa.Table:
        self._settle()
        schema = self._schema.append(KEY)
        return pa.concat_tables(self._tables) if self._tables else no_rows(schema)

    def _settle(self) -> None:
        rows, self._pending = self._pending, []
        if not rows:
            return
        if set(map(type, rows)) != {dict}:
            raise _Unusual
        columns, vectors = _columns(rows, self._kind, self._schema)
        paths = pa.chunked_array([columns["path"]])
        try:
            keys = keys_of(paths)
        except LogCorrupt:
            raise _Unusual from None
        arrays = [columns[name] for name in self._schema.names]
        self._tables.append(pa.Table.from_arrays([*arrays, keys], schema=self._schema.append(KEY)))
        texts = cast("list[str]", [row["path"] for row in rows] if keys is paths else keys.to_pylist())
        if vectors is not None and self.identities is self.keys:
            self.identities = list(self.keys)
        self.keys += texts
        if self.identities is not self.keys:
            ids = [None] * len(rows) if vectors is None else [vector and vector.unique_id for vector in vectors]
            self.identities += map(identity_text, zip(texts, ids, strict=True))
        self._count += len(rows)


# --- columns of parsed JSON ------------------------------------------------------------------------------------------

_ABSENT = type(None)
_PYTHON: dict[pa.DataType, type] = {pa.string(): str, pa.int64(): int, pa.bool_(): bool}
_Vectors = list[DeletionVector | None] | None
_VALUES: Callable[[dict[str, Any]], Iterable[Any]] = cast("Any", dict.values)


def _columns(rows: list[dict[str, Any]], kind: str, schema: pa.Schema) -> "tuple[dict[str, pa.Array[Any]], _Vectors]":
    """The members of actions of a kind, and their deletion vectors."""
    vectors, descriptors = _deletion_vectors(rows)
    columns: dict[str, Any] = {}
    for name, stored in zip(schema.names, cast("list[Any]", schema.types), strict=True):
        absent = set[type]() if name in REQUIRED[kind] else {_ABSENT}
        if stored == TEXT_MAP:
            columns[name] = _maps(rows, name, {dict} | absent)
        elif stored != DELETION_VECTOR:
            columns[name] = _values(rows, name, stored, {_PYTHON[stored]} | absent)
    if kind == Remove.NAME:  # these are not kept, but an action is no better for what is wrong in them
        _column(rows, "stats", {str, _ABSENT})
        _entries(_column(rows, "tags", {dict, _ABSENT}))
    least = compute.min(columns["size"]).as_py()
    if least is not None and least < 0:
        raise _Unusual
    return {**columns, "deletionVector": descriptors}, vectors


def _column(rows: list[dict[str, Any]], name: str, types: set[type]) -> list[Any]:
    values = [row.get(name) for row in rows]
    if not set(map(type, values)) <= types:
        raise _Unusual
    return values


def _values(rows: list[dict[str, Any]], name: str, kind: pa.DataType, types: set[type]) -> "pa.Array[Any]":
    try:
        return pa.array(_column(rows, name, types), kind)
    except (pa.ArrowException, OverflowError):
        raise _Unusual from None


def _maps(rows: list[dict[str, Any]], name: str, types: set[type]) -> "pa.Array[Any]":
    values = _column(rows, name, types)
    keys, texts = _entries(values)
    lengths = np.fromiter((len(value) if value else 0 for value in values), np.int32, len(values))
    offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])
    absent = pa.array(np.fromiter((value is None for value in values), bool, len(values)))
    entries: Any = pa.MapArray
    return entries.from_arrays(
        pa.array(offsets), pa.array(keys, pa.string()), pa.array(texts, pa.string()), type=TEXT_MAP, mask=absent
    )


def _entries(values: Iterable[Mapping[str, Any] | None]) -> tuple[list[str], list[str | None]]:
    present = [cast("dict[str, Any]", value) for value in values if value]
    texts: list[Any] = list(chain.from_iterable(map(_VALUES, present)))
    if not set(map(type, texts)) <= {str, _ABSENT}:
        raise _Unusual
    return list(chain.from_iterable(present)), texts


def _deletion_vectors(rows: list[dict[str, Any]]) -> "tuple[_Vectors, pa.Array[Any]]":
    values = _column(rows, "deletionVector", {dict, _ABSENT})
    if all(value is None for value in values):
        return None, pa.nulls(len(rows), DELETION_VECTOR)
    try:
        vectors = [None if value is None else DeletionVector.parse(Members(value, "")) for value in values]
    except LogCorrupt:
        raise _Unusual from None
    return vectors, pa.array([vector and vector.to_json() for vector in vectors], DELETION_VECTOR)
