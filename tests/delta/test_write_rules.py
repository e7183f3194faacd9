import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_versioned.delta.actions import Metadata, Protocol
from dagster_versioned.delta.commit.row_tracking import RowTracking, new_columns
from dagster_versioned.delta.commit.write_rules import Inside, WriteRules, parse_columns, require_enforceable
from dagster_versioned.delta.schema.identity_columns import IdentityColumn
from dagster_versioned.delta.schema.types import ArrayType, DataType, MapType, StructField, StructType
from dagster_versioned.errors import LogCorrupt, UnsupportedFeature

EVERYTHING = Protocol(
    3,
    7,
    ("columnMapping", "deletionVectors"),
    (
        "allowColumnDefaults",
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "icebergCompatV2",
        "identityColumns",
        "invariants",
        "rowTracking",
    ),
)
NOTHING = Protocol(1, 7, None, ())


def field(name: str, data_type: DataType = "long", nullable: bool = True, **metadata: Any) -> StructField:
    return StructField(name, data_type, nullable, {key.replace("__", "."): value for key, value in metadata.items()})


def rules(
    *fields: StructField, protocol: Protocol = EVERYTHING, partition: tuple[str, ...] = (), **properties: str
) -> WriteRules:
    """Properties with ``__`` for dots, all below ``delta.``."""
    schema = StructType(fields)
    configuration = {f"delta.{key.replace('__', '.')}": value for key, value in properties.items()}
    return WriteRules.of(protocol, Metadata("i", schema.json(), partition, configuration), schema)


def test_a_plain_table_asks_for_nothing_but_statistics() -> None:
    plain = rules(field("x"), field("y", "string"))
    assert not any((plain.not_null, plain.checks, plain.generated, plain.defaults, plain.identity, plain.clustering))
    assert not any((plain.change_feed, plain.deletion_vectors, plain.append_only, plain.row_tracking))
    assert plain.mapping == "none"
    assert plain.statistics == (("x",), ("y",))
    assert plain.physical_schema == StructType([field("x"), field("y", "string")])


def invariant(sql: str) -> str:
    return json.dumps({"expression": {"expression": sql}})


def test_not_null_at_every_depth() -> None:
    inner = StructType([field("b", nullable=False), field("c")])
    found = rules(
        field("a", nullable=False),
        field("s", inner),
        field("l", ArrayType(inner, False)),
        field("m", MapType("long", inner)),
        field("k", MapType(inner, "long", False)),
    )
    in_list, in_map, in_key = ("l", Inside.ELEMENT), ("m", Inside.VALUE), ("k", Inside.KEY)
    assert found.not_null == (
        ("a",), ("s", "b"), in_list, (*in_list, "b"), (*in_map, "b"), (*in_key, "b"), ("k", Inside.VALUE),
    )  # fmt: skip


@pytest.mark.parametrize("noted", [{"delta__invariants": invariant("y > 1")}, {"delta__generationExpression": "x + 1"}])
@pytest.mark.parametrize(
    "place",
    [
        lambda inner: ArrayType(inner),
        lambda inner: MapType("long", inner),
        lambda inner: MapType(inner, "long"),
        lambda inner: StructType([field("l", ArrayType(inner))]),
    ],
    ids=["list", "map", "key", "below"],
)
def test_rules_that_are_not_enforced_in_their_place_are_refused(noted: Any, place: Any) -> None:
    inner = StructType([field("y", **noted)])
    schema = StructType([field("x"), field("c", place(inner))])
    with pytest.raises(UnsupportedFeature, match=r"y' has a rule of the feature .*cannot be written"):
        require_enforceable(Protocol(1, 4), schema)
    require_enforceable(NOTHING, schema)


@pytest.mark.parametrize("sql", ["y + 1", "upper(`Z`)", "z.a"])
def test_values_generated_from_generated_ones_are_refused(sql: str) -> None:
    others = field("z", delta__generationExpression="x + 1"), field("x")
    schema = StructType([field("y", delta__generationExpression=sql), *others])
    with pytest.raises(UnsupportedFeature, match=r"'y' is generated from '[yz]', which is generated itself"):
        require_enforceable(Protocol(1, 4), schema)
    require_enforceable(NOTHING, schema)
    of_a_field = field("y", delta__generationExpression="x.z"), *others
    require_enforceable(Protocol(1, 4), StructType(of_a_field))


def test_generated_values_inside_of_structs_are_refused_and_invariants_are_not() -> None:
    generated = StructType([field("s", StructType([field("y", delta__generationExpression="x + 1")]))])
    with pytest.raises(UnsupportedFeature, match=r"'s\.y' has a rule of the feature generatedColumns"):
        require_enforceable(Protocol(1, 4), generated)
    require_enforceable(Protocol(1, 4), StructType(SPECIAL))


SPECIAL = [
    field("x", delta__invariants=invariant("x > 3")),
    field("s", StructType([field("y", delta__invariants=invariant("s.y < 5"))])),
    field("g", delta__generationExpression="x + 1"),
    field("d", CURRENT_DEFAULT="7"),
    field("i", delta__identity__start=1, delta__identity__step=2, delta__identity__highWaterMark=9,
          delta__identity__allowExplicitInsert=True),
]  # fmt: skip
PROPERTIES = {
    "constraints__positive": "x > 0",
    "enableChangeDataFeed": "true",
    "enableDeletionVectors": "TRUE",
    "enableRowTracking": "true",
}


def test_every_rule_is_found() -> None:
    columns = {key.removeprefix("delta.").replace(".", "__"): name for key, name in new_columns().items()}
    found = rules(*SPECIAL, **PROPERTIES, **columns, appendOnly="true")
    assert found.checks == {"positive": "x > 0", "invariant of x": "x > 3", "invariant of s.y": "s.y < 5"}
    assert found.generated == {"g": "x + 1"}
    assert found.defaults == {"d": "7"}
    assert found.identity == {"i": IdentityColumn(1, 2, 9, True)}
    assert found.change_feed
    assert found.deletion_vectors
    assert found.append_only
    assert found.row_tracking == RowTracking(*columns.values())


def test_a_rule_without_its_feature_is_none() -> None:
    found = rules(*SPECIAL, protocol=NOTHING, **PROPERTIES)
    assert not any((found.checks, found.generated, found.defaults, found.identity))
    assert not any((found.change_feed, found.deletion_vectors, found.row_tracking))


@pytest.mark.parametrize(
    ("version", "known"),
    [
        (1, ""),
        (2, "checks"),
        (3, "checks"),
        (4, "checks generated change_feed"),
        (6, "checks generated change_feed identity"),
    ],
)
def test_old_protocols_have_what_their_version_stands_for(version: int, known: str) -> None:
    found = rules(*SPECIAL, protocol=Protocol(1, version), **PROPERTIES)
    names = ("checks", "generated", "change_feed", "identity", "defaults", "deletion_vectors", "row_tracking")
    assert {name for name in names if getattr(found, name)} == set(known.split())
    assert ("positive" in found.checks) == (version >= 3)


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (field("x", delta__invariants="x > 3"), "invariant of column 'x'"),
        (field("x", delta__invariants='{"expression":{}}'), "invariant of column 'x'"),
        (field("x", delta__generationExpression=3), "generationExpression of column 'x'"),
        (field("x", CURRENT_DEFAULT=True), "CURRENT_DEFAULT of column 'x'"),
    ],
)
def test_rules_that_make_no_sense(column: StructField, reason: str) -> None:
    with pytest.raises(LogCorrupt, match=reason):
        rules(column)


def mapped(name: str, number: int, data_type: DataType = "long") -> StructField:
    return field(name, data_type, delta__columnMapping__id=number, delta__columnMapping__physicalName=f"col-{number}")


def test_files_have_physical_names_and_no_partition_columns() -> None:
    nested = mapped("s", 2, StructType([mapped("b", 3)]))
    found = rules(mapped("p", 1), nested, mapped("l", 4, ArrayType(StructType([mapped("c", 5)]))),
                  mapped("m", 6, MapType("string", StructType([mapped("d", 7)]))),
                  partition=("p",), columnMapping__mode="id")  # fmt: skip
    assert found.mapping == "id"
    assert found.physical_schema.names == ("col-2", "col-4", "col-6")
    assert found.physical_schema.field("col-2").metadata["delta.columnMapping.id"] == 2
    assert found.physical_schema.to_json()["fields"][0]["type"]["fields"][0]["name"] == "col-3"
    text = found.physical_schema.json()
    assert all(f'"name":"col-{number}"' in text for number in (2, 3, 4, 5, 6, 7))
    assert found.statistics == (("col-2", "col-3"), ("col-4",), ("col-6",))


def test_iceberg_wants_partition_columns_in_files_last() -> None:
    found = rules(
        mapped("p", 1), mapped("x", 2), partition=("p",), columnMapping__mode="name", enableIcebergCompatV2="true"
    )
    assert found.physical_schema.names == ("col-2", "col-1")
    assert found.statistics == (("col-2",),)


WIDE = [field(f"c{number}") for number in range(40)]
NESTED = [field("a"), field("s", StructType([field("b"), field("t", StructType([field("c")]))])), field("z")]


@pytest.mark.parametrize(
    ("fields", "properties", "expected"),
    [
        (WIDE, {}, 32),
        (WIDE, {"dataSkippingNumIndexedCols": "3"}, 3),
        (WIDE, {"dataSkippingNumIndexedCols": "0"}, 0),
        (WIDE, {"dataSkippingNumIndexedCols": "-1"}, 40),
        (WIDE, {"dataSkippingNumIndexedCols": "many"}, 32),
        (NESTED, {"dataSkippingNumIndexedCols": "2"}, [("a",), ("s", "b")]),
        (NESTED, {"dataSkippingStatsColumns": "z, A"}, [("a",), ("z",)]),
        (NESTED, {"dataSkippingStatsColumns": "s"}, [("s", "b"), ("s", "t", "c")]),
        (NESTED, {"dataSkippingStatsColumns": "s.t.c,unknown"}, [("s", "t", "c")]),
        (NESTED, {"dataSkippingStatsColumns": "", "dataSkippingNumIndexedCols": "-1"}, []),
    ],
)
def test_which_columns_get_statistics(fields: list[StructField], properties: dict[str, str], expected: Any) -> None:
    found = rules(*fields, **properties).statistics
    assert (len(found) if isinstance(expected, int) else list(found)) == expected


names = st.text("ab .,`é", min_size=1, max_size=5)


@given(st.lists(st.lists(names, min_size=1, max_size=3), max_size=4), st.sampled_from([",", " , ", ", "]))
def test_quoted_columns_come_back(paths: list[list[str]], comma: str) -> None:
    text = comma.join(".".join(f"`{name.replace('`', '``')}`" for name in path) for path in paths)
    assert parse_columns(text) == [tuple(path) for path in paths]


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("a", [("a",)]),
        ("a,b.c", [("a",), ("b", "c")]),
        (" a , b . c ", [("a",), ("b", "c")]),
        ("two words", [("two words",)]),
        ("", []),
        ("  ", []),
    ],
)
def test_plain_columns(text: str, paths: list[tuple[str, ...]]) -> None:
    assert parse_columns(text) == paths


@pytest.mark.parametrize("text", [",", "a,", "a..b", ".a", "`a", "a`b`", "`a`b", "a."])
def test_no_list_of_columns(text: str) -> None:
    with pytest.raises(LogCorrupt, match="list of columns"):
        parse_columns(text)
