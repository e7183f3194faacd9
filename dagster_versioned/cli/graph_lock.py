"""The verb that pins features of other projects in a file, and how verbs for graphs open these projects."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dagster_versioned.cli.arguments import argument, flag, option
from dagster_versioned.cli.commands import Commands
from dagster_versioned.cli.failures import ExitCode
from dagster_versioned.cli.session import Session
from dagster_versioned.cli.terminal import Table, counted

if TYPE_CHECKING:
    from dagster_versioned.features.graph import FeatureGraph
    from dagster_versioned.features.graph_diff import GraphDiff
    from dagster_versioned.features.lock import FeatureLock
    from dagster_versioned.projects.project import Project

command = Commands("Features")

Upstreams = Annotated[
    list[str] | None,
    option(
        "--upstream",
        "LOCATION",
        "Another project whose features are upstreams; may be repeated. --governance knows them by name.",
    ),
]


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
    was = before.projects.get(project.name)
    is_same = not diff and was is not None and was.features == after.projects[project.name].features
    applied = not is_same and not check
    if applied:
        after.write(output)
    done = f"{output} is up to date" if is_same else f"Wrote {output}"
    session.show(
        {
            "applied": applied,
            "output": output,
            "projects": {name: each.model_dump() for name, each in after.projects.items()},
            "features": diff.features,
        },
        None if is_same else _changes_table(diff, before, after),
        f"{output} is not up to date." if check and not is_same else f"{done}: {counted(len(list(after)), 'feature')}.",
    )
    return ExitCode.FINDINGS if check and not is_same else None


def _changes_table(diff: "GraphDiff", before: "FeatureLock", after: "FeatureLock") -> Table:
    changed = [(each, before if each.change == "removed" else after) for each in diff.features]
    rows = [(each.key, lock[each.key].project, each.change, each.before, each.after) for each, lock in changed]
    return Table(["feature", "project", "", "before", "after"], rows)
