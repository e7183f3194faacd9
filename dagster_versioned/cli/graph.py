"""The verbs for graphs of features: what they are, what changed, what is stale, what is pinned of them.

Heavy imports wait until one runs.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from enum import StrEnum
from os import environ
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from dagster_versioned.cli.arguments import Apply, Why, argument, flag, option
from dagster_versioned.cli.commands import Commands
from dagster_versioned.cli.developer import DryRun
from dagster_versioned.cli.documents import members
from dagster_versioned.cli.failures import ExitCode
from dagster_versioned.cli.session import Session
from dagster_versioned.cli.terminal import Part, Table, counted
from dagster_versioned.errors import InvalidInput

if TYPE_CHECKING:
    from dagster_versioned.features.graph import Feature, FeatureGraph
    from dagster_versioned.features.graph_diff import GraphDiff
    from dagster_versioned.features.lock import FeatureLock
    from dagster_versioned.features.pending_work import PendingWork
    from dagster_versioned.features.rendering import Format, GraphDrawing
    from dagster_versioned.features.snapshots import GraphHistory, Push, PushReport
    from dagster_versioned.projects.project import Project

command = Commands("Features")
_SHORT = 12

_Module = Annotated[
    str | None,
    option(
        "--module",
        "-m",
        "MODULE",
        "The module with the definitions, such as the one that Dagster loads (or DAGSTER_VERSIONED_MODULE).",
    ),
]

Upstreams = Annotated[
    list[str] | None,
    option(
        "--upstream",
        "LOCATION",
        "Another project whose features are upstreams; may be repeated. --governance knows them by name.",
    ),
]


class Notation(StrEnum):
    """What a picture is written in. Enumerations, since Typer knows no literals before 0.19."""

    TEXT = "text"
    MERMAID = "mermaid"


class Direction(StrEnum):
    """Where a picture leads."""

    TB = "TB"
    LR = "LR"


_Format = Annotated[Notation | None, flag("--format", "-f", "By default what FILE ends in (.mmd), else text.")]
_Direction = Annotated[Direction, flag("--direction", "From top to bottom, or from left to right; not of text.")]
_File = Annotated[Path | None, option("--output", "-o", "FILE", "Write the picture to FILE.")]

_MERMAID = (".mmd", ".mermaid")
"""What the names of files for Mermaid end in."""


@command("graph render -m my_project.definitions", "graph render @3", "graph render -m features -o graph.mmd")
def render(
    session: Session,
    snapshot: Annotated[str | None, argument("PUSH", "Definitions that were pushed: @3, digits, or a time.")] = None,
    module: _Module = None,
    notation: _Format = None,
    direction: _Direction = Direction.TB,
    output: _File = None,
) -> None:
    """Draw features, their fields and versions, and what they are computed from.

    They are those of a PUSH, else of MODULE, else of the last push.
    """
    from dagster_versioned.features.rendering import draw

    named = None if snapshot else _named(module)
    graph = _current(named) if named else _pushed(_history(session), snapshot)[1]
    _show(session, draw(graph), notation, direction, output, _graph_document(graph))


@command("graph diff -m my_project.definitions", "graph diff @3", "graph diff @3 @4 --format mermaid")
def diff(
    session: Session,
    before: Annotated[str | None, argument("BEFORE", "A push (@3, digits, a time); by default the last one.")] = None,
    after: Annotated[
        str | None, argument("AFTER", "A push; by default the definitions of MODULE, else the last push.")
    ] = None,
    module: _Module = None,
    notation: _Format = None,
    direction: _Direction = Direction.TB,
    output: _File = None,
) -> None:
    """Say which features and fields were added, removed and changed, and why."""
    from dagster_versioned.features.graph_diff import graph_diff
    from dagster_versioned.features.rendering import draw_diff

    named = None if after else _named(module)
    if before is None and named is None:
        raise InvalidInput("Nothing to compare with. Name a push (@3), or the module with your definitions: -m MODULE.")
    history = _history(session)
    old_push, old = _pushed(history, before)
    new_push, new = (None, _current(named)) if named else _pushed(history, after)
    document = {
        "before": old_push.to_json(),
        "after": new_push.to_json() if new_push else None,
        **_diff_document(graph_diff(old, new)),
    }
    _show(session, draw_diff(old, new), notation, direction, output, document)


@command("graph history", "graph history --limit 5 --json")
def history(session: Session, limit: Annotated[int | None, flag("--limit", "Only the newest.", min=1)] = None) -> None:
    """List what was pushed, newest first."""
    pushes = _history(session).pushes(limit)
    columns = ["push", "snapshot", "project version", "at", "by", "why"]
    rows = [
        (f"@{p.number}", p.snapshot[:_SHORT], p.project_version, f"{p.at:%Y-%m-%d %H:%M}", p.by, p.why) for p in pushes
    ]
    session.show({"pushes": [push.to_json() for push in pushes]}, Table(columns, rows, none="Nothing was pushed."))


@command("graph push -m my_project.definitions --dry-run", "graph push -m my_project.definitions --why 'ticket 12'")
def push(session: Session, module: _Module = None, why: Why = None, dry_run: DryRun = False) -> None:
    """Record the definitions of MODULE with the project, and say what changed since the last push.

    Where nothing changed, nothing is recorded.
    """
    graph = _needed(module, "Nothing was pushed.")
    pushes = _history(session)
    report = pushes.push(graph, why=why, dry_run=dry_run)
    document = {
        "applied": not dry_run,
        "push": report.push and report.push.to_json(),
        "before": report.before and report.before.to_json(),
        "snapshot": report.snapshot,
        **_diff_document(report.diff),
    }
    note = None if report.is_same or not dry_run else "Nothing was pushed: this is a dry run."
    session.show(document, _push_parts(report, pushes, graph), note=note)


def _push_parts(report: "PushReport", pushes: "GraphHistory", graph: "FeatureGraph") -> Iterator[Part]:
    from dagster_versioned.features.rendering import draw, draw_diff, tree

    where = "Would be pushed" if report.push is None else f"Pushed as @{report.push.number}"
    count = counted(len(report.diff.features), "feature")
    if report.before is None:
        yield f"{where}, the first: {count}."
        yield tree(draw(graph))
    elif report.is_same:
        yield f"Nothing changed since push @{report.before.number}."
    else:
        yield f"{where}: {count} changed since @{report.before.number}."
        yield tree(draw_diff(pushes.graph(report.before), graph))


@command("graph plan -m my_project.definitions", "graph plan -m my_project.definitions --json")
def plan(session: Session, module: _Module = None, upstream: Upstreams = None) -> None:
    """Say which samples of each feature are to be computed, before anything runs.

    Below what is still to be computed, numbers are an upper bound. Versions and ids are read, and nothing is written.
    """
    from dagster_versioned.features.pending_work import pending_work

    graph = _needed(module, "Nothing was read.")
    found = pending_work(session.open(), graph, upstream_projects(session, graph, upstream))
    columns = ("to compute", "new", "stale", "orphaned", "unchanged")
    rows = [
        (each.key, each.certainty, *_numbers(each), "; ".join(filter(None, [*_reasons(each), each.note])))
        for each in found
    ]
    session.show(
        {"features": [{**asdict(each), "todo": each.todo} for each in found]},
        Table(["feature", "", *columns, "why"], rows, right=columns),
        note="'at most': more is not computed, and less where what comes of the features above is as it was."
        if any(each.certainty == "at most" for each in found)
        else None,
    )


@command(
    "graph rebase -m my_project.definitions --renamed video.frames=images",
    "graph rebase -m my_project.definitions --unchecked crop --why 'only refactored' --apply",
)
def rebase(
    session: Session,
    module: _Module = None,
    renamed: Annotated[
        list[str] | None, option("--renamed", "FEATURE.OLD=NEW", "A field that is called otherwise; may be repeated.")
    ] = None,
    unchecked: Annotated[
        list[str] | None,
        option("--unchecked", "FEATURE", "Believe that its code gives the same rows; may be repeated."),
    ] = None,
    upstream: Upstreams = None,
    why: Why = None,
    apply: Apply = False,
) -> None:
    """Accept samples that exist under the definitions of MODULE, without computing them. A dry run unless --apply is
    given.

    What had really changed stays to be computed. Pushes the definitions; `revert` takes a table back.
    """
    from dagster_versioned.features.rebase import rebase as rebase_features

    graph = _needed(module, "Nothing was written.")
    report = rebase_features(
        session.open(),
        graph,
        renamed=_new_names(renamed or ()),
        unchecked=unchecked or (),
        upstreams=upstream_projects(session, graph, upstream),
        why=why,
        dry_run=not apply,
    )
    shown = ("key", "samples", "left", "before=before.metadata_sha", "after=after.metadata_sha")
    features = [members(each, *shown) for each in report.features]
    document = {"applied": apply, "push": report.push and report.push.to_json(), "features": features}
    if not report.features:
        session.show(document, "No sample is computed by other definitions than these.")
        return
    rows = [
        (each.key, each.samples, each.left, each.before.short, each.after and each.after.short)
        for each in report.features
    ]
    session.show(
        document,
        Table(["feature", "accepted", "to compute", "before", "after"], rows, right=("accepted", "to compute")),
        note=None if apply else "Nothing was written: this is a dry run. Do it with --apply.",
    )


# --- small things ----------------------------------------------------------------------------------------------------


def _new_names(renamed: Iterable[str]) -> dict[str, str]:
    names: dict[str, str] = {}
    for text in renamed:
        old, equals, new = text.partition("=")
        if not (old and equals and new):
            raise InvalidInput(f"--renamed {text!r} is no FEATURE.OLD=NEW, such as video.frames=images.")
        names[old] = new
    return names


def _named(module: str | None) -> str | None:
    return module or environ.get("DAGSTER_VERSIONED_MODULE") or None


def _current(module: str) -> "FeatureGraph":
    from dagster_versioned.assets.code_location import features_of_module

    return features_of_module(module)


def _needed(module: str | None, untouched: str) -> "FeatureGraph":
    named = _named(module)
    if named is None:
        raise InvalidInput(f"No definitions. Name their module: -m MODULE. {untouched}")
    return _current(named)


def _history(session: Session) -> "GraphHistory":
    from dagster_versioned.features.snapshots import GraphHistory

    return GraphHistory(session.open())


def _pushed(history: "GraphHistory", reference: str | None) -> "tuple[Push, FeatureGraph]":
    push = history.find(reference)
    return push, history.graph(push)


def _show(
    session: Session,
    drawing: "GraphDrawing",
    notation: Notation | None,
    direction: Direction,
    output: Path | None,
    document: dict[str, Any],
) -> None:
    from dagster_versioned.features.rendering import render as picture

    how: Format = "mermaid" if output and output.suffix.lower() in _MERMAID else "text"
    if notation:
        how = notation.value
    if output:
        try:
            output.write_text(picture(drawing, how, direction.value), encoding="utf-8")
        except OSError as error:
            raise InvalidInput(f"{output} could not be written: {error.strerror}. Choose another FILE.") from error
        document |= {"output": output, "format": how}
    done = f"{counted(len(drawing.nodes), 'feature')} in {output}, {how}."
    session.show(document, done if output else _picture_parts(drawing, how, direction))


def _picture_parts(drawing: "GraphDrawing", how: "Format", direction: Direction) -> Iterator[Part]:
    from dagster_versioned.features.rendering import render as picture
    from dagster_versioned.features.rendering import tree

    if how == "text":
        yield tree(drawing)
    else:
        yield from picture(drawing, how, direction.value).splitlines()


def _numbers(each: "PendingWork") -> tuple[int | None, ...]:
    if each.certainty == "unknown":
        return (None, None, None, None, each.unchanged or None)
    return (each.todo, each.new, each.stale, each.orphaned, each.unchanged)


def _reasons(each: "PendingWork") -> list[str]:
    return [f"{field} of {count}" for field, count in each.reasons.items()]


def _graph_document(graph: "FeatureGraph") -> dict[str, Any]:
    features = [_feature_document(graph, feature) for feature in graph]
    return {"project_version": graph.project_version, "features": features}


def _feature_document(graph: "FeatureGraph", feature: "Feature") -> dict[str, Any]:
    versions = graph.versions(feature.key)
    fields = [
        {
            **field.to_json(),
            "version": versions.fields[field.key],
            "parents": [ref.text for ref in graph.parents(feature.key, field.key)],
        }
        for field in feature.fields
    ]
    named = members(versions, "feature_version=feature", "feature_code_version=code")
    return {**feature.to_json(), "fields": fields, **named}


def _diff_document(diff: "GraphDiff") -> dict[str, Any]:
    return {"project_versions": members(diff, "before", "after"), **members(diff, "features", "unchanged")}


def upstream_projects(session: Session, graph: "FeatureGraph", locations: list[str] | None) -> "list[Project]":
    """The projects at the locations, and of the others that a graph names those that governance knows.

    Raises what `Session.production` does.
    """
    plain = replace(session, project=None, environment=None, governance=None)
    found = [replace(plain, location=location).production() for location in locations or ()]
    if session.governance:
        named = {feature.project for feature in graph if feature.project is not None}
        missing = sorted(named - {project.name for project in found} - {session.project})
        found += [session.governed().project(name) for name in missing]
    return found


@command(
    "graph lock video/crop --location s3://team/videos",
    "graph lock --project VIDEOS --governance s3://company-governance --check",
)
def lock(
    session: Session,
    features: Annotated[
        list[str] | None, argument("FEATURE", "What of the project; without any, what of it is in FILE.")
    ] = None,
    output: Annotated[Path, option("--output", "-o", "FILE", "The lock.")] = Path("features.lock"),
    check: Annotated[bool, flag("--check", "Only say whether FILE is up to date: exit code 1 if not.")] = False,
) -> ExitCode | None:
    """Pin features of the project in a file, with all that they depend on, for a project that is computed from them.

    They are those of the project's last push. Features of other projects in FILE stay.
    """
    from dagster_versioned.features.graph_diff import graph_diff
    from dagster_versioned.features.lock import FeatureLock

    project = session.open()
    before = FeatureLock.read(output) if output.exists() else FeatureLock.empty()
    after = before.locked(project, features or ())
    diff = graph_diff(before.graph, after.graph)
    is_same = not diff and _pinned(before, project) == _pinned(after, project)
    applied = not is_same and not check
    if applied:
        after.write(output)
    done = f"Wrote {output}" if applied else f"{output} is up to date"
    done = f"{done}: {counted(len(list(after)), 'feature')}." if applied or is_same else f"{output} is not up to date."
    projects = {name: each.model_dump() for name, each in after.projects.items()}
    session.show(
        {"applied": applied, "output": output, "projects": projects, "features": diff.features},
        None if is_same else _changes_table(diff, before, after),
        done,
    )
    return None if applied or is_same else ExitCode.FINDINGS


def _pinned(lock: "FeatureLock", project: "Project") -> object:
    """What a lock pins of a project; ``None`` where it does not have it."""
    found = lock.projects.get(project.name)
    return found and found.features


def _changes_table(diff: "GraphDiff", before: "FeatureLock", after: "FeatureLock") -> Table:
    changed = [(each, before if each.change == "removed" else after) for each in diff.features]
    rows = [(each.key, lock[each.key].project, each.change, each.before, each.after) for each, lock in changed]
    return Table(["feature", "project", "", "before", "after"], rows)
