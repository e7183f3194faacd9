"""The verbs for environments: a project whose tables go on elsewhere. Heavy imports wait until one runs."""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

from dagster_versioned.cli.arguments import Apply, EnvironmentName, argument, flag, option
from dagster_versioned.cli.commands import Commands
from dagster_versioned.cli.comment import Notation
from dagster_versioned.cli.developer import DryRun, opener, parsed_place
from dagster_versioned.cli.failures import ExitCode
from dagster_versioned.cli.promote import cell_name, left_table
from dagster_versioned.cli.session import Session, table_of
from dagster_versioned.cli.terminal import Fields, Table, counted, human_size, minute, progress, say, short
from dagster_versioned.errors import InvalidInput

if TYPE_CHECKING:
    from dagster_versioned.branches.environments import WrittenTable
    from dagster_versioned.tables.environment.fork import Fork

command = Commands("Environments")


class Engine(StrEnum):
    """What reads the rows that are compared."""

    AUTO = "auto"
    ARROW = "arrow"
    SPARK = "spark"


@command("env create pr-142", "env create pr-142 --if-absent")
def create(
    session: Session,
    name: EnvironmentName,
    if_absent: Annotated[bool, flag("--if-absent", "Leave one of that name as it is, which else is an error.")] = False,
) -> None:
    """Fork every table of the project at this moment, under a name. Copies no row."""
    from dagster_versioned.branches.environments import create_environment
    from dagster_versioned.tables.environment.registry import names_of, read_environment

    project = session.production()
    if if_absent and name in names_of(project.store):
        fork, done = read_environment(project.store, name), "is there already"
    else:
        fork, done = create_environment(project, name, by=project.author), "is ready"
    session.show(
        _json_of(fork),
        f"The environment {name} of {fork.project} {done}: {counted(len(fork.tables), 'table')} of {minute(fork.at)}.",
        f"Open it with --environment {name}, with DAGSTER_VERSIONED_ENVIRONMENT={name}, or "
        f'ProjectResource(environment="{name}").',
    )


@command("env ls", "env ls --json")
def ls(session: Session) -> None:
    """List the environments of the project."""
    from dagster_versioned.tables.environment.registry import environments_of

    forks = environments_of(session.production().store)
    listed = Table(
        ("environment", "forked", "by", "tables"),
        [(fork.environment, minute(fork.at), fork.by, len(fork.tables)) for fork in forks],
        right=("tables",),
    )
    document = {"environments": [_json_of(fork) for fork in forks]}
    session.show(document, listed if forks else "There is no environment.")


@command("env show pr-142", "env show pr-142 --json")
def show(session: Session, name: EnvironmentName) -> None:
    """Show what an environment began with, and what was written in it since."""
    from dagster_versioned.branches.environments import written_in
    from dagster_versioned.tables.environment.registry import document_of

    production = session.production()
    document, _ = document_of(production.store, production.name, name)
    is_unfinished = document.next is not None or document.previous is not None
    project = production.in_environment(name)
    environment = project.environment
    assert environment is not None
    written = written_in(project)
    size = sum(info.size for info in environment.own_data().list())
    fork = environment.fork
    rebase_again = f"A rebase of it is unfinished. Run it again: `dagster-versioned env rebase {name} --apply`."
    session.show(
        {
            **_json_of(fork),
            "size_bytes": size,
            "unfinished_rebase": is_unfinished,
            "written": [_written_json(each) for each in written],
        },
        Fields(
            [
                ("environment", name),
                ("project", project.name),
                ("forked", minute(fork.at)),
                ("by", fork.by or ""),
                ("tables", len(fork.tables)),
                ("its own bytes", human_size(size)),
                ("location", project.store.uri),
            ]
        ),
        rebase_again if is_unfinished else None,
        _written_table(written) if written else "Nothing was written in it.",
    )


@command("env diff pr-142", "env diff pr-142 --key flights=id --format markdown", "env diff pr-142 --values")
def diff(
    session: Session,
    name: EnvironmentName,
    key: Annotated[
        list[str] | None,
        option("--key", "TABLE=A,B", "Columns that identify a row of a table, to compare rows; repeatable."),
    ] = None,
    max_bytes: Annotated[
        int | None, flag("--max-bytes", "Read no rows of versions that are larger together.", min=0)
    ] = None,
    statistics: Annotated[
        bool, flag("--statistics", "Read all that differs, for statistics of columns: means, shares, NaN.")
    ] = False,
    values: Annotated[
        bool, flag("--values", "--statistics with minimum, maximum and exact means: values of rows.")
    ] = False,
    engine: Annotated[
        Engine, flag("--engine", "What reads rows; auto is arrow, and spark from 1 GiB on.")
    ] = Engine.AUTO,
    notation: Annotated[Notation, flag("--format", "-f", "Text, or Markdown for a pull request.")] = Notation.TEXT,
) -> None:
    """Say what an environment does to the data: rows, columns, nulls, and what was built from it. Shows no values.

    With --key, which rows differ, and statistics of the table's columns; with --statistics, those of all tables.
    """
    from dagster_versioned.branches.diff import DiffOptions, differences
    from dagster_versioned.cli.environment_diff import difference_document, difference_parts, markdown_of
    from dagster_versioned.projects.downstream import downstream

    if session.json and notation is not Notation.TEXT:
        raise InvalidInput("--json and --format are two notations. Nothing was compared. Give one of them.")
    project = session.production().in_environment(name)
    environment = project.environment
    assert environment is not None
    by = None if engine is Engine.AUTO else engine.value
    found = differences(project, DiffOptions(_keys(key or ()), statistics or values, max_bytes, by))
    below = downstream(project, {(each.table, each.partition) for each in found})
    different = {each.table for each in found}
    unchanged = len({*environment.fork.tables} - different)
    if notation is Notation.MARKDOWN:
        say(*markdown_of(environment.fork, found, below, unchanged, values=values))
        return
    document = {
        "environment": name,
        "differences": [difference_document(each, values=values) for each in found],
        "downstream": [{"table": table, "partition": partition} for table, partition in below],
    }
    parts = difference_parts(found, below, unchanged, values=values)
    session.show(document, parts if found else f"Nothing is different in {name}.")


def _keys(given: Iterable[str]) -> dict[str, list[str]]:
    keys: dict[str, list[str]] = {}
    for text in given:
        table, equals, columns = text.partition("=")
        if not (table and equals and columns):
            raise InvalidInput(f"--key is TABLE=COLUMN,COLUMN, not {text!a:.100}. Nothing was compared.")
        keys[table] = columns.split(",")
    return keys


@command("env export pr-142 s3://scratch/pr-142", "env export pr-142 exported --table flights --dry-run")
def export(
    session: Session,
    name: EnvironmentName,
    to: Annotated[str, argument("LOCATION", "An empty place, or that of a run that died.")],
    table: Annotated[
        list[str] | None, option("--table", "TABLE", "This table, written in it or not; repeatable.")
    ] = None,
    every: Annotated[bool, flag("--all", "All tables, also those that production has alike.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Copy what was written in an environment to a project of its own, for every reader. Run again, it goes on."""
    from dagster_versioned.branches.export import export_environment

    if every and table:
        raise InvalidInput("--all and --table are two choices of tables. Nothing was written. Give one of them.")
    project = session.production()
    where = parsed_place(to)
    chosen = [str(table_of(project, each).name) for each in table or ()]
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
    does = "would be" if report.dry_run else "are"
    what = f"{counted(len(report.tables), 'table')} of {name}, {human_size(report.size_bytes)},"
    left_out = f"{counted(len(report.left_out), 'table')} left out: --all exports all of the environment."
    session.show(
        {
            "environment": name,
            "location": report.location,
            "applied": not report.dry_run,
            "size_bytes": report.size_bytes,
            "tables": report.tables,
            "left_out": report.left_out,
        },
        f"{what} {does} at {report.location}.",
        Table(
            ("table", "log version", "files", "size"),
            [(each.table, each.log_version, each.files, human_size(each.size_bytes)) for each in report.tables],
            right=("log version", "files", "size"),
        ),
        left_out if report.left_out else None,
        note="Nothing was written: this is a dry run. Do it by leaving --dry-run out." if report.dry_run else None,
    )


@command("env rebase pr-142", "env rebase pr-142 --apply")
def rebase(session: Session, name: EnvironmentName, apply: Apply = False) -> ExitCode | None:
    """Have an environment go on from production as it is now, with the versions of its own that are current there.

    A dry run unless --apply is given. Exit code 1: some of the environment is left, to be computed anew in it.
    """
    from dagster_versioned.branches.rebase import rebase_environment

    project = session.production()
    report = rebase_environment(project, name, dry_run=not apply, by=project.author)
    goes = "would go" if report.dry_run else "goes"
    are = "would be" if report.dry_run else "is" if len(report.kept) == 1 else "are"
    kept = Table(
        ("table", "production has", "kept is", "rows"),
        [(cell_name(c.table, c.partition), short(c.before), short(c.after), c.nrow) for c in report.kept],
        right=("rows",),
    )
    session.show(
        {
            "environment": name,
            "dry_run": report.dry_run,
            "forked": report.forked,
            "kept": report.kept,
            "left": report.left,
        },
        f"{name} {goes} on from production of {minute(report.forked)}. Kept {are} "
        f"{counted(len(report.kept), 'version')} of its own, and {len(report.left)} left.",
        kept if report.kept else None,
        left_table(report.left) if report.left else None,
        "--apply does it." if report.dry_run else None,
    )
    return ExitCode.FINDINGS if report.left else None


@command("env drop pr-142", "env drop pr-142 --apply")
def drop(session: Session, name: EnvironmentName, apply: Apply = False) -> None:
    """Delete an environment, and what was written in it; production is untouched. A dry run unless --apply is given."""
    from dagster_versioned.branches.environments import drop_environment, size_of

    project = session.production()
    size = drop_environment(project, name) if apply else size_of(project, name)
    session.show(
        {"environment": name, "dropped": apply, "size_bytes": size},
        f"The environment {name} is dropped: {human_size(size)} are free."
        if apply
        else f"The environment {name} would be dropped: {human_size(size)} would be free. --apply does it.",
    )


def _json_of(fork: "Fork") -> dict[str, Any]:
    return {
        "environment": fork.environment,
        "project": fork.project,
        "created": fork.created,
        "by": fork.by,
        "tables": {str(name): table.log_version for name, table in sorted(fork.tables.items())},
    }


def _written_json(written: "WrittenTable") -> dict[str, Any]:
    return {
        "table": written.table,
        "before": written.before and written.before.metadata_sha,
        "after": written.after and written.after.metadata_sha,
        "commits": written.commits,
    }


def _written_table(written: "Sequence[WrittenTable]") -> Table:
    rows = [_written_json(each).values() for each in written]
    return Table(
        ("table", "at the fork", "now", "commits"),
        [(table, short(before), short(after), commits) for table, before, after, commits in rows],
        right=("commits",),
    )
