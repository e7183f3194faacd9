"""What is looked up again of materializations: which version each made, and by which commit."""

from collections.abc import Sequence
from typing import Any

import dagster as dg

from dagster_versioned.assets.graph.inputs import plain

URI_KEY = "dagster/uri"
METADATA_SHA_KEY = "dagster_versioned/metadata_sha"
LOG_VERSION_KEY = "dagster_versioned/log_version"
COMMIT_KEY = "dagster_versioned/commit_sha256"
OUTLINE_KEY = "dagster_versioned/commit_outline"
"""The SHA-256 of the bytes of the commit."""
STATE_KEY = "dagster_versioned/state"
"""Metadata of a materialization: ``parked`` or ``published``, where an asset is published after its checks."""
DRAFT_KEY = "dagster_versioned/draft"
DRAFT_SHA_KEY = "dagster_versioned/draft_sha256"
"""The id of a parked draft, and the SHA-256 of all that was parked."""


def materializations(
    instance: dg.DagsterInstance, key: dg.AssetKey, partition: str | None, limit: int = 1
) -> Sequence[dg.EventLogRecord]:
    """Those of a cell, the newest first."""
    wanted = dg.AssetRecordsFilter(key, asset_partitions=None if partition is None else [partition])
    return instance.fetch_materializations(wanted, limit=limit).records


def stated(record: dg.EventLogRecord | dg.EventLogEntry, key: str) -> Any:
    """What the metadata of a materialization say; ``None`` where it has no such key."""
    made = record.asset_materialization
    return None if made is None else plain(made.metadata, key)
