"""Writes to Delta tables among others, and writes that fail: all of it or nothing, and no file left behind."""

import pyarrow as pa
import pytest

from dagster_versioned.delta.log.snapshot import load_snapshot
from dagster_versioned.delta_tables.dml import WhenMatched, WhenNotMatched
from dagster_versioned.delta_tables.write import delete_from, merge_delta, optimize_delta, update_delta, write_delta
from dagster_versioned.errors import CommitConflict, InvalidInput, StoreUnavailable
from dagster_versioned.storage import LocalStore
from dagster_versioned.storage.wrappers import Fault, FaultStore
from support.delta_writes import files_of, meanwhile, rows_of

VECTORS = {"delta.enableDeletionVectors": "true"}
ON = "source.id = target.id"


@pytest.fixture(params=[{}, VECTORS], ids=["rewritten", "vectors"])
def uri(table, request):
    rows = pa.table({"id": [1, 2, 3, 4], "p": ["a", "a", "b", "b"]})
    write_delta(str(table), rows, partition_by=["p"], properties=request.param)
    return str(table)


def append(uri, *ids, p="a"):
    return lambda: write_delta(uri, pa.table({"id": list(ids), "p": [p] * len(ids)}))


PASSING = {
    "append, append": (lambda uri: append(uri, 9), lambda s: write_delta(s, pa.table({"id": [8]}))),
    "delete in another partition": (
        lambda uri: lambda: delete_from(uri, "p = 'b'"),
        lambda s: delete_from(s, "p = 'a' and id = 1"),
    ),
    "append to another partition": (
        lambda uri: append(uri, 9, p="b"),
        lambda s: update_delta(s, {"id": "id + 100"}, "p = 'a'"),
    ),
    "overwrite of another partition": (
        lambda uri: append(uri, 9, p="b"),
        lambda s: write_delta(s, pa.table({"id": [8], "p": ["a"]}), mode="overwrite", where="p = 'a'"),
    ),
    "append during compaction": (lambda uri: append(uri, 9), lambda s: optimize_delta(s)),
}


@pytest.mark.parametrize("case", PASSING.values(), ids=PASSING.keys())
def test_what_does_not_disturb_is_passed_over(uri, table, case):
    append(uri, 5)()  # so that there is something to compact
    other, command = case
    done = command(meanwhile(table, other(uri)))
    assert done.version == 3
    store = LocalStore(table)
    assert files_of(table) >= {add.key for add in load_snapshot(store).adds()}
    ids = [row["id"] for row in rows_of(table)]
    assert len(set(ids)) == len(ids)


DISTURBING = {
    "append to what was read": (
        lambda uri: append(uri, 9),
        lambda s: delete_from(s, "p = 'a' and id < 100"),
    ),
    "delete of what was read": (
        lambda uri: lambda: delete_from(uri, "id = 2"),
        lambda s: update_delta(s, {"id": "7"}, "id = 1"),
    ),
    "two merges": (
        lambda uri: lambda: merge_delta(uri, pa.table({"id": [1, 9]}), ON, [WhenMatched("all"), WhenNotMatched("all")]),
        lambda s: merge_delta(s, pa.table({"id": [1, 9]}), ON, [WhenMatched("all"), WhenNotMatched("all")]),
    ),
    "delete during compaction": (
        lambda uri: lambda: delete_from(uri, "id = 2"),
        lambda s: optimize_delta(s, order_by=["id"]),
    ),
    "another schema": (
        lambda uri: lambda: write_delta(uri, pa.table({"new": [1]}), schema_mode="merge"),
        lambda s: write_delta(s, pa.table({"id": [8]})),
    ),
}


@pytest.mark.parametrize("case", DISTURBING.values(), ids=DISTURBING.keys())
def test_what_disturbs_is_a_conflict_and_leaves_no_file(uri, table, case):
    other, command = case
    after = []

    def disturbed():
        mine = files_of(table)
        other(uri)()
        after.append((mine, files_of(table)))

    with pytest.raises(CommitConflict, match="Nothing of it was committed"):
        command(meanwhile(table, disturbed))
    store = LocalStore(table)
    snapshot = load_snapshot(store)
    assert snapshot.version == 1
    live = {add.key for add in snapshot.adds()}
    # What the command wrote before the other came is gone again; tombstones' files are the table's still.
    gone = {name for name in files_of(table) if name.endswith(".parquet")} - live
    assert gone <= set(snapshot.tombstones["key"].to_pylist())
    vectors = {name for name in files_of(table) if name.endswith(".bin")}
    assert len(vectors) <= 1


@pytest.mark.parametrize("failing", ["part-", "deletion_vector", "_change_data"])
def test_a_write_that_the_store_fails_leaves_no_file(tmp_path, failing):
    place = tmp_path / "table"
    properties = {**VECTORS, "delta.enableChangeDataFeed": "true"}
    write_delta(str(place), pa.table({"id": list(range(10))}), properties=properties)
    before = files_of(place)
    calls = []

    def decide(call):
        calls.append(call.key)
        return Fault.BEFORE if call.verb == "put" and failing in call.key else None

    store = FaultStore(LocalStore(place), decide)
    with pytest.raises(StoreUnavailable):
        merge_delta(store, pa.table({"id": [1, 99]}), ON, [WhenMatched({"id": "1000"}), WhenNotMatched("all")])
    assert any(failing in key for key in calls)
    assert files_of(place) == before
    assert load_snapshot(LocalStore(place)).version == 0


def test_a_commit_whose_fate_is_unknown_keeps_its_files(tmp_path):
    place = tmp_path / "table"
    write_delta(str(place), pa.table({"id": [1]}))

    def decide(call):
        return Fault.LOST_ANSWER if call.verb == "put_if_absent" else None

    with pytest.raises(StoreUnavailable):
        write_delta(FaultStore(LocalStore(place), decide), pa.table({"id": [2]}))
    assert [row["id"] for row in rows_of(place)] == [1, 2]


def test_a_table_is_created_once(tmp_path):
    place = tmp_path / "table"

    def other():
        write_delta(str(place), pa.table({"id": [1]}))

    with pytest.raises(CommitConflict, match="created by someone else"):
        write_delta(meanwhile(place, other), pa.table({"id": [2]}))
    assert [row["id"] for row in rows_of(place)] == [1]
    assert len(files_of(place)) == 1


def test_a_stream_that_breaks_off_leaves_nothing(tmp_path):
    def batches():
        yield pa.RecordBatch.from_pydict({"id": [1]})
        raise RuntimeError("the source is gone")

    reader = pa.RecordBatchReader.from_batches(pa.schema([("id", pa.int64())]), batches())
    with pytest.raises((RuntimeError, pa.ArrowException)):
        write_delta(str(tmp_path / "table"), reader)
    assert not files_of(tmp_path)


def test_rows_that_break_a_rule_leave_nothing_of_the_rows_before_them(tmp_path, monkeypatch):
    monkeypatch.setattr("dagster_versioned.delta_tables.arrow.row_engine.FILE_BYTES", 1)
    place = tmp_path / "table"
    write_delta(str(place), pa.table({"id": [0]}), properties={"delta.constraints.small": "id < 5"})
    before = files_of(place)
    reader = pa.table({"id": list(range(10))}).to_reader(max_chunksize=1)
    with pytest.raises(InvalidInput, match="small"):
        write_delta(str(place), reader)
    assert files_of(place) == before
    update_delta(str(place), {"id": "1"})
    optimize_delta(str(place))
    assert rows_of(place) == [{"id": 1}]
