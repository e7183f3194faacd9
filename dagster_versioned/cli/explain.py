"""The verbs that explain a version: what it came from, and why it is another than the one before."""

import json
import sys
from dataclasses import asdict, replace
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from dagster_versioned.cli.arguments import MaybeVersion, Partition, TableArgument, flag, option
from dagster_versioned.cli.commands import Commands
from dagster_versioned.cli.documents import version_name
from dagster_versioned.cli.session import Session
from dagster_versioned.cli.terminal import counted, progress, say, write_text
from dagster_versioned.errors import InvalidInput

if TYPE_CHECKING:
    from dagster_versioned.projects.project import Project
    from dagster_versioned.proof.bisect import Check
    from dagster_versioned.proof.lineage import OpenProject
    from dagster_versioned.proof.why import Explanation

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
    found = traced(project, table, version, partition=partition, down=down, open_project=opener(session, upstream))
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
        write_text(output, text)
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

    found = explained(session.open(), table, version, partition=partition, open_project=opener(session, upstream))
    before = "the first" if found.before is None else f"after {found.before.version[:8]}"
    session.show(_explained(found), f"{found.version}, {before}:", iter([f"  {cause}." for cause in found.causes]))


@command(
    "bisect flights --check 'delay > -100'",
    "bisect flights --rows-differ --good @3",
    "bisect daily --partition 2013-01-01 --python checks:is_plausible",
)
def bisect(
    session: Session,
    table: TableArgument,
    check: Annotated[
        str | None, option("--check", "CONDITION", "A condition in SQL that holds for every row of a good version.")
    ] = None,
    python: Annotated[
        str | None,
        option("--python", "MODULE:FUNCTION", "A function that is given a pyarrow Table, and true of a good one."),
    ] = None,
    rows_differ: Annotated[bool, flag("--rows-differ", "Whether rows are other than those of the good one.")] = False,
    partition: Partition = None,
    good: Annotated[str | None, option("--good", "VERSION", "One that passes; by default the oldest.")] = None,
    bad: Annotated[str | None, option("--bad", "VERSION", "One that fails; by default the head.")] = None,
    upstream: Upstreams = None,
) -> None:
    """Find the first version for which a check fails that passed before, and say why it is another."""
    from dagster_versioned.proof import bisect as bisection
    from dagster_versioned.proof.why import why as explained

    if sum(map(bool, (check, python, rows_differ))) != 1:
        raise InvalidInput("Give one of --check, --python and --rows-differ. Nothing was tried.")
    project, ends = session.open(), {"partition": partition, "good": good, "bad": bad}
    if rows_differ:
        found = bisection.first_other_rows(project, table, **ends)
    else:
        judge = bisection.every_row(check) if check else _function(str(python))
        with progress("versions", quiet=session.quiet) as advance:
            found = bisection.bisect(project, table, judge, progress=advance, **ends)
    reason = explained(
        project, table, found.bad.log_version, partition=partition, open_project=opener(session, upstream)
    )
    document = {
        "good": version_name(found.good),
        "bad": version_name(found.bad),
        "unread": [version_name(version) for version in found.unread],
        "tried": found.tried,
        **_explained(reason),
    }
    missing = f" {counted(len(found.unread), 'version')} between them are not kept." if found.unread else ""
    session.show(
        document,
        f"{found.bad.short} (@{found.bad.log_version}) is the first that fails, after {found.good.short} "
        f"(@{found.good.log_version}).{missing}",
        iter([f"  {cause}." for cause in reason.causes]),
        note=f"{counted(found.tried, 'version')} read.",
    )


def _function(text: str) -> "Check":
    """The function of a module, also of one in the working directory."""
    module, _, name = text.partition(":")
    if not name:
        raise InvalidInput(f"--python names a function as MODULE:FUNCTION, not {text!r:.100}. Nothing was tried.")
    sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InvalidInput(f"{text} could not be loaded ({error}). Nothing was tried. Check the name.") from error


def _explained(found: "Explanation") -> dict[str, Any]:
    return {
        "version": asdict(found.version),
        "before": None if found.before is None else asdict(found.before),
        "causes": [{**asdict(cause), "text": str(cause)} for cause in found.causes],
    }


def opener(session: Session, locations: list[str] | None) -> "OpenProject":
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
