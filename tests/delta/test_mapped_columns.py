from dagster_versioned.delta.schema.column_mapping import ID, require_mapped
from dagster_versioned.delta.schema.mapped_columns import MAX_ID, MODE, columns_back, with_mapped_columns
from dagster_versioned.delta.schema.types import ArrayType, MapType, StructField, StructType

INNER = StructType([StructField("b", "long"), StructField("c", "string")])
SCHEMA = StructType(
    [
        StructField("a", INNER),
        StructField("l", ArrayType(ArrayType(INNER))),
        StructField("m", MapType("string", INNER)),
    ]
)


def ids(schema):
    found = []

    def walk(value):
        match value:
            case {"metadata": metadata}:
                found.append(metadata["delta.columnMapping.id"])
                found.extend(metadata.get("delta.columnMapping.nested.ids", {}).values())
                walk(value["type"])
            case dict():
                for member in value.values():
                    walk(member)
            case list():
                for member in value:
                    walk(member)

    walk(schema.to_json())
    return found


def test_every_field_at_any_depth_gets_an_id_and_a_physical_name():
    mapped, properties = with_mapped_columns(SCHEMA, {MODE: "name"})
    require_mapped(mapped, "id")
    assert sorted(ids(mapped)) == list(range(1, 10))
    assert properties == {MODE: "name", MAX_ID: "9"}
    assert mapped.fields[0].metadata["delta.columnMapping.physicalName"].startswith("col-")
    assert mapped.names == SCHEMA.names


def test_what_has_an_id_keeps_it_and_no_id_comes_twice():
    mapped, properties = with_mapped_columns(SCHEMA, {MODE: "name"})
    dropped = StructType(mapped.fields[:1])
    again, properties = with_mapped_columns(
        StructType([*dropped.fields, StructField("n", "long")]), properties, keep_names=True
    )
    assert again.fields[:1] == dropped.fields
    assert again.fields[1].metadata == {"delta.columnMapping.id": 10, "delta.columnMapping.physicalName": "n"}
    assert properties[MAX_ID] == "10"
    assert with_mapped_columns(again, properties) == (again, properties)


def test_elements_keys_and_values_get_ids_for_iceberg():
    mapped, properties = with_mapped_columns(
        SCHEMA, {MODE: "name", "delta.enableIcebergCompatV2": "true"}, keep_names=True
    )
    assert set(mapped.fields[1].metadata["delta.columnMapping.nested.ids"]) == {"l.element", "l.element.element"}
    assert set(mapped.fields[2].metadata["delta.columnMapping.nested.ids"]) == {"m.key", "m.value"}
    assert sorted(ids(mapped)) == list(range(1, 14))
    assert properties[MAX_ID] == "13"


def test_a_table_that_does_not_map_its_columns_stays_as_it_is():
    assert with_mapped_columns(SCHEMA, {"x": "y"}) == (SCHEMA, {"x": "y"})


def test_ids_that_are_none_name_no_column_that_came_back():
    odd = StructType([StructField("a", "long", True, {ID: [1]}), StructField("b", "long", True, {ID: {}})])
    assert columns_back(odd, {MODE: "name", MAX_ID: "9999999999"}, odd) == []
