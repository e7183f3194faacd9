"""What every check is: it looks at the heads of one asset's table, and gives a verdict that explains itself."""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar

import dagster as dg

from dagster_versioned.assets.graph.partitions import partitioning_of_asset
from dagster_versioned.dagster_internals import AssetGraph
from dagster_versioned.errors import GovernanceError, StorageError, VersionedError
from dagster_versioned.tables.choose import ChosenVersions
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.read import VersionFiles
from dagster_versioned.tables.state import TableState
from dagster_versioned.tables.table import VersionedTable

MAX_ROWS = 50
"""Rows of a table in a result's metadata, which goes into Dagster's event log."""


@dataclass(frozen=True)
class CheckedHeads:
    """The heads that one evaluation is about.

    ``partitions`` are those of the run, if it is a run of partitions; the heads are then those that the table has of
    them, else all that it has. ``pins`` are versions that inputs are to see instead of heads, by table. What this and
    its members raise is a `VersionedError`.
    """

    table: VersionedTable
    asset_key: dg.AssetKey
    partitions: frozenset[str] | None
    context: dg.AssetCheckExecutionContext
    pins: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def graph(self) -> AssetGraph:
        """All assets of the code location, not only those of the run."""
        return self.context.job_def.asset_layer.asset_graph.source_asset_graph

    @cached_property
    def _state(self) -> TableState:
        """As the first check found it, so that all checks of a step judge the same versions."""
        return self.table.state

    @cached_property
    def heads(self) -> tuple[Version, ...]:
        """The heads in the order of their partitions, each with an identity that has its SHA; at least one.

        Raises `VersionNotFound` where a partition of the run has none.
        """
        history = self._state.history
        if (partitioning := partitioning_of_asset(self.graph, self.asset_key)) is not None:
            self.table.choose(as_last_seen=True, partitioning=partitioning)
        if not history.is_partitioned:
            heads = [history.unadopted or history.heads.get(None) or self.table.version()]
        else:
            known = history.heads
            wanted = self.partitions if self.partitions is not None else [key for key in known if key is not None]
            heads = [known.get(key) or self.table.version(partition=key) for key in sorted(wanted)]
        for head in heads:
            head.entry.to_json()  # parses the identity, which raises where it does not have its SHA
        return tuple(heads)

    def files(self) -> VersionFiles:
        """The files of the heads."""
        whole = self.partitions is None or not self._state.history.is_partitioned
        return self.table.files_of(ChosenVersions(self.heads, self._state.log_version, whole=whole))

    @cached_property
    def _versions(self) -> Sequence[Version]:
        """Newest first."""
        return [version for version in reversed(self._state.history.versions) if version.raw is not None]

    @cached_property
    def _by_partition(self) -> Mapping[str | None, Sequence[Version]]:
        grouped: dict[str | None, list[Version]] = {}
        for version in self._versions:
            grouped.setdefault(version.partition, []).append(version)
        return grouped

    def before(self, head: Version) -> list[Version]:
        """The versions that a head replaced, newest first."""
        return [
            version for version in self._by_partition.get(head.partition, ()) if version.log_version < head.log_version
        ]

    def beside(self, head: Version) -> Iterator[Version]:
        """The newest version that each other partition had when the head was made, newest first."""
        seen = {head.partition}
        first = bisect_right(self._versions, -head.log_version, key=lambda version: -version.log_version)
        for version in islice(self._versions, first, None):
            if version.partition not in seen:
                seen.add(version.partition)
                yield version


@dataclass(frozen=True)
class Verdict:
    """Whether a check passed, why in one sentence, and the metadata that explains it."""

    passed: bool
    text: str
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, kw_only=True)
class VersionCheck(ABC):
    """A check on the versions of a table, to be given to `build_version_checks`.

    ``blocking``: whether assets downstream wait for it, in the run and in the version sensor, and do not run where it
    fails with severity ERROR. ``name``
    replaces the check's own, as where one asset has two of a kind.
    """

    default_name: ClassVar[str]
    """What Dagster calls the check where it has no ``name``."""
    description: ClassVar[str]
    """What passes, in one sentence, for Dagster's UI."""

    name: str | None = None
    blocking: bool = False
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR

    @property
    def check_name(self) -> str:
        """What Dagster calls the check."""
        return self.name or self.default_name

    def evaluate(self, checked: CheckedHeads) -> Verdict:
        """The verdict, also where the table cannot be read: then it is that it does not pass, and why.

        Raises `StorageError` and `GovernanceError`: they are about the store, not about the table, so the step fails,
        and is tried again where the run is.
        """
        try:
            return self.judge(checked)
        except (StorageError, GovernanceError):
            raise
        except VersionedError as error:
            return Verdict(False, str(error))

    @abstractmethod
    def judge(self, checked: CheckedHeads) -> Verdict:
        """The verdict. Raises `VersionedError`."""


def table_text(titles: Sequence[str], rows: Sequence[Iterable[object]]) -> dg.MarkdownMetadataValue:
    """A Markdown table of at most `MAX_ROWS` rows, with a line that says how many were left out."""
    lines = [titles, ["---"] * len(titles), *([_cell(value) for value in row] for row in rows[:MAX_ROWS])]
    more = f"\n\n{len(rows) - MAX_ROWS} more" if len(rows) > MAX_ROWS else ""
    return dg.MarkdownMetadataValue("\n".join(f"| {' | '.join(line)} |" for line in lines) + more)


def named(version: Version) -> str:
    """A version as a person says it: its short SHA, and its partition."""
    return version.short if version.partition is None else f"{version.short} [{version.partition}]"


def listed(texts: Sequence[str], most: int = 3) -> str:
    """The first few, and how many more there are."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return f"{', '.join(texts[:most])}{more}"


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("\r", " ")
