"""Assets that are histories of events: when a frame was true, and which rows an input is to see of the events."""

from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Any

import dagster as dg
import pyarrow as pa

from dagster_versioned.assets.graph.inputs import COLUMNS_KEY, plain
from dagster_versioned.engines.frames import family_of, to_frame
from dagster_versioned.errors import InvalidInput
from dagster_versioned.odf.event_table import EventTable
from dagster_versioned.tables.read import VersionFiles
from dagster_versioned.tables.table import VersionedTable

EVENT_TIME_KEY = "dagster_versioned/event_time"
"""Output metadata that says when the rows were true that bring no event time: a time with a zone, or a date."""
WATERMARK_KEY = "dagster_versioned/watermark"
"""Output metadata: the event time before which no more events are expected, a time with a zone, or a date."""
AS_AT_KEY = "dagster_versioned/as_at"
"""`AssetIn` metadata: the rows as they were known at this system time."""
AS_OF_KEY = "dagster_versioned/as_of"
"""`AssetIn` metadata: the rows as they were at this event time, as far as is known now."""
PROJECTION_KEY = "dagster_versioned/projection"
"""`AssetIn` metadata: ``"current"`` (default), the rows that the events come to, or ``"events"``, these themselves."""

_BEFORE_ALL = datetime(1, 1, 1, tzinfo=UTC)


def event_time_of(context: dg.OutputContext) -> datetime | None:
    """When an output was true: as its metadata says, else the beginning of the partition. Raises `InvalidInput`."""
    given = plain(context.output_metadata, EVENT_TIME_KEY)
    if given is not None:
        return _moment(given, EVENT_TIME_KEY)
    if not context.has_asset_partitions:
        return None
    if len(keys := list(context.asset_partition_keys)) > 1:
        raise InvalidInput(
            f"The run covers {len(keys)} partitions of {context.asset_key.to_user_string()}, a history of events, "
            "which gets them one after the other. Nothing was written. Give the asset "
            "backfill_policy=dg.BackfillPolicy.multi_run(1)."
        )
    return _beginning(context.asset_partitions_def, keys[0])


def watermark_of(context: dg.OutputContext) -> datetime | None:
    """The watermark that an output's metadata sets. Raises `InvalidInput`."""
    return _time_in(context.output_metadata, WATERMARK_KEY)


def projected(context: dg.InputContext, table: VersionedTable, files: VersionFiles, frame_type: Any) -> Any:
    """What an input is to see of a history: as its metadata says, else as of the last of its partitions.

    Raises `InvalidInput` for metadata that contradict each other, or are no times.
    """
    metadata = context.definition_metadata
    as_at, as_of = (_time_in(metadata, key) for key in (AS_AT_KEY, AS_OF_KEY))
    if _wants_events(context):
        if as_at or as_of:
            raise InvalidInput(
                f"The input {context.name!r} asks for events and for rows at a time. Nothing was read. Leave one out."
            )
        return table.read_files(files, frame_type)
    if as_at is None and as_of is None and context.has_asset_partitions:
        as_of = _end_of_partitions(context)
    columns = plain(metadata, COLUMNS_KEY)
    is_arrow = family_of(frame_type) is not None
    kind = pa.Table if is_arrow and columns is not None else frame_type
    rows = EventTable(table).read(files.log_version, as_at=as_at, as_of=as_of, as_type=kind)
    if columns is None:
        return rows
    return to_frame(rows.select(list(columns)), frame_type) if is_arrow else rows.select(*columns)


def _end_of_partitions(context: dg.InputContext) -> datetime | None:
    """The time of the last of an input's partitions; before all, where there are none."""
    keys = list(context.asset_partition_keys)
    beginnings = [_beginning(context.asset_partitions_def, key) for key in keys]
    return max((moment for moment in beginnings if moment is not None), default=None if keys else _BEFORE_ALL)


def refuse_times(context: dg.InputContext) -> None:
    """Raise `InvalidInput` where an input asks for what only a history of events has."""
    for key in (AS_AT_KEY, AS_OF_KEY, PROJECTION_KEY):
        if plain(context.definition_metadata, key) is not None:
            raise InvalidInput(
                f"The input {context.name!r} has the metadata {key!r}, but its table is no history of events. Nothing "
                "was read. Leave it out, or give the upstream asset TableOptions(history=EventHistory(…))."
            )


def _wants_events(context: dg.InputContext) -> bool:
    given = plain(context.definition_metadata, PROJECTION_KEY)
    if given not in (None, "current", "events"):
        raise InvalidInput(f"{PROJECTION_KEY} is 'current' or 'events', not {given!r:.100}. Nothing was read.")
    return given == "events"


def _time_in(metadata: Mapping[str, Any] | None, key: str) -> datetime | None:
    given = plain(metadata, key)
    return None if given is None else _moment(given, key)


def _moment(value: Any, key: str) -> datetime:
    """A time with a zone, or the beginning of a date in UTC; also as text, in ISO 8601, or as Dagster's timestamp."""
    try:
        if isinstance(value, int | float):
            return datetime.fromtimestamp(value, UTC)
        if isinstance(value, date) and not isinstance(value, datetime):
            value = value.isoformat()
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
        if moment.tzinfo is not None:
            return moment
        if isinstance(value, str) and len(value) == len("2013-01-01"):
            return moment.replace(tzinfo=UTC)
    except (ValueError, TypeError):
        pass
    raise InvalidInput(f"{key} is {value!r:.100}, which is neither a time with a zone nor a date. Nothing was done.")


def _beginning(partitions: Any, key: str) -> datetime | None:
    if not isinstance(partitions, dg.TimeWindowPartitionsDefinition):
        return None
    return partitions.time_window_for_partition_key(key).start.astimezone(UTC)
