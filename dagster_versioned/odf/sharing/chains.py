"""Two ends of one chain: which blocks one of them lacks, and what the chain says with each of these."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dagster_versioned.errors import ChainCorrupt, CommitConflict
from dagster_versioned.odf.blocks.block import Block
from dagster_versioned.odf.blocks.validity import ChainState, validate
from dagster_versioned.odf.identity.multihash import Multihash


@dataclass(frozen=True, slots=True)
class Difference:
    """The blocks that a source has and a copy lacks, in order; and how many it is the other way round."""

    new: tuple[Multihash, ...]
    ahead: int


Step = tuple[Block, ChainState]
"""A block, and what the chain says with it."""


def difference(
    head: Multihash,
    theirs: Callable[[Multihash], tuple[bytes, Block]],
    at: Multihash | None,
    ours: Callable[[Multihash], tuple[bytes, Block]],
) -> Difference:
    """Follow a chain back to what the copy at block ``at`` has; each block one number less, so that it ends.

    Raises `ChainCorrupt` for a chain that breaks that rule, `CommitConflict` where each side has blocks of its own.
    """
    if head == at:
        return Difference((), 0)
    new: list[Multihash] = []
    name, block = head, theirs(head)[1]
    mine, own, ahead = at, ours(at)[1] if at is not None else None, 0
    while True:
        while own is not None and own.sequence_number >= block.sequence_number and mine != name:
            ahead += 1
            mine = own.prev_block_hash
            own = ours(mine)[1] if mine is not None else None
        if mine == name:
            break
        new.append(name)
        if block.prev_block_hash in (None, mine):
            break
        before = theirs(block.prev_block_hash)[1]
        if before.sequence_number + 1 != block.sequence_number:
            raise ChainCorrupt(
                f"Block {block.prev_block_hash} is number {before.sequence_number}, and is recorded as the one before "
                f"{name}, number {block.sequence_number}. Nothing was copied."
            )
        name, block = block.prev_block_hash, before
    if ahead and new:
        common = "no block" if own is None else f"the blocks up to {mine} (number {own.sequence_number})"
        raise CommitConflict(
            f"The chains have grown apart: they share {common}; then the source has {len(new)} blocks and the copy "
            f"{ahead} others. Nothing was copied, and the copy is as it was. Ask the owner which is right; to take the "
            "source's, pull it into a new table."
        )
    return Difference(tuple(reversed(new)), ahead)


def steps_of(names: Iterable[Multihash], block: Callable[[Multihash], Block], state: ChainState | None) -> list[Step]:
    """New blocks, each with what the chain says then. Raises `ChainCorrupt` for one that breaks its rules."""
    steps: list[Step] = []
    for name in names:
        found = block(name)
        state = validate(state, found, name)
        steps.append((found, state))
    return steps
