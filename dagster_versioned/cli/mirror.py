"""The verb that mirrors version documents to git, and verifies tables with git as the witness."""

from os import environ
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from dagster_versioned.cli.arguments import Tables, flag, option
from dagster_versioned.cli.commands import Commands
from dagster_versioned.cli.developer import DRY, DryRun
from dagster_versioned.cli.documents import members
from dagster_versioned.cli.failures import ExitCode
from dagster_versioned.cli.session import Session, table_of
from dagster_versioned.cli.terminal import Progress, counted, progress, short
from dagster_versioned.errors import GovernanceError, InvalidInput, TableNotFound

if TYPE_CHECKING:
    from dagster_versioned.governance.version_mirror import MirrorReport, VersionMirror
    from dagster_versioned.projects.project import Project
    from dagster_versioned.tables.table import VersionedTable
    from dagster_versioned.tables.verify import VerifyReport

command = Commands("Govern")


@command(
    "gov mirror --remote git@git.example.org:acme/nyc-versions.git",
    "gov mirror flights --remote git@git.example.org:acme/nyc-versions.git --verify",
)
def mirror(
    session: Session,
    tables: Tables = None,
    remote: Annotated[
        str | None, option("--remote", "URL", "The git repository of the mirror (or DAGSTER_VERSIONED_MIRROR).")
    ] = None,
    folder: Annotated[Path | None, option("--folder", "FOLDER", "A clone of it; by default in your cache.")] = None,
    accept: Annotated[
        list[str] | None, option("--accept", "TABLE", "Believe this table's log, though git saw another.")
    ] = None,
    verify: Annotated[bool, flag("--verify", "Change nothing: verify the tables, with git as the witness.")] = False,
    dry_run: DryRun = False,
) -> ExitCode | None:
    """Commit the tables' version documents to a git repository; one commit, none if nothing has changed."""
    from dagster_versioned.governance.version_mirror import VersionMirror

    url = remote or environ.get("DAGSTER_VERSIONED_MIRROR")
    if not url:
        raise InvalidInput("No git repository. Give --remote (its URL or folder), or set DAGSTER_VERSIONED_MIRROR.")
    project = session.open()
    chosen = [str(table_of(project, name).name) for name in tables] if tables else None
    mirrored = VersionMirror.open(project, url, folder)
    if verify:
        return _witnessed(session, project, mirrored, chosen)
    with progress(f"Mirroring {project.name}", quiet=session.quiet) as advance:
        report = mirrored.update(chosen, accept=accept or (), dry_run=dry_run, progress=advance)
    _show_mirrored(session, url, report, dry_run)
    return ExitCode.INTEGRITY if report.refused else None


def _show_mirrored(session: Session, remote: str, report: "MirrorReport", dry_run: bool) -> None:
    where = "would be committed" if dry_run else f"committed as {str(report.commit)[:12]}"
    session.show(
        {
            "remote": remote,
            "applied": not dry_run,
            "commit": report.commit,
            "changed": [members(each, "table", "version", "log_version", "before") for each in report.changed],
            "unchanged": report.unchanged,
            "refused": [{"table": table, "problem": why} for table, why in report.refused.items()],
        },
        f"{counted(len(report.changed), 'table')} {where}; {report.unchanged} unchanged"
        if report.changed
        else f"Nothing to commit; {report.unchanged} unchanged",
        *(f"  {each.table} @{each.log_version} {short(each.version) or ''}" for each in report.changed),
    )
    if session.json:
        return
    for table, why in report.refused.items():
        session.note(f"{table} was left as it is in git: {why}")
    if dry_run:
        session.note(DRY)


def _witnessed(
    session: Session, project: "Project", mirrored: "VersionMirror", tables: list[str] | None
) -> ExitCode | None:
    from dagster_versioned.cli.inspect import show_verified

    try:
        mirrored.fetch()
    except GovernanceError as error:
        session.note(f"The mirror as it was last fetched: {error}")
    names = tables if tables is not None else sorted({*map(str, project.tables()), *mirrored.tables()})
    return show_verified(session, [_verified(session, project.table(name), mirrored) for name in names])


def _verified(session: Session, table: "VersionedTable", mirrored: "VersionMirror") -> dict[str, Any]:
    from dagster_versioned.cli.inspect import verification_document

    def verify_table(advance: Progress) -> "VerifyReport":
        return table.verify(witnesses=mirrored.witnesses(str(table.name)), progress=advance)

    return verification_document(session, table, verify_table, (GovernanceError, TableNotFound))
