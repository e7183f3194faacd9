"""Every Spark SQL type: stored and read back equal, or refused by column and type before a row is computed."""

import datetime as dt
from decimal import Decimal

import pyarrow.parquet as pq
import pytest

from dagster_versioned.delta.schema.types import schema_to_arrow
from dagster_versioned.engines.parts import WriteOptions
from dagster_versioned.engines.spark import SparkEngine
from dagster_versioned.engines.spark.types import spark_schema, stored_schema
from dagster_versioned.errors import EmptyTable, UnsupportedFrame, UnsupportedType
from support.spark import needs_spark, round_trip, staging_in

pytestmark = pytest.mark.spark

ATOMS = {
    "boolean": "true",
    "tinyint": "cast(-128 as tinyint)",
    "smallint": "cast(32767 as smallint)",
    "int": "cast(-2147483648 as int)",
    "bigint": "9223372036854775807L",
    "float": "cast(1.5 as float)",
    "double": "-0.1D",
    "decimal(10,2)": "cast(12345678.90 as decimal(10,2))",
    "decimal(38,0)": "cast('99999999999999999999999999999999999999' as decimal(38,0))",
    "decimal(38,38)": "cast('-0.12345678901234567890123456789012345678' as decimal(38,38))",
    "string": "'grün \\u0000 🦆'",
    "binary": "X'00FF'",
    "date": "date'0001-01-01'",
    "timestamp": "timestamp'9999-12-31 23:59:59.999999'",
    "timestamp_ntz": "timestamp_ntz'1582-10-04 01:02:03.000004'",
    "array<int>": "array(1, null, 3)",
    "array<struct<a:int,b:string>>": "array(named_struct('a', 1, 'b', 'x'), null)",
    "map<string,array<timestamp>>": "map('k', array(timestamp'2020-02-29 00:00:00', null))",
    "map<int,map<string,double>>": "map(1, map('x', 1.0D), 2, null)",
    "struct<a:struct<b:struct<c:decimal(20,5)>>>": "named_struct('a', named_struct('b', named_struct('c', 1.5BD)))",
}

REFUSED = {
    "null": "null",
    "array(null)": "null",
    "named_struct('inner', null)": "inner",
    "interval '1' day": "interval day",
    "interval '1' month": "interval month",
    "make_interval(1, 2, 3)": "interval",
    "parse_json('{}')": "variant",
    "array(parse_json('{}'))": "element.*variant",
    "'a' collate UNICODE_CI": "collate.*cast it",
    "map('k', 'v' collate UTF8_LCASE)": "value.*collate",
    "time'10:00:00'": "time",
}


def test_every_type_round_trips_with_values_and_nulls(spark, tmp_path):
    values = ", ".join(f"cast({value} as {kind}) as `{kind}`" for kind, value in ATOMS.items())
    nulls = ", ".join(f"cast(null as {kind}) as `{kind}`" for kind in ATOMS)
    frame = spark.sql(f"select {values} union all select {nulls}")
    read, written = round_trip(spark, frame, tmp_path)
    assert [field.dataType.simpleString() for field in read.schema] == list(ATOMS)
    assert sorted(map(repr, read.collect())) == sorted(map(repr, frame.collect()))
    assert written.contents.null_counts == (1,) * len(ATOMS)


LATER = {"make_interval": (4, 0), "parse_json": (4, 0), "collate": (4, 0), "time'": (4, 1)}
"""Types that older releases have not."""


def refused():
    for expression in REFUSED:
        release = next((found for word, found in LATER.items() if word in expression), (3, 5))
        yield pytest.param(expression, marks=needs_spark(*release, "a type"))


@pytest.mark.parametrize("expression", refused())
def test_a_type_that_cannot_be_stored_is_refused_before_anything_runs(spark, tmp_path, expression):
    frame = spark.sql(f"select 1 as fine, {expression} as broken from range(1) where raise_error('ran') is null")
    with pytest.raises(UnsupportedType, match=f"broken.*{REFUSED[expression]}"):
        SparkEngine().write(frame, staging_in(tmp_path), WriteOptions())
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize("names", [("a", "a"), ("Column", "cOLUMN"), ("Straße", "STRASSE")])
def test_names_equal_but_for_case_are_refused(spark, tmp_path, names):
    with pytest.raises(UnsupportedFrame, match=names[1]):
        SparkEngine().write(spark.range(1).selectExpr("id", "id").toDF(*names), staging_in(tmp_path), WriteOptions())


def test_a_frame_without_columns_is_refused(spark, tmp_path):
    with pytest.raises(EmptyTable, match="no columns"):
        SparkEngine().write(spark.range(3).select(), staging_in(tmp_path), WriteOptions())


def test_char_and_varchar_are_stored_as_strings(spark):
    from pyspark.sql import types as spark_types

    schema = spark_types.StructType(
        [
            spark_types.StructField("c", spark_types.CharType(5)),
            spark_types.StructField("v", spark_types.VarcharType(5)),
        ]
    )
    assert [field.type for field in stored_schema(schema).fields] == ["string", "string"]


def test_nullability_and_comments_do_not_reach_the_stored_schema(spark):
    from pyspark.sql import functions as sf

    strict = spark.range(1).select(sf.lit(1).alias("a", metadata={"comment": "x"}), sf.array(sf.lit(1)).alias("b"))
    loose = spark.createDataFrame([(1, [1])], "a int, b array<int>")
    assert stored_schema(strict.schema) == stored_schema(loose.schema)
    assert spark_schema(stored_schema(strict.schema)) == loose.schema


NAMES = ["a.b", "a`b", "A/ä", "x,y=z", "with space", "", "`", "_c1", "_position", "_metadata", "{};()\t", "%41"]


def test_odd_column_names_round_trip(spark, tmp_path):
    frame = spark.range(5).selectExpr(*(f"id + {i}" for i in range(len(NAMES)))).toDF(*NAMES)
    for options in (WriteOptions(), WriteOptions(row_order="significant"), WriteOptions(sort_rows=("a.b", "a`b", ""))):
        read, written = round_trip(spark, frame, tmp_path / str(hash(options)), options)
        assert read.columns == NAMES
        assert sorted(read.collect()) == sorted(frame.collect())
        assert written.contents.schema.names == tuple(NAMES)


def test_sort_columns_stores_the_columns_in_name_order_with_their_values(spark, tmp_path):
    frame = spark.range(3).selectExpr("id as b", "id * 10 as c", "id * 100 as a")
    read, _ = round_trip(spark, frame, tmp_path, WriteOptions(sort_columns=True))
    assert read.columns == ["a", "b", "c"]
    assert sorted(map(tuple, read.collect())) == [(0, 0, 0), (100, 1, 10), (200, 2, 20)]


def test_the_session_zone_changes_neither_bytes_nor_values(spark, tmp_path):
    frame = spark.sql("select timestamp'2020-06-01 12:00:00 UTC' as t, array(timestamp'2020-06-01 12:00:00 UTC') as ts")
    shas = []
    for zone in ("UTC", "America/New_York", "Asia/Kathmandu"):
        spark.conf.set("spark.sql.session.timeZone", zone)
        try:
            _, written = round_trip(spark, frame, tmp_path / zone.replace("/", "-"))
        finally:
            spark.conf.set("spark.sql.session.timeZone", "UTC")
        shas.append((written.parts[0].sha256, written.contents.digest))
    assert len(set(shas)) == 1


def test_a_part_holds_the_canonical_arrow_schema(spark, tmp_path):
    frame = spark.sql("select 1 as i, 'x' as s, timestamp'2020-01-01' as t, array(1) as a")
    _, written = round_trip(spark, frame, tmp_path)
    part = next(tmp_path.rglob(f"{written.parts[0].sha256}.parquet"))
    assert pq.read_schema(part).remove_metadata() == schema_to_arrow(written.contents.schema)


def test_extreme_values_keep_their_meaning_in_arrow(spark, tmp_path):
    import pyarrow as pa

    _, written = round_trip(
        spark,
        spark.sql("select date'9999-12-31' d, timestamp'0001-01-01' t, cast('1e-10' as decimal(38,18)) n"),
        tmp_path,
    )
    table = pq.read_table(next(tmp_path.rglob(f"{written.parts[0].sha256}.parquet")))
    assert table.column("d")[0].as_py() == dt.date(9999, 12, 31)
    assert table.column("t").cast(pa.int64())[0].as_py() == -62135596800 * 10**6
    assert table.column("n")[0].as_py() == Decimal("1e-10")


def test_a_null_struct_with_members_that_are_never_null_round_trips(spark, tmp_path):
    """Spark hands over such members marked as not null, although the null struct above them makes them null."""
    frame = spark.range(4).selectExpr("if(id % 2 = 0, null, named_struct('a', id, 'b', array(id))) as s")
    read, written = round_trip(spark, frame, tmp_path)
    assert sorted(map(repr, read.collect())) == sorted(map(repr, frame.collect()))
    assert written.contents.null_counts == (2,)
