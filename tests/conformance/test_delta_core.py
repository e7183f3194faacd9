"""Tables made by others, and tables of ours read by others: the core of the protocol.

A table that needs more than the core is refused by the name of the feature; none is answered wrongly.
"""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_versioned.delta.actions import Action, Add, DomainMetadata, Metadata, Txn
from dagster_versioned.delta.commit.checkpoint import write_checkpoint
from dagster_versioned.delta.commit.protocol_upgrade import protocol_with
from dagster_versioned.delta.commit.transaction import Committed, Transaction, now_ms
from dagster_versioned.delta.features import OWN_PROTOCOL
from dagster_versioned.delta.files.partition_values import encode, folder
from dagster_versioned.delta.files.statistics import from_parquet_metadata, to_json
from dagster_versioned.delta.log.snapshot import Snapshot, load_snapshot
from dagster_versioned.delta.paths import confined_key, encode_path
from dagster_versioned.delta.schema.types import StructType, parse_schema, schema_from_arrow
from dagster_versioned.delta_tables.read import read_delta
from dagster_versioned.errors import LogCorrupt, TableNotFound, UnsupportedFeature, VersionedError
from dagster_versioned.storage.local import LocalStore
from support.delta_tables import ABSENT, EXPECTED, ROOT

deltalake = pytest.importorskip("deltalake")
pl = pytest.importorskip("polars")

pytestmark = pytest.mark.conformance

if not EXPECTED:
    pytest.skip(ABSENT, allow_module_level=True)


# --- tables of others, read by us


def listed_features(log: Path) -> set[str]:
    """Every feature and version that any protocol action of the log's commits names, read without our code."""
    found: set[str] = set()
    for commit in log.glob("*.json"):
        for line in commit.read_bytes().splitlines():
            protocol = json.loads(line).get("protocol") if b'"protocol"' in line else None
            if protocol:
                found |= {*protocol.get("readerFeatures", ()), *protocol.get("writerFeatures", ())}
                found.add(f"reader version {protocol['minReaderVersion']}")
                found |= {"columnMapping"} if protocol["minReaderVersion"] == 2 else set()
    return found


def without_metadata(schema: dict[str, Any]) -> dict[str, Any]:
    # Spark leaves out what it keeps to itself, such as generation expressions.
    return parse_schema(schema).all_nullable().to_json()


def loaded(root: Path) -> Snapshot | VersionedError:
    try:
        return load_snapshot(LocalStore(root))
    except (UnsupportedFeature, LogCorrupt, TableNotFound) as error:
        return error


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_table_made_by_others_is_read_alike_or_refused_by_name(name: str) -> None:
    expected, root = EXPECTED[name], ROOT / name
    snapshot = loaded(root)
    if isinstance(snapshot, UnsupportedFeature):
        assert any(feature in str(snapshot) for feature in listed_features(root / "_delta_log"))
        return
    if not isinstance(snapshot, Snapshot):
        assert "error" in expected
        return
    peer = deltalake.DeltaTable(str(root))
    assert snapshot.version == peer.version()
    assert snapshot.schema.to_json() == json.loads(peer.schema().to_json())
    if expected.get("schema"):
        assert without_metadata(snapshot.schema.to_json()) == without_metadata(expected["schema"])
    if expected["rows"] == 0 and snapshot.num_files == 0:
        return  # `deltalake` does not see that `/x` and `file:///x` are one file.
    assert files_below(snapshot, root) == sorted(peer.file_uris())


def files_below(snapshot: Snapshot, root: Path) -> list[str]:
    return sorted(str(root / key) for key in snapshot.files["key"].to_pylist())


def test_enough_of_them_are_read() -> None:
    """A guard for the test above, which would also pass if everything were refused."""
    assert sum(isinstance(loaded(ROOT / name), Snapshot) for name in EXPECTED) >= 116


@pytest.mark.parametrize(
    "name",
    sorted(name for name, expected in EXPECTED.items() if "error" not in expected and expected["rows"]),
)
def test_the_files_hold_the_rows_that_spark_counted(name: str) -> None:
    snapshot = loaded(ROOT / name)
    if isinstance(snapshot, UnsupportedFeature):
        return
    assert isinstance(snapshot, Snapshot)
    live = 0
    for add in snapshot.adds():
        live += pq.read_metadata(ROOT / name / confined_key(add.path)).num_rows
        live -= add.deletion_vector.cardinality if add.deletion_vector else 0
    assert live == EXPECTED[name]["rows"]


@pytest.mark.parametrize("name", ["delta-rs/test/tests/data/simple_table", "golden/snapshot-data2-deleted/delta"])
def test_every_version_of_a_table_made_by_others(name: str) -> None:
    root = ROOT / name
    for version in range(deltalake.DeltaTable(str(root)).version() + 1):
        snapshot = load_snapshot(LocalStore(root), version)
        assert files_below(snapshot, root) == sorted(deltalake.DeltaTable(str(root), version=version).file_uris())


@pytest.mark.parametrize(
    "name",
    [
        "dat/column_mapping/delta",
        "dat/deletion_vectors/delta",
        "delta-rs/test/tests/data/cdf-table-with-cdc-and-dvs",
        "delta-rs/test/tests/data/table_with_deletion_logs",
        "golden/dv-with-columnmapping/delta",
        "golden/log-replay-dv-key-cases/delta",
        "spark/partitioned-table-with-dv-large",
        "spark/table-with-dv-large",
    ],
)
def test_every_version_has_the_rows_that_the_peer_gives(name: str) -> None:
    root = str(ROOT / name)
    for version in range(deltalake.DeltaTable(root).version() + 1):
        ours = read_delta(root, version)
        table = deltalake.DeltaTable(root, version=version)
        theirs = pa.table(deltalake.QueryBuilder().register("t", table).execute("select * from t").read_all())
        assert rows(ours) == rows(theirs.select(ours.column_names).cast(ours.schema))


# --- tables of ours, read by others


def put_part(store: LocalStore, table: pa.Table, name: str, values: dict[str, str | None], schema: StructType) -> Add:
    key = "/".join(filter(None, [folder(values, list(values)), name]))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, store_schema=False)
    data = sink.getvalue()
    store.put(key, data.to_pybytes())
    stats = from_parquet_metadata(pq.read_metadata(pa.BufferReader(data)), schema.drop(list(values)), ())
    return Add(encode_path(key), values, data.size, now_ms(), True, to_json(stats), {"dagster_versioned/ordinal": "0"})


def commit(store: LocalStore, read: Snapshot | None, actions: list[Action]) -> Snapshot:
    outcome = Transaction(read, actions, "WRITE").attempt(store)
    assert isinstance(outcome, Committed)
    return load_snapshot(store) if read is None else read.advance([outcome.commit])


def data(start: int, partition: str | None) -> pa.Table:
    return pa.table(
        {
            "p": pa.array([partition] * 3, pa.string()),
            "n": pa.array([start, start + 1, None], pa.int64()),
            "t": pa.array([start, None, 2**50 + 7], pa.timestamp("us", "UTC")),
            "z": pa.array([start, None, 2**50 + 7], pa.timestamp("us")),
            "s": pa.array(["ü" * 40, None, "\U0010ffff" * 40]),
            "d": pa.array([None, start, 5]).cast(pa.decimal128(38, 4)),
            "l": pa.array([[{"a": start}], None, []], pa.list_(pa.struct([("a", pa.int32())]))),
        }
    )


def rows(table: pa.Table) -> list[str]:
    names = sorted(table.column_names)
    return sorted(repr(sorted(row.items())) for row in table.select(names).to_pylist())


def test_our_table_is_read_at_every_version_before_and_after_a_checkpoint(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    schema = schema_from_arrow(data(0, "x").schema)
    properties = {"delta.enableInCommitTimestamps": "true", "delta.setTransactionRetentionDuration": "interval 30 days"}
    actions: list[Action] = [
        protocol_with(OWN_PROTOCOL, {}, schema),
        Metadata("0" * 32, schema.json(), ("p",), properties),
    ]
    snapshot: Snapshot | None = None
    expected: list[pa.Table] = []
    live: list[tuple[Add, pa.Table]] = []
    for version, partition in enumerate(["a/b=c %41", None, "ü", "a/b=c %41", "."]):
        table = data(version * 10, partition)
        add = put_part(store, table.drop_columns("p"), f"{version}.parquet", {"p": encode(partition, "string")}, schema)
        actions += [add, Txn("app", version, now_ms()), DomainMetadata("dagster_versioned.version", str(version))]
        if version == 3:
            old, _ = live.pop(0)
            actions.append(old.removed(now_ms()))
        snapshot = commit(store, snapshot, actions)
        live.append((add, table))
        expected.append(pa.concat_tables([held for _, held in live]))
        actions = []

    def check() -> None:
        for version, table in enumerate(expected):
            peer = deltalake.DeltaTable(str(tmp_path), version=version)
            assert rows(peer.to_pyarrow_table()) == rows(table)
            assert pa.table(peer.get_add_actions())["num_records"].to_pylist() == [3] * (table.num_rows // 3)
            assert load_snapshot(store, version).num_files == table.num_rows // 3
        head = pl.read_delta(str(tmp_path)).to_arrow().cast(expected[-1].schema)
        assert rows(head) == rows(expected[-1])
        skipped = pl.scan_delta(str(tmp_path)).filter(pl.col("n") >= 30).select("n").collect()
        assert sorted(skipped["n"].to_list()) == [30, 31, 40, 41]
        assert deltalake.DeltaTable(str(tmp_path)).transaction_version("app") == 4

    check()
    for version in (1, 3, 4):
        write_checkpoint(store, load_snapshot(store, version))
        check()


def test_the_peer_refuses_to_write_to_our_table(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    schema = schema_from_arrow(pa.schema([("x", pa.int64())]))
    commit(store, None, [protocol_with(OWN_PROTOCOL, {}, schema), Metadata("0" * 32, schema.json(), (), {})])
    with pytest.raises(Exception, match="omain"):
        deltalake.write_deltalake(str(tmp_path), pa.table({"x": [1]}), mode="append")
    assert load_snapshot(store).version == 0


def test_a_checkpoint_by_the_peer_is_read_by_us(tmp_path: Path) -> None:
    for number in range(4):
        deltalake.write_deltalake(
            str(tmp_path), pa.table({"x": [number]}), mode="overwrite" if number == 2 else "append"
        )
    plain = load_snapshot(LocalStore(tmp_path))
    deltalake.DeltaTable(str(tmp_path)).create_checkpoint()
    again = load_snapshot(LocalStore(tmp_path))
    assert again.version == plain.version == 3
    assert files_below(again, tmp_path) == files_below(plain, tmp_path)
    assert again.metadata == plain.metadata
