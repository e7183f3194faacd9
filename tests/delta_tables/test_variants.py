"""Variants are written whole: by Arrow as a struct of metadata and value, by Spark as what it has."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_versioned.delta import Table
from dagster_versioned.delta.features import reader_features
from dagster_versioned.delta.schema.types import ArrayType, MapType, StructField, StructType
from dagster_versioned.delta_tables import spark as delta
from dagster_versioned.delta_tables.change_feed import read_changes
from dagster_versioned.delta_tables.dml import WhenMatched, WhenNotMatched
from dagster_versioned.delta_tables.read import read_delta
from dagster_versioned.delta_tables.write import (
    add_constraint,
    create_delta,
    delete_from,
    merge_delta,
    optimize_delta,
    update_delta,
    write_delta,
)
from dagster_versioned.errors import InvalidInput
from support.delta_writes import files_of
from support.spark import needs_spark

VARIANT = pa.struct([("metadata", pa.binary()), ("value", pa.binary())])
NONE = b"\x01\x00\x00"
"""The metadata of a variant without names."""


def number(value):
    """An integer of one byte as a variant."""
    return {"metadata": NONE, "value": bytes([3 << 2, value])}


def table_of(uri, *fields, **properties):
    columns = [StructField("id", "long"), *(StructField(name, kind) for name, kind in fields)]
    create_delta(uri, StructType(columns), properties=properties)
    return Table(uri)


def rows(ids, values=None):
    return pa.table({"id": ids, "v": pa.array([number(i) for i in ids] if values is None else values, VARIANT)})


EVERYTHING = {
    "delta.enableDeletionVectors": "true",
    "delta.enableChangeDataFeed": "true",
    "delta.columnMapping.mode": "name",
    "delta.enableRowTracking": "true",
    "delta.enableVariantShredding": "true",
}


@pytest.mark.parametrize("properties", [{}, EVERYTHING], ids=["plain", "everything"])
def test_every_verb_keeps_variants(uri, properties):
    table = table_of(uri, ("v", "variant"), **properties)
    assert "variantType" in reader_features(table.protocol)
    assert ("variantShredding" in reader_features(table.protocol)) == bool(properties)
    write_delta(uri, rows([1, 2, 3]))
    write_delta(uri, rows([4], [None]))
    delete_from(uri, "id = 2")
    update_delta(uri, {"id": "id + 10"}, "v IS NULL")
    merge_delta(
        uri,
        rows([1, 9], [number(7), None]),
        "source.id = target.id",
        [WhenMatched("all"), WhenNotMatched("all")],
    )
    optimize_delta(uri)
    found = {row["id"]: row["v"] for row in read_delta(uri).to_pylist()}
    assert found == {1: number(7), 3: number(3), 9: None, 14: None}
    if properties:
        changed = read_changes(uri, 3, 3).to_pylist()
        assert [(row["id"], row["v"], row["_change_type"]) for row in changed] == [(2, number(2), "delete")]


def test_files_and_statistics_are_as_the_protocol_has_them(uri):
    inside = StructType([StructField("x", "variant"), StructField("n", "long")])
    table = table_of(
        uri, ("v", "variant"), ("s", inside), ("l", ArrayType("variant")), ("m", MapType("string", "variant"))
    )
    nested = {
        "s": pa.array(
            [{"x": number(1), "n": 1}, {"x": None, "n": 2}, None], pa.struct([("x", VARIANT), ("n", pa.int64())])
        ),
        "l": pa.array([[number(1), None], [], None], pa.list_(VARIANT)),
        "m": pa.array([[("a", number(1)), ("b", None)], [], None], pa.map_(pa.string(), VARIANT)),
    }
    given = pa.table({"id": [1, 2, 3], "v": pa.array([number(1), None, None], VARIANT), **nested})
    write_delta(uri, given)
    (stats,) = [json.loads(text) for text in table.files()["stats"].to_pylist()]
    assert stats["nullCount"] == {"id": 0, "v": 2, "s": {"x": 2, "n": 1}}
    assert (stats["minValues"], stats["maxValues"]) == ({"id": 1, "s": {"n": 1}}, {"id": 3, "s": {"n": 2}})
    (name,) = files_of(uri)
    stored = pq.read_schema(f"{uri}/{name}").field("v").type
    assert [(field.name, field.type, field.nullable) for field in stored] == [
        ("metadata", pa.binary(), False),
        ("value", pa.binary(), False),
    ]
    assert read_delta(uri).to_pylist() == given.to_pylist()
    assert read_delta(uri, filter="v IS NULL", columns=["id"])["id"].to_pylist() == [2, 3]


def test_members_are_found_by_their_names(uri):
    table_of(uri, ("v", "variant"))
    turned = pa.struct([pa.field("value", pa.large_binary()), pa.field("METADATA", pa.binary())])
    write_delta(uri, pa.table({"id": [1], "v": pa.array([{"value": b"\x0c\x05", "METADATA": NONE}], turned)}))
    assert read_delta(uri)["v"].to_pylist() == [number(5)]


@pytest.mark.parametrize(
    "value",
    [
        {"metadata": None, "value": b"\x0c\x05"},
        {"metadata": NONE, "value": None},
        {"metadata": b"", "value": b"\x0c\x05"},
        {"metadata": b"\x02\x00\x00", "value": b"\x0c\x05"},
    ],
)
def test_what_is_no_variant_is_refused(uri, value):
    table_of(uri, ("v", "variant"), ("l", ArrayType("variant")))
    with pytest.raises(InvalidInput, match=r"1 of 2 values of 'v' are no variants.*Nothing was written"):
        write_delta(uri, rows([1, 2], [number(1), value]))
    lists = pa.array([[number(1), value]], pa.list_(VARIANT))
    with pytest.raises(InvalidInput, match=r"1 of 2 values of 'l\.element' are no variants"):
        write_delta(uri, pa.table({"id": [1], "l": lists}))
    assert not files_of(uri)


def test_rows_are_not_laid_out_by_variants(uri):
    table = table_of(uri, ("v", "variant"))
    with pytest.raises(InvalidInput, match="'v' is no single value"):
        table.cluster_by("v")
    for options in ({"partition_by": ["v"]}, {"cluster_by": ["v"]}):
        with pytest.raises(InvalidInput, match="'v' is no single value"):
            create_delta(f"{uri}2", StructType([StructField("id", "long"), StructField("v", "variant")]), **options)


def test_a_constraint_over_variants_is_evaluated_by_spark_alone(uri):
    table_of(uri, ("v", "variant"))
    with pytest.raises(InvalidInput, match="variant_get"):
        add_constraint(uri, "c", "variant_get(v, '$', 'int') > 0")


# --- Spark -----------------------------------------------------------------------------------------------------------


def parsed(spark, ids):
    texts = {1: '{"a": 1, "b": [true, null, "x"]}', 2: "17", 3: None, 4: '"text"', 9: '{"a": {"b": 2.5}}'}
    frame = spark.createDataFrame([(i, texts.get(i)) for i in ids], "id long, t string")
    return frame.selectExpr("id", "parse_json(t) AS v")


def shown(spark, uri):
    found = delta.read_delta(spark, uri).selectExpr("id", "to_json(v) AS v").collect()
    return {row["id"]: row["v"] for row in found}


@pytest.mark.spark
@pytest.mark.slow
@needs_spark(4, 0, "variants")
@pytest.mark.parametrize("properties", [{}, EVERYTHING], ids=["plain", "everything"])
def test_spark_writes_what_it_parsed(spark, uri, properties):
    write_delta(uri, parsed(spark, [1, 2, 3]), properties=properties)
    assert Table(uri).schema.field("v").type == "variant"
    write_delta(uri, parsed(spark, [4]))
    delete_from(uri, "try_variant_get(v, '$', 'int') = 17", session=spark)
    merge_delta(
        uri,
        parsed(spark, [4, 9]).selectExpr("id", "CASE WHEN id = 9 THEN v END AS v"),
        "source.id = target.id",
        [WhenMatched({"v": "parse_json('[1]')"}), WhenNotMatched("all")],
    )
    optimize_delta(uri, session=spark)
    expected = {1: '{"a":1,"b":[true,null,"x"]}', 3: None, 4: "[1]", 9: '{"a":{"b":2.5}}'}
    assert shown(spark, uri) == expected
    write_delta(uri, read_delta(uri), "overwrite")
    assert shown(spark, uri) == expected
    add_constraint(uri, "c", "try_variant_get(v, '$.a', 'int') IS NULL OR id < 100", session=spark)
    with pytest.raises(InvalidInput, match="break the constraint 'c'"):
        write_delta(uri, spark.sql("""SELECT 100L AS id, parse_json('{"a": 1}') AS v"""))


@pytest.mark.spark
@pytest.mark.slow
@needs_spark(4, 1, "a format that writes by Arrow")
def test_the_format_writes_variants(spark, uri):
    delta.register(spark)
    parsed(spark, [1, 3]).write.format("versioned").mode("append").save(uri)
    assert shown(spark, uri) == {1: '{"a":1,"b":[true,null,"x"]}', 3: None}
