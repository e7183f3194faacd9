"""The verbs that govern: where projects are, who moves them, how they are read. Heavy imports wait until a verb runs.

What deletes, or gives a project up, asks for the project's name.
"""

import json
import sys
from contextlib import contextmanager
from functools import partial
from os import environ
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dagster_versioned.cli.arguments import Tables
from dagster_versioned.cli.failures import ExitCode
from dagster_versioned.cli.session import Session, table_of, verb
from dagster_versioned.cli.terminal import counted, human_size, plain, progress, say, show_table
from dagster_versioned.errors import GovernanceError, InvalidInput, TableNotFound, VersionedError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from dagster_versioned.governance.decommission import DecommissionReport
    from dagster_versioned.governance.documents import Dispatch, RegistrationKind, Verify
    from dagster_versioned.governance.migrate import MigrationProgress, MigrationReport
    from dagster_versioned.governance.mirror import Difference, GovernanceStore
    from dagster_versioned.governance.registry import Registry
    from dagster_versioned.governance.version_mirror import MirrorReport, VersionMirror
    from dagster_versioned.storage.location import Location
    from dagster_versioned.storage.object_store import ObjectStore
    from dagster_versioned.tables.project import Project

PANEL = "Govern"
_DRY = "Nothing was recorded: this is a dry run. Do it by leaving --dry-run out."

_Project = Annotated[str, typer.Argument(metavar="PROJECT", help="The project's name.")]
_Projects = Annotated[
    list[str] | None, typer.Argument(metavar="PROJECT", help="Projects by name; all if none is named.")
]
_Place = Annotated[str, typer.Argument(metavar="LOCATION", help="A local path, file:///… or s3://bucket/prefix.")]
_Reason = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why; the registry keeps it.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
_Confirm = Annotated[
    str | None, typer.Option("--confirm", metavar="NAME", help="The project's name, instead of typing it when asked.")
]


def register(app: typer.Typer) -> None:
    """Add the group ``gov`` to the application."""
    gov = typer.Typer(
        no_args_is_help=True,
        help="Govern projects: where their bytes are, who moves them, how they are read.",
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    verb(gov, panel=PANEL, examples=["gov init --registry git@git.example.org:acme/registry.git"])(init)
    verb(gov, panel=PANEL, name="register", examples=["gov register NYC s3://acme-data/nyc --reason 'ticket 12'"])(
        register_project
    )
    verb(gov, panel=PANEL, examples=["gov attach NYC s3://acme-data/nyc", "gov attach NYC warehouse --dry-run"])(attach)
    verb(gov, panel=PANEL, examples=["gov status", "gov status NYC --json"])(status)
    verb(gov, panel=PANEL, name="list", examples=["gov list", "gov list --json | jq -r '.projects[].project'"])(listing)
    verb(gov, panel=PANEL, examples=["gov ref NYC", "gov ref NYC --live", "gov ref NYC --repair"])(ref)
    verb(
        gov,
        panel=PANEL,
        examples=[
            "gov dispatch NYC",
            "gov dispatch NYC --context cached --method dagster_versioned.read_cached",
            "gov dispatch NYC --context cached --remove",
        ],
    )(dispatch)
    verb(
        gov,
        panel=PANEL,
        examples=[
            "gov migrate NYC s3://acme-data-eu/nyc --dry-run",
            "gov migrate NYC s3://acme-data-eu/nyc --reason 'data residency'",
            "gov migrate NYC --abort",
        ],
    )(migrate)
    verb(
        gov,
        panel=PANEL,
        examples=["gov decommission NYC --dry-run", "gov decommission NYC --delete-data --reason 'consent withdrawn'"],
    )(decommission)
    verb(gov, panel=PANEL, examples=["gov pull"])(pull)
    verb(
        gov,
        panel=PANEL,
        examples=[
            "gov mirror --remote git@git.example.org:acme/nyc-versions.git",
            "gov mirror flights --remote git@git.example.org:acme/nyc-versions.git --verify",
        ],
    )(mirror)
    app.add_typer(gov, name="gov", rich_help_panel=PANEL)


def init(session: Session, dry_run: _DryRun = False) -> None:
    """Make the remote repository a registry, and clone it; a folder that is empty or not there is made one."""
    from dagster_versioned.cli.documents import print_json
    from dagster_versioned.governance.git_remote import remote_url
    from dagster_versioned.governance.registry import Registry

    if not session.registry:
        raise InvalidInput("No remote. Give --registry (its URL or folder), or set DAGSTER_VERSIONED_REGISTRY.")
    url, clone = remote_url(session.registry), session.clone_folder()
    registry = None if dry_run else Registry.init(session.registry, clone)
    if session.json:
        commit = registry.commit_sha if registry else None
        print_json({"registry": str(url), "clone": str(clone), "applied": not dry_run, "commit": commit})
        return
    say(f"{url} {'is' if registry else 'would be'} a registry; its clone {'is' if registry else 'would be'} {clone}")
    if not registry:
        session.note(_DRY)


def register_project(
    session: Session, name: _Project, place: _Place, reason: _Reason = None, dry_run: _DryRun = False
) -> None:
    """Record where a new project's bytes belong. Run again, it finds all done."""
    _enroll(session, name, place, "registered", reason, dry_run)


def attach(session: Session, name: _Project, place: _Place, reason: _Reason = None, dry_run: _DryRun = False) -> None:
    """Bring a project that is there already under governance; nothing at its place is touched."""
    _enroll(session, name, place, "attached", reason, dry_run)


def status(session: Session, projects: _Projects = None) -> ExitCode | None:
    """Compare the governance storage with the registry, and show what is on its way. Changes nothing."""
    from dagster_versioned.cli.documents import print_json

    registry, store = _developer(session)
    try:
        registry.fetch()
    except GovernanceError as error:
        session.note(f"The registry as it was last fetched: {error}")
    extra = [] if projects else [name for name in store.projects() if name not in registry.all_projects()]
    found = [_status_of(registry, store, name) for name in projects or [*registry.all_projects(), *extra]]
    ok = not any(one["problem"] or one["differences"] for one in found)
    if session.json:
        print_json({**_clone(registry), "governance": store.store.uri, "ok": ok, "projects": found})
    elif found:
        show_table(
            ["project", "state", "location", "before", ""],
            [(p["project"], p["state"], p["location"], p["moves"], "; ".join(_remarks(p))) for p in found],
            right=("before",),
        )
    else:
        session.note(f"No projects in {registry.remote}.")
    if not ok:
        session.note("Bring the governance storage up to the registry: dagster-versioned gov pull.")
    return None if ok else ExitCode.FINDINGS


def listing(session: Session) -> None:
    """List the projects and where they are: as the clone knows it, or, for a reader, live."""
    from dagster_versioned.cli.documents import print_json

    governance = session.governed()
    names = governance.registry.projects() if governance.registry else governance.mirror.projects()
    found: list[dict[str, Any]] = []
    for name in names:
        try:
            ref = governance.documents(name).ref
            found.append({"project": name, "location": ref.current.uri, "moves": len(ref.previous), "problem": None})
        except GovernanceError as error:
            found.append({"project": name, "location": None, "moves": None, "problem": str(error)})
    if session.json:
        print_json({"governance": governance.storage.uri, "role": governance.role, "projects": found})
    elif found:
        show_table(
            ["project", "location", ""],
            [(p["project"], p["location"], "cannot be read" if p["problem"] else None) for p in found],
        )
    else:
        session.note("No projects.")
    for one in found:
        if one["problem"]:
            session.note(f"{one['project']}: {one['problem']}")


def ref(
    session: Session,
    name: _Project,
    live: Annotated[bool, typer.Option("--live", help="Ask the governance storage, not the clone.")] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Write ref.json anew from the migration history, after a hand edit.")
    ] = False,
    dry_run: _DryRun = False,
) -> None:
    """Show where a project is, where it was, and what happened; or repair ref.json."""
    from dagster_versioned.cli.documents import print_json

    if repair:
        registry, store = _developer(session)
        commit = (registry.rehearsal() if dry_run else registry).repair_ref(name)
        published = [] if dry_run else store.publish(registry, [name])
        _recorded(session, name, commit, published, dry_run, "ref.json is written anew from the history")
        return
    governance = session.governed()
    documents = governance.mirror.documents(name) if live else governance.documents(name)
    events = [event.model_dump(mode="json", by_alias=True, exclude_none=True) for event in documents.history.events]
    if session.json:
        shown = documents.ref.model_dump(mode="json", exclude_none=True)
        print_json({"project": name, "ref": shown, "events": events})
        return
    say(f"{name} is at {documents.ref.current.uri}")
    show_table(
        ["when", "what", "to", "by", "why"],
        [
            (
                f"{event.timestamp:%Y-%m-%d %H:%M}Z",
                event.kind,
                event.target.uri if event.target else None,
                event.actor,
                event.reason,
            )
            for event in documents.history.events
        ],
    )


def dispatch(
    session: Session,
    name: _Project,
    context: Annotated[
        str | None, typer.Option("--context", metavar="NAME", help="A way of reading; default, if left out.")
    ] = None,
    method: Annotated[
        str | None, typer.Option("--method", metavar="DOTTED", help="Let this function read in that context.")
    ] = None,
    language: Annotated[str, typer.Option("--language", metavar="NAME", help="Whose readers.")] = "python",
    remove: Annotated[bool, typer.Option("--remove", help="Take the context away.")] = False,
    dry_run: _DryRun = False,
) -> None:
    """Show how a project is read; with --method or --remove, change it. A method runs only where it is allowed."""
    from dagster_versioned.cli.documents import print_json
    from dagster_versioned.governance.documents import DEFAULT_DISPATCH

    if method is None and not remove:
        methods = session.governed().documents(name).dispatch.methods
        rows = [(lang, where, dotted) for lang, named in methods.items() for where, dotted in sorted(named.items())]
        if session.json:
            print_json({"project": name, "methods": {lang: dict(named) for lang, named in methods.items()}})
        else:
            show_table(["language", "context", "method"], rows)
        return
    if (method is not None) == remove or (remove and context is None):
        raise InvalidInput(
            "--method gives a context a method, --remove takes a --context away. Nothing was changed. Say which."
        )
    registry, store = _developer(session)
    registry.fetch()
    old = registry.state(name).dispatch or DEFAULT_DISPATCH
    methods = {lang: dict(named) for lang, named in old.methods.items()}
    chosen = context or "default"
    if method is not None:
        methods.setdefault(language, {})[chosen] = method
    elif methods.get(language, {}).pop(chosen, None) is None:
        raise InvalidInput(f"There is no context {chosen!a:.100} for {language!a:.100}. Nothing was changed.")
    changed = _parsed_dispatch({lang: named for lang, named in methods.items() if named})
    commit = (registry.rehearsal() if dry_run else registry).set_dispatch(name, changed)
    published = [] if dry_run else store.publish(registry, [name])
    what = f"{language} reads by {method} in context {chosen}" if method else f"{language} has no context {chosen}"
    _recorded(session, name, commit, published, dry_run, what)


def migrate(
    session: Session,
    name: _Project,
    target: Annotated[
        str | None, typer.Argument(metavar="LOCATION", help="The new place; must be empty. The one of a run that died.")
    ] = None,
    verify: Annotated[
        str, typer.Option("--verify", metavar="HOW", help="structural, or content: read every part at the new place.")
    ] = "structural",
    delete_source: Annotated[
        bool, typer.Option("--delete-source", help="Delete the bytes at the old place in the end; asks for the name.")
    ] = False,
    abort: Annotated[bool, typer.Option("--abort", help="Call off a migration that has not switched.")] = False,
    reason: _Reason = None,
    confirm: _Confirm = None,
    dry_run: _DryRun = False,
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
    registry, store = _developer(session)
    how = _verify(verify)
    where = _location(target)

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
                open_store=_opener(session),
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


def decommission(
    session: Session,
    name: _Project,
    delete_data: Annotated[
        bool, typer.Option("--delete-data", help="Delete its bytes, for ever; else they stay, ungoverned.")
    ] = False,
    reason: _Reason = None,
    confirm: _Confirm = None,
    dry_run: _DryRun = False,
) -> None:
    """Give a project up: its history stays in the registry. Asks for the name. Run again, it goes on."""
    from dagster_versioned.governance.decommission import decommission as give_up

    registry, store = _developer(session)
    run = partial(
        give_up,
        registry,
        store,
        name,
        actor=session.author,
        reason=reason,
        delete_data=delete_data,
        open_store=_opener(session),
    )
    report = run(dry_run=True)
    if not dry_run:
        what = f"{counted(report.objects, 'object')}, {human_size(report.bytes)}, at {report.location.uri}"
        fate = "will be deleted and cannot be brought back" if delete_data else "stay there"
        _confirm_by_name(name, confirm, f"{name} will not be governed any more; {what}, {fate}")
        with progress(f"Giving up {name}", quiet=session.quiet):
            report = run(dry_run=False)
    _show_given_up(session, report, delete_data)


def pull(session: Session, dry_run: _DryRun = False) -> None:
    """Bring your clone of the registry up to date, and the governance storage up to the registry."""
    from dagster_versioned.cli.documents import print_json

    registry, store = _developer(session)
    before = registry.commit_sha
    registry.fetch()
    published = store.status(registry) if dry_run else store.publish(registry)
    if session.json:
        document = {"before": before, "commit": registry.commit_sha, "published": _differences(published)}
        print_json({**_clone(registry), "applied": not dry_run, **document})
        return
    moved = "was up to date" if before == registry.commit_sha else f"is at {str(registry.commit_sha)[:12]}"
    say(f"{registry.path} {moved}; {counted(len(published), 'document')} of {store.store.uri} {_done(dry_run)}")
    say(*(f"  {one.project} {one.document}: {one.state}" for one in published))


def mirror(
    session: Session,
    tables: Tables = None,
    remote: Annotated[
        str | None,
        typer.Option("--remote", metavar="URL", help="The git repository of the mirror (or DAGSTER_VERSIONED_MIRROR)."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", metavar="FOLDER", help="A clone of it; by default in your cache.")
    ] = None,
    accept: Annotated[
        list[str] | None,
        typer.Option("--accept", metavar="TABLE", help="Believe this table's log, though git saw another."),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Change nothing: verify the tables, with git as the witness.")
    ] = False,
    dry_run: _DryRun = False,
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


# What several verbs do


def _developer(session: Session) -> "tuple[Registry, GovernanceStore]":
    governance = session.governed()
    if governance.registry is None:
        raise InvalidInput(
            "This is a developer's to do, who has a clone of the registry. Nothing was changed. Give --registry (or "
            "--clone), and no --role reader."
        )
    return governance.registry, governance.mirror


def _enroll(
    session: Session, project: str, place: str, kind: "RegistrationKind", reason: str | None, dry_run: bool
) -> None:
    from dagster_versioned.governance.enroll import enroll

    registry, store = _developer(session)
    location = _location(place)
    done = enroll(
        registry.rehearsal() if dry_run else registry,
        store,
        project,
        location,
        kind,
        actor=session.author,
        reason=reason,
        open_store=_opener(session),
    )
    _recorded(session, project, done.commit, done.published, dry_run, f"{kind} at {location.uri}")


def _recorded(
    session: Session,
    project: str,
    commit: str | None,
    published: "Sequence[Difference]",
    dry_run: bool,
    what: str,
) -> None:
    """Say what an event came to: one commit of the registry, or none because it was so already."""
    from dagster_versioned.cli.documents import print_json

    if session.json:
        document = {"project": project, "applied": not dry_run, "changed": commit is not None}
        print_json({**document, "commit": None if dry_run else commit, "published": _differences(published)})
        return
    say(f"{project}: {what}" + ("" if commit else " (it was so already)"))
    if dry_run:
        session.note(_DRY)


def _status_of(registry: "Registry", store: "GovernanceStore", project: str) -> dict[str, Any]:
    document: dict[str, Any] = {
        "project": project,
        "state": "unknown",
        "location": None,
        "moves": None,
        "pending": None,
        "differences": [],
        "problem": None,
    }
    try:
        known = registry.state(project)
        document["state"] = "decommissioned" if known.is_decommissioned else "moving" if known.pending else "governed"
        if known.pending is not None:
            document["pending"] = known.pending.model_dump(mode="json", by_alias=True, exclude_none=True)
        if known.ref is not None:
            document |= {"location": known.ref.current.uri, "moves": len(known.ref.previous)}
        document["differences"] = [
            {"document": one.document, "state": one.state} for one in store.status(registry, [project])
        ]
    except VersionedError as error:
        document["problem"] = str(error)
    return document


def _remarks(project: dict[str, Any]) -> list[str]:
    pending = project["pending"]
    target = _place_of(pending["to"]) if pending else None
    moving = [f"to {target} by {pending['actor']} since {pending['started_at']}"] if pending else []
    differences = [f"{one['document']} {one['state']}" for one in project["differences"]]
    return [*moving, *differences, *([project["problem"]] if project["problem"] else [])]


def _clone(registry: "Registry") -> dict[str, Any]:
    from dagster_versioned.cli.documents import moment

    fetched = registry.fetched_at
    return {
        "registry": registry.remote,
        "clone": str(registry.path),
        "commit": registry.commit_sha,
        "fetched_at": moment(fetched) if fetched else None,
    }


def _differences(found: "Iterable[Difference]") -> list[dict[str, str]]:
    return [{"project": one.project, "document": one.document, "state": one.state} for one in found]


def _done(dry_run: bool) -> str:
    return "would be published" if dry_run else "published"


def _location(text: str) -> "Location":
    from dagster_versioned.storage.location import Location

    return Location.parse(text)


def _place_of(members: dict[str, str]) -> str:
    from dagster_versioned.storage.location import Location

    return Location.from_json(members).uri


def _opener(session: Session) -> "Callable[[Location], ObjectStore]":
    from dagster_versioned.storage.location import open_store

    return partial(open_store, profile=session.profile)


def _verify(text: str) -> "Verify":
    known: dict[str, Verify] = {"structural": "structural", "content": "content"}
    if text not in known:
        raise InvalidInput(f"--verify is structural or content, not {text!a:.50}. Nothing was changed.")
    return known[text]


def _parsed_dispatch(methods: dict[str, dict[str, str]]) -> "Dispatch":
    from dagster_versioned.governance.documents import Dispatch

    try:
        return Dispatch.parse(json.dumps({"methods": methods}).encode(), "The dispatch document as it would be")
    except GovernanceError as error:
        raise InvalidInput(str(error)) from None


def _confirm_by_name(project: str, given: str | None, what: str) -> None:
    """Ask for the project's name to be typed, unless ``--confirm`` has it."""
    if given is None:
        sys.stderr.write(f"{plain(what)}.\nType the project's name ({plain(project)}) to go on: ")
        sys.stderr.flush()
        given = sys.stdin.readline().strip()
    if given != project:
        raise InvalidInput(
            "That is not the project's name, so nothing was changed. --confirm NAME goes on without asking."
        )


# Migration


@contextmanager
def _steps(session: Session, label: str) -> "Generator[Callable[[MigrationProgress], None]]":
    """A bar for what is copied; where stderr is no terminal, a line for each step."""
    told = ""
    with progress(label, quiet=session.quiet) as advance:

        def tell(done: "MigrationProgress") -> None:
            nonlocal told
            if done.step != told and not sys.stderr.isatty():
                session.note(f"{label}: {done.step}")
            told = done.step
            if done.copied is not None:
                advance(done.copied.objects, done.copied.total_objects)

        yield tell


def _abort(session: Session, project: str, dry_run: bool) -> None:
    from dagster_versioned.cli.documents import print_json
    from dagster_versioned.governance import migrate as migration

    registry, store = _developer(session)
    if dry_run:
        registry.fetch()
        pending = registry.documents(project).pending
        if pending is None:
            raise GovernanceError(f"No migration of {project} is on its way. Nothing would be called off.")
        document = {"id": pending.id, "from": pending.source.uri, "to": pending.target.uri, "deleted_objects": 0}
    else:
        done = migration.abort(registry, store, project, open_store=_opener(session))
        places = {"from": done.source.uri, "to": done.target.uri}
        document = {"id": done.id, **places, "deleted_objects": done.deleted_objects}
    if session.json:
        print_json({"project": project, "applied": not dry_run, **document})
        return
    say(
        f"{project}: the move to {document['to']} {'would be' if dry_run else 'is'} called off; it stays at "
        f"{document['from']}"
    )
    if dry_run:
        session.note(_DRY)


def _show_migration(session: Session, report: "MigrationReport", delete_source: bool) -> None:
    from dagster_versioned.cli.documents import print_json

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
    if session.json:
        print_json(document)
        return
    what = f"{counted(report.tables, 'table')}, {counted(report.objects, 'object')} ({human_size(report.bytes)})"
    if report.dry_run:
        say(f"{report.project}: {what} would move from {report.source.uri} to {report.target.uri}")
        if delete_source:
            say(f"What is at {report.source.uri} would be deleted in the end")
        session.note(_DRY)
        return
    say(f"{report.project} is at {report.target.uri}: {what}, verified ({report.verified})")
    if report.deleted_objects:
        say(f"{counted(report.deleted_objects, 'object')} deleted at {report.source.uri}")
    else:
        session.note(f"What was at {report.source.uri} is still there, behind a fence.")


def _show_given_up(session: Session, report: "DecommissionReport", delete_data: bool) -> None:
    from dagster_versioned.cli.documents import print_json

    document = {
        "project": report.project,
        "applied": not report.dry_run,
        "location": report.location.uri,
        "objects": report.objects,
        "size_bytes": report.bytes,
        "deleted_objects": report.deleted_objects,
    }
    if session.json:
        print_json(document)
        return
    what = f"{counted(report.objects, 'object')} ({human_size(report.bytes)}) at {report.location.uri}"
    if report.dry_run:
        say(f"{report.project} would be given up; {what} would {'be deleted' if delete_data else 'stay'}")
        session.note(_DRY)
        return
    fate = f"{counted(report.deleted_objects, 'object')} deleted at {report.location.uri}" if delete_data else what
    say(f"{report.project} is decommissioned; {fate}" + ("" if delete_data else " stay"))


# The git mirror


def _show_mirrored(session: Session, remote: str, report: "MirrorReport", dry_run: bool) -> None:
    from dagster_versioned.cli.documents import print_json

    if session.json:
        changed = [
            {"table": one.table, "version": one.version, "log_version": one.log_version, "before": one.before}
            for one in report.changed
        ]
        refused = [{"table": table, "problem": why} for table, why in report.refused.items()]
        document = {"commit": report.commit, "changed": changed, "unchanged": report.unchanged, "refused": refused}
        print_json({"remote": remote, "applied": not dry_run, **document})
        return
    if report.changed:
        where = "would be committed" if dry_run else f"committed as {str(report.commit)[:12]}"
        say(f"{counted(len(report.changed), 'table')} {where}; {report.unchanged} unchanged")
        say(*(f"  {one.table} @{one.log_version} {(one.version or '')[:8]}" for one in report.changed))
    else:
        say(f"Nothing to commit; {report.unchanged} unchanged")
    for table, why in report.refused.items():
        session.note(f"{table} was left as it is in git: {why}")
    if dry_run:
        session.note(_DRY)


def _witnessed(
    session: Session, project: "Project", mirrored: "VersionMirror", tables: list[str] | None
) -> ExitCode | None:
    from dagster_versioned.cli.documents import print_json, verify_document
    from dagster_versioned.cli.looking import show_reports, unreadable

    try:
        mirrored.fetch()
    except GovernanceError as error:
        session.note(f"The mirror as it was last fetched: {error}")
    reports: list[dict[str, Any]] = []
    for name in tables if tables is not None else sorted({*map(str, project.tables()), *mirrored.tables()}):
        table = project.table(name)
        with progress(f"Verifying {name}", quiet=session.quiet) as advance:
            try:
                report = table.verify(witnesses=mirrored.witnesses(name), progress=advance)
            except (GovernanceError, TableNotFound) as error:
                report = unreadable(table.store.uri, error)
        reports.append(verify_document(name, report))
    ok = all(report["ok"] for report in reports)
    if session.json:
        print_json({"ok": ok, "tables": reports})
    else:
        show_reports(reports)
    return None if ok else ExitCode.FINDINGS
