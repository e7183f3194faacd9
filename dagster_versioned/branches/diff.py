"""What an environment does to the data: each version that was made in it beside what production had at the fork."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dagster_versioned.branches.environments import written_in
from dagster_versioned.delta.schema.types import parse_schema
from dagster_versioned.engines.comparison import ColumnStatistics, measured_columns
from dagster_versioned.engines.dispatch import EngineName, can_start_spark, comparable_type, compare
from dagster_versioned.errors import InvalidInput
from dagster_versioned.identity.names import TableName
from dagster_versioned.tables.configuration import personal_columns
from dagster_versioned.tables.diff import VersionDiff
from dagster_versioned.tables.erased_parts import ERASE
from dagster_versioned.tables.history import Version

if TYPE_CHECKING:
    from dagster_versioned.projects.project import Project
    from dagster_versioned.tables.table import VersionedTable

LARGE_BYTES = 1 << 30
"""Of both versions as they are stored, from which on Spark compares them, on all cores and with files to spill to."""


@dataclass(frozen=True)
class Difference:
    """A cell that an environment has another version of; ``diff`` is ``None`` for one that production did not have.

    ``after`` is ``None`` where it was dropped. ``nulls`` has the columns in whose nulls there is a difference, with
    their numbers before and after. ``rows`` counts rows ``added``, ``removed``, ``changed`` and ``unchanged`` by key;
    ``None`` where no key is known, nothing has to be read, or too much would be (``unread`` says which).
    ``statistics`` has the columns of both whose statistics differ, likewise.
    """

    table: TableName
    partition: str | None
    before: Version | None
    after: Version | None
    diff: VersionDiff | None = None
    nulls: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    rows: Mapping[str, int] | None = None
    unread: str | None = None
    statistics: Mapping[str, tuple[ColumnStatistics, ColumnStatistics]] = field(
        default_factory=dict[str, tuple[ColumnStatistics, ColumnStatistics]]
    )


@dataclass(frozen=True)
class DiffOptions:
    """Which rows are read for a diff, and by what; by default none.

    ``keys`` has by table the columns that identify a row. Statistics of columns are taken of these tables, and with
    ``statistics`` of all. Versions of more than ``max_bytes`` together are not read. Without an ``engine``, Arrow reads
    up to `LARGE_BYTES`, and Spark beyond, if it can be started.
    """

    keys: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    statistics: bool = False
    max_bytes: int | None = None
    engine: EngineName | None = None

    def engine_for(self, size: int) -> EngineName:
        """What reads versions of so many bytes together."""
        return self.engine or ("spark" if size > LARGE_BYTES and can_start_spark() else "arrow")


def differences(project: "Project", reading: DiffOptions | None = None) -> list[Difference]:
    """What was made in the environment that a project was opened in, by table and partition.

    From the log alone, but for what ``reading`` asks of rows: then both versions are read, once, unless they have equal
    data. Raises `InvalidInput` for keys of tables that the environment did not write, and where a key is not unique or
    holds nulls.
    """
    reading = reading or DiffOptions()
    written = [change.table for change in written_in(project)]
    if unknown := sorted(reading.keys.keys() - set(map(str, written))):
        raise InvalidInput(
            f"A key is given for {', '.join(unknown)}, which the environment did not write. Nothing was compared. It "
            f"wrote: {', '.join(written) or 'nothing'}."
        )
    return [difference for name in written for difference in _of_table(project, name, reading)]


def _of_table(project: "Project", name: TableName, reading: DiffOptions) -> Iterator[Difference]:
    environment = project.environment
    assert environment is not None
    table = project.table(str(name))
    history, forked_at = table.state.history, environment.forked_at(name)
    had = history.until(forked_at).heads if forked_at >= 0 else {}
    for partition in sorted({*had, *history.heads}, key=lambda key: key or ""):
        before, after = had.get(partition), history.heads.get(partition)
        if after is not None and history.record(after.log_version).operation == ERASE:
            continue  # production's, too
        if before is None or after is None or before.metadata_sha != after.metadata_sha:
            yield _compared(table, partition, before, after, reading)


def _compared(
    table: "VersionedTable", partition: str | None, before: Version | None, after: Version | None, reading: DiffOptions
) -> Difference:
    if before is None or after is None or before.metadata_sha is None or after.metadata_sha is None:
        return Difference(table.name, partition, before, after)
    found = table.diff(f"@{before.log_version}", f"@{after.log_version}", partition=partition)
    difference = Difference(table.name, partition, before, after, found, _nulls(before, after))
    return difference if found.same_data else _measured(table, difference, (before, after), reading)


def _measured(
    table: "VersionedTable", difference: Difference, versions: tuple[Version, Version], reading: DiffOptions
) -> Difference:
    """The difference, with what is asked of the rows of two versions."""
    key, size = reading.keys.get(str(table.name), ()), sum(version.facts.size_bytes for version in versions)
    if not (key or reading.statistics):
        return difference
    if reading.max_bytes is not None and size > reading.max_bytes:
        return replace(difference, unread=f"{size:,} bytes are more than {reading.max_bytes:,}")
    measured = measured_columns(*(parse_schema(version.identity.schema) for version in versions))[0].names
    if not (key or measured):
        return difference
    as_type = comparable_type(reading.engine_for(size))
    old, new = (
        table.files(f"@{version.log_version}", partition=version.partition, columns=None if key else measured)
        for version in versions
    )
    comparison = compare(table.read_files(old, as_type), table.read_files(new, as_type), key)
    personal = personal_columns(table.state.snapshot.metadata.configuration)
    statistics = {name: sides for name, sides in comparison.columns.items() if name not in personal}
    return replace(difference, rows=comparison.rows, statistics=statistics)


def _nulls(before: Version, after: Version) -> dict[str, tuple[int, int]]:
    old, new = _null_counts(before), _null_counts(after)
    return {name: (old[name], new[name]) for name in new if name in old and old[name] != new[name]}


def _null_counts(version: Version) -> dict[str, int]:
    names = [column["name"] for column in version.identity.schema["fields"]]
    return dict(zip(names, version.facts.null_counts, strict=False))
