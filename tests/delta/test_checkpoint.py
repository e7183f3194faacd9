import json
import re
from datetime import date
from itertools import pairwise
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from dagster_versioned.delta.actions import (
    Action,
    Add,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    Remove,
    Txn,
    encode_action,
)
from dagster_versioned.delta.commit import checkpoint
from dagster_versioned.delta.commit.checkpoint import checkpoint_key, read_checkpoint, write_checkpoint
from dagster_versioned.delta.log.checkpoint_read import read_head
from dagster_versioned.delta.log.commits import CheckpointFiles, commit_key, json_checksum, list_log
from dagster_versioned.delta.log.snapshot import Snapshot, load_snapshot
from dagster_versioned.delta.schema.types import StructField, StructType
from dagster_versioned.errors import LogCorrupt
from dagster_versioned.storage.local import LocalStore
from support.delta_logs import SCHEMA, put_commit

PROTOCOL = Protocol(3, 7, ("v2Checkpoint",), ("v2Checkpoint", "domainMetadata"))
METADATA = Metadata("id", SCHEMA, (), {"a": "b", "": "c"}, "name", "words", 5, "parquet", {"o": "p"})
STATE: list[Action] = [
    PROTOCOL,
    METADATA,
    Txn("app", 3, 4),
    DomainMetadata("d", "{}"),
    Add("a%20b", {"p": None, "q": "1"}, 5, 6, True, '{"numRecords":1}', {"t": "u"}, None, 1, 2, "c"),
    Add("b", {}, 5, 6, False),
    Remove("gone", True, 10**15, True, {"p": "1"}, 5),
]


@pytest.fixture
def snapshot(store: LocalStore) -> Snapshot:
    put_commit(store, 0, [CommitInfo({}), *STATE])
    return load_snapshot(store)


def same(one: Snapshot, other: Snapshot) -> bool:
    def rows(table: pa.Table) -> list[Any]:
        return table.sort_by("key").to_pylist()

    return (
        (one.protocol, one.metadata, one.txns, one.domains)
        == (other.protocol, other.metadata, other.txns, other.domains)
        and rows(one.files) == rows(other.files)
        and rows(one.tombstones) == rows(other.tombstones)
    )


def test_every_action_round_trips(store: LocalStore, snapshot: Snapshot) -> None:
    write_checkpoint(store, snapshot)
    segment = list_log(store)
    assert segment.checkpoint == CheckpointFiles(0, (checkpoint_key(0),), segment.checkpoint.file_time_ms)
    assert not segment.commits
    assert same(load_snapshot(store), snapshot)


def test_last_checkpoint_counts_and_carries_its_checksum(store: LocalStore, snapshot: Snapshot) -> None:
    write_checkpoint(store, snapshot)
    data = store.get("_delta_log/_last_checkpoint")
    value = json.loads(data)
    size = store.head(checkpoint_key(0)).size
    assert value == {"version": 0, "size": 7, "sizeInBytes": size, "numOfAddFiles": 2, "checksum": json_checksum(value)}


def test_last_checkpoint_never_goes_back(store: LocalStore, snapshot: Snapshot) -> None:
    store.put(commit_key(1), b"")
    write_checkpoint(store, load_snapshot(store))
    newest = store.get("_delta_log/_last_checkpoint")
    write_checkpoint(store, snapshot)
    assert store.get("_delta_log/_last_checkpoint") == newest
    store.put("_delta_log/_last_checkpoint", b'{"version":77}')
    write_checkpoint(store, snapshot)
    assert json.loads(store.get("_delta_log/_last_checkpoint"))["version"] == 0


# --- statistics, and partition values, as structs

PARTITIONED = StructType(
    (
        StructField("p", "date", True, {}),
        StructField("x", "long", True, {}),
        StructField("y", StructType((StructField("z", "string", True, {}),)), True, {}),
    )
)
STATISTICS = '{"numRecords":2,"minValues":{"x":1,"y":{"z":"a"}},"maxValues":{"x":2},"nullCount":{"x":0,"y":{"z":1}}}'


def with_statistics(store: LocalStore, **properties: str) -> Snapshot:
    configuration = {f"delta.checkpoint.{name}": value for name, value in properties.items()}
    actions = [
        Protocol(1, 2),
        Metadata("id", PARTITIONED.json(), ("p",), configuration),
        Add("a", {"p": "2026-01-02"}, 1, 1, True, STATISTICS),
        Add("b", {"p": None}, 1, 1, True, "nonsense"),
        Add("c", {"p": "2026-01-03"}, 1, 1, True),
    ]
    put_commit(store, 0, actions)
    return load_snapshot(store)


def adds_of(store: LocalStore) -> pa.Table:
    column = rows_of(store)["add"]
    return pa.Table.from_struct_array(column.filter(column.is_valid()))


def test_statistics_are_text_by_default(store: LocalStore) -> None:
    write_checkpoint(store, with_statistics(store))
    assert adds_of(store)["stats"].to_pylist() == [STATISTICS, "nonsense", None]
    assert not {"stats_parsed", "partitionValues_parsed"} & set(adds_of(store).column_names)


def test_statistics_and_partition_values_as_structs_beside_their_texts(store: LocalStore) -> None:
    snapshot = with_statistics(store, writeStatsAsStruct="true")
    write_checkpoint(store, snapshot)
    adds = adds_of(store)
    assert adds["stats"].to_pylist() == [STATISTICS, "nonsense", None]
    assert adds["partitionValues_parsed"].to_pylist() == [{"p": date(2026, 1, 2)}, {"p": None}, {"p": date(2026, 1, 3)}]
    parsed = adds["stats_parsed"].to_pylist()
    assert parsed[0] == {
        "numRecords": 2,
        "minValues": {"x": 1, "y": {"z": "a"}},
        "maxValues": {"x": 2, "y": None},
        "nullCount": {"x": 0, "y": {"z": 1}},
    }
    assert parsed[1:] == [None, None]
    assert same(load_snapshot(store), snapshot)


def test_statistics_as_structs_alone_come_back_as_text(store: LocalStore) -> None:
    write_checkpoint(store, with_statistics(store, writeStatsAsStruct="true", writeStatsAsJson="false"))
    assert "stats" not in adds_of(store).column_names
    first, *rest = load_snapshot(store).files.sort_by("key")["stats"].to_pylist()
    assert json.loads(first) == json.loads(STATISTICS)
    assert rest == [None, None]


def test_no_statistics_at_all(store: LocalStore) -> None:
    write_checkpoint(store, with_statistics(store, writeStatsAsJson="false"))
    assert load_snapshot(store).files["stats"].to_pylist() == [None, None, None]


# --- the V2 spec


def v2_snapshot(store: LocalStore, version: int = 0) -> Snapshot:
    metadata = Metadata("id", SCHEMA, (), {"delta.checkpointPolicy": "v2"})
    actions = [metadata if isinstance(action, Metadata) else action for action in STATE]
    put_commit(store, 0, [CommitInfo({}), *actions])
    for number in range(1, version + 1):
        store.put(commit_key(number), b"")
    return load_snapshot(store)


def names_in(store: LocalStore) -> list[str]:
    return [info.key for info in store.list("_delta_log/") if not info.key.endswith("0.json")]


@pytest.mark.parametrize("inline", [0, 10])
def test_v2_checkpoints_round_trip(store: LocalStore, monkeypatch: pytest.MonkeyPatch, inline: int) -> None:
    monkeypatch.setattr(checkpoint, "_INLINE", inline)
    monkeypatch.setattr(checkpoint, "_PER_SIDECAR", 2)
    monkeypatch.setattr(checkpoint, "_ROW_GROUP", 1)
    snapshot = v2_snapshot(store, 1)
    write_checkpoint(store, snapshot)
    (key,) = list_log(store).checkpoint.keys
    assert re.fullmatch(r"_delta_log/0{19}1\.checkpoint\.[0-9a-f-]{36}\.parquet", key)
    sidecars = [info.key for info in store.list("_delta_log/_sidecars/")]
    assert len(sidecars) == (0 if inline else 2)
    last = json.loads(store.get("_delta_log/_last_checkpoint"))
    assert last["tags"] == {"spec": "v2", "path": key.removeprefix("_delta_log/")}
    assert last["checksum"] == json_checksum(last)
    assert (last["version"], last["numOfAddFiles"]) == (1, 2)
    assert last["sizeInBytes"] == sum(store.head(one).size for one in [key, *sidecars])
    before = names_in(store)
    write_checkpoint(store, snapshot)
    assert names_in(store) == before  # who races writes the same
    store.delete([commit_key(0), commit_key(1)])
    assert same(load_snapshot(store), snapshot)


def test_now_and_then_a_v2_checkpoint_has_the_classic_name(store: LocalStore) -> None:
    snapshot = v2_snapshot(store, 100)
    write_checkpoint(store, snapshot)
    assert list_log(store).checkpoint.keys == (checkpoint_key(100),)
    assert pq.read_table(store.local_path(checkpoint_key(100)))["checkpointMetadata"].drop_null().to_pylist() == [
        {"version": 100, "tags": None}
    ]
    assert same(load_snapshot(store), snapshot)


def test_v2_checkpoints_need_their_feature(store: LocalStore) -> None:
    metadata = Metadata("id", SCHEMA, (), {"delta.checkpointPolicy": "v2"})
    put_commit(store, 0, [Protocol(1, 2), metadata])
    put_commit(store, 1, [])  # version 0 would have the classic name in any case
    write_checkpoint(store, load_snapshot(store))
    assert list_log(store).checkpoint.keys == (checkpoint_key(1),)
    assert "checkpointMetadata" not in pq.read_schema(store.local_path(checkpoint_key(1))).names


# --- kinds that others write


def rows_of(store: LocalStore) -> pa.Table:
    return pq.read_table(store.local_path(checkpoint_key(0)))


def put_parquet(store: LocalStore, key: str, table: pa.Table) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    store.put(key, sink.getvalue().to_pybytes())


@pytest.mark.parametrize("cuts", [(3,), (1, 5), (2, 2)])
def test_multi_part(store: LocalStore, snapshot: Snapshot, cuts: tuple[int, ...]) -> None:
    write_checkpoint(store, snapshot)
    table = rows_of(store)
    store.delete([checkpoint_key(0)])
    bounds = [0, *cuts, table.num_rows]
    for part, (start, end) in enumerate(pairwise(bounds), 1):
        name = f"_delta_log/{0:020d}.checkpoint.{part:010d}.{len(bounds) - 1:010d}.parquet"
        put_parquet(store, name, table.slice(start, end - start))
    assert not list_log(store).commits
    assert same(load_snapshot(store), snapshot)


def file_actions(table: pa.Table) -> pa.Table:
    return table.filter(pc.or_(table["add"].is_valid(), table["remove"].is_valid()))


@pytest.mark.parametrize("form", ["json", "parquet", "classic"])
@pytest.mark.parametrize("sidecars", [False, True])
def test_v2(store: LocalStore, snapshot: Snapshot, form: str, sidecars: bool) -> None:
    write_checkpoint(store, snapshot)
    table = rows_of(store)
    store.delete([checkpoint_key(0), "_delta_log/_last_checkpoint"])
    names = ["one.parquet", "two.parquet"] if sidecars else []
    for position, name in enumerate(names):
        put_parquet(
            store, f"_delta_log/_sidecars/{name}", file_actions(table).slice(position * 2, 2).select(["add", "remove"])
        )
    few = [action for action in STATE if not isinstance(action, Add | Remove)]
    unique = f"_delta_log/{0:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11"
    if form == "json":
        lines = [b'{"checkpointMetadata":{"version":0}}', *map(encode_action, few if sidecars else STATE)]
        lines += [orjson.dumps({"sidecar": {"path": name, "sizeInBytes": 1, "modificationTime": 1}}) for name in names]
        store.put(unique + ".json", b"\n".join(lines))
    else:
        kept = table.filter(pc.invert(pc.or_(table["add"].is_valid(), table["remove"].is_valid())))
        body = (kept if sidecars else table).to_pylist()
        body += [{"sidecar": {"path": name, "sizeInBytes": 1, "modificationTime": 1}} for name in names]
        body.append({"checkpointMetadata": {"version": 0}})
        extra = [
            (
                "sidecar",
                pa.struct([("path", pa.string()), ("sizeInBytes", pa.int64()), ("modificationTime", pa.int64())]),
            ),
            ("checkpointMetadata", pa.struct([("version", pa.int64())])),
        ]
        schema = pa.schema([*table.schema, *[pa.field(*field) for field in extra]])
        key = checkpoint_key(0) if form == "classic" else unique + ".parquet"
        put_parquet(store, key, pa.Table.from_pylist(body, schema=schema))
    assert not list_log(store).commits
    assert same(load_snapshot(store), snapshot)


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_a_v2_checkpoint_of_another_version_than_its_name_is_passed_over(
    store: LocalStore, snapshot: Snapshot, form: str
) -> None:
    name = f"_delta_log/{0:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.{form}"
    if form == "json":
        spec = b'{"checkpointMetadata":{"version":3}}'
        store.put(name, b"\n".join([spec, *map(encode_action, STATE)]))
    else:
        write_checkpoint(store, snapshot)
        rows = rows_of(store)
        store.delete([checkpoint_key(0), "_delta_log/_last_checkpoint"])
        version = pa.array([{"version": 3}] + [None] * (rows.num_rows - 1), pa.struct([("version", pa.int64())]))
        put_parquet(store, name, rows.append_column("checkpointMetadata", version))
    assert same(load_snapshot(store), snapshot)  # of the log, which is whole
    store.delete([commit_key(0)])
    reason = f"{name}: its checkpointMetadata is of version 3, its name of 0. Nothing was read."
    for read in (lambda: load_snapshot(store), lambda: read_head(store, name)):
        with pytest.raises(LogCorrupt, match=re.escape(reason)):
            read()


def test_a_missing_sidecar_is_named(store: LocalStore) -> None:
    lines = [*map(encode_action, [PROTOCOL, METADATA]), b'{"sidecar":{"path":"gone.parquet","sizeInBytes":1}}']
    store.put(f"_delta_log/{0:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json", b"\n".join(lines))
    with pytest.raises(LogCorrupt, match=r"_sidecars/gone\.parquet"):
        load_snapshot(store)


def test_members_may_be_missing_reordered_or_unknown(store: LocalStore) -> None:
    table = pa.table(
        {
            "unknown": [1, 2, 3],
            "add": pa.array(
                [None, None, {"size": 1, "stats_parsed": {"numRecords": 1}, "path": "a", "partitionValues": [], "x": 1,
                              "dataChange": True, "modificationTime": 2}],
                pa.struct([("size", pa.int32()), ("stats_parsed", pa.struct([("numRecords", pa.int64())])),
                           ("path", pa.large_string()), ("partitionValues", pa.map_(pa.string(), pa.string())),
                           ("x", pa.int8()), ("dataChange", pa.bool_()), ("modificationTime", pa.int64())]),
            ),
            "protocol": [{"minWriterVersion": 2, "minReaderVersion": 1}, None, None],
            "metaData": pa.array(
                [None, {"schemaString": SCHEMA, "id": "i", "partitionColumns": [], "format": {"provider": "parquet"}},
                 None]
            ),
        }
    )  # fmt: skip
    put_parquet(store, checkpoint_key(3), table)
    snapshot = load_snapshot(store)
    assert snapshot.adds() == [Add("a", {}, 1, 2, True, '{"numRecords":1}')]
    assert snapshot.protocol == Protocol(1, 2)
    assert snapshot.metadata == Metadata("i", SCHEMA)


# --- bad ones


def bad_checkpoint(store: LocalStore, change: Any) -> None:
    table = rows_of(store)
    put_parquet(store, checkpoint_key(0), change(table))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda table: table.drop_columns("protocol"), "one protocol"),
        (lambda table: table.slice(1), "one metaData"),
        (lambda table: pa.concat_tables([table, table.slice(1, 1)]), "one protocol"),
        (lambda table: pa.concat_tables([table, table.slice(table.num_rows - 1)]), "occurs twice"),
        (lambda table: pa.concat_tables([table, table.slice(4, 1)]), "occurs twice"),
        (
            lambda table: table.set_column(5, "add", pa.array([{"path": "x", "size": "much"}] * table.num_rows)),
            "cannot be read",
        ),
        (
            lambda table: table.set_column(5, "add", pa.array([{"path": "x", "size": 1}] * table.num_rows)),
            "has no partitionValues",
        ),
        (
            lambda table: table.set_column(4, "remove", pa.array([{"dataChange": True}] * table.num_rows)),
            "remove action has no path",
        ),
    ],
    ids=[
        "no protocol",
        "no metadata",
        "two protocols",
        "one add twice",
        "one add twice, apart",
        "another type",
        "no member",
        "no path",
    ],
)
def test_a_checkpoint_that_is_wrong_is_refused_by_reason(
    store: LocalStore, snapshot: Snapshot, change: Any, reason: str
) -> None:
    write_checkpoint(store, snapshot)
    bad_checkpoint(store, change)
    store.delete([commit_key(0)])  # else the log is replayed instead
    with pytest.raises(LogCorrupt, match=r"0000\.checkpoint\.parquet.*" + reason):
        load_snapshot(store)


@pytest.mark.parametrize("data", [b"", b"PAR1", b"not parquet at all", None])
def test_a_torn_checkpoint_is_refused_by_name(store: LocalStore, snapshot: Snapshot, data: bytes | None) -> None:
    write_checkpoint(store, snapshot)
    whole = store.get(checkpoint_key(0))
    store.put(checkpoint_key(0), whole[: len(whole) // 2] + whole[-100:] if data is None else data)
    store.delete([commit_key(0)])  # else the log is replayed instead
    with pytest.raises(LogCorrupt, match=r"0000\.checkpoint\.parquet"):
        load_snapshot(store)


def test_a_negative_size_is_refused(store: LocalStore, snapshot: Snapshot) -> None:
    write_checkpoint(store, snapshot)
    table = rows_of(store)
    rows = table.to_pylist()
    rows[-1]["add"]["size"] = -1
    put_parquet(store, checkpoint_key(0), pa.Table.from_pylist(rows, schema=table.schema))
    with pytest.raises(LogCorrupt, match="negative size"):
        read_checkpoint(store, list_log(store).checkpoint)


def test_a_json_checkpoint_names_its_line(store: LocalStore) -> None:
    store.put(
        f"_delta_log/{0:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json", b'{"checkpointMetadata":{}}\n{"a'
    )
    with pytest.raises(LogCorrupt, match=r"c43a11\.json, line 2"):
        load_snapshot(store)
