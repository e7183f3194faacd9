"""Delta logs made by hand, action by action, and all that a snapshot of one says."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from dagster_versioned.delta.actions import Action, Add, DomainMetadata, Remove, Txn, encode_action
from dagster_versioned.delta.log.commits import commit_key
from dagster_versioned.delta.log.snapshot import Snapshot
from dagster_versioned.delta.schema.types import StructType
from dagster_versioned.storage import ObjectStore

SCHEMA = '{"type":"struct","fields":[{"name":"x","type":"long","nullable":true,"metadata":{}}]}'


def put_commit(store: ObjectStore, version: int, actions: Iterable[Action]) -> None:
    """Put these actions as a commit, and nothing else: a ``commitInfo`` only where one is among them."""
    store.put(commit_key(version), b"\n".join(map(encode_action, actions)))


def put_raw_log(
    folder: Path,
    schema: StructType,
    *files: dict[str, Any],
    protocol: dict[str, Any] | None = None,
    partition_by: Sequence[str] = (),
    **configuration: str,
) -> None:
    """Put a first commit in the protocol's own words, with files that are there; of each, ``path`` and what is unusual
    about it."""
    usual = {"partitionValues": {}, "modificationTime": 0, "dataChange": True}
    metadata = {
        "id": "1",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema.json(),
        "partitionColumns": partition_by,
        "configuration": configuration,
    }
    actions = [
        {"protocol": protocol or {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": metadata},
        *({"add": {**usual, "size": (folder / file["path"]).stat().st_size, **file}} for file in files),
    ]
    (folder / "_delta_log").mkdir()
    (folder / "_delta_log" / f"{0:020d}.json").write_text("\n".join(map(json.dumps, actions)))


def concern(action: Action) -> object:
    """What an action is about; a commit may speak of each thing once."""
    match action:
        case Add() | Remove():
            return action.key
        case Txn():
            return "txn", action.app_id
        case DomainMetadata():
            return "domain", action.domain
        case _:
            return type(action)


def content(snapshot: Snapshot) -> tuple[Any, ...]:
    """Everything that a snapshot says, in a form that can be compared."""

    def rows(table: pa.Table) -> list[str]:
        return sorted(map(repr, table.to_pylist()))

    return (
        (snapshot.version, snapshot.protocol, snapshot.metadata, snapshot.schema, snapshot.txns, snapshot.domains),
        (snapshot.timestamp_ms, snapshot.commit_sha256, rows(snapshot.files), rows(snapshot.tombstones)),
    )
