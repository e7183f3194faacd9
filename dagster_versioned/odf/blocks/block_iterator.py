"""Along a chain, block by block: each is read once, and none is believed that its hash does not prove."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock
from typing import Final, Protocol

from dagster_versioned.errors import ChainCorrupt
from dagster_versioned.odf.blocks.block import Block
from dagster_versioned.odf.blocks.validity import ChainState, validate
from dagster_versioned.odf.identity.multihash import Multihash
from dagster_versioned.process_state import PROCESS


class Blocks(Protocol):
    """Whoever has blocks by their hashes."""

    def block(self, name: Multihash) -> tuple[bytes, Block]:
        """A block whose bytes have that hash. Raises `ChainCorrupt`, `ObjectNotFound`."""
        ...


@dataclass(frozen=True, slots=True)
class Link:
    """A block, its hash, and how many bytes it has."""

    name: Multihash
    block: Block
    size: int


def iterate_blocks(blocks: Blocks, head: Multihash, *, until: Multihash | None = None) -> Iterator[Link]:
    """The blocks from ``head`` back to the first one, or to ``until``, which is left out.

    Sequence numbers fall by one from block to block, so no chain can go on for ever. Raises `ChainCorrupt` for a chain
    that does not keep to that, or that never meets ``until``.
    """
    name, expected = head, None
    while name != until:
        data, block = blocks.block(name)
        if expected is not None and block.sequence_number != expected:
            raise ChainCorrupt(
                f"Block {name} has the number {block.sequence_number}, and the block after it {expected + 1}: the "
                "chain has a gap or a loop. Nothing of it is believed."
            )
        yield Link(name, block, len(data))
        if block.prev_block_hash is None:
            if block.sequence_number:
                raise ChainCorrupt(f"Block {block.sequence_number} ({name}) follows none, and is not the first one.")
            if until is not None:
                raise ChainCorrupt(f"The chain that ends with {head} does not go through {until}.")
            return
        if not block.sequence_number:
            raise ChainCorrupt(f"Block 0 ({name}) follows {block.prev_block_hash}: a first block follows none.")
        name, expected = block.prev_block_hash, block.sequence_number - 1


_KEPT: Final = 256


class KnownStates:
    """What chains say up to a block, by its hash: what that stands for never changes. The newest ones are kept."""

    def __init__(self) -> None:
        self._states: OrderedDict[Multihash, ChainState] = OrderedDict()
        self._lock = Lock()

    def get(self, head: Multihash | None) -> ChainState | None:
        """The state up to and with a block, if it is known."""
        return None if head is None else self._states.get(head)

    def keep(self, head: Multihash, state: ChainState) -> None:
        """Remember a state."""
        with self._lock:
            self._states[head] = state
            self._states.move_to_end(head)
            while len(self._states) > _KEPT:
                self._states.popitem(last=False)


def state_at(blocks: Blocks, head: Multihash) -> ChainState:
    """What the chain says up to and with ``head``; every block that was not met before is read and validated.

    `verify` does not use the states that are kept. Raises `ChainCorrupt`, `ObjectNotFound`.
    """
    later: list[Link] = []
    state: ChainState | None = None
    for link in _back_from(blocks, head):
        if isinstance(link, ChainState):
            state = link
            break
        later.append(link)
    for link in reversed(later):
        state = validate(state, link.block, link.name)
    assert state is not None  # a chain has a first block
    PROCESS.of(KnownStates).keep(head, state)
    return state


def _back_from(blocks: Blocks, head: Multihash) -> Iterator[Link | ChainState]:
    """The blocks back to the first one, or to one whose state is known: then that, last."""
    states = PROCESS.of(KnownStates)
    if (known := states.get(head)) is not None:
        yield known
        return
    for link in iterate_blocks(blocks, head):
        yield link
        if (known := states.get(link.block.prev_block_hash)) is not None:
            yield known
            return
