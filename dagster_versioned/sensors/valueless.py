"""What runs made without a value: a `MaterializeResult` alone, or an optional output that was not emitted."""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from dagster_versioned.assets.graph.materialization_keys import METADATA_SHA_KEY, materializations, stated

Cells = Collection[str | None]
"""Partitions of an asset; ``None`` for one without partitions."""


class Valueless:
    """Which cells that have no version were made without one, as Dagster's event log says now.

    What is remembered is a cache: an asset of which something new was planned or made is asked for again, as is one
    whose last run has not ended.
    """

    def __init__(self) -> None:
        self._known: dict[dg.AssetKey, tuple[Any, frozenset[str | None]]] = {}

    def look(
        self, instance: dg.DagsterInstance, cells: Mapping[dg.AssetKey, Cells], skippable: Collection[dg.AssetKey]
    ) -> dict[dg.AssetKey, frozenset[str | None]]:
        """Of cells without a version, by asset, those that were made without; ``skippable`` are optional outputs."""
        known, self._known = self._known, {}
        for record in instance.get_asset_records(list(cells)):
            entry = record.asset_entry
            key, last = entry.asset_key, entry.last_materialization_record
            run = instance.get_run_by_id(entry.last_run_id) if entry.last_run_id is not None else None
            stamp = (last and last.storage_id, entry.last_run_id, run and run.status, frozenset(cells[key]))
            before, found = known.get(key, (None, frozenset[str | None]()))
            if before != stamp:
                found = frozenset(cell for cell in cells[key] if _is_valueless(instance, key, cell, key in skippable))
            self._known[key] = stamp, found
        return {key: found for key, (_, found) in self._known.items() if found}


def _is_valueless(instance: dg.DagsterInstance, key: dg.AssetKey, cell: str | None, is_skippable: bool) -> bool:
    if records := materializations(instance, key, cell):
        return stated(records[0], METADATA_SHA_KEY) is None
    return is_skippable and planned_and_done(instance, key, cell) is not None


def planned_and_done(instance: dg.DagsterInstance, key: dg.AssetKey, cell: str | None) -> datetime | None:
    """When the last run began that was to make a cell of an optional output, if it succeeded, whether it made it or
    not."""
    planned = instance.get_latest_planned_materialization_info(key, cell)
    record = instance.get_run_record_by_id(planned.run_id) if planned is not None else None
    if record is None or record.start_time is None or record.dagster_run.status != dg.DagsterRunStatus.SUCCESS:
        return None
    return datetime.fromtimestamp(record.start_time, UTC)
