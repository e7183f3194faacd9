"""A graph of three datasets as anybody may serve it: a root, what is computed from it, and what is computed from that.

The queries run in DuckDB, over the new records alone; `replay` does a recorded run again.
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from dagster_versioned.engines.sql import arrow_rows
from dagster_versioned.errors import ObjectNotFound
from dagster_versioned.odf.blocks.arrow_schema import encode_schema
from dagster_versioned.odf.blocks.block import Block, block_hash, encode_block
from dagster_versioned.odf.blocks.block_iterator import iterate_blocks, state_at
from dagster_versioned.odf.blocks.data_schema_arrow import arrow_schema
from dagster_versioned.odf.blocks.events import (
    AddData,
    AddPushSource,
    DatasetKind,
    DataSlice,
    ExecuteTransform,
    ExecuteTransformInput,
    MergeStrategyAppend,
    MetadataEvent,
    OffsetInterval,
    ReadStepParquet,
    Seed,
    SetDataSchema,
    SetTransform,
    TransformInput,
    TransformSql,
)
from dagster_versioned.odf.blocks.validity import ChainState, InputPosition, validate
from dagster_versioned.odf.identity.arrow0 import Arrow0
from dagster_versioned.odf.identity.dataset_id import DatasetId
from dagster_versioned.odf.identity.multihash import Multihash
from dagster_versioned.odf.identity.signing_key import SIGNATURE_KEY, SigningKey
from dagster_versioned.odf.sharing.remote import RemoteDataset
from dagster_versioned.storage.local import LocalStore
from support.odf_chains import SYSTEM, moment

SCHEMA = pa.schema([*SYSTEM, pa.field("station", pa.string()), pa.field("heat", pa.int64())])
COLUMNS = SetDataSchema(encode_schema(SCHEMA))
HOT = "SELECT event_time, station, heat FROM readings WHERE heat > 2"
NAMED = "SELECT event_time, upper(station) AS station, heat * 10 AS heat FROM hot"


@dataclass
class Served:
    """A dataset in a folder, and what its chain says."""

    folder: Path
    key: SigningKey
    state: ChainState | None = None
    encode: Callable[[Block], bytes] = encode_block
    columns: SetDataSchema = COLUMNS

    @property
    def schema(self) -> pa.Schema:
        """The columns of slices, in Arrow's types."""
        return arrow_schema(self.columns)

    @property
    def remote(self) -> RemoteDataset:
        return RemoteDataset(LocalStore(self.folder))

    @property
    def last(self) -> ChainState:
        """What the chain says by now."""
        assert self.state is not None
        return self.state

    @property
    def dataset_id(self) -> DatasetId:
        return self.key.dataset_id

    def append(self, event: MetadataEvent) -> None:
        state = self.state
        number = 0 if state is None else state.sequence_number + 1
        block = Block(moment(1 + number), None if state is None else state.head, number, event)
        data = self.encode(block)
        name = block_hash(data)
        self.state = validate(state, block, name)
        self.store(f"blocks/{name}", data)
        self.store("refs/head", str(name).encode())
        self.store(SIGNATURE_KEY, self.key.sign_head(name).document())

    def store(self, key: str, data: bytes) -> None:
        path = self.folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def slice_of(self, rows: pa.Table) -> DataSlice:
        """A slice of rows, in a file."""
        written = pa.BufferOutputStream()
        pq.write_table(rows, written)
        data = written.getvalue().to_pybytes()
        physical = Multihash.sha3_256(data)
        self.store(f"data/{physical}", data)
        first = rows.column("offset")[0].as_py()
        return DataSlice(
            logical_hash(rows, self.schema), physical, OffsetInterval(first, first + rows.num_rows - 1), len(data)
        )

    def files(self) -> list[Path]:
        return sorted(path for path in self.folder.rglob("*") if path.is_file())


def logical_hash(rows: pa.Table, schema: pa.Schema = SCHEMA) -> Multihash:
    digest = Arrow0(schema)
    digest.update(rows)
    return digest.digest()


def events_of(rows: pa.Table, first: int, number: int, schema: pa.Schema = SCHEMA) -> pa.Table:
    """Rows (event_time, station, heat) as events from an offset on, seen in block ``number``."""
    count = rows.num_rows
    system = pa.table(
        {
            "offset": pa.array(range(first, first + count), pa.int64()),
            "op": pa.array([0] * count, pa.int32()),
            "system_time": pa.array([moment(1 + number).to_datetime()] * count, pa.timestamp("ms", "UTC")),
        }
    )
    columns = [*system.columns, *(rows.column(name) for name in ("event_time", "station", "heat"))]
    return pa.Table.from_arrays(
        [column.cast(field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def root_of(folder: Path, seed: int = 1, **served: Any) -> Served:
    """A root with two slices of readings."""
    root = Served(folder, SigningKey(bytes([seed]) * 32), **served)
    root.append(Seed(root.dataset_id, DatasetKind.ROOT))
    root.append(AddPushSource(source_name="station", read=ReadStepParquet(), merge=MergeStrategyAppend()))
    root.append(root.columns)
    for start in (0, 6):
        add_readings(root, start)
    return root


def add_readings(root: Served, start: int) -> None:
    state = root.state
    assert state is not None
    heat = [(start + index) % 5 for index in range(6)]
    rows = pa.table(
        {
            "event_time": pa.array([moment(1 + start).to_datetime()] * 6, pa.timestamp("ms", "UTC")),
            "station": [f"station {value}" for value in heat],
            "heat": heat,
        }
    )
    made = root.slice_of(events_of(rows, start, state.sequence_number + 1, root.schema))
    root.append(AddData(prev_offset=state.last_offset, new_data=made, new_watermark=moment(1 + start)))


def derived_of(folder: Path, source: Served, alias: str, query: str, seed: int) -> Served:
    """A dataset that a query makes of another."""
    derived = replace(source, folder=folder, key=SigningKey(bytes([seed]) * 32), state=None)
    derived.append(Seed(derived.dataset_id, DatasetKind.DERIVATIVE))
    inputs = (TransformInput(str(source.dataset_id), alias),)
    derived.append(SetTransform(inputs, TransformSql("duckdb", duckdb.__version__, query)))
    derived.append(derived.columns)
    run(derived, source)
    return derived


def run(derived: Served, source: Served) -> None:
    """Take what is new in the source."""
    own, theirs = derived.state, source.state
    assert own is not None
    assert theirs is not None
    known = own.inputs.get(source.dataset_id, InputPosition())
    taken = ExecuteTransformInput(source.dataset_id, known.block_hash, theirs.head, known.offset, theirs.last_offset)
    rows = result(own, taken, source.remote, own.sequence_number + 1)
    made = derived.slice_of(rows)
    derived.append(ExecuteTransform((taken,), None, own.last_offset, made, None, theirs.watermark))


def result(own: ChainState, taken: ExecuteTransformInput, source: RemoteDataset, number: int) -> pa.Table:
    """What the query gives over the records that a run took."""
    transform = own.transform
    assert transform is not None
    rows = pa.concat_tables(
        pq.read_table(source.store.url(f"data/{link.block.event.new_data.physical_hash}"))
        for link in reversed(list(iterate_blocks(source, taken.new_block_hash, until=taken.prev_block_hash)))
        if isinstance(link.block.event, AddData | ExecuteTransform) and link.block.event.new_data is not None
    )
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register(transform.inputs[0].alias or "", rows)
        given = arrow_rows(connection.execute(f"{transform.transform.query} ORDER BY ALL"))
    schema = own.arrow_schema()
    assert schema is not None
    return events_of(given, own.next_offset, number, schema)


def replay(dataset: RemoteDataset, block: Block, inputs) -> ExecuteTransform:
    """A recorded run, done again."""
    event = block.event
    assert isinstance(event, ExecuteTransform)
    assert block.prev_block_hash is not None
    own = state_at(dataset, block.prev_block_hash)
    (taken,) = event.query_inputs
    source = inputs(taken.dataset_id)
    rows = result(own, taken, source, block.sequence_number)
    assert taken.new_block_hash is not None
    assert event.new_data is not None
    interval = OffsetInterval(own.next_offset, own.next_offset + rows.num_rows - 1)
    made = replace(event.new_data, logical_hash=logical_hash(rows, rows.schema), offset_interval=interval)
    watermark = state_at(source, taken.new_block_hash).watermark
    return ExecuteTransform((taken,), None, own.last_offset, made, None, watermark)


@dataclass
class Graph:
    """Readings, those that are hot, and those by the names of their stations."""

    readings: Served
    hot: Served
    named: Served

    @classmethod
    def build(cls, folder: Path, **served: Any) -> "Graph":
        readings = root_of(folder / "readings", **served)
        hot = derived_of(folder / "hot", readings, "readings", HOT, 2)
        named = derived_of(folder / "named", hot, "hot", NAMED, 3)
        add_readings(readings, 12)
        run(hot, readings)
        run(named, hot)
        return cls(readings, hot, named)

    def copied(self, folder: Path) -> "Graph":
        """The same graph in another folder."""
        return Graph(
            *(
                replace(served, folder=Path(shutil.copytree(served.folder, folder / served.folder.name)))
                for served in (self.readings, self.hot, self.named)
            )
        )

    @property
    def datasets(self) -> Mapping[DatasetId, Served]:
        return {served.dataset_id: served for served in (self.readings, self.hot, self.named)}

    def resolve(self, wanted: DatasetId) -> RemoteDataset:
        if wanted not in self.datasets:
            raise ObjectNotFound(f"There is no dataset {wanted}.")
        return self.datasets[wanted].remote
