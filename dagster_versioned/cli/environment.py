"""The verbs for environments: a project whose tables go on elsewhere. Heavy imports wait until one runs."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dagster_versioned.cli.arguments import Apply
from dagster_versioned.cli.comment import Notation
from dagster_versioned.cli.failures import ExitCode
from dagster_versioned.cli.session import Session, verb
from dagster_versioned.cli.terminal import counted, human_size, say, show_fields, show_table
from dagster_versioned.errors import InvalidInput

if TYPE_CHECKING:
    from dagster_versioned.tables.environment.fork import Fork
    from dagster_versioned.tables.environments import Written

PANEL = "Environments"
_SHORT = 8


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
        examples=["env diff pr-142", "env diff pr-142 --key flights=id --format markdown"],
    )(diff)
    verb(env, panel=PANEL, examples=["env drop pr-142", "env drop pr-142 --apply"])(drop)
    app.add_typer(env, name="env", rich_help_panel=PANEL)
    verb(
        app,
        panel=PANEL,
        examples=["promote pr-142", "promote pr-142 --apply", "promote pr-142 --accept small_table --apply"],
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
    from dagster_versioned.tables.environments import written_in

    project = session.production().in_environment(name)
    environment = project.environment
    assert environment is not None
    written = written_in(project)
    size = sum(info.size for info in environment.own_data().list())
    if session.json:
        print_json(
            {**_json_of(environment.fork), "size_bytes": size, "written": [_written_json(one) for one in written]}
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
        int | None, typer.Option("--max-bytes", min=0, help="Compare no rows of versions that are larger together.")
    ] = None,
    notation: Annotated[
        Notation, typer.Option("--format", "-f", help="Text, or Markdown for a pull request.")
    ] = Notation.TEXT,
) -> None:
    """Say what an environment does to the data: rows, columns, nulls; with --key which rows. Shows no values."""
    from dagster_versioned.cli.documents import print_json
    from dagster_versioned.cli.environment_diff import difference_document, markdown_of, text_rows
    from dagster_versioned.tables.environment_diff import differences

    if session.json and notation is not Notation.TEXT:
        raise InvalidInput("--json and --format are two notations. Nothing was compared. Give one of them.")
    project = session.production().in_environment(name)
    environment = project.environment
    assert environment is not None
    found = differences(project, _keys(key or ()), max_bytes=max_bytes)
    unchanged = len({*environment.fork.tables, *(one.table for one in found)}) - len({one.table for one in found})
    if session.json:
        print_json({"environment": name, "differences": [difference_document(one) for one in found]})
    elif notation is Notation.MARKDOWN:
        say(*markdown_of(environment.fork, found, unchanged))
    elif not found:
        say(f"Nothing is different in {name}.")
    else:
        show_table(("table", "rows", "by key", "columns", "nulls"), text_rows(found))
        say(f"{counted(unchanged, 'table')} as at the fork.")


def _keys(given: Iterable[str]) -> dict[str, list[str]]:
    keys: dict[str, list[str]] = {}
    for one in given:
        table, equals, columns = one.partition("=")
        if not (table and equals and columns):
            raise InvalidInput(f"--key is TABLE=COLUMN,COLUMN, not {one!a:.100}. Nothing was compared.")
        keys[table] = columns.split(",")
    return keys


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
        typer.Option("--accept", metavar="TABLE", help="Promote it without a code version, or with far fewer rows."),
    ] = None,
    apply: Apply = False,
    with_instance: Annotated[
        bool,
        typer.Option("--instance", help="Tell the Dagster instance of DAGSTER_HOME, production's, what it did."),
    ] = False,
) -> ExitCode | None:
    """Make an environment's versions production's, as far as they are current there; computes nothing.

    A dry run unless --apply is given. Exit code 1: some of the environment is left for production to compute.
    """
    from dagster_versioned.cli.documents import print_json
    from dagster_versioned.tables.promote import promote as promoted

    project = session.production()
    instance = None
    if with_instance and apply:
        from dagster_versioned.assets.code_location import instance_of_home

        instance = instance_of_home()  # before anything is done
    report = promoted(project, name, dry_run=not apply, accept=accept or (), by=project.author)
    if instance is not None:
        from dagster_versioned.io_managers.promotion_events import report_promotion

        session.note(f"Reported to Dagster: {counted(report_promotion(instance, project, report), 'version')}.")
    if session.json:
        print_json(
            {
                "environment": name,
                "dry_run": report.dry_run,
                "size_bytes": report.size_bytes,
                "promoted": [{**asdict(cell), "table": str(cell.table)} for cell in report.promoted],
                "left": [{**asdict(cell), "table": str(cell.table)} for cell in report.left],
            }
        )
        return ExitCode.FINDINGS if report.left else None
    does = "would become" if report.dry_run else "became"
    say(f"{counted(len(report.promoted), 'version')} of {name} {does} production's, {len(report.left)} are left to it.")
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
    if report.left:
        show_table(("left", "why"), [(_cell(one.table, one.partition), one.why) for one in report.left])
    if report.dry_run and report.promoted:
        say("--apply does it.")
    return ExitCode.FINDINGS if report.left else None


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
    return f"{fork.at:%Y-%m-%d %H:%M}Z"
