"""The verb that asks a question of histories of events, in SQL. Heavy imports wait until it runs."""

import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dagster_versioned.cli.arguments import PREVIEW_ROWS, Output, RowLimit
from dagster_versioned.cli.chain_arguments import dataset_table, history
from dagster_versioned.cli.commands import Commands
from dagster_versioned.cli.session import Session
from dagster_versioned.cli.span import parse_moment
from dagster_versioned.cli.terminal import human_size, plain, say
from dagster_versioned.errors import InvalidInput, InvalidName

if TYPE_CHECKING:
    from dagster_versioned.tables.table import VersionedTable

command = Commands("Histories of events")


class Notation(StrEnum):
    """What rows are written in. Enumerations, since Typer knows no literals before 0.19."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


class Engine(StrEnum):
    """What runs the query."""

    DUCKDB = "duckdb"
    SPARK = "spark"


class Projection(StrEnum):
    """What the query sees of a history."""

    CURRENT = "current"
    EVENTS = "events"


@command(
    "odf query 'SELECT count(*) FROM cities'",
    "odf query 'SELECT * FROM \"org.example.cities\"' --as-of 2020-01-01 --format csv",
    "odf query 'SELECT op, count(*) FROM cities GROUP BY op' --projection events --engine spark",
)
def query(
    session: Session,
    sql: Annotated[
        str, typer.Argument(metavar="SQL", help="One SELECT over tables or datasets; - reads it from stdin.")
    ],
    engine: Annotated[Engine, typer.Option("--engine", help="Whose SQL it is; Spark needs Java.")] = Engine.DUCKDB,
    projection: Annotated[
        Projection, typer.Option("--projection", help="The current rows of each history, or its events.")
    ] = Projection.CURRENT,
    as_at: Annotated[
        str | None, typer.Option("--as-at", metavar="TIME", help="Rows as they were known at this system time.")
    ] = None,
    as_of: Annotated[
        str | None, typer.Option("--as-of", metavar="TIME", help="Rows as they were at this event time.")
    ] = None,
    limit: RowLimit = None,
    notation: Annotated[Notation, typer.Option("--format", "-f", help="What rows are shown in.")] = Notation.TABLE,
    output: Output = None,
) -> None:
    """Ask a question of histories of events, in SQL; nothing is written but the answer."""
    import pyarrow as pa

    from dagster_versioned.cli import rows
    from dagster_versioned.cli.documents import print_json
    from dagster_versioned.odf.event_table import EventTable
    from dagster_versioned.odf.queries.ad_hoc import query as ask

    if notation is not Notation.TABLE and (session.json or output is not None):
        other = "--json" if session.json else "--output"
        raise InvalidInput(f"{other} and --format are two notations. Nothing was read. Give one of them.")
    if output is not None:
        rows.export_format(output)
    now = datetime.now(UTC)
    known_at, true_at = (None if text is None else parse_moment(text, now) for text in (as_at, as_of))
    if (known_at or true_at) and projection is Projection.EVENTS:
        raise InvalidInput("--projection events has all events, and --as-at and --as-of rows. Nothing was read.")
    seen: dict[str, str] = {}

    def rows_of(name: str) -> pa.Table:
        table = _history(session, name)
        events = EventTable(table)
        seen[str(table.name)] = str(events.chain.head)
        return events.events() if projection is Projection.EVENTS else events.read(as_at=known_at, as_of=true_at)

    most = limit if limit is not None or output is not None else PREVIEW_ROWS
    found = ask(
        sys.stdin.read() if sql == "-" else sql, rows_of, engine=engine.value, limit=None if most is None else most + 1
    )
    more = most is not None and found.num_rows > most
    shown = found.slice(0, most)
    document: dict[str, Any] = {"tables": seen, "more": more}
    if output is not None:
        rows.check_exportable(shown.schema, output)
        written = rows.export(shown.schema, iter(shown.to_batches()), output, lambda done: None)
        document |= {"output": str(output), "rows_written": written, "size_bytes": output.stat().st_size}
        if session.json:
            print_json(document)
        else:
            say(f"{written} rows in {output}, {human_size(document['size_bytes'])}.")
        return
    if session.json or notation is Notation.JSON:
        print_json({**document, "columns": rows.columns_document(shown.schema), "rows": rows.plain_rows(shown)})
    elif notation is Notation.CSV:
        text = rows.csv_text(shown)
        sys.stdout.write("\n".join(map(plain, text.split("\n"))) if sys.stdout.isatty() else text)
    else:
        rows.show_rows(shown)
    if more:
        session.note(f"The first {shown.num_rows} rows. More with --limit, all with --output FILE.")


def _history(session: Session, name: str) -> "VersionedTable":
    """The history of a name in a query. Raises `InvalidInput`, `TableNotFound`."""
    try:
        return history(dataset_table(session, name))
    except InvalidName:
        raise InvalidInput(
            f"The query names {name!a:.200}, which is not a table name. Nothing was read. Name a table or dataset of "
            "the project; `dagster-versioned ls` lists them."
        ) from None
