"""Datasets that are derived from others by a query: a run over what is new, and the same run again, to check it.

Every run is recorded as an `ExecuteTransform` with the exact intervals of its inputs; what it appends follows from
these, from the query, and from what the dataset holds already, so anybody can repeat it. Source: seed 002 ("Derivative
Transformations", "Query Evolution", "Dataset Validation").
"""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from dagster_versioned.delta.log.snapshot import load_snapshot
from dagster_versioned.delta.schema.types import StructType
from dagster_versioned.engines.parts import WriteOptions
from dagster_versioned.engines.scan import Scan, ScanFile
from dagster_versioned.engines.spark.session import default_session, frame_type, running
from dagster_versioned.errors import ChainCorrupt, IntegrityError, InvalidInput, UnsupportedFeature
from dagster_versioned.odf.blocks.block import Block
from dagster_versioned.odf.blocks.block_iterator import iterate_blocks, state_at
from dagster_versioned.odf.blocks.events import (
    DatasetKind,
    DataSlice,
    ExecuteTransform,
    ExecuteTransformInput,
    SetTransform,
    SqlQueryStep,
    TemporalTable,
    Timestamp,
    TransformInput,
    TransformSql,
)
from dagster_versioned.odf.blocks.validity import ChainState, InputPosition
from dagster_versioned.odf.dispatch import event_engine_for
from dagster_versioned.odf.event_blocks import HistoryState, going_on, key_of, vocabulary
from dagster_versioned.odf.event_slice import WriteDescription
from dagster_versioned.odf.event_sql import EventSchema
from dagster_versioned.odf.event_table import EventTable
from dagster_versioned.odf.identity.dataset_id import DatasetId
from dagster_versioned.odf.identity.multihash import Multihash
from dagster_versioned.odf.identity.signing_key import SigningKey
from dagster_versioned.odf.sharing.remote import RemoteDataset
from dagster_versioned.odf.slice_file import Slice, SliceTask, slice_schema, table_columns
from dagster_versioned.odf.transform_query import InputHistory, QueryKind, QueryStep, TransformQuery
from dagster_versioned.process_state import PROCESS
from dagster_versioned.tables.chain_head import chain_head
from dagster_versioned.tables.event_history import EventColumns
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.parts import SLICES
from dagster_versioned.tables.read import VersionFiles
from dagster_versioned.tables.table import VersionedTable
from dagster_versioned.tables.write.write import WriteResult

if TYPE_CHECKING:
    from dagster_versioned.engines.spark.session import DataFrame, SparkSession
    from dagster_versioned.odf.spark.transform import Transform

ENGINE = "spark"
"""What `TransformSql` calls the engine; its version is that of the Spark that ran."""


@dataclass(frozen=True)
class InputAt:
    """A dataset up to a block: what its chain says by then, and its events, which are not read yet.

    ``events`` may go on after the block.
    """

    dataset: RemoteDataset
    state: ChainState
    events: "Callable[[SparkSession], DataFrame]"

    @classmethod
    def of_table(cls, table: VersionedTable, files: VersionFiles | None = None) -> "InputAt":
        """A table's dataset, at the version of these files (default: the head). Raises `InvalidInput`."""
        files = files or table.files()
        state = table.state
        at_head = files.log_version == state.log_version
        end = chain_head(state.snapshot if at_head else load_snapshot(table.store, files.log_version))
        if end is None:
            raise InvalidInput(
                f"{table.name} is no history of events, so it cannot be an input of a SQL transform. Nothing was "
                "written. Write it with TableOptions(history=EventHistory(…))."
            )
        dataset = RemoteDataset(table.store)

        def events(session: "SparkSession") -> "DataFrame":
            return table.read_files(files, frame_type())

        return cls(dataset, state_at(dataset, Multihash.parse(end.head)), events)

    @classmethod
    def of_chain(cls, dataset: RemoteDataset, head: Multihash) -> "InputAt":
        """A dataset up to a block, by its chain alone."""
        state = state_at(dataset, head)
        return cls(dataset, state, lambda session: _slices(dataset, state, session))

    def history(self, session: "SparkSession", since: int | None) -> InputHistory:
        """What a query sees of it."""
        columns = self.state.columns
        last = -1 if self.state.last_offset is None else self.state.last_offset
        events = self.events(session)
        return InputHistory(events.where(events[columns.offset] <= last), columns, key_of(self.state), since)


@dataclass(frozen=True)
class DerivationReport:
    """What a run did: the version, the intervals of the inputs, and how (``kind``; ``None`` where nothing was new)."""

    result: WriteResult
    inputs: tuple[ExecuteTransformInput, ...]
    kind: QueryKind | None


@dataclass(frozen=True)
class Derivation:
    """A run that is still to be done: a query over its inputs, as a step was handed them."""

    query: TransformQuery
    inputs: Mapping[str, InputAt]

    def write(
        self,
        table: VersionedTable,
        *,
        key: SigningKey | None = None,
        columns: EventColumns | None = None,
        **described: Unpack[WriteDescription],
    ) -> DerivationReport:
        """Do it in the active session of Spark, and append what comes of it to a table, as `derive` says."""
        output = EventTable(table, key=key)
        return derive(output, self.query, self.inputs, default_session(), columns=columns, **described)


def derive(
    output: EventTable,
    query: TransformQuery,
    inputs: Mapping[str, InputAt],
    session: "SparkSession",
    *,
    columns: EventColumns | None = None,
    **described: Unpack[WriteDescription],
) -> DerivationReport:
    """Run a query over what is new in its inputs, and append what comes of it: one slice, its blocks, one commit.

    A query that differs from the one that ran last, other inputs, or other columns of an input have everything computed
    and compared. ``columns`` are what the output's columns of events are called (``None``: as its chain says, or the
    usual names). Raises `InvalidInput` for a query that is refused, columns that are lost or renamed, and an input
    whose history was put in the place of another; `CommitConflict` where another run was faster.
    """
    ground = _output_state(output, described.get("options"))
    own = ground.chain
    if columns is not None:
        output.check_columns(ground, columns)
    transform = transform_event(query, {name: input_.state.seed.dataset_id for name, input_ in inputs.items()}, session)
    taken = tuple(inputs[input_] for input_ in query.inputs)
    planned = QueryRun(RemoteDataset(output.table.store), own, transform, taken, columns)
    is_new = own is None or own.transform != transform
    if not is_new and ground.schema is not None and planned.takes_nothing:
        result = output.append_blocks(ground, ground.schema, DatasetKind.DERIVATIVE, **described)
        return DerivationReport(result, planned.taken, None)
    analysed = planned.analysed(session)
    compare = planned.compares
    schema = EventSchema.of(stored_columns(analysed), planned.columns, ground.schema)
    held = output.current(as_type=frame_type()) if planned.looks_at_held(analysed) else None
    result = output.append(
        analysed.rows(schema.data.names, held, compare=compare),
        schema,
        ground,
        event_engine_for(frame_type()),
        kind=DatasetKind.DERIVATIVE,
        before=(*vocabulary(ground, planned.columns), *((transform,) if is_new else ())),
        event=lambda made: planned.event(made and made.data),
        **described,
    )
    return DerivationReport(result, planned.taken, analysed.kind(compare=compare))


def _output_state(output: EventTable, options: TableOptions | None) -> HistoryState:
    """What a run appends to. Raises `InvalidInput` for a table whose events come of anything but a query."""
    if options is not None and options.history is not None:
        raise InvalidInput(
            f"{output.table.name} is given by a query, and its options have a history of its own. Nothing was written. "
            "Leave TableOptions(history=…) out."
        )
    ground = output.ground()
    if ground.chain is not None and ground.chain.seed.dataset_kind is not DatasetKind.DERIVATIVE:
        raise InvalidInput(
            f"{output.table.name} is a root dataset, whose events come from outside. Nothing was written. Write the "
            "transform to another table."
        )
    return ground


def replay(
    dataset: RemoteDataset,
    block: Block,
    inputs: Callable[[DatasetId], RemoteDataset],
    session: "SparkSession | None" = None,
) -> ExecuteTransform:
    """What a run that a block records gives if it is done again, with what cannot be the same taken from the record.

    That is the physical hash and the size of the slice: the bytes of a Parquet file depend on who writes it. So a run
    is what it claims to be if and only if this is the block's event. ``session`` is the active one, or a new one, if it
    is ``None``. Raises `InvalidInput` for a query that is refused, `UnsupportedFeature` for another engine than Spark,
    `ChainCorrupt`, `ObjectNotFound` and `IntegrityError` for inputs that are broken or a query that fails on them.
    """
    return _again(dataset, block, inputs, session or default_session(), None)[1]


def rebuilt_slice(
    dataset: RemoteDataset,
    block: Block,
    inputs: Callable[[DatasetId], RemoteDataset],
    session: "SparkSession",
    folder: Path,
) -> Path | bytes:
    """The file of the slice that a run appended, made again, in a folder or in memory: byte for byte what it was.

    Raises what `replay` does, and `IntegrityError` where the run gives something else than it records, or the same
    records in other bytes: those of a Parquet file depend on who writes it, and how.
    """
    event, given, made = _again(dataset, block, inputs, session, folder)
    if event.new_data is None:
        raise InvalidInput(f"Block {block.sequence_number} records a run that added no data. Nothing was made.")
    if given != event or made is None:
        raise IntegrityError(
            f"The run of block {block.sequence_number} gives something else than it records, when it is done again. "
            "Nothing was put in its place. `dagster-versioned odf verify --replay` has the finding; pull the dataset "
            "from a copy."
        )
    if made.data != event.new_data:
        raise IntegrityError(
            f"The run of block {block.sequence_number} gives the records that it records, and its file other bytes: it "
            "was written by another release of pyarrow, or with other options. Nothing was put in its place. Do it "
            "with the release that wrote it, or pull the dataset from a copy."
        )
    source = made.part.source
    return source if isinstance(source, bytes) else Path(source)


def _again(
    dataset: RemoteDataset,
    block: Block,
    inputs: Callable[[DatasetId], RemoteDataset],
    session: "SparkSession",
    folder: Path | None,
) -> tuple[ExecuteTransform, ExecuteTransform, Slice | None]:
    """A recorded run: its event, that which doing it again gives (`replay`), and the slice, written to a folder."""
    event, recorded = recorded_run(dataset, block, inputs)
    own = recorded.own
    arrow = own.arrow_schema() if own is not None else None
    if own is None or arrow is None:
        raise ChainCorrupt(f"Block {block.sequence_number} records a run of a query, and no schema precedes it.")
    with running(f"the run of block {block.sequence_number}"):
        analysed, compare = recorded.analysed(session), recorded.compares
        schema = EventSchema.parse(table_columns(arrow, recorded.columns), recorded.columns)
        held = None
        if recorded.looks_at_held(analysed):
            held = event_engine_for(frame_type()).current(_slices(dataset, own, session), schema, (), {})
        made = _written(analysed.rows(schema.data.names, held, compare=compare), schema, own, block, folder)
    data = None if made is None else made.data
    if data is not None and event.new_data is not None:
        data = replace(data, physical_hash=event.new_data.physical_hash, size=event.new_data.size)
    given = replace(recorded.event(data), new_checkpoint=event.new_checkpoint)
    version = recorded.transform.transform.version
    if given != event and version not in (None, session.version):
        raise IntegrityError(
            f"It ran on Spark {version}, and gives something else on Spark {session.version}: it is forged, or the two "
            f"differ. Verify it with Spark {version}."
        )
    return event, given, made


# --- a run -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class QueryRun:
    """One run of a query: onto a dataset as its chain says (``own``; ``None``: a new one, whose columns of events are
    ``named``), over inputs as they were.

    Everything about it follows from these, so it is the same whenever it is repeated.
    """

    dataset: RemoteDataset
    own: ChainState | None
    transform: SetTransform
    inputs: tuple[InputAt, ...]
    named: EventColumns | None = None

    @cached_property
    def taken(self) -> tuple[ExecuteTransformInput, ...]:
        """The intervals of the inputs. Raises `InvalidInput` where an input goes not on from where it was taken to."""
        return tuple(_taken(input_, self.own) for input_ in self.inputs)

    @property
    def takes_nothing(self) -> bool:
        """Whether no input has anything new."""
        return all(input_.new_block_hash is None for input_ in self.taken)

    @property
    def columns(self) -> EventColumns:
        """What the columns are called that the dataset's events are given."""
        return self.own.columns if self.own is not None else self.named or EventColumns()

    @cached_property
    def compares(self) -> bool:
        """Whether everything is computed and compared: the query is another than before, or columns of an input are."""
        if self.own is None:
            return False
        chain = iterate_blocks(self.dataset, self.own.head)
        last = next((link for link in chain if isinstance(link.block.event, ExecuteTransform)), None)
        if last is None:
            return False
        before = state_at(self.dataset, last.name).transform
        if before is None or _terms(before) != _terms(self.transform):
            return True
        pairs = zip((input_.prev_block_hash for input_ in self.taken), self.inputs, strict=True)
        return any(at is not None and state_at(pair.dataset, at).schema != pair.state.schema for at, pair in pairs)

    def looks_at_held(self, analysed: "Transform") -> bool:
        """Whether what the query gives is compared with what the dataset holds already."""
        holds = self.own is not None and self.own.next_offset > 0
        return holds and analysed.kind(compare=self.compares) is QueryKind.WHOLE

    def analysed(self, session: "SparkSession") -> "Transform":
        """Its query, over what it sees. Raises `InvalidInput` for one that is refused, and `UnsupportedFeature`."""
        from dagster_versioned.odf.spark.transform import Transform

        query = query_of(self.transform)
        return Transform(session, query, self.histories(session), self.columns)

    def histories(self, session: "SparkSession") -> dict[str, InputHistory]:
        """What it sees of its inputs, by their aliases."""
        pairs = zip(query_of(self.transform).inputs, self.inputs, self.taken, strict=True)
        return {name: pair.history(session, taken.prev_offset) for name, pair, taken in pairs}

    def event(self, made: DataSlice | None) -> ExecuteTransform:
        """How it is recorded."""
        return ExecuteTransform(
            query_inputs=self.taken, **going_on(self.own), new_data=made, new_watermark=self._watermark
        )

    @property
    def _watermark(self) -> Timestamp | None:
        """Nothing is complete beyond the input that is the furthest behind; and a watermark never goes back."""
        reached = [input_.state.watermark for input_ in self.inputs]
        known = self.own and self.own.watermark
        least = None if None in reached else min(filter(None, reached), default=None)
        return max(filter(None, (known, least)), default=None)


def recorded_run(
    dataset: RemoteDataset, block: Block, inputs: Callable[[DatasetId], RemoteDataset]
) -> tuple[ExecuteTransform, QueryRun]:
    """The run that a block records. Raises `InvalidInput` for a block that records none, and `ChainCorrupt`."""
    event = block.event
    if not isinstance(event, ExecuteTransform) or block.prev_block_hash is None:
        raise InvalidInput(f"Block {block.sequence_number} records no run of a query. Nothing was run.")
    own = state_at(dataset, block.prev_block_hash)
    if own.transform is None:
        raise ChainCorrupt(f"Block {block.sequence_number} records a run of a query, and no query precedes it.")
    found: list[InputAt] = []
    for input_ in event.query_inputs:
        end = input_.new_block_hash or input_.prev_block_hash
        if end is None:
            raise ChainCorrupt(f"Block {block.sequence_number} names no block of its input {input_.dataset_id}.")
        found.append(InputAt.of_chain(inputs(input_.dataset_id), end))
    return event, QueryRun(dataset, own, own.transform, tuple(found))


def stored_columns(analysed: "Transform") -> StructType:
    """The columns of what a query gives, as they are stored."""
    from dagster_versioned.engines.spark.types import stored_schema

    return stored_schema(analysed.schema)


def _taken(one: InputAt, own: ChainState | None) -> ExecuteTransformInput:
    dataset_id, state = one.state.seed.dataset_id, one.state
    known = own.inputs.get(dataset_id, InputPosition()) if own is not None else InputPosition()
    is_new = state.head != known.block_hash
    if is_new and known.block_hash is not None:
        try:
            for _ in iterate_blocks(one.dataset, state.head, until=known.block_hash):
                pass
        except ChainCorrupt as error:
            raise InvalidInput(
                f"The input {dataset_id} was taken up to block {known.block_hash}, which is not among those that end "
                f"with {state.head}: an earlier version of it was asked for, or another history was put in its place. "
                "Nothing was written. Read its head, or write to another table."
            ) from error
    has_records = state.last_offset is not None and state.last_offset != known.offset
    return ExecuteTransformInput(
        dataset_id=dataset_id,
        prev_block_hash=known.block_hash,
        new_block_hash=state.head if is_new else None,
        prev_offset=known.offset,
        new_offset=state.last_offset if has_records else None,
    )


def _terms(transform: SetTransform) -> SetTransform:
    """What decides what a transform gives; another version of the engine is to give the same."""
    return replace(transform, transform=replace(transform.transform, version=None))


# --- what is recorded of a query -------------------------------------------------------------------------------------


def transform_event(query: TransformQuery, inputs: Mapping[str, DatasetId], session: "SparkSession") -> SetTransform:
    """How a query is recorded, with the exact version of the Spark that runs it."""
    steps = tuple(SqlQueryStep(alias=step.alias, query=step.query) for step in query.steps)
    temporal = tuple(TemporalTable(name, tuple(key)) for name, key in query.temporal_tables.items())
    return SetTransform(
        tuple(TransformInput(str(inputs[name]), name) for name in query.inputs),
        TransformSql(
            engine=ENGINE,
            version=session.version,
            query=steps[0].query if len(steps) == 1 else None,
            queries=steps if len(steps) > 1 else None,
            temporal_tables=temporal or None,
        ),
    )


def query_of(event: SetTransform) -> TransformQuery:
    """The query that an event records. Raises `InvalidInput`, and `UnsupportedFeature` for another engine."""
    sql = event.transform
    if sql.engine.casefold() != ENGINE:
        raise UnsupportedFeature(
            f"The transform is in the SQL of {sql.engine!r}, and only that of {ENGINE!r} runs here. Nothing was run."
        )
    steps = [QueryStep(query.query, query.alias) for query in sql.queries or ()]
    if sql.query is not None:
        steps.append(QueryStep(sql.query))
    temporal = {table.name: table.primary_key for table in sql.temporal_tables or ()}
    return TransformQuery(tuple(input_.alias or input_.dataset_ref for input_ in event.inputs), tuple(steps), temporal)


# --- slices ----------------------------------------------------------------------------------------------------------


class KnownSlices(dict[DatasetId, tuple[Multihash, tuple[DataSlice, ...]]]):
    """The slices of each chain that was walked, up to a block: what a hash stands for never changes."""


def slices_scan(dataset: RemoteDataset, state: ChainState) -> Scan:
    """The events of a dataset up to a block, as the slices that its blocks name. Raises `ChainCorrupt`.

    Runs are done again in their order, so a chain is walked once for all of them.
    """
    arrow = state.arrow_schema()
    if arrow is None:
        raise ChainCorrupt(f"The dataset {state.seed.dataset_id} has no schema by block {state.head}.")
    known_slices = PROCESS.of(KnownSlices)
    known, slices = known_slices.get(state.seed.dataset_id, (None, ()))
    later: list[DataSlice] = []
    for link in iterate_blocks(dataset, state.head):
        if link.name == known:
            break
        if link.block.new_data is not None:
            later.append(link.block.new_data)
    else:
        slices = ()
    slices = (*slices, *reversed(later))
    known_slices[state.seed.dataset_id] = (state.head, slices)
    files = tuple(ScanFile(f"{SLICES}{slice_.physical_hash}", slice_.size) for slice_ in slices)
    return Scan(dataset.store, table_columns(arrow, state.columns), files)


def _slices(dataset: RemoteDataset, state: ChainState, session: "SparkSession") -> "DataFrame":
    from dagster_versioned.engines.spark import SparkEngine

    return SparkEngine(session).read(slices_scan(dataset, state))


def _written(
    events: "DataFrame", schema: EventSchema, own: ChainState, block: Block, folder: Path | None
) -> Slice | None:
    """These events as the slice of a block, written to a folder, by default one that is gone then."""
    with tempfile.TemporaryDirectory(prefix="dagster-versioned-") as spare:
        options = WriteOptions(single_part=True, allow_empty=True)
        stated, moment = own.arrow_schema(), block.system_time.to_datetime()
        arrow = slice_schema(schema, stated)
        task = SliceTask(schema, arrow, stated, own.next_offset, moment, options, folder or Path(spare), None, "")
        return task.slice_of(event_engine_for(frame_type()).through(events, task))
