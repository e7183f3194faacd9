"""Chains built block by block, as a dataset's writer would; invalid ones, too."""

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from dagster_versioned.errors import ObjectNotFound
from dagster_versioned.odf.blocks.arrow_schema import encode_schema
from dagster_versioned.odf.blocks.block import Block, block_hash, decode_block, encode_block
from dagster_versioned.odf.blocks.events import (
    AddData,
    DatasetKind,
    DataSlice,
    OffsetInterval,
    Seed,
    SetDataSchema,
    Timestamp,
)
from dagster_versioned.odf.blocks.validity import ChainState, validate
from dagster_versioned.odf.identity.dataset_id import DatasetId
from dagster_versioned.odf.identity.multihash import HashAlgorithm, Multihash

DATASET = DatasetId(b"\x01" * 32)
OTHER = DatasetId(b"\x02" * 32)
THIRD = DatasetId(b"\x03" * 32)
SYSTEM = [
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("op", pa.int32(), nullable=False),
    pa.field("system_time", pa.timestamp("ms", "UTC"), nullable=False),
    pa.field("event_time", pa.timestamp("ms", "UTC")),
]


def moment(day: int) -> Timestamp:
    """Noon of a day of 2024."""
    return Timestamp(2024, day, 43_200)


def schema_of(**columns: pa.DataType) -> SetDataSchema:
    """The system columns and these."""
    return SetDataSchema(encode_schema(pa.schema([*SYSTEM, *columns.items()])))


def named(text: str) -> Multihash:
    """Some hash of bytes."""
    return Multihash.sha3_256(text.encode())


def slice_of(start: int, end: int) -> DataSlice:
    """A slice of records that nobody has."""
    logical = Multihash(HashAlgorithm.ARROW0_SHA3_256, named(f"records {start}").digest)
    return DataSlice(logical, named(f"file {start}"), OffsetInterval(start, end), 100)


@dataclass
class Chain:
    """Blocks in memory; `append` validates each, `force` does not."""

    state: ChainState | None = None
    stored: dict[Multihash, bytes] = field(default_factory=dict)
    reads: int = 0

    @classmethod
    def root(cls) -> "Chain":
        chain = cls()
        chain.append(Seed(DATASET, DatasetKind.ROOT))
        return chain

    @classmethod
    def derivative(cls) -> "Chain":
        chain = cls()
        chain.append(Seed(DATASET, DatasetKind.DERIVATIVE))
        return chain

    @property
    def head(self) -> Multihash:
        assert self.state is not None
        return self.state.head

    def next(self, event: Any, **changed: Any) -> Block:
        """The block that would come next, but for what is ``changed``."""
        before = self.state
        values = {
            "system_time": moment(1) if before is None else before.system_time,
            "prev_block_hash": None if before is None else before.head,
            "sequence_number": 0 if before is None else before.sequence_number + 1,
        }
        return Block(event=event, **(values | changed))

    def put(self, block: Block) -> Multihash:
        data = encode_block(block)
        self.stored[block_hash(data)] = data
        return block_hash(data)

    def append(self, event: Any, **changed: Any) -> "Chain":
        block = self.next(event, **changed)
        name = self.put(block)
        self.state = validate(self.state, block, name)
        return self

    def add(self, rows: int, **changed: Any) -> "Chain":
        """Data, with all that an AddData carries forward."""
        state = self.state
        assert state is not None
        start = state.next_offset
        values: dict[str, Any] = {
            "prev_offset": state.last_offset,
            "new_data": slice_of(start, start + rows - 1) if rows else None,
            "new_watermark": state.watermark,
        }
        return self.append(AddData(**(values | changed)))

    def block(self, name: Multihash) -> tuple[bytes, Block]:
        self.reads += 1
        if name not in self.stored:
            raise ObjectNotFound(f"There is no block {name}.")
        return self.stored[name], decode_block(self.stored[name])
