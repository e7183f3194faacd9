"""A table whose log the cluster replays has the rows that it has when one process replays it."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from conformance.delta_spark import canonical

from dagster_versioned.delta.table import Table
from dagster_versioned.delta_tables.read import read_delta as read_here
from dagster_versioned.delta_tables.spark import read_delta
from dagster_versioned.delta_tables.write import write_delta

pytestmark = [pytest.mark.spark, pytest.mark.slow]

REFERENCE = Path(__file__).parents[1] / "conformance" / "delta_spark" / "tables"


def planned(frame: Any) -> bool:
    """Whether tasks look for the files that they read."""
    return "MapInArrow" in frame._jdf.queryExecution().toString()


@pytest.mark.parametrize(
    ("name", "row_ids"),
    [
        ("types", False),
        ("partition_types", False),
        ("partition_escaping", False),
        ("mapping_id", False),
        ("mapping_nested", False),
        ("deletion_vectors_mapped", False),
        ("checkpoint_v2_json", False),
        ("checkpoint_multi_part", False),
        ("row_tracking_deletion_vectors", True),
        ("type_widening", False),
        ("everything", False),
    ],
)
def test_tables_of_the_reference_are_read_alike(spark, tmp_path, monkeypatch, name, row_ids):
    folder = str(shutil.copytree(REFERENCE / name, tmp_path / name))
    Table(folder).checkpoint()
    monkeypatch.setenv("DAGSTER_VERSIONED_LARGE_LOG", "0")
    frame = read_delta(spark, folder, row_ids=row_ids)
    assert planned(frame)
    assert canonical.lines_of_frame(frame) == canonical.lines(read_here(folder, row_ids=row_ids))


def test_variants_are_left_to_one_process(spark, tmp_path, monkeypatch):
    folder = str(shutil.copytree(REFERENCE / "variant", tmp_path / "variant"))
    Table(folder).checkpoint()
    monkeypatch.setenv("DAGSTER_VERSIONED_LARGE_LOG", "0")
    frame = read_delta(spark, folder)
    assert not planned(frame)
    assert frame.count() == read_here(folder).num_rows


@pytest.fixture
def tens(tmp_path: Path) -> str:
    """Six files of ten rows, the last two of them after a checkpoint."""
    folder = str(tmp_path / "tens")
    for start in range(0, 60, 10):
        rows = pa.table({"n": range(start, start + 10), "p": [start // 10 % 2] * 10, "s": ["x"] * 10})
        write_delta(folder, rows, partition_by=["p"])
        if start == 30:
            Table(folder).checkpoint()
    return folder


def test_files_are_passed_over_by_tasks_and_few_are_read_as_those_of_any_table(spark, tens, monkeypatch):
    monkeypatch.setenv("DAGSTER_VERSIONED_LARGE_LOG", "2")
    for path in Table(tens).files()["path"].to_pylist():
        if "p=0" in path:
            (Path(tens) / path).unlink()
    odd = read_delta(spark, tens, columns=["n"], filter="p = 1")
    assert planned(odd)
    assert odd.columns == ["n"]
    assert sorted(row.n for row in odd.collect()) == [n for n in range(60) if n // 10 % 2]
    few = read_delta(spark, tens, filter="p = 1 and n < 20")
    assert not planned(few)
    assert sorted(row.n for row in few.collect()) == list(range(10, 20))
    assert read_delta(spark, tens, filter="n > 100").collect() == []
    with pytest.raises(Exception, match="is missing from"):
        read_delta(spark, tens).collect()


def test_a_version_and_a_time_are_read_from_a_plan(spark, tens, monkeypatch):
    before = Table(tens).history()[1]
    assert before.version == 4
    monkeypatch.setenv("DAGSTER_VERSIONED_LARGE_LOG", "3")
    for frame in (read_delta(spark, tens, 4), read_delta(spark, tens, timestamp=before.timestamp)):
        assert planned(frame)
        assert sorted(row.n for row in frame.collect()) == list(range(50))


@pytest.mark.parametrize("damage", ["twice", "cut"])
def test_a_checkpoint_that_is_wrong_is_passed_over_as_ever(spark, tens, monkeypatch, damage):
    (checkpoint,) = Path(tens, "_delta_log").glob("*.checkpoint.parquet")
    table = pq.read_table(checkpoint)
    if damage == "twice":
        pq.write_table(pa.concat_tables([table, table.filter(pc.is_valid(table["add"])).slice(0, 1)]), checkpoint)
    else:
        checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    monkeypatch.setenv("DAGSTER_VERSIONED_LARGE_LOG", "0")
    frame = read_delta(spark, tens)
    assert not planned(frame)
    assert sorted(row.n for row in frame.collect()) == list(range(60))
