"""Checkpoints: a snapshot's actions in one place, so that a reader need not replay the whole log."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from dagster_versioned.delta.actions import (
    Action,
    Add,
    DomainMetadata,
    Members,
    Metadata,
    Protocol,
    Remove,
    Txn,
    encode_action,
    parse_action,
)
from dagster_versioned.delta.files import (
    ADD,
    REMOVE,
    TEXT_MAP,
    adds_table,
    identities,
    in_order,
    no_rows,
    removes_table,
    with_keys,
)
from dagster_versioned.delta.log import (
    LAST_CHECKPOINT_KEY,
    LOG_FOLDER,
    CheckpointFiles,
    json_checksum,
    last_checkpoint_version,
)
from dagster_versioned.delta.paths import Column, compute
from dagster_versioned.delta.properties import interval_ms
from dagster_versioned.errors import LogCorrupt, ObjectNotFound, UnsupportedFeature
from dagster_versioned.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from dagster_versioned.delta.snapshot import Snapshot

_METADATA = pa.struct(
    [
        ("id", pa.string()),
        ("name", pa.string()),
        ("description", pa.string()),
        ("format", pa.struct([("provider", pa.string()), ("options", TEXT_MAP)])),
        ("schemaString", pa.string()),
        ("partitionColumns", pa.list_(pa.string())),
        ("createdTime", pa.int64()),
        ("configuration", TEXT_MAP),
    ]
)
_PROTOCOL = pa.struct(
    [
        ("minReaderVersion", pa.int32()),
        ("minWriterVersion", pa.int32()),
        ("readerFeatures", pa.list_(pa.string())),
        ("writerFeatures", pa.list_(pa.string())),
    ]
)
_TXN = pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())])
_DOMAIN = pa.struct([("domain", pa.string()), ("configuration", pa.string()), ("removed", pa.bool_())])
_SIDECAR = pa.struct([("path", pa.string()), ("sizeInBytes", pa.int64())])

_FEW_ACTIONS = {Metadata.NAME: _METADATA, Protocol.NAME: _PROTOCOL, Txn.NAME: _TXN, DomainMetadata.NAME: _DOMAIN}
_FILE_ACTIONS = {Add.NAME: pa.struct(list(ADD)), Remove.NAME: pa.struct(list(REMOVE))}

_REQUIRED = {
    Add.NAME: ("path", "partitionValues", "size", "modificationTime", "dataChange"),
    Remove.NAME: ("path", "dataChange"),
}

_ROW_GROUP = 1 << 17
_WEEK_MS = 7 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a checkpoint holds: few actions as objects, files as tables (`files.FILES`, `files.TOMBSTONES`)."""

    actions: tuple[Action, ...]
    files: pa.Table
    tombstones: pa.Table


# --- read ------------------------------------------------------------------------------------------------------------


def read_checkpoint(store: ObjectStore, checkpoint: CheckpointFiles) -> Checkpoint:
    """Read a checkpoint of any kind: classic, multi-part, or V2 (Parquet or JSON) with its sidecars.

    Only the needed columns are read. Raises `LogCorrupt`, naming the file, where it cannot be read, lacks a required
    value, or holds one logical file twice. Protocol: *Checkpoints*.
    """
    pieces = [_read_file(store, key) for key in checkpoint.keys]
    sidecars = [name for piece in pieces for name in piece.sidecars]
    pieces += [_read_parquet(store, f"{LOG_FOLDER}_sidecars/{name}", of_sidecar=True) for name in sidecars]
    files = with_keys(pa.concat_tables([piece.adds for piece in pieces]))
    tombstones = with_keys(pa.concat_tables([piece.removes for piece in pieces]))
    for table in (files, tombstones):
        if len(compute.unique(identities(table))) != table.num_rows:
            raise LogCorrupt(f"{checkpoint.keys[0]}: a file occurs twice in the checkpoint. Nothing was read.")
    return Checkpoint(tuple(action for piece in pieces for action in piece.actions), files, tombstones)


@dataclass(frozen=True, slots=True)
class _Piece:
    actions: Sequence[Action]
    sidecars: list[str]
    adds: pa.Table
    removes: pa.Table


def _read_file(store: ObjectStore, key: str) -> _Piece:
    return _read_json(store, key) if key.endswith(".json") else _read_parquet(store, key)


def _read_json(store: ObjectStore, key: str) -> _Piece:
    actions: list[Action] = []
    sidecars: list[str] = []
    for number, line in enumerate(store.get(key).split(b"\n"), 1):
        if not line.strip():
            continue
        where = f"{key}, line {number}"
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise LogCorrupt(f"{where}: not JSON ({error}). Nothing was read.") from error
        if not isinstance(value, dict):
            raise LogCorrupt(f"{where}: not a JSON object. Nothing was read.")
        members = cast("dict[str, Any]", value)
        if members.get("sidecar") is not None:
            sidecar = Members(members, where).members("sidecar")
            sidecars.append(_sidecar_name(sidecar.text("path"), where))
        elif action := parse_action(members, where):
            actions.append(action)
    adds = adds_table([action for action in actions if isinstance(action, Add)])
    removes = removes_table([action for action in actions if isinstance(action, Remove)])
    few = [action for action in actions if not isinstance(action, Add | Remove)]
    return _Piece(few, sidecars, adds.drop_columns("key"), removes.drop_columns("key"))


def _read_parquet(store: ObjectStore, key: str, *, of_sidecar: bool = False) -> _Piece:
    wanted = {**_FILE_ACTIONS} if of_sidecar else {**_FEW_ACTIONS, **_FILE_ACTIONS, "sidecar": _SIDECAR}
    path = store.local_path(key)
    try:
        file = pq.ParquetFile(pa.BufferReader(store.get(key)) if path is None else path)
        present = _leaf_columns(file.schema_arrow, wanted)
        table = file.read(columns=present)
        table.validate(full=True)  # reading does not ask whether text is UTF-8
        columns = {name: _struct_rows(table, name, shape) for name, shape in wanted.items()}
    except ObjectNotFound as error:
        raise LogCorrupt(f"{key} is missing, but a checkpoint needs it. Nothing was read.") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise LogCorrupt(f"{key}: the checkpoint cannot be read ({error}). Nothing was read.") from error
    for name, required in _REQUIRED.items():
        for column in required:
            if columns[name][column].null_count:
                raise LogCorrupt(f"{key}: a {name} action has no {column}. Nothing was read.")
    sizes = columns[Add.NAME]["size"]
    if sizes.length() and compute.min(sizes).as_py() < 0:
        raise LogCorrupt(f"{key}: an add action has a negative size. Nothing was read.")
    few = [
        action
        for name in _FEW_ACTIONS
        if name in columns
        for row in columns[name].to_pylist()
        if (action := parse_action({name: _plain(row, wanted[name])}, f"{key}, {name}")) is not None
    ]
    names = (
        [_sidecar_name(path, key) for path in cast("list[str]", columns["sidecar"]["path"].to_pylist())]
        if not of_sidecar
        else []
    )
    return _Piece(few, names, columns[Add.NAME], columns[Remove.NAME])


def _members(shape: pa.DataType) -> "list[pa.Field[Any]]":
    return list(cast("Any", shape))


def _leaf_columns(schema: pa.Schema, wanted: dict[str, pa.StructType]) -> list[str]:
    """Dotted paths of the wanted members that the file has, which leaves out parsed statistics and the unknown."""
    columns: list[str] = []
    for name, shape in wanted.items():
        position = schema.get_field_index(name)
        held = cast("Any", pa.null() if position < 0 else schema.field(position).type)
        if pa.types.is_struct(held):
            columns += [f"{name}.{member.name}" for member in _members(shape) if held.get_field_index(member.name) >= 0]
    return columns


def _struct_rows(table: pa.Table, name: str, shape: pa.StructType) -> pa.Table:
    """The rows in which the struct column ``name`` is present, its members as columns of the types in ``shape``."""
    schema = pa.schema(_members(shape))
    if name not in table.column_names:
        return no_rows(schema)
    column: Column = table[name]
    column = column.filter(compute.is_valid(column))
    return pa.Table.from_arrays([_member(column, member) for member in _members(shape)], schema=schema)


def _member(column: Any, wanted: Any) -> Column:
    """A member of a struct column by its name, since writers order members and leave them out as they like."""
    if column.type.get_field_index(wanted.name) < 0:
        absent: list[Any] = [pa.nulls(len(column), wanted.type)]
        return pa.chunked_array(absent)
    return _cast(compute.struct_field(column, wanted.name), wanted.type)


def _cast(column: Column, wanted: pa.DataType) -> Column:
    if column.type == wanted:
        return column
    if not pa.types.is_struct(wanted):
        return column.cast(wanted)
    arrays: list[Any] = [_member(column, member).combine_chunks() for member in _members(wanted)]
    absent = compute.is_null(column).combine_chunks()
    return pa.chunked_array([pa.StructArray.from_arrays(arrays, fields=_members(wanted), mask=absent)])


def _plain(value: Any, data_type: pa.DataType) -> Any:
    """A row as the JSON value it stands for: maps as objects."""
    if value is None:
        return None
    if pa.types.is_map(data_type):
        return dict(value)
    if pa.types.is_struct(data_type):
        return {member.name: _plain(value[member.name], member.type) for member in _members(data_type)}
    return value


def _sidecar_name(path: str, where: str) -> str:
    name = unquote(path).rpartition("/")[2]
    if not name.endswith(".parquet"):
        raise LogCorrupt(f"{where}: the sidecar path {path!r} names no Parquet file. Nothing was read.")
    return name


# --- write -----------------------------------------------------------------------------------------------------------


def checkpoint_key(version: int) -> str:
    """Where the classic checkpoint of ``version`` is stored."""
    return f"{LOG_FOLDER}{version:020d}.checkpoint.parquet"


def write_checkpoint(store: ObjectStore, snapshot: "Snapshot") -> None:
    """Write the classic V1 checkpoint of a snapshot, then ``_last_checkpoint`` unless that names a newer one.

    Raises `UnsupportedFeature` as `checkpoint_bytes` does.
    """
    data, last = checkpoint_bytes(snapshot)
    store.put(checkpoint_key(snapshot.version), data)
    newest = last_checkpoint_version(store)
    if newest is None or newest <= snapshot.version or not _exists(store, checkpoint_key(newest)):
        store.put(LAST_CHECKPOINT_KEY, last)


def checkpoint_bytes(snapshot: "Snapshot") -> tuple[bytes, bytes]:
    """The bytes of a snapshot's classic V1 checkpoint, and of the ``_last_checkpoint`` that names it.

    They depend on the log alone: rows are sorted, and tombstones expire by the snapshot's own timestamp, not by a
    clock. Raises `UnsupportedFeature` for a table whose checkpoints must hold statistics as structs.
    """
    domains = [DomainMetadata(name, configuration) for name, configuration in snapshot.domains.items()]
    actions = (snapshot.protocol, snapshot.metadata, *snapshot.txns.values(), *domains)
    data, rows = _encode(Checkpoint(actions, snapshot.files, _unexpired_tombstones(snapshot)))
    return data, _last_checkpoint(snapshot.version, rows, len(data), snapshot.num_files)


def _unexpired_tombstones(snapshot: "Snapshot") -> pa.Table:
    retention = interval_ms(snapshot.metadata, "delta.deletedFileRetentionDuration")
    oldest = snapshot.timestamp_ms - (_WEEK_MS if retention is None else retention)
    times = compute.fill_null(snapshot.tombstones["deletionTimestamp"], 0)
    return snapshot.tombstones.filter(compute.greater_equal(times, oldest))


def _encode(checkpoint: Checkpoint) -> tuple[bytes, int]:
    metadata = next(action for action in checkpoint.actions if isinstance(action, Metadata))
    if metadata.is_set("delta.checkpoint.writeStatsAsStruct") or (
        metadata.configuration.get("delta.checkpoint.writeStatsAsJson", "true").lower() == "false"
    ):
        raise UnsupportedFeature(
            "delta.checkpoint.writeStatsAsStruct / writeStatsAsJson: checkpoints of this table hold their statistics in"
            " a form that is not written yet. Nothing was written; the log itself is complete."
        )
    blocks = [
        (name, pa.array([_row(action, shape) for action in _sorted(checkpoint, name)], shape))
        for name, shape in _FEW_ACTIONS.items()
    ]
    for name, schema, table in (
        (Remove.NAME, REMOVE, checkpoint.tombstones),
        (Add.NAME, ADD, checkpoint.files),
    ):
        ordered = in_order(table).select(schema.names)
        blocks.append((name, pa.concat_arrays(ordered.to_struct_array().chunks or [_no_rows(schema)])))
    total = sum(len(rows) for _, rows in blocks)
    columns: dict[str, Any] = {}
    start = 0
    for name, rows in blocks:
        columns[name] = pa.concat_arrays(
            [pa.nulls(start, rows.type), rows, pa.nulls(total - start - len(rows), rows.type)]
        )
        start += len(rows)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink, compression="snappy", store_schema=False, row_group_size=_ROW_GROUP)
    return sink.getvalue().to_pybytes(), total


def _no_rows(schema: pa.Schema) -> Any:
    return pa.array([], pa.struct(list(schema)))


def _sorted(checkpoint: Checkpoint, name: str) -> list[Action]:
    chosen = [action for action in checkpoint.actions if name == action.NAME]
    return sorted(chosen, key=encode_action)


def _row(action: Action, shape: pa.StructType) -> dict[str, Any]:
    """An action as a row of its checkpoint column: maps as lists of entries, sorted by key."""

    def entries(value: Any, data_type: pa.DataType) -> Any:
        if value is None:
            return None
        if pa.types.is_map(data_type):
            return sorted(value.items())
        if pa.types.is_struct(data_type):
            return {member.name: entries(value.get(member.name), member.type) for member in _members(data_type)}
        return value

    return cast("dict[str, Any]", entries(action.to_json(), shape))


def _last_checkpoint(version: int, rows: int, size: int, adds: int) -> bytes:
    members: dict[str, object] = {"version": version, "size": rows, "sizeInBytes": size, "numOfAddFiles": adds}
    return orjson.dumps({**members, "checksum": json_checksum(members)})


def _exists(store: ObjectStore, key: str) -> bool:
    try:
        store.head(key)
    except ObjectNotFound:
        return False
    return True
