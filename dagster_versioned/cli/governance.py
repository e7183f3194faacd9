"""The verbs that govern: where projects are, and how they are read. Heavy imports wait until a verb runs."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dagster_versioned.cli.commands import Commands
from dagster_versioned.cli.developer import DRY, DryRun, ProjectArgument, Reason, developer, opener, parsed_place
from dagster_versioned.cli.failures import ExitCode
from dagster_versioned.cli.session import Session
from dagster_versioned.cli.terminal import counted, minute, say, show_table
from dagster_versioned.errors import GovernanceError, InvalidInput, VersionedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dagster_versioned.governance.documents import Dispatch, RegistrationKind
    from dagster_versioned.governance.mirror import Difference, GovernanceStore
    from dagster_versioned.governance.registry import Registry

command = Commands("Govern")

_Projects = Annotated[
    list[str] | None, typer.Argument(metavar="PROJECT", help="Projects by name; all if none is named.")
]
_Place = Annotated[
    str, typer.Argument(metavar="LOCATION", help="A local path, file:///…, s3://…, gs://… or abfss://….")
]


@command("gov init --registry git@git.example.org:acme/registry.git")
def init(session: Session, dry_run: DryRun = False) -> None:
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
        session.note(DRY)


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
    from dagster_versioned.cli.documents import print_json

    registry, store = developer(session)
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


@command("gov list", "gov list --json | jq -r '.projects[].project'", name="list")
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


@command("gov ref NYC", "gov ref NYC --live", "gov ref NYC --repair")
def ref(
    session: Session,
    name: ProjectArgument,
    live: Annotated[bool, typer.Option("--live", help="Ask the governance storage, not the clone.")] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Write ref.json anew from the migration history, after a hand edit.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Show where a project is, where it was, and what happened; or repair ref.json."""
    from dagster_versioned.cli.documents import print_json

    if repair:
        registry, store = developer(session)
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
                minute(event.timestamp),
                event.kind,
                event.target.uri if event.target else None,
                event.actor,
                event.reason,
            )
            for event in documents.history.events
        ],
    )


@command(
    "gov dispatch NYC",
    "gov dispatch NYC --context cached --method dagster_versioned.read_cached",
    "gov dispatch NYC --context cached --remove",
)
def dispatch(
    session: Session,
    name: ProjectArgument,
    context: Annotated[
        str | None, typer.Option("--context", metavar="NAME", help="A way of reading; default, if left out.")
    ] = None,
    method: Annotated[
        str | None, typer.Option("--method", metavar="DOTTED", help="Let this function read in that context.")
    ] = None,
    language: Annotated[str, typer.Option("--language", metavar="NAME", help="Whose readers.")] = "python",
    remove: Annotated[bool, typer.Option("--remove", help="Take the context away.")] = False,
    dry_run: DryRun = False,
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
    registry, store = developer(session)
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


@command("gov pull")
def pull(session: Session, dry_run: DryRun = False) -> None:
    """Bring your clone of the registry up to date, and the governance storage up to the registry."""
    from dagster_versioned.cli.documents import print_json

    registry, store = developer(session)
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
    _recorded(session, project, done.commit, done.published, dry_run, f"{kind} at {location.uri}")


def _recorded(
    session: Session,
    project: str,
    commit: str | None,
    published: "Sequence[Difference]",
    dry_run: bool,
    what: str,
) -> None:
    """Print the outcome of an event: one commit of the registry, or none because it was so already."""
    from dagster_versioned.cli.documents import print_json

    if session.json:
        document = {"project": project, "applied": not dry_run, "changed": commit is not None}
        print_json({**document, "commit": None if dry_run else commit, "published": _differences(published)})
        return
    say(f"{project}: {what}" + ("" if commit else " (it was so already)"))
    if dry_run:
        session.note(DRY)


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


def _place_of(members: dict[str, str]) -> str:
    from dagster_versioned.storage.location import Location

    return Location.from_json(members).uri


def _parsed_dispatch(methods: dict[str, dict[str, str]]) -> "Dispatch":
    from dagster_versioned.governance.documents import Dispatch

    try:
        return Dispatch.parse(json.dumps({"methods": methods}).encode(), "The dispatch document as it would be")
    except GovernanceError as error:
        raise InvalidInput(str(error)) from None
