"""``.metadata/governance.json``: which governance a project's place belongs to, for readers that open the place itself.

datom's readers look for it and warn that the place may be left (FORMAT.md, "What datom readers see"). It says whom to
ask and nothing that a move changes, so it stays where a project was, and is the same where it is.
"""

import logging
from dataclasses import dataclass
from datetime import UTC
from typing import Any, Self, cast

import orjson

from dagster_versioned.errors import InvalidInput, ObjectNotFound, VersionedError
from dagster_versioned.governance.documents import MigrationHistory
from dagster_versioned.governance.mirror import GovernanceStore
from dagster_versioned.governance.registry import Registry
from dagster_versioned.storage.location import Location
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.document import encode, update_document

logger = logging.getLogger("dagster_versioned")

MARKER_KEY = ".metadata/governance.json"
"""Where the marker lies, below a project's data folder."""


@dataclass(frozen=True)
class GovernanceMarker:
    """The governance of a project: the registry's URL, the governance storage, and since when, in RFC 3339."""

    repo_url: str
    storage: Location
    attached_at: str

    @classmethod
    def of(cls, registry: Registry, mirror: GovernanceStore, history: MigrationHistory) -> Self | None:
        """The marker of a governed project; ``None`` where the governance storage is in a cloud that datom has not."""
        storage = storage_of(mirror)
        begun = [event.timestamp for event in history.events if event.kind in ("registered", "attached")]
        if storage is None or not begun:
            return None
        return cls(registry.remote, storage, f"{begun[-1].astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}")

    def to_bytes(self) -> bytes:
        """The members that datom writes, with sorted keys."""
        storage = {name: value for name, value in self.storage.to_json().items() if value}
        return encode({"gov_repo_url": self.repo_url, "gov_storage": storage, "attached_at": self.attached_at})


def storage_of(mirror: GovernanceStore) -> Location | None:
    """Where a governance storage is; ``None`` in a cloud that datom has not."""
    try:
        storage = Location.parse(mirror.store.uri)
    except InvalidInput:  # the URI of a store lacks what only a connection needs, such as Azure's account
        return None
    return storage if storage.type in ("s3", "local") else None


def read_marker(data: ObjectStore) -> GovernanceMarker | None:
    """The marker of a project's data folder; ``None`` where there is none that can be used, as in datom."""
    try:
        raw = cast("dict[str, Any]", orjson.loads(data.get(MARKER_KEY)))
        storage = {name: value for name, value in raw["gov_storage"].items() if value is not None}
        if not (raw["gov_repo_url"] and isinstance(raw["gov_repo_url"], str)):
            return None
        return GovernanceMarker(raw["gov_repo_url"], Location.from_json(storage), str(raw.get("attached_at", "")))
    except (ObjectNotFound, InvalidInput, ValueError, KeyError, TypeError, AttributeError):
        return None


def put_marker(data: ObjectStore, marker: GovernanceMarker | None) -> None:
    """Put the marker, or take away what is there; warns where that cannot be done, as no location depends on it."""
    try:
        if marker is None:
            data.delete([MARKER_KEY])
        else:
            update_document(data, MARKER_KEY, lambda _: marker.to_bytes())
    except VersionedError as error:
        logger.warning(
            "%s at %s could not be brought up to date, so datom's readers may not warn that the project can move. "
            "Nothing else depends on it; run the command again where that matters. %s",
            MARKER_KEY,
            data.uri,
            error,
        )
