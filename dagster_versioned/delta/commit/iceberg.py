"""Tables that can be converted to Apache Iceberg. Protocol: *Iceberg Compatibility V1* and *V2*."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, cast

from dagster_versioned.delta.actions import Action, Add, Metadata, Protocol, of_kind
from dagster_versioned.delta.features import column_mapping, writer_features
from dagster_versioned.delta.files.statistics import num_records
from dagster_versioned.delta.schema.column_mapping import ID, PHYSICAL_NAME
from dagster_versioned.delta.schema.mapped_columns import NESTED_IDS
from dagster_versioned.delta.schema.types import (
    PRIMITIVES,
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
    decimal_of,
    parts_of,
)
from dagster_versioned.delta.schema.widening import CHANGES, is_wider_for_iceberg
from dagster_versioned.errors import InvalidInput

_OLD_NESTED_IDS = "parquet.field.nested.ids"
"""What the protocol's text first called `NESTED_IDS`; its paths begin with the name and not the physical one."""

_PRIMITIVES = PRIMITIVES - {"void", "variant"}


def iceberg_compat(protocol: Protocol, metadata: Metadata) -> frozenset[int]:
    """The versions of the compatibility that are active."""
    features = writer_features(protocol)
    return frozenset(
        version
        for version in (1, 2)
        if f"icebergCompatV{version}" in features and metadata.is_set(f"delta.enableIcebergCompatV{version}")
    )


def require_convertible(
    read: Metadata | None, protocol: Protocol, metadata: Metadata, schema: StructType, actions: Sequence[Action]
) -> None:
    """Raise `InvalidInput`, with the reason, where a commit would leave a table that is not convertible as it promises.

    ``protocol``, ``metadata`` and ``schema`` are those after the commit, ``read`` is the metadata before. That files
    hold the partition columns, too, is what `write_rules.WriteRules.physical_schema` says.
    """
    versions = iceberg_compat(protocol, metadata)
    if not versions:
        return
    reasons = [*_of_table(versions, protocol, metadata), *_of_files(actions)]
    if read is not None and read.partition_columns and read.partition_columns != metadata.partition_columns:
        before, after = list(read.partition_columns), list(metadata.partition_columns)
        reasons.append(f"it is partitioned by {before}, and would be by {after}")
    if read is None or read.schema_string != metadata.schema_string or not iceberg_compat(protocol, read):
        reasons += [*_of_type(schema, "", nests=2 in versions), *(_shared_ids(schema) if 2 in versions else ())]
    if reasons:
        raise InvalidInput(
            f"The table promises to be convertible to Iceberg (delta.enableIcebergCompatV{max(versions)}), but"
            f" {reasons[0]}. Nothing was written."
        )


def _of_table(versions: frozenset[int], protocol: Protocol, metadata: Metadata) -> Iterator[str]:
    if len(versions) > 1:
        yield "version 1 and version 2 cannot be active at once"
    if column_mapping(protocol, metadata) == "none":
        yield "it does not map its columns (delta.columnMapping.mode)"
    if "deletionVectors" in writer_features(protocol):
        if 1 in versions:
            yield "its protocol lists deletionVectors"
        if metadata.is_set("delta.enableDeletionVectors"):
            yield "delta.enableDeletionVectors is set"


def _of_files(actions: Sequence[Action]) -> Iterator[str]:
    for add in of_kind(actions, Add):
        if add.deletion_vector:
            yield f"{add.path!r} has a deletion vector"
        if num_records(add.stats) is None:
            yield f"the statistics of {add.path!r} do not say how many rows it has"


def _of_type(data_type: DataType, path: str, *, nests: bool, nested: "_NestedPlace | None" = None) -> Iterator[str]:
    """``path`` is by the user's names; ``nests``: whether lists and maps are allowed; ``nested``: where the closest
    field is left, by the names that its ids have."""
    match data_type:
        case StructType(fields=fields):
            for field in fields:
                yield from _of_field(field, f"{path}.{field.name}" if path else field.name, nests=nests)
        case ArrayType(element_type=element) if nests and nested:
            yield from _inner(element, path, nested, "element")
        case MapType(key_type=key, value_type=value) if nests and nested:
            yield from _inner(key, path, nested, "key")
            yield from _inner(value, path, nested, "value")
        case ArrayType() | MapType():
            yield f"column {path!r} is a list or a map, which only version 2 has"
        case _:
            if data_type not in _PRIMITIVES and decimal_of(data_type) is None:
                yield f"column {path!r} is of the type {data_type}"


def _inner(data_type: DataType, path: str, nested: "_NestedPlace", step: str) -> Iterator[str]:
    path, inside = f"{path}.{step}", nested.at(step)
    if inside.path not in inside.ids:
        yield f"{path!r} has no id in {NESTED_IDS}"
    yield from _of_type(data_type, path, nests=True, nested=inside)


def _of_field(field: StructField, path: str, *, nests: bool) -> Iterator[str]:
    for change in cast("list[Mapping[str, Any]]", field.metadata.get(CHANGES) or []):
        old, new = change.get("fromType", ""), change.get("toType", "")
        if not is_wider_for_iceberg(old, new):
            yield f"column {path!r} was changed from {old} to {new}"
    yield from _of_type(field.type, path, nests=nests, nested=_NestedPlace.of(field.name, field.metadata))


def _shared_ids(schema: StructType) -> Iterator[str]:
    """Ids of elements, keys and values that others have, too: of these, or of columns."""
    fields = [(".".join(part.path), part) for part in parts_of(schema)]
    used = {number: path for path, field in fields if isinstance(number := field.metadata.get(ID), int)}
    for path, field in fields:
        nested = _NestedPlace.of(field.path[-1], field.metadata)
        for inside, number in nested.ids.items():
            own = path + inside.removeprefix(nested.path)
            if (other := used.setdefault(number, own)) != own:
                yield f"{own!r} and {other!r} have one id, {number} ({NESTED_IDS})"


@dataclass(frozen=True, slots=True)
class _NestedPlace:
    """A place in a field's lists and maps, as the keys of its ids spell it, and all these ids."""

    path: str
    ids: Mapping[str, int]

    @classmethod
    def of(cls, field: str, metadata: Mapping[str, Any]) -> Self:
        name = metadata.get(PHYSICAL_NAME, field)
        old = cast("Mapping[str, int]", metadata.get(_OLD_NESTED_IDS) or {})
        new = cast("Mapping[str, int]", metadata.get(NESTED_IDS) or {})
        ids = {name + path.removeprefix(field): number for path, number in old.items()} | dict(new)
        return cls(name, {path: number for path, number in ids.items() if type(number) is int})

    def at(self, step: str) -> Self:
        return replace(self, path=f"{self.path}.{step}")
