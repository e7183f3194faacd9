"""Who knows where a project's bytes belong; the tables ask, governance answers."""

from typing import Protocol

from dagster_versioned.storage.object_store import ObjectStore


class PlacementAuthority(Protocol):
    """What a project asks when it is governed (seed 003, "Role-aware reads"). Both answers are read live."""

    def check_write(self) -> None:
        """Return if the bytes belong at the place that was opened.

        Raises `GovernanceError` where that cannot be known, and `ProjectMoved` where they belong elsewhere; it is asked
        before anything is written.
        """
        ...

    def relocated(self) -> ObjectStore | None:
        """The store where the bytes are now; ``None`` if that is the place that was opened.

        Where governance does not answer, it warns and gives ``None``, so that what is here can be read.
        """
        ...
