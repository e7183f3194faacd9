"""The verbs for histories of events and their chains of blocks. Heavy imports wait until a verb runs."""

import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from dagster_versioned.cli import sharing
from dagster_versioned.cli.arguments import TableArgument, argument, flag, option, parse_moment
from dagster_versioned.cli.chain_arguments import (
    KeyFile,
    KeyVariable,
    Manifest,
    Sources,
    Variables,
    chain_source,
    changed_name,
    dataset_table,
    datasets_at,
    find_block,
    history,
    private_key,
    snapshot_of,
    variables_named,
)
from dagster_versioned.cli.commands import Commands
from dagster_versioned.cli.failures import ExitCode
from dagster_versioned.cli.session import Session
from dagster_versioned.cli.terminal import Fields, Table, counted, human_size, progress, say
from dagster_versioned.errors import InvalidInput

if TYPE_CHECKING:
    from dagster_versioned.odf.blocks.block import Block
    from dagster_versioned.odf.blocks.events import AddPushSource, SetPollingSource
    from dagster_versioned.odf.blocks.validity import ChainState
    from dagster_versioned.odf.event_table import EventTable
    from dagster_versioned.odf.identity.multihash import Multihash
    from dagster_versioned.odf.identity.signing_key import SigningKey
    from dagster_versioned.odf.ingest.poll import IngestedFile
    from dagster_versioned.odf.manifest import DatasetSnapshot
    from dagster_versioned.tables.table import VersionedTable

command = Commands("Histories of events")
_SHORT = 16


# --- make ------------------------------------------------------------------------------------------------------------


@command("odf init cities.key")
def init(
    session: Session,
    file: Annotated[Path, argument("FILE", "Where the private key goes; must not be there yet.")],
) -> None:
    """Make a private key, and with it an identity for a new dataset."""
    from dagster_versioned.odf.identity.signing_key import SigningKey

    key = SigningKey.generate()
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise InvalidInput(
            f"The key cannot be written to {file} ({error.strerror}). Nothing was made. Name a file that is not there: "
            "a key that is lost cannot be made again."
        ) from None
    with os.fdopen(handle, "w") as out:
        out.write(f"{key.secret}\n")
    session.show(
        {"dataset_id": key.dataset_id, "file": file},
        str(key.dataset_id),
        note=f"The private key is in {file}. Put it where secrets are kept, and nowhere else.",
    )


@command("odf add cities.yaml", "odf add cities.yaml --table cities --key-file cities.key", "odf add acme/cities")
def add(
    session: Session,
    manifest: Manifest,
    table: Annotated[str | None, option("--table", "TABLE", "By default the dataset's name.")] = None,
    key_file: KeyFile = None,
    key_env: KeyVariable = None,
) -> None:
    """Put what a manifest says into a dataset's chain: its source, its columns, its licence. New, or changed since.

    A dataset of a repository is pulled. The query of a dataset that is computed from others is run over what is new in
    them.
    """
    from dagster_versioned.odf.blocks.events import DatasetKind
    from dagster_versioned.odf.ingest.declare import declare, event_table
    from dagster_versioned.odf.sharing.repositories import place_of

    if not manifest.exists() and place_of(session.production(), str(manifest))[1] is not None:
        sharing.pull(session, str(manifest), table)
        return
    snapshot = snapshot_of(manifest)
    opened = dataset_table(session, table or changed_name(snapshot.name))
    key = private_key(key_file, key_env)
    if snapshot.kind is DatasetKind.DERIVATIVE:
        from dagster_versioned.odf.queries.derivative import add_derivative

        derived, added = add_derivative(opened, snapshot, changed_name, key=key)
        ran = derived.result.change != "none"
        done = "the query ran" if ran else "nothing is new in its inputs"
        session.show({"table": opened.name, "events": added, "ran": ran}, f"{opened.name}: {done}")
        return
    added = declare(event_table(opened, snapshot, key=key), snapshot)
    done = f"{counted(added, 'event')} of metadata added" if added else "nothing is new"
    session.show({"table": opened.name, "events": added}, f"{opened.name}: {done}")


@command("odf set-watermark cities 2013-07-01")
def set_watermark(
    session: Session,
    table: TableArgument,
    time: Annotated[str, argument("TIME", "Before it no more events are expected; or a span ago.")],
    key_file: KeyFile = None,
    key_env: KeyVariable = None,
) -> None:
    """State, without adding data, the event time before which no more events of a dataset are expected."""
    from dagster_versioned.odf.event_table import EventTable

    opened = history(dataset_table(session, table))
    events = EventTable(opened, key=private_key(key_file, key_env))
    before = events.chain.watermark
    events.set_watermark(parse_moment(time, datetime.now(UTC)))
    after = events.chain.watermark
    still = "still " if after == before else ""
    session.show(
        {"table": opened.name, "before": before and str(before), "watermark": str(after)},
        f"{opened.name}: the watermark is {still}{after}",
    )


@command(
    "odf ingest cities --key-file cities.key",
    "odf ingest cities --manifest cities.yaml --var TOKEN",
    "odf ingest trips trips.parquet",
)
def ingest(
    session: Session,
    table: TableArgument,
    files: Annotated[list[Path] | None, argument("FILE", "Files to add instead of what is fetched.")] = None,
    manifest: Annotated[Path | None, option("--manifest", "FILE", "By default as the chain says.")] = None,
    source: Annotated[str | None, option("--source", "NAME", "The push source, where there are several.")] = None,
    event_time: Annotated[
        str | None, option("--event-time", "TIME", "What the files are as of; now if left out.")
    ] = None,
    local_addresses: Annotated[
        bool, flag("--local-addresses", "Let a source that is not yours reach this machine and its network.")
    ] = False,
    var: Variables = None,
    key_file: KeyFile = None,
    key_env: KeyVariable = None,
) -> None:
    """Add what is new in a dataset's source, or files: each one block and one version."""
    from dagster_versioned.odf.ingest.declare import declare

    opened = dataset_table(session, table)
    key = private_key(key_file, key_env)
    snapshot = None if manifest is None else snapshot_of(manifest)
    events, step = _events_and_source(opened, snapshot, source, key)
    if files:
        added = _files_added(events, step, files, event_time)
    else:
        # The chain may be a copy of somebody else's.
        own = snapshot is not None or key is not None
        added = _polled(session, events, step, variables_named(var), own, local_addresses)
    found: list[dict[str, Any]] = []
    for each in added:
        found.append({"file": each.file, "change": each.result.change, "version": each.result.version.metadata_sha})
        if not session.json:
            say(f"{each.file}: {'nothing is new' if each.result.change == 'none' else each.result.version.short}")
    if snapshot is not None:
        declare(events, snapshot)
    session.show({"table": opened.name, "files": found}, None if found else f"{opened.name}: nothing is new")


def _events_and_source(
    opened: "VersionedTable", snapshot: "DatasetSnapshot | None", source: str | None, key: "SigningKey | None"
) -> "tuple[EventTable, SetPollingSource | AddPushSource]":
    from dagster_versioned.odf.event_table import EventTable
    from dagster_versioned.odf.ingest.declare import current_state, event_table, source_of
    from dagster_versioned.odf.ingest.poll import history_of

    if snapshot is not None:
        return event_table(opened, snapshot, key=key), source_of(snapshot)
    state = current_state(opened)
    step = chain_source(opened, state, source)
    assert state is not None  # else it has no source
    return EventTable(opened, history_of(step.merge, state.vocab), key=key), step


def _files_added(
    events: "EventTable", step: "SetPollingSource | AddPushSource", files: list[Path], event_time: str | None
) -> "Iterator[IngestedFile]":
    from dagster_versioned.odf.ingest.poll import add_file

    when = None if event_time is None else parse_moment(event_time, datetime.now(UTC))
    return (add_file(events, step, file, when) for file in files)


def _polled(
    session: Session,
    events: "EventTable",
    step: "SetPollingSource | AddPushSource",
    variables: dict[str, str],
    own: bool,
    local_addresses: bool,
) -> "Iterable[IngestedFile]":
    from dagster_versioned.odf.blocks.events import SetPollingSource
    from dagster_versioned.odf.ingest.poll import Polling, poll

    if not isinstance(step, SetPollingSource):
        raise InvalidInput(
            f"The source of {events.table.name} is pushed to, not polled. Nothing was added. Name files."
        )
    polling = Polling(variables=variables, local_files=own, local_addresses=local_addresses, profile=session.profile)
    return poll(events, step, polling)


# --- look ------------------------------------------------------------------------------------------------------------


@command("odf log cities", "odf log cities --limit 5 --json")
def log(
    session: Session,
    table: TableArgument,
    limit: Annotated[int | None, flag("--limit", "At most so many.", min=1)] = None,
) -> None:
    """List the blocks of a dataset's chain, newest first; each is read and checked by its hash."""
    from itertools import islice

    from dagster_versioned.odf.event_table import EventTable

    opened = history(dataset_table(session, table))
    blocks = list(islice(EventTable(opened).blocks(), limit))
    session.show(
        {"table": opened.name, "blocks": [_block_document(name, block) for name, block in blocks]},
        Table(
            ["number", "hash", "time", "event", ""],
            [
                (
                    *(block.sequence_number, str(name)[:_SHORT], str(block.system_time)[:19].replace("T", " ")),
                    *(type(block.event).__name__, _in_short(block)),
                )
                for name, block in blocks
            ],
            right=("number",),
        ),
    )


@command("odf tail cities", "odf tail cities --limit 50")
def tail(
    session: Session,
    table: TableArgument,
    limit: Annotated[int, flag("--limit", "How many.", min=1)] = 20,
) -> None:
    """Show the last events of a dataset, in the order of their offsets."""
    from dagster_versioned.cli import rows
    from dagster_versioned.odf.event_table import EventTable

    opened = history(dataset_table(session, table))
    events = EventTable(opened).events()
    shown = rows.plain_rows(events.slice(max(0, events.num_rows - limit)))
    session.show(
        {"table": opened.name, "total": events.num_rows, "events": shown},
        Table(events.column_names, [list(row.values()) for row in shown], right=[events.column_names[0]]),
    )


@command("odf inspect cities", "odf inspect cities 3")
def inspect(
    session: Session,
    table: TableArgument,
    block: Annotated[str | None, argument("BLOCK", "A block: its number, or its hash.")] = None,
) -> None:
    """Show the state of a dataset's chain: whose it is, its source and licence, how far it is; or what a block says."""
    from dagster_versioned.odf.manifest import write_manifest

    opened = history(dataset_table(session, table))
    if block is not None:
        name, found = find_block(opened, block)
        session.show(_block_document(name, found), iter(write_manifest("MetadataBlock", found).splitlines()))
        return
    document = _chain_document(opened)
    shown = {**document, **{name: ", ".join(document[name]) for name in ("columns", "inputs")}}
    session.show(
        document, Fields((name.replace("_", " "), value) for name, value in shown.items() if value not in (None, ""))
    )


@command("odf verify cities", "odf verify delays --recursive --replay", "odf verify copy --from lake/cities")
def verify(
    session: Session,
    table: TableArgument,
    recursive: Annotated[
        bool, flag("--recursive", "Also the datasets that it was made from, up to the roots.")
    ] = False,
    replay: Annotated[
        bool, flag("--replay", "Moreover run every recorded query again, and compare; needs Java.")
    ] = False,
    source: Sources = None,
) -> ExitCode:
    """Prove that a dataset is what its chain promises: blocks, slices, signature; and with --replay how it was made."""
    from dagster_versioned.cli.chain_reports import report_document, report_lines
    from dagster_versioned.odf.queries.transform import replay as run_again
    from dagster_versioned.odf.sharing.remote import dataset_of
    from dagster_versioned.odf.verification.verify import verify as verify_dataset

    opened = history(dataset_table(session, table))
    snapshot = opened.state.snapshot
    found = datasets_at(session, opened, source)
    with progress("Verifying", quiet=session.quiet) as note:
        report = verify_dataset(
            dataset_of(opened),
            resolve=found if recursive or replay else None,
            replay=run_again if replay else None,
            log=snapshot,
            progress=note,
        )
    session.show(
        {"ok": report.ok, "datasets": [report_document(each) for each in report.datasets]},
        (line for each in report.datasets for line in report_lines(each)),
    )
    return ExitCode.OK if report.ok else ExitCode.FINDINGS


@command("odf explain delays 17", "odf explain delays 17 --json")
def explain(
    session: Session,
    table: TableArgument,
    offset: Annotated[int, argument("OFFSET", "The event's offset, as `odf tail` shows it.", min=0)],
    source: Sources = None,
) -> None:
    """Say where an event comes from: the rows that it was made of, and how, down to the roots. Queries need Java."""
    from dagster_versioned.cli.chain_reports import explanation_document, explanation_lines
    from dagster_versioned.engines.spark import default_session
    from dagster_versioned.odf.identity.multihash import Multihash
    from dagster_versioned.odf.queries.provenance import explain as explain_event
    from dagster_versioned.odf.sharing.remote import RemoteDataset
    from dagster_versioned.tables.chain_head import chain_head

    opened = history(dataset_table(session, table))
    end = chain_head(opened.state.snapshot)
    assert end is not None  # a history of events has a chain
    found = explain_event(
        RemoteDataset(opened.store),
        Multihash.parse(end.head),
        offset,
        datasets_at(session, opened, source),
        default_session(),
    )
    session.show(explanation_document(found), iter(explanation_lines(found)))


# --- inside ----------------------------------------------------------------------------------------------------------


def _chain_document(table: "VersionedTable") -> dict[str, Any]:
    from dagster_versioned.odf.ingest.declare import current_state
    from dagster_versioned.odf.manifest import to_document

    state = current_state(table)
    assert state is not None  # a history of events has a chain
    return {
        "table": str(table.name),
        "dataset_id": str(state.seed.dataset_id),
        "kind": state.seed.dataset_kind.value,
        "head": str(state.head),
        "blocks": state.sequence_number + 1,
        "events": state.next_offset,
        "system_time": str(state.system_time),
        "watermark": state.watermark and str(state.watermark),
        "description": state.info.description,
        "license": state.license and state.license.short_name,
        **_source_members(state),
        "inputs": [entry.dataset_ref for entry in state.transform.inputs] if state.transform is not None else [],
        "transform": None if state.transform is None else to_document(state.transform.transform),
    }


def _source_members(state: "ChainState") -> dict[str, Any]:
    from dagster_versioned.odf.blocks.arrow_schema import fields_of

    schema = state.arrow_schema()
    source = state.polling_source or next(iter(state.push_sources.values()), None)
    return {
        "columns": [] if schema is None else [f"{field.name} {field.type}" for field in fields_of(schema)],
        "source": None if source is None else type(source).__name__,
        "merge": None if source is None else type(source.merge).__name__.removeprefix("MergeStrategy"),
    }


def _block_document(name: "Multihash", block: "Block") -> dict[str, Any]:
    from dagster_versioned.odf.manifest import to_document

    return {"hash": str(name), "kind": type(block.event).__name__, **to_document(block)}


def _in_short(block: "Block") -> str:
    """What is most worth knowing of a block, in a few words."""
    from dagster_versioned.odf.blocks.events import AddData, ExecuteTransform, SetInfo

    match block.event:
        case AddData(new_data=data) | ExecuteTransform(new_data=data) if data is not None:
            rows = data.offset_interval.end - data.offset_interval.start + 1
            return f"{counted(rows, 'event')}, {human_size(data.size)}"
        case SetInfo(description=text) if text:
            return text[:60]
        case _:
            return ""
