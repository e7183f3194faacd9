"""The verbs that move projects and give them up. What deletes asks for the project's name."""

import sys
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated

from dagster_versioned.cli.arguments import argument, flag, option
from dagster_versioned.cli.commands import Commands
from dagster_versioned.cli.developer import DRY, DryRun, ProjectArgument, Reason, developer, opener, parsed_place
from dagster_versioned.cli.session import Session
from dagster_versioned.cli.terminal import confirm, counted, human_size, progress
from dagster_versioned.errors import GovernanceError, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from dagster_versioned.governance.documents import Verify
    from dagster_versioned.governance.enroll import DecommissionReport
    from dagster_versioned.governance.migrate import MigrationProgress, MigrationReport

command = Commands("Govern")

_Confirm = Annotated[str | None, option("--confirm", "NAME", "The project's name, instead of typing it when asked.")]


@command(
    "gov migrate NYC s3://acme-data-eu/nyc --dry-run",
    "gov migrate NYC s3://acme-data-eu/nyc --reason 'data residency'",
    "gov migrate NYC --abort",
)
def migrate(
    session: Session,
    name: ProjectArgument,
    target: Annotated[
        str | None, argument("LOCATION", "The new place; must be empty. The one of a run that died.")
    ] = None,
    verify: Annotated[
        str, option("--verify", "HOW", "structural, or content: read every part at the new place.")
    ] = "structural",
    delete_source: Annotated[
        bool, flag("--delete-source", "Delete the bytes at the old place in the end; asks for the name.")
    ] = False,
    abort: Annotated[bool, flag("--abort", "Call off a migration that has not switched.")] = False,
    reason: Reason = None,
    confirm: _Confirm = None,
    dry_run: DryRun = False,
) -> None:
    """Move a project's bytes to another place; no version, link or script breaks. Run again, it goes on."""
    from dagster_versioned.governance import migrate as migration

    if abort:
        if target is not None or delete_source:
            raise InvalidInput("--abort takes nothing but the project. Nothing was changed.")
        _abort(session, name, dry_run)
        return
    if target is None:
        raise InvalidInput("Where to? Give the new LOCATION, or --abort. Nothing was changed.")
    registry, store = developer(session)
    how = _verify(verify)
    where = parsed_place(target)

    def run(is_dry: bool) -> "migration.MigrationReport":
        with _steps(session, f"Moving {name}") as tell:
            return migration.migrate(
                registry,
                store,
                name,
                where,
                actor=session.author,
                reason=reason,
                dry_run=is_dry,
                verify=how,
                delete_source=delete_source,
                open_store=opener(session),
                progress=tell,
            )

    if delete_source and not dry_run:
        planned = run(True)
        _confirm_by_name(
            name,
            confirm,
            f"{counted(planned.objects, 'object')}, {human_size(planned.bytes)}, will be deleted at "
            f"{planned.source.uri} once {name} is at {planned.target.uri}",
        )
    _show_migration(session, run(dry_run), delete_source)


@command("gov decommission NYC --dry-run", "gov decommission NYC --delete-data --reason 'consent withdrawn'")
def decommission(
    session: Session,
    name: ProjectArgument,
    delete_data: Annotated[
        bool, flag("--delete-data", "Delete its bytes, for ever; else they stay, ungoverned.")
    ] = False,
    reason: Reason = None,
    confirm: _Confirm = None,
    dry_run: DryRun = False,
) -> None:
    """Give a project up: its history stays in the registry. Asks for the name. Run again, it goes on."""
    from dagster_versioned.governance.enroll import decommission as give_up

    registry, store = developer(session)
    run = partial(
        give_up,
        registry,
        store,
        name,
        actor=session.author,
        reason=reason,
        delete_data=delete_data,
        open_store=opener(session),
    )
    report = run(dry_run=True)
    if not dry_run:
        what = f"{counted(report.objects, 'object')}, {human_size(report.bytes)}, at {report.location.uri}"
        fate = "will be deleted and cannot be brought back" if delete_data else "stay there"
        _confirm_by_name(name, confirm, f"{name} will not be governed any more; {what}, {fate}")
        with progress(f"Giving up {name}", quiet=session.quiet):
            report = run(dry_run=False)
    _show_given_up(session, report, delete_data)


def _verify(text: str) -> "Verify":
    known: dict[str, Verify] = {"structural": "structural", "content": "content"}
    if text not in known:
        raise InvalidInput(f"--verify is structural or content, not {text!a:.50}. Nothing was changed.")
    return known[text]


def _confirm_by_name(project: str, given: str | None, what: str) -> None:
    untouched = "nothing was changed. --confirm NAME goes on without asking."
    confirm(f"{what}.", project, "the project's name", to="go on", untouched=untouched, given=given)


@contextmanager
def _steps(session: Session, label: str) -> "Generator[Callable[[MigrationProgress], None]]":
    """A bar for what is copied; where stderr is no terminal, a line for each step."""
    shown = ""
    with progress(label, quiet=session.quiet) as advance:

        def tell(done: "MigrationProgress") -> None:
            nonlocal shown
            if done.step != shown and not sys.stderr.isatty():
                session.note(f"{label}: {done.step}")
            shown = done.step
            if done.copied is not None:
                advance(done.copied.objects, done.copied.total_objects)

        yield tell


def _abort(session: Session, project: str, dry_run: bool) -> None:
    from dagster_versioned.governance import migrate as migration

    registry, store = developer(session)
    if dry_run:
        registry.fetch()
        pending = registry.documents(project).pending
        if pending is None:
            raise GovernanceError(f"No migration of {project} is on its way. Nothing would be called off.")
        document = {"id": pending.id, "from": pending.source.uri, "to": pending.target.uri, "deleted_objects": 0}
    else:
        done = migration.abort(registry, store, project, open_store=opener(session))
        places = {"from": done.source.uri, "to": done.target.uri}
        document = {"id": done.id, **places, "deleted_objects": done.deleted_objects}
    called_off = "would be called off" if dry_run else "is called off"
    session.show(
        {"project": project, "applied": not dry_run, **document},
        f"{project}: the move to {document['to']} {called_off}; it stays at {document['from']}",
        note=DRY if dry_run else None,
    )


def _show_migration(session: Session, report: "MigrationReport", delete_source: bool) -> None:
    document = {
        "project": report.project,
        "applied": not report.dry_run,
        "id": report.id,
        "from": report.source.uri,
        "to": report.target.uri,
        "tables": report.tables,
        "objects": report.objects,
        "size_bytes": report.bytes,
        "copied_objects": report.copied_objects,
        "copied_bytes": report.copied_bytes,
        "verified": report.verified,
        "deleted_objects": report.deleted_objects,
    }
    source, target = report.source.uri, report.target.uri
    what = f"{counted(report.tables, 'table')}, {counted(report.objects, 'object')} ({human_size(report.bytes)})"
    if report.dry_run:
        gone = f"What is at {source} would be deleted in the end" if delete_source else None
        session.show(document, f"{report.project}: {what} would move from {source} to {target}", gone, note=DRY)
        return
    deleted = f"{counted(report.deleted_objects, 'object')} deleted at {source}" if report.deleted_objects else None
    session.show(
        document,
        f"{report.project} is at {target}: {what}, verified ({report.verified})",
        deleted,
        note=None if deleted else f"What was at {source} is still there, behind a fence.",
    )


def _show_given_up(session: Session, report: "DecommissionReport", delete_data: bool) -> None:
    document = {
        "project": report.project,
        "applied": not report.dry_run,
        "location": report.location.uri,
        "objects": report.objects,
        "size_bytes": report.bytes,
        "deleted_objects": report.deleted_objects,
    }
    what = f"{counted(report.objects, 'object')} ({human_size(report.bytes)}) at {report.location.uri}"
    if report.dry_run:
        fate = f"{what} would {'be deleted' if delete_data else 'stay'}"
        session.show(document, f"{report.project} would be given up; {fate}", note=DRY)
        return
    deleted = f"{counted(report.deleted_objects, 'object')} deleted at {report.location.uri}"
    session.show(document, f"{report.project} is decommissioned; {deleted if delete_data else f'{what} stay'}")
