"""Every program that we promise can read our tables, behind one signature; and how to compare what they return.

Each reader takes the table's folder and a log version (`None`: the head) and returns what the program returned, as
Arrow. Comparison is of types by what they mean (a view or large string is a string) and of rows as a multiset, bit for
bit: -0.0 is not 0.0, and a NaN equals a NaN.
"""

from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pyarrow as pa

from dagster_versioned.bounds import release_of
from dagster_versioned.delta.schema.types import parse_schema, schema_from_arrow


def by_deltalake(folder: Path, version: int | None = None) -> pa.Table:
    return deltalake.DeltaTable(str(folder), version=version).to_pyarrow_table()


def by_datafusion(folder: Path, version: int | None = None, where: str = "") -> pa.Table:
    query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(str(folder), version=version))
    return pa.table(query.execute(f"select * from t {where}").read_all())


def by_polars(folder: Path, version: int | None = None) -> pa.Table:
    return pl.read_delta(str(folder), version=version).to_arrow()


def by_polars_lazily(folder: Path, version: int | None = None) -> pa.Table:
    frame = pl.scan_delta(str(folder), version=version)
    return frame.select(reversed(frame.collect_schema().names())).collect().to_arrow()


READS_WITH_POLARS = release_of(pl.__version__) >= (1, 38)
"""Older ones panic at maps, or skip files whose statistics they take for others."""

PRUNES_WITH_POLARS = release_of(pl.__version__) >= (2,)
"""Older ones panic at the bounds of dates in structs, too."""

DELTA_READERS = [by_deltalake, by_datafusion, *[by_polars, by_polars_lazily] * READS_WITH_POLARS]


def types(table: pa.Table) -> dict[str, Any]:
    """The columns' types as Delta has them, without nullability."""
    schema = schema_from_arrow(table.schema).all_nullable()
    return {field["name"]: _without_maps(field["type"]) for field in parse_schema(schema.to_json()).to_json()["fields"]}


def rows(table: pa.Table) -> Counter[str]:
    """The rows, in no order, each with its columns in name order."""
    names = sorted(table.column_names)
    columns = [table[name].to_pylist() for name in names]
    return Counter(repr([_plain(value) for value in row]) for row in zip(*columns, strict=True))


def assert_same(found: pa.Table, expected: pa.Table) -> None:
    """The same columns, types and rows; in no order."""
    assert types(found) == types(expected)
    assert rows(found) == rows(expected)


def _without_maps(data_type: Any) -> Any:
    """Polars has no maps: a map is a list of key and value there, so it is one here."""
    if not isinstance(data_type, dict):
        return data_type
    if data_type["type"] == "map":
        entry = {"key": _without_maps(data_type["keyType"]), "value": _without_maps(data_type["valueType"])}
        return {"array": {"struct": entry}}
    if data_type["type"] == "array":
        return {"array": _without_maps(data_type["elementType"])}
    return {"struct": {field["name"]: _without_maps(field["type"]) for field in data_type["fields"]}}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return {"key": _plain(value[0]), "value": _plain(value[1])}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value.isoformat() if isinstance(value, datetime) else value  # one zone may be written in two ways
