"""What Dagster shows of a version: the metadata of a materialization, and what had to be left out of them."""

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from logging import Logger
from typing import Any

import dagster as dg
import pyarrow as pa

from dagster_versioned.assets.graph.materialization_keys import (
    COMMIT_KEY,
    LOG_VERSION_KEY,
    METADATA_SHA_KEY,
    OUTLINE_KEY,
    URI_KEY,
)
from dagster_versioned.delta.schema.types import parse_schema, sql_text
from dagster_versioned.engines.comparison import HIDDEN
from dagster_versioned.errors import VersionedError
from dagster_versioned.identity.names import TableName
from dagster_versioned.io_managers.environment import ENVIRONMENT_KEY
from dagster_versioned.projects.staleness import cell_text
from dagster_versioned.tables.choose import ChosenVersions
from dagster_versioned.tables.configuration import personal_columns
from dagster_versioned.tables.diff import VersionDiff, version_diff
from dagster_versioned.tables.history import History, Version
from dagster_versioned.tables.table import VersionedTable
from dagster_versioned.tables.write.definitions import other_definition, version_before
from dagster_versioned.tables.write.write import WriteResult

OURS = "dagster_versioned"
OTHER_DEFINITION_KEY = f"{OURS}/other_definition"
PREVIEW_BYTES = 4 * 1024 * 1024
"""A preview reads the version's first part, if it is at most this large."""
PREVIEWED_PARTITIONS = 10
"""A run over more partitions shows rows of so many: each is a read, and all of it goes into Dagster's event log."""
SHOWN_PARTITIONS = 3
"""The log names so many partitions of each change; the rest has its materializations."""
PREVIEW_COLUMNS = 20
PREVIEW_CHARACTERS = 40

MAX_LINES = 40
"""Lines of a diff; there may be thousands of columns and parents, and all of it goes into Dagster's event log."""
MAX_TEXT = 60

Line = tuple[str, object, object]
"""What differs, before and after."""


class Omissions:
    """The parts of one report that could not be read: the version that it describes is committed, whatever they are.

    An error would fail the step all the same; and if rows are appended, what is repeated by hand then is doubled.
    """

    def __init__(self) -> None:
        self._errors: dict[str, list[Exception]] = {}

    @contextmanager
    def leave_out(self, what: str) -> Generator[None]:
        """Leave a part out where the block fails, whatever the reason."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a report is no reason to fail, so neither is any fault in making it
            self._errors.setdefault(what, []).append(error)

    def log(self, log: Logger, table: TableName) -> None:
        """Warn of what was left out, once for each part, however many partitions lack it."""
        for what, errors in self._errors.items():
            times = f" ({len(errors)} times)" if len(errors) > 1 else ""
            log.warning(
                f"{table}: what was written is committed, but {what} could not be read, so the materialization lacks "
                f"it{times}. {type(errors[0]).__name__}: {errors[0]}"
            )


def table_metadata(
    table: VersionedTable, version: Version, lineage: dg.TableColumnLineage | None = None
) -> dict[str, Any]:
    """What holds for the asset, whichever partitions were written: Dagster's standard keys."""
    fields = parse_schema(version.identity.schema).fields
    environment = table.project.environment
    project = table.project.name if environment is None else f"{table.project.name}@{environment.name}"
    return {
        "dagster/table_name": f"{project}.{table.name}",
        URI_KEY: table.store.uri,
        **({} if environment is None else {ENVIRONMENT_KEY: environment.name}),
        "dagster/storage_kind": "deltalake",
        "dagster/column_schema": dg.TableSchema([dg.TableColumn(field.name, sql_text(field.type)) for field in fields]),
        **({"dagster/column_lineage": lineage} if lineage is not None else {}),
    }


def version_metadata(
    table: VersionedTable,
    history: History | None,
    result: WriteResult,
    preview_rows: int,
    omissions: Omissions | None = None,
    before: Mapping[str | None, Version] | None = None,
) -> dict[str, Any]:
    """The outcome of a write; ``history`` is the table's, with the version in it, or ``None`` if it could not be read.

    Who reports many versions gives the versions ``before`` them, by partition, which `History.before` finds at once.

    ``version`` and ``data`` are the short forms of ``metadata_sha`` and ``data_sha``. ``commit_sha256`` is the SHA-256
    of the bytes of the commit that holds the version, ``commit_outline`` of what no redaction changes of it: with them,
    Dagster's event log is a witness to the table's history that lies outside of the table's store
    (`VersionedTable.verify`, ``witnesses``). ``size_bytes`` is a float, because
    an integer in Dagster's GraphQL has 32 bits. What cannot be read is left out and noted in ``omissions``.
    """
    omissions = omissions if omissions is not None else Omissions()
    version = result.version
    facts, identity = version.facts, version.identity
    rows = "dagster/row_count" if identity.partition is None else "dagster/partition_row_count"
    change = _change(result)
    shown: dict[str, Any] = {
        rows: identity.nrow,
        f"{OURS}/change": change,
        f"{OURS}/version": version.short,
        f"{OURS}/data": identity.data_sha[: len(version.short)],
        METADATA_SHA_KEY: version.metadata_sha,
        f"{OURS}/data_sha": version.data_sha,
        LOG_VERSION_KEY: version.log_version,
        f"{OURS}/size_bytes": float(facts.size_bytes),
        f"{OURS}/part_count": facts.part_count,
        **_added(result),
        **_replayed(result),
        **_reused(result),
        **({} if result.reused else {f"{OURS}/write_seconds": round(result.seconds, 3)}),
    }
    if history is not None:
        if not (result.reused and change == "none"):
            with omissions.leave_out("the difference to the version before"):
                found = history.before([version]) if before is None else before
                text = diff_text(table.name, found.get(version.partition), version, change)
                shown[f"{OURS}/diff"] = dg.MarkdownMetadataValue(text)
        with omissions.leave_out("the SHA-256 of the commit"):
            shown[COMMIT_KEY] = history.record(version.log_version).sha256
            if (outline := table.last_state.outline_of(version.log_version)) is not None:
                shown[OUTLINE_KEY] = outline
    if preview_rows:
        with omissions.leave_out("a preview of the rows"):
            if (preview := _preview(table, version, preview_rows)) is not None:
                shown[f"{OURS}/preview"] = dg.MarkdownMetadataValue(preview)
    return shown


def _added(result: WriteResult) -> dict[str, Any]:
    """The rows that were appended, merged or taken away, or came, went and stayed; none where they were all as they are
    to be."""
    added, refreshed = result.version.facts.added, result.version.facts.refreshed
    if added is None:
        of_refresh = {} if refreshed is None or result.change == "none" else refreshed.to_json()
        return {f"{OURS}/rows_{kind}": count for kind, count in of_refresh.items()}
    idle = result.change == "none" and not result.replayed
    counts = {"inserted": added.inserted, "updated": added.updated, "removed": added.removed}
    return {f"{OURS}/rows_{kind}": 0 if idle else count for kind, count in counts.items()}


def _replayed(result: WriteResult) -> dict[str, Any]:
    """By which run an earlier attempt had committed the version, and what became of this attempt's rows."""
    run = result.version.facts.run
    if not result.replayed or run is None:
        return {}
    left = {f"{OURS}/left_out": "rows other than the earlier attempt's"} if result.left_out else {}
    return {f"{OURS}/committed_by": dg.DagsterRunMetadataValue(run.run_id), **left}


def _reused(result: WriteResult) -> dict[str, Any]:
    """What was saved where the version was kept, as floats, which Dagster plots; or that it is not to be kept again."""
    if not result.reused:
        return {f"{OURS}/contradicted": True} if result.contradicted else {}
    facts = result.version.facts
    return {
        f"{OURS}/reused": result.version.short,
        f"{OURS}/saved_seconds": float(facts.computation.seconds) if facts.computation is not None else 0.0,
        f"{OURS}/saved_bytes": float(facts.size_bytes),
    }


def outcome_text(table: TableName, results: Sequence[WriteResult]) -> str:
    """A line of the run's log: the table, its partitions, what became of them, the version, its size."""
    versions = [result.version for result in results]
    rows = sum(version.identity.nrow for version in versions)
    parts = sum(version.facts.part_count for version in versions)
    size = f"{rows} {'row' if rows == 1 else 'rows'} in {parts} {'part' if parts == 1 else 'parts'}"
    reused = _reused_text(results)
    if len(results) == 1:
        cell, change = cell_text(table, versions[0].partition), _change(results[0])
        return f"{cell}: {change}, version {versions[0].short}, {size}.{reused}"
    made: dict[str, list[str]] = {}
    for result in results:
        made.setdefault(_change(result), []).append(f"{result.version.partition}={result.version.short}")
    changed: list[str] = []
    for change, found in made.items():
        more = ", …" if len(found) > SHOWN_PARTITIONS else ""
        changed.append(f"{len(found)} {change} ({', '.join(found[:SHOWN_PARTITIONS])}{more})")
    return f"{table}, {len(results)} partitions: {', '.join(changed)}, {size}.{reused}"


def _reused_text(results: Sequence[WriteResult]) -> str:
    """What was computed before and is kept, and what is not to be kept again; nothing of ordinary writes."""
    shown = [_reused(result) for result in results if result.reused]
    text = ""
    if shown:
        seconds = sum(float(metadata[f"{OURS}/saved_seconds"]) for metadata in shown)
        which = "It" if len(results) == 1 else f"{len(shown)} of {len(results)}"
        text = f" {which} had been computed before: the function was not called for it, which saved {seconds:.1f} s."
    if any(result.contradicted for result in results):
        text += " The same computation had given other rows before, so it is not reused from now on."
    return text


def _change(result: WriteResult) -> str:
    """The change that the version is; of a retry, that of the attempt that committed it."""
    return result.version.change if result.replayed else result.change


def replay_text(table: TableName, results: Sequence[WriteResult]) -> str | None:
    """What became of rows that an earlier attempt had others of, for the log; ``None`` where there are none."""
    left = [result.version for result in results if result.left_out]
    if not left:
        return None
    run = left[0].facts.run
    which = f"version {left[0].short}" if len(left) == 1 else f"{len(left)} versions, {left[0].short} among them"
    return (
        f"{table}: an earlier attempt of this step (run {run.run_id if run is not None else 'unknown'}) has committed "
        f"{which}, of other rows than this attempt has. Those stay, and this attempt's are left out, because they "
        "would be there beside them. To append them too, start a new run; to have them instead, revert to the version "
        "before it first."
    )


def other_writer(history: History | None, results: Sequence[WriteResult]) -> str | None:
    """Which other definition of the asset wrote the table before, as the materialization says it."""
    made = [result.version for result in results if result.change != "none"]
    before = version_before(history, made[0]) if made and history is not None else None
    return None if before is None else other_definition(before, made[0])


def markdown(rows: pa.RecordBatch, nrow: int) -> str:
    """The rows as a Markdown table, long values and wide tables cut, with a line that says of how many they are."""
    names = rows.schema.names[:PREVIEW_COLUMNS]
    lines = [
        [_cell(name, PREVIEW_CHARACTERS) for name in names],
        ["---"] * len(names),
        *(
            [_cell("" if value is None else str(value), PREVIEW_CHARACTERS) for value in row.values()]
            for row in rows.select(names).to_pylist()
        ),
    ]
    cut = f", {len(names)} of {rows.num_columns} columns" if len(names) < rows.num_columns else ""
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{table}\n\n{rows.num_rows} of {nrow} rows{cut}"


def _preview(table: VersionedTable, version: Version, rows: int) -> str | None:
    state = table.state
    is_head = state.history.heads.get(version.partition) == version
    at = state.log_version if is_head else version.log_version
    files = table.files_of(ChosenVersions((version,), at, whole=False))
    first = files.scan.files[:1]
    if not first or first[0].size > PREVIEW_BYTES:
        return None
    reader: pa.RecordBatchReader = table.read_files(
        replace(files, scan=replace(files.scan, files=first)), pa.RecordBatchReader
    )
    batch = reader.read_next_batch().slice(0, rows)
    hidden = pa.array([HIDDEN] * batch.num_rows)
    for name in personal_columns(state.snapshot.metadata.configuration):
        if name in batch.schema.names:
            batch = batch.set_column(batch.schema.get_field_index(name), name, hidden)
    return markdown(batch, version.identity.nrow)


def _cell(text: str, characters: int) -> str:
    if len(text) > characters:
        text = text[: characters - 1] + "…"
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("\r", " ")


def diff_text(table: TableName, before: Version | None, version: Version, change: str) -> str:
    """The difference to the version before in Markdown, with the command that shows all of it; reads nothing."""
    if change == "none":
        return f"Nothing changed: it is still version {version.short}."
    if before is None:
        return "The first version."
    try:
        lines = list(_lines(version_diff(before, version, (), ())))
    except VersionedError as error:  # of the version before; this one is committed
        return f"It cannot be compared with the version before. {error}"
    more = f"\n\n{len(lines) - MAX_LINES} more differences" if len(lines) > MAX_LINES else ""
    rows = "\n".join(f"| {' | '.join(_cell(str(value), MAX_TEXT) for value in line)} |" for line in lines[:MAX_LINES])
    partition = f" --partition '{version.partition}'" if version.partition is not None else ""
    command = f"dagster-versioned diff '{table}' {before.short} {version.short}{partition}"
    return f"| | {before.short} | {version.short} |\n| --- | --- | --- |\n{rows}{more}\n\n`{command}`"


def _lines(diff: VersionDiff) -> Iterator[Line]:
    old, new = diff.before, diff.after
    if diff.rows_before == diff.rows_after:
        yield "rows", diff.rows_before, diff.rows_after
    else:
        yield "rows", diff.rows_before, f"{diff.rows_after} ({diff.rows_after - diff.rows_before:+})"
    yield "data", old.identity.data_sha[:8], "the same" if diff.same_data else new.identity.data_sha[:8]
    if not diff.same_data:
        yield "bytes", old.facts.size_bytes, new.facts.size_bytes
        yield "parts", old.facts.part_count, new.facts.part_count
    for column in diff.columns:
        was, now = ("none" if kind is None else sql_text(kind) for kind in (column.before, column.after))
        yield f"column {column.name}", was, now
    if diff.column_order_changed:
        yield "order of columns", "", "changed"
    for parent in diff.parents:
        partition = f" [{parent.partition}]" if parent.partition is not None else ""
        name = f"parent {parent.source}.{parent.table}{partition}"
        yield name, (parent.before or "none")[:8], (parent.after or "none")[:8]
    for name, (was, now) in diff.metadata.items():
        yield name, _value(was), _value(now)


def _value(value: Any) -> str:
    match value:
        case None:
            return "none"
        case str():
            return value
        case _:
            return json.dumps(value)
