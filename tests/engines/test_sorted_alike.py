"""Sorted rows are the same version whichever engine sorted them."""

import random

import pyarrow as pa
import pytest

from dagster_versioned.delta.schema.types import schema_to_arrow
from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.engines.parts import WriteOptions
from dagster_versioned.engines.spark import SparkEngine
from dagster_versioned.engines.spark.types import stored_schema
from support.spark import spark_frame, staging_in

NAN = float("nan")
FLOATS = [0.0, -0.0, NAN, None, float("-inf"), 1.5, -1.5]

COLUMNS = {
    "lists": pa.array([[i % 5, i % 3] if i % 4 else None for i in range(60)], pa.list_(pa.int64())),
    "structs": pa.array(
        [{"a": i % 3 or None, "b": ["x", "", None][i % 3]} if i % 5 else None for i in range(60)],
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
    ),
    "maps": pa.array(
        [[("a", i % 3), ("b", 2)] if i % 2 else [("b", 2), ("a", i % 3)] for i in range(60)],
        pa.map_(pa.string(), pa.int64()),
    ),
    "nested floats": pa.array([[[NAN, None, 1.5][i % 3]] for i in range(60)], pa.list_(pa.float64())),
    "doubles": pa.array([FLOATS[i % 7] for i in range(60)], pa.float64()),
    "floats": pa.array([FLOATS[i % 7] for i in range(60)], pa.float32()),
    "strings": pa.array([["", "é", "𐀀", "￿", None, "a\0", "a"][i % 7] for i in range(60)], pa.string()),
    "binaries": pa.array([[b"", b"\xff", b"\x7f", None, b"\xff\0"][i % 5] for i in range(60)], pa.binary()),
    "booleans": pa.array([[True, None, False][i % 3] for i in range(60)], pa.bool_()),
}


def write_both(spark, table, folder, options):
    """The rows as each engine writes them, having met them in an order of its own."""
    arrow = ArrowEngine().write(shuffled(table, 1), staging_in(folder / "arrow"), options)
    frame = spark_frame(spark, shuffled(table, 2)).repartition(3)
    assert schema_to_arrow(stored_schema(frame.schema)) == schema_to_arrow(arrow.contents.schema)
    return arrow, SparkEngine().write(frame, staging_in(folder / "spark"), options)


def shuffled(table, seed):
    indices = list(range(table.num_rows))
    random.Random(seed).shuffle(indices)
    return table.take(indices)


@pytest.mark.parametrize(
    "names",
    [
        list(COLUMNS),
        *(
            pytest.param(names, marks=pytest.mark.slow)
            for names in [*([name] for name in COLUMNS), ["doubles", "strings"], ["lists", "floats"]]
        ),
    ],
)
def test_ties_are_decided_alike(spark, tmp_path, names):
    columns = {name: COLUMNS[name] for name in names}
    table = pa.table({**columns, "k": pa.array([i % 2 or None for i in range(60)], pa.int64())})
    arrow, ours = write_both(spark, table, tmp_path, WriteOptions(sort_rows=("k",)))
    assert ours.contents == arrow.contents
    assert [part.sha256 for part in ours.parts] == [part.sha256 for part in arrow.parts]


@pytest.mark.every(3)
@pytest.mark.parametrize("key", ["doubles", "floats", "strings", "binaries", "booleans"])
def test_keys_are_ordered_alike(spark, tmp_path, key):
    table = pa.table({"l": COLUMNS["lists"], key: COLUMNS[key], "n": pa.array(range(60), pa.int64())})
    arrow, ours = write_both(spark, table, tmp_path, WriteOptions(sort_rows=(key,)))
    assert [part.sha256 for part in ours.parts] == [part.sha256 for part in arrow.parts]


def test_columns_with_names_like_those_made_for_the_sort_stay(spark, tmp_path):
    table = pa.table({"_lane0": COLUMNS["lists"], "_lane1": COLUMNS["booleans"], "_c0": COLUMNS["doubles"]})
    arrow, ours = write_both(spark, table, tmp_path, WriteOptions(sort_rows=("_lane1",)))
    assert ours.contents == arrow.contents
    assert [part.sha256 for part in ours.parts] == [part.sha256 for part in arrow.parts]
