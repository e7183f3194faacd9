"""The verb that asks a question of histories of events, in SQL. Heavy imports wait until it runs."""

import sys
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

from dagster_versioned.cli.arguments import PREVIEW_ROWS, Output, RowLimit, argument, flag, option
from dagster_versioned.cli.chain_arguments import dataset_table, history
from dagster_versioned.cli.commands import Commands
from dagster_versioned.cli.session import Session
from dagster_versioned.cli.span import parse_moment
from dagster_versioned.cli.terminal import human_size, plain
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
    sql: Annotated[str, argument("SQL", "One SELECT over tables or datasets; - reads it from stdin.")],
    engine: Annotated[Engine, flag("--engine", "Whose SQL it is; Spark needs Java.")] = Engine.DUCKDB,
    projection: Annotated[
        Projection, flag("--projection", "The current rows of each history, or its events.")
    ] = Projection.CURRENT,
    as_at: Annotated[str | None, option("--as-at", "TIME", "Rows as they were known at this system time.")] = None,
    as_of: Annotated[str | None, option("--as-of", "TIME", "Rows as they were at this event time.")] = None,
    limit: RowLimit = None,
    notation: Annotated[Notation, flag("--format", "-f", "What rows are shown in.")] = Notation.TABLE,
    output: Output = None,
) -> None:
    """Ask a question of histories of events, in SQL; nothing is written but the answer."""
    from dagster_versioned.cli import rows

    if notation is not Notation.TABLE and (session.json or output is not None):
        other = "--json" if session.json else "--output"
        raise InvalidInput(f"{other} and --format are two notations. Nothing was read. Give one of them.")
    if output is not None:
        rows.export_format(output)
    reading = _HistoryReader(session, projection, as_at, as_of)
    text = sys.stdin.read() if sql == "-" else sql
    if output is not None:
        found, more = reading.first_rows(text, engine, limit)
        rows.check_exportable(found.schema, output)
        written = rows.export(found.schema, iter(found.to_batches()), output, lambda done: None)
        size = output.stat().st_size
        session.show(
            {**reading.document(more), "output": output, "rows_written": written, "size_bytes": size},
            f"{written} rows in {output}, {human_size(size)}.",
        )
        return
    found, more = reading.first_rows(text, engine, PREVIEW_ROWS if limit is None else limit)
    if notation is Notation.CSV:
        csv = rows.csv_text(found)
        sys.stdout.write("\n".join(map(plain, csv.split("\n"))) if sys.stdout.isatty() else csv)
    else:
        plain_rows = rows.plain_rows(found)
        document = reading.document(more) | {"columns": rows.columns_document(found.schema), "rows": plain_rows}
        as_asked = replace(session, json=session.json or notation is Notation.JSON)
        as_asked.show(document, rows.rows_table(found.schema, plain_rows))
    if more:
        session.note(f"The first {found.num_rows} rows. More with --limit, all with --output FILE.")


class _HistoryReader:
    """Reads the histories that a query names, as of a time, and notes their heads."""

    def __init__(self, session: Session, projection: Projection, as_at: str | None, as_of: str | None) -> None:
        now = datetime.now(UTC)
        self._known_at, self._true_at = (None if text is None else parse_moment(text, now) for text in (as_at, as_of))
        if (self._known_at or self._true_at) and projection is Projection.EVENTS:
            raise InvalidInput("--projection events has all events, and --as-at and --as-of rows. Nothing was read.")
        self._session, self._projection = session, projection
        self._heads: dict[str, str] = {}

    def first_rows(self, sql: str, engine: Engine, limit: int | None) -> "tuple[pa.Table, bool]":
        """The first rows of the answer, all where ``limit`` is ``None``, and whether there are more."""
        from dagster_versioned.odf.queries.ad_hoc import query

        found = query(sql, self._rows, engine=engine.value, limit=None if limit is None else limit + 1)
        return found.slice(0, limit), limit is not None and found.num_rows > limit

    def document(self, more: bool) -> dict[str, Any]:
        return {"tables": self._heads, "more": more}

    def _rows(self, name: str) -> "pa.Table":
        from dagster_versioned.odf.event_table import EventTable

        table = _history(self._session, name)
        events = EventTable(table)
        self._heads[str(table.name)] = str(events.chain.head)
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
