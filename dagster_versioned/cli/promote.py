"""The verb that makes an environment's versions production's. Heavy imports wait until it runs."""

import os
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from dagster_versioned.cli.arguments import Apply, EnvironmentName, Modules, Workspace, flag, named_locations, option
from dagster_versioned.cli.commands import Commands
from dagster_versioned.cli.failures import ExitCode
from dagster_versioned.cli.prove import Trust, is_governed, is_marked, trusted_keys, trusted_of_registry
from dagster_versioned.cli.session import Session
from dagster_versioned.cli.terminal import Table, cell_name, counted, human_size, short
from dagster_versioned.errors import CommitConflict, InvalidInput
from dagster_versioned.identity.names import PRODUCTION

if TYPE_CHECKING:
    from dagster import DagsterInstance

    from dagster_versioned.assets.code_location import CodeLocation
    from dagster_versioned.branches.judgement import LeftCell
    from dagster_versioned.branches.promote import Half, PromotionReport
    from dagster_versioned.projects.project import Project
    from dagster_versioned.proof.signatures import TrustedKeys
    from dagster_versioned.tables.history import Version

    Check = Callable[[Sequence[Version]], None]

command = Commands("Environments")

_ONE_OF = (
    "--prepare, --commit and --abandon are three things; -m, -w and --instance belong to what commits. "
    "Nothing was done. Give one of them."
)


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
        option(
            "--accept",
            "TABLE",
            "Promote it without a code version, with far fewer rows, from sources new to production, or parts of"
            " another pyarrow.",
        ),
    ] = None,
    verify: Annotated[
        Verification,
        flag(
            "--verify",
            "Believe nothing; or what is said of rows, where branches and production are written by one role.",
        ),
    ] = Verification.ROWS,
    apply: Apply = False,
    prepare: Annotated[
        bool, flag("--prepare", "The first half: verify, and let production's sensors wait for it.")
    ] = False,
    commit: Annotated[bool, flag("--commit", "The second half: commit what was prepared.")] = False,
    abandon: Annotated[bool, flag("--abandon", "End the one that is open; what it committed stays.")] = False,
    module: Modules = None,
    workspace: Workspace = None,
    with_instance: Annotated[
        bool,
        flag(
            "--instance",
            "Refuse while the Dagster instance of DAGSTER_HOME, production's, runs any of it; tell it what was "
            "promoted.",
        ),
    ] = False,
    require_approvals: Annotated[
        int | None,
        flag(
            "--require-approvals",
            "People who must have approved of each version; at least what the registry says.",
            min=0,
            max=100,
        ),
    ] = None,
    trust: Trust = None,
) -> ExitCode | None:
    """Make an environment's versions production's, as far as they are current there; computes nothing.

    A dry run unless --apply is given. --prepare before the code is deployed and --commit after are its two halves. With
    -m or -w, the deployed definitions have to state the code versions that are promoted. Exit code 1: some of the
    environment is left for production to compute.
    """
    half = _half(prepare, commit, abandon)
    if accept and half in ("commit", "abandon"):
        raise InvalidInput("--accept belongs to --prepare, which decides what is committed. Nothing was done.")
    if half in ("prepare", "abandon") and (module or workspace or with_instance):
        raise InvalidInput(_ONE_OF)
    if half == "abandon":
        return _abandon(session, name, apply)
    locations = named_locations(module, workspace) if module or workspace or half == "commit" else ()
    approved = _approved(session, name, require_approvals, trust)
    return _promote(session, name, half, apply, accept or (), verify, locations, with_instance, approved)


def _half(prepare: bool, commit: bool, abandon: bool) -> "Half | Literal['abandon'] | None":
    if prepare + commit + abandon > 1:
        raise InvalidInput(_ONE_OF)
    return "prepare" if prepare else "commit" if commit else "abandon" if abandon else None


def _promote(
    session: Session,
    name: str,
    half: "Half | None",
    apply: bool,
    accept: "Sequence[str]",
    verify: Verification,
    locations: "Sequence[CodeLocation]",
    with_instance: bool,
    approved: "Check | None",
) -> ExitCode | None:
    from dagster_versioned.branches.promote import promote as promote_environment

    project = session.production()
    deployed, instance = _checks(project, locations, with_instance)
    checks = [check for check in (approved, deployed) if check is not None]

    def check(versions: "Sequence[Version]") -> None:
        for each in checks:
            each(versions)

    report = promote_environment(
        project,
        name,
        dry_run=not apply,
        accept=accept,
        by=project.author or (session.registry_clone().identity() if is_governed(session) else None),
        verify=verify.value,
        half=half,
        check=check if checks else None,
    )
    if instance is not None and not report.dry_run:
        from dagster_versioned.io_managers.promotion_events import report_promotion

        session.note(f"Reported to Dagster: {counted(report_promotion(instance, project, report), 'version')}.")
    _show(session, report, half, apply)
    return ExitCode.FINDINGS if report.left else None


def _show(session: Session, report: "PromotionReport", half: "Half | None", apply: bool) -> None:
    does = "became" if not report.dry_run else "can become" if apply else "would become"
    count = counted(len(report.promoted), "version")
    promoted = Table(
        ("table", "production has", "becomes", "rows", "size"),
        [
            (cell_name(c.table, c.partition), short(c.before), short(c.after), c.nrow, human_size(c.size_bytes))
            for c in report.promoted
        ],
        right=("rows", "size"),
    )
    end = "--apply does it." if report.dry_run and report.promoted else None
    if half == "prepare" and apply:
        end = "Production's sensors wait for them for an hour. Deploy the code, then: --commit --apply."
    session.show(
        {
            "environment": report.environment,
            "dry_run": not apply,
            "half": half,
            "size_bytes": report.size_bytes,
            "promoted": report.promoted,
            "left": report.left,
        },
        f"{count} of {report.environment} {does} production's, {len(report.left)} are left to it.",
        promoted if report.promoted else None,
        left_table(report.left) if report.left else None,
        end,
    )


def _abandon(session: Session, name: str, apply: bool) -> None:
    from dagster_versioned.branches.open_promotion import abandon_promotion

    promotion = abandon_promotion(session.production(), name, dry_run=not apply)
    what = f"The promotion of {name}, open since {promotion.opened}," if promotion else "What is no promotion"
    does = f"{'is' if apply else 'would be'} {'abandoned' if promotion else 'deleted'}."
    end = "What it committed is production's, and sensors compute the rest." if apply else "--apply does it."
    document = {"environment": name, "abandoned": apply, "opened": promotion and promotion.opened}
    session.show(document, f"{what} {does} {end}")


def _checks(
    project: "Project", locations: "Sequence[CodeLocation]", with_instance: bool
) -> "tuple[Check | None, DagsterInstance | None]":
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


def _required(
    session: Session, required: int | None, trust: "Sequence[Path] | None"
) -> "tuple[int, TrustedKeys] | None":
    """How many approvals a promotion needs, and by which keys; ``None`` where nothing is required."""
    if not is_governed(session):
        if is_marked(session, session.production()):
            raise InvalidInput(
                "The project is governed, and whether its promotions need approvals is in the registry. Nothing was "
                "promoted. Give --governance, and --registry or --clone."
            )
        return (required, trusted_keys(session, trust)) if required else None
    registered = trusted_of_registry(session)
    # Keys that are named narrow what the registry says, and never widen it.
    keys = registered.among(trusted_keys(session, trust)) if trust else registered
    count = max(required or 0, keys.required_approvals)
    return (count, keys) if count or keys.signatures_required else None


def _approved(session: Session, name: str, required: int | None, trust: "Sequence[Path] | None") -> "Check | None":
    """What a promotion has to pass where approvals or signatures are required, by an option or by the registry."""
    wanted = _required(session, required, trust)
    if wanted is None:
        return None
    count, keys = wanted
    from dagster_versioned.proof.signatures import check_signatures, missing_approvals

    environment = session.production().in_environment(name)

    def hindrance(table: str, version: "Version") -> str | None:
        if count:
            return missing_approvals(environment, table, version, keys, count)
        (found,) = check_signatures(environment, table, keys, [version])
        return None if found.standing == "signed" else found.text

    def check(versions: "Sequence[Version]") -> None:
        tables = {id(version): table for table, version in _tables_of(environment, versions)}
        for version in versions:
            table = tables.get(id(version))
            if table is None:
                raise CommitConflict(
                    f"{name} was written while its versions were looked at. Nothing was promoted. Promote it again."
                )
            if (why := hindrance(table, version)) is not None:
                what = "approved" if count else "signed"
                raise InvalidInput(
                    f"{cell_name(table, version.partition)} {version.short} is not {what}: {why}. Nothing was "
                    f"promoted. `dagster-versioned --environment {name} {'approve' if count else 'attest'} {table} "
                    f"{version.short} --key …`."
                )

    return check


def _tables_of(environment: "Project", versions: "Sequence[Version]") -> "Iterator[tuple[str, Version]]":
    """The tables of versions, which do not know them."""
    heads = {name: environment.table(str(name)).state.history.heads for name in environment.tables()}
    for version in versions:
        for name, found in heads.items():
            if found.get(version.partition) == version and name:
                yield str(name), version


def left_table(cells: "Sequence[LeftCell]") -> Table:
    """The versions of an environment that are left to be computed, and why."""
    return Table(("left", "why"), [(cell_name(cell.table, cell.partition), cell.why) for cell in cells])
