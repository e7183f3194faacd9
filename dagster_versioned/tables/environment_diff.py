"""What an environment does to the data: each version that was made in it beside what production had at the fork."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dagster_versioned.errors import InvalidInput
from dagster_versioned.identity.names import TableName
from dagster_versioned.tables.diff import VersionDiff
from dagster_versioned.tables.environments import written_in
from dagster_versioned.tables.history import Version

if TYPE_CHECKING:
    from dagster_versioned.tables.project import Project
    from dagster_versioned.tables.table import VersionedTable


@dataclass(frozen=True)
class Difference:
    """A cell that an environment has another version of; ``diff`` is ``None`` for one that production did not have.

    ``after`` is ``None`` where it was dropped. ``nulls`` has the columns in whose nulls there is a difference, with
    their numbers before and after. ``rows`` counts rows ``added``, ``removed``, ``changed`` and ``unchanged`` by key;
    ``None`` where no key is known, nothing has to be read, or too much would be (``unread`` says which).
    """

    table: TableName
    partition: str | None
    before: Version | None
    after: Version | None
    diff: VersionDiff | None = None
    nulls: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    rows: Mapping[str, int] | None = None
    unread: str | None = None


def differences(
    project: "Project", keys: Mapping[str, Sequence[str]] | None = None, *, max_bytes: int | None = None
) -> list[Difference]:
    """What was made in the environment that a project was opened in, by table and partition.

    From the log alone, but for rows: ``keys`` has by table the columns that identify a row, and both versions are read,
    unless they have equal data or more than ``max_bytes`` together. Raises `InvalidInput` for keys of tables that the
    environment did not write, and where a key is not unique or holds nulls.
    """
    keys = keys or {}
    written = [one.table for one in written_in(project)]
    if unknown := sorted(keys.keys() - set(map(str, written))):
        raise InvalidInput(
            f"A key is given for {', '.join(unknown)}, which the environment did not write. Nothing was compared. It "
            f"wrote: {', '.join(written) or 'nothing'}."
        )
    return [one for name in written for one in _of_table(project, name, keys.get(str(name)), max_bytes)]


def _of_table(
    project: "Project", name: TableName, key: Sequence[str] | None, max_bytes: int | None
) -> Iterator[Difference]:
    environment = project.environment
    assert environment is not None
    table = project.table(str(name))
    history, forked_at = table.state.history, environment.forked_at(name)
    had = history.until(forked_at).heads if forked_at >= 0 else {}
    for partition in sorted({*had, *history.heads}, key=lambda one: one or ""):
        before, after = had.get(partition), history.heads.get(partition)
        if before is None or after is None or before.metadata_sha != after.metadata_sha:
            yield _compared(table, partition, before, after, key, max_bytes)


def _compared(
    table: "VersionedTable",
    partition: str | None,
    before: Version | None,
    after: Version | None,
    key: Sequence[str] | None,
    max_bytes: int | None,
) -> Difference:
    if before is None or after is None or before.metadata_sha is None or after.metadata_sha is None:
        return Difference(table.name, partition, before, after)
    ends = f"@{before.log_version}", f"@{after.log_version}"
    found = table.diff(*ends, partition=partition)
    rows, unread = None, None
    size = before.facts.size_bytes + after.facts.size_bytes
    if key and not found.same_data:
        if max_bytes is not None and size > max_bytes:
            unread = f"{size:,} bytes are more than {max_bytes:,}"
        else:
            rows = table.diff_rows(*ends, key=key, partition=partition).counts()
    return Difference(table.name, partition, before, after, found, _nulls(before, after), rows, unread)


def _nulls(before: Version, after: Version) -> dict[str, tuple[int, int]]:
    old, new = _null_counts(before), _null_counts(after)
    return {name: (old[name], new[name]) for name in new if name in old and old[name] != new[name]}


def _null_counts(version: Version) -> dict[str, int]:
    names = [column["name"] for column in version.identity.schema["fields"]]
    return dict(zip(names, version.facts.null_counts, strict=False))
