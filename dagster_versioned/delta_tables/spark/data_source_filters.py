"""Filters that Spark pushes to the format ``versioned``: by them, files are passed over before any is opened."""

from collections.abc import Iterable, Sequence
from datetime import date, datetime
from typing import Any

from pyspark.sql.datasource import Filter

from dagster_versioned.delta.files.predicate import (
    And,
    Comparison,
    In,
    IsNull,
    Not,
    Opaque,
    Operator,
    Predicate,
    StartsWith,
)
from dagster_versioned.delta.files.skipping import candidates
from dagster_versioned.delta.log.change_feed import CHANGE_TYPE
from dagster_versioned.delta.log.snapshot import Snapshot
from dagster_versioned.delta.schema.types import DataType, StructType
from dagster_versioned.delta_tables.spark.data_source_tasks import TableReader
from dagster_versioned.engines.scan import Scan

_OPERATORS: dict[str, Operator] = {
    "EqualTo": "=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
}

_KINDS: dict[str, type] = {
    "boolean": bool,
    "byte": int,
    "short": int,
    "integer": int,
    "long": int,
    "string": str,
    "date": date,
    "timestamp": datetime,
    "timestamp_ntz": datetime,
}
"""Types whose values Spark hands over exactly. Of others nothing is concluded."""


class FilteringTableReader(TableReader):
    """Leaves out the files whose partition values or statistics show that no row can match; Spark filters the rest."""

    def __init__(self, scan: Scan, snapshot: Snapshot) -> None:
        super().__init__(scan)
        self.snapshot: Snapshot | None = snapshot
        self.feed = CHANGE_TYPE in scan.schema.names
        """Whether these are changes, whose files are not those of the snapshot."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - PySpark's name
        assert self.snapshot is not None
        table = self.snapshot
        if self.feed:
            return filters
        predicate = And(tuple(predicate_of(filter_, table.schema) for filter_ in filters))
        kept = candidates(table.files, predicate, table.schema, table.column_mapping, table.partition_columns)
        keys = frozenset(kept["key"].to_pylist())
        self.files = tuple(file for file in self.files if file.key in keys)
        return filters

    def __getstate__(self) -> dict[str, Any]:
        """What the tasks need."""
        return {"scan": self.scan}


def predicate_of(condition: Any, schema: StructType) -> Predicate:
    """What a filter says of the table's columns."""
    kind = type(condition).__name__
    if kind == "Not":
        return Not(predicate_of(condition.child, schema))
    data_type = _type_of(schema, condition.attribute)
    if data_type is None:
        return Opaque()
    match kind:
        case "IsNull":
            return IsNull(condition.attribute)
        case "IsNotNull":
            return Not(IsNull(condition.attribute))
        case "StringStartsWith" if data_type == "string":
            return StartsWith(condition.attribute, condition.value, True)
        case "In" if all(_is_exact(value, data_type) for value in condition.value):
            return In(condition.attribute, tuple(condition.value))
        case _ if kind in _OPERATORS and _is_exact(condition.value, data_type):
            return Comparison(condition.attribute, _OPERATORS[kind], condition.value, condition.value)
        case _:
            return Opaque()


def _is_exact(value: Any, data_type: str) -> bool:
    if type(value) is not _KINDS.get(data_type):
        return False
    return not isinstance(value, datetime) or (value.tzinfo is not None) == (data_type == "timestamp")


def _type_of(schema: StructType, path: Sequence[str]) -> str | None:
    """The type of a column that is not nested, at any depth of structs."""
    data_type: DataType = schema
    for name in path:
        if not isinstance(data_type, StructType) or name not in data_type.names:
            return None
        data_type = data_type.field(name).type
    return data_type if isinstance(data_type, str) else None
