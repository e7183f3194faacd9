"""Fixtures: a project in a folder, a table of it, and frames for it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

from dagster_versioned.delta.actions import Action, Protocol
from dagster_versioned.delta.commit.conflicts import NOTHING
from dagster_versioned.delta.commit.transaction import Transaction, commit
from dagster_versioned.delta.features import merge_protocol
from dagster_versioned.projects.project import Project
from dagster_versioned.tables import version_index
from dagster_versioned.tables.documents import publish
from dagster_versioned.tables.table import VersionedTable


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project.open("NYC", str(tmp_path / "store"), author="Ada <ada@example.org>")


@pytest.fixture
def table(project: Project) -> VersionedTable:
    return project.table("flights")


@pytest.fixture
def rows() -> pa.Table:
    return pa.table({"carrier": ["AA", "UA", None], "delay": [1, -2, 3]})


@pytest.fixture
def more(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows, pa.table({"carrier": ["B6"], "delay": [10]})])


@pytest.fixture
def every_fourth(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint, and a segment of the index, after every fourth commit."""
    monkeypatch.setattr(publish, "CHECKPOINT_INTERVAL", 4)
    monkeypatch.setattr(version_index, "SEGMENT", 4)


def numbered(*numbers: int) -> pa.Table:
    return pa.table({"n": list(numbers)})


def folder(table: VersionedTable) -> Path:
    """Where a local table lies."""
    path = table.store.local_path("_delta_log")
    assert path is not None
    return path.parent


def by_key(table: VersionedTable, version: int | str | None = None, *, key: str = "key") -> dict[Any, Any]:
    """The values of a table's rows, each of which has another key."""
    read = table.read(version)
    assert read.num_rows == len(set(read[key].to_pylist()))
    return dict(zip(read[key].to_pylist(), read["value"].to_pylist(), strict=True))


def altered(
    table: VersionedTable,
    *features: str,
    readers: tuple[str, ...] | None = None,
    schema: Mapping[str, Any] | None = None,
    properties: Mapping[str, str] | None = None,
    also: Sequence[Action] = (),
) -> VersionedTable:
    """The table, opened anew, to which another program gave features, another schema, properties, or more than that."""
    snapshot = table.state.snapshot
    metadata = replace(
        snapshot.metadata,
        schema_string=orjson.dumps(schema or snapshot.schema.to_json()).decode(),
        configuration={**snapshot.metadata.configuration, **(properties or {})},
    )
    protocol = merge_protocol(snapshot.protocol, Protocol(3 if readers else 1, 7, readers, features))
    commit(table.store, snapshot, lambda read: Transaction(read, [protocol, metadata, *also], "SET", NOTHING))
    return table.project.table(str(table.name))
