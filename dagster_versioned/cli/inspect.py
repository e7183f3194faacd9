"""The verbs that look: nothing they do changes a table. Heavy imports wait until a verb runs."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from dagster_versioned.cli.arguments import (
    PREVIEW_ROWS,
    MaybeVersion,
    Output,
    Partition,
    RowLimit,
    TableArgument,
    Tables,
    VersionArgument,
    flag,
    option,
)
from dagster_versioned.cli.commands import Commands
from dagster_versioned.cli.documents import diff_document, members, moment, verify_document, version_document
from dagster_versioned.cli.failures import ExitCode
from dagster_versioned.cli.prove import Trust, is_governed, note_ungoverned, trusted_keys
from dagster_versioned.cli.session import Session, table_of
from dagster_versioned.cli.terminal import Fields, Progress, Table, counted, human_size, progress, short
from dagster_versioned.errors import IntegrityError, InvalidInput, UnsupportedFeature, VersionedError

if TYPE_CHECKING:
    import pyarrow as pa

    from dagster_versioned.projects.project import Project
    from dagster_versioned.proof.signatures import CommitSignatures, TrustedKeys
    from dagster_versioned.tables.diff import ColumnChange
    from dagster_versioned.tables.documents.head import Held
    from dagster_versioned.tables.history import Version
    from dagster_versioned.tables.table import VersionedTable
    from dagster_versioned.tables.verify import Finding, VerifyReport

command = Commands("Look")
EXAMPLES = 5
"""How many rows of each kind ``diff --rows`` shows."""


@command("--location warehouse ls", "ls --json | jq -r '.tables[].table'", "ls --sizes")
def ls(
    session: Session,
    sizes: Annotated[bool, flag("--sizes", "Also what all kept versions take: it lists files.")] = False,
) -> ExitCode | None:
    """List the project's tables with their current versions."""
    project = session.open()
    tables = [_looked_at(project, str(name), sizes=sizes) for name in project.tables()]
    more = _SIZES if sizes else ()
    columns = ("table", "version", "log", "rows", "size", "partitions", "versions", *more, "written", "")
    rows = [{**table, "remarks": "; ".join(_remarks(table))} for table in tables]
    session.show(
        {"project": project.name, "location": project.store.uri, "tables": tables},
        _listed(rows, *columns, none=f"No tables at {project.store.uri}."),
    )
    unread = [table for table in tables if table["problem"]]
    for table in unread:
        session.note(f"{table['table']}: {table['problem']}")
    return ExitCode.INTEGRITY if unread else None


@command("history flights", "history monthly --partition 2013-01-01 --limit 5")
def history(
    session: Session,
    table: TableArgument,
    partition: Partition = None,
    limit: Annotated[int | None, flag("--limit", "Only the newest.", min=1)] = None,
) -> None:
    """List a table's versions, newest first."""
    subject = session.table(table)
    versions = [version_document(version) for version in subject.history(partition=partition)[:limit]]
    partition_column = ["partition"] if any(version["partition"] is not None for version in versions) else []
    remarks = [(v["gone"], v["problem"] and "altered", v["message"]) for v in versions]
    rows = [{**v, "remarks": "; ".join(filter(None, said))} for v, said in zip(versions, remarks, strict=True)]
    columns = ["log", "version", *partition_column, "written", "change", "rows", "size", "author", ""]
    session.show({"table": subject.name, "versions": versions}, _listed(rows, *columns))


@command("show flights", "show flights a3f8c1", "show flights @12 --json")
def show(session: Session, table: TableArgument, version: MaybeVersion = None, partition: Partition = None) -> None:
    """Show one version in full: what it is, how it came to be, and its files."""
    subject = session.table(table)
    if version is None and partition is None and subject.state.history.is_partitioned:
        document = _whole(subject)
    else:
        document = _single(subject, version, partition)
    session.show(document, _version_parts(document) if document["partitions"] is None else _whole_parts(document))


@command("diff flights @3", "diff flights a3f8c1 5e0b77", "diff airports @0 @1 --rows --key faa")
def diff(
    session: Session,
    table: TableArgument,
    before: VersionArgument,
    after: MaybeVersion = None,
    partition: Partition = None,
    rows: Annotated[bool, flag("--rows", "Compare the rows too; reads both versions.")] = False,
    key: Annotated[list[str] | None, option("--key", "COLUMN", "A column that identifies a row; repeatable.")] = None,
) -> None:
    """Say what changed between two versions: schema, rows, parts, parents and metadata."""
    if rows and not key:
        raise InvalidInput("--rows needs to know which rows belong together: --key COLUMN, once for each. See --help.")
    if key and not rows:
        raise InvalidInput("--key says how rows are matched, and means nothing without --rows.")
    subject = session.table(table)
    found = subject.diff(before, after, partition=partition)
    document = {"table": str(subject.name), **diff_document(found), "rows": None}
    if rows and key:
        # By SHA: a write between the two calls must not make them speak of two different versions.
        ends = (found.before.metadata_sha, found.after.metadata_sha)
        document["rows"] = _row_differences(subject, *ends, key)
    session.show(document, _diff_parts(document, key or []))


@command(
    "read flights",
    "read flights @3 --columns carrier,dep_delay --limit 5",
    "read flights a3f8c1 --output flights.parquet",
)
def read(
    session: Session,
    table: TableArgument,
    version: MaybeVersion = None,
    columns: Annotated[list[str] | None, option("--columns", "A,B", "Only these columns; repeatable.")] = None,
    partition: Annotated[list[str] | None, option("--partition", "KEY", "Only this partition; repeatable.")] = None,
    limit: RowLimit = None,
    output: Output = None,
) -> None:
    """Show a version's first rows, or write all of them to a file."""
    import pyarrow as pa

    from dagster_versioned.cli import rows

    rows.check_format(output)
    subject = session.table(table)
    files = subject.files(version, columns=_column_names(columns), partitions=partition)
    reader: pa.RecordBatchReader = subject.read_files(files, pa.RecordBatchReader)
    total = _total(file.remaining_records for file in files.scan.files)
    document: dict[str, Any] = {
        "table": str(subject.name),
        "log_version": files.log_version,
        "versions": [version.metadata_sha for version in files.versions],
        "total_rows": total,
    }
    if output is not None:
        written = _export(session, reader, limit, total, output)
        size = output.stat().st_size
        file = {"output": output, "format": rows.export_format(output), "rows_written": written, "size_bytes": size}
        session.show(document | file, f"{written} rows of {subject.name} in {output}, {human_size(size)}.")
        return
    shown = pa.Table.from_batches(rows.first(reader, PREVIEW_ROWS if limit is None else limit), reader.schema)
    of = "" if total is None else f" of {total}"
    more = f"{shown.num_rows}{of} rows. More with --limit, all with --output FILE."
    note = more if total is None or shown.num_rows < total else None
    session.show(*rows.rows_shown(document, shown), note=note)


def _total(counts: Iterable[int | None]) -> int | None:
    known = list(counts)
    return None if None in known else sum(count or 0 for count in known)


def _export(
    session: Session, reader: "pa.RecordBatchReader", limit: int | None, total: int | None, output: Path
) -> int:
    from dagster_versioned.cli import rows

    rows.check_exportable(reader.schema, output)
    expected = total if limit is None or total is None else min(limit, total)
    batches = rows.first(reader, limit)
    with progress(f"Writing {output}", quiet=session.quiet) as advance:
        return rows.export(reader.schema, batches, output, lambda done: advance(done, expected or done))


@command("verify", "verify flights weather", "verify flights --at @12")
def verify(
    session: Session,
    tables: Tables = None,
    at: Annotated[str | None, option("--at", "VERSION", "Only this version of one table.")] = None,
    partition: Partition = None,
    witness: Annotated[
        list[str] | None,
        option(
            "--witness",
            "LOG_VERSION=SHA256",
            "A commit's SHA-256 as noted elsewhere (show --json: commit_sha256), after a colon that of its outline; of"
            " one table, repeatable.",
        ),
    ] = None,
    trust: Trust = None,
    require_signatures: Annotated[
        bool, flag("--require-signatures", "A version that no trusted key has signed is a finding.")
    ] = False,
) -> ExitCode | None:
    """Check that everything still is what was committed: parts, identities, log, chain and documents.

    With --trust, or in a governed project that trusts keys, also by whom versions are signed. Exits with 1 if anything
    is not. Expired and purged versions are recorded gaps, and no findings.
    """
    witnesses = dict(map(_witness, witness or ()))
    if at or partition or witnesses:
        _check_one(tables)
    project = session.open()
    keys = _keys(session, project, trust, require_signatures)
    names = tables or list(map(str, project.tables()))
    documents = [_verified(session, table_of(project, name), at, partition, witnesses) for name in names]
    if keys is not None:
        for document in documents:
            document |= _signatures(project, document, keys, at, partition)
    return show_verified(session, documents)


def _check_one(tables: list[str] | None) -> None:
    if len(tables or ()) != 1:
        raise InvalidInput("--at, --partition and --witness are about one table: name exactly one. Nothing was read.")


def show_verified(session: Session, documents: list[dict[str, Any]]) -> ExitCode | None:
    """Show what a verification of tables looked at and found; the exit code says whether it found anything."""
    ok = all(document["ok"] for document in documents)
    session.show({"ok": ok, "tables": documents}, _report_lines(documents))
    return None if ok else ExitCode.FINDINGS


def _keys(session: Session, project: "Project", trust: list[Path] | None, required: bool) -> "TrustedKeys | None":
    """Whose signatures are looked for, and whether all must be signed; ``None`` where none are looked for."""
    if not (trust or required or is_governed(session)):
        note_ungoverned(session, project)
        return None
    keys = trusted_keys(session, trust)
    keys = replace(keys, signatures_required=required or keys.signatures_required)
    return keys if keys.keys or keys.signatures_required else None


def _signatures(
    project: "Project", document: dict[str, Any], keys: "TrustedKeys", at: str | None, partition: str | None
) -> dict[str, Any]:
    """Who has signed a table's versions, for its document."""
    from dagster_versioned.proof.signatures import check_signatures

    table = document["table"]
    versions = None if at is None else [project.table(table).version(at, partition=partition)]
    found = check_signatures(project, table, keys, versions)
    good = ("signed",) if keys.signatures_required else ("signed", "unsigned", "elsewhere")
    not_signed = sum(each.standing not in good for each in found)
    return {"signatures": found, "not_signed": not_signed, "ok": document["ok"] and not not_signed}


_NO_SUMMARY: dict[str, Any] = dict.fromkeys(
    (
        *("table", "version", "log_version", "timestamp", "rows", "size_bytes"),
        *("partitions", "versions", "held", "dropped", "foreign"),
    )
)


def _summary(table: "VersionedTable") -> dict[str, Any]:
    from dagster_versioned.tables.documents.head import table_head
    from dagster_versioned.tables.table_record import TableRecord

    state = table.state
    head = table_head(table.name, state)
    return {
        "table": str(table.name),
        **members(head, "version=metadata_sha"),
        "log_version": state.log_version,
        **_totals(list(state.history.heads.values())),
        **members(head, "partitions"),
        "versions": sum(1 for v in state.history.versions if v.raw is not None),
        **members(head, "held"),
        "dropped": str(dropped) if (dropped := TableRecord.of(state.snapshot).dropped) else None,
        "foreign": state.history.unadopted is not None,
        "problem": None,
    }


def _looked_at(project: "Project", name: str, *, sizes: bool) -> dict[str, Any]:
    """A table's summary, or why there is none."""
    try:
        table = project.table(name)
        return {**_summary(table), **(_sizes(table) if sizes else {})}
    except (IntegrityError, UnsupportedFeature) as error:
        nothing = {**_NO_SUMMARY, **(dict.fromkeys(_SIZES) if sizes else {})}
        return {**nothing, "table": name, "problem": str(error)}


_SIZES = ("all_rows", "each_alone", "stored")


def _sizes(table: "VersionedTable") -> dict[str, int]:
    """What all kept versions have: their rows, their bytes if each had files of its own, and those that are stored."""
    from dagster_versioned.tables.history import is_data_key

    kept = [version for version in table.state.history.versions if version.raw is not None and version.gone is None]
    return {
        "all_rows": sum(version.identity.nrow for version in kept),
        "each_alone": sum(version.facts.size_bytes for version in kept),
        "stored": sum(info.size for info in table.store.list() if is_data_key(info.key)),
    }


def _totals(heads: "Sequence[Version]") -> dict[str, Any]:
    if not heads:
        return {"timestamp": None, "rows": None, "size_bytes": None}
    return {
        "timestamp": moment(max(version.timestamp for version in heads)),
        "rows": sum(version.identity.nrow for version in heads),
        "size_bytes": sum(version.facts.size_bytes for version in heads),
    }


def _remarks(table: dict[str, Any]) -> Iterator[str]:
    if table["problem"]:
        yield "cannot be read"
    if table["foreign"]:
        yield "foreign commit: adopt"
    if table["dropped"]:
        yield table["dropped"]
    if table["held"]:
        yield f"held: {table['held'].why}"


def _whole(table: "VersionedTable") -> dict[str, Any]:
    heads = table.partitions()
    return {
        "table": str(table.name),
        "version": table.state.history.whole.metadata_sha,
        "log_version": table.state.log_version,
        "partitions": [version_document(heads[key]) for key in sorted(heads)],
    }


def _single(table: "VersionedTable", reference: str | None, partition: str | None) -> dict[str, Any]:
    from dagster_versioned.tables.documents.head import partition_head
    from dagster_versioned.tables.pins import read_pins

    version = table.version(reference, partition=partition)
    state = table.state
    document: dict[str, Any] = {"identity": None, "facts": None}
    current, held = version == (state.history.unadopted or state.history.heads.get(version.partition)), None
    if not version.is_foreign:
        document = {"identity": version.entry.identity.to_json(), "facts": version.entry.facts.to_json()}
        held = partition_head(table.name, version, state).held if current else None
    files = () if version.gone else table.files(version.metadata_sha or f"@{version.log_version}").scan.files
    pinned = (table.name, version.metadata_sha)
    return {
        "table": str(table.name),
        **version_document(version),
        "partitions": None,
        "current": current,
        "held": held,
        "pins": sorted(pin.name for pin in read_pins(table.project).values() if (pin.table, pin.version) == pinned),
        "commit_sha256": state.history.record(version.log_version).sha256,
        **document,
        "files": [members(file, "key", "size_bytes=size", "rows=remaining_records", "sha256") for file in files],
    }


def _whole_parts(document: dict[str, Any]) -> Iterator[Fields | Table]:
    yield Fields((name, document[name]) for name in ("table", "version"))
    yield _listed(document["partitions"], "partition", "version", "log", "rows", "size", "written")


def _version_parts(document: dict[str, Any]) -> Iterator[Fields | Table]:
    names = ("table", "version", "log_version", "partition", "timestamp", "operation", "change", "gone", "data_sha")
    identity: dict[str, Any] = document["identity"] or {}
    facts: dict[str, Any] = document["facts"] or {}
    held: Held | None = document["held"]
    yield Fields(
        [
            *((name, document[name]) for name in names),
            ("current", "yes" if document["current"] else "no"),
            ("held", held and _held_text(held)),
            ("pins", ", ".join(document["pins"]) or None),
            ("rows", document["rows"]),
            ("size", human_size(document["size_bytes"])),
            ("row order", {"seq": "significant", "bag": "ignored"}.get(str(facts.get("digest"))[:3])),
            *((name, document[name]) for name in ("code_version", "message", "author", "run_id", "promoted_from")),
            ("table_type", identity.get("table_type")),
        ]
    )
    if identity:
        yield from _identity_parts(identity)
    if document["files"]:
        yield _listed(document["files"], "file", "rows", "size")


def _held_text(held: "Held") -> str:
    return f"{held.why} ({held.by or 'nobody named'})"


def _identity_parts(identity: dict[str, Any]) -> Iterator[Table]:
    from dagster_versioned.delta.schema.types import sql_text

    fields = identity["schema"]["fields"]
    yield Table(["column", "type"], [(f["name"], sql_text(f["type"])) for f in fields])
    if parents := identity.get("parents"):
        rows = [(p["table"], _place_of(p), p.get("partition"), _version_of(p)) for p in parents]
        yield Table(["parent", "project", "partition", "version"], rows)


def _version_of(parent: dict[str, Any]) -> str | None:
    """The version of a parent; of an external table with its number, by which it is read again."""
    number, version = parent.get("log_version"), short(parent["version"])
    return version if number is None else f"{version} (@{number})"


def _row_differences(table: "VersionedTable", before: str | None, after: str | None, key: list[str]) -> dict[str, Any]:
    from dagster_versioned.cli.rows import plain_rows
    from dagster_versioned.engines.comparison import without_values
    from dagster_versioned.tables.configuration import personal_columns

    found = table.diff_rows(before, after, key=key)
    personal = personal_columns(table.state.snapshot.metadata.configuration)
    added, removed, old_rows, new_rows = (
        [without_values(row, personal) for row in plain_rows(rows.slice(0, EXAMPLES))]
        for rows in (found.added, found.removed, found.changed_before, found.changed_after)
    )
    changed = [{"before": old, "after": new} for old, new in zip(old_rows, new_rows, strict=True)]
    return {"key": key, **found.counts(), "examples": {"added": added, "removed": removed, "changed": changed}}


def _diff_parts(document: dict[str, Any], key: list[str]) -> Iterator[str | Fields | Table]:
    before, after, parts = document["before"], document["after"], document["parts"]
    ends = (("before", before), ("after", after))
    if before["version"] == after["version"]:
        yield f"The same version: {before['version']}"
    yield Fields(
        [
            *((name, f"{short(end['version'])} ({_at(end['log_version'])})") for name, end in ends),
            ("data", "the same" if document["same_data"] else "different"),
            ("rows", f"{before['rows']} -> {after['rows']} ({after['rows'] - before['rows']:+d})"),
            ("parts", f"{parts['added']} added, {parts['removed']} removed, {parts['shared']} shared"),
            ("column order", "changed" if document["column_order_changed"] else None),
            ("code", document["code"] and document["code"]["text"]),
        ]
    )
    if changes := list(_changes(document)):
        yield Table(["what", "before", "after"], changes)
    if rows := document["rows"]:
        yield f"rows: {', '.join(f'{rows[kind]} {kind}' for kind in ('added', 'removed', 'changed', 'unchanged'))}"
        if lines := list(_example_lines(rows["examples"], key)):
            yield Table(["", "key", "values"], lines)


def _changes(document: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    from dagster_versioned.delta.schema.types import sql_text

    columns: Sequence[ColumnChange] = document["columns"]
    for column in columns:
        yield f"column {column.name}", *(kind and sql_text(kind) for kind in (column.before, column.after))
    for parent in document["parents"]:
        yield f"parent {_parent(parent)}", short(parent["before"]), short(parent["after"])
    for name, change in document["metadata"].items():
        yield name, change["before"], change["after"]


def _example_lines(examples: dict[str, list[dict[str, Any]]], key: list[str]) -> Iterator[tuple[str, str, str]]:
    for sign, kind in (("+", "added"), ("-", "removed")):
        for row in examples[kind]:
            yield sign, _values(row, key), _values(row, (name for name in row if name not in key))
    for pair in examples["changed"]:
        old, new = pair["before"], pair["after"]
        different = [name for name in old if name in new and old[name] != new[name]]
        changed = ", ".join(f"{name}: {_value(old[name])} -> {_value(new[name])}" for name in different)
        yield "~", _values(new, key), changed


def _values(row: dict[str, Any], names: Iterable[str]) -> str:
    return ", ".join(f"{name}={_value(row[name])}" for name in names)


def _value(value: Any) -> str:
    return "null" if value is None else str(value)


def _report_lines(documents: list[dict[str, Any]]) -> Iterator[str]:
    for document in documents:
        looked = (
            f"{counted(document['versions'], 'version')}, {counted(document['parts'], 'part')} "
            f"({human_size(document['size_bytes'])}), {counted(document['documents'], 'document')}"
        )
        findings: Sequence[Finding] = document["findings"]
        faults = len(findings) + document.get("not_signed", 0)
        yield f"{document['table']}: {counted(faults, 'finding') if faults else 'ok'}; {looked}"
        yield from (f"  {finding.subject} {finding.where}: {finding.problem}" for finding in findings)
        yield from (f"  gap {gap}" for gap in document["gaps"])
        yield from _signature_lines(document.get("signatures", ()))


def _signature_lines(signatures: "Sequence[CommitSignatures]") -> Iterator[str]:
    """One line for all that are signed by the same, one for each other commit."""
    signed = Counter(each.text for each in signatures if each.standing == "signed")
    for each in signatures:
        if each.standing != "signed":
            yield f"  signature @{each.log_version}: {each.text}"
        yield from (f"  @{each.log_version}: {note}" for note in each.notes)
    yield from (f"  {counted(count, 'commit')} {text}" for text, count in signed.items())


def _verified(
    session: Session, table: "VersionedTable", at: str | None, partition: str | None, witnesses: Mapping[int, str]
) -> dict[str, Any]:
    def verify_table(advance: Progress) -> "VerifyReport":
        return table.verify(at, partition=partition, witnesses=witnesses, progress=advance)

    return verification_document(session, table, verify_table, (IntegrityError, UnsupportedFeature))


def verification_document(
    session: Session,
    table: "VersionedTable",
    verify_table: "Callable[[Progress], VerifyReport]",
    failures: tuple[type[VersionedError], ...],
) -> dict[str, Any]:
    """What a verification of a table found; one of the failures is a finding: the table cannot even be read."""
    from dagster_versioned.tables.verify import Finding, VerifyReport

    with progress(f"Verifying {table.name}", quiet=session.quiet) as advance:
        try:
            report = verify_table(advance)
        except failures as error:
            report = VerifyReport((Finding("log", table.store.uri, str(error)),), 0, 0, 0, 0, (), None)
    return verify_document(str(table.name), report)


def _witness(text: str) -> tuple[int, str]:
    log_version, _, seen = text.removeprefix("@").partition("=")
    hashes = seen.lower().split(":")
    if not (log_version.isdecimal() and len(hashes) <= 2 and all(map(_is_sha, hashes))):
        raise InvalidInput(
            f"--witness {text!a:.200} is not LOG_VERSION=SHA256 or LOG_VERSION=SHA256:OUTLINE (64 hex)."
            " Nothing was read."
        )
    return int(log_version), ":".join(hashes)


def _is_sha(text: str) -> bool:
    return len(text) == 64 and set(text) <= set("0123456789abcdef")


def _column_names(columns: list[str] | None) -> list[str] | None:
    """Names between commas; one that holds a comma stands in double quotes, as in CSV."""
    import csv

    try:
        return [name for line in csv.reader(columns) for name in line] if columns else None
    except csv.Error as error:
        raise InvalidInput(f"--columns {columns} cannot be read as names between commas: {error}.") from error


def _place_of(parent: dict[str, Any]) -> str:
    environment = parent.get("environment")
    return parent["source"] if environment is None else f"{parent['source']}@{environment}"


def _parent(parent: dict[str, Any]) -> str:
    return "/".join(part for part in (parent["project"], parent["table"], parent["partition"]) if part)


def _at(log_version: int | None) -> str | None:
    return None if log_version is None else f"@{log_version}"


def _second(timestamp: str | None) -> str | None:
    return timestamp and f"{timestamp[:10]} {timestamp[11:19]}Z"


_COLUMNS: dict[str, tuple[str, Callable[[Any], object]]] = {
    "version": ("version", short),
    "log": ("log_version", _at),
    "size": ("size_bytes", human_size),
    "each_alone": ("each_alone", human_size),
    "stored": ("stored", human_size),
    "written": ("timestamp", _second),
    "file": ("key", str),
    "": ("remarks", str),
}
"""The member of a document that a column shows, and how; of others it is the member of the column's name."""


def _listed(documents: Sequence[Mapping[str, Any]], *columns: str, none: str | None = None) -> Table:
    shown = [_COLUMNS.get(column, (column, lambda value: value)) for column in columns]
    rows = [[show(document[member]) for member, show in shown] for document in documents]
    return Table(columns, rows, right=("rows", "size", "partitions", "versions", *_SIZES), none=none)
