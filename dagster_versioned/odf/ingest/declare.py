"""What a manifest says of a dataset, put into its chain: its source, its columns, and what people are to know of it."""

from collections.abc import Callable
from typing import Any, Final, Unpack

import pyarrow as pa

from dagster_versioned.errors import InvalidInput
from dagster_versioned.odf.blocks.block_iterator import state_at
from dagster_versioned.odf.blocks.events import (
    AddPushSource,
    DatasetKind,
    MetadataEvent,
    SetAttachments,
    SetInfo,
    SetLicense,
    SetPollingSource,
    SetVocab,
)
from dagster_versioned.odf.blocks.validity import ChainState
from dagster_versioned.odf.dispatch import event_engine_for
from dagster_versioned.odf.event_slice import WriteDescription
from dagster_versioned.odf.event_sql import EventSchema
from dagster_versioned.odf.event_table import EventTable, data_columns
from dagster_versioned.odf.identity.multihash import Multihash
from dagster_versioned.odf.identity.signing_key import SigningKey
from dagster_versioned.odf.ingest.columns import read_schema
from dagster_versioned.odf.ingest.fetch import check_no_password
from dagster_versioned.odf.ingest.poll import Watermark, history_of, preprocess
from dagster_versioned.odf.manifest import DatasetSnapshot
from dagster_versioned.odf.sharing.remote import RemoteDataset
from dagster_versioned.tables.chain_head import chain_head
from dagster_versioned.tables.event_history import EventHistory
from dagster_versioned.tables.table import VersionedTable

Source = SetPollingSource | AddPushSource


def event_table(
    table: VersionedTable, snapshot: DatasetSnapshot, *, watermark: Watermark = "latest", key: SigningKey | None = None
) -> EventTable:
    """The table as the history that a manifest describes. Raises `InvalidInput` for one without a source."""
    return EventTable(table, declared_history(snapshot, watermark), key=key)


def declared_history(snapshot: DatasetSnapshot, watermark: Watermark = "latest") -> EventHistory:
    """How the rows of a manifest's source become events. Raises `InvalidInput` for a manifest without a source."""
    vocab = next((event for event in snapshot.metadata if isinstance(event, SetVocab)), None)
    return history_of(source_of(snapshot).merge, vocab, watermark)


def source_of(snapshot: DatasetSnapshot) -> Source:
    """The source that a manifest describes. Raises `InvalidInput` for none, several, and one with a password."""
    found = [event for event in snapshot.metadata if isinstance(event, SetPollingSource | AddPushSource)]
    if snapshot.kind is not DatasetKind.ROOT or len(found) != 1:
        raise InvalidInput(
            f"The manifest of {snapshot.name!r} is of kind {snapshot.kind.value} and has {len(found)} sources. Nothing "
            "was changed. Data come from one source, SetPollingSource or AddPushSource, into a dataset of kind Root; "
            "define a query as sql_asset."
        )
    (source,) = found
    if isinstance(source, SetPollingSource):
        check_no_password(source.fetch)
    return source


def declare(events: EventTable, snapshot: DatasetSnapshot, **described: Unpack[WriteDescription]) -> int:
    """Put into the chain what a manifest says and the chain does not yet; returns how many events that were.

    ``described`` is passed on to `EventTable.append`. A table that is new gets its columns: those that the source
    declares, as its query leaves them. Raises `InvalidInput` where it declares none, and for events that no manifest
    may bring.
    """
    state = current_state(events.table)
    new = [event for event in snapshot.metadata if _is_new(event, state)]
    if not new:
        return 0
    ground = events.ground()
    schema = ground.schema
    if schema is None:
        assert events.history is not None  # `event_table` gives one
        rows = event_engine_for(pa.Table).schema(columns_of(snapshot).empty_table())
        schema = EventSchema.of(data_columns(rows, events.history), events.history.columns, None)
    events.append_blocks(ground, schema, DatasetKind.ROOT, new, **described)
    return len(new)


def current_state(table: VersionedTable) -> ChainState | None:
    """What the chain of a table says, ``None`` before there is one. Raises `ChainCorrupt`."""
    end = chain_head(table.state.snapshot) if table.exists() else None
    return None if end is None else state_at(RemoteDataset(table.store), Multihash.parse(end.head))


def columns_of(snapshot: DatasetSnapshot) -> pa.Schema:
    """The columns that the rows of a source are declared to have, once its query has reshaped them.

    Raises `InvalidInput` where they are not declared: then they are known once there is data.
    """
    source = source_of(snapshot)
    schema = read_schema(source.read)
    if schema is None:
        raise InvalidInput(
            f"The manifest of {snapshot.name!r} does not declare columns (content.metadata, read.schema), so they "
            "are not known before there is data. Nothing was changed. Declare them, or ingest with the manifest."
        )
    return preprocess(schema.empty_table(), source.preprocess).schema


def _is_new(event: MetadataEvent, state: ChainState | None) -> bool:
    """Whether the chain does not say so yet. Raises `InvalidInput` for an event that only data bring."""
    if type(event) not in _KNOWN:
        raise InvalidInput(
            f"The manifest has the event {type(event).__name__}, which comes of data or of a query, and is not "
            "declared. Nothing was changed. Leave it out."
        )
    return state is None or _KNOWN[type(event)](state, event) != event


_KNOWN: Final[dict[type[MetadataEvent], Callable[[ChainState, Any], MetadataEvent | None]]] = {
    SetPollingSource: lambda state, event: state.polling_source,
    AddPushSource: lambda state, event: state.push_sources.get(event.source_name),
    SetInfo: lambda state, event: state.info,
    SetLicense: lambda state, event: state.license,
    SetAttachments: lambda state, event: state.attachments,
    SetVocab: lambda state, event: event,  # said at the start of a chain alone
}
"""What a chain says already, by the kind of event that a manifest may have."""
