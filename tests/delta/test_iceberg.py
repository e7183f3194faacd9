import re
from dataclasses import replace
from typing import Any

import pytest

from dagster_versioned.delta.actions import Action, Add, DeletionVector, Metadata, Protocol
from dagster_versioned.delta.commit.iceberg import iceberg_compat
from dagster_versioned.delta.commit.transaction import Transaction
from dagster_versioned.delta.log.snapshot import load_snapshot
from dagster_versioned.delta.schema.mapped_columns import NESTED_IDS, with_mapped_columns
from dagster_versioned.delta.schema.types import ArrayType, DataType, MapType, StructField, StructType
from dagster_versioned.errors import InvalidInput
from dagster_versioned.storage.local import LocalStore

V1 = Protocol(2, 7, None, ("columnMapping", "icebergCompatV1"))
V2 = Protocol(2, 7, None, ("columnMapping", "icebergCompatV2"))
BOTH = Protocol(2, 7, None, ("columnMapping", "icebergCompatV1", "icebergCompatV2"))
VECTORS = ("columnMapping", "deletionVectors")
MAPPED = {"delta.columnMapping.mode": "name"}
ON = {version: {f"delta.enableIcebergCompatV{version}": "true", **MAPPED} for version in (1, 2)}
LIST = ArrayType("long")
DEEP = MapType("string", ArrayType(StructType([StructField("a", LIST)])))


def table(
    properties: dict[str, str],
    data_type: DataType = "long",
    partition: tuple[str, ...] = (),
    *,
    keep_names: bool = True,
) -> Metadata:
    schema = StructType([StructField("x", data_type), StructField("p", "string"), StructField("q", "string")])
    schema, configuration = with_mapped_columns(schema, properties, keep_names=keep_names)
    return Metadata("i", schema.json(), partition, configuration)


def add(path: str = "a", **members: Any) -> Add:
    return replace(Add(path, {}, 1, 1, True, '{"numRecords":1}'), **members)


@pytest.mark.parametrize(
    ("protocol", "metadata"),
    [
        (V1, table(ON[1])),
        (V1, table(ON[1], StructType([StructField("a", "decimal(3,1)")]))),
        (V2, table(ON[2], LIST)),
        (V2, table(ON[2], DEEP)),
        (Protocol(3, 7, VECTORS, (*VECTORS, "icebergCompatV2")), table(ON[2])),
        (V1, table(MAPPED, LIST)),
    ],
)
def test_a_table_that_can_be_converted(store: LocalStore, protocol: Protocol, metadata: Metadata) -> None:
    Transaction(None, [protocol, metadata, add()], "CREATE").attempt(store)
    assert load_snapshot(store).num_files == 1


def without_ids(metadata: Metadata) -> Metadata:
    return replace(metadata, schema_string=metadata.schema_string.replace(NESTED_IDS, "other"))


def with_number(metadata: Metadata, path: str, number: int) -> Metadata:
    """The metadata, with another id for a place inside of a list or map."""
    changed, count = re.subn(rf'("{re.escape(path)}":)\d+', rf"\g<1>{number}", metadata.schema_string)
    assert count == 1
    return replace(metadata, schema_string=changed)


def changed_type(old: str, new: str) -> Metadata:
    metadata = table(ON[2], new)
    changes = f'{{"delta.typeChanges":[{{"fromType":"{old}","toType":"{new}"}}],'
    return replace(metadata, schema_string=metadata.schema_string.replace('{"delta.col', f'{changes}"delta.col', 1))


WIDENED = Protocol(3, 7, ("columnMapping", "typeWidening"), ("columnMapping", "icebergCompatV2", "typeWidening"))


@pytest.mark.parametrize(
    ("protocol", "metadata", "added", "reason"),
    [
        (V2, replace(table({}), configuration={"delta.enableIcebergCompatV2": "true"}), add(), "does not map"),
        (BOTH, table({**ON[1], **ON[2]}), add(), "at once"),
        (Protocol(3, 7, VECTORS, (*VECTORS, "icebergCompatV1")), table(ON[1]), add(), "lists deletionVectors"),
        (Protocol(3, 7, VECTORS, (*VECTORS, "icebergCompatV2")),
         table({**ON[2], "delta.enableDeletionVectors": "true"}), add(), "enableDeletionVectors is set"),
        (Protocol(3, 7, VECTORS, (*VECTORS, "icebergCompatV2")), table(ON[2]),
         add(deletion_vector=DeletionVector("i", "x", 1, 1)), "'a' has a deletion vector"),
        (V2, table(ON[2]), add(stats=None), "'a' do not say"),
        (V1, table(ON[1], LIST), add(), "'x' is a list or a map"),
        (V1, table(ON[1], StructType([StructField("m", MapType("long", "long"))])), add(), "'x.m' is a list or a map"),
        (V2, table(ON[2], "void"), add(), "'x' is of the type void"),
        (V2, without_ids(table(ON[2], LIST)), add(), "'x.element' has no id"),
        (V2, with_number(table(ON[2], LIST), "x.element", 3), add(), "'x.element' and 'p' have one id, 3"),
        (V2, with_number(table(ON[2], DEEP), "x.key", 3), add(), "'x.value' and 'x.key' have one id, 3"),
        (V2, with_number(table(ON[2], DEEP), "a.element", 1), add(), "'x.value.element.a.element' and 'x' have one id"),
        (V1, table(ON[1], LIST, keep_names=False), add(), "column 'x' is a list"),
        (V2, without_ids(table(ON[2], LIST, keep_names=False)), add(), "'x.element' has no id"),
        (V2, table(ON[2], StructType([StructField("a", "void")]), keep_names=False), add(), "column 'x.a' is of"),
        (WIDENED, changed_type("integer", "double"), add(), "from integer to double"),
    ],
)  # fmt: skip
def test_what_cannot_be_converted_is_refused(protocol: Protocol, metadata: Metadata, added: Add, reason: str) -> None:
    with pytest.raises(InvalidInput, match=f"convertible to Iceberg.*{reason}"):
        Transaction(None, [protocol, metadata, added], "CREATE")


def test_types_that_iceberg_widens_too(store: LocalStore) -> None:
    Transaction(None, [WIDENED, changed_type("integer", "long"), add()], "CREATE").attempt(store)
    assert load_snapshot(store).num_files == 1


@pytest.mark.parametrize(
    ("before", "after", "allowed"),
    [((), ("p",), True), (("p",), ("p",), True), (("p",), ("q",), False), (("p",), (), False)],
)
def test_partition_columns_keep_their_names(
    store: LocalStore, before: tuple[str, ...], after: tuple[str, ...], allowed: bool
) -> None:
    Transaction(None, [V2, table(ON[2], partition=before)], "CREATE").attempt(store)
    replacing: list[Action] = [replace(table(ON[2], partition=after), name="new")]
    if allowed:
        Transaction(load_snapshot(store), replacing, "REPLACE")
    else:
        with pytest.raises(InvalidInput, match="it is partitioned by"):
            Transaction(load_snapshot(store), replacing, "REPLACE")


def test_the_first_spelling_of_nested_ids() -> None:
    metadata = table(ON[2], LIST)
    old = metadata.schema_string.replace(NESTED_IDS, "parquet.field.nested.ids")
    Transaction(None, [V2, replace(metadata, schema_string=old), add()], "CREATE")


def test_a_property_counts_with_its_feature() -> None:
    assert iceberg_compat(V1, table({**ON[1], **ON[2]})) == {1}
    assert iceberg_compat(Protocol(2, 5), table(ON[1])) == set()
