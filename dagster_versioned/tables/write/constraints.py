"""Rows that must satisfy a table's constraints, before they are a version of it."""

from collections.abc import Mapping, Sequence
from typing import Any

from dagster_versioned.delta.actions import Add
from dagster_versioned.delta.schema.types import StructType
from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.engines.engine import Engine
from dagster_versioned.errors import InvalidInput
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.read import scan_of


def require_frame(engine: Engine, frame: Any, constraints: Mapping[str, str]) -> None:
    """Raise `InvalidInput` unless every row of a pinned frame satisfies every constraint: SQL by name."""
    for name, sql in constraints.items():
        if count := engine.violations(frame, sql):
            raise InvalidInput(
                f"The constraint {name!r} ({sql}) is false or null for {count} rows of the frame. Nothing was written. "
                f"Correct the rows, or the constraint."
            )


def require_rows(store: ObjectStore, schema: StructType, parts: Sequence[Add], constraints: Mapping[str, str]) -> None:
    """Raise `InvalidInput` unless every row of parts that the table has already does; one part in memory at a time."""
    engine = ArrowEngine()
    for name, sql in constraints.items():
        count = sum(engine.violations(engine.read(scan_of(store, schema, [part])), sql) for part in parts)
        if count:
            raise InvalidInput(
                f"The constraint {name!r} ({sql}) is false or null for {count} rows that would be in the table. "
                "Nothing was changed. Replace these rows, or change the constraint."
            )
