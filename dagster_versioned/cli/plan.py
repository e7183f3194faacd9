"""The verb that says what would run, before anything runs. Heavy imports wait until it does."""

import gc
import os
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dagster_versioned.cli.arguments import Modules, Workspace, flag, named_locations
from dagster_versioned.cli.commands import Commands
from dagster_versioned.cli.comment import Notation, comment, escaped, some
from dagster_versioned.cli.documents import members
from dagster_versioned.cli.failures import ExitCode
from dagster_versioned.cli.session import Session
from dagster_versioned.cli.terminal import Table, human_size, say
from dagster_versioned.errors import InvalidInput

if TYPE_CHECKING:
    from dagster_versioned.assets.code_location import CodeLocation
    from dagster_versioned.identity.version import Scope
    from dagster_versioned.sensors.forecast import Forecast, ForecastEntry

command = Commands("Environments")
_COLUMNS = ("asset", "what", "partitions", "why", "requested by", "rows now", "size now")
_RIGHT = ("partitions", "rows now", "size now")


class Stale(StrEnum):
    """What of an environment is spoken of. Enumerations, since Typer knows no literals before 0.19."""

    CHANGED = "changed"
    ALL = "all"


_SCOPES: dict[Stale, "Scope"] = {Stale.CHANGED: "changed", Stale.ALL: "all"}


@command(
    "plan",
    "plan -w workspace.yaml",
    "plan -m my_project.definitions --environment pr-142 --format markdown",
    "plan -m my_project.definitions --instance --exit-code",
)
def plan(
    session: Session,
    module: Modules = None,
    workspace: Workspace = None,
    with_instance: Annotated[
        bool, flag("--instance", "Ask the Dagster instance of DAGSTER_HOME for partitions, runs and checks.")
    ] = False,
    notation: Annotated[Notation, flag("--format", "-f", "Text, or Markdown for a pull request.")] = Notation.TEXT,
    scope: Annotated[
        Stale, flag("--scope", "In an environment: what is not current because of it, or all that is not.")
    ] = Stale.CHANGED,
    exit_code: Annotated[bool, flag("--exit-code", "End with 1 if something would run.")] = False,
) -> ExitCode | None:
    """Say what would run of your definitions, and why, as their sensors judge it. Runs and writes nothing.

    They are those of MODULE or of the workspace FILE; without either, of the working directory, where `dagster dev` and
    `dg dev` find them: pyproject.toml, dg.toml, workspace.yaml.
    """
    if session.json and notation is not Notation.TEXT:
        raise InvalidInput("--json and --format are two notations. Nothing was read. Give one of them.")
    if session.environment is not None:
        os.environ["DAGSTER_VERSIONED_ENVIRONMENT"] = session.environment  # which the definitions name
    from dagster_versioned.assets.code_location import instance_of_home, repositories_of
    from dagster_versioned.sensors.forecast import forecast

    locations = named_locations(module, workspace) or _locations_here(session)
    repositories = repositories_of(locations)
    instance = instance_of_home() if with_instance else None
    gc.freeze()  # the definitions stay until the end: collecting garbage among them took a fifth of the time
    found = forecast(repositories, instance=instance, environment=session.environment, scope=_SCOPES[scope])
    if notation is Notation.MARKDOWN:
        say(*markdown_of(found))
    else:
        foreseen = Table(_COLUMNS, list(_rows(found.cells)), right=_RIGHT) if found.cells else "Nothing would run."
        session.show({**members(found), "would_run": found.would_run}, foreseen, *_end(found))
    return ExitCode.FINDINGS if exit_code and found.would_run else None


def _locations_here(session: Session) -> "list[CodeLocation]":
    from dagster_versioned.assets.workspace import locations_in

    locations = locations_in(Path.cwd())
    if not locations:
        raise InvalidInput(
            f"No definitions are named, and there are none that Dagster would find in {Path.cwd()}. Nothing was read."
            " Name their module, -m MODULE (or DAGSTER_VERSIONED_MODULE), or a workspace file, -w FILE; or go to a"
            " folder with a pyproject.toml that has [tool.dagster] or [tool.dg], a dg.toml, or a workspace.yaml."
        )
    session.note(f"Found here: the {', the '.join(map(str, locations))}.")
    return locations


def markdown_of(found: "Forecast") -> list[str]:
    """The lines of a comment for a pull request; cut where it gets too long."""
    count = len({cell.asset for cell in found.cells if cell.what != "blocked"})
    runs = f"{count} of its assets would run, or may" if count else "nothing would run"
    return comment(
        f"plan {','.join(found.projects)} {found.environment}",
        [f"### Plan for `{found.environment}`: {runs}", ""],
        (_COLUMNS, list(_rows(found.cells))),
        rest="more are not shown: `dagster-versioned plan`.",
        end=[line for text in _end(found) for line in ("", escaped(text))],
    )


def _rows(cells: Iterable["ForecastEntry"]) -> Iterator[tuple[str, ...]]:
    """A row for the partitions of an asset of which the same becomes, on request of the same sensors."""
    groups: dict[tuple[str, str, tuple[str, ...]], list[ForecastEntry]] = {}
    for cell in cells:
        groups.setdefault((cell.asset, cell.what, cell.sensors), []).append(cell)
    for (asset, what, sensors), those in groups.items():
        rows, size = _sum(cell.rows for cell in those), _sum(cell.size_bytes for cell in those)
        yield (
            asset,
            what,
            "" if those[0].partition is None else f"{len(those):,}",
            _why(those),
            ", ".join(sensors) or "nobody",
            "?" if rows is None else f"{rows:,}",
            human_size(size) or "?",
        )


def _sum(counts: Iterable[int | None]) -> int | None:
    """The sum of what is known; ``None`` where nothing is."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _why(cells: Sequence["ForecastEntry"]) -> str:
    """The reason of the first partition; the others' are counted where they are not the same."""
    others = sum(cell.why != cells[0].why for cell in cells)
    return cells[0].why + (f"; and {others:,} more partitions" if others else "")


def _end(found: "Forecast") -> list[str]:
    stays = "table or partition is" if found.current == 1 else "tables and partitions are"
    lines = [f"{found.current:,} {stays} current."]
    if found.left:
        lines[0] += f" {found.left:,} were not when the environment began, and not because of it (--scope all)."
    if found.uncoded:
        lines[0] += f" Changes of code are not seen of: {some(found.uncoded)}."
    if found.changed_code:
        changed = [f"{asset} ({what})" for asset, what in found.changed_code.items()]
        lines.append(f"Made by other code than is loaded, and not asked for because of it: {some(changed)}.")
    if found.unlisted:
        lines.append(f"No partition is known (dynamic ones with --instance alone): {some(found.unlisted)}.")
    if found.unasked:
        lines.append(
            f"Nobody evaluates version_changed() of {some(found.unasked)}: Dagster's default sensor cannot. Add "
            'AutomationConditionSensorDefinition("conditions", target="*", use_user_code_server=True).'
        )
    return lines
