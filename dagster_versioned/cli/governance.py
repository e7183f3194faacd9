"""The verbs that govern: where projects are, and how they are read. Heavy imports wait until a verb runs."""

import json
from typing import TYPE_CHECKING, Annotated, Any

from dagster_versioned.cli.arguments import argument, flag, option
from dagster_versioned.cli.commands import Commands
from dagster_versioned.cli.developer import DRY, DryRun, ProjectArgument, Reason, developer, opener, parsed_place
from dagster_versioned.cli.documents import members
from dagster_versioned.cli.failures import ExitCode
from dagster_versioned.cli.session import Session
from dagster_versioned.cli.terminal import Table, counted, minute
from dagster_versioned.errors import GovernanceError, InvalidInput, VersionedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dagster_versioned.governance.documents import Dispatch, RegistrationKind
    from dagster_versioned.governance.mirror import Difference, GovernanceStore
    from dagster_versioned.governance.registry import Registry

command = Commands("Govern")

_Projects = Annotated[list[str] | None, argument("PROJECT", "Projects by name; all if none is named.")]
_Place = Annotated[str, argument("LOCATION", "A local path, file:///…, s3://…, gs://… or abfss://….")]


@command("gov init --registry git@git.example.org:acme/registry.git")
def init(session: Session, dry_run: DryRun = False) -> None:
    """Make the remote repository a registry, and clone it; a folder that is empty or not there is made one."""
    from dagster_versioned.governance.git_remote import remote_url
    from dagster_versioned.governance.registry import Registry

    if not session.registry:
        raise InvalidInput("No remote. Give --registry (its URL or folder), or set DAGSTER_VERSIONED_REGISTRY.")
    url, clone = remote_url(session.registry), session.clone_folder()
    registry = None if dry_run else Registry.init(session.registry, clone)
    commit = registry.commit_sha if registry else None
    become = "is" if registry else "would be"
    session.show(
        {"registry": url, "clone": clone, "applied": not dry_run, "commit": commit},
        f"{url} {become} a registry; its clone {become} {clone}",
        note=None if registry else DRY,
    )


@command("gov register NYC s3://acme-data/nyc --reason 'ticket 12'", name="register")
def register_project(
    session: Session, name: ProjectArgument, place: _Place, reason: Reason = None, dry_run: DryRun = False
) -> None:
    """Record where a new project's bytes belong. Run again, it finds all done."""
    _enroll(session, name, place, "registered", reason, dry_run)


@command("gov attach NYC s3://acme-data/nyc", "gov attach NYC warehouse --dry-run")
def attach(
    session: Session, name: ProjectArgument, place: _Place, reason: Reason = None, dry_run: DryRun = False
) -> None:
    """Bring a project that is there already under governance; none of its tables is touched."""
    _enroll(session, name, place, "attached", reason, dry_run)


@command("gov status", "gov status NYC --json")
def status(session: Session, projects: _Projects = None) -> ExitCode | None:
    """Compare the governance storage with the registry, and show what is on its way. Changes nothing."""
    registry, store = developer(session)
    try:
        registry.fetch()
    except GovernanceError as error:
        session.note(f"The registry as it was last fetched: {error}")
    statuses = [_status_of(registry, store, name) for name in projects or _all_projects(registry, store)]
    ok = not any(status["problem"] or status["differences"] for status in statuses)
    columns = ["project", "state", "location", "before", ""]
    rows = [(p["project"], p["state"], p["location"], p["moves"], "; ".join(_remarks(p))) for p in statuses]
    session.show(
        {**_clone(registry), "governance": store.store.uri, "ok": ok, "projects": statuses},
        Table(columns, rows, right=("before",), none=f"No projects in {registry.remote}."),
    )
    if not ok:
        session.note("Bring the governance storage up to the registry: dagster-versioned gov pull.")
    return None if ok else ExitCode.FINDINGS


@command("gov list", "gov list --json | jq -r '.projects[].project'", name="list")
def listing(session: Session) -> None:
    """List the projects and where they are: as the clone knows it, or, for a reader, live."""
    governance = session.governed()
    names = governance.registry.projects() if governance.registry else governance.mirror.projects()
    projects: list[dict[str, Any]] = []
    for name in names:
        project: dict[str, Any] = {"project": name, "location": None, "moves": None, "problem": None}
        try:
            ref = governance.documents(name).ref
            project |= {"location": ref.current.uri, "moves": len(ref.previous)}
        except GovernanceError as error:
            project["problem"] = str(error)
        projects.append(project)
    rows = [(p["project"], p["location"], "cannot be read" if p["problem"] else None) for p in projects]
    session.show(
        {"governance": governance.storage.uri, "role": governance.role, "projects": projects},
        Table(["project", "location", ""], rows, none="No projects."),
    )
    for project in projects:
        if project["problem"]:
            session.note(f"{project['project']}: {project['problem']}")


@command("gov ref NYC", "gov ref NYC --live", "gov ref NYC --repair")
def ref(
    session: Session,
    name: ProjectArgument,
    live: Annotated[bool, flag("--live", "Ask the governance storage, not the clone.")] = False,
    repair: Annotated[
        bool, flag("--repair", "Write ref.json anew from the migration history, after a hand edit.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Show where a project is, where it was, and what happened; or repair ref.json."""
    if repair:
        what = "ref.json is written anew from the history"
        _record(session, *developer(session), name, dry_run, what, lambda registry: registry.repair_ref(name))
        return
    governance = session.governed()
    documents = governance.mirror.documents(name) if live else governance.documents(name)
    history = documents.history.events
    events = [event.model_dump(mode="json", by_alias=True, exclude_none=True) for event in history]
    rows = [(minute(e.timestamp), e.kind, e.target and e.target.uri, e.actor, e.reason) for e in history]
    session.show(
        {"project": name, "ref": documents.ref.model_dump(mode="json", exclude_none=True), "events": events},
        f"{name} is at {documents.ref.current.uri}",
        Table(["when", "what", "to", "by", "why"], rows),
    )


@command(
    "gov dispatch NYC",
    "gov dispatch NYC --context cached --method dagster_versioned.read_cached",
    "gov dispatch NYC --context cached --remove",
)
def dispatch(
    session: Session,
    name: ProjectArgument,
    context: Annotated[str | None, option("--context", "NAME", "A way of reading; default, if left out.")] = None,
    method: Annotated[str | None, option("--method", "DOTTED", "Let this function read in that context.")] = None,
    language: Annotated[str, option("--language", "NAME", "Whose readers.")] = "python",
    remove: Annotated[bool, flag("--remove", "Take the context away.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Show how a project is read; with --method or --remove, change it. A method runs only where it is allowed."""
    if method is None and not remove:
        _show_dispatch(session, name)
        return
    if (method is not None) == remove or (remove and context is None):
        raise InvalidInput(
            "--method gives a context a method, --remove takes a --context away. Nothing was changed. Say which."
        )
    registry, store = developer(session)
    registry.fetch()
    chosen = context or "default"
    changed = _changed_dispatch(registry, name, language, chosen, method)
    what = f"{language} reads by {method} in context {chosen}" if method else f"{language} has no context {chosen}"
    _record(session, registry, store, name, dry_run, what, lambda target: target.set_dispatch(name, changed))


def _show_dispatch(session: Session, project: str) -> None:
    methods = session.governed().documents(project).dispatch.methods
    rows = [(lang, where, dotted) for lang, named in methods.items() for where, dotted in sorted(named.items())]
    session.show({"project": project, "methods": methods}, Table(["language", "context", "method"], rows))


def _changed_dispatch(
    registry: "Registry", project: str, language: str, context: str, method: str | None
) -> "Dispatch":
    from dagster_versioned.governance.documents import DEFAULT_DISPATCH

    dispatch = registry.state(project).dispatch or DEFAULT_DISPATCH
    methods = {name: dict(by_context) for name, by_context in dispatch.methods.items()}
    if method is not None:
        methods.setdefault(language, {})[context] = method
    elif methods.get(language, {}).pop(context, None) is None:
        raise InvalidInput(f"There is no context {context!a:.100} for {language!a:.100}. Nothing was changed.")
    return _parsed_dispatch({name: by_context for name, by_context in methods.items() if by_context})


@command("gov pull")
def pull(session: Session, dry_run: DryRun = False) -> None:
    """Bring your clone of the registry up to date, and the governance storage up to the registry."""
    registry, store = developer(session)
    before = registry.commit_sha
    registry.fetch()
    published = store.status(registry) if dry_run else store.publish(registry)
    moved = "was up to date" if before == registry.commit_sha else f"is at {str(registry.commit_sha)[:12]}"
    done = "would be published" if dry_run else "published"
    commit = registry.commit_sha
    session.show(
        {**_clone(registry), "applied": not dry_run, "before": before, "commit": commit, "published": published},
        f"{registry.path} {moved}; {counted(len(published), 'document')} of {store.store.uri} {done}",
        *(f"  {each.project} {each.document}: {each.state}" for each in published),
    )


# What several verbs do


def _enroll(
    session: Session, project: str, place: str, kind: "RegistrationKind", reason: str | None, dry_run: bool
) -> None:
    from dagster_versioned.governance.enroll import enroll

    registry, store = developer(session)
    location = parsed_place(place)
    done = enroll(
        registry.rehearsal() if dry_run else registry,
        store,
        project,
        location,
        kind,
        actor=session.author,
        reason=reason,
        open_store=opener(session),
    )
    _show_recorded(session, project, done.commit, done.published, dry_run, f"{kind} at {location.uri}")


def _record(
    session: Session,
    registry: "Registry",
    store: "GovernanceStore",
    project: str,
    dry_run: bool,
    what: str,
    change: "Callable[[Registry], str | None]",
) -> None:
    """Change a project in the registry, publish that, and show the outcome."""
    commit = change(registry.rehearsal() if dry_run else registry)
    _show_recorded(session, project, commit, [] if dry_run else store.publish(registry, [project]), dry_run, what)


def _show_recorded(
    session: Session,
    project: str,
    commit: str | None,
    published: "Sequence[Difference]",
    dry_run: bool,
    what: str,
) -> None:
    """Show the outcome of an event: one commit of the registry, or none because it was so already."""
    session.show(
        {
            "project": project,
            "applied": not dry_run,
            "changed": commit is not None,
            "commit": None if dry_run else commit,
            "published": published,
        },
        f"{project}: {what}" + ("" if commit else " (it was so already)"),
        note=DRY if dry_run else None,
    )


def _all_projects(registry: "Registry", store: "GovernanceStore") -> "list[str]":
    """Those of the registry, and what is in the governance storage besides."""
    known = registry.all_projects()
    return [*known, *(name for name in store.projects() if name not in known)]


def _status_of(registry: "Registry", store: "GovernanceStore", project: str) -> dict[str, Any]:
    document: dict[str, Any] = {"project": project, "state": "unknown", "location": None, "moves": None}
    document |= {"pending": None, "differences": [], "problem": None}
    try:
        known = registry.state(project)
        document["state"] = "decommissioned" if known.is_decommissioned else "moving" if known.pending else "governed"
        if known.pending is not None:
            document["pending"] = known.pending.model_dump(mode="json", by_alias=True, exclude_none=True)
        if known.ref is not None:
            document |= {"location": known.ref.current.uri, "moves": len(known.ref.previous)}
        document["differences"] = [members(each, "document", "state") for each in store.status(registry, [project])]
    except VersionedError as error:
        document["problem"] = str(error)
    return document


def _remarks(project: dict[str, Any]) -> list[str]:
    pending = project["pending"]
    target = _place_of(pending["to"]) if pending else None
    moving = [f"to {target} by {pending['actor']} since {pending['started_at']}"] if pending else []
    differences = [f"{each['document']} {each['state']}" for each in project["differences"]]
    return [*moving, *differences, *([project["problem"]] if project["problem"] else [])]


def _clone(registry: "Registry") -> dict[str, Any]:
    return members(registry, "registry=remote", "clone=path", "commit=commit_sha", "fetched_at")


def _place_of(members: dict[str, str]) -> str:
    from dagster_versioned.storage.location import Location

    return Location.from_json(members).uri


def _parsed_dispatch(methods: dict[str, dict[str, str]]) -> "Dispatch":
    from dagster_versioned.governance.documents import Dispatch

    try:
        return Dispatch.parse(json.dumps({"methods": methods}).encode(), "The dispatch document as it would be")
    except GovernanceError as error:
        raise InvalidInput(str(error)) from None
