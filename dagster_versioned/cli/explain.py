"""The verbs that explain a version: what it came from, and why it is another than the one before."""

import json
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dagster_versioned.cli.arguments import MaybeVersion, Partition, TableArgument, flag, option
from dagster_versioned.cli.commands import Commands
from dagster_versioned.cli.session import Session
from dagster_versioned.cli.terminal import say
from dagster_versioned.errors import InvalidInput

if TYPE_CHECKING:
    from dagster_versioned.projects.project import Project
    from dagster_versioned.proof.lineage import OpenProject

command = Commands("Explain")


class TraceNotation(StrEnum):
    """What a trace is written in. Enumerations, since Typer knows no literals before 0.19."""

    TEXT = "text"
    JSON = "json"
    MERMAID = "mermaid"
    OPENLINEAGE = "openlineage"


Upstreams = Annotated[
    list[str] | None,
    option(
        "--upstream",
        "LOCATION",
        "Another project that lineage may name; may be repeated. --governance knows them by name.",
    ),
]


@command("trace daily_delays", "trace daily_delays @4 --format mermaid -o lineage.mmd", "trace flights --down")
def trace(
    session: Session,
    table: TableArgument,
    version: MaybeVersion = None,
    partition: Partition = None,
    down: Annotated[bool, flag("--down", "What was built from it, instead of what it was built from.")] = False,
    notation: Annotated[TraceNotation, flag("--format", "-f", "What it is written in.")] = TraceNotation.TEXT,
    output: Annotated[Path | None, option("--output", "-o", "FILE", "Write it to FILE.")] = None,
    upstream: Upstreams = None,
) -> None:
    """Show the exact versions that one was built from, to the roots; or with --down what was built from it."""
    from dagster_versioned.features.rendering import render
    from dagster_versioned.proof import trace_views
    from dagster_versioned.proof.trace import trace as traced

    project = session.open()
    found = traced(project, table, version, partition=partition, down=down, open_project=_opener(session, upstream))
    if session.json or notation is TraceNotation.JSON:
        if output is None:
            replace(session, json=True).show(trace_views.document_of(found))
            return
        text = json.dumps(trace_views.document_of(found), indent=2, default=str) + "\n"
    elif notation is TraceNotation.MERMAID:
        text = render(trace_views.drawing_of(found), "mermaid")
    elif notation is TraceNotation.OPENLINEAGE:
        text = "".join(f"{json.dumps(event)}\n" for event in trace_views.open_lineage_events(found))
    else:
        text = "".join(f"{line}\n" for line in trace_views.tree_lines(found))
    if output is None:
        say(*text.splitlines())
    else:
        output.write_text(text, "utf-8")
        session.note(f"{len(found.versions)} versions in {output}.")
    if found.gaps:
        session.note(f"{len(found.gaps)} of {len(found.versions)} versions cannot be read, or their rows no more.")


@command("why daily_delays", "why daily_delays @4 --json")
def why(
    session: Session,
    table: TableArgument,
    version: MaybeVersion = None,
    partition: Partition = None,
    upstream: Upstreams = None,
) -> None:
    """Say why a version is another than the one before it: what changed, followed to where it began."""
    from dagster_versioned.proof.why import why as explained

    found = explained(session.open(), table, version, partition=partition, open_project=_opener(session, upstream))
    document = {
        "version": asdict(found.version),
        "before": None if found.before is None else asdict(found.before),
        "causes": [{**asdict(cause), "text": str(cause)} for cause in found.causes],
    }
    before = "the first" if found.before is None else f"after {found.before.version[:8]}"
    session.show(document, f"{found.version}, {before}:", iter([f"  {cause}." for cause in found.causes]))


def _opener(session: Session, locations: list[str] | None) -> "OpenProject":
    """Opens the projects at the locations, and those that governance knows, by their names."""
    plain = replace(session, project=None, environment=None, governance=None)
    given = {
        project.name: project for project in (replace(plain, location=each).production() for each in locations or ())
    }

    def open_project(name: str) -> "Project":
        if name in given:
            return given[name]
        if session.governance:
            return session.governed().project(name)
        raise InvalidInput(
            f"it is at no location that was named with --upstream, and there is no --governance. {name!r}"
        )

    return open_project
