"""The verbs that compute versions again, each in a process of its own, and compare. Heavy imports wait."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, cast

from dagster_versioned.cli.arguments import MaybeVersion, Modules, Partition, TableArgument, Tables, flag, option
from dagster_versioned.cli.commands import Commands
from dagster_versioned.cli.explain import Upstreams, opener
from dagster_versioned.cli.failures import ExitCode
from dagster_versioned.cli.prove import SigningKey, signing_key
from dagster_versioned.cli.session import KEY_VARIABLE, Session, absolute
from dagster_versioned.cli.terminal import Table, cell_name, short
from dagster_versioned.errors import InvalidInput

if TYPE_CHECKING:
    from dagster_versioned.tables.history import Version
    from dagster_versioned.tables.table import VersionedTable

command = Commands("Prove")

Allowed = Annotated[
    list[str] | None,
    option("--allow-resource", "NAME", "A resource that the function may use; repeatable. It may write, or call."),
]


_BY = {True: "by the same code", False: "by other code than is recorded", None: "by code that is not recorded"}
_SIGNED = ("verdict", "text", "columns", "digest", "same_bytes", "same_code")
"""What of an outcome is signed."""


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
    config: Mapping[str, Any] | None = None
    needs_recorded_code: bool = False

    @classmethod
    def of(
        cls,
        session: Session,
        table: str,
        version: "Version",
        modules: Sequence[str] | None,
        allowed: Sequence[str] | None,
        upstream: Sequence[str] | None,
    ) -> "_Request":
        """For a version of a table, with the options of a command."""
        at = f"@{version.log_version}"
        return cls(session, table, at, version.partition, modules or _modules(), allowed or [], upstream or [])

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
    config: Annotated[
        Path | None, option("--config", "FILE", "The run's config, in YAML: what it was is not recorded.")
    ] = None,
    upstream: Upstreams = None,
    key: SigningKey = None,
) -> ExitCode | None:
    """Compute a version again from what it was built from, and say whether it is the same.

    In a process of its own, in which this package writes to no project, and Dagster's instance is forgotten; what the
    function itself writes or sends, is written or sent again. With --key the outcome is signed, and kept with the
    version. Exits with 1 where rows differ, or where it cannot be computed.
    """
    from dagster_versioned.proof.attest import attest_reproduction, named_version

    project = session.open()
    signer = signing_key(key) if key else None
    opened = project.table(table)
    found = named_version(opened, version, partition)
    request = _Request.of(session, table, found, module, allow_resource, upstream)
    request = replace(request, config=_config(config), needs_recorded_code=code is Code.RECORDED)
    with TemporaryDirectory(prefix="dagster-versioned-") as scratch:
        folder = _recorded_code(found, Path(scratch)) if request.needs_recorded_code else Path.cwd()
        has_own = runtime is Runtime.RECORDED
        python = _recorded_python(session, opened, found, Path(scratch)) if has_own else None
        outcome = _run(request, folder, Path(scratch) / "again", python)
    lines = [
        f"{cell_name(table, found.partition)} {short(outcome['version'])}: {outcome['verdict']}, {outcome['text']}"
    ]
    if outcome["verdict"] != "not possible":
        lines.append(f"  {_BY[outcome['same_code']]}")
        if signer is not None:
            signed = {name: outcome[name] for name in _SIGNED}
            signed |= {"code": code.value, "runtime": runtime.value, "allowed_resources": sorted(request.allowed)}
            attest_reproduction(project, table, request.version, signed, signer=signer, partition=found.partition)
            lines.append(f"  signed by {signer.public.key_id[:16]}")
    session.show(outcome, *lines)
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

    Every function is called, as by `reproduce`. What differs from its version is computed once more: where the two are
    equal, other code or a service made the difference. Exits with 1 if any is never the same.
    """
    project = session.open()
    outcomes: list[dict[str, Any]] = []
    for name in tables or map(str, project.tables()):
        newest = max(project.table(name).state.history.heads.values(), key=lambda head: head.log_version, default=None)
        if newest is None:
            continue
        outcomes.append(_probed(_Request.of(session, name, newest, module, allow_resource, upstream)))
    columns = ["table", "version", "outcome", "", "perhaps by"]
    rows = [
        (cell_name(o["table"], o["partition"]), short(o["version"]), o["verdict"], o["text"], o["reason"])
        for o in outcomes
    ]
    session.show({"tables": outcomes}, Table(columns, rows, none="No versions."))
    return ExitCode.FINDINGS if any(outcome["verdict"] == _NEVER for outcome in outcomes) else None


_NEVER = "never the same"


def _probed(request: _Request) -> dict[str, Any]:
    """What came of computing a version again, twice where it differs."""
    with TemporaryDirectory(prefix="dagster-versioned-") as scratch:
        try:
            first = _run(request, Path.cwd(), Path(scratch) / "first")
        except InvalidInput as error:
            known = dict.fromkeys(("columns", "rows", "rows_before", "same_code", "digest", "reason"))
            named = {"table": request.table, "version": request.version, "partition": request.partition}
            return {**known, **named, "verdict": "not possible", "text": str(error)[-600:], "same_bytes": False}
        if first["verdict"] != "different":
            return first
        second = _run(request, Path.cwd(), Path(scratch) / "second")
    if (first["digest"], first["columns"]) != (second["digest"], second["columns"]):
        return {**first, "verdict": _NEVER}
    by = "by other code" if first["same_code"] is False else "by what is around it"
    return {**first, "text": f"{first['text']}; twice the same, so {by}", "reason": None}


def _config(path: Path | None) -> Mapping[str, Any] | None:
    if path is None:
        return None
    import yaml

    try:
        found: object = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InvalidInput(f"The config {path} cannot be read ({error}). Nothing was computed.") from None
    if not isinstance(found, dict):
        raise InvalidInput(f"The config {path} is no mapping. Nothing was computed. Write it as for a run of Dagster.")
    return cast("Mapping[str, Any]", found)


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
    """What comes of computing a version again, in a process with the code in a folder, by this Python or another.

    The process says what it did; what it made is compared here.
    """
    from dagster_versioned.proof import reproduction
    from dagster_versioned.proof.lineage import ProjectLineage
    from dagster_versioned.proof.stand_in import NotPossible, stand_ins_for

    session = request.session
    project = session.open()
    found = project.table(request.table).version(request.version, partition=request.partition)
    before = reproduction.read_before(project, request.table, found)
    try:
        if isinstance(before, NotPossible):
            raise before
        ran = _ran(request, folder, scratch, python)
        if "why" in ran:
            raise NotPossible(ran["why"])
        lineage = ProjectLineage(project, opener(session, list(request.upstream)))
        again = stand_ins_for(lineage, lineage.own_table(request.table), [found], scratch / "made")[project.name]
        outcome, rows = reproduction.compare_with(
            again, request.table, found, before, ran["same_code"], ran["takes_config"]
        )
    except NotPossible as error:
        return {**asdict(reproduction.not_possible(request.table, found, str(error))), "reason": None}
    is_different = outcome.verdict == "different"
    reason = reproduction.likely_reason(outcome.columns, rows["again"]) if is_different else None
    return {**asdict(outcome), "reason": reason}


def _ran(request: _Request, folder: Path, scratch: Path, python: Path | None) -> dict[str, Any]:
    """What the process says, in a file: others may print what they like."""
    from dagster_versioned.proof.keys import PASSPHRASE_VARIABLE
    from dagster_versioned.storage.wrappers import READ_ONLY_VARIABLE

    scratch.mkdir(parents=True)
    env = {**os.environ, READ_ONLY_VARIABLE: "1", "DAGSTER_DISABLE_TELEMETRY": "1", KEY_VARIABLE: ""}
    for variable in ("DAGSTER_HOME", PASSPHRASE_VARIABLE):
        env.pop(variable, None)
    if python is not None:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_own_package(scratch)), env.get("PYTHONPATH")]))
    # Safe paths: this package is the one that is installed, whatever is in the folder of the code.
    given = [str(python or sys.executable), "-P", "-c", "from dagster_versioned.cli.reproduce import main; main()"]
    ended = subprocess.run(
        given, cwd=folder, env=env, input=request.to_json(scratch), capture_output=True, text=True, check=False
    )
    try:
        return json.loads((scratch / _SAID).read_text("utf-8"))
    except (OSError, ValueError):
        raise InvalidInput(
            f"The process that was to compute it ended with {ended.returncode}. This package changed nothing of the "
            f"project. {ended.stderr.strip()[-2000:]}"
        ) from None


def _own_package(scratch: Path) -> Path:
    """A folder that has this package and nothing else."""
    own, package = scratch / "own", Path(__file__).parents[1]
    own.mkdir()
    try:
        (own / package.name).symlink_to(package, target_is_directory=True)
    except OSError:
        shutil.copytree(package, own / package.name)
    return own


_SAID = "said.json"


def main() -> None:
    """Compute what standard input asks for, and say in a file what came of it."""
    from dagster_versioned.assets.code_location import CodeLocation
    from dagster_versioned.errors import VersionedError
    from dagster_versioned.io_managers.reproduce import run_again
    from dagster_versioned.proof.stand_in import NotPossible

    sys.path.insert(0, str(Path.cwd()))
    asked = json.load(sys.stdin)
    session, scratch = Session(**asked["session"]), Path(asked["scratch"])
    try:
        project = session.open()
        _, ran = run_again(
            project,
            asked["table"],
            project.table(asked["table"]).version(asked["version"], partition=asked["partition"]),
            [CodeLocation(Path(name) if name.endswith(".py") else name) for name in asked["modules"]],
            scratch / "made",
            allowed=asked["allowed"],
            config=asked["config"],
            open_project=opener(session, asked["upstream"]),
            needs_recorded_code=asked["needs_recorded_code"],
        )
        said = asdict(ran)
    except NotPossible as error:
        said = {"why": str(error)}
    except VersionedError as error:
        sys.exit(str(error))
    (scratch / _SAID).write_text(json.dumps(said), "utf-8")


__all__: Sequence[str] = ("command", "main")
