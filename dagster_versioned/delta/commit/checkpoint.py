"""Checkpoints, written: a snapshot's actions in one place, so that a reader need not replay the whole log.

A table whose property ``delta.checkpointPolicy`` is ``v2`` gets checkpoints of the V2 spec, named by a UUID, whose file
actions are in sidecars where they are many; every other table gets one file of the classic name and the V1 spec. A
checkpoint's bytes, and the UUIDs in names, depend on the log alone, so writers that race write the same.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from dagster_versioned.delta.actions import Action, Add, DomainMetadata, Remove, encode_action
from dagster_versioned.delta.commit.write_rules import WriteRules
from dagster_versioned.delta.features import writer_features
from dagster_versioned.delta.files.arrow_memory import arrow_reader
from dagster_versioned.delta.files.file_actions import ADD, REMOVE, TEXT_MAP, in_order
from dagster_versioned.delta.files.partition_values import typed_columns
from dagster_versioned.delta.files.struct_statistics import statistics_type, to_struct
from dagster_versioned.delta.log.checkpoint_read import FEW_ACTIONS, SIDECARS, read_checkpoint
from dagster_versioned.delta.log.commits import LAST_CHECKPOINT_KEY, LOG_FOLDER, json_checksum, last_checkpoint_version
from dagster_versioned.delta.log.snapshot import Snapshot
from dagster_versioned.delta.paths import compute
from dagster_versioned.delta.properties import interval_ms
from dagster_versioned.delta.schema.column_mapping import physical_name
from dagster_versioned.storage.object_store import ObjectStore

__all__ = ["checkpoint_bytes", "checkpoint_key", "hint_of_size", "read_checkpoint", "same_rows", "write_checkpoint"]

_CHECKPOINT_METADATA = pa.struct([("version", pa.int64()), ("tags", TEXT_MAP)])
_SIDECAR = pa.struct(
    [("path", pa.string()), ("sizeInBytes", pa.int64()), ("modificationTime", pa.int64()), ("tags", TEXT_MAP)]
)

_ROW_GROUP = 1 << 17
_WEEK_MS = 7 * 24 * 3600 * 1000

_INLINE = 10_000
"""File actions that a V2 checkpoint holds itself; more go to sidecars."""

_PER_SIDECAR = 500_000

_CLASSIC_EVERY = 100
"""Versions whose V2 checkpoint has the classic name, so that programs that know no other find one, and refuse the
table by its protocol. Protocol: *Handling Backward compatibility while moving to UUID-named v2 Checkpoints*."""

Block = tuple[str, Any]
"""The name of a column, and its values: structs, one for each action of that kind."""


def checkpoint_key(version: int) -> str:
    """Where the classic checkpoint of ``version`` is stored."""
    return f"{LOG_FOLDER}{version:020d}.checkpoint.parquet"


def write_checkpoint(
    store: ObjectStore,
    snapshot: Snapshot,
    notes: Mapping[str, str] | None = None,
    *,
    is_newest: bool = False,
    in_one_file: bool = False,
) -> None:
    """Write the checkpoint of a snapshot, then ``_last_checkpoint`` unless that names a newer one.

    With ``is_newest`` that is not looked at: it is a hint, and an older one costs a longer listing. Of the V2
    spec where the table's property ``delta.checkpointPolicy`` asks for it, unless ``in_one_file`` does; else as
    `checkpoint_bytes`.
    """
    if _is_v2(snapshot) and not in_one_file:
        last = _write_v2(store, snapshot)
    else:
        data, last = checkpoint_bytes(snapshot, notes)
        store.put(checkpoint_key(snapshot.version), data)
    newest = None if is_newest else last_checkpoint_version(store)
    if newest is None or newest <= snapshot.version or not _exists(store, newest):
        store.put(LAST_CHECKPOINT_KEY, last, durability="later")  # a hint, without which the log is listed


def checkpoint_bytes(snapshot: Snapshot, notes: Mapping[str, str] | None = None) -> tuple[bytes, bytes]:
    """The bytes of a snapshot's checkpoint of the classic name, and of the ``_last_checkpoint`` that names it.

    It is of the V2 spec, without sidecars, where the table asks for that, else of the V1 spec.
    They depend on the log, on the ``notes`` for its Parquet footer, and on the release of pyarrow, alone: rows are
    sorted, and tombstones expire by the snapshot's own timestamp, not by a clock.
    """
    form = _Form.of(snapshot)
    blocks = [*_few(snapshot), *_file_actions(snapshot, form)]
    if not _is_v2(snapshot):
        data, rows = _encode(blocks, form, notes=notes)
        return data, _last_checkpoint(snapshot, rows, len(data))
    data, rows = _encode([_spec(snapshot), *blocks], form, notes=notes)
    return data, _last_checkpoint(snapshot, rows, len(data), _v2_tags(checkpoint_key(snapshot.version)))


def same_rows(checkpoint: bytes, other: bytes) -> bool:
    """Whether two checkpoints without sidecars differ in nothing but how some release of pyarrow encoded them."""
    try:
        return _decoded(checkpoint) == _decoded(other)
    except (pa.ArrowException, OSError):
        return False


def _decoded(checkpoint: bytes) -> tuple[pa.Table, dict[bytes, bytes]]:
    file = pq.ParquetFile(arrow_reader(checkpoint))
    return file.read().replace_schema_metadata(), file.metadata.metadata or {}


def hint_of_size(hint: bytes, size: int) -> bytes:
    """The ``_last_checkpoint`` that names the same checkpoint where that has another size in bytes."""
    members: dict[str, object] = {**orjson.loads(hint), "sizeInBytes": size}
    del members["checksum"]
    return orjson.dumps({**members, "checksum": json_checksum(members)})


def _exists(store: ObjectStore, version: int) -> bool:
    return any(True for _ in store.list(f"{LOG_FOLDER}{version:020d}.checkpoint"))


def _last_checkpoint(snapshot: Snapshot, rows: int, size: int, tags: Mapping[str, str] | None = None) -> bytes:
    members: dict[str, object] = {
        "version": snapshot.version,
        "size": rows,
        "sizeInBytes": size,
        "numOfAddFiles": snapshot.num_files,
        **({"tags": tags} if tags else {}),
    }
    return orjson.dumps({**members, "checksum": json_checksum(members)})


# --- the V2 spec -----------------------------------------------------------------------------------------------------


def _is_v2(snapshot: Snapshot) -> bool:
    policy = snapshot.metadata.configuration.get("delta.checkpointPolicy", "")
    return policy.lower() == "v2" and "v2Checkpoint" in writer_features(snapshot.protocol)


def _write_v2(store: ObjectStore, snapshot: Snapshot) -> bytes:
    """Write sidecars, then the checkpoint that names them; the ``_last_checkpoint`` for it."""
    form = _Form.of(snapshot)
    blocks, size, rows = _few(snapshot), 0, 0
    sidecars: list[dict[str, Any]] = []
    if snapshot.num_files + snapshot.tombstones.num_rows <= _INLINE:
        blocks += _file_actions(snapshot, form)
    else:
        for actions in _in_parts(_file_actions(snapshot, form)):
            data, count = _encode(actions, form, sidecar=True)
            name = f"{_uuid(data)}.parquet"
            store.put(SIDECARS + name, data)
            sidecars.append({"path": name, "sizeInBytes": len(data), "modificationTime": snapshot.timestamp_ms})
            size, rows = size + len(data), rows + count
    data, count = _encode([_spec(snapshot), *blocks, ("sidecar", pa.array(sidecars, _SIDECAR))], form)
    key = checkpoint_key(snapshot.version)
    if snapshot.version % _CLASSIC_EVERY:
        key = f"{LOG_FOLDER}{snapshot.version:020d}.checkpoint.{_uuid(data)}.parquet"
    store.put(key, data)
    return _last_checkpoint(snapshot, rows + count, size + len(data), _v2_tags(key))


def _v2_tags(key: str) -> dict[str, str]:
    return {"spec": "v2", "path": key.removeprefix(LOG_FOLDER)}


def _spec(snapshot: Snapshot) -> Block:
    """The action by which readers know the V2 spec."""
    return "checkpointMetadata", pa.array([{"version": snapshot.version, "tags": None}], _CHECKPOINT_METADATA)


def _in_parts(blocks: Iterable[Block]) -> Iterator[list[Block]]:
    part: list[Block] = []
    for block in blocks:
        if part and sum(len(rows) for _, rows in part) + len(block[1]) > _PER_SIDECAR:
            yield part
            part = []
        part.append(block)
    if part:
        yield part


def _uuid(data: bytes) -> str:
    return str(UUID(bytes=hashlib.sha256(data).digest()[:16], version=4))


# --- actions as columns ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Form:
    """What an add looks like in the checkpoints of a table. Protocol: *Checkpoints*.

    ``statistics`` and ``partitions`` are the types of ``stats_parsed`` and ``partitionValues_parsed``; none of them is
    there unless ``delta.checkpoint.writeStatsAsStruct`` is set.
    """

    snapshot: Snapshot
    as_json: bool
    statistics: pa.StructType | None
    partitions: pa.StructType | None

    @classmethod
    def of(cls, snapshot: Snapshot) -> "_Form":
        as_json = snapshot.metadata.configuration.get("delta.checkpoint.writeStatsAsJson", "true").lower() != "false"
        if not snapshot.metadata.is_set("delta.checkpoint.writeStatsAsStruct"):
            return cls(snapshot, as_json, None, None)
        rules = WriteRules.of_snapshot(snapshot)
        tight = "deletionVectors" in writer_features(snapshot.protocol)
        statistics = statistics_type(rules.physical_schema, rules.statistics, tight_bounds=tight)
        empty = typed_columns(
            snapshot.files.slice(0, 0), snapshot.schema, snapshot.partition_columns, snapshot.column_mapping
        )
        names = [physical_name(snapshot.schema.field(name), rules.mapping) for name in snapshot.partition_columns]
        types = list(zip(names, empty.schema.types, strict=True))
        return cls(snapshot, as_json, statistics, pa.struct(types) if types else None)

    @property
    def add(self) -> pa.StructType:
        members = [member for member in cast("Any", ADD) if self.as_json or member.name != "stats"]
        if self.partitions is not None:
            members.append(pa.field("partitionValues_parsed", self.partitions))
        if self.statistics is not None:
            members.append(pa.field("stats_parsed", self.statistics))
        return pa.struct(members)

    def adds(self, files: pa.Table) -> Any:
        """Files as structs of the type `add`."""
        columns: dict[str, Any] = {name: files[name].combine_chunks() for name in ADD.names}
        if self.partitions is not None:
            snapshot = self.snapshot
            typed = typed_columns(files, snapshot.schema, snapshot.partition_columns, snapshot.column_mapping)
            arrays: list[Any] = [column.combine_chunks() for column in typed.columns]
            members = list(cast("Any", self.partitions))
            columns["partitionValues_parsed"] = pa.StructArray.from_arrays(arrays, fields=members)
        if self.statistics is not None:
            columns["stats_parsed"] = to_struct(columns["stats"], self.statistics)
        members = list(cast("Any", self.add))
        return pa.StructArray.from_arrays([columns[member.name] for member in members], fields=members)


def _few(snapshot: Snapshot) -> list[Block]:
    """The actions that are not about files, sorted."""
    domains = [DomainMetadata(name, configuration) for name, configuration in snapshot.domains.items()]
    actions: list[Action] = [snapshot.metadata, snapshot.protocol, *snapshot.txns.values(), *domains]
    chosen = {
        name: sorted((action for action in actions if name == action.NAME), key=encode_action) for name in FEW_ACTIONS
    }
    return [
        (name, pa.array([_row(action, shape) for action in chosen[name]], shape)) for name, shape in FEW_ACTIONS.items()
    ]


def _row(action: Action, shape: pa.StructType) -> dict[str, Any]:
    """An action as a row of its checkpoint column: maps as lists of entries, sorted by key."""

    def entries(value: Any, data_type: pa.DataType) -> Any:
        if value is None:
            return None
        if pa.types.is_map(data_type):
            return sorted(value.items())
        if pa.types.is_struct(data_type):
            members = cast("Any", data_type)
            return {member.name: entries(value.get(member.name), member.type) for member in members}
        return value

    return cast("dict[str, Any]", entries(action.to_json(), shape))


def _file_actions(snapshot: Snapshot, form: _Form) -> Iterator[Block]:
    """Tombstones, then live files, in order, in blocks of at most a row group."""
    for files in _slices(_unexpired_tombstones(snapshot)):
        columns: list[Any] = [files[name].combine_chunks() for name in REMOVE.names]
        yield Remove.NAME, pa.StructArray.from_arrays(columns, fields=list(REMOVE))
    for files in _slices(snapshot.files):
        yield Add.NAME, form.adds(files)


def _slices(files: pa.Table) -> Iterator[pa.Table]:
    """The rows by identity, so that what is written from them depends on the set alone, a row group at a time."""
    ordered = in_order(files)
    yield from (ordered.slice(start, _ROW_GROUP) for start in range(0, files.num_rows, _ROW_GROUP))


def _unexpired_tombstones(snapshot: Snapshot) -> pa.Table:
    retention = interval_ms(snapshot.metadata, "delta.deletedFileRetentionDuration")
    oldest = snapshot.timestamp_ms - (_WEEK_MS if retention is None else retention)
    times = compute.fill_null(snapshot.tombstones["deletionTimestamp"], 0)
    return snapshot.tombstones.filter(compute.greater_equal(times, oldest))


def _encode(
    blocks: list[Block], form: _Form, *, sidecar: bool = False, notes: Mapping[str, str] | None = None
) -> tuple[bytes, int]:
    """A Parquet file of these blocks, a column for each kind of action; and how many actions it holds."""
    columns: dict[str, Any] = {} if sidecar else dict(FEW_ACTIONS)
    columns |= {Remove.NAME: pa.struct(list(REMOVE)), Add.NAME: form.add}
    columns |= {name: rows.type for name, rows in blocks if name not in columns}
    sink, total = pa.BufferOutputStream(), 0
    schema = pa.schema(list(columns.items()))
    with pq.ParquetWriter(sink, schema, compression="snappy", store_schema=False) as writer:
        for group in _row_groups(blocks):
            table = _side_by_side(group, schema)
            writer.write_table(table, row_group_size=_ROW_GROUP)
            total += table.num_rows
        if notes:
            writer.add_key_value_metadata(dict(notes))
    return sink.getvalue().to_pybytes(), total


def _row_groups(blocks: Iterable[Block]) -> Iterator[list[Block]]:
    group: list[Block] = []
    for block in blocks:
        if group and sum(len(rows) for _, rows in group) + len(block[1]) > _ROW_GROUP:
            yield group
            group = []
        group.append(block)
    yield group


def _side_by_side(group: list[Block], schema: pa.Schema) -> pa.Table:
    """Each block in its column, below the ones before it; null elsewhere."""
    total = sum(len(rows) for _, rows in group)
    pieces: dict[str, list[Any]] = {name: [] for name in schema.names}
    filled = dict.fromkeys(schema.names, 0)
    start = 0
    for name, rows in group:
        pieces[name] += [pa.nulls(start - filled[name], rows.type), rows]
        start += len(rows)
        filled[name] = start
    kinds = cast("Any", schema.types)
    arrays: list[Any] = [
        pa.concat_arrays([*pieces[name], cast("Any", pa.nulls(total - filled[name], kind))])
        for name, kind in zip(schema.names, kinds, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)
