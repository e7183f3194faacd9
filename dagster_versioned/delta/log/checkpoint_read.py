"""Checkpoints, read: a snapshot's actions in one place, so that a reader need not replay the whole log."""

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, cast
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
    of_kind,
    parse_action,
)
from dagster_versioned.delta.files.arrow_memory import arrow_reader, in_arrow
from dagster_versioned.delta.files.file_actions import (
    ADD,
    KEY,
    REMOVE,
    REQUIRED,
    TEXT_MAP,
    adds_table,
    identities,
    no_rows,
    removes_table,
    with_keys,
)
from dagster_versioned.delta.files.struct_statistics import to_text
from dagster_versioned.delta.log.commits import LOG_FOLDER, CheckpointFiles, in_parallel
from dagster_versioned.delta.paths import Column, compute, keys_of
from dagster_versioned.errors import LogCorrupt, ObjectNotFound, VersionedError
from dagster_versioned.storage.object_store import ObjectStore

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
_SPEC = "checkpointMetadata"
_OF_V2 = {"sidecar": _SIDECAR, _SPEC: pa.struct([("version", pa.int64())])}
SIDECARS = LOG_FOLDER + "_sidecars/"
"""Where the files are that hold file actions for V2 checkpoints."""

FEW_ACTIONS = {Metadata.NAME: _METADATA, Protocol.NAME: _PROTOCOL, Txn.NAME: _TXN, DomainMetadata.NAME: _DOMAIN}
"""Columns of a checkpoint for the actions that are not about files."""

_FILE_ACTIONS = {Add.NAME: pa.struct(list(ADD)), Remove.NAME: pa.struct(list(REMOVE))}

NOT_PLAIN = ("stats", "tags")
"""What of an add only helps to pass over it, and is most of its bytes."""

_PLAIN_ADD = pa.struct([member for member in cast("Any", ADD) if member.name not in NOT_PLAIN])
_PARSED = "stats_parsed"

_PARALLEL = 4
"""Parts of one file that are read at once."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a checkpoint holds: few actions as objects, files as tables (`files.FILES`, `files.TOMBSTONES`).

    ``notes`` are the entries of its Parquet footer that are not Parquet's own: what its writer noted beside the state.
    """

    actions: tuple[Action, ...]
    files: pa.Table
    tombstones: pa.Table
    plain_paths: bool = False
    """Whether every path of ``files`` is its own key, and so stays below the table's folder."""
    notes: Mapping[str, bytes] = field(default_factory=dict[str, bytes])


def read_checkpoint(store: ObjectStore, checkpoint: CheckpointFiles) -> Checkpoint:
    """Read a checkpoint of any kind: classic, multi-part, or V2 (Parquet or JSON) with its sidecars.

    Only the needed columns are read. Raises `LogCorrupt`, naming the file, where it cannot be read, lacks a required
    value, or holds one logical file twice. Protocol: *Checkpoints*.
    """
    pieces = in_parallel(partial(_read_file, store), checkpoint.keys)
    sidecars = [SIDECARS + name for piece in pieces for name in piece.sidecars]
    pieces += in_parallel(partial(_read_parquet, store, of_sidecar=True), sidecars)
    adds = pa.concat_tables([piece.adds for piece in pieces])
    paths = adds["path"]
    keys = keys_of(paths)
    files = adds.append_column(KEY, keys)
    tombstones = with_keys(pa.concat_tables([piece.removes for piece in pieces]))
    _require_distinct(files, checkpoint.keys[0])
    _require_distinct(tombstones, checkpoint.keys[0])
    actions = tuple(chain.from_iterable(piece.actions for piece in pieces))
    notes = {name: note for piece in pieces for name, note in piece.notes.items()}
    return Checkpoint(actions, files, tombstones, keys is paths, notes)


def read_head(store: ObjectStore, key: str) -> tuple[tuple[Action, ...], list[str]]:
    """The actions of a checkpoint file that are not about files, and the sidecars it names. Raises `LogCorrupt`."""
    if key.endswith(".json"):
        piece = _read_json(store, key)
        return tuple(piece.actions), piece.sidecars
    columns, _ = _columns(store, key, {**FEW_ACTIONS, **_OF_V2})
    _require_version(columns[_SPEC]["version"].to_pylist(), key)
    return tuple(_few(columns, key)), _names(columns["sidecar"], key)


def read_files(
    store: ObjectStore, key: str, row_groups: range | None = None, layout: str | None = None
) -> tuple[pa.Table, pa.Table]:
    """The live files and the tombstones in one checkpoint file or sidecar, of a Parquet file in some row groups.

    Schemas are `files.FILES` and `files.TOMBSTONES`. Raises `LogCorrupt`, and `VersionedError` for a Parquet file whose
    `layout_of` is not ``layout``.
    """
    if key.endswith(".json"):
        piece = _read_json(store, key)
        return with_keys(piece.adds), with_keys(piece.removes)
    columns, _ = _columns(store, key, _FILE_ACTIONS, row_groups, layout)
    _require_members(columns, key)
    return with_keys(columns[Add.NAME]), with_keys(columns[Remove.NAME])


def read_live_files(
    store: ObjectStore, key: str, row_groups: range | None = None, layout: str | None = None
) -> pa.Table:
    """The first of `read_files` with nulls for `NOT_PLAIN`.

    Raises as that, and `LogCorrupt` where a file is live twice.
    """
    if key.endswith(".json"):
        adds = _read_json(store, key).adds
    else:
        columns, _ = _columns(store, key, {Add.NAME: _PLAIN_ADD}, row_groups, layout)
        _require_members(columns, key)
        adds = columns[Add.NAME]
    kinds: list[Any] = ADD.types
    arrays: list[Any] = [
        pa.nulls(adds.num_rows, kind) if name in NOT_PLAIN else adds[name]
        for name, kind in zip(ADD.names, kinds, strict=True)
    ]
    files = with_keys(pa.Table.from_arrays(arrays, schema=ADD))
    _require_distinct(files, key)
    return files


def layout_of(metadata: pq.FileMetaData) -> str:
    """What two Parquet files have in common only where each has the rows of the other at the same places."""
    footer = pa.BufferOutputStream()
    metadata.write_metadata_file(footer)
    return hashlib.sha256(footer.getvalue()).hexdigest()[:16]


def sidecar_names(store: ObjectStore, key: str) -> list[str]:
    """The sidecars that a checkpoint file names. Raises `LogCorrupt` where it cannot be read."""
    if key.endswith(".json"):
        return _read_json(store, key).sidecars
    columns, _ = _columns(store, key, {"sidecar": _SIDECAR})
    return _names(columns["sidecar"], key)


def _require_distinct(files: pa.Table, key: str) -> None:
    """Raise `LogCorrupt` for a file that is there twice; seen at once where they are sorted, as our checkpoints are."""
    texts = identities(files)
    rising = compute.less(texts.slice(0, max(len(texts) - 1, 0)), texts.slice(1))
    if not compute.all(rising, min_count=0).as_py() and len(compute.unique(texts)) != len(texts):
        raise LogCorrupt(f"{key}: a file occurs twice in the checkpoint. Nothing was read.")


@dataclass(frozen=True, slots=True)
class _Piece:
    actions: Sequence[Action]
    sidecars: list[str]
    adds: pa.Table
    removes: pa.Table
    notes: Mapping[str, bytes] = field(default_factory=dict[str, bytes])


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
        elif members.get(_SPEC) is not None:
            _require_version([Members(members, where).members(_SPEC).optional_integer("version")], key)
        elif action := parse_action(members, where):
            actions.append(action)
    adds = adds_table(of_kind(actions, Add))
    removes = removes_table(of_kind(actions, Remove))
    few = [action for action in actions if not isinstance(action, Add | Remove)]
    return _Piece(few, sidecars, adds.drop_columns("key"), removes.drop_columns("key"))


def _columns(
    store: ObjectStore,
    key: str,
    wanted: dict[str, pa.StructType],
    row_groups: range | None = None,
    layout: str | None = None,
) -> tuple[dict[str, pa.Table], dict[str, bytes]]:
    """The actions of each wanted kind, its members as columns; and the notes. Raises `LogCorrupt` naming the file."""
    path = store.local_path(key)
    try:
        source: Any = in_arrow(store.get(key)) if path is None else path
        file = _opened(source)
        if layout not in (None, layout_of(file.metadata)):
            raise VersionedError(
                f"The checkpoint {key} of {store.uri} was replaced by another one since its files were planned. What"
                " came until now is complete. Read the table again, or begin the stream anew, with a new checkpoint of"
                " the query."
            )
        leaves = _leaf_columns(file.schema_arrow, wanted)
        groups = list(range(file.num_row_groups) if row_groups is None else row_groups)
        if _FILE_ACTIONS.keys().isdisjoint(wanted):
            groups = [group for group in groups if _may_hold(file.metadata.row_group(group), leaves)]
        table = _read_groups(source, file, groups, leaves)
        table.validate(full=True)  # reading does not ask whether text is UTF-8
        columns = {name: _struct_rows(table, name, shape) for name, shape in wanted.items()}
        if Add.NAME in wanted and "stats" in columns[Add.NAME].column_names:
            columns[Add.NAME] = _with_statistics(columns[Add.NAME], file, groups)
        entries = file.metadata.metadata or {}
        notes = {name.decode(): value for name, value in entries.items() if name != b"ARROW:schema"}
    except ObjectNotFound as error:
        raise LogCorrupt(f"{key} is missing, but a checkpoint needs it. Nothing was read.") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise LogCorrupt(f"{key}: the checkpoint cannot be read ({error}). Nothing was read.") from error
    return columns, notes


def _may_hold(group: pq.RowGroupMetaData, leaves: Sequence[str]) -> bool:
    """Whether there is a value in one of the columns; what is not about files is in few row groups of a large one."""
    for number in range(group.num_columns):
        column = group.column(number)
        if not any(column.path_in_schema == leaf or column.path_in_schema.startswith(f"{leaf}.") for leaf in leaves):
            continue
        found: Any = column.statistics
        if found is None or not found.has_null_count or found.null_count < group.num_rows:
            return True
    return False


def _opened(source: Any, metadata: pq.FileMetaData | None = None) -> pq.ParquetFile:
    return pq.ParquetFile(arrow_reader(source) if isinstance(source, pa.Buffer) else source, metadata=metadata)


def _read_groups(source: Any, file: pq.ParquetFile, groups: list[int], columns: list[str]) -> pa.Table:
    """Row groups of a file, several at once: Arrow reads columns side by side, but nearly all bytes are statistics."""
    if len(groups) < 2:
        return file.read_row_groups(groups, columns=columns)
    cut = -(-len(groups) // _PARALLEL)
    parts = [groups[start : start + cut] for start in range(0, len(groups), cut)]

    def read(part: list[int]) -> pa.Table:
        return _opened(source, file.metadata).read_row_groups(part, columns=columns)

    with ThreadPoolExecutor(len(parts)) as pool:
        return pa.concat_tables(pool.map(read, parts))


def _read_parquet(store: ObjectStore, key: str, *, of_sidecar: bool = False) -> _Piece:
    wanted = dict(_FILE_ACTIONS) if of_sidecar else {**FEW_ACTIONS, **_FILE_ACTIONS, **_OF_V2}
    columns, notes = _columns(store, key, wanted)
    _require_members(columns, key)
    names: list[str] = []
    if not of_sidecar:
        _require_version(columns[_SPEC]["version"].to_pylist(), key)
        names = _names(columns["sidecar"], key)
    return _Piece(_few(columns, key), names, columns[Add.NAME], columns[Remove.NAME], notes)


def _require_version(versions: Sequence[int | None], key: str) -> None:
    """Raise `LogCorrupt` for a checkpoint that is of another version than its name has. Protocol: *V2 Spec*."""
    named = int(key.removeprefix(LOG_FOLDER)[:20])
    for version in versions:
        if version is not None and version != named:
            raise LogCorrupt(f"{key}: its {_SPEC} is of version {version}, its name of {named}. Nothing was read.")


def _require_members(columns: dict[str, pa.Table], key: str) -> None:
    for name in columns.keys() & REQUIRED:
        for column in REQUIRED[name]:
            if columns[name][column].null_count:
                raise LogCorrupt(f"{key}: a {name} action has no {column}. Nothing was read.")
    sizes = columns[Add.NAME]["size"]
    if sizes.length() and compute.min(sizes).as_py() < 0:
        raise LogCorrupt(f"{key}: an add action has a negative size. Nothing was read.")


def _few(columns: dict[str, pa.Table], key: str) -> list[Action]:
    return [
        action
        for name, shape in FEW_ACTIONS.items()
        if name in columns
        for row in columns[name].to_pylist()
        if (action := parse_action({name: _plain(row, shape)}, f"{key}, {name}")) is not None
    ]


def _names(sidecars: pa.Table, key: str) -> list[str]:
    return [_sidecar_name(path, key) for path in cast("list[str]", sidecars["path"].to_pylist())]


def _with_statistics(adds: pa.Table, file: pq.ParquetFile, groups: list[int]) -> pa.Table:
    """The adds with the text of statistics that the checkpoint holds as structs alone."""
    texts = adds["stats"]
    held: Any = file.schema_arrow
    if not texts.null_count or not pa.types.is_struct(held.field(Add.NAME).type):
        return adds
    position = held.field(Add.NAME).type.get_field_index(_PARSED)
    if position < 0 or not pa.types.is_struct(held.field(Add.NAME).type.field(position).type):
        return adds
    table = file.read_row_groups(groups, columns=[f"{Add.NAME}.path", f"{Add.NAME}.{_PARSED}"])
    table.validate(full=True)
    parsed = to_text(_named(_present(table[Add.NAME]), _PARSED))
    return adds.set_column(adds.column_names.index("stats"), "stats", compute.coalesce(texts, parsed))


def _named(column: Column, name: str) -> Column:
    # By position: a name given to Arrow is a path, in which dots mean something.
    struct: Any = column.type
    return compute.struct_field(column, struct.get_field_index(name))


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
    column = _present(table[name])
    return pa.Table.from_arrays([_member(column, member) for member in _members(shape)], schema=schema)


def _present(column: Column) -> Column:
    """The values that are not null; without a copy where they stand together, as writers put them."""
    valid = compute.is_valid(column)
    first, count = compute.index(valid, True).as_py(), len(column) - column.null_count
    together = column.slice(max(first, 0), count)
    return column.filter(valid) if together.null_count else together


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
