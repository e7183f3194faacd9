"""The verbs that compute versions again, each in a process of its own, and compare. Heavy imports wait."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

from dagster_versioned.cli.arguments import MaybeVersion, Partition, TableArgument, Tables, flag, option
from dagster_versioned.cli.code_locations import Modules
from dagster_versioned.cli.commands import Commands
from dagster_versioned.cli.explain import Upstreams, opener
from dagster_versioned.cli.failures import ExitCode
from dagster_versioned.cli.session import Session
from dagster_versioned.cli.terminal import Table, short
from dagster_versioned.errors import InvalidInput
from dagster_versioned.storage.wrappers import READ_ONLY_VARIABLE

if TYPE_CHECKING:
    from dagster_versioned.projects.project import Project

command = Commands("Prove")

Allowed = Annotated[
    list[str] | None,
    option("--allow-resource", "NAME", "A resource that the function may use; repeatable. It may write, or call."),
]


class Code(StrEnum):
    """Which code is run. Enumerations, since Typer knows no literals before 0.19."""

    CURRENT = "current"
    RECORDED = "recorded"


@command(
    "reproduce daily_delays -m my_project.definitions",
    "reproduce daily_delays @4 -m my_project.definitions --code recorded",
    "reproduce weather -m my_project.definitions --allow-resource weather_api",
)
def reproduce(
    session: Session,
    table: TableArgument,
    version: MaybeVersion = None,
    partition: Partition = None,
    module: Modules = None,
    allow_resource: Allowed = None,
    code: Annotated[Code, flag("--code", "What is loaded here, or the commit that made the version.")] = Code.CURRENT,
    upstream: Upstreams = None,
) -> ExitCode | None:
    """Compute a version again from what it was built from, and say whether it is the same.

    In a process of its own that writes to no project: its stores are read alone, its Dagster instance is forgotten.
    Exits with 1 where rows differ, or it cannot be computed.
    """
    project = session.open()
    found = project.table(table).version(version, partition=partition)
    with TemporaryDirectory(prefix="dagster-versioned-") as scratch:
        is_recorded = code is Code.RECORDED
        folder = _recorded_code(project, table, found.log_version, Path(scratch)) if is_recorded else Path.cwd()
        asked = {
            "table": table,
            "version": f"@{found.log_version}",
            "partition": found.partition,
            "modules": module or _modules(),
            "allowed": allow_resource or [],
            "upstream": upstream or [],
            "needs_recorded_code": is_recorded,
        }
        outcome = _run(session, asked, folder, Path(scratch) / "again")
    _show(session, outcome)
    return None if outcome["verdict"] == "reproduced" else ExitCode.FINDINGS


@command("probe -m my_project.definitions", "probe daily_delays -m my_project.definitions")
def probe(
    session: Session,
    tables: Tables = None,
    module: Modules = None,
    allow_resource: Allowed = None,
    upstream: Upstreams = None,
) -> ExitCode | None:
    """Compute the current versions again, and name those that come out otherwise, with the column and a likely reason.

    Exits with 1 if any does.
    """
    project = session.open()
    outcomes: list[dict[str, Any]] = []
    with TemporaryDirectory(prefix="dagster-versioned-") as scratch:
        for number, name in enumerate(tables or map(str, project.tables())):
            heads = project.table(name).state.history.heads
            newest = max(heads.values(), key=lambda head: head.log_version, default=None)
            if newest is None:
                continue
            asked = {
                "table": name,
                "version": f"@{newest.log_version}",
                "partition": newest.partition,
                "modules": module or _modules(),
                "allowed": allow_resource or [],
                "upstream": upstream or [],
                "needs_recorded_code": False,
            }
            outcomes.append(_run(session, asked, Path.cwd(), Path(scratch) / str(number)))
    session.show(
        {"tables": outcomes},
        Table(
            ["table", "version", "outcome", "", "perhaps by"],
            [(o["table"], short(o["version"]), o["verdict"], o["text"], o["reason"]) for o in outcomes],
            none="No versions.",
        ),
    )
    return ExitCode.FINDINGS if any(outcome["verdict"] == "different" for outcome in outcomes) else None


def _modules() -> list[str]:
    named = os.environ.get("DAGSTER_VERSIONED_MODULE")
    if not named:
        raise InvalidInput("No code. Nothing was computed. Give -m, or set DAGSTER_VERSIONED_MODULE.")
    return [named]


def _recorded_code(project: "Project", table: str, log_version: int, scratch: Path) -> Path:
    from dagster_versioned.code.commit import write_out
    from dagster_versioned.tables.code_details import code_of

    found = project.table(table).version(log_version)
    code = code_of(found)
    if code is None or code.commit is None:
        raise InvalidInput(f"No commit is recorded of version {found.short}. Nothing was computed.")
    if code.modified:
        raise InvalidInput(
            f"Version {found.short} was made by files that no commit has: {', '.join(code.modified[:5])}. Nothing was "
            "computed."
        )
    target = scratch / "code"
    target.mkdir()
    try:
        return write_out(code.commit, code.remote, Path.cwd(), target)
    except ValueError as error:
        raise InvalidInput(
            f"The code of version {found.short} is not to be had: {error}. Nothing was computed."
        ) from error


def _run(session: Session, asked: Mapping[str, Any], folder: Path, scratch: Path) -> dict[str, Any]:
    """What a process says that computes a version again, with the code in a folder."""
    request = {**asked, "session": asdict(replace(session, json=False)), "scratch": str(scratch)}
    env = {**os.environ, READ_ONLY_VARIABLE: "1", "DAGSTER_DISABLE_TELEMETRY": "1"}
    for variable in ("DAGSTER_HOME", "DAGSTER_VERSIONED_SIGNING_KEY"):
        env.pop(variable, None)
    given = [sys.executable, "-c", "from dagster_versioned.cli.reproduce import main; main()"]
    ended = subprocess.run(
        given, cwd=folder, env=env, input=json.dumps(request), capture_output=True, text=True, check=False
    )
    last = ended.stdout.rpartition(_MARK)[2]
    if ended.returncode or not last:
        raise InvalidInput(
            f"The process that was to compute it ended with {ended.returncode}. Nothing of the project was changed. "
            f"{ended.stderr.strip()[-2000:]}"
        )
    return json.loads(last)


_MARK = "\0dagster-versioned reproduction\0"


def main() -> None:
    """Compute what standard input asks for, and say on standard output what came of it."""
    from dagster_versioned.assets.code_location import CodeLocation
    from dagster_versioned.errors import VersionedError
    from dagster_versioned.io_managers.reproduce import reproduce as computed
    from dagster_versioned.proof.reproduction import likely_reason

    asked = json.load(sys.stdin)
    session = Session(**asked["session"])
    try:
        outcome, rows = computed(
            session.open(),
            asked["table"],
            asked["version"],
            [CodeLocation(name) for name in asked["modules"]],
            Path(asked["scratch"]),
            partition=asked["partition"],
            allowed=asked["allowed"],
            open_project=opener(session, asked["upstream"]),
            needs_recorded_code=asked["needs_recorded_code"],
        )
    except VersionedError as error:
        sys.exit(str(error))
    reason = likely_reason(outcome.columns, rows["again"]) if outcome.verdict == "different" else None
    sys.stdout.write(_MARK + json.dumps({**asdict(outcome), "reason": reason}))


def _show(session: Session, outcome: Mapping[str, Any]) -> None:
    code = {True: "by the same code", False: "by other code than is recorded", None: "by code that is not recorded"}
    session.show(
        outcome,
        f"{outcome['table']} {short(outcome['version'])}: {outcome['verdict']}, {outcome['text']}",
        None if outcome["verdict"] == "not possible" else f"  {code[outcome['same_code']]}",
    )


__all__: Sequence[str] = ("command", "main")
