"""The verbs that query histories of events, and have derived ones as a cache. Heavy imports wait until one runs."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

from dagster_versioned.cli.arguments import (
    PREVIEW_ROWS,
    Apply,
    Output,
    RowLimit,
    TableArgument,
    argument,
    flag,
    option,
    parse_moment,
)
from dagster_versioned.cli.chain_arguments import Sources, dataset_table, datasets_at, history
from dagster_versioned.cli.commands import Commands
from dagster_versioned.cli.documents import members
from dagster_versioned.cli.session import Session
from dagster_versioned.cli.terminal import counted, human_size, plain
from dagster_versioned.errors import InvalidInput, InvalidName

if TYPE_CHECKING:
    import pyarrow as pa

    from dagster_versioned.odf.queries.cached_slices import CachedSlice
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

    other = "--json" if session.json else "--output" if output is not None else None
    if other is not None and notation is not Notation.TABLE:
        raise InvalidInput(f"{other} and --format are two notations. Nothing was read. Give one of them.")
    rows.check_format(output)
    reading = _HistoryReader(session, projection, as_at, as_of)
    text = sys.stdin.read() if sql == "-" else sql
    if output is not None:
        found, more = reading.first_rows(text, engine, limit)
        written = rows.export_table(found, output)
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
        as_asked = replace(session, json=session.json or notation is Notation.JSON)
        as_asked.show(*rows.rows_shown(reading.document(more), found))
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


@command("odf rebuild delays")
def rebuild(session: Session, table: TableArgument, source: Sources = None) -> None:
    """Make the slices again that a dataset of a query lacks, byte for byte, by doing their runs again; needs Java."""
    from dagster_versioned.engines.spark import default_session
    from dagster_versioned.odf.queries.cached_slices import rebuild as rebuild_slices

    opened = history(dataset_table(session, table))
    found = datasets_at(session, opened, source)
    done = list(rebuild_slices(opened, found, default_session()))
    session.show(
        {"table": opened.name, "slices": _documents(done)},
        f"{opened.name}: {_counted(done)} rebuilt" if done else f"{opened.name}: nothing is missing",
    )


@command("odf discard delays --before 90d", "odf discard delays --before 90d --apply")
def discard(
    session: Session,
    table: TableArgument,
    before: Annotated[str, option("--before", "TIME", "What runs before this time appended.")],
    apply: Apply = False,
    source: Sources = None,
) -> None:
    """Delete slices of a dataset of a query that can be rebuilt; each run is done again first, which needs Java."""
    from dagster_versioned.engines.spark import default_session
    from dagster_versioned.odf.queries.cached_slices import discard as discard_slices

    opened, until = history(dataset_table(session, table)), parse_moment(before, datetime.now(UTC))
    found = datasets_at(session, opened, source)
    done = discard_slices(opened, found, default_session(), before=until, apply=apply)
    session.show(
        {"table": opened.name, "applied": apply, "slices": _documents(done.slices), "kept": done.kept},
        f"{opened.name}: {_counted(done.slices)} {'discarded' if apply else 'can be discarded'}",
        *(f"  kept {key}: {reason}" for key, reason in done.kept.items()),
        note="Nothing was deleted. Do it with --apply; `odf rebuild` brings them back."
        if done.slices and not apply
        else None,
    )


def _documents(slices: "Sequence[CachedSlice]") -> list[dict[str, Any]]:
    return [members(each, "number=sequence_number", "key", "size_bytes=size") for each in slices]


def _counted(slices: "Sequence[CachedSlice]") -> str:
    return f"{counted(len(slices), 'slice')} ({human_size(sum(each.size for each in slices))})"
