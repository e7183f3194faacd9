"""Which versions a reference means, in a table or in some of its partitions."""

from collections.abc import Collection as Names
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from dagster_versioned.errors import InvalidInput, VersionNotFound
from dagster_versioned.identity.names import TableName
from dagster_versioned.tables.history import History, Selection, Version

VersionLike = str | int | datetime | None
"""What names a version: a SHA prefix, ``"@12"`` or 12, a time, ``"pin:name"``, ``"tag:name"``; ``None``: the head."""


@dataclass(frozen=True)
class ChosenVersions:
    """The versions (one, or one per partition) that a reference means, at one log version.

    None where a foreign commit had the last word. ``whole`` says that they are all there was of the table.
    """

    versions: tuple[Version, ...]
    log_version: int
    whole: bool

    def only(self, partitions: Names[str]) -> "ChosenVersions":
        """Those of some partitions, in the order of these. Raises `VersionNotFound` where one has none."""
        return ChosenVersions(
            _of_partitions(self.versions, partitions, self.log_version), self.log_version, whole=False
        )


def choose_versions(
    history: History, selection: Selection, partition: str | None, partitions: Names[str] | None
) -> ChosenVersions:
    """The versions that a selection means, whether or not their bytes are kept.

    Of one partition, of several, or (both ``None``) of the whole table. Raises `VersionNotFound` for a partition that
    has no version, or another one than was asked for; `InvalidInput` for an empty list of partitions.
    """
    wanted, version = [partition] if partition is not None else partitions, selection.version
    if version is not None and wanted is not None and set(wanted) != {version.partition}:
        raise VersionNotFound(
            f"Version {version.short} is of partition {version.partition!r}, not of "
            f"{sorted(map(str, set(wanted)))}. Nothing was read."
        )
    if partitions is not None and not partitions:
        raise InvalidInput("An empty list of partitions names nothing to read. Leave it out to read all of them.")
    if version is not None:
        return ChosenVersions((version,), selection.log_version, whole=False)
    current = history.until(selection.log_version).current
    chosen = ChosenVersions(tuple(current), selection.log_version, whole=True)
    return chosen if wanted is None else chosen.only(wanted)


def choose_version(table: TableName, history: History, selection: Selection, partition: str | None) -> Version:
    """The one version that a selection means, of one partition or of a table that has none. Raises `VersionNotFound`.

    A log version or a time means the head then, which is a foreign commit where one came last.
    """
    if (version := selection.version) is not None:
        if partition not in (None, version.partition):
            raise VersionNotFound(
                f"Version {version.short} is of partition {version.partition!r}, not {partition!r}. Nothing was read."
            )
        return version
    history = history.until(selection.log_version)
    found = history.heads.get(partition)
    if partition is None and history.is_partitioned:
        at = [version for version in history.versions if version.log_version == selection.log_version]
        if len(at) != 1:
            raise VersionNotFound(
                f"{table} has {len(history.heads)} partitions, each with versions of its own. Nothing was read. "
                "Name the partition."
            )
        found = at[0]
    elif partition is None:
        found = history.unadopted or found
    if found is None:
        raise VersionNotFound(
            f"{table} has no version of partition {partition!r} at @{selection.log_version}. Nothing was read; "
            "`partitions` lists those that there are."
        )
    return found


def _of_partitions(current: Iterable[Version], partitions: Names[str], log_version: int) -> tuple[Version, ...]:
    known = {version.partition: version for version in current}
    missing = sorted(set(partitions) - set(known), key=str)
    if missing:
        raise VersionNotFound(
            f"No version of partition {missing[0]!r} at log version {log_version}; "
            f"there are {len(known)} partitions. Nothing was read."
        )
    return tuple(known[partition] for partition in dict.fromkeys(partitions))
