"""Opening governed projects: where a project's bytes are, as each role asks it (seed 003, "Role-aware reads").

A *developer* has a clone of the registry: it says without a network where to read, though perhaps not for the last
days. A *reader* has none and asks the governance storage each time. Whoever writes asks the governance storage again,
just before: bytes that were written to the place of yesterday would be lost to everybody.
"""

import logging
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dagster_versioned.errors import GovernanceError, InvalidInput, ProjectMoved, VersionedError
from dagster_versioned.governance.documents import ProjectDocuments, Ref, project_name
from dagster_versioned.governance.mirror import GovernanceStore
from dagster_versioned.governance.place import same_place
from dagster_versioned.storage.credentials import CredentialsSource
from dagster_versioned.storage.location import Location
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.storage.opening import open_store

if TYPE_CHECKING:  # a reader needs no git
    from dagster_versioned.governance.registry import Registry
    from dagster_versioned.projects.project import Project

logger = logging.getLogger("dagster_versioned")

Role = Literal["developer", "reader"]
"""Who writes and has a clone of the registry, and who reads and has none."""

STALE_AFTER = timedelta(days=1)
"""How long ago a clone may have been fetched before whoever connects with it is warned."""


@dataclass(frozen=True)
class Access:
    """How the stores of a connection are opened: by boto3's own chain, a named profile, or a callable.

    A pickle holds the profile alone; boto3 looks for other credentials where it is unpickled.
    """

    profile: str | None = None
    credentials: CredentialsSource | None = field(default=None, repr=False)

    def open(self, location: Location | str) -> ObjectStore:
        """The store at a location. Raises `InvalidInput`."""
        return open_store(location, profile=self.profile, credentials=self.credentials)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.profile,)


class Governance:
    """An organization's governance, as one role connects to it.

    ``storage`` is the governance storage: a store, or its location. ``registry`` is a developer's clone, or its folder.
    ``stale_after`` is how old the clone's last fetch may be before each connection warns. ``profile`` and
    ``credentials`` are for the governance storage and for the projects' own. Raises `InvalidInput`.
    """

    def __init__(
        self,
        storage: ObjectStore | Location | str,
        *,
        role: Role = "reader",
        registry: "Registry | Path | str | None" = None,
        stale_after: timedelta = STALE_AFTER,
        profile: str | None = None,
        credentials: CredentialsSource | None = None,
    ) -> None:
        if role == "developer" and registry is None:
            raise InvalidInput(
                "A developer needs a clone of the registry. Nothing was opened. Pass registry=Registry.open(folder), "
                "or read with role='reader'."
            )
        if role == "reader" and registry is not None:
            raise InvalidInput(
                "A reader asks the governance storage and has no clone. Nothing was opened. Leave registry out, or "
                "pass role='developer'."
            )
        if isinstance(registry, Path | str):
            from dagster_versioned.governance.registry import Registry

            registry = Registry.open(Path(registry))
        self.role: Role = role
        self.registry = registry
        self.stale_after = stale_after
        self.access = Access(profile, credentials)
        self.storage = self.access.open(storage) if isinstance(storage, Location | str) else storage

    def __repr__(self) -> str:
        return f"Governance({self.storage.uri!r}, role={self.role!r})"

    @property
    def mirror(self) -> GovernanceStore:
        """The documents in the governance storage."""
        return GovernanceStore(self.storage)

    def documents(self, project: str) -> ProjectDocuments:
        """What governance says of a project: a developer's clone without a network, a reader's storage live.

        Warns where the clone is stale. Raises `GovernanceError` for what cannot be read, and for a ref.json that does
        not follow from its history.
        """
        name = project_name(project)
        if self.registry is None:
            return self.mirror.documents(name)
        fetched = self.registry.fetched_at
        if fetched is None or datetime.now(UTC) - fetched > self.stale_after:
            logger.warning(
                "The registry clone that says where %s is was %s. The project may have moved since. Reads go on; "
                "bring it up to date: dagster-versioned gov pull.",
                name,
                self.fetched(),
            )
        return self.registry.documents(name)

    def project(
        self,
        name: str,
        *,
        location: Location | str | None = None,
        author: str | None = None,
        profile: str | None = None,
        credentials: CredentialsSource | None = None,
    ) -> "Project":
        """The project, opened where it is now.

        ``location`` is where the caller believes it to be: a place that it has left is warned of and not used.
        ``profile`` and ``credentials`` are for the project's own store, where they are not those of the governance
        storage. Raises `GovernanceError`, also for a location that the project never had.
        """
        ref = self.documents(name).ref
        if location is not None:
            self._compare(name, ref, Location.parse(location) if isinstance(location, str) else location)
        access = Access(profile, credentials) if profile or credentials else self.access
        return self.project_at(name, ref.current, author=author, access=access)

    def project_at(
        self, name: str, place: Location, *, author: str | None = None, access: Access | None = None
    ) -> "Project":
        """The project at the place that `documents` named; nothing is asked again before it writes."""
        from dagster_versioned.projects.project import Project
        from dagster_versioned.tables.stand_ins import stand_in_for

        if (stand_in := stand_in_for(name)) is not None:
            return stand_in
        placement_authority = GovernedPlacement(self, name, place, access or self.access)
        return Project(
            name, placement_authority.access.open(place), author=author, placement_authority=placement_authority
        )

    def fetched(self) -> str:
        """When the clone was last brought up to date, as a part of a sentence."""
        at = self.registry.fetched_at if self.registry is not None else None
        return "fetched nobody knows when" if at is None else f"last fetched at {at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"

    def _compare(self, name: str, ref: Ref, given: Location) -> None:
        """Warn of a given location that the project has left; refuse one that it never had."""
        if same_place(given, ref.current):
            return
        until = left_at(ref, given)
        if until is None:
            hint = "" if self.role == "reader" else f" (the registry clone was {self.fetched()}: gov pull)"
            raise GovernanceError(
                f"{name} was never at {given.uri}, as far as its ref.json knows{hint}: it is at {ref.current.uri}. "
                "Nothing was opened. Leave the location out, or correct it."
            )
        logger.warning(
            "%s is not at %s any more: it left on %s, and is opened at %s. Change the location that you give, or leave "
            "it out.",
            name,
            given.uri,
            f"{until:%Y-%m-%d}",
            ref.current.uri,
        )


@dataclass(frozen=True)
class GovernedPlacement:
    """A governed project's `PlacementAuthority`: whether the place that was opened is still the one."""

    governance: Governance
    project: str
    place: Location
    access: Access

    def check_write(self) -> None:
        """Return if the live ref.json says that the bytes belong where the project was opened.

        Raises `GovernanceError` for a reader, and where it cannot be read or names a place that nobody knows;
        `ProjectMoved` where the project has left.
        """
        if self.governance.role == "reader":
            raise GovernanceError(
                f"Nothing was written: {self.project} was opened by a reader of {self.governance.storage.uri}. Open it "
                "as a developer, with a clone of the registry, to write to it."
            )
        try:
            ref = self.governance.mirror.ref(self.project)
        except VersionedError as error:
            raise GovernanceError(
                f"Nothing was written: the ref.json of {self.project} could not be read live from "
                f"{self.governance.storage.uri}, and no other answer is safe. Check that storage and your rights to "
                f"it, run `dagster-versioned gov pull`, and try again. {error}"
            ) from error
        if same_place(ref.current, self.place):
            return
        until = left_at(ref, self.place)
        if until is not None:
            raise ProjectMoved(
                f"Nothing was written: {self.project} was opened at {self.place.uri}, but left it for "
                f"{ref.current.uri} on {until:%Y-%m-%d}. Your registry clone is stale ({self.governance.fetched()}): "
                "run `dagster-versioned gov pull`, and open the project again."
            )
        try:
            self.governance.mirror.documents(self.project)
        except GovernanceError as error:
            raise GovernanceError(f"Nothing was written: {error}") from error
        raise GovernanceError(
            f"Nothing was written: {self.project} was opened at {self.place.uri}, but the ref.json in "
            f"{self.governance.storage.uri} says {ref.current.uri} and has not heard of that place: it is behind the "
            "registry. Publish it anew, with `dagster-versioned gov pull`, and try again."
        )

    def relocated(self) -> ObjectStore | None:
        """The store where the bytes are now, or ``None`` if the project is still where it was opened.

        Warns, and gives ``None``, where governance does not answer or its documents disagree.
        """
        try:
            current = self.governance.mirror.documents(self.project).ref.current
        except VersionedError as error:
            logger.warning(
                "Whether %s has moved from %s is not known, so what is there is read. %s",
                self.project,
                self.place.uri,
                error,
            )
            return None
        return None if same_place(current, self.place) else self.access.open(current)


def left_at(ref: Ref, place: Location) -> datetime | None:
    """When the project last left a place; ``None`` where it never was."""
    return max((past.until for past in ref.previous if same_place(past.location, place)), default=None)
