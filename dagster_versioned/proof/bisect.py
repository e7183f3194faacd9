"""The first version for which something does not hold that held before: found by reading few of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.errors import InvalidInput, VersionedError, VersionNotFound
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.choose import VersionLike
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.table import VersionedTable

Check = Callable[[Any], bool]
"""Says of the rows of a version, a pyarrow Table, whether all is well."""


@dataclass(frozen=True)
class Bisection:
    """``bad`` is the oldest version that is known to fail, ``good`` the newest before it that passes.

    ``unread`` are the versions between the two whose rows are not kept, so that one of them may be the first.
    ``tried`` counts the versions that were read.
    """

    good: Version
    bad: Version
    unread: tuple[Version, ...]
    tried: int


def bisect(
    project: Project,
    table: str,
    check: Check,
    *,
    partition: str | None = None,
    good: VersionLike = None,
    bad: VersionLike = None,
    progress: Callable[[int, int], None] | None = None,
) -> Bisection:
    """The first version for which a check fails, between one that passes (by default the oldest that is kept) and one
    that fails (the head), if it fails for all from there on.

    Of n versions, log2(n) + 2 are read. Raises `InvalidInput` where the ends are not as they are said to be,
    `VersionNotFound`, and what reading and ``check`` do.
    """
    found = project.table(table)
    versions = _between(found, partition, good, bad)
    kept = [number for number, version in enumerate(versions) if version.gone is None]
    if len(kept) < 2:
        raise InvalidInput(
            f"Of the versions of {table} that are meant, {len(kept)} is kept, and two are compared. Nothing was tried."
        )
    limit = (len(kept) - 1).bit_length() + 2
    tried: dict[int, bool] = {}

    def passes(place: int) -> bool:
        if place not in tried:
            version = versions[kept[place]]
            rows = _rows(found, version)
            try:
                tried[place] = bool(check(rows))
            except VersionedError:
                raise
            except Exception as error:  # whatever a function of the user's raises
                raise InvalidInput(
                    f"The check failed with {type(error).__name__} ({error}) at version {version.short} "
                    f"(@{version.log_version}) of {table}. Nothing was changed."
                ) from error
            if progress is not None:
                progress(len(tried), limit)
        return tried[place]

    first, last = 0, len(kept) - 1
    for place, wanted in ((first, True), (last, False)):
        if passes(place) is not wanted:
            version = versions[kept[place]]
            raise InvalidInput(
                f"Version {version.short} (@{version.log_version}) of {table} {'fails' if wanted else 'passes'}, and a "
                f"first one that fails is looked for after one that passes. {_instead(wanted)}"
            )
    while last - first > 1:
        middle = (first + last) // 2
        first, last = (middle, last) if passes(middle) else (first, middle)
    unread = tuple(versions[kept[first] + 1 : kept[last]])
    return Bisection(versions[kept[first]], versions[kept[last]], unread, len(tried))


def every_row(condition: str) -> Check:
    """The check that a condition in Spark's SQL holds for every row; raises `InvalidInput` where it cannot be read."""
    engine = ArrowEngine()
    return lambda rows: engine.violations(rows, condition) == 0


def first_other_rows(
    project: Project, table: str, *, partition: str | None = None, good: VersionLike = None, bad: VersionLike = None
) -> Bisection:
    """The first version whose rows are not those of an older one (by default the oldest); no row is read.

    Raises `InvalidInput` where all have the same, and `VersionNotFound`.
    """
    versions = _between(project.table(table), partition, good, bad)
    for before, after in pairwise(versions):
        if after.data_sha != versions[0].data_sha:
            return Bisection(before, after, (), 0)
    raise InvalidInput(f"All {len(versions)} versions of {table} that are meant have the same rows.")


def _between(table: VersionedTable, partition: str | None, good: VersionLike, bad: VersionLike) -> Sequence[Version]:
    """The own versions of a partition between two, the oldest first, without repetitions of one."""
    own = _own_versions(table, partition)
    first = -1 if good is None else table.version(good, partition=partition).log_version
    last = table.state.log_version if bad is None else table.version(bad, partition=partition).log_version
    return [version for version in own if first <= version.log_version <= last]


def _own_versions(table: VersionedTable, partition: str | None) -> Sequence[Version]:
    state = table.state
    if partition is None and state.history.is_partitioned:
        raise InvalidInput(
            f"{table.name} is partitioned, and each partition has its own versions. Nothing was tried. Name one: "
            "--partition KEY."
        )
    every = [version for version in state.history.versions if version.partition == partition]
    own = [version for version in every if version.metadata_sha is not None and not version.is_drop]
    if not own:
        where = "" if partition is None else f" of the partition {partition!r}"
        raise VersionNotFound(f"{table.name} has no versions{where}. Nothing was tried.")
    return own


def _rows(table: VersionedTable, version: Version) -> Any:
    return table.read(version.log_version, partitions=None if version.partition is None else [version.partition])


def _instead(is_good: bool) -> str:
    return "Name an older one that passes: --good." if is_good else "Name one that fails: --bad."
