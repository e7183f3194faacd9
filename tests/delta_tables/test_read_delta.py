"""Any Delta table, read as Arrow: equal to what its writer says, or refused; never wrong."""

import datetime as dt
import json
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from dagster_versioned.delta.log.snapshot import load_snapshot
from dagster_versioned.delta.schema.types import StructField, StructType
from dagster_versioned.delta_tables.read import delta_scan, read_delta
from dagster_versioned.engines.part_order import ORDINAL_TAG, PARTITION_TAG
from dagster_versioned.errors import IntegrityError, InvalidInput, TableNotFound, VersionNotFound
from dagster_versioned.storage import LocalStore
from support.delta_logs import put_raw_log


def rows(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.select(sorted(table.column_names)).to_pylist()))


def test_every_version_is_read_by_number(tmp_path):
    for i in range(3):
        write_deltalake(tmp_path, pa.table({"a": [i]}), mode="append")
    write_deltalake(tmp_path, pa.table({"a": [9]}), mode="overwrite")
    read = [sorted(read_delta(str(tmp_path), version)["a"].to_pylist()) for version in range(4)]
    assert read == [[0], [0, 1], [0, 1, 2], [9]]
    assert read_delta(str(tmp_path))["a"].to_pylist() == [9]
    with pytest.raises(VersionNotFound):
        read_delta(str(tmp_path), 4)


def test_partition_values_of_every_type_are_columns_in_their_place(tmp_path):
    moment = dt.datetime(2013, 1, 1, 12, 30, 0, 5)
    table = pa.table(
        {
            "s": ["x y/z=ä", None],
            "v": [1, 2],
            "i": pa.array([-5, None], pa.int32()),
            "d": [dt.date(2013, 1, 1), None],
            "t": pa.array([moment, None], pa.timestamp("us", "UTC")),
            "n": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
            "b": [True, None],
            "f": [0.5, None],
        }
    )
    names = [name for name in table.column_names if name != "v"]
    write_deltalake(tmp_path, table, partition_by=names)
    result = read_delta(str(tmp_path))
    assert result.schema == table.schema
    assert rows(result) == rows(table)
    assert read_delta(str(tmp_path), columns=["d", "v"]).schema == table.select(["d", "v"]).schema


def test_columns_that_were_added_later_are_null_in_older_files(tmp_path):
    write_deltalake(tmp_path, pa.table({"a": [1]}))
    write_deltalake(tmp_path, pa.table({"a": [2], "b": ["x"]}), mode="append", schema_mode="merge")
    assert rows(read_delta(str(tmp_path))) == rows(pa.table({"a": [1, 2], "b": [None, "x"]}))
    with pytest.raises(InvalidInput, match="'c'"):
        read_delta(str(tmp_path), columns=["c"])


def test_a_column_of_changes_in_a_data_file_is_passed_over(tmp_path):
    write_deltalake(tmp_path, pa.table({"a": [1, 2]}))
    (part,) = tmp_path.glob("*.parquet")
    with_changes = pq.read_table(part).append_column("_change_type", pa.nulls(2, pa.string()))
    pq.write_table(with_changes, part)
    (commit,) = (tmp_path / "_delta_log").glob("*.json")
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            action["add"]["size"] = part.stat().st_size
    commit.write_text("\n".join(map(json.dumps, actions)))
    assert read_delta(str(tmp_path)).to_pydict() == {"a": [1, 2]}


def test_a_lost_file_and_a_missing_table_are_named(tmp_path):
    write_deltalake(tmp_path, pa.table({"a": [1]}))
    (file,) = tmp_path.glob("*.parquet")
    file.unlink()
    with pytest.raises(IntegrityError, match=file.name):
        read_delta(str(tmp_path))
    with pytest.raises(TableNotFound):
        read_delta(str(tmp_path / "nothing"))


def test_files_come_by_partition_and_ordinal_where_they_are_tagged(tmp_path):
    order = [("b", 0), ("a", 10), ("a", 9), (None, 3)]
    for i, _ in enumerate(order):
        pq.write_table(pa.table({"a": [i]}), tmp_path / f"{i}.parquet")
    tags = [{ORDINAL_TAG: str(at)} | ({PARTITION_TAG: partition} if partition else {}) for partition, at in order]
    files = [{"path": f"{i}.parquet", "tags": tags_of} for i, tags_of in enumerate(tags)]
    put_raw_log(tmp_path, StructType([StructField("a", "long")]), *files)
    assert read_delta(str(tmp_path))["a"].to_pylist() == [3, 2, 1, 0]
    scan = delta_scan(LocalStore(tmp_path), load_snapshot(LocalStore(tmp_path)), ["a"])
    assert [file.key for file in scan.files] == ["3.parquet", "2.parquet", "1.parquet", "0.parquet"]
    assert sorted(DeltaTable(tmp_path).to_pyarrow_table()["a"].to_pylist()) == [0, 1, 2, 3]


def test_columns_without_a_type_are_left_out(tmp_path):
    write_deltalake(str(tmp_path), pa.table({"id": [1, 2]}))
    log = tmp_path / "_delta_log" / f"{0:020d}.json"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    (metadata,) = [line["metaData"] for line in lines if "metaData" in line]
    schema = json.loads(metadata["schemaString"])
    schema["fields"].append({"name": "nothing", "type": "void", "nullable": True, "metadata": {}})
    metadata["schemaString"] = json.dumps(schema)
    log.write_text("\n".join(map(json.dumps, lines)))
    assert read_delta(str(tmp_path)).to_pydict() == {"id": [1, 2]}
    assert read_delta(str(tmp_path), filter="id > 1").to_pydict() == {"id": [2]}
