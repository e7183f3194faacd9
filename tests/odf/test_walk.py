"""Walks along a chain: each block is read once, and none leads astray."""

from dataclasses import replace

import pytest

from dagster_versioned.errors import ChainCorrupt, ObjectNotFound
from dagster_versioned.odf.blocks.block_iterator import iterate_blocks, state_at
from dagster_versioned.odf.blocks.events import SetInfo
from dagster_versioned.odf.identity.multihash import Multihash
from support.odf_chains import Chain, named


def chain_of(length: int, start: str = "") -> Chain:
    chain = Chain.root()
    for number in range(1, length):
        chain.append(SetInfo(f"{start}{number}"))
    return chain


def test_a_walk_reads_each_block_once_from_the_last_to_the_first() -> None:
    chain = chain_of(50)
    links = list(iterate_blocks(chain, chain.head))
    assert [link.block.sequence_number for link in links] == list(range(49, -1, -1))
    assert chain.reads == 50
    assert links[0].size == len(chain.stored[chain.head])


def test_a_walk_ends_before_the_block_that_is_known() -> None:
    chain = chain_of(10)
    known = chain.head
    for number in range(3):
        chain.append(SetInfo(f"new {number}"))
    chain.reads = 0
    assert len(list(iterate_blocks(chain, chain.head, until=known))) == 3
    assert list(iterate_blocks(chain, known, until=known)) == []
    assert chain.reads == 3


def test_a_walk_that_does_not_meet_the_known_block_says_so() -> None:
    chain = chain_of(5)
    with pytest.raises(ChainCorrupt, match="does not go through"):
        list(iterate_blocks(chain, chain.head, until=named("elsewhere")))


def test_what_a_chain_says_is_read_once_in_a_process() -> None:
    chain = chain_of(20, "once")
    assert state_at(chain, chain.head) == chain.state
    assert chain.reads == 20
    chain.append(SetInfo("one more"))
    assert state_at(chain, chain.head) == chain.state
    assert chain.reads == 21


def test_a_chain_that_breaks_a_rule_says_nothing() -> None:
    chain = chain_of(4)
    block = chain.next(SetInfo("3"))  # as the one before it: a no-op
    with pytest.raises(ChainCorrupt, match="changes nothing"):
        state_at(chain, chain.put(block))


class Lying(Chain):
    """Answers with another block than it was asked for, as only a source that finds collisions could."""

    lies: dict[Multihash, Multihash]

    def block(self, name: Multihash):
        return super().block(self.lies.get(name, name))


def test_a_loop_is_refused_at_once() -> None:
    chain = chain_of(10)
    lying = Lying(chain.state, chain.stored)
    first = list(iterate_blocks(chain, chain.head))[-2]
    lying.lies = {first.name: chain.head}
    with pytest.raises(ChainCorrupt, match="a gap or a loop"):
        list(iterate_blocks(lying, chain.head))
    assert lying.reads == 9


def test_a_block_that_is_missing_is_named() -> None:
    chain = chain_of(3)
    gone = list(iterate_blocks(chain, chain.head))[1].name
    del chain.stored[gone]
    with pytest.raises(ObjectNotFound, match=str(gone)):
        list(iterate_blocks(chain, chain.head))


def test_a_first_block_is_where_the_numbers_end() -> None:
    chain = chain_of(3)
    early = chain.put(replace(chain.next(SetInfo("x")), prev_block_hash=None))
    with pytest.raises(ChainCorrupt, match="follows none, and is not the first"):
        list(iterate_blocks(chain, early))
    late = chain.put(replace(chain.next(SetInfo("x")), sequence_number=0))
    with pytest.raises(ChainCorrupt, match="a first block follows none"):
        list(iterate_blocks(chain, late))
