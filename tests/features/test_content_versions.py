"""Versions of samples by their contents, and digests of the versions of all samples: from Arrow and Spark alike."""

import datetime as dt
import subprocess
import sys
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle

from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.engines.conform import stored_schema
from dagster_versioned.engines.content_versions import content_versions, field_digests
from dagster_versioned.engines.samples import DATA_VERSION_BY_FIELD
from dagster_versioned.engines.spark.by_value import self_contained
from dagster_versioned.errors import InvalidInput, UnsupportedType
from dagster_versioned.features.spark.content_versions import content_version, with_content_versions
from dagster_versioned.features.spark.content_versions import field_digests as spark_digests
from dagster_versioned.identity.digest import BagDigest, RowsDigest, row_shas
from support.spark import needs_spark, spark

__all__ = ["spark"]

ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3, None], pa.int64()),
        "a.text": ["x", None, "", "long " * 40],
        "number": pa.array([0.0, -0.0, float("nan"), None], pa.float32()),
        "amount": pa.array([Decimal("1.50"), None, Decimal("-1.50"), Decimal("0.00")], pa.decimal128(9, 2)),
        "at": pa.array([dt.datetime(2013, 1, day, tzinfo=dt.UTC) for day in (1, 2, 3, 4)], pa.timestamp("us", "UTC")),
        "tags": pa.array([[("a", 1), ("b", 2)], [("b", 2), ("a", 1)], [], None], pa.map_(pa.string(), pa.int64())),
        "nested": pa.array([[{"x": 1}], [], None, [None]], pa.list_(pa.struct([("x", pa.int32())]))),
    }
)


def versions(frame: pa.Table, *columns: str) -> list[Any]:
    return content_versions(frame, columns).to_pylist()


def test_a_content_version_stays_what_it_is() -> None:
    """Stored in tables: another text for the same row would make every sample stale."""
    assert versions(ROWS, "id", "a.text") == [
        "1c8f4b21285753e9ab03afbee99211104fb5791e20e24e73b39ae81a0a18ea77",
        "78b8c53b8d9308e86f8257f43358738cdf4f055312e9c2015a1c7969d73599d8",
        "68320603ee087677665f0489bdadabe8c0adebd475e6581957045bda61d5d06d",
        "66713e8b4b867e442fab3ec7051504332dab755b8995e2e4324982fe5aa4ffcf",
    ]


def test_other_columns_do_not_count_and_the_order_of_columns_does() -> None:
    changed = ROWS.set_column(0, "id", pa.array([9, 9, 9, 9]))
    assert versions(changed, "a.text", "tags") == versions(ROWS, "a.text", "tags")
    assert versions(changed, "id") != versions(ROWS, "id")
    assert versions(ROWS, "id", "a.text") != versions(ROWS, "a.text", "id")


def test_equal_values_have_equal_versions_however_they_are_held() -> None:
    held = pa.table(
        {
            "id": pa.chunked_array([pa.array([1], pa.int32()), pa.array([2, 3, None], pa.int32())]),
            "a.text": ROWS["a.text"].dictionary_encode(),
            "at": ROWS["at"].cast(pa.timestamp("ns", "Europe/Berlin")),
        }
    )
    assert versions(held, "id", "a.text", "at") == versions(ROWS, "id", "a.text", "at")
    assert versions(ROWS, "number")[:2] == [versions(ROWS, "number")[0]] * 2
    assert versions(ROWS, "tags")[:2] == [versions(ROWS, "tags")[0]] * 2


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        (["id", "other"], InvalidInput, "no column 'other'"),
        ([], InvalidInput, "by no columns"),
        (["nothing"], UnsupportedType, "'nothing'"),
    ],
)
def test_columns_that_say_nothing_are_refused(columns: Sequence[str], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        content_versions(ROWS.append_column("nothing", pa.nulls(4)), columns)


def test_a_frame_without_rows_has_no_versions() -> None:
    assert content_versions(ROWS.slice(0, 0), ["id"]).type == pa.string()
    assert versions(ROWS.slice(0, 0), "id") == []


# --- field digests ---------------------------------------------------------------------------------------------------


def samples(rows: Sequence[tuple[int, str, str | None, str | None]]) -> pa.Table:
    ids, days, audio, frames = ([row[i] for row in rows] for i in range(4))
    kinds = pa.struct([("audio", pa.string()), ("frames", pa.string())])
    by_field = [{"audio": one, "frames": other} for one, other in zip(audio, frames, strict=True)]
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "a.day": pa.array(days, pa.string()),
            DATA_VERSION_BY_FIELD: pa.array(by_field, kinds),
        }
    )


TWO = samples([(1, "mon", "a1", "f1"), (2, "tue", "a2", None)])
IDS, MEMBERS = ("id", "a.day"), ("audio", "frames")


def test_a_field_digest_is_that_of_the_ids_with_the_fields_versions() -> None:
    columns = TWO.select(list(IDS)).append_column("version", pa.array(["a1", "a2"]))
    measured = ArrowEngine().measure(columns, stored_schema(columns.schema))
    assert field_digests(TWO, IDS, MEMBERS)["audio"] == measured.digest.text
    assert list(field_digests(TWO, IDS, MEMBERS)) == ["audio", "frames"]


def test_a_field_digest_changes_with_its_field_and_its_samples_alone() -> None:
    before = field_digests(TWO, IDS, MEMBERS)
    other = field_digests(samples([(2, "tue", "a2", None), (1, "mon", "a1", "f2")]), IDS, MEMBERS)
    assert (other["audio"] == before["audio"], other["frames"] == before["frames"]) == (True, False)
    swapped = field_digests(samples([(1, "mon", "a2", "f1"), (2, "tue", "a1", None)]), IDS, MEMBERS)
    assert swapped["audio"] != before["audio"]
    fewer = field_digests(TWO.slice(0, 1), IDS, MEMBERS)
    assert not set(fewer.values()) & set(before.values())


@pytest.mark.parametrize(("ids", "members"), [(("id", "other"), ("audio",)), (("id",), ("audio", "other"))])
def test_what_is_not_there_has_no_digest(ids: Sequence[str], members: Sequence[str]) -> None:
    with pytest.raises(InvalidInput, match="no column 'other'"):
        field_digests(TWO, ids, members)


TEXTS = st.one_of(st.none(), st.sampled_from(["a", "b", "c"]))
SAMPLES = st.lists(st.tuples(st.integers(0, 20), st.sampled_from(["mon", "tue"]), TEXTS, TEXTS), max_size=8)


@settings(max_examples=50, deadline=None)
@given(one=SAMPLES, other=SAMPLES)
def test_field_digests_of_parts_add_up_to_that_of_the_whole(one: Any, other: Any) -> None:
    parts = [field_digests(samples(rows), IDS, MEMBERS) for rows in (one, other)]
    whole = field_digests(samples([*one, *other]), IDS, MEMBERS)
    for member in MEMBERS:
        bag = BagDigest(pa.schema([("x", pa.string())]))
        for part in parts:
            bag.merge(*RowsDigest.parse(part[member]).lanes)
        assert bag.finish().text == whole[member]


# --- from Spark ------------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_spark_gives_the_same_content_versions(spark: Any) -> None:
    frame = spark.createDataFrame(ROWS).repartition(3)
    for columns in (ROWS.column_names, ["a.text"], ["tags", "id"]):
        table = with_content_versions(frame, {"each": columns}, "versions")
        with_versions = table.selectExpr("id", "versions.each as version").toArrow()
        expected = dict(zip(ROWS["id"].to_pylist(), versions(ROWS, *columns), strict=True))
        assert dict(zip(with_versions["id"].to_pylist(), with_versions["version"].to_pylist(), strict=True)) == expected
    assert with_content_versions(frame.limit(0), {"each": ["id"]}, "versions").toArrow().num_rows == 0


def test_what_spark_computes_versions_with_needs_nothing_of_ours_to_be_installed(tmp_path: Path) -> None:
    pickled = cloudpickle.dumps(self_contained(row_shas))
    (tmp_path / "function").write_bytes(pickled)
    program = (
        "import sys; sys.modules['dagster_versioned'] = None\n"
        "import pyarrow as pa; from pyspark import cloudpickle\n"
        f"function = cloudpickle.loads(open({str(tmp_path / 'function')!r}, 'rb').read())\n"
        "print(*function(pa.RecordBatch.from_pydict({'id': [1, 2]})).to_pylist())"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed.split() == versions(ROWS.slice(0, 2), "id")


@pytest.mark.spark
@needs_spark(4, 1, "functions of Arrow arrays")
def test_spark_reads_only_the_columns_that_a_version_is_of(spark: Any, tmp_path: Path) -> None:
    spark.createDataFrame(ROWS).write.parquet(str(tmp_path / "rows"))
    stored = spark.read.parquet(str(tmp_path / "rows"))
    plan = stored.select("id", content_version(stored, ["number"]).alias("version"))
    text = plan._jdf.queryExecution().executedPlan().toString()
    assert "number" in text
    assert "nested" not in text


@pytest.mark.spark
def test_spark_gives_the_same_field_digests(spark: Any) -> None:
    rows = samples([(i, "mon" if i % 2 else "tue", f"a{i}", None if i % 3 else f"f{i}") for i in range(100)])
    frame = spark.createDataFrame(rows).repartition(5)
    assert spark_digests(frame, IDS, MEMBERS) == field_digests(rows, IDS, MEMBERS)
    assert spark_digests(frame.limit(0), IDS, MEMBERS) == field_digests(rows.slice(0, 0), IDS, MEMBERS)


@pytest.mark.spark
@needs_spark(4, 1, "functions of Arrow arrays")
def test_spark_refuses_what_arrow_refuses(spark: Any) -> None:
    frame = spark.createDataFrame(TWO)
    with pytest.raises(InvalidInput, match="no column 'other'"):
        content_version(frame, ["other"])
    with pytest.raises(InvalidInput, match="by no columns"):
        content_version(frame, [])
    with pytest.raises(UnsupportedType, match="'since'"):
        content_version(frame.selectExpr("interval 1 day as since"), ["since"])
    with pytest.raises(InvalidInput, match="no column 'other'"):
        spark_digests(frame, IDS, ["other"])
