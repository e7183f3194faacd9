"""The verb that asks a question of histories of events, in SQL. Heavy imports wait until it runs."""

import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dagster_versioned.cli.arguments import PREVIEW_ROWS, Output, RowLimit
from dagster_versioned.cli.chain_arguments import dataset_table, history
from dagster_versioned.cli.commands import Commands
from dagster_versioned.cli.documents import print_json
from dagster_versioned.cli.session import Session
from dagster_versioned.cli.span import parse_moment
from dagster_versioned.cli.terminal import human_size, plain, show
from dagster_versioned.errors import InvalidInput, InvalidName

if TYPE_CHECKING:
    import pyarrow as pa

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
    from dagster_versioned.cli import rows

    if notation is not Notation.TABLE and (session.json or output is not None):
        other = "--json" if session.json else "--output"
        raise InvalidInput(f"{other} and --format are two notations. Nothing was read. Give one of them.")
    if output is not None:
        rows.export_format(output)
    most = limit if limit is not None or output is not None else PREVIEW_ROWS
    reading = _Reading(session, projection, as_at, as_of)
    found = reading.ask(sys.stdin.read() if sql == "-" else sql, engine, None if most is None else most + 1)
    more = most is not None and found.num_rows > most
    shown = found.slice(0, most)
    document: dict[str, Any] = {"tables": reading.heads, "more": more}
    if output is not None:
        rows.check_exportable(shown.schema, output)
        written = rows.export(shown.schema, iter(shown.to_batches()), output, lambda done: None)
        size = output.stat().st_size
        session.show(
            {**document, "output": output, "rows_written": written, "size_bytes": size},
            f"{written} rows in {output}, {human_size(size)}.",
        )
        return
    if session.json or notation is Notation.JSON:
        print_json({**document, "columns": rows.columns_document(shown.schema), "rows": rows.plain_rows(shown)})
    elif notation is Notation.CSV:
        text = rows.csv_text(shown)
        sys.stdout.write("\n".join(map(plain, text.split("\n"))) if sys.stdout.isatty() else text)
    else:
        show(rows.rows_table(shown))
    if more:
        session.note(f"The first {shown.num_rows} rows. More with --limit, all with --output FILE.")


class _Reading:
    """Reads the histories that a query names, as of a time; ``heads`` are those that it has read, by table."""

    def __init__(self, session: Session, projection: Projection, as_at: str | None, as_of: str | None) -> None:
        now = datetime.now(UTC)
        self._known_at, self._true_at = (None if text is None else parse_moment(text, now) for text in (as_at, as_of))
        if (self._known_at or self._true_at) and projection is Projection.EVENTS:
            raise InvalidInput("--projection events has all events, and --as-at and --as-of rows. Nothing was read.")
        self._session, self._projection = session, projection
        self.heads: dict[str, str] = {}

    def ask(self, sql: str, engine: Engine, limit: int | None) -> "pa.Table":
        from dagster_versioned.odf.queries.ad_hoc import query

        return query(sql, self._rows, engine=engine.value, limit=limit)

    def _rows(self, name: str) -> "pa.Table":
        from dagster_versioned.odf.event_table import EventTable

        table = _history(self._session, name)
        events = EventTable(table)
        self.heads[str(table.name)] = str(events.chain.head)
        if self._projection is Projection.EVENTS:
            return events.events()
        return events.read(as_at=self._known_at, as_of=self._true_at)


def _history(session: Session, name: str) -> "VersionedTable":
    """The history of a name in a query. Raises `InvalidInput`, `TableNotFound`."""
    try:
        return history(dataset_table(session, name))
    except InvalidName:
        raise InvalidInput(
            f"The query names {name!a:.200}, which is not a table name. Nothing was read. Name a table or dataset of "
            "the project; `dagster-versioned ls` lists them."
        ) from None
