"""Why a version must be kept: a pin names it, or a version that is kept was built from it."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

from dagster_versioned.identity.names import TableName
from dagster_versioned.tables.history import History, Version

if TYPE_CHECKING:
    from dagster_versioned.tables.project import Project


@dataclass(frozen=True)
class Protection:
    """Why a version must not be expired; a pin keeps it from being purged too. ``text`` continues "it is …"."""

    kind: Literal["pin", "parent"]
    text: str


def protections(project: "Project", table: TableName, history: History) -> dict[str, Protection]:
    """Why a version of a table must be kept, by its ``metadata_sha``, for what lies outside of the table.

    That is pins, and kept versions of the project's other tables, whose parents are looked up in ``history``.
    """
    reasons: dict[str, Protection] = {}
    for other in project.tables():
        if other == table:
            continue
        for child in project.table(str(other)).history():
            if child.gone is None and child.raw is not None:
                for parent in child.raw["identity"].get("parents", ()):
                    # By SHA alone: whoever opens the project under another name must not lose parents by that.
                    for sha in history.versions_of(parent["version"]):
                        reasons[sha] = Protection("parent", f"a parent of {other} {child.short}")
    for pin in project.pins().values():
        if pin.table == table:
            reasons[pin.version] = Protection("pin", f"pinned as {pin.name!r}")
    return reasons


def with_own_parents(
    history: History, candidates: Iterable[Version], protected: Mapping[str, Protection]
) -> dict[str | None, Protection]:
    """The protected versions, with those that a staying version of this table names as parents, and theirs in turn."""
    reasons: dict[str | None, Protection] = {**protected}
    leaving: dict[str | None, list[Version]] = defaultdict(list)
    for version in candidates:
        if version.metadata_sha not in reasons:
            leaving[version.metadata_sha].append(version)
    going = {version for versions in leaving.values() for version in versions}
    staying = [v for v in history.versions if v.gone is None and v not in going]
    versions_of = cache(history.versions_of)
    while staying:
        child = staying.pop()
        for parent in child.raw["identity"].get("parents", ()) if child.raw is not None else ():
            for sha in versions_of(parent["version"]) & leaving.keys():
                reasons[sha] = Protection("parent", f"a parent of {child.short} (@{child.log_version})")
                staying += leaving.pop(sha)
    return reasons
