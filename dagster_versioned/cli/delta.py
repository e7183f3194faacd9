"""The verbs for any Delta table, ours or not, by the folder it is in. Heavy imports wait until a verb runs."""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from dagster_versioned.cli.arguments import PREVIEW_ROWS, Output, RowLimit, argument, flag, option
from dagster_versioned.cli.commands import Commands
from dagster_versioned.cli.delta_maintenance import (
    Allow,
    Folder,
    opened_table,
)
from dagster_versioned.cli.documents import moment
from dagster_versioned.cli.session import Session
from dagster_versioned.cli.terminal import Fields, Table, counted, human_size

if TYPE_CHECKING:
    from dagster_versioned.delta.log.history import HistoryEntry
    from dagster_versioned.delta.log.snapshot import Snapshot
    from dagster_versioned.delta.table import Table as DeltaTable

command = Commands("Delta")

_Version = Annotated[int | None, option("--version", "N", "As of this version.", min=0)]
_At = Annotated[str | None, option("--at", "TIME", "As of this time: 2026-01-31T12:00:00Z.")]
_Limit = Annotated[int | None, flag("--limit", "At most so many.", min=1)]


# --- look ------------------------------------------------------------------------------------------------------------


@command("delta describe lake/trips", "delta describe s3://acme-lake/trips --version 12 --json")
def describe(session: Session, table: Folder, version: _Version = None, at: _At = None, allow: Allow = None) -> None:
    """Say what a table is: columns, properties, protocol, rows and files."""
    opened = opened_table(session, table, allow)
    document = _described(opened, opened.snapshot(version, at))
    session.show(document, _table_parts(document))


def _table_parts(document: dict[str, Any]) -> Iterator[str | Fields | Table]:
    protocol, mapping = document["protocol"], document["column_mapping"]
    yield Fields(
        [
            *((name, document[name]) for name in ("table", "name", "description", "version")),
            ("time", document["timestamp"]),
            *((name, document[name]) for name in ("rows", "files")),
            ("size", human_size(document["size_bytes"])),
            ("deleted rows", document["deleted_rows"] or None),
            ("partitioned by", ", ".join(document["partition_columns"]) or None),
            ("clustered by", ", ".join(document["clustering_columns"]) or None),
            ("column mapping", None if mapping == "none" else mapping),
            ("protocol", f"reader {protocol['reader']}, writer {protocol['writer']}"),
            ("features", ", ".join(protocol["features"]) or None),
        ]
    )
    yield ""
    columns = [(c["name"], c["type"], _yes(c["nullable"]), "; ".join(c["remarks"])) for c in document["columns"]]
    yield Table(["column", "type", "nulls", ""], columns)
    for heading in ("constraints", "properties"):
        if members := document[heading]:
            yield from ("", f"{heading}:", Fields((f"  {name}", value) for name, value in members.items()))


@command("delta files lake/trips", "delta files lake/trips --version 3 --limit 10")
def files(
    session: Session,
    table: Folder,
    version: _Version = None,
    at: _At = None,
    limit: _Limit = None,
    allow: Allow = None,
) -> None:
    """List the files that a version consists of."""
    from dagster_versioned.delta.schema.column_mapping import physical_name

    opened = opened_table(session, table, allow)
    snapshot = opened.snapshot(version, at)
    shown = snapshot.files.sort_by("path").slice(0, limit)
    mapping = snapshot.column_mapping
    named = {physical_name(snapshot.schema.field(name), mapping): name for name in snapshot.partition_columns}
    rows = [_file(row, named) for row in shown.to_pylist()]
    session.show(
        {"table": opened.store.uri, "version": snapshot.version, "total": snapshot.num_files, "files": rows},
        Table(
            ["path", "rows", "deleted", "size", "partition"],
            [
                (
                    *(row["path"], row["rows"], row["deleted_rows"] or None, human_size(row["size_bytes"])),
                    ", ".join(f"{name}={'null' if key is None else key}" for name, key in row["partition"].items()),
                )
                for row in rows
            ],
            right=("rows", "deleted", "size"),
        ),
        note=f"{len(rows)} of {counted(snapshot.num_files, 'file')}." if len(rows) < snapshot.num_files else None,
    )


@command("delta history lake/trips", "delta history lake/trips --limit 5 --json")
def history(session: Session, table: Folder, limit: _Limit = None) -> None:
    """List a table's commits, newest first: when, what, by whom."""
    opened = opened_table(session, table)
    entries = [_entry(entry) for entry in opened.history(limit)]
    session.show(
        {"table": opened.store.uri, "commits": entries},
        Table(
            ["version", "time", "operation", "parameters", "metrics", "by"],
            [
                (
                    *(entry["version"], entry["timestamp"][:19].replace("T", " "), entry["operation"]),
                    *(_one_line(entry["parameters"]), _one_line(entry["metrics"]), entry["user"] or entry["engine"]),
                )
                for entry in entries
            ],
            right=("version",),
        ),
    )


@command("delta changes lake/trips 3", "delta changes lake/trips 3 7 --output changes.parquet")
def changes(
    session: Session,
    table: Folder,
    first: Annotated[str, argument("FROM", "A version, or a time: 2026-01-31T12:00:00Z.")],
    last: Annotated[str | None, argument("TO", "A version, or a time; the newest version if left out.")] = None,
    limit: RowLimit = None,
    output: Output = None,
    allow: Allow = None,
) -> None:
    """Show the rows that versions inserted, deleted and updated; the table must have a change data feed."""
    from dagster_versioned.cli import rows
    from dagster_versioned.delta_tables.change_feed import read_changes

    if output is not None:
        rows.export_format(output)
    end = None if last is None else _place(last)
    found = read_changes(table, _place(first), end, profile=session.profile, allow=allow or ())
    document: dict[str, Any] = {"table": table, "total_rows": found.num_rows}
    if output is not None:
        rows.check_exportable(found.schema, output)
        written = rows.export(found.schema, iter(found.slice(0, limit).to_batches()), output, lambda done: None)
        document |= {"output": str(output), "rows_written": written}
        session.show(document, f"{counted(written, 'change')} of {table} in {output}")
        return
    shown = rows.plain_rows(found.slice(0, PREVIEW_ROWS if limit is None else limit))
    # What happened stands first: a table may be wide.
    names = [*found.column_names[-3:-1], *found.column_names[:-3]]
    more = f"{len(shown)} of {found.num_rows} changes. More with --limit, all with --output FILE."
    session.show(
        document | {"rows": shown},
        Table(names, [[_cell(row[name]) for name in names] for row in shown], right=["_commit_version"]),
        note=more if len(shown) < found.num_rows else None,
    )


@command("delta features lake/trips")
def features(session: Session, table: Folder) -> None:
    """List what the table's protocol asks of programs, and what of it is implemented here."""
    from dagster_versioned.delta.log.declared import declared_protocol, feature_support

    store = opened_table(session, table).store
    protocol = declared_protocol(store)
    found = feature_support(protocol)
    versions = {"reader": protocol.min_reader_version, "writer": protocol.min_writer_version}
    rows = [
        (each.name, "readers and writers" if each.reader else "writers", _yes(each.can_read), _yes(each.can_write))
        for each in found
    ]
    session.show(
        {
            "table": store.uri,
            "protocol": versions,
            "features": [
                {
                    "feature": each.name,
                    "asked_of": "readers" if each.reader else "writers",
                    "can_read": each.can_read,
                    "can_write": each.can_write,
                }
                for each in found
            ],
        },
        f"{store.uri}: protocol versions {versions['reader']} (readers) and {versions['writer']} (writers)",
        Table(["feature", "asked of", "read here", "written here"], rows) if rows else None,
    )


def _described(table: "DeltaTable", snapshot: "Snapshot") -> dict[str, Any]:
    from dagster_versioned.delta.features import reader_features, writer_features
    from dagster_versioned.delta.schema.clustering import clustering_columns

    metadata, mapping = snapshot.metadata, snapshot.column_mapping
    clustered = clustering_columns(snapshot.domains, snapshot.schema, mapping)
    found = [_file(row, {}) for row in snapshot.files.select(["path", "size", "stats", "deletionVector"]).to_pylist()]
    counts = [file["rows"] for file in found]
    return {
        "table": table.store.uri,
        "id": metadata.id,
        "name": metadata.name,
        "description": metadata.description,
        "version": snapshot.version,
        "timestamp": moment(datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)),
        "rows": None if None in counts else sum(counts),
        "deleted_rows": sum(file["deleted_rows"] for file in found),
        "files": snapshot.num_files,
        "size_bytes": snapshot.size_bytes,
        "partition_columns": list(snapshot.partition_columns),
        "clustering_columns": [".".join(path) for path in clustered],
        "column_mapping": mapping,
        "protocol": {
            "reader": snapshot.protocol.min_reader_version,
            "writer": snapshot.protocol.min_writer_version,
            "features": sorted(reader_features(snapshot.protocol) | writer_features(snapshot.protocol)),
        },
        "columns": [_column(field.to_json()) for field in snapshot.schema.fields],
        "constraints": {
            key.removeprefix("delta.constraints."): value
            for key, value in sorted(metadata.configuration.items())
            if key.startswith("delta.constraints.")
        },
        "properties": {
            key: value
            for key, value in sorted(metadata.configuration.items())
            if not key.startswith("delta.constraints.")
        },
    }


_REMARKS = {
    "comment": "{}",
    "delta.generationExpression": "generated as {}",
    "CURRENT_DEFAULT": "default {}",
    "delta.identity.start": "identity from {}",
}


def _column(field: Mapping[str, Any]) -> dict[str, Any]:
    from dagster_versioned.delta.schema.types import sql_text

    metadata = field["metadata"]
    return {
        "name": field["name"],
        "type": sql_text(field["type"]),
        "nullable": field["nullable"],
        "remarks": [text.format(metadata[key]) for key, text in _REMARKS.items() if key in metadata],
    }


def _file(row: Mapping[str, Any], named: Mapping[str, str]) -> dict[str, Any]:
    """One file; ``named`` are the partition columns by the names that they have in the log."""
    from dagster_versioned.delta.files.statistics import num_records

    vector, count = row["deletionVector"], num_records(row["stats"])
    deleted = vector["cardinality"] if vector else 0
    return {
        "path": row["path"],
        "rows": None if count is None else count - deleted,
        "deleted_rows": deleted,
        "size_bytes": row["size"],
        "partition": {named.get(name, name): value for name, value in row.get("partitionValues") or ()},
    }


def _entry(entry: "HistoryEntry") -> dict[str, Any]:
    return {
        "version": entry.version,
        "timestamp": moment(entry.timestamp),
        "operation": entry.operation,
        "parameters": dict(entry.parameters),
        "metrics": dict(entry.metrics),
        "user": entry.user,
        "user_metadata": entry.user_metadata,
        "engine": entry.engine,
    }


def _place(text: str) -> int | str:
    """A version where the text is a number, else a time."""
    return int(text) if text.isascii() and text.isdigit() else text


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _one_line(members: Mapping[str, Any]) -> str:
    """Members on one line, without those that say nothing."""
    given = {name: value for name, value in members.items() if value not in (None, "", "[]", "{}", "0", "null")}
    text = ", ".join(f"{name}={value}" for name, value in given.items())
    return text if len(text) <= 120 else f"{text[:119]}…"
