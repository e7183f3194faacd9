"""Tables of other writers, read by both engines: equal to what Delta Spark and their makers say of them, or refused."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_versioned.delta.schema.types import parse_schema, schema_to_arrow
from dagster_versioned.delta_tables import spark as spark_engine
from dagster_versioned.delta_tables.read import read_delta
from dagster_versioned.engines.spark.releases import release
from dagster_versioned.errors import UnsupportedFeature
from support.delta_tables import (
    ABSENT,
    EXPECTED,
    ONLY_SPARK,
    PAGE,
    READ_AFTER_ALL,
    REFUSED,
    ROOT,
    Contents,
    difference,
    given_contents,
    page,
)
from support.spark import needs_spark

pytestmark = pytest.mark.conformance

if not EXPECTED:
    pytest.skip(ABSENT, allow_module_level=True)

READ = sorted(name for name, expected in EXPECTED.items() if "error" not in expected)
GIVEN = list(given_contents())

QUICK = {
    "dat/column_mapping/delta",
    "dat/deletion_vectors/delta",
    "delta-rs/test/tests/data/spark-variant-checkpoint",
    "golden/data-reader-timestamp_ntz-id-mode/delta",
    "golden/dv-with-columnmapping/delta",
    "golden/log-replay-dv-key-cases/delta",
    "golden/parquet-all-types/delta",
    "golden/v2-checkpoint-json/delta",
}
"""Read by Spark in every test run; the others take a second or two each."""


def named(names: list[str]) -> list[Any]:
    return [pytest.param(name, id=name, marks=[] if name in QUICK else pytest.mark.slow) for name in names]


def path(name: str) -> str:
    return str(ROOT / name)


def expected_schema(name: str) -> Any:
    return parse_schema(EXPECTED[name]["schema"]).all_nullable()


# --- the newest versions


def test_each_table_has_its_place() -> None:
    places = [set(READ), set(REFUSED), set(ONLY_SPARK), set(READ_AFTER_ALL)]
    assert set.union(*places) == set(EXPECTED)
    assert sum(map(len, places)) == len(EXPECTED) == 138
    assert len(READ) == 108


@pytest.mark.parametrize("name", READ)
def test_the_arrow_engine_has_schema_and_count(name: str) -> None:
    table = read_delta(path(name))
    assert table.schema == schema_to_arrow(expected_schema(name))
    assert table.num_rows == EXPECTED[name]["rows"]


@pytest.mark.spark
@pytest.mark.parametrize("name", named(READ))
def test_both_engines_have_the_rows_of_delta_spark(spark: Any, tmp_path: Path, name: str) -> None:
    if "variant" in name and release() < (4, 0):
        with pytest.raises(UnsupportedFeature, match=r"variants needs PySpark 4\.0"):
            spark_engine.read_delta(spark, path(name))
        return
    frame = spark_engine.read_delta(spark, path(name))
    assert json.loads(frame.schema.json())["fields"] == expected_schema(name).to_json()["fields"]
    # Spark takes a struct of two binaries for a variant only where it reads it from a file.
    pq.write_table(read_delta(path(name)), tmp_path / "arrow.parquet")
    again = spark.read.schema(frame.schema).parquet(str(tmp_path / "arrow.parquet"))
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        # A variant in a struct whose fields may be null is read from 4.1 on.
        for found in (frame, again) if "variant" not in name or release() >= (4, 1) else (frame,):
            hashed = found.selectExpr("sum(cast(xxhash64(to_json(struct(*))) as decimal(38, 0)))", "count(*)").first()
            assert (str(hashed[0] or 0), hashed[1]) == (str(EXPECTED[name]["rows_hash"]), EXPECTED[name]["rows"])
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_delta_spark_refuses_is_refused_by_the_arrow_engine(name: str) -> None:
    error, _ = REFUSED[name]
    assert "error" in EXPECTED[name]
    with pytest.raises(error) as raised:
        read_delta(path(name))
    assert type(raised.value) is error


@pytest.mark.spark
def test_what_delta_spark_refuses_is_refused_by_the_spark_engine(spark: Any) -> None:
    for name, (error, _) in REFUSED.items():
        with pytest.raises(error) as raised:
            spark_engine.read_delta(spark, path(name))
        assert type(raised.value) is error


@pytest.mark.spark
@needs_spark(4, 1, "shredded variants")
def test_shredded_variants_are_put_together_by_spark_and_refused_by_arrow(spark: Any) -> None:
    for name, count in ONLY_SPARK.items():
        assert "error" in EXPECTED[name]
        with pytest.raises(UnsupportedFeature, match="variantShredding"):
            read_delta(path(name))
        frame = spark_engine.read_delta(spark, path(name))
        assert json.loads(frame.schema.json())["fields"] == expected_schema(name).to_json()["fields"]
        assert frame.count() == count
    (name,) = (name for name in ONLY_SPARK if name.endswith("variant-stats-no-checkpoint"))
    part = pq.read_table(next((ROOT / name).glob("*.parquet")))
    ids = part["v"].combine_chunks().field("typed_value").field("id").field("typed_value")
    frame = spark_engine.read_delta(spark, path(name))
    assert frame.selectExpr("variant_get(v, '$.id', 'long') as id").sort("id").toArrow()["id"].to_pylist() == sorted(
        ids.to_pylist()
    )


@pytest.mark.spark
@pytest.mark.parametrize("name", sorted(READ_AFTER_ALL))
def test_what_both_engines_read_all_the_same_a_peer_reads_too(spark: Any, name: str) -> None:
    deltalake = pytest.importorskip("deltalake")
    assert "error" in EXPECTED[name]
    ours = read_delta(path(name))
    peer = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(path(name))).execute("select * from t")
    assert ours.num_rows == READ_AFTER_ALL[name][0]
    assert difference(ours, pa.table(peer.read_all()).select(ours.column_names).cast(ours.schema)) == []
    assert difference(ours, spark_engine.read_delta(spark, path(name)).toArrow().cast(ours.schema)) == []


# --- the rows that the makers give


def test_there_are_rows_to_compare_with() -> None:
    assert len(GIVEN) == 60
    assert all(contents.files for contents in GIVEN)


@pytest.mark.every(2)
@pytest.mark.parametrize("contents", GIVEN, ids=lambda one: f"{one.name}@{one.version}")
def test_the_arrow_engine_has_the_given_rows(contents: Contents) -> None:
    table = read_delta(path(contents.name), contents.version)
    assert difference(table, contents.read(table.schema)) == []


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("contents", GIVEN, ids=lambda one: f"{one.name}@{one.version}")
def test_the_spark_engine_has_the_given_rows(spark: Any, contents: Contents) -> None:
    frame = spark_engine.read_delta(spark, path(contents.name), contents.version)
    table = frame.toArrow()
    schema = read_delta(path(contents.name), contents.version).schema
    assert difference(table.cast(schema), contents.read(schema)) == []


# --- the documentation


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == page(), "run: python docs/conformance.py"
