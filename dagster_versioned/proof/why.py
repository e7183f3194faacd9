"""Why a version is another than the one before it: what changed, followed to where it began."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from dagster_versioned.errors import VersionedError
from dagster_versioned.identity.version import Parent
from dagster_versioned.projects.project import Project
from dagster_versioned.proof.lineage import (
    OpenProject,
    ProjectLineage,
    TableLineage,
    UnknownVersion,
    VersionName,
    first_sentence,
)
from dagster_versioned.tables.choose import VersionLike
from dagster_versioned.tables.code_details import code_of, compare_codes
from dagster_versioned.tables.history import Version

Kind = Literal[
    "first", "source", "code", "code version", "input", "other rows", "metadata", "rows added", "revert", "promotion",
    "rebase", "adoption", "erasure", "again", "unknown",
]  # fmt: skip
"""What a cause is: the first version of a table; rows that come from outside; code, or the version that it states; an
input that was added or dropped; other rows of the same inputs and code; a message or other metadata; rows that were
added to those before; a version made current once more; one from an environment; an environment put onto production;
another program's commit; rows that were erased; the same version once more; or what nobody can tell."""


_SHOWN = 8
"""Tables of a way that are shown; of more, the first and the last ones."""


@dataclass(frozen=True)
class Cause:
    """One thing that changed: of which version, when, by whom, and through which tables it came to the one asked for.

    ``text`` says it as a sentence.
    """

    kind: Kind
    version: VersionName
    text: str
    at: datetime | None = None
    by: str | None = None
    run: str | None = None
    through: tuple[str, ...] = ()

    def __str__(self) -> str:
        tables = self.through
        if len(tables) > _SHOWN:
            tables = (*tables[: _SHOWN // 2], f"{len(tables) - _SHOWN} more", *tables[-_SHOWN // 2 :])
        return f"{self.text} ({' -> '.join(tables)})" if len(tables) > 1 else self.text


@dataclass(frozen=True)
class Explanation:
    """A version, the one that it is compared with, and the causes of the difference, the newest first."""

    version: VersionName
    before: VersionName | None
    causes: tuple[Cause, ...]

    def __str__(self) -> str:
        return " ".join(f"{cause}." for cause in self.causes)


def why(
    project: Project,
    table: str,
    version: VersionLike = None,
    *,
    partition: str | None = None,
    open_project: OpenProject | None = None,
) -> Explanation:
    """Why a version (by default the head) is another than the one before it, down to where the change began.

    A parent that moved is followed into its own table, and so on, to sources, code, metadata, reverts and promotions.
    Raises `VersionNotFound`, `TableNotFound`, `StorageError`.
    """
    lineage = ProjectLineage(project, open_project)
    found = project.table(table).version(version, partition=partition)
    return explained(lineage, lineage.own_table(str(project.table(table).name)), found)


def explained(lineage: ProjectLineage, at: TableLineage, version: Version) -> Explanation:
    """Why a version of a table is another than the one before it. Raises `StorageError`."""
    before, name = at.before(version), at.name_of(version)
    if version.raw is None:
        what = "was dropped" if version.is_drop else f"was changed by another program ({version.operation})"
        causes: tuple[Cause, ...] = (Cause("unknown", name, f"{at.table.name} {what}", version.timestamp),)
    else:
        causes = _causes(lineage, [(at, before, version)])
    return Explanation(name, None if before is None else at.name_of(before), causes)


def causes_between(lineage: ProjectLineage, before: VersionName, after: VersionName) -> tuple[Cause, ...]:
    """Why the second of two versions of a table, or of a whole partitioned table, is another than the first.

    What cannot be found is a cause ``unknown``. Raises `StorageError`.
    """
    found = _Search(lineage).followed(before, after)
    if isinstance(found, Cause):
        return (found,)
    table, older, newer = found
    return _causes(lineage, [(table, old, new) for old, new in _pairs(older, newer)])


def _causes(
    lineage: ProjectLineage, pairs: Sequence[tuple[TableLineage, Version | None, Version]]
) -> tuple[Cause, ...]:
    """The causes of differences, each once, the newest first."""
    search = _Search(lineage)
    causes = [cause for pair in pairs for cause in search.between(*pair)]
    distinct = {(cause.kind, cause.version, cause.text): cause for cause in reversed(causes)}
    newest_first = sorted(distinct.values(), key=lambda cause: cause.at.timestamp() if cause.at else 0.0, reverse=True)
    return tuple(newest_first)


@dataclass(frozen=True)
class _MovedParent:
    """A parent that was read at one version and then at another, when each had been, and whether its rows differ."""

    before: VersionName
    after: VersionName
    until: tuple[datetime, datetime]
    has_other_rows: bool


class _Search:
    """The causes of differences; each pair of versions is compared once."""

    def __init__(self, lineage: ProjectLineage) -> None:
        self._lineage = lineage
        self._seen: set[tuple[VersionName | None, VersionName]] = set()

    def between(self, table: TableLineage, before: Version | None, after: Version) -> Iterator[Cause]:
        """What is different in a version from an older one of its table."""
        pending = [(table, before, after, (str(table.table.name),))]
        while pending:
            table, before, after, way = pending.pop()
            pair = None if before is None else table.name_of(before), table.name_of(after)
            if pair in self._seen:
                continue
            self._seen.add(pair)
            for cause in self._own(table, before, after):
                yield replace(cause, through=way)
            for moved in self._moved(before, after):
                found = self.followed(moved.before, moved.after, moved.until)
                if isinstance(found, Cause):
                    yield replace(found, through=_longer(found.version.table, way))
                else:
                    other, older, newer = found
                    longer = _longer(str(other.table.name), way)
                    pending += [(other, old, new, longer) for old, new in _pairs(older, newer)]

    def _own(self, table: TableLineage, before: Version | None, after: Version) -> Iterator[Cause]:
        """What changed in a table itself, and not in what it is built from."""
        by, run_id = _facts(after).get("author"), _run(after).get("run_id")
        name = f"{table.table.name}{'' if after.partition is None else f' [{after.partition}]'}"
        for kind, text in self._changes(table, before, after):
            yield Cause(kind, table.name_of(after), f"{name} {text}", after.timestamp, by, run_id)

    def _changes(self, table: TableLineage, before: Version | None, after: Version) -> Iterator[tuple[Kind, str]]:
        promoted_from = _facts(after).get("promoted_from")
        by_hand = None if before is None or _run(after) else _BY_HAND.get(str(after.operation))
        if promoted_from is not None:
            yield "promotion", f"was promoted from the environment {promoted_from}"
        elif by_hand is not None:
            yield by_hand
        if before is None:
            yield "first" if after.recorded.get("parents") else "source", "had no version before"
        elif by_hand is None:
            moved = list(self._moved(before, after))
            changes = [
                *_code_changes(table, before, after),
                *self._input_changes(before, after),
                *_identity_changes(before.recorded, after.recorded),
            ]
            yield from changes
            yield from _row_changes(before, after, changes, moved)

    def _inputs(self, version: Version | None) -> Mapping[tuple[str, str | None], Parent]:
        """What a version was built from, by where that is now: names may have changed since."""
        recorded = () if version is None else version.recorded.get("parents", ())
        parents = [Parent.from_json(each) for each in recorded]
        return {self._lineage.place(VersionName.of(parent)): parent for parent in parents}

    def _input_changes(self, before: Version, after: Version) -> Iterator[tuple[Kind, str]]:
        old, new = self._inputs(before), self._inputs(after)
        for place in sorted(new.keys() - old.keys(), key=str):
            yield "input", f"is built from {new[place].table} too"
        for place in sorted(old.keys() - new.keys(), key=str):
            yield "input", f"is not built from {old[place].table} any more"

    def _moved(self, before: Version | None, after: Version) -> Iterator[_MovedParent]:
        """The parents that a version read at another version than the one before did."""
        if before is None:
            return
        old, new = self._inputs(before), self._inputs(after)
        for place in sorted(old.keys() & new.keys(), key=str):
            if old[place].version != new[place].version:
                names = VersionName.of(old[place]), VersionName.of(new[place])
                has_other_rows = old[place].data_sha != new[place].data_sha
                yield _MovedParent(*names, (before.timestamp, after.timestamp), has_other_rows)

    def followed(
        self, before: VersionName, after: VersionName, until: tuple[datetime, datetime] | None = None
    ) -> Cause | tuple[TableLineage, tuple[Version, ...], tuple[Version, ...]]:
        """The versions of a parent then and now; where they are not to be found, that it moved is all that is known.

        ``until`` is when they had been read.
        """
        old, new = until or (None, None)
        try:
            table, newer = self._lineage.members(after, new)
            older = table.members(before, old)
        except (UnknownVersion, VersionedError) as error:
            why_not = str(error) if isinstance(error, UnknownVersion) else f"cannot be read: {first_sentence(error)}"
            text = f"{after.table} went from {before.version[:8]} to {after.version[:8]}, which {why_not}"
            return Cause("unknown", after, text)
        return table, older, newer


_BY_HAND: dict[str, tuple[Kind, str]] = {
    "RESTORE": ("revert", "was reverted to an earlier version"),
    "REVERT": ("revert", "was reverted to an earlier version"),
    "REBASE": ("rebase", "was put onto what production has now"),
    "ERASE": ("erasure", "lost the rows that were erased"),
    "ADOPT": ("adoption", "was committed by another program, and adopted"),
}

_MODES = {"append": "appended to", "merge": "merged into", "update": "updated"}


def _longer(table: str, way: tuple[str, ...]) -> tuple[str, ...]:
    """The way from a table on; each table is on it once, however often it was built from itself."""
    return way if table in way else (table, *way)


def _code_changes(table: TableLineage, before: Version, after: Version) -> Iterator[tuple[Kind, str]]:
    change = compare_codes(table.table.store, code_of(before), code := code_of(after))
    if change is not None and code is not None:
        dirty = f" and what no commit has of {', '.join(code.modified[:3])}" if code.modified else ""
        commit = f" (commit {code.commit[:12]}{dirty})" if code.commit else ""
        yield "code", f"has other code{commit}: {change}"


def _identity_changes(old: Any, new: Any) -> Iterator[tuple[Kind, str]]:
    """What is described otherwise, beside the rows."""
    if old.get("code_version") != new.get("code_version"):
        yield "code version", f"went from code version {old.get('code_version')} to {new.get('code_version')}"
    if old.get("message") != new.get("message"):
        yield "metadata", f"has the message {new['message']!r}" if new.get("message") else "has no message any more"
    for member in ("table_type", "custom"):
        if old.get(member) != new.get(member):
            yield "metadata", f"has another {member.replace('_', ' ')}"
    columns = [[(field["name"], field["type"]) for field in each["schema"]["fields"]] for each in (old, new)]
    if columns[0] != columns[1] and old["data_sha"] == new["data_sha"]:
        yield "metadata", "has other columns"


def _row_changes(
    before: Version, after: Version, changes: Sequence[tuple[Kind, str]], moved: Sequence[_MovedParent]
) -> Iterator[tuple[Kind, str]]:
    """What the rows say by themselves, beside other changes and parents that moved, which may be their cause."""
    old, new, added = before.recorded, after.recorded, _facts(after).get("added")
    if old["data_sha"] == new["data_sha"]:
        if not changes and not moved:
            yield "again", "was made again, and is the same"
    elif added:
        yield "rows added", f"was {_added_text(added)}"
    elif not new.get("parents"):
        instead = "" if old["nrow"] == new["nrow"] else f" instead of {old['nrow']:,}"
        yield "source", f"has other rows: {new['nrow']:,}{instead}"
    elif all(kind == "metadata" for kind, _ in changes) and not any(each.has_other_rows for each in moved):
        yield "other rows", "has other rows of the same inputs and code: by its config, a clock, or a service"


def _added_text(added: Mapping[str, Any]) -> str:
    counts = [f"{added[what]:,} {what}" for what in ("inserted", "updated", "removed") if added.get(what)]
    return f"{_MODES.get(added['mode'], added['mode'])}: {', '.join(counts) or 'no rows'}"


def _pairs(older: tuple[Version, ...], newer: tuple[Version, ...]) -> Iterator[tuple[Version | None, Version]]:
    """The versions of each partition that differ."""
    before = {version.partition: version for version in older}
    for version in newer:
        old = before.get(version.partition)
        if old is None or old.metadata_sha != version.metadata_sha:
            yield old, version


def _facts(version: Version) -> Any:
    assert version.raw is not None
    return version.raw["facts"]


def _run(version: Version) -> Mapping[str, Any]:
    return _facts(version).get("run") or {}
