"""Polling a source: whatever is new in it becomes events of a table, one file and one commit after the other.

How far a source was read is part of the very block that holds what was read, so that a poll that is repeated, or was
killed half way, neither loses a file nor adds one twice. Source: seed 002 ("Polling Sources").
"""

import gzip
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Literal, Unpack

import pyarrow as pa
from pydantic import ValidationError

from dagster_versioned.errors import InvalidInput
from dagster_versioned.odf.blocks.events import (
    AddData,
    AddPushSource,
    CompressionFormat,
    MergeStrategy,
    PrepStep,
    PrepStepDecompress,
    PrepStepPipe,
    SetPollingSource,
    SetVocab,
    SourceState,
    SqlQueryStep,
    TransformSql,
)
from dagster_versioned.odf.event_blocks import merge_strategy
from dagster_versioned.odf.event_slice import WriteDescription
from dagster_versioned.odf.event_table import EventTable
from dagster_versioned.odf.ingest.fetch import (
    SOURCE_NAME,
    FetchedFile,
    FetchOptions,
    Polling,
    SourceFile,
    check_no_password,
    fetch,
)
from dagster_versioned.odf.ingest.read import read
from dagster_versioned.odf.ingest.texts import rows_in_utc
from dagster_versioned.odf.transform_query import QueryStep, TransformQuery
from dagster_versioned.storage.temporary import TemporaryFolder
from dagster_versioned.tables.event_history import EventHistory
from dagster_versioned.tables.write.write import WriteResult

Watermark = Literal["latest", "manual"] | timedelta

_PIECE_BYTES = 1024**2


@dataclass(frozen=True, slots=True)
class IngestedFile:
    """A file that was read, and the version that the table has since; ``change`` of it may be ``"none"``."""

    file: str
    event_time: datetime | None
    result: WriteResult


def history_of(merge: MergeStrategy, vocab: SetVocab | None = None, watermark: Watermark = "latest") -> EventHistory:
    """How the rows of a source become events, as its block says it. Raises `InvalidInput` for columns that clash."""
    columns = vocab or SetVocab()
    names = {
        "offset": columns.offset_column,
        "operation_type": columns.operation_type_column,
        "system_time": columns.system_time_column,
        "event_time": columns.event_time_column,
    }
    given = {name: column for name, column in names.items() if column is not None}
    try:
        return EventHistory.model_validate({"merge": merge_strategy(merge), "watermark": watermark, **given})
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise InvalidInput(
            f"The columns of events and the key do not go together: {reason}. Nothing was changed. Correct SetVocab or "
            "primaryKey in the manifest."
        ) from None


def poll(
    events: EventTable, source: SetPollingSource, polling: Polling, **described: Unpack[WriteDescription]
) -> Iterator[IngestedFile]:
    """Add what is new in a source to a table, file by file; each is committed before the next is read.

    ``described`` is passed on to `EventTable.write`. Raises what fetching, reading and writing do; what was
    committed by then stays, and the next poll goes on after it.
    """
    check_no_password(source.fetch)
    with TemporaryFolder() as folder:
        asked = {item.name: getattr(polling, item.name) for item in fields(polling)}
        fetching = FetchOptions(**asked, folder=folder, now=datetime.now(UTC))
        for found in fetch(source.fetch, states(events, source), fetching):
            file = prepare(found.file, source.prepare or (), folder, max_bytes=polling.max_bytes)
            rows = preprocess(read(file, source.read, max_bytes=polling.max_bytes), source.preprocess)
            result = events.write(rows, event_time=_of(found), source=source, source_state=found.state, **described)
            yield IngestedFile(found.file.name, found.event_time, result)


def add_file(
    events: EventTable, source: SetPollingSource | AddPushSource, path: Path, event_time: datetime | None = None
) -> IngestedFile:
    """Add a file to a table as the source would read it; given twice, it is added twice, as far as merging goes.

    Raises what reading and writing do.
    """
    if not path.is_file():
        raise InvalidInput(f"{path} is not there, or no file. Nothing was added.")
    rows = preprocess(read(SourceFile(str(path), path), source.read), source.preprocess)
    return IngestedFile(str(path), event_time, events.write(rows, event_time=event_time, source=source))


def _of(found: FetchedFile) -> datetime | None:
    """The file's event time as tables keep it, in milliseconds."""
    when = found.event_time
    return None if when is None else when.replace(microsecond=when.microsecond // 1000 * 1000)


def states(events: EventTable, source: SetPollingSource) -> Sequence[SourceState]:
    """What the chain says of how far the source was read, the newest last; nothing of another source before it."""
    if not events.table.exists():
        return ()
    found: list[SourceState] = []
    since: list[SourceState] = []  # of whichever source stands before them
    for _, block in events.blocks():
        match block.event:
            case AddData(new_source_state=SourceState(source_name=name) as state) if name == SOURCE_NAME:
                since.append(state)
            case SetPollingSource(fetch=step):
                if step != source.fetch:
                    break
                found += since
                since = []
            case _:
                pass
    return tuple(reversed(found))


def prepare(file: SourceFile, steps: Sequence[PrepStep], folder: Path, *, max_bytes: int) -> SourceFile:
    """The file after all steps, in ``folder``; of at most ``max_bytes`` after each.

    Raises `InvalidInput` for a file that cannot be unpacked, and for steps that run a command.
    """
    for number, step in enumerate(steps):
        match step:
            case PrepStepDecompress():
                file = _unpacked(file, step, folder / f"prepared-{number}", max_bytes)
            case PrepStepPipe():
                raise InvalidInput(
                    f"{file.name} is to be sent through the command {list(step.command)!r:.200}, which is recorded but "
                    "not run here: a manifest may come from anyone. Nothing was added. Convert the file before it is "
                    "fetched."
                )
    return file


def _unpacked(file: SourceFile, step: PrepStepDecompress, target: Path, max_bytes: int) -> SourceFile:
    try:
        match step.format:
            case CompressionFormat.GZIP:
                if step.sub_path is not None:
                    raise file.error(f"a gzip file has no members, but {step.sub_path!r} is named")
                with gzip.open(file.path) as packed:
                    return _copied(file, packed, target, max_bytes)
            case CompressionFormat.ZIP:
                with zipfile.ZipFile(file.path) as archive:
                    member = _member(file, archive, step.sub_path)
                    with archive.open(member) as packed:
                        return _copied(SourceFile(f"{file.name}#{member}", file.path), packed, target, max_bytes)
    except (zipfile.BadZipFile, EOFError, OSError, zlib.error, RuntimeError) as error:
        # With RuntimeError (and NotImplementedError, which is one) zipfile says that a member is encrypted, or packed
        # in a way that it does not know.
        raise file.error(f"it cannot be unpacked as {step.format.value} ({error})") from None


def _member(file: SourceFile, archive: zipfile.ZipFile, pattern: str | None) -> str:
    members = [info.filename for info in archive.infolist() if not info.is_dir()]
    found = [name for name in members if pattern is None or name == pattern or fnmatchcase(name, pattern)]
    if len(found) != 1:
        of = "" if pattern is None else f" that match {pattern!r}"
        there = ", ".join(map(repr, members[:20]))
        raise file.error(f"the archive has {len(found)} members{of}, and one is to be read; there are {there}")
    return found[0]


def _copied(file: SourceFile, packed: IO[bytes] | gzip.GzipFile, target: Path, max_bytes: int) -> SourceFile:
    size = 0
    with target.open("wb") as unpacked:
        while piece := packed.read(_PIECE_BYTES):
            size += len(piece)
            if size > max_bytes:
                raise file.error(f"it is larger than {max_bytes} bytes when it is unpacked")
            unpacked.write(piece)
    return SourceFile(file.name, target)


# --- the source's query ----------------------------------------------------------------------------------------------

INPUT = "input"
"""What the query calls the rows of the file."""


def preprocess(rows: pa.Table, transform: TransformSql | None) -> pa.Table:
    """What the query makes of the rows, which it calls ``input``; the rows themselves without one.

    The engine is ``spark``, or ``duckdb``, which needs no Java. Raises `InvalidInput` for another, and for a query that
    cannot be run.
    """
    if transform is None:
        return rows
    query = _query(transform)
    match transform.engine.lower():
        case "spark":
            from dagster_versioned.odf.spark.query_rows import query_rows
        case "duckdb":
            from dagster_versioned.odf.arrow.query_rows import query_rows
        case other:
            raise InvalidInput(
                f"The source's rows are to be reshaped by the engine {other!a:.50}, which is not here; spark and "
                "duckdb are. Nothing was added. Name one of these in the manifest, with the query in its SQL."
            )
    return rows_in_utc(query_rows({INPUT: rows}, query))


def _query(transform: TransformSql) -> TransformQuery:
    if transform.temporal_tables:
        raise InvalidInput(
            "The rows of a source have no versions, so its query has no temporal tables. Nothing was added."
        )
    steps = transform.queries or ()
    if transform.query is not None:
        steps = (*steps, SqlQueryStep(query=transform.query))
    return TransformQuery((INPUT,), tuple(QueryStep(step.query, step.alias) for step in steps))
