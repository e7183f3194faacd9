"""Where a table's metadata chain ends, as the log says: a commit that appends blocks names the last of them.

So a commit and its blocks are one, and whatever of the chain no commit names is nobody's. Source: seed 002 ("Metadata
Chain"); FORMAT.md ("Histories of events").
"""

from dataclasses import dataclass
from typing import Self

from dagster_versioned.delta.actions import DomainMetadata
from dagster_versioned.delta.log.snapshot import Snapshot
from dagster_versioned.errors import LogCorrupt
from dagster_versioned.storage.keys import is_key
from dagster_versioned.tables.document import encode, parse_object

CHAIN_DOMAIN = "dagster_versioned.chain"
REF_KEY = "refs/head"
BLOCKS = "blocks/"


@dataclass(frozen=True)
class ChainHead:
    """The last block of a chain: its hash (multibase), its place in the chain, and whose chain it is.

    Promises that the hash is a name below `BLOCKS`. Raises `LogCorrupt`.
    """

    head: str
    sequence_number: int
    dataset_id: str

    def __post_init__(self) -> None:
        if not self.head.isalnum() or not is_key(f"{BLOCKS}{self.head}") or self.sequence_number < 0:
            raise LogCorrupt(f"{CHAIN_DOMAIN} names {self.head!r:.100} as a block, which is none. Nothing was read.")

    @classmethod
    def parse(cls, configuration: str) -> Self:
        """What a commit recorded. Raises `LogCorrupt`."""
        try:
            members = parse_object(configuration, CHAIN_DOMAIN, "chain")
        except ValueError as error:
            raise LogCorrupt(f"{CHAIN_DOMAIN} cannot be parsed: {error}. Nothing was read.") from error
        return cls(members.text("head"), members.count("sequence_number"), members.text("dataset_id"))

    def action(self) -> DomainMetadata:
        """The action that records it."""
        head = {"head": self.head, "sequence_number": self.sequence_number, "dataset_id": self.dataset_id}
        return DomainMetadata(CHAIN_DOMAIN, encode(head).decode(), False)


def chain_head(snapshot: Snapshot) -> ChainHead | None:
    """Where the chain of a table ends; ``None`` for a table that is no history of events. Raises `LogCorrupt`."""
    configuration = snapshot.domains.get(CHAIN_DOMAIN)
    return None if configuration is None else ChainHead.parse(configuration)
