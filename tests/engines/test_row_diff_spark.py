"""Spark's row diff says what Arrow's does."""

import math

import pyarrow as pa
import pytest

from dagster_versioned.engines.dispatch import diff_rows
from dagster_versioned.errors import InvalidInput, UnsupportedFrame

pytestmark = pytest.mark.spark

NAN = float("nan")
MAPS = pa.map_(pa.string(), pa.map_(pa.int32(), pa.float64()))
CASES = {
    "plain": (
        pa.schema({"k": pa.int64(), "v": pa.string()}),
        [(1, "a"), (2, None), (3, "c"), (4, "d"), (5, None)],
        [(5, None), (4, "D"), (3, "c"), (2, ""), (6, "f")],
    ),
    "floats": (
        pa.schema({"k": pa.float64(), "v": pa.float32()}),
        [(0.0, NAN), (NAN, 0.0), (1.0, NAN), (math.inf, 1.0)],
        [(-0.0, NAN), (NAN, -0.0), (1.0, None), (-math.inf, 1.0)],
    ),
    "two keys and odd names": (
        pa.schema({"a.b": pa.string(), "a`b": pa.date32(), "before1": pa.int8(), "": pa.int8()}),
        [("x", 1, 1, 1), ("x", 2, 1, 1), ("y", 1, 1, 1)],
        [("x", 1, 1, 1), ("x", 2, 1, 2), ("y", 3, 1, 1)],
    ),
    "lists": (
        pa.schema({"k": pa.int32(), "v": pa.list_(pa.float64())}),
        [(1, [0.0, NAN, None]), (2, [1.0, 2.0]), (3, None), (4, [None])],
        [(1, [-0.0, NAN, None]), (2, [2.0, 1.0]), (3, []), (4, [None])],
    ),
    "structs": (
        pa.schema({"k": pa.int32(), "v": pa.struct({"p.q": pa.int8(), "m": pa.map_(pa.string(), pa.int8())})}),
        [(1, None), (2, {"p.q": 1, "m": [("a", 1), ("b", 2)]}), (3, {"p.q": 1, "m": []}), (4, None)],
        [
            (1, {"p.q": None, "m": None}),
            (2, {"p.q": 1, "m": [("b", 2), ("a", 1)]}),
            (3, {"p.q": 1, "m": None}),
            (4, None),
        ],
    ),
    "maps of maps in lists": (
        pa.schema({"k": pa.int32(), "v": pa.list_(MAPS)}),
        [(1, [[("a", [(1, NAN), (2, 0.0)]), ("b", None)], None]), (2, [[("a", [(1, 1.0)])]]), (3, [None]), (4, [])],
        [(1, [[("b", None), ("a", [(2, -0.0), (1, NAN)])], None]), (2, [[("a", [(1, 2.0)])]]), (3, [[]]), (4, [])],
    ),
    "keys alone": (pa.schema({"k": pa.string()}), [("a",), ("b",)], [("b",), ("c",)]),
    "from nothing": (pa.schema({"k": pa.int32(), "v": pa.int32()}), [], [(1, 1)]),
    "to nothing": (pa.schema({"k": pa.int32(), "v": pa.int32()}), [(1, 1)], []),
}


@pytest.mark.every(3)
@pytest.mark.parametrize(("schema", "before", "after"), CASES.values(), ids=CASES)
def test_spark_agrees_with_arrow(spark, schema, before, after):
    key = schema.names[:2] if len(schema) > 2 else schema.names[:1]
    tables = [table_of(schema, side) for side in (before, after)]
    expected = diff_rows(*tables, key)
    diff = diff_rows(*(spark.createDataFrame(table) for table in tables), key)
    assert diff.counts() == expected.counts()
    for name in ("added", "removed", "changed_before", "changed_after"):
        frame = getattr(diff, name)
        assert frame.columns == schema.names
        assert canonical(frame.toArrow()) == canonical(getattr(expected, name)), name


def test_columns_of_one_side_or_of_two_types_are_not_compared(spark):
    before = spark.sql("select 1 as k, 1 as gone, 'z' as typed, cast('x' as varchar(3)) as same")
    after = spark.sql("select 1 as k, 'x' as same, 2L as typed, 1 as came")
    diff = diff_rows(before, after, ["k"])
    assert diff.counts() == {"added": 0, "removed": 0, "changed": 0, "unchanged": 1}
    assert diff.added.columns == ["k", "same", "typed", "came"]
    assert diff.removed.columns == ["k", "gone", "typed", "same"]


def test_two_frames_of_one_lineage_are_told_apart(spark):
    before = spark.range(10).selectExpr("id", "id % 3 as v")
    after = before.where("id > 1").selectExpr("id", "if(id = 5, 99, v) as v")
    diff = diff_rows(before, after, ["id"])
    assert diff.counts() == {"added": 0, "removed": 2, "changed": 1, "unchanged": 7}
    assert (diff.changed_before.collect(), diff.changed_after.collect()) == ([(5, 2)], [(5, 99)])


def test_only_the_keys_are_computed_before_a_frame_is_used(spark):
    frame = spark.range(3).selectExpr("id", "if(id >= 0, raise_error('ran'), 1) as v")
    diff = diff_rows(frame, frame, ["id"])
    with pytest.raises(Exception, match="ran"):
        diff.counts()


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("values (1), (null), (null)", "values (1)", "'before': 2 rows have a null in it, and 0 .* {'k': None}"),
        ("values (1)", "values (2), (1), (2)", "'after': 0 rows .* 1 keys have more than one row, .* {'k': 2}[.]"),
        ("values (double('nan')), (double('nan'))", "values (1D)", "1 keys .* {'k': nan}"),
        ("values (0D), (-0D)", "values (1D)", "1 keys have more"),
        ("values (1)", "values ('1')", "'k' has the type integer before and string after"),
        ("values (array(1))", "values (array(1))", "'k' is nested"),
    ],
    ids=["null", "twice", "nan twice", "zero twice", "of two types", "nested"],
)
def test_a_key_that_does_not_identify_rows_is_refused(spark, before, after, message):
    with pytest.raises(InvalidInput, match=message):
        diff_rows(spark.sql(before).toDF("k"), spark.sql(after).toDF("k"), ["k"])


def test_an_error_shows_five_keys_at_most(spark):
    twice = spark.range(50).union(spark.range(50))
    with pytest.raises(InvalidInput, match="50 keys have more than one row") as raised:
        diff_rows(twice, twice, ["id"])
    assert str(raised.value).count("{'id': ") == 5


def test_spark_is_not_compared_with_arrow(spark):
    for sides in ((spark.range(1), pa.table({"id": [0]})), (pa.table({"id": [0]}), spark.range(1))):
        with pytest.raises(UnsupportedFrame, match="Read both as the same type"):
            diff_rows(*sides, ["id"])


def table_of(schema, side):
    columns = list(zip(*side, strict=True)) or [()] * len(schema)
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema)


def canonical(table):
    """The rows in an order of their own, as text: NaN equals itself, the order of a map's entries stays."""
    return sorted(map(str, table.to_pylist()))
