"""What travels between Spark's driver and its tasks arrives as it was; options are read as they are written."""

from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_versioned.delta.actions import Add, Cdc, DeletionVector
from dagster_versioned.delta_tables.spark.task import Report, packed, unpacked
from dagster_versioned.engines.scan import ScanFile
from dagster_versioned.errors import InvalidInput

pytest.importorskip("pyspark.sql.datasource", reason="data sources in Python: from PySpark 4.0 on")
data_source, data_source_tasks = (
    import_module(f"dagster_versioned.delta_tables.spark.{name}") for name in ("data_source", "data_source_tasks")
)

POSITIONS = st.lists(st.integers(0, 2**62), max_size=50).map(lambda found: np.sort(np.array(found, np.int64)))


@given(POSITIONS)
def test_positions_come_back(positions):
    assert unpacked(packed(positions)).tolist() == positions.tolist()


@given(POSITIONS, st.integers(0, 9))
def test_a_report_comes_back(positions, number):
    report = Report(
        [Add("a", {"p": None}, 1, 2, True, "{}")],
        [Cdc("c", {}, 3)],
        {number: 4},
        {number: positions},
        {number + 1: positions},
        {0: (1, "id=1")},
        {"n": -5},
    )
    back = Report.from_bytes(report.to_bytes())
    assert (back.adds, back.cdcs, back.rows, back.broken, back.marks) == (
        report.adds,
        report.cdcs,
        report.rows,
        report.broken,
        report.marks,
    )
    assert back.gone[number].tolist() == back.stay[number + 1].tolist() == positions.tolist()


def test_files_of_a_task_come_back():
    vector = DeletionVector("i", "abc", 3, 1)
    files = [
        ScanFile("a", 5, partition_values={"storage_type": "x"}),
        ScanFile("b", 6, deletion_vector=vector, kept=vector),
    ]
    (task,) = data_source_tasks.partitions_of(files)
    found = [data_source_tasks._file(one) for one in task.value]
    assert found == files


def test_options_are_parsed_or_refused():
    asked = data_source.ReadOptions.of({"path": "/t", "version": "3", "columns": "a, b"})
    assert (asked.version, asked.columns, asked.feed) == (3, ("a", "b"), None)
    feed = data_source.ReadOptions.of(
        {"path": "/t", "readChangeFeed": "true", "startingVersion": "1", "endingTimestamp": "2020-01-01Z"}
    )
    assert feed.feed == (1, "2020-01-01Z")
    for options in ({}, {"path": "/t", "startingVersion": "1"}, {"path": "/t", "version": "one"}):
        with pytest.raises(InvalidInput):
            data_source.ReadOptions.of(options)


def test_options_of_a_stream_are_parsed_or_refused():
    pytest.importorskip("pyspark.sql.streaming.datasource", reason="streams that are limited: from PySpark 4.2 on")
    log_tail = import_module("dagster_versioned.delta_tables.spark.log_tail")
    assert log_tail.StreamOptions.of({"maxBytesPerTrigger": "2MB", "startingVersion": "latest"}) == replace(
        log_tail.StreamOptions(), max_bytes=2 << 20, starting_version="latest"
    )
    for name, value in {"maxFilesPerTrigger": "few", "ignoreDeletes": "yes", "maxBytesPerTrigger": "k"}.items():
        with pytest.raises(InvalidInput, match=name):
            log_tail.StreamOptions.of({name: value})
