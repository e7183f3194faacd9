"""Why a row is there: the rows that it was made of, the columns that its values come from, the steps of the query;
and the same of each of these rows, down to the root datasets. Source: seed 002 ("Provenance", "Derive Provenance").
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from dagster_versioned.delta.log.history import require_limit
from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.engines.scan import ScanFile
from dagster_versioned.engines.spark.session import running
from dagster_versioned.engines.sql import database, register
from dagster_versioned.errors import VersionNotFound
from dagster_versioned.odf.blocks.block_iterator import Link, iterate_blocks, state_at
from dagster_versioned.odf.blocks.events import DataSlice, ExecuteTransform, Timestamp, TransformSql
from dagster_versioned.odf.blocks.validity import ChainState
from dagster_versioned.odf.event_sql import Operation
from dagster_versioned.odf.identity.dataset_id import DatasetId
from dagster_versioned.odf.identity.multihash import Multihash
from dagster_versioned.odf.queries.transform import QueryRun, query_of, recorded_run, slices_scan
from dagster_versioned.odf.sharing.remote import RemoteDataset
from dagster_versioned.odf.transform_query import ColumnOrigin, RowOrigin
from dagster_versioned.tables.event_history import EventColumns
from dagster_versioned.tables.parts import SLICES

if TYPE_CHECKING:
    from dagster_versioned.engines.spark.session import SparkSession

LIMIT = 20
"""Of how many of the rows that a row was made of an explanation says more than their offsets."""

_TAKES_BACK = (Operation.RETRACT, Operation.CORRECT_FROM)


@dataclass(frozen=True)
class Explanation:
    """An event of a dataset, and where it comes from.

    ``block``, with its number, brought it at ``system_time``. Of an event that a query gave, ``transform`` is the
    query, ``steps`` what it does (how), ``columns`` where its values come from (where), and ``rows`` of which rows it
    was made (why), each by the dataset and the offset there; ``inputs`` explains the first of them. An event that takes
    a row back has ``taken_back``, which explains the event that had brought it, and no more of its own.
    """

    dataset_id: DatasetId
    offset: int
    values: Mapping[str, Any]
    block: Multihash
    sequence_number: int
    system_time: Timestamp
    transform: TransformSql | None = None
    steps: tuple[str, ...] = ()
    columns: tuple[ColumnOrigin, ...] = ()
    rows: tuple[tuple[DatasetId, int], ...] = ()
    inputs: "tuple[Explanation, ...]" = ()
    taken_back: "Explanation | None" = None


def explain(
    dataset: RemoteDataset,
    head: Multihash,
    offset: int,
    inputs: Callable[[DatasetId], RemoteDataset],
    session: "SparkSession",
    *,
    limit: int = LIMIT,
) -> Explanation:
    """Why the event with an offset is in a dataset whose chain ends with ``head``; recursively, down to the roots.

    ``inputs`` finds datasets by their ids, ``session`` is for the queries, which run once more. Raises
    `VersionNotFound` for an offset that no slice has, `UnsupportedFeature` for a query through which rows cannot be
    followed, and what reading a chain raises.
    """
    require_limit(limit)
    link, data = _bringing(dataset, head, offset)
    state = state_at(dataset, link.name)
    event = _event(dataset, state, data, offset)
    columns = state.columns
    found = Explanation(
        state.seed.dataset_id,
        offset,
        event.to_pylist()[0],
        link.name,
        link.block.sequence_number,
        link.block.system_time,
    )
    if found.values[columns.operation_type] in _TAKES_BACK:
        before = _brought(dataset, link, event, columns)
        return replace(found, taken_back=explain(dataset, head, before, inputs, session, limit=limit))
    if not isinstance(link.block.event, ExecuteTransform):
        return found
    _, run = recorded_run(dataset, link.block, inputs)
    origin = _origin(run, event, columns, session)
    taken = dict(zip(query_of(run.transform).inputs, run.inputs, strict=True))
    rows = tuple((taken[name].state.seed.dataset_id, at) for name, at in origin.rows)
    explained = tuple(
        explain(taken[name].dataset, taken[name].state.head, at, inputs, session, limit=limit)
        for name, at in origin.rows[:limit]
    )
    return replace(
        found,
        transform=run.transform.transform,
        steps=origin.steps,
        columns=origin.columns,
        rows=rows,
        inputs=explained,
    )


def _origin(run: QueryRun, event: pa.Table, columns: EventColumns, session: "SparkSession") -> RowOrigin:
    from dagster_versioned.engines.spark.releases import from_arrow
    from dagster_versioned.odf.spark.provenance import row_origin

    row = from_arrow(session, event.drop_columns(list(columns.given)))
    query, histories = query_of(run.transform), run.histories(session)
    with running("the query of a row"):
        return row_origin(session, query, histories, columns, row, compare=run.compares)


def _bringing(dataset: RemoteDataset, head: Multihash, offset: int) -> tuple[Link, DataSlice]:
    """The block that brought an event, and its slice."""
    for link in iterate_blocks(dataset, head):
        data = link.block.new_data
        if data is not None and data.offset_interval.start <= offset <= data.offset_interval.end:
            return link, data
    raise VersionNotFound(
        f"No event of {state_at(dataset, head).seed.dataset_id} has the offset {offset} by block {head}. Nothing was "
        "explained. `tail` shows the last events with their offsets."
    )


def _event(dataset: RemoteDataset, state: ChainState, data: DataSlice, offset: int) -> pa.Table:
    """One event of a slice, with all columns that the dataset has by then."""
    scan = slices_scan(dataset, state)
    file = ScanFile(f"{SLICES}{data.physical_hash}", data.size)
    rows: pa.Table = ArrowEngine().read(replace(scan, files=(file,)))
    name = state.columns.offset
    return rows.filter(cast("Any", pc.equal(rows[name], pa.scalar(offset, pa.int64()))))


def _brought(dataset: RemoteDataset, link: Link, event: pa.Table, columns: EventColumns) -> int:
    """The offset of the last event that brought the row which an event takes back."""
    state = state_at(dataset, link.name)
    rows: pa.Table = ArrowEngine().read(slices_scan(dataset, state))
    names = [name for name in event.column_names if name not in columns.given]
    same = " AND ".join(f"e.{_quoted(name)} IS NOT DISTINCT FROM t.{_quoted(name)}" for name in names)
    offset, operation = _quoted(columns.offset), _quoted(columns.operation_type)
    with database() as cursor:
        register(cursor, "e", rows)
        register(cursor, "t", event)
        found: Sequence[Any] | None = cursor.execute(
            f"SELECT max(e.{offset}) FROM e JOIN t ON {same} AND e.{offset} < t.{offset} "
            f"WHERE e.{operation} NOT IN ({', '.join(str(int(code)) for code in _TAKES_BACK)})"
        ).fetchone()
    if found is None or found[0] is None:
        raise VersionNotFound(
            f"The event {event.to_pylist()[0]!s:.300} of {state.seed.dataset_id} takes back what no event brought."
        )
    return found[0]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
