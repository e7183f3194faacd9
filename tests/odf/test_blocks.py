"""Blocks are the bytes that the reference implementation writes, and no others pass for one."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_versioned.errors import ChainCorrupt, InvalidInput, UnsupportedFeature
from dagster_versioned.odf.blocks.block import MAX_BLOCK_SIZE, Block, block_hash, decode_block, encode_block
from dagster_versioned.odf.blocks.events import (
    AddData,
    DatasetKind,
    Seed,
    SetInfo,
    SetTransform,
    SetVocab,
    Timestamp,
    TransformInput,
    TransformSql,
)
from dagster_versioned.odf.blocks.flatbuffer import decode_table, encode_table
from dagster_versioned.odf.identity.dataset_id import DatasetId
from dagster_versioned.odf.identity.multihash import HashAlgorithm, Multihash
from support import odf_values
from support.odf_vectors import ABSENT, BLOCKS

NOON = Timestamp(2024, 60, 43_200)
SEED = Block(NOON, None, 0, Seed(DatasetId(bytes(range(32))), DatasetKind.ROOT))


@pytest.mark.skipif(not BLOCKS, reason=ABSENT)
def test_blocks_of_the_reference_are_read_and_written_byte_for_byte() -> None:
    assert len(BLOCKS) >= 14
    for vector in BLOCKS:
        data = bytes.fromhex(vector["manifest_hex"])
        block = decode_block(data)
        assert encode_block(block, vector["manifest_version"]) == data, vector["name"]
        assert block_hash(data).digest.hex() == vector["sha3_256"], vector["name"]


@settings(max_examples=40)
@given(odf_values.BLOCKS, st.sampled_from([2, 3]))
def test_every_event_comes_back_as_it_was(block: Block, version: int) -> None:
    assert decode_block(encode_block(block, version)) == block


def test_a_zero_that_may_be_missing_is_not_the_same_as_a_missing_one() -> None:
    zero = replace(SEED, event=AddData(prev_offset=0))
    none = replace(SEED, event=AddData())
    assert decode_block(encode_block(zero)) == zero
    assert decode_block(encode_block(none)) == none


@pytest.mark.parametrize("event", [SetInfo("\ud800"), AddData(prev_offset=2**64), AddData(prev_offset=-1)], ids=str)
def test_what_no_block_can_hold_is_refused(event: Any) -> None:
    with pytest.raises(InvalidInput, match="Block cannot be encoded"):
        encode_block(replace(SEED, event=event))


def test_manifest_version_3_differs_by_the_place_of_timestamps_only() -> None:
    second, third = encode_block(SEED, 2), encode_block(SEED, 3)
    assert second != third
    assert decode_block(second) == decode_block(third)


def test_a_manifest_version_from_the_future_is_neither_written_nor_read() -> None:
    with pytest.raises(InvalidInput, match="version 2 or 3, not 4"):
        encode_block(SEED, 4)
    data = bytearray(encode_block(SEED))
    at = data.index((2).to_bytes(4, "little") + (0x400000).to_bytes(8, "little"))
    data[at] = 4
    with pytest.raises(UnsupportedFeature, match="manifest version 4"):
        decode_block(bytes(data))


def test_bytes_of_another_kind_are_no_block() -> None:
    data = encode_block(SEED).replace((0x400000).to_bytes(8, "little"), (0x400001).to_bytes(8, "little"))
    with pytest.raises(ChainCorrupt, match="kind 0x400001"):
        decode_block(data)


@dataclass(frozen=True)
class SeedOfTheFuture:
    dataset_id: DatasetId
    dataset_kind: DatasetKind
    colour: str


@dataclass(frozen=True)
class InputOfThePast:
    alias: str | None


def test_a_field_that_is_not_known_is_refused_by_its_place() -> None:
    data = encode_table(SeedOfTheFuture(DatasetId(bytes(32)), DatasetKind.ROOT, "red"))
    with pytest.raises(UnsupportedFeature, match="Seed has a field in slot 2"):
        decode_table(data, Seed)


def test_a_required_field_that_is_missing_is_named() -> None:
    with pytest.raises(ChainCorrupt, match=r"TransformInput\.dataset_ref is missing"):
        decode_table(encode_table(InputOfThePast(None)), TransformInput)


def test_an_event_that_is_not_known_is_refused() -> None:
    first = encode_block(replace(SEED, event=SetInfo()))
    other = encode_block(replace(SEED, event=SetVocab()))  # differs in the tag alone: neither has a field
    (tag,) = [at for at in range(len(first)) if first[at] != other[at]]
    with pytest.raises(UnsupportedFeature, match=r"Block\.event is of kind 14, which is not known; 13 kinds are"):
        decode_block(first[:tag] + b"\x0e" + first[tag + 1 :])


def test_an_enumeration_value_that_is_not_known_is_refused() -> None:
    root, derivative = (
        encode_table(Seed(DatasetId(bytes(32)), kind)) for kind in (DatasetKind.ROOT, DatasetKind.DERIVATIVE)
    )
    assert len(root) != len(derivative)  # a zero is not written
    at = derivative.index((1).to_bytes(4, "little"))
    with pytest.raises(UnsupportedFeature, match="dataset_kind is the value 9"):
        decode_table(derivative[:at] + b"\x09" + derivative[at + 1 :], Seed)


def test_a_hash_of_another_algorithm_is_refused_with_its_code() -> None:
    data = encode_block(replace(SEED, prev_block_hash=Multihash(HashAlgorithm.SHA3_256, bytes(32))))
    with pytest.raises(ChainCorrupt, match=r"prev_block_hash.*algorithm 0x12"):
        decode_block(data.replace(b"\x16\x20" + bytes(32), b"\x12\x20" + bytes(32)))


def test_a_text_ends_with_a_zero_and_nothing_leads_to_itself() -> None:
    """FlatBuffers' own verifiers refuse both."""
    data = encode_table(SetInfo("abc"))
    at = data.index(b"\x03\0\0\0abc\0")
    with pytest.raises(ChainCorrupt, match=r"SetInfo\.description is a text without the zero that ends it"):
        decode_table(data[: at + 7] + b"!" + data[at + 8 :], SetInfo)
    with pytest.raises(ChainCorrupt, match=r"SetInfo\.description is a text without the zero that ends it"):
        decode_table(data[: at + 7], SetInfo)
    lead = next(place for place in range(at) if data[place : place + 4] == (at - place).to_bytes(4, "little"))
    with pytest.raises(ChainCorrupt, match=r"SetInfo\.description leads to itself"):
        decode_table(data[:lead] + bytes(4) + data[lead + 4 :], SetInfo)


def test_a_block_larger_than_any_is_not_looked_at() -> None:
    with pytest.raises(ChainCorrupt, match="is refused; the limit"):
        decode_block(bytes(MAX_BLOCK_SIZE + 1))


def test_parts_that_share_their_bytes_do_not_make_a_small_block_large() -> None:
    """A vector whose 4000 entries are one string of 40 kB: 160 MB if it were believed."""
    keywords = tuple(f"{index:08}" for index in range(4_000))
    data = bytearray(encode_table(SetInfo("x" * 40_000, keywords)))
    assert decode_table(bytes(data), SetInfo).keywords == keywords
    vector = data.index((4_000).to_bytes(4, "little"))
    text = data.index((40_000).to_bytes(4, "little"))
    for index in range(4_000):
        at = vector + 4 + 4 * index
        data[at : at + 4] = (text - at).to_bytes(4, "little")
    with pytest.raises(ChainCorrupt, match="more parts than"):
        decode_table(bytes(data), SetInfo)


@given(st.data())
def test_no_bytes_break_the_reader(data: st.DataObject) -> None:
    """Whatever is changed, a block is read or refused by name; nothing else is raised."""
    transform = SetTransform((TransformInput("a", "b"),), TransformSql("spark", query="SELECT 1"))
    block = bytearray(encode_block(replace(SEED, event=transform)))
    for _ in range(data.draw(st.integers(1, 4))):
        block[data.draw(st.integers(0, len(block) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(block)))
    result: Any = None
    try:
        result = decode_block(bytes(block[:cut] if data.draw(st.booleans()) else block))
    except (ChainCorrupt, UnsupportedFeature):
        return
    assert isinstance(result, Block)
