"""The verbs that make another table of one: dropping, restoring, renaming, repartitioning; dry runs unless asked."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from dagster_versioned.cli.arguments import Apply, TableArgument, Why, argument, option
from dagster_versioned.cli.commands import Commands
from dagster_versioned.cli.documents import version_name
from dagster_versioned.cli.session import Session
from dagster_versioned.cli.terminal import counted, human_size, progress
from dagster_versioned.errors import InvalidInput

if TYPE_CHECKING:
    from dagster_versioned.tables.partitioning import Partitioning
    from dagster_versioned.tables.repartition import Same
    from dagster_versioned.tables.write.drop import DropReport

command = Commands("Reshape")
_DRY = "Nothing was changed: this is a dry run. Do it with --apply."


@command("rename sales raw/sales", "rename sales raw/sales --apply")
def rename(
    session: Session,
    table: TableArgument,
    name: Annotated[str, argument("NAME", "The new name, or its asset key with slashes.")],
    apply: Apply = False,
) -> None:
    """Give a table another name and asset key, with its history. A dry run unless --apply is given.

    Its files are copied within the store. Lineage, pins and readers by the old name find it; writers by it are refused.
    Run again, it goes on where it died.
    """
    subject = session.table(table)
    with progress(f"Renaming {subject.name}", quiet=session.quiet):
        to = name.split("/") if "/" in name else name
        report = subject.rename(to, dry_run=not apply, by=session.author)
    renamed = "renamed" if apply else "would be renamed"
    size = f"{counted(report.files, 'file')} ({human_size(report.size_bytes)})"
    session.show(
        {
            "table": report.source,
            "applied": apply,
            "name": report.target,
            "files": report.files,
            "size_bytes": report.size_bytes,
        },
        f"{report.source}: {renamed} to {report.target}; {size} to copy",
        note=None if apply else _DRY,
    )


@command("rename-project NYC_TRIPS --apply")
def rename_project(
    session: Session,
    name: Annotated[str, argument("NAME", "The project's new name.")],
    apply: Apply = False,
) -> None:
    """Give the project another name. A dry run unless --apply is given.

    Lineage that names it as before is followed. Give the new name to its `ProjectResource`: whoever writes under the
    old one is refused.
    """
    project = session.open()
    before, tables = project.name, len(project.tables())
    if apply:
        project.rename(name)
    renamed = "renamed" if apply else "would be renamed"
    session.show(
        {"project": before, "applied": apply, "name": name, "tables": tables},
        f"{before}: {renamed} to {name}, with {counted(tables, 'table')}",
        note=None if apply else _DRY,
    )


@command("drop-partition sales 2026-10-01", "drop-partition sales 2026-10-01 --why 'wrong feed' --apply")
def drop_partition(
    session: Session,
    table: TableArgument,
    partitions: Annotated[list[str], argument("KEY", "Partition keys.")],
    why: Why = None,
    apply: Apply = False,
) -> None:
    """Take partitions out of a table, in one commit. A dry run unless --apply is given.

    Their bytes are kept until they are expired; `revert` to a version of one brings it back.
    """
    subject = session.table(table)
    report = subject.drop_partitions(partitions, dry_run=not apply, by=session.author, why=why)
    _show_drop(session, str(subject.name), report, counted(len(report.partitions), "partition"))


@command("drop sales", "drop sales --why 'nobody reads it' --apply")
def drop(session: Session, table: TableArgument, why: Why = None, apply: Apply = False) -> None:
    """Drop a table, in one commit. A dry run unless --apply is given.

    Its bytes are kept until they are expired, and `restore` takes it back until then. The next write to the name begins
    another table in the same log.
    """
    subject = session.table(table)
    report = subject.drop(dry_run=not apply, by=session.author, why=why)
    _show_drop(session, str(subject.name), report, "the table")


@command("restore sales")
def restore(session: Session, table: TableArgument) -> None:
    """Take the drop of a table back."""
    subject = session.table(table)
    restored = subject.restore()
    done = "restored" if restored else "it was not dropped"
    session.show({"table": subject.name, "restored": restored}, f"{subject.name}: {done}")


@command(
    "repartition sales --by monthly --column day",
    "repartition sales --by weekly --column sold_at --timezone Europe/Berlin --apply",
    "repartition sales --by names --column region --apply",
    "repartition sales --by monthly,names --column day,region --dimension time,place --apply",
    "repartition sales --by none --apply",
    "repartition sales --by same --type code=string --apply",
)
def repartition(
    session: Session,
    table: TableArgument,
    by: Annotated[
        str,
        option(
            "--by",
            "KIND",
            "hourly, daily, weekly, monthly, names, none, same, or a cron schedule; with commas for several "
            "dimensions.",
        ),
    ],
    column: Annotated[str | None, option("--column", "NAME", "What a row's key is read from; one a dimension.")] = None,
    dimension: Annotated[str | None, option("--dimension", "NAME", "The dimensions' names, with commas.")] = None,
    key_format: Annotated[str | None, option("--format", "FORMAT", "How keys name a window: %Y-%m-%d.")] = None,
    timezone: Annotated[str, option("--timezone", "ZONE", "That of the windows.")] = "UTC",
    types: Annotated[list[str] | None, option("--type", "NAME=TYPE", "A column's new type: code=string.")] = None,
    apply: Apply = False,
) -> None:
    """Give the rows that are there other partitions, in one commit. A dry run unless --apply is given.

    Give the asset the same definition. Versions of before can still be read; all rows are held in memory meanwhile.
    """
    partitioning, columns = _definition(by, column, dimension, key_format, timezone)
    retyped = _types(types or [])
    subject = session.table(table)
    with progress(f"Repartitioning {subject.name}", quiet=session.quiet):
        report = subject.repartition(partitioning, columns, types=retyped, dry_run=not apply)
    done = "made" if apply else "would be made"
    into = "a whole table" if None in report.rows else counted(len(report.rows), "partition")
    into += f", {partitioning}" if partitioning not in (None, "same") else ""
    session.show(
        {
            "table": subject.name,
            "applied": apply,
            "before": len(report.before),
            "partitions": [{"partition": key, "rows": count} for key, count in report.rows.items()],
        },
        f"{subject.name}: {into}, of {sum(report.rows.values())} rows {done}",
        note=None if apply else _DRY,
    )


def _types(given: list[str]) -> dict[str, str]:
    types = {name: text for name, equals, text in (each.rpartition("=") for each in given) if equals}
    if len(types) < len(given):
        raise InvalidInput(f"--type is NAME=TYPE, each column once, and not {given}. Nothing was changed.")
    return types


def _definition(
    by: str, column: str | None, dimension: str | None, key_format: str | None, timezone: str
) -> "tuple[Partitioning | Same | None, str | Mapping[str, str] | None]":
    from dagster_versioned.tables.partitioning import Partitioning

    def windows(kind: str) -> Partitioning:
        if kind == "names":
            return Partitioning.names()
        return Partitioning.time_windows(kind, key_format=key_format, timezone=timezone)

    if dimension is None:
        if by == "same":
            return "same", None
        return (None, None) if by == "none" else (windows(by), column)
    names, kinds, columns = (text.split(",") for text in (dimension, by, column or ""))
    if not len(names) == len(kinds) == len(columns):
        raise InvalidInput(
            f"--dimension names {len(names)}, --by {len(kinds)} and --column {len(columns)}: give one of each for "
            "every dimension. Nothing was changed."
        )
    kinds_by_name = {name: windows(kind) for name, kind in zip(names, kinds, strict=True)}
    return Partitioning.multi(kinds_by_name), dict(zip(names, columns, strict=True))


def _show_drop(session: Session, table: str, report: "DropReport", what: str) -> None:
    dropped = "would be dropped" if report.dry_run else "dropped"
    session.show(
        {
            "table": table,
            "applied": not report.dry_run,
            "versions": [version_name(version) for version in report.versions],
            "size_bytes": report.size_bytes,
        },
        f"{table}: {what} {dropped}; {human_size(report.size_bytes)} are kept until they are expired",
        note=_DRY if report.dry_run else None,
    )
