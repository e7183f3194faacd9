"""Files of changes: which versions need them, and whose rows they hold."""

from collections.abc import Iterable, Iterator
from itertools import groupby

from dagster_versioned.delta.actions import Cdc
from dagster_versioned.delta.log.commits import Commit
from dagster_versioned.delta.paths import confined_key
from dagster_versioned.engines.part_order import PARTITION_TAG
from dagster_versioned.tables.history import Version


class ChangeFiles:
    """The files of changes that a log names.

    One belongs to the version that its commit made, and holds rows of the version before as well: how they were.
    """

    def __init__(self, commits: Iterable[Commit] = ()) -> None:
        self._by_commit: dict[int, list[tuple[str | None, str, Cdc]]] = {}
        for commit in commits:
            self.advance(commit)

    def advance(self, commit: Commit) -> None:
        """Take a later commit into account."""
        if commit.cdcs:
            self._by_commit[commit.version] = [
                ((cdc.tags or {}).get(PARTITION_TAG), confined_key(cdc.path), cdc) for cdc in commit.cdcs
            ]

    def of(self, versions: Iterable[Version]) -> dict[str, Cdc]:
        """By key, what belongs to the versions."""
        return {key: cdc for version in versions for key, cdc in self._at(version)}

    def telling_of(self, versions: Iterable[Version], history: Iterable[Version]) -> dict[str, Cdc]:
        """By key, what holds rows of the versions: what belongs to them, or to those that came next."""
        going = list(versions)
        if not self._by_commit or not going:
            return {}
        followers = _followers(history)
        followed = (followers[version.log_version, version.partition] for version in going)
        return self.of((*going, *(version for version in followed if version is not None)))

    def needed(self, history: Iterable[Version], leaving: Iterable[Version] = ()) -> dict[str, Cdc]:
        """By key, what must be there: what belongs to versions that stay, but for what holds rows of purged ones."""
        every, leaving = list(history), set(leaving)
        purged = [version for version in every if version.gone == "purge"]
        kept = self.of(version for version in every if version.gone is None and version not in leaving)
        erased = self.telling_of(purged, every)
        return {key: cdc for key, cdc in kept.items() if key not in erased}

    def _at(self, version: Version) -> Iterator[tuple[str, Cdc]]:
        for partition, key, cdc in self._by_commit.get(version.log_version, ()):
            if version.partition is None or partition == version.partition:
                yield key, cdc


def _followers(history: Iterable[Version]) -> dict[tuple[int, str | None], Version | None]:
    """What came next after each version: of its partition, or of the whole table; after one of that, whatever did."""
    every = sorted(history, key=_at, reverse=True)
    found: dict[tuple[int, str | None], Version | None] = {}
    nearest: dict[str | None, Version] = {}
    of_any: Version | None = None
    for _, commit in groupby(every, key=_at):
        versions = list(commit)
        for version in versions:
            if version.partition is None:
                found[version.log_version, None] = of_any
            else:
                after = (nearest[key] for key in (version.partition, None) if key in nearest)
                found[version.log_version, version.partition] = min(after, key=_at, default=None)
        nearest |= {version.partition: version for version in versions}
        of_any = versions[0]
    return found


def _at(version: Version) -> int:
    return version.log_version
