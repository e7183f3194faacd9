"""Clustered tables: by which columns rows are to lie together. Protocol: *Clustered Table*."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from dagster_versioned.delta.actions import DomainMetadata
from dagster_versioned.delta.schema.column_mapping import ColumnMapping, logical_path, physical_path
from dagster_versioned.delta.schema.types import DataType, StructType
from dagster_versioned.errors import InvalidInput, LogCorrupt

DOMAIN = "delta.clustering"

PROVIDER = "dagster-versioned"
"""What a file that this package sorted names as its ``clusteringProvider``."""

CLUSTERED_BY = "dagster-versioned.clusteredBy"
"""The tag of such a file with the columns that it is sorted by, by their physical names."""

_COLUMNS = "clusteringColumns"

Path = tuple[str, ...]


def clustering_columns(domains: Mapping[str, str], schema: StructType, mapping: ColumnMapping) -> tuple[Path, ...]:
    """The columns, as paths of their names in the table, that a snapshot's ``domains`` say the table is clustered by.

    Raises `LogCorrupt` where the domain makes no sense, or names a column that the schema does not have.
    """
    text = domains.get(DOMAIN)
    if text is None:
        return ()
    try:
        columns: Any = json.loads(text)[_COLUMNS]
        paths = [_path(column) for column in columns]
        return tuple(logical_path(schema, path, mapping) for path in paths)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise LogCorrupt(f"The metadata domain {DOMAIN} names no columns of the table: {text!r:.200}.") from error


def clustering_domain(columns: Sequence[Path], schema: StructType, mapping: ColumnMapping) -> DomainMetadata:
    """The action that has a table clustered by columns, given as paths of their names in the table; ``()``: by none.

    Raises `KeyError` for a path that is no column.
    """
    paths = [list(physical_path(schema, path, mapping)) for path in columns]
    return DomainMetadata(DOMAIN, json.dumps({_COLUMNS: paths}, ensure_ascii=False, separators=(",", ":")))


def clustering_tag(columns: Sequence[Path]) -> str:
    """The value of `CLUSTERED_BY` for columns by their physical paths."""
    return json.dumps(columns, ensure_ascii=False, separators=(",", ":"))


def is_clusterable(kind: DataType) -> bool:
    """Whether files can have the bounds of a column, which the protocol asks of those that a table is clustered by."""
    return isinstance(kind, str) and kind not in ("binary", "variant")


def require_clusterable(schema: StructType, names: Sequence[str]) -> None:
    """Raise `InvalidInput` unless rows with a schema can be clustered by these columns."""
    for name in names:
        if name not in schema.names:
            raise InvalidInput(
                f"cluster_by names {name!r}, which is no column. Nothing was written. The columns are: "
                f"{', '.join(map(repr, schema.names))}."
            )
        if not is_clusterable(schema.field(name).type):
            raise InvalidInput(
                f"cluster_by names {name!r}, whose type {schema.field(name).type!s:.100} has no bounds. Nothing was"
                " written. Choose columns that are neither nested nor binary."
            )


def _path(column: object) -> Path:
    """One column as its writer spelled it: a path, a name (the protocol's text), or an object that holds a path."""
    if isinstance(column, str):
        return (column,)
    names = cast("Mapping[str, object]", column)["physicalName"] if isinstance(column, Mapping) else column
    if (
        not isinstance(names, list)
        or not names
        or not all(isinstance(name, str) for name in cast("list[object]", names))
    ):
        raise ValueError(f"{column!r:.100} is no path")
    return tuple(cast("list[str]", names))
