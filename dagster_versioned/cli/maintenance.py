"""The verbs that change something. What deletes is a dry run or asks before. Heavy imports wait until a verb runs."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

from dagster_versioned.cli.arguments import (
    Apply,
    MaybeVersion,
    Partition,
    SomeTables,
    TableArgument,
    Tables,
    VersionArgument,
    Why,
    argument,
    flag,
    option,
    parse_moment,
    parse_span,
)
from dagster_versioned.cli.commands import Commands
from dagster_versioned.cli.documents import collection_document, version_document
from dagster_versioned.cli.session import Session, table_of
from dagster_versioned.cli.terminal import Table, confirm, counted, human_size, progress, say, short
from dagster_versioned.errors import InvalidInput

if TYPE_CHECKING:
    from dagster_versioned.projects.project import Project
    from dagster_versioned.tables.history import Version
    from dagster_versioned.tables.maintenance.collect import CollectionReport
    from dagster_versioned.tables.table import VersionedTable

command = Commands("Maintain")
_KEYS_SHOWN = 20
_NOT_PURGED = (
    "A purge deletes files of data. It does not remove the smallest and largest value of each of the first 32 columns "
    "(text: up to 32 characters) from the log and its checkpoints, nor messages and custom metadata, nor previews in "
    "Dagster's event log. Copies and backups are yours to delete."
)


@command("repair", "repair flights")
def repair(session: Session, tables: Tables = None) -> None:
    """Write every derived document again from the log: heads, datom documents, manifest, checkpoints, index."""
    project = session.open()
    repaired: list[str] = []
    for table in _each(session, project, tables, "Repairing"):
        table.repair()
        repaired.append(str(table.name))
    session.show(
        {"repaired": repaired}, *(f"{name}: every derived document is written again from the log" for name in repaired)
    )


@command("vacuum", "vacuum flights --min-age 30d --apply")
def vacuum(
    session: Session,
    tables: Tables = None,
    min_age: Annotated[str, option("--min-age", "SPAN", "Leave younger files alone: 30m, 12h, 7d, 4w.")] = "7d",
    apply: Apply = False,
) -> None:
    """Delete files that no version needs, left by writes that died. A dry run unless --apply is given."""
    age = parse_span(min_age)
    project = session.open()
    _collect(session, project, tables, "Vacuuming", lambda table: table.vacuum(min_age=age, dry_run=not apply))


@command("expire flights --keep-last 10", "expire flights weather --older-than 90d --why 'policy 7' --apply")
def expire(
    session: Session,
    tables: SomeTables,
    keep_last: Annotated[
        int | None, option("--keep-last", "N", "Keep the newest N versions of each partition.")
    ] = None,
    older_than: Annotated[
        str | None, option("--older-than", "SPAN|TIME", "Keep what is younger: 90d, 2026-01-31.")
    ] = None,
    why: Why = None,
    apply: Apply = False,
) -> None:
    """Give up the bytes of old versions. A dry run unless --apply is given.

    With both limits, a version goes only if it is beyond both. Heads, pinned versions, and what kept versions were
    built from stay in any case, in this table and in others. The history keeps every entry.
    """
    before = parse_moment(older_than, datetime.now(UTC)) if older_than is not None else None
    if keep_last is None and before is None:
        raise InvalidInput("expire needs a retention: --keep-last N, --older-than 90d, or both. Nothing was deleted.")
    project = session.open()
    _collect(
        session,
        project,
        tables,
        "Expiring",
        lambda table: table.expire(keep_last=keep_last, older_than=before, dry_run=not apply, why=why),
    )


@command("revert flights a3f8c1", "revert flights @3 --hold --why 'the source is broken since May'")
def revert(
    session: Session,
    table: TableArgument,
    version: VersionArgument,
    partition: Partition = None,
    hold: Annotated[bool, flag("--hold", "Keep sensors from rebuilding it until it is released.")] = False,
    why: Why = None,
) -> None:
    """Make an older version current again, as a new commit; no data is written."""
    if hold and not why:
        raise InvalidInput("A held head needs a reason: --why TEXT. Nothing was changed.")
    if why and not hold:
        raise InvalidInput("--why is the reason of a hold: give it with --hold. Nothing was changed.")
    subject = session.table(table)
    result = subject.revert(version, partition=partition, hold=hold, why=why)
    held = ", held" if hold else ""
    unchanged = f"{subject.name}: {_named(result.version)} is current already{held}"
    reverted = f"{subject.name}: {_named(result.version)} is current again{held}"
    _result(session, subject, result.change, result.version, unchanged if result.change == "none" else reverted)


@command("release flights", "release monthly --partition 2013-01-01")
def release(session: Session, table: TableArgument, partition: Partition = None) -> None:
    """Take the hold off a head, so that sensors may rebuild it."""
    subject = session.table(table)
    _ = subject.version(None, partition=partition) if partition is not None else subject.state  # unknown: say so
    is_released = subject.release(partition=partition)
    session.show(
        {"table": subject.name, "partition": partition, "released": is_released},
        f"{subject.name}: {'released' if is_released else 'it was not held'}",
    )


@command("forget daily_delays --code-version 2 --apply", "forget daily_delays")
def forget(
    session: Session,
    table: TableArgument,
    key: Annotated[str | None, option("--key", "KEY", "One computation: facts.computation.key of a version.")] = None,
    code_version: Annotated[
        str | None, option("--code-version", "TEXT", "Whatever code of this version computed.")
    ] = None,
    apply: Apply = False,
) -> None:
    """Have what was computed so far computed again, instead of reused. A dry run unless --apply is given.

    Without --key and --code-version, all of it. No row changes; what is computed from then on is reused again.
    """
    subject = session.table(table)
    versions = subject.forget(key=key, code_version=code_version, dry_run=not apply)
    count = counted(len(versions), "version")
    does = f"{'is' if len(versions) == 1 else 'are'} not" if apply else "would not be"
    session.show(
        {
            "table": subject.name,
            "applied": apply,
            "versions": [version_document(version) for version in versions],
        },
        f"{subject.name}: {count} {does} reused any more",
        note="Nothing was changed. Give --apply to forget." if versions and not apply else None,
    )


@command("pin flights before-audit", "pin flights q1 a3f8c1 --why 'quarterly report'")
def pin(
    session: Session,
    table: TableArgument,
    name: Annotated[str, argument("NAME", "The pin's name; pin:NAME then names the version.")],
    version: MaybeVersion = None,
    why: Why = None,
) -> None:
    """Name a version, which keeps it from being expired."""
    project = session.open()
    subject = table_of(project, table)
    made = project.pin(name, str(subject.name), version, by=session.author, why=why)
    session.show({"pin": made}, f"{made.name}: {made.table} {short(made.version)}")


@command("unpin before-audit")
def unpin(session: Session, name: Annotated[str, argument("NAME", "The pin's name.")]) -> None:
    """Take a pin away."""
    session.open().unpin(name)
    session.show({"unpinned": name}, f"{name}: unpinned")


@command("pins", "pins --json")
def pins(session: Session) -> None:
    """List the pins."""
    project = session.open()
    found = [pin for _, pin in sorted(project.pins().items())]
    session.show(
        {"pins": found},
        Table(
            ["pin", "table", "version", "by", "why", "since"],
            [(pin.name, pin.table, short(pin.version), pin.by, pin.why, pin.at[:19]) for pin in found],
            none=f"No pins at {project.store.uri}.",
        ),
    )


@command("export flights @4 s3://exchange/flights-4", "export monthly head exported --partition 2013-01-01")
def export(
    session: Session,
    table: TableArgument,
    version: VersionArgument,
    to: Annotated[str, argument("LOCATION", "An empty place, or that of an export that died.")],
    partition: Partition = None,
) -> None:
    """Copy a version to a place of its own, as a plain Delta table that every reader of Delta opens."""
    from dagster_versioned.cli.developer import opener, parsed_place
    from dagster_versioned.tables.version_export import export_version

    subject, where = session.table(table), parsed_place(to)
    with progress(f"Exporting {subject.name}", quiet=session.quiet) as advance:
        made = export_version(
            subject, where, version, partition=partition, open_store=opener(session), progress=advance
        )
    files = f"{counted(made.files, 'file')}, {human_size(made.size_bytes)}"
    needs = f"; readers have to know {', '.join(made.reader_features)}" if made.reader_features else ""
    session.show(
        {
            "table": subject.name,
            "log_version": made.log_version,
            "location": made.location,
            "files": made.files,
            "size_bytes": made.size_bytes,
            "reader_features": made.reader_features,
        },
        f"{subject.name} @{made.log_version} is at {made.location}: {files}{needs}",
    )


@command("leave flights", "leave flights --retention 'interval 30 days' --why 'the warehouse writes it now' --apply")
def leave(
    session: Session,
    table: TableArgument,
    retention: Annotated[
        str | None, option("--retention", "INTERVAL", "How long other programs keep what they remove; else as it is.")
    ] = None,
    why: Why = None,
    apply: Apply = False,
) -> None:
    """Leave a table to other programs, which write to it as to any Delta table. A dry run unless --apply is given.

    It takes no more versions; those that there are can be read as before. `adopt` takes it back.
    """
    subject = session.table(table)
    report = subject.leave(retention=retention, dry_run=not apply, why=why)
    stay = f"the features {', '.join(report.features)}" if report.features else "no feature of the protocol"
    session.show(
        {
            "table": subject.name,
            "applied": apply,
            "dropped": report.dropped,
            "features": report.features,
            "reader_features": report.reader_features,
        },
        f"{subject.name}: {'is' if apply else 'would be'} a Delta table like any other, with {stay} to know about",
        note=None if apply else "Nothing was changed. Give --apply to leave it.",
    )


@command("adopt flights --message 'rows deleted with deltalake'")
def adopt(
    session: Session,
    table: TableArgument,
    message: Annotated[str | None, option("--message", "TEXT", "Part of the new version.")] = None,
) -> None:
    """Give the table as another Delta writer left it an identity; reads every file once."""
    subject = session.table(table)
    with progress(f"Adopting {subject.name}", quiet=session.quiet):
        result = subject.adopt(message=message)
    if result is None:
        _result(session, subject, "none", None, f"{subject.name}: nothing to adopt")
    else:
        _result(session, subject, result.change, result.version, f"{subject.name}: adopted as {_named(result.version)}")


@command("purge flights a3f8c1 --why 'erasure request 12'", "purge flights @3 @4 --why '…' --dry-run")
def purge(
    session: Session,
    table: TableArgument,
    versions: Annotated[list[str], argument("VERSION", "SHA prefixes, @12, times, pins or tags.")],
    why: Annotated[str, option("--why", "TEXT", "The reason, which the log keeps.")],
    yes: Annotated[bool, flag("--yes", "Do not ask.")] = False,
    dry_run: Annotated[bool, flag("--dry-run", "Only say what would be deleted.")] = False,
) -> None:
    """Delete the bytes of named versions now, for good (legal erasure), and record the gap.

    Smallest and largest values stay in the log and its checkpoints, and previews in Dagster's event log. Unless --yes
    is given, asks for the table's name to be typed.
    """
    subject = session.table(table)
    # By SHA, so that what is confirmed is what is deleted, whatever is committed in between.
    chosen = [_sha(subject.version(version)) for version in versions]
    planned = subject.purge(chosen, why=why, dry_run=True)
    if not dry_run and not yes:
        _confirm(str(subject.name), planned)
    report = planned if dry_run else subject.purge(chosen, why=why, dry_run=False)
    _show_collections(
        session,
        [(str(subject.name), report)],
        "Nothing was deleted: this is a dry run. Delete by leaving --dry-run out.",
    )
    if not session.json:
        say(_NOT_PURGED)


def _confirm(table: str, planned: "CollectionReport") -> None:
    named = ", ".join(version.short for version in planned.versions[:10])
    named += ", …" if planned.versions[10:] else ""
    what = f"{counted(len(planned.versions), 'version')} ({named}), {counted(len(planned.keys), 'file')}"
    confirm(
        f"{what}, {human_size(planned.size_bytes)}: they cannot be brought back.",
        *(table, "the table's name"),
        to="delete them",
        untouched="nothing was deleted. --yes deletes without asking.",
    )


def _collect(
    session: Session,
    project: "Project",
    tables: list[str] | None,
    doing: str,
    collect: "Callable[[VersionedTable], CollectionReport]",
) -> None:
    reports = [(str(table.name), collect(table)) for table in _each(session, project, tables, doing)]
    _show_collections(session, reports, "Nothing was deleted: this is a dry run. Delete with --apply.")


def _each(session: Session, project: "Project", tables: list[str] | None, doing: str) -> "Iterable[VersionedTable]":
    """The named tables, or all, with progress; every name is looked up before the first is handed out."""
    chosen = [table_of(project, name) for name in tables or map(str, project.tables())]
    for table in chosen:
        _ = table.state  # a misspelt name must not be found out when half of the work is done
    with progress(doing, quiet=session.quiet) as advance:
        for done, table in enumerate(chosen):
            advance(done, len(chosen))
            yield table


def _show_collections(session: Session, reports: "list[tuple[str, CollectionReport]]", dry: str) -> None:
    is_applied = not any(report.dry_run for _, report in reports)
    session.show(
        {
            "applied": is_applied,
            "collections": [collection_document(table, report) for table, report in reports],
        },
        (line for table, report in reports for line in _collection_lines(table, report)),
        note=None if is_applied else dry,
    )


def _collection_lines(table: str, report: "CollectionReport") -> "Iterable[str]":
    what = f"{counted(len(report.versions), 'version')} and {counted(len(report.keys), 'file')}"
    deleted = "would be deleted" if report.dry_run else "deleted"
    yield f"{table}: {what} ({human_size(report.size_bytes)}) {deleted}"
    yield from (f"  version {_named(version)}" for version in report.versions)
    yield from (f"  file {key}" for key in report.keys[:_KEYS_SHOWN])
    if len(report.keys) > _KEYS_SHOWN:
        yield f"  and {len(report.keys) - _KEYS_SHOWN} more files; --json lists all"
    yield from (f"  unfinished write of {key}" for key in report.unfinished)
    yield from (f"  kept {version}: {reason}" for version, reason in report.kept.items())
    for key in report.unreadable:
        yield f"  {key} cannot be read: no more is kept for it than it can be read to name; restore it, or drop it"


def _result(session: Session, table: "VersionedTable", change: str, version: "Version | None", sentence: str) -> None:
    document = version_document(version) if version else None
    session.show({"table": table.name, "change": change, "version": document}, sentence)


def _named(version: "Version") -> str:
    return f"{version.short} (@{version.log_version})"


def _sha(version: "Version") -> str:
    if version.metadata_sha is None:
        raise InvalidInput(
            f"@{version.log_version} is a foreign commit, which has no identity to record. Nothing was deleted. "
            "Adopt it first."
        )
    return version.metadata_sha
