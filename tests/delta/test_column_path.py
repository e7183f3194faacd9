import pytest

from dagster_versioned.delta.commit.column_path import (
    column_path,
    field_above,
    field_at,
    found_path,
    type_at,
    with_fields,
)
from dagster_versioned.delta.schema.types import ArrayType, MapType, StructField, StructType
from dagster_versioned.delta.schema.widening import is_wider, is_wider_for_iceberg
from dagster_versioned.errors import InvalidInput

INNER = StructType([StructField("x", "long"), StructField("y.z", "string")])
SCHEMA = StructType(
    [
        StructField("a", "integer"),
        StructField("S", INNER),
        StructField("l", ArrayType(ArrayType(INNER))),
        StructField("m", MapType("string", INNER)),
    ]
)


@pytest.mark.parametrize(
    ("text", "path"),
    [("a", ("a",)), ("a.b", ("a", "b")), ("`a.b`.c", ("a.b", "c")), ("`a``b`", ("a`b",)), (("a.b",), ("a.b",))],
)
def test_a_name_is_a_path(text, path):
    assert column_path(text) == path


@pytest.mark.parametrize("text", ["", "a,b", "a..b", "`a", "."])
def test_what_names_no_column_is_refused(text):
    with pytest.raises(InvalidInput, match="Nothing was written"):
        found_path(SCHEMA, text)


@pytest.mark.parametrize(
    ("name", "path", "kind"),
    [
        ("A", ("a",), "integer"),
        ("s.X", ("S", "x"), "long"),
        ("s.`y.z`", ("S", "y.z"), "string"),
        ("l.element.element.x", ("l", "element", "element", "x"), "long"),
        ("m.key", ("m", "key"), "string"),
        ("m.VALUE.x", ("m", "value", "x"), "long"),
    ],
)
def test_columns_at_any_depth_are_found_without_regard_to_case(name, path, kind):
    assert found_path(SCHEMA, name) == path
    assert type_at(SCHEMA, path) == kind


@pytest.mark.parametrize("name", ["b", "a.b", "s.z", "l.x", "m.element"])
def test_a_column_that_is_not_there_is_refused_by_name(name):
    with pytest.raises(InvalidInput, match=name):
        found_path(SCHEMA, name)


def test_a_path_is_cut_after_its_last_field():
    assert field_above(SCHEMA, ("l", "element", "element")) == (("l",), ("element", "element"))
    assert field_above(SCHEMA, ("m", "value", "x")) == (("m", "value", "x"), ())
    with pytest.raises(InvalidInput, match="part of one"):
        field_at(SCHEMA, ("m", "key"))


def test_one_field_is_changed_and_no_other():
    path = ("l", "element", "element", "x")
    changed = with_fields(SCHEMA, path, lambda field: [field, StructField("new", "date")])
    assert type_at(changed, (*path[:-1], "new")) == "date"
    assert with_fields(changed, (*path[:-1], "new"), lambda _: []) == SCHEMA


@pytest.mark.parametrize(
    ("old", "new", "wider", "iceberg"),
    [
        ("byte", "short", True, True),
        ("byte", "long", True, True),
        ("integer", "long", True, True),
        ("integer", "double", True, False),
        ("long", "double", False, False),
        ("long", "integer", False, False),
        ("float", "double", True, True),
        ("double", "float", False, False),
        ("integer", "decimal(10,0)", True, False),
        ("integer", "decimal(10,1)", False, False),
        ("integer", "decimal(12,2)", True, False),
        ("long", "decimal(20,0)", True, False),
        ("long", "decimal(19,0)", False, False),
        ("decimal(5,2)", "decimal(7,2)", True, True),
        ("decimal(5,2)", "decimal(7,4)", True, False),
        ("decimal(5,2)", "decimal(7,5)", False, False),
        ("decimal(5,2)", "decimal(5,2)", False, True),
        ("date", "timestamp_ntz", True, False),
        ("date", "timestamp", False, False),
        ("string", "string", False, False),
        (ArrayType("long"), ArrayType("double"), False, False),
    ],
)
def test_what_may_become_what(old, new, wider, iceberg):
    assert is_wider(old, new) is wider
    assert is_wider_for_iceberg(old, new) is iceberg
