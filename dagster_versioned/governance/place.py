"""A place of a project's bytes: which places are one, what of the project is there, and clearing it.

Keys here are those below the project's data folder.
"""

import re
from collections.abc import Collection
from pathlib import Path

from dagster_versioned.errors import InvalidInput
from dagster_versioned.identity.names import DATA_FOLDER
from dagster_versioned.storage.location import Location
from dagster_versioned.storage.object_store import ObjectInfo, ObjectStore

_BATCH = 1000
# Governance storage may have the root of a project's data.
_GOVERNANCE = re.compile(r"projects/[^/]+/(ref|dispatch|migration_history|migration)\.json")


def same_place(one: Location, other: Location) -> bool:
    """Whether two locations are one place, with or without the region of the bucket, through links or not."""
    return _server(one) == _server(other) and _path(one) == _path(other)


def share_bytes(one: Location, other: Location) -> bool:
    """Whether the data folder of a project at the one is that of a project at the other, or lies in it or around it."""
    here, there = _path(one) / DATA_FOLDER, _path(other) / DATA_FOLDER
    return _server(one) == _server(other) and (here.is_relative_to(there) or there.is_relative_to(here))


def objects(data: ObjectStore) -> list[ObjectInfo]:
    """Every object below a project's data folder that is the project's, sorted by key."""
    return [info for info in data.list() if not _GOVERNANCE.fullmatch(info.key)]


def clear(data: ObjectStore, *, keep: Collection[str] = ()) -> int:
    """Delete what `objects` lists, other than ``keep``, until nothing comes after; returns how many were deleted."""
    deleted = 0
    while keys := [info.key for info in objects(data) if info.key not in keep]:
        for first in range(0, len(keys), _BATCH):
            data.delete(keys[first : first + _BATCH])
        deleted += len(keys)
    return deleted


def check_apart(source: Location, target: Location) -> None:
    """Refuse two places of which one is the other, or lies in it. Raises `InvalidInput`."""
    if same_place(source, target):
        raise InvalidInput(f"{target.uri} is where the project is. Nothing was changed. Name another place.")
    old, new = _path(source), _path(target)
    if _server(source) == _server(target) and (new.is_relative_to(old) or old.is_relative_to(new)):
        inner, outer = (target, source) if new.is_relative_to(old) else (source, target)
        raise InvalidInput(
            f"{inner.uri} lies inside of {outer.uri}, and a project's bytes would be among those of its other place. "
            "Nothing was changed. Name a place that is neither inside of the old one nor around it."
        )


def _server(location: Location) -> tuple[str, str | None, str | None]:
    return location.type, location.account, location.endpoint_url


def _path(location: Location) -> Path:
    if location.type == "local":
        return Path(location.root, location.prefix).resolve()
    return Path("/", location.root, location.prefix)
