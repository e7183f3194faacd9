"""What was read, as the lineage of what is built from it records it."""

from dataclasses import dataclass, field

from dagster_versioned.identity.version import Parent, SourceVersion
from dagster_versioned.tables.erased_parts import VersionKey


@dataclass(frozen=True)
class SeenVersions:
    """What was read of a log: the id of its table, the number of the newest erasure that it named, or -1, and the
    versions; ``None``: those of an environment, which no record of an erasure knows by number."""

    table_id: str
    epoch: int
    versions: frozenset[VersionKey] | None


@dataclass(frozen=True)
class Upstream:
    """A version that was read, as the lineage of what is built from it: the parent, and where its data comes from.

    The parent names the environment that made it, whoever reads it; a write leaves out its own
    (`tables.write.stage.parents_by_partition`). ``drafts`` are the ids of the parked drafts that made it, where it was
    read before they were published. ``reading`` says of what it was read, if that is known: rows may have
    been erased since.
    """

    parent: Parent
    sources: tuple[SourceVersion, ...]
    drafts: tuple[str, ...] = ()
    reading: SeenVersions | None = field(default=None, compare=False)
