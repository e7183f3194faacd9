"""The verb that makes an environment's versions production's. Heavy imports wait until it runs."""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from dagster_versioned.cli.arguments import Apply, EnvironmentName
from dagster_versioned.cli.code_locations import Modules, Workspace, named_locations
from dagster_versioned.cli.commands import Commands
from dagster_versioned.cli.failures import ExitCode
from dagster_versioned.cli.session import Session
from dagster_versioned.cli.terminal import counted, human_size, say, short, show_table
from dagster_versioned.errors import InvalidInput
from dagster_versioned.identity.names import PRODUCTION

if TYPE_CHECKING:
    from dagster import DagsterInstance

    from dagster_versioned.assets.code_location import CodeLocation
    from dagster_versioned.tables.history import Version
    from dagster_versioned.tables.project import Project
    from dagster_versioned.tables.promote import Half, LeftCell, PromotionReport

command = Commands("Environments")


class Verification(StrEnum):
    """What a promotion makes again, as `tables.write.promotion.Verify` says."""

    ROWS = "rows"
    BYTES = "bytes"


@command(
    "promote pr-142",
    "promote pr-142 --apply",
    "promote pr-142 --prepare --apply",
    "promote pr-142 --commit -m my_project.definitions --apply",
)
def promote(
    session: Session,
    name: EnvironmentName,
    accept: Annotated[
        list[str] | None,
        typer.Option(
            "--accept",
            metavar="TABLE",
            help="Promote it without a code version, with far fewer rows, from sources new to production, or parts of"
            " another pyarrow.",
        ),
    ] = None,
    verify: Annotated[
        Verification,
        typer.Option(
            "--verify",
            help="Believe nothing; or what is said of rows, where branches and production are written by one role.",
        ),
    ] = Verification.ROWS,
    apply: Apply = False,
    prepare: Annotated[
        bool, typer.Option("--prepare", help="The first half: verify, and let production's sensors wait for it.")
    ] = False,
    commit: Annotated[bool, typer.Option("--commit", help="The second half: commit what was prepared.")] = False,
    abandon: Annotated[
        bool, typer.Option("--abandon", help="End the one that is open; what it committed stays.")
    ] = False,
    module: Modules = None,
    workspace: Workspace = None,
    with_instance: Annotated[
        bool,
        typer.Option(
            "--instance",
            help="Refuse while the Dagster instance of DAGSTER_HOME, production's, runs any of it; tell it what was "
            "promoted.",
        ),
    ] = False,
) -> ExitCode | None:
    """Make an environment's versions production's, as far as they are current there; computes nothing.

    A dry run unless --apply is given. --prepare before the code is deployed and --commit after are its two halves. With
    -m or -w, the deployed definitions have to state the code versions that are promoted. Exit code 1: some of the
    environment is left for production to compute.
    """
    from dagster_versioned.tables.promote import promote as promoted

    if prepare + commit + abandon > 1 or ((module or workspace or with_instance) and (prepare or abandon)):
        raise InvalidInput(
            "--prepare, --commit and --abandon are three things; -m, -w and --instance belong to what commits. Nothing "
            "was done. Give one of them."
        )
    if accept and (commit or abandon):
        raise InvalidInput("--accept belongs to --prepare, which decides what is committed. Nothing was done.")
    project = session.production()
    if abandon:
        return _abandon(session, project, name, apply)
    half: Half | None = "prepare" if prepare else "commit" if commit else None
    locations = named_locations(module, workspace) if module or workspace or commit else ()
    check, instance = _checks(project, locations, with_instance)
    report = promoted(
        project,
        name,
        dry_run=not apply,
        accept=accept or (),
        by=project.author,
        verify=verify.value,
        half=half,
        check=check,
    )
    if instance is not None and not report.dry_run:
        from dagster_versioned.io_managers.promotion_events import report_promotion

        session.note(f"Reported to Dagster: {counted(report_promotion(instance, project, report), 'version')}.")
    _show(session, report, half, apply)
    return ExitCode.FINDINGS if report.left else None


def _show(session: Session, report: "PromotionReport", half: "Half | None", apply: bool) -> None:
    from dagster_versioned.cli.documents import print_json

    if session.json:
        print_json(
            {
                "environment": report.environment,
                "dry_run": not apply,
                "half": half,
                "size_bytes": report.size_bytes,
                "promoted": [{**asdict(cell), "table": str(cell.table)} for cell in report.promoted],
                "left": [{**asdict(cell), "table": str(cell.table)} for cell in report.left],
            }
        )
        return
    does = "became" if not report.dry_run else "can become" if apply else "would become"
    count = counted(len(report.promoted), "version")
    say(f"{count} of {report.environment} {does} production's, {len(report.left)} are left to it.")
    if report.promoted:
        show_table(
            ("table", "production has", "becomes", "rows", "size"),
            [
                (
                    cell_name(one.table, one.partition),
                    short(one.before),
                    short(one.after),
                    one.nrow,
                    human_size(one.size_bytes),
                )
                for one in report.promoted
            ],
            right=("rows", "size"),
        )
    show_left(report.left)
    if half == "prepare" and apply:
        say("Production's sensors wait for them for an hour. Deploy the code, then: --commit --apply.")
    elif report.dry_run and report.promoted:
        say("--apply does it.")


def _abandon(session: Session, project: "Project", name: str, apply: bool) -> None:
    from dagster_versioned.cli.documents import print_json
    from dagster_versioned.tables.open_promotion import abandon_promotion

    found = abandon_promotion(project, name, dry_run=not apply)
    if session.json:
        print_json({"environment": name, "abandoned": apply, "opened": found and found.opened})
        return
    what = f"The promotion of {name}, open since {found.opened}," if found else "What is no promotion"
    does = "is" if apply else "would be"
    end = " What it committed is production's, and sensors compute the rest." if apply else " --apply does it."
    say(f"{what} {does} {'abandoned' if found else 'deleted'}.{end}")


def _checks(
    project: "Project", locations: "Sequence[CodeLocation]", with_instance: bool
) -> "tuple[Callable[[Sequence[Version]], None] | None, DagsterInstance | None]":
    """What a promotion has to pass before its first commit, and the instance, opened before anything is done."""
    if not locations and not with_instance:
        return None, None
    from dagster_versioned.assets.code_location import instance_of_home, repositories_of
    from dagster_versioned.sensors.deployed import require_deployed, require_idle

    os.environ["DAGSTER_VERSIONED_ENVIRONMENT"] = PRODUCTION  # which the definitions name
    repositories = repositories_of(locations)
    instance = instance_of_home() if with_instance else None

    def check(versions: "Sequence[Version]") -> None:
        require_deployed(repositories, project, versions)
        if instance is not None:
            require_idle(instance, repositories, versions)

    return check, instance


def show_left(cells: "Sequence[LeftCell]") -> None:
    if cells:
        show_table(("left", "why"), [(cell_name(one.table, one.partition), one.why) for one in cells])


def cell_name(table: str, partition: str | None) -> str:
    return table if partition is None else f"{table}[{partition}]"
