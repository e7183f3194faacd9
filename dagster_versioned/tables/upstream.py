"""What was read, as the lineage of what is built from it records it."""

from dataclasses import dataclass, field

from dagster_versioned.identity.version import Parent, SourceVersion


@dataclass(frozen=True)
class Upstream:
    """A version that was read, as the lineage of what is built from it: the parent, and where its data comes from.

    The parent names the environment that made it, whoever reads it; a write leaves out its own
    (`tables.write.stage.parents_by_partition`). ``drafts`` are the ids of the parked drafts that made it, where it was
    read before they were published. ``seen`` is the log version up to which its table was known when it was read,
    if that is said: rows may have been erased since.
    """

    parent: Parent
    sources: tuple[SourceVersion, ...]
    drafts: tuple[str, ...] = ()
    seen: int | None = field(default=None, compare=False)
