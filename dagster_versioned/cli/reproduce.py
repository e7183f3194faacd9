"""The verbs that compute versions again, each in a process of its own, and compare. Heavy imports wait."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

from dagster_versioned.cli.arguments import MaybeVersion, Partition, TableArgument, Tables, flag, option
from dagster_versioned.cli.code_locations import Modules
from dagster_versioned.cli.commands import Commands
from dagster_versioned.cli.explain import Upstreams, opener
from dagster_versioned.cli.failures import ExitCode
from dagster_versioned.cli.prove import SigningKey, signing_key
from dagster_versioned.cli.session import KEY_VARIABLE, Session, absolute
from dagster_versioned.cli.terminal import Table, short
from dagster_versioned.errors import InvalidInput

if TYPE_CHECKING:
    from dagster_versioned.tables.history import Version
    from dagster_versioned.tables.table import VersionedTable

command = Commands("Prove")

Allowed = Annotated[
    list[str] | None,
    option("--allow-resource", "NAME", "A resource that the function may use; repeatable. It may write, or call."),
]


class Code(StrEnum):
    """Which code is run. Enumerations, since Typer knows no literals before 0.19."""

    CURRENT = "current"
    RECORDED = "recorded"


class Runtime(StrEnum):
    """What it is run on."""

    CURRENT = "current"
    RECORDED = "recorded"


@dataclass(frozen=True)
class _Request:
    """What a process is to compute again, as it is written to its standard input."""

    session: Session
    table: str
    version: str
    partition: str | None
    modules: Sequence[str]
    allowed: Sequence[str]
    upstream: Sequence[str]
    needs_recorded_code: bool = False

    def to_json(self, scratch: Path) -> str:
        """With the folder that it may write to."""
        here = replace(
            self, session=self.session.anywhere(), upstream=[str(absolute(place)) for place in self.upstream]
        )
        return json.dumps({**asdict(here), "scratch": str(scratch)})


@command(
    "reproduce daily_delays -m my_project.definitions",
    "reproduce daily_delays @4 -m my_project.definitions --code recorded --runtime recorded",
    "reproduce weather -m my_project.definitions --allow-resource weather_api --key auditor.pem",
)
def reproduce(
    session: Session,
    table: TableArgument,
    version: MaybeVersion = None,
    partition: Partition = None,
    module: Modules = None,
    allow_resource: Allowed = None,
    code: Annotated[Code, flag("--code", "What is loaded here, or the commit that made the version.")] = Code.CURRENT,
    runtime: Annotated[
        Runtime, flag("--runtime", "What is installed here, or the releases that the version was made with (by uv).")
    ] = Runtime.CURRENT,
    upstream: Upstreams = None,
    key: SigningKey = None,
) -> ExitCode | None:
    """Compute a version again from what it was built from, and say whether it is the same.

    In a process of its own that writes to no project: its stores are read alone, its Dagster instance is forgotten.
    With --key the outcome is signed, and kept with the version. Exits with 1 where rows differ, or where it cannot be
    computed.
    """
    project = session.open()
    signer = signing_key(key) if key else None
    found = project.table(table).version(version, partition=partition)
    at = f"@{found.log_version}"
    with TemporaryDirectory(prefix="dagster-versioned-") as scratch:
        is_recorded = code is Code.RECORDED
        request = _Request(
            session, table, at, found.partition, module or _modules(), allow_resource or [], upstream or [], is_recorded
        )
        folder = _recorded_code(found, Path(scratch)) if is_recorded else Path.cwd()
        has_own = runtime is Runtime.RECORDED
        python = _recorded_python(session, project.table(table), found, Path(scratch)) if has_own else None
        outcome = _run(request, folder, Path(scratch) / "again", python)
    if signer is not None:
        from dagster_versioned.proof.attest import attest_reproduction

        members = {name: outcome[name] for name in ("verdict", "text", "same_bytes", "same_code", "columns")}
        attest_reproduction(project, table, at, members, signer=signer, partition=found.partition)
    by = {True: "by the same code", False: "by other code than is recorded", None: "by code that is not recorded"}
    session.show(
        outcome,
        f"{table} {short(outcome['version'])}: {outcome['verdict']}, {outcome['text']}",
        None if outcome["verdict"] == "not possible" else f"  {by[outcome['same_code']]}",
        None if signer is None else f"  signed by {signer.public.key_id[:16]}",
    )
    return None if outcome["verdict"] == "reproduced" else ExitCode.FINDINGS


@command("probe -m my_project.definitions", "probe daily_delays -m my_project.definitions")
def probe(
    session: Session,
    tables: Tables = None,
    module: Modules = None,
    allow_resource: Allowed = None,
    upstream: Upstreams = None,
) -> ExitCode | None:
    """Compute the current versions again, and name those that are never the same, with the column and a likely reason.

    What differs from its version is computed once more: where the two are equal, other code or a service made the
    difference. Exits with 1 if any is never the same.
    """
    project = session.open()
    outcomes: list[dict[str, Any]] = []
    for name in tables or map(str, project.tables()):
        newest = max(project.table(name).state.history.heads.values(), key=lambda head: head.log_version, default=None)
        if newest is None:
            continue
        at = f"@{newest.log_version}"
        request = _Request(
            session, name, at, newest.partition, module or _modules(), allow_resource or [], upstream or []
        )
        outcomes.append(_probed(request))
    session.show(
        {"tables": outcomes},
        Table(
            ["table", "version", "outcome", "", "perhaps by"],
            [(o["table"], short(o["version"]), o["verdict"], o["text"], o["reason"]) for o in outcomes],
            none="No versions.",
        ),
    )
    return ExitCode.FINDINGS if any(outcome["verdict"] == _NEVER for outcome in outcomes) else None


_NEVER = "never the same"


def _probed(request: _Request) -> dict[str, Any]:
    """What came of computing a version again, twice where it differs."""
    with TemporaryDirectory(prefix="dagster-versioned-") as scratch:
        first = _run(request, Path.cwd(), Path(scratch) / "first")
        if first["verdict"] != "different":
            return first
        second = _run(request, Path.cwd(), Path(scratch) / "second")
    if (first["digest"], first["columns"]) != (second["digest"], second["columns"]):
        return {**first, "verdict": _NEVER}
    by = "by other code" if first["same_code"] is False else "by what is around it"
    return {**first, "text": f"{first['text']}; twice the same, so {by}", "reason": None}


def _modules() -> list[str]:
    named = os.environ.get("DAGSTER_VERSIONED_MODULE")
    if not named:
        raise InvalidInput("No code. Nothing was computed. Give -m, or set DAGSTER_VERSIONED_MODULE.")
    return [named]


def _recorded_code(found: "Version", scratch: Path) -> Path:
    from dagster_versioned.code.commit import write_out
    from dagster_versioned.tables.code_details import code_of

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


def _recorded_python(session: Session, table: "VersionedTable", found: "Version", scratch: Path) -> Path:
    from dagster_versioned.code.runtime import make_environment, requirements_of
    from dagster_versioned.tables.code_details import CodeDetails, code_of

    code = code_of(found)
    details = CodeDetails.read(table.store, None if code is None else code.details)
    if details is None:
        raise InvalidInput(f"No runtime is recorded of version {found.short}. Nothing was computed.")
    taken, left = requirements_of(details.runtime)
    session.note(f"Making an environment of Python {details.runtime.get('python')} and {len(taken)} releases.")
    if left:
        session.note(f"As they are here, or not at all: {', '.join(left)}.")
    try:
        return make_environment(details.runtime, scratch / "runtime")
    except ValueError as error:
        raise InvalidInput(
            f"The runtime of version {found.short} is not to be had: {error}. Nothing was computed."
        ) from (error)


def _run(request: _Request, folder: Path, scratch: Path, python: Path | None = None) -> dict[str, Any]:
    """What a process says that computes a version again, with the code in a folder, by this Python or another."""
    import dagster_versioned
    from dagster_versioned.storage.wrappers import READ_ONLY_VARIABLE

    env = {**os.environ, READ_ONLY_VARIABLE: "1", "DAGSTER_DISABLE_TELEMETRY": "1"}
    for variable in ("DAGSTER_HOME", KEY_VARIABLE):
        env.pop(variable, None)
    if python is not None:
        own = str(Path(dagster_versioned.__file__).parents[1])
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [own, env.get("PYTHONPATH")]))
    # Safe paths: this package is the one that is installed, whatever is in the folder of the code.
    given = [str(python or sys.executable), "-P", "-c", "from dagster_versioned.cli.reproduce import main; main()"]
    ended = subprocess.run(
        given, cwd=folder, env=env, input=request.to_json(scratch), capture_output=True, text=True, check=False
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

    sys.path.insert(0, str(Path.cwd()))
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


__all__: Sequence[str] = ("command", "main")
