"""Blocks: one event each, with its place in the chain, as bytes whose hash is their name. Source: seed 002 ("Metadata
Block Hashing")."""

from dataclasses import dataclass
from typing import Annotated, Final

from dagster_versioned.errors import ChainCorrupt, InvalidInput, UnsupportedFeature
from dagster_versioned.odf.blocks.events import AddData, DataSlice, ExecuteTransform, MetadataEvent, Timestamp
from dagster_versioned.odf.blocks.flatbuffer import decode_table, encode_table
from dagster_versioned.odf.blocks.marks import Uint64, Width
from dagster_versioned.odf.identity.multihash import Multihash

MAX_BLOCK_SIZE: Final = 16 * 2**20
"""Bytes beyond which a block is not read: the largest hold texts that people attach, not data."""

MANIFEST_VERSION: Final = 2
"""What is written: Open Data Fabric 0.36's."""

_KIND: Final = 0x400000
_TIMESTAMP_ALIGN: Final = {2: 1, 3: 4}
"""By manifest version: bytes of which a multiple lies before a timestamp."""


@dataclass(frozen=True, slots=True)
class Block:
    """An event, when it was appended, after which block, and as which of the chain (from 0)."""

    system_time: Timestamp
    prev_block_hash: Multihash | None
    sequence_number: Uint64
    event: MetadataEvent

    @property
    def new_data(self) -> DataSlice | None:
        """The slice of records that came with it, if one did."""
        return self.event.new_data if isinstance(self.event, AddData | ExecuteTransform) else None


@dataclass(frozen=True, slots=True)
class _Manifest:
    kind: Annotated[int, Width.INT64]
    version: Annotated[int, Width.INT32]
    content: bytes


def encode_block(block: Block, manifest_version: int = MANIFEST_VERSION) -> bytes:
    """The block's bytes. Raises `InvalidInput` for a manifest version other than 2 and 3."""
    align = _TIMESTAMP_ALIGN.get(manifest_version)
    if align is None:
        raise InvalidInput(f"Blocks are written with manifest version 2 or 3, not {manifest_version}.")
    content = encode_table(block, timestamp_align=align)
    return encode_table(_Manifest(_KIND, manifest_version, content))


def decode_block(data: bytes) -> Block:
    """The block of bytes, of manifest version 2 or 3.

    Raises `ChainCorrupt` for bytes that are no block, `UnsupportedFeature` for what a later version may have brought.
    """
    if len(data) > MAX_BLOCK_SIZE:
        raise ChainCorrupt(f"A block of {len(data)} bytes is refused; the limit is {MAX_BLOCK_SIZE}.")
    manifest = decode_table(data, _Manifest)
    if manifest.kind != _KIND:
        raise ChainCorrupt(f"The bytes are of kind {manifest.kind:#x}, not a metadata block ({_KIND:#x}).")
    if manifest.version not in _TIMESTAMP_ALIGN:
        raise UnsupportedFeature(f"A block has the manifest version {manifest.version}; 2 and 3 can be read.")
    return decode_table(manifest.content, Block)


def block_hash(data: bytes) -> Multihash:
    """The name of a block: the SHA3-256 of its bytes."""
    return Multihash.sha3_256(data)
