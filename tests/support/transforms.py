"""Histories of events in memory, and SQL transforms that run over them."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from dagster_versioned.odf.event_sql import Operation
from dagster_versioned.odf.spark.transform import Transform
from dagster_versioned.odf.transform_query import InputHistory, TransformQuery
from dagster_versioned.tables.event_history import EventColumns

START = datetime(2020, 1, 1, tzinfo=UTC)


def at(minutes: int) -> datetime:
    """An event time."""
    return START + timedelta(minutes=minutes)


@dataclass
class History:
    """Events as tuples: operation, event time, data; ``data`` says their columns, as in SQL."""

    data: str
    events: list[tuple[Any, ...]] = field(default_factory=list)

    @property
    def schema(self) -> str:
        return f"offset BIGINT, op INT, system_time TIMESTAMP, event_time TIMESTAMP, {self.data}"

    def frame(self, spark, until: int | None = None):
        """The events, those before an offset."""
        rows = [(n, int(op), START, *rest) for n, (op, *rest) in enumerate(self.events[:until])]
        return spark.createDataFrame(rows, self.schema)

    def rows(self) -> Counter:
        """What the events come to, and how often each row is there."""
        counted = Counter()
        for op, *row in self.events:
            counted[tuple(row)] += -1 if op in (Operation.RETRACT, Operation.CORRECT_FROM) else 1
        assert all(count >= 0 for count in counted.values()), "a row was taken back that was not there"
        return +counted

    def of_rows(self, spark):
        """What they come to, as a frame of event time and data."""
        return spark.createDataFrame(
            [row for row, count in self.rows().items() for _ in range(count)], f"event_time TIMESTAMP, {self.data}"
        )


def empty_history(spark, data: str) -> InputHistory:
    return InputHistory(History(data).frame(spark), EventColumns())


def run(
    spark,
    query: TransformQuery,
    inputs: dict[str, History],
    output: History,
    since: dict[str, int] | None = None,
    until: dict[str, int] | None = None,
    compare: bool = False,
):
    """Run a query over events of its inputs, ``since`` and ``until`` of each, onto its output; the rows appended."""
    given = {
        name: InputHistory(
            history.frame(spark, (until or {}).get(name)), EventColumns(), since=(since or {}).get(name, 0) - 1
        )
        for name, history in inputs.items()
    }
    held = output.of_rows(spark) if output.events else None
    transform = Transform(spark, query, given, EventColumns())
    data = [name for name in transform.schema.names if name != "event_time"]
    rows = _tuples(transform.rows(data, held, compare=compare))
    output.events += rows
    return rows


def _tuples(frame) -> list[tuple[Any, ...]]:
    table = frame.toArrow()
    return [tuple(row.values()) for row in table.to_pylist()]
