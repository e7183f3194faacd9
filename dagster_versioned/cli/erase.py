"""Erasing rows from every version that is kept. Heavy imports wait until the verb runs."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dagster_versioned.cli.arguments import Apply, SomeTables, Why, flag, option
from dagster_versioned.cli.commands import Commands
from dagster_versioned.cli.session import Session
from dagster_versioned.cli.terminal import counted, progress
from dagster_versioned.errors import InvalidInput

if TYPE_CHECKING:
    from dagster_versioned.projects.erase import ErasedTable

command = Commands("Maintain")


@command(
    "erase visits patients --where 'patient_id = 17' --why 'request 2041'",
    "erase patients visits --where-file condition.sql --key patient_id --why 'request 2041' --apply",
)
def erase(
    session: Session,
    tables: SomeTables,
    where: Annotated[
        str | None, option("--where", "SQL", "The rows: those of which this is true. A shell remembers what it says.")
    ] = None,
    where_file: Annotated[
        Path | None, option("--where-file", "FILE", "A file that has the condition; yours to delete.")
    ] = None,
    former: Annotated[
        list[str] | None, option("--former", "COLUMN=OLD", "What older versions called a column of the condition.")
    ] = None,
    skip_lacking: Annotated[
        bool, flag("--skip-lacking", "Versions that lack a column of the condition have none of the rows.")
    ] = False,
    set_null: Annotated[
        list[str] | None,
        option("--set-null", "COLUMN", "The rows stay, and lose what they have in this column. Repeatable."),
    ] = None,
    key: Annotated[
        list[str] | None,
        option(
            "--key",
            "COLUMN",
            "Rows of all the tables with the same in this column go, too; of several, with the same in all.",
        ),
    ] = None,
    downstream: Annotated[
        bool, flag("--downstream", "Also from tables computed from these that have the columns of the condition.")
    ] = False,
    all_rows: Annotated[bool, flag("--all-rows", "Also where the condition is true of every row.")] = False,
    why: Why = None,
    apply: Apply = False,
) -> None:
    """Erase rows from every kept version of tables; the versions keep their names. A dry run unless --apply is given.

    The heads become new versions. What was erased is in no file of the tables any more, and no commit brings these
    files back. The log loses what it told of them, such as smallest and largest values.
    """
    if (where is None) == (where_file is None):
        raise InvalidInput("Say which rows, by --where SQL or by --where-file FILE. Nothing was erased.")
    if not why:
        raise InvalidInput("An erasure needs a reason, which its record keeps: --why '…'. Nothing was erased.")
    from dagster_versioned.projects.erase import Condition

    condition = Condition(
        Condition.text_in(where_file) if where_file is not None else where or "",
        _former(former or ()),
        skip_lacking,
        set_null or (),
        key or (),
    )
    with progress("Erasing" if apply else "Searching", quiet=session.quiet) as advance:
        report = session.open().erase(
            condition,
            tables,
            why=why,
            by=session.author,
            dry_run=not apply,
            all_rows=all_rows,
            downstream=downstream,
            progress=advance,
        )
    done = "erased" if apply else "would be erased"
    session.show(
        {"applied": apply, "epochs": report.epochs, "tables": report.tables, "downstream": report.downstream},
        *(
            f"{table.name}: {counted(table.rows, 'row')} in {counted(table.parts, 'part')} of"
            f" {counted(table.versions, 'version')} {done}"
            for table in report.tables
        ),
        *(line for table in report.tables for line in _left(table)),
        f"Computed from these, and not looked into: {', '.join(report.downstream)}" if report.downstream else None,
        note=None if apply else "Nothing was changed. Give --apply to erase them.",
    )


def _former(given: Iterable[str]) -> Mapping[str, str]:
    names: dict[str, str] = {}
    for text in given:
        column, equals, old = text.partition("=")
        if not (column and equals and old):
            raise InvalidInput(f"--former is COLUMN=OLD, not {text!a:.100}. Nothing was erased.")
        names[column] = old
    return names


def _left(table: "ErasedTable") -> Iterator[str]:
    """What an erasure does not reach, in words."""
    if table.unclaimed:
        files = counted(table.unclaimed, "file")
        yield f"{table.name}: in {files} that no version needs nobody looked; vacuum with --min-age deletes them"
