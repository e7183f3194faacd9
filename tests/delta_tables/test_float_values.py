"""NaN and -0.0 are found by every command as SQL compares them, in tables of any writer."""

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from dagster_versioned.delta_tables import write
from dagster_versioned.delta_tables.dml import WhenMatched
from dagster_versioned.delta_tables.read import read_delta
from dagster_versioned.delta_tables.spark import read_delta as spark_read
from dagster_versioned.delta_tables.write import write_delta
from support.float_values import COLUMNS, CONDITIONS, GROUPS, VALUES, expected, table

NAN, ZERO = "{} > 100", "{} = 0"

PROPERTIES = {
    "vectors": {"delta.enableDeletionVectors": "true"},
    "mapped by name": {"delta.columnMapping.mode": "name"},
    "mapped by id": {"delta.columnMapping.mode": "id"},
    "feed": {"delta.enableChangeDataFeed": "true"},
}


@pytest.fixture(params=["arrow", pytest.param("spark", marks=pytest.mark.spark)])
def verb(request):
    """Calls a verb of an engine, on frames of that engine."""
    if request.param == "arrow":
        return lambda name, *given, **named: {"read_delta": read_delta, **vars(write)}[name](*given, **named)
    spark = request.getfixturevalue("spark")

    def on_spark(name, *given, **named):
        if name == "read_delta":
            return spark_read(spark, *given, **named)
        session = {"session": spark} if name in ("delete_from", "update_delta") else {}
        return getattr(write, name)(*given, **named, **session)

    return on_spark


def frame_of(verb, rows):
    spark = next((cell.cell_contents for cell in verb.__closure__ or ()), None)
    return rows if spark is None else spark.createDataFrame(rows)


def stored(writer, folder):
    """A table of one file a group."""
    uri, first = str(folder), 0
    for group in GROUPS:
        rows, created = table(group, first), {"properties": PROPERTIES[writer]} if writer in PROPERTIES else {}
        if writer == "deltalake":
            write_deltalake(uri, rows, mode="append")
        else:
            write_delta(uri, rows, "append", **({} if first else created))
        first += len(group)
    return uri


def ids(uri):
    return sorted(read_delta(uri)["id"].to_pylist())


def without(*conditions):
    gone = {i for condition in conditions for i in expected(condition)}
    return [i for i in range(len(VALUES)) if i not in gone]


@pytest.mark.parametrize("writer", ["deltalake", "ours", "mapped by name", "mapped by id"])
def test_filters_of_a_read(verb, tmp_path, writer):
    uri = stored(writer, tmp_path)
    for condition, name in [(NAN, "d"), (NAN, "s.inner.x"), (ZERO, "f")]:
        read = verb("read_delta", uri, filter=condition.format(name))
        found = read["id"].to_pylist() if isinstance(read, pa.Table) else [row.id for row in read.collect()]
        assert sorted(found) == expected(condition), (condition, name)


@pytest.mark.parametrize("condition", CONDITIONS)
def test_files_that_are_passed_over_by_the_log_hold_no_row(tmp_path_factory, condition):
    uri = tmp_path_factory.getbasetemp() / "every-condition"
    uri = str(uri) if uri.exists() else stored("ours", uri)
    for name in COLUMNS if len(condition) < 100 else ["d"]:  # engines take their time for long lists
        assert sorted(read_delta(uri, filter=condition.format(name))["id"].to_pylist()) == expected(condition)


@pytest.mark.parametrize("condition", [NAN, ZERO, "{} <= -0.0D"])
def test_partitions_of_floats(verb, tmp_path, condition):
    write_delta(str(tmp_path), table(VALUES).select(["id", "d"]), partition_by=["d"])
    read = verb("read_delta", str(tmp_path), filter=condition.format("d"))
    found = read["id"].to_pylist() if isinstance(read, pa.Table) else [row.id for row in read.collect()]
    assert sorted(found) == expected(condition)


@pytest.mark.parametrize("writer", ["deltalake", "vectors", "mapped by id"])
def test_delete(verb, tmp_path, writer):
    uri = stored(writer, tmp_path)
    assert verb("delete_from", uri, "s.inner.x > 100").metrics["numDeletedRows"] == len(expected(NAN))
    assert verb("delete_from", uri, "d = 0").metrics["numDeletedRows"] == len(expected(ZERO))
    assert ids(uri) == without(NAN, ZERO)


@pytest.mark.parametrize("writer", ["deltalake", "feed"])
def test_update(verb, tmp_path, writer):
    uri = stored(writer, tmp_path)
    assert verb("update_delta", uri, {"id": "-id - 1"}, "d <> 1").metrics["numUpdatedRows"] == len(expected("{} <> 1"))
    assert verb("update_delta", uri, {"id": "-id - 1"}, "f = 0 and id < 0").metrics["numUpdatedRows"] == len(
        expected(ZERO)
    )
    back = expected(ZERO)
    assert ids(uri) == sorted(-i - 1 if i in expected("{} <> 1") and i not in back else i for i in range(len(VALUES)))


@pytest.mark.parametrize("condition", [NAN, ZERO, "{} <> 1"])
def test_merge_whose_condition_has_a_constant(verb, tmp_path, condition):
    uri = stored("deltalake", tmp_path)
    source = frame_of(verb, table(VALUES).select(["id"]))
    on = f"target.id = source.id and {condition.format('target.d')}"
    merged = verb("merge_delta", uri, source, on, [WhenMatched("delete")])
    assert merged.metrics["numTargetRowsDeleted"] == len(expected(condition))
    assert ids(uri) == without(condition)


def test_overwrite_of_what_a_condition_finds(verb, tmp_path):
    uri = stored("deltalake", tmp_path)
    verb("write_delta", uri, frame_of(verb, table([None], 99).slice(1)), "overwrite", where="d > 100 or d = 0")
    assert ids(uri) == without(NAN, ZERO)
