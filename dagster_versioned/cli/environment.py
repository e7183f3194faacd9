"""The verbs for environments: a project whose tables go on elsewhere. Heavy imports wait until one runs."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dagster_versioned.cli.arguments import Apply
from dagster_versioned.cli.code_locations import Modules, Workspace, named_locations
from dagster_versioned.cli.comment import Notation
from dagster_versioned.cli.developer import DryRun, opener, parsed_place
from dagster_versioned.cli.failures import ExitCode
from dagster_versioned.cli.session import Session, table_of, verb
from dagster_versioned.cli.terminal import counted, human_size, progress, say, show_fields, show_table
from dagster_versioned.errors import InvalidInput
from dagster_versioned.identity.names import PRODUCTION

if TYPE_CHECKING:
    from dagster import DagsterInstance

    from dagster_versioned.assets.code_location import CodeLocation
    from dagster_versioned.tables.environment.fork import Fork
    from dagster_versioned.tables.environments import Written
    from dagster_versioned.tables.history import Version
    from dagster_versioned.tables.project import Project
    from dagster_versioned.tables.promote import Half, LeftCell, PromotionReport

PANEL = "Environments"
_SHORT = 8


class Verification(StrEnum):
    """What a promotion makes again, as `tables.write.promotion.Verify` says."""

    ROWS = "rows"
    BYTES = "bytes"


class Engine(StrEnum):
    """What reads the rows that are compared."""

    AUTO = "auto"
    ARROW = "arrow"
    SPARK = "spark"


Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name: a-z, 0-9 and '-'.")]


def register(app: typer.Typer) -> None:
    """Add the group ``env`` to the application."""
    env = typer.Typer(
        no_args_is_help=True,
        help="Environments: the tables as they are now, written to elsewhere; production stays as it is.",
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    verb(env, panel=PANEL, examples=["env create pr-142", "env create pr-142 --if-absent"])(create)
    verb(env, panel=PANEL, examples=["env ls", "env ls --json"], name="ls")(ls)
    verb(env, panel=PANEL, examples=["env show pr-142", "env show pr-142 --json"])(show)
    verb(
        env,
        panel=PANEL,
        examples=["env diff pr-142", "env diff pr-142 --key flights=id --format markdown", "env diff pr-142 --values"],
    )(diff)
    verb(
        env,
        panel=PANEL,
        examples=["env export pr-142 s3://scratch/pr-142", "env export pr-142 exported --table flights --dry-run"],
    )(export)
    verb(env, panel=PANEL, examples=["env rebase pr-142", "env rebase pr-142 --apply"])(rebase)
    verb(env, panel=PANEL, examples=["env drop pr-142", "env drop pr-142 --apply"])(drop)
    app.add_typer(env, name="env", rich_help_panel=PANEL)
    verb(
        app,
        panel=PANEL,
        examples=[
            "promote pr-142",
            "promote pr-142 --apply",
            "promote pr-142 --prepare --apply",
            "promote pr-142 --commit -m my_project.definitions --apply",
        ],
    )(promote)


def create(
    session: Session,
    name: Name,
    if_absent: Annotated[
        bool, typer.Option("--if-absent", help="Leave one of that name as it is, which else is an error.")
    ] = False,
) -> None:
    """Fork every table of the project at this moment, under a name. Copies no row."""
    from dagster_versioned.cli.documents import print_json
    from dagster_versioned.tables.environment.registry import names_of, read_environment
    from dagster_versioned.tables.environments import create_environment

    project = session.production()
    if if_absent and name in names_of(project.store):
        fork, done = read_environment(project.store, name), "is there already"
    else:
        fork, done = create_environment(project, name, by=project.author), "is ready"
    if session.json:
        print_json(_json_of(fork))
        return
    say(
        f"The environment {name} of {fork.project} {done}: {counted(len(fork.tables), 'table')} of {_moment(fork)}.",
        f"Open it with --environment {name}, with DAGSTER_VERSIONED_ENVIRONMENT={name}, or "
        f'ProjectResource(environment="{name}").',
    )


def ls(session: Session) -> None:
    """List the environments of the project."""
    from dagster_versioned.cli.documents import print_json
    from dagster_versioned.tables.environment.registry import environments_of

    forks = environments_of(session.production().store)
    if session.json:
        print_json({"environments": [_json_of(fork) for fork in forks]})
    elif not forks:
        say("There is no environment.")
    else:
        show_table(
            ("environment", "forked", "by", "tables"),
            [(fork.environment, _moment(fork), fork.by or "", len(fork.tables)) for fork in forks],
            right=("tables",),
        )


def show(session: Session, name: Name) -> None:
    """Show what an environment began with, and what was written in it since."""
    from dagster_versioned.cli.documents import print_json
    from dagster_versioned.tables.environment.registry import document_of
    from dagster_versioned.tables.environments import written_in

    document, _ = document_of(session.production(), name)
    is_unfinished = document.next is not None or document.previous is not None
    project = session.production().in_environment(name)
    environment = project.environment
    assert environment is not None
    written = written_in(project)
    size = sum(info.size for info in environment.own_data().list())
    if session.json:
        print_json(
            {
                **_json_of(environment.fork),
                "size_bytes": size,
                "unfinished_rebase": is_unfinished,
                "written": [_written_json(one) for one in written],
            }
        )
        return
    show_fields(
        [
            ("environment", name),
            ("project", project.name),
            ("forked", _moment(environment.fork)),
            ("by", environment.fork.by or ""),
            ("tables", len(environment.fork.tables)),
            ("its own bytes", human_size(size)),
            ("location", project.store.uri),
        ]
    )
    if is_unfinished:
        say(f"A rebase of it is unfinished. Run it again: `dagster-versioned env rebase {name} --apply`.")
    if not written:
        say("Nothing was written in it.")
        return
    show_table(
        ("table", "at the fork", "now", "commits"),
        [
            (
                one.table,
                _short(one.before and one.before.metadata_sha),
                _short(one.after and one.after.metadata_sha),
                one.commits,
            )
            for one in written
        ],
        right=("commits",),
    )


def diff(
    session: Session,
    name: Name,
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key", metavar="TABLE=A,B", help="Columns that identify a row of a table, to compare rows; repeatable."
        ),
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option("--max-bytes", min=0, help="Read no rows of versions that are larger together.")
    ] = None,
    statistics: Annotated[
        bool, typer.Option("--statistics", help="Read all that differs, for statistics of columns: means, shares, NaN.")
    ] = False,
    values: Annotated[
        bool, typer.Option("--values", help="--statistics with minimum, maximum and exact means: values of rows.")
    ] = False,
    engine: Annotated[
        Engine, typer.Option("--engine", help="What reads rows; auto is arrow, and spark from 1 GiB on.")
    ] = Engine.AUTO,
    notation: Annotated[
        Notation, typer.Option("--format", "-f", help="Text, or Markdown for a pull request.")
    ] = Notation.TEXT,
) -> None:
    """Say what an environment does to the data: rows, columns, nulls, and what was built from it. Shows no values.

    With --key, which rows differ, and statistics of the table's columns; with --statistics, those of all tables.
    """
    from dagster_versioned.cli.documents import print_json
    from dagster_versioned.cli.environment_diff import (
        COLUMNS,
        STATISTICS,
        difference_document,
        end_lines,
        markdown_of,
        statistics_rows,
        text_rows,
    )
    from dagster_versioned.tables.downstream import downstream
    from dagster_versioned.tables.environment_diff import Reading, differences

    if session.json and notation is not Notation.TEXT:
        raise InvalidInput("--json and --format are two notations. Nothing was compared. Give one of them.")
    project = session.production().in_environment(name)
    environment = project.environment
    assert environment is not None
    by = None if engine is Engine.AUTO else engine.value
    found = differences(project, Reading(_keys(key or ()), statistics or values, max_bytes, by))
    below = downstream(project, {(one.table, one.partition) for one in found})
    unchanged = len({*environment.fork.tables, *(one.table for one in found)}) - len({one.table for one in found})
    if session.json:
        print_json(
            {
                "environment": name,
                "differences": [difference_document(one, values=values) for one in found],
                "downstream": [{"table": str(table), "partition": partition} for table, partition in below],
            }
        )
    elif notation is Notation.MARKDOWN:
        say(*markdown_of(environment.fork, found, below, unchanged, values=values))
    elif not found:
        say(f"Nothing is different in {name}.")
    else:
        show_table(COLUMNS, text_rows(found))
        if rows := statistics_rows(found, values=values):
            say("")
            show_table(STATISTICS, rows)
            say("")
        say(f"{counted(unchanged, 'table')} as at the fork.", *end_lines(found, below, values=values))


def _keys(given: Iterable[str]) -> dict[str, list[str]]:
    keys: dict[str, list[str]] = {}
    for one in given:
        table, equals, columns = one.partition("=")
        if not (table and equals and columns):
            raise InvalidInput(f"--key is TABLE=COLUMN,COLUMN, not {one!a:.100}. Nothing was compared.")
        keys[table] = columns.split(",")
    return keys


def export(
    session: Session,
    name: Name,
    to: Annotated[str, typer.Argument(metavar="LOCATION", help="An empty place, or that of a run that died.")],
    table: Annotated[
        list[str] | None,
        typer.Option("--table", metavar="TABLE", help="This table, written in it or not; repeatable."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All tables, also those that production has alike.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Copy what was written in an environment to a project of its own, for every reader. Run again, it goes on."""
    from dagster_versioned.cli.documents import print_json
    from dagster_versioned.tables.export import export_environment

    if every and table:
        raise InvalidInput("--all and --table are two choices of tables. Nothing was written. Give one of them.")
    project = session.production()
    where = parsed_place(to)
    chosen = [str(table_of(project, one).name) for one in table or ()]
    with progress(f"Exporting {name}", quiet=session.quiet) as advance:
        report = export_environment(
            project,
            name,
            where,
            tables=chosen or ("all" if every else "written"),
            dry_run=dry_run,
            by=project.author,
            open_store=opener(session),
            progress=advance,
        )
    if session.json:
        print_json(
            {
                "environment": name,
                "location": report.location,
                "applied": not report.dry_run,
                "size_bytes": report.size_bytes,
                "tables": [{**asdict(one), "table": str(one.table)} for one in report.tables],
                "left_out": [str(one) for one in report.left_out],
            }
        )
        return
    does = "would be" if report.dry_run else "are"
    what = f"{counted(len(report.tables), 'table')} of {name}, {human_size(report.size_bytes)},"
    say(f"{what} {does} at {report.location}.")
    show_table(
        ("table", "log version", "files", "size"),
        [(one.table, one.log_version, one.files, human_size(one.size_bytes)) for one in report.tables],
        right=("log version", "files", "size"),
    )
    if report.left_out:
        say(f"{counted(len(report.left_out), 'table')} left out: --all exports all of the environment.")
    if report.dry_run:
        session.note("Nothing was written: this is a dry run. Do it by leaving --dry-run out.")


def rebase(session: Session, name: Name, apply: Apply = False) -> ExitCode | None:
    """Have an environment go on from production as it is now, with the versions of its own that are current there.

    A dry run unless --apply is given. Exit code 1: some of the environment is left, to be computed anew in it.
    """
    from dagster_versioned.cli.documents import print_json
    from dagster_versioned.tables.rebase import rebase_environment

    project = session.production()
    report = rebase_environment(project, name, dry_run=not apply, by=project.author)
    if session.json:
        print_json(
            {
                "environment": name,
                "dry_run": report.dry_run,
                "forked": report.forked,
                "kept": [{**asdict(cell), "table": str(cell.table)} for cell in report.kept],
                "left": [{**asdict(cell), "table": str(cell.table)} for cell in report.left],
            }
        )
        return ExitCode.FINDINGS if report.left else None
    goes = "would go" if report.dry_run else "goes"
    are = "would be" if report.dry_run else "is" if len(report.kept) == 1 else "are"
    say(
        f"{name} {goes} on from production of {_minutes(report.forked)}. Kept {are} "
        f"{counted(len(report.kept), 'version')} of its own, and {len(report.left)} left."
    )
    if report.kept:
        show_table(
            ("table", "production has", "kept is", "rows"),
            [(_cell(one.table, one.partition), _short(one.before), _short(one.after), one.nrow) for one in report.kept],
            right=("rows",),
        )
    _show_left(report.left)
    if report.dry_run:
        say("--apply does it.")
    return ExitCode.FINDINGS if report.left else None


def drop(session: Session, name: Name, apply: Apply = False) -> None:
    """Delete an environment, and what was written in it; production is untouched. A dry run unless --apply is given."""
    from dagster_versioned.cli.documents import print_json
    from dagster_versioned.tables.environments import drop_environment, size_of

    project = session.production()
    size = drop_environment(project, name) if apply else size_of(project, name)
    if session.json:
        print_json({"environment": name, "dropped": apply, "size_bytes": size})
    elif apply:
        say(f"The environment {name} is dropped: {human_size(size)} are free.")
    else:
        say(f"The environment {name} would be dropped: {human_size(size)} would be free. --apply does it.")


def promote(
    session: Session,
    name: Name,
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
                    _cell(one.table, one.partition),
                    _short(one.before),
                    _short(one.after),
                    one.nrow,
                    human_size(one.size_bytes),
                )
                for one in report.promoted
            ],
            right=("rows", "size"),
        )
    _show_left(report.left)
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


def _show_left(cells: "Sequence[LeftCell]") -> None:
    if cells:
        show_table(("left", "why"), [(_cell(one.table, one.partition), one.why) for one in cells])


def _cell(table: str, partition: str | None) -> str:
    return table if partition is None else f"{table}[{partition}]"


def _json_of(fork: "Fork") -> dict[str, Any]:
    return {
        "environment": fork.environment,
        "project": fork.project,
        "created": fork.created,
        "by": fork.by,
        "tables": {str(name): table.log_version for name, table in sorted(fork.tables.items())},
    }


def _written_json(one: "Written") -> dict[str, Any]:
    return {
        "table": str(one.table),
        "before": one.before and one.before.metadata_sha,
        "after": one.after and one.after.metadata_sha,
        "commits": one.commits,
    }


def _short(sha: str | None) -> str:
    return "" if sha is None else sha[:_SHORT]


def _moment(fork: "Fork") -> str:
    return _minutes(fork.created)


def _minutes(created: str) -> str:
    return f"{datetime.fromisoformat(created):%Y-%m-%d %H:%M}Z"
