"""The verbs for any Delta table, ours or not, by the folder it is in. Heavy imports wait until a verb runs."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from dagster_versioned.cli.arguments import PREVIEW_ROWS, Apply, Output, RowLimit, argument, flag, option, parse_span
from dagster_versioned.cli.commands import Commands
from dagster_versioned.cli.documents import members, moment
from dagster_versioned.cli.session import Session
from dagster_versioned.cli.terminal import Fields, Table, counted, human_size

if TYPE_CHECKING:
    from dagster_versioned.delta.log.snapshot import Snapshot
    from dagster_versioned.delta.table import Table as DeltaTable

command = Commands("Delta")

_CONSTRAINT = "delta.constraints."
_KEYS_SHOWN = 20
_DRY = "Nothing was deleted: this is a dry run. Delete with --apply."

_Folder = Annotated[str, argument("TABLE", "The table's folder: a local path, file:///…, s3://…, gs://… or abfss://….")]
_Allow = Annotated[
    list[str] | None,
    option(
        "--allow",
        "FOLDER",
        "Follow the table to files in this folder outside its own, as shallow clones have them; repeatable.",
    ),
]
_Version = Annotated[int | None, option("--version", "N", "As of this version.", min=0)]
_At = Annotated[str | None, option("--at", "TIME", "As of this time: 2026-01-31T12:00:00Z.")]
_Limit = Annotated[int | None, flag("--limit", "At most so many.", min=1)]


# --- look ------------------------------------------------------------------------------------------------------------


@command("delta describe lake/trips", "delta describe s3://acme-lake/trips --version 12 --json")
def describe(session: Session, table: _Folder, version: _Version = None, at: _At = None, allow: _Allow = None) -> None:
    """Say what a table is: columns, properties, protocol, rows and files."""
    opened = _opened(session, table, allow)
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
            ("partitioned by", _joined(document["partition_columns"])),
            ("clustered by", _joined(document["clustering_columns"])),
            ("column mapping", None if mapping == "none" else mapping),
            ("protocol", f"reader {protocol['reader']}, writer {protocol['writer']}"),
            ("features", _joined(protocol["features"])),
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
    table: _Folder,
    version: _Version = None,
    at: _At = None,
    limit: _Limit = None,
    allow: _Allow = None,
) -> None:
    """List the files that a version consists of."""
    from dagster_versioned.delta.schema.column_mapping import physical_name

    opened = _opened(session, table, allow)
    snapshot = opened.snapshot(version, at)
    shown = snapshot.files.sort_by("path").slice(0, limit)
    mapping = snapshot.column_mapping
    named = {physical_name(snapshot.schema.field(name), mapping): name for name in snapshot.partition_columns}
    rows = [_file(row, named) for row in shown.to_pylist()]
    lines = [
        (
            *(row["path"], row["rows"], row["deleted_rows"] or None, human_size(row["size_bytes"])),
            ", ".join(f"{name}={'null' if key is None else key}" for name, key in row["partition"].items()),
        )
        for row in rows
    ]
    session.show(
        {"table": opened.store.uri, "version": snapshot.version, "total": snapshot.num_files, "files": rows},
        Table(["path", "rows", "deleted", "size", "partition"], lines, right=("rows", "deleted", "size")),
        note=f"{len(rows)} of {counted(snapshot.num_files, 'file')}." if len(rows) < snapshot.num_files else None,
    )


@command("delta history lake/trips", "delta history lake/trips --limit 5 --json")
def history(session: Session, table: _Folder, limit: _Limit = None) -> None:
    """List a table's commits, newest first: when, what, by whom."""
    opened = _opened(session, table)
    entries = opened.history(limit)
    shown = ("version", "timestamp", "operation", "parameters", "metrics", "user", "user_metadata", "engine")
    rows = [
        (
            *(entry.version, moment(entry.timestamp)[:19].replace("T", " "), entry.operation),
            *(_one_line(entry.parameters), _one_line(entry.metrics), entry.user or entry.engine),
        )
        for entry in entries
    ]
    session.show(
        {"table": opened.store.uri, "commits": [members(entry, *shown) for entry in entries]},
        Table(["version", "time", "operation", "parameters", "metrics", "by"], rows, right=("version",)),
    )


@command("delta changes lake/trips 3", "delta changes lake/trips 3 7 --output changes.parquet")
def changes(
    session: Session,
    table: _Folder,
    first: Annotated[str, argument("FROM", "A version, or a time: 2026-01-31T12:00:00Z.")],
    last: Annotated[str | None, argument("TO", "A version, or a time; the newest version if left out.")] = None,
    limit: RowLimit = None,
    output: Output = None,
    allow: _Allow = None,
) -> None:
    """Show the rows that versions inserted, deleted and updated; the table must have a change data feed."""
    from dagster_versioned.cli import rows
    from dagster_versioned.delta_tables.change_feed import read_changes

    rows.check_format(output)
    end = None if last is None else _place(last)
    found = read_changes(table, _place(first), end, profile=session.profile, allow=allow or ())
    document: dict[str, Any] = {"table": table, "total_rows": found.num_rows}
    if output is not None:
        written = rows.export_table(found.slice(0, limit), output)
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
def features(session: Session, table: _Folder) -> None:
    """List what the table's protocol asks of programs, and what of it is implemented here."""
    from dagster_versioned.delta.log.declared import declared_protocol, feature_support

    store = _opened(session, table).store
    protocol = declared_protocol(store)
    found = feature_support(protocol)
    versions = {"reader": protocol.min_reader_version, "writer": protocol.min_writer_version}
    rows = [
        (each.name, "readers and writers" if each.reader else "writers", _yes(each.can_read), _yes(each.can_write))
        for each in found
    ]
    documents = [
        {"feature": f.name, "asked_of": "readers" if f.reader else "writers", **members(f, "can_read", "can_write")}
        for f in found
    ]
    session.show(
        {"table": store.uri, "protocol": versions, "features": documents},
        f"{store.uri}: protocol versions {versions['reader']} (readers) and {versions['writer']} (writers)",
        Table(["feature", "asked of", "read here", "written here"], rows) if rows else None,
    )


# --- maintain --------------------------------------------------------------------------------------------------------


@command("delta checkpoint lake/trips")
def checkpoint(session: Session, table: _Folder, allow: _Allow = None) -> None:
    """Write a checkpoint of the newest version, so that readers need not replay the log from further back."""
    opened = _opened(session, table, allow)
    version = opened.checkpoint()
    uri = opened.store.uri
    session.show({"table": uri, "version": version}, f"{uri}: checkpoint of version {version}")


@command("delta compact lake/trips", "delta compact lake/trips 10 19")
def compact(
    session: Session,
    table: _Folder,
    first: Annotated[
        int | None, argument("[FIRST]", "The first commit; by default after the checkpoint.", min=0)
    ] = None,
    last: Annotated[int | None, argument("[LAST]", "The last commit; by default the newest.", min=0)] = None,
) -> None:
    """Write a range of commits as one file, which readers of the log take instead. The commits stay."""
    opened = _opened(session, table)
    versions = opened.compact(first, last)
    first, last = (versions[0], versions[-1]) if versions else (None, None)
    done = f"commits {first} to {last} as one file" if versions else "fewer than two commits to compact"
    uri = opened.store.uri
    session.show({"table": uri, "first": first, "last": last}, f"{uri}: {done}")


@command("delta cleanup lake/trips", "delta cleanup lake/trips --apply")
def cleanup(session: Session, table: _Folder, apply: Apply = False) -> None:
    """Delete the part of the log that is older than its retention, behind a checkpoint. A dry run unless --apply.

    History begins later afterwards. Every checkpoint does the same, unless delta.enableExpiredLogCleanup is false.
    """
    opened = _opened(session, table)
    report = opened.cleanup(dry_run=not apply)
    uri, count = opened.store.uri, counted(len(report.keys), "file")
    deleted = "deleted" if apply else "would be deleted"
    session.show(
        {"table": uri, "applied": apply, "oldest_version": report.oldest_version, "keys": report.keys},
        f"{uri}: {count} of the log {deleted}; history begins at version {report.oldest_version}",
        _key_lines(report.keys),
        note=_DRY if report.keys and not apply else None,
    )


@command("delta optimize lake/trips", "delta optimize lake/trips --where \"day = '2026-01-31'\" --order-by user")
def optimize(
    session: Session,
    table: _Folder,
    where: Annotated[str | None, option("--where", "SQL", "Only partitions for which this is true.")] = None,
    order_by: Annotated[
        list[str] | None, option("--order-by", "COLUMN", "Sort the rows of new files by it; repeatable.")
    ] = None,
) -> None:
    """Join small files, and apply deletion vectors. The rows stay what they are.

    Old files stay too, for older versions, until they are vacuumed.
    """
    from dagster_versioned.delta_tables.write import optimize_delta

    applied = optimize_delta(table, where, order_by=order_by or (), profile=session.profile)
    added, removed = (applied.metrics.get(name, 0) for name in ("numAddedFiles", "numRemovedFiles"))
    done = f"{counted(removed, 'file')} became {added}, in version {applied.version}"
    session.show(
        {"table": table, "version": applied.version, "metrics": applied.metrics},
        f"{table}: {done if removed else 'nothing to join or to apply'}",
    )


@command("delta vacuum lake/trips", "delta vacuum lake/trips --min-age 30d --apply")
def vacuum(
    session: Session,
    table: _Folder,
    min_age: Annotated[
        str | None,
        option(
            "--min-age",
            "SPAN",
            "Keep what versions younger than this need: 12h, 7d, 4w; by default as the table says, else a week.",
        ),
    ] = None,
    force: Annotated[bool, flag("--force", "Allow less than the table says; only where nobody else uses it.")] = False,
    apply: Apply = False,
    allow: _Allow = None,
) -> None:
    """Delete files that neither the newest version needs nor a recent one. A dry run unless --apply is given.

    Older versions can be described afterwards, but not read.
    """
    retention = None if min_age is None else parse_span(min_age)
    opened = _opened(session, table, allow)
    report = opened.vacuum(retention, dry_run=not apply, force=force)
    uri, files = opened.store.uri, f"{counted(len(report.keys), 'file')} ({human_size(report.size_bytes)})"
    session.show(
        {"table": uri, "applied": apply, "size_bytes": report.size_bytes, "keys": report.keys},
        f"{uri}: {files} {'deleted' if apply else 'would be deleted'}",
        _key_lines(report.keys),
        note=None if apply else _DRY,
    )


def _key_lines(keys: Sequence[str]) -> Iterator[str]:
    yield from (f"  {key}" for key in keys[:_KEYS_SHOWN])
    if len(keys) > _KEYS_SHOWN:
        yield f"  and {len(keys) - _KEYS_SHOWN} more; --json lists all"


# --- inside ----------------------------------------------------------------------------------------------------------


def _opened(session: Session, table: str, allow: Sequence[str] | None = None) -> "DeltaTable":
    """The table in a folder, with the files elsewhere that are allowed."""
    from dagster_versioned.delta.table import Table

    return Table(table, profile=session.profile, allow=allow or ())


def _described(table: "DeltaTable", snapshot: "Snapshot") -> dict[str, Any]:
    from dagster_versioned.delta.features import reader_features, writer_features
    from dagster_versioned.delta.schema.clustering import clustering_columns

    metadata, mapping = snapshot.metadata, snapshot.column_mapping
    clustered = clustering_columns(snapshot.domains, snapshot.schema, mapping)
    found = [_file(row, {}) for row in snapshot.files.select(["path", "size", "stats", "deletionVector"]).to_pylist()]
    counts = [file["rows"] for file in found]
    features = reader_features(snapshot.protocol) | writer_features(snapshot.protocol)
    return {
        "table": table.store.uri,
        **members(metadata, "id", "name", "description"),
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
            "features": sorted(features),
        },
        "columns": [_column(field.to_json()) for field in snapshot.schema.fields],
        **_properties(metadata.configuration),
    }


def _properties(configuration: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Constraints, and other properties of a table."""
    found: dict[str, dict[str, str]] = {"constraints": {}, "properties": {}}
    for key, value in sorted(configuration.items()):
        found["constraints" if key.startswith(_CONSTRAINT) else "properties"][key.removeprefix(_CONSTRAINT)] = value
    return found


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


def _place(text: str) -> int | str:
    """A version where the text is a number, else a time."""
    return int(text) if text.isascii() and text.isdigit() else text


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value


def _joined(names: Sequence[str]) -> str | None:
    return ", ".join(names) or None


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _one_line(members: Mapping[str, Any]) -> str:
    """Members on one line, without those that say nothing."""
    given = {name: value for name, value in members.items() if value not in (None, "", "[]", "{}", "0", "null")}
    text = ", ".join(f"{name}={value}" for name, value in given.items())
    return text if len(text) <= 120 else f"{text[:119]}…"
