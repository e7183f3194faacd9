"""Renaming a table: its log ends under the old name with the commit that says the new one, and is copied there.

1. The new name is claimed: its head document says that a table is arriving (`head.NameClaim`). Who creates a table
   announces it in the same document, so one of the two sees the other.
2. The log under the old name ends with a commit that says the new name. From then on whoever was in flight loses, and
   is refused. The claim is confirmed by the document's ETag; where it was taken meanwhile, the log goes on.
3. The files are copied, then the commits, the first one last. Until that is there, the new name has no log that can be
   read, and readers stay with the old one. Its put is the switch.

Whoever runs it again goes on where it died. The log under the old name stays, so that lineage finds the way and a
writer that slept finds no entry free; the files there go with a later `vacuum`, because readers may hold them.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from dagster_versioned.delta.actions import DomainMetadata
from dagster_versioned.delta.log.commits import commit_key
from dagster_versioned.errors import (
    EnvironmentNotFound,
    IntegrityError,
    InvalidInput,
    InvalidName,
    LogCorrupt,
    ObjectNotFound,
    UnsupportedFeature,
)
from dagster_versioned.identity.names import TableName, table_name, table_name_of
from dagster_versioned.identity.version import created_at_text
from dagster_versioned.storage.object_store import ObjectInfo, ObjectStore
from dagster_versioned.tables.context import LEFT_KEY, ProjectContext
from dagster_versioned.tables.document import encode, update_document
from dagster_versioned.tables.documents.head import (
    STALE_MARK,
    HeadDocument,
    NameClaim,
    head_key,
    parse_head,
    publish_head,
)
from dagster_versioned.tables.documents.manifest import record_project
from dagster_versioned.tables.environment.registry import key_of, names_of, read_forks
from dagster_versioned.tables.environment.table_fork import KEPT
from dagster_versioned.tables.operations import TableOperations
from dagster_versioned.tables.pins import move_pins
from dagster_versioned.tables.state import TableState
from dagster_versioned.tables.table_record import TABLE_DOMAIN, RenameRecord, TableRecord
from dagster_versioned.tables.write.commit import CollectionInProgress, CommitDraft, PlanCommit
from dagster_versioned.tables.write.drop import refuse_dropped

_LOG = "_delta_log/"
_NOT_COPIED = (_LOG, ".metadata/", "_staging/")


@dataclass(frozen=True)
class RenameReport:
    """What a rename copied, or (dry run) would copy: from and to which name, how many files of which size."""

    dry_run: bool
    source: TableName
    target: TableName
    files: int
    size_bytes: int


def rename(
    project: ProjectContext, source: TableName, to: str | Sequence[str], *, dry_run: bool, by: str | None
) -> RenameReport:
    """Rename a table, or go on where a rename of it died. Raises what `VersionedTable.rename` does."""
    target, asset_key = (table_name(to), (to,)) if isinstance(to, str) else (table_name_of(to), tuple(to))
    old = TableOperations(project, source)
    state = old.cache.existing_state()
    record = TableRecord.of(state.snapshot)
    if record.left_for(source) not in (None, target):
        raise InvalidName(f"{source} {record.renamed}. Nothing was changed.")
    files = [info for info in old.store.list() if _is_copied(info.key)]
    report = RenameReport(dry_run, source, target, len(files), sum(info.size for info in files))
    has_left = record.left_for(source) is not None
    if not has_left:
        refuse_dropped(source, state)
        _require_free(project, source, target)
    if dry_run:
        return report
    if not has_left:
        _claim(project.data, source, target)
        project.check_unmarked()  # after the claim: see `fence`
        at = created_at_text(int(datetime.now(UTC).timestamp() * 1000))
        renamed = RenameRecord(source, target, asset_key, at, by)
        state = old.change(_End(renamed, project.name).draft) or old.cache.existing_state()
    if not _confirm(project.data, source, target) and not _has_arrived(project, source, target):
        old.commit_as_migration(_resume(project.name, source))
        raise InvalidName(f"A table {target} was created while {source} was renamed. Nothing was changed.")
    _copy(project.data, source, target, state.log_version)
    new = TableOperations(project, target)
    arrived = new.cache.existing_state()
    if TableRecord.of(arrived.snapshot).left_for(target) is None:  # else it goes by a third name since
        _tidy(project, old, new, state)
        new.tell(new.cache.existing_state())  # the commit has another place now
    return report


def former_files(project: ProjectContext, state: TableState, min_age: timedelta) -> list[ObjectInfo]:
    """The files of the data folder that are left under names that a table had, once the rename is old enough.

    What an environment reads under such a name stays as long as it is there; raises `InvalidInput` naming it where
    nothing may stay (``min_age`` of 0, a purge).
    """
    found: list[ObjectInfo] = []
    former = ended_logs(project, state)
    readers = _readers(project.store, former) if former else {}
    for source, ended in former.items():
        if (reader := readers.get(source)) is not None:
            if min_age:
                continue
            raise InvalidInput(
                f"The environment {reader!r} reads the table as {source}, the name that it had. Nothing was deleted. "
                "Drop that environment first."
            )
        if datetime.now(UTC) - datetime.fromtimestamp(ended.snapshot.timestamp_ms / 1000, UTC) >= min_age:
            files = (info for info in project.data.subfolder(source).list() if not info.key.startswith(_LOG))
            found += [replace(info, key=f"{source}/{info.key}") for info in files]
    return found


def ended_logs(project: ProjectContext, state: TableState) -> Mapping[str, TableState]:
    """The ends of the logs that a table left under other names, by name."""
    # Of any owner, since the project may have been renamed; a name that a table has by now was not left.
    names = dict.fromkeys(name for _, name in TableRecord.of(state.snapshot).former)
    return {name: ended for name in names if (ended := _left_state(project, name)) is not None}


def _left_state(project: ProjectContext, source: str) -> TableState | None:
    """The end of the log of a name that a table left; ``None`` where none did."""
    ended = TableOperations(project, table_name(source)).cache.refresh()
    return None if ended is None or TableRecord.of(ended.snapshot).left_for(source) is None else ended


def _readers(store: ObjectStore, former: Collection[str]) -> dict[str, str]:
    """By name of a table, an environment that began with it; one that cannot be read counts if it holds the name."""
    readers: dict[str, str] = {}
    for environment in names_of(store):
        try:
            names = {str(name) for fork in read_forks(store, environment) for name in fork.tables}
        except EnvironmentNotFound:
            continue  # it was dropped since
        except (IntegrityError, InvalidName):
            with suppress(ObjectNotFound):
                broken = store.get(key_of(environment))
                readers |= {name: environment for name in former if f'"{name}"'.encode() in broken}
            continue
        readers |= dict.fromkeys(names & set(former), environment)
    return readers


class _End:
    """The draft that ends the log under the old name."""

    def __init__(self, renamed: RenameRecord, project: str) -> None:
        self._renamed = renamed
        self._project = project

    def draft(self, state: TableState | None, _: int) -> CommitDraft | None:
        assert state is not None  # the caller asked for the table's state first
        source = self._renamed.source
        record = refuse_dropped(source, state)
        for collection in state.history.open_collections:
            raise CollectionInProgress(collection)
        after = replace(
            record,
            since=state.log_version + 1,
            renamed=self._renamed,
            former=tuple(dict.fromkeys((*record.former, (self._project, source)))),
        )
        renamed = {"from": source, "to": self._renamed.target}
        return CommitDraft("RENAME", after.actions(record), {"renamed": renamed}, announces=False)


def _resume(project: str, source: str) -> PlanCommit:
    """The draft that lets the log go on, whose table has its name still."""

    def draft(state: TableState | None, _: int) -> CommitDraft | None:
        assert state is not None  # it was ended
        record = TableRecord.of(state.snapshot)
        former = tuple(name for name in record.former if name != (project, source))
        after = replace(record, since=state.log_version + 1, renamed=None, former=former)
        domain = DomainMetadata(TABLE_DOMAIN, encode(after.to_json()).decode(), False)
        return CommitDraft("RENAME", [domain], {"renamed": {"from": source, "to": source}}, announces=False)

    return draft


def _require_free(project: ProjectContext, source: TableName, target: TableName) -> None:
    if source == target or TableOperations(project, target).refresh() is not None:
        raise InvalidName(
            f"{source} cannot be renamed to {target}: there is, or was, a table of that name. Nothing was changed. "
            "Choose another name."
        )
    project.check_new_table(target)


def _claim(data: ObjectStore, source: TableName, target: TableName) -> None:
    """Take a name for the table that is going to have it. Raises `InvalidName` where somebody else is doing so."""

    def take(found: bytes | None) -> bytes | None:
        document = parse_head(found, head_key(target))
        if document.arriving is not None and document.arriving.source == source:
            return None
        is_made = document.pending is not None and document.pending.age(datetime.now(UTC)) < STALE_MARK
        is_taken = document.arriving is not None and document.arriving.has_left
        if is_made or is_taken or document.log_version >= 0:
            raise InvalidName(
                f"Somebody else is making, or made, a table {target}. Nothing was changed. Choose another name."
            )
        return HeadDocument(-1, None, arriving=NameClaim(source, has_left=False)).to_bytes()

    update_document(data, head_key(target), take)


def _confirm(data: ObjectStore, source: TableName, target: TableName) -> bool:
    """Say that the log under the old name has ended; ``False`` where the claim is not there any more."""
    is_claimed = False

    def confirm(found: bytes | None) -> bytes | None:
        nonlocal is_claimed
        document = parse_head(found, head_key(target))
        is_claimed = document.arriving is not None and document.arriving.source == source
        return replace(document, arriving=NameClaim(source, has_left=True)).to_bytes() if is_claimed else None

    update_document(data, head_key(target), confirm)
    return is_claimed


def _has_arrived(project: ProjectContext, source: TableName, target: TableName) -> bool:
    try:
        state = TableOperations(project, target).cache.refresh()
    except (LogCorrupt, UnsupportedFeature):  # some of its commits are there
        return False
    return state is not None and (project.name, str(source)) in TableRecord.of(state.snapshot).former


def _is_copied(key: str) -> bool:
    return key.startswith(KEPT) or not key.startswith(_NOT_COPIED)


def _copy(data: ObjectStore, source: TableName, target: TableName, end: int) -> None:
    """Copy what is not there yet: files, then commits, the first of them last."""
    there = {info.key: info.size for info in data.list(f"{target}/")}
    if f"{target}/{commit_key(0)}" in there:
        return
    data.put(f"{target}/{LEFT_KEY}", encode({"from": source}))
    for info in data.list(f"{source}/"):
        key = info.key.removeprefix(f"{source}/")
        if _is_copied(key) and there.get(f"{target}/{key}") != info.size:
            data.copy(info.key, f"{target}/{key}")
    for number in range(end, -1, -1):
        if f"{target}/{commit_key(number)}" not in there:
            data.put_if_absent(f"{target}/{commit_key(number)}", data.get(f"{source}/{commit_key(number)}"))


def _tidy(project: ProjectContext, old: TableOperations, new: TableOperations, ended: TableState) -> None:
    """Publish what is derived under the new name, take away what was under the old one, and move the pins."""
    new.publisher.rebuild(new.cache)  # whatever of it a rename that died has put
    move_pins(project, str(old.name), str(new.name))
    project.data.delete([f"{new.name}/{LEFT_KEY}"])
    project.data.put(f"{old.name}/{LEFT_KEY}", encode({"to": new.name}))
    publish_head(project.data, head_key(old.name), None, ended.log_version)
    old.publisher.withdraw()


def rename_project(project: ProjectContext, name: str) -> int:
    """Give a project another name; returns how many tables learnt it. Run again, it goes on where it died.

    Each table's log says what the project was called before the manifest says what it is called now, and once more
    after that for tables that were created meanwhile: lineage is followed in between as well.
    """
    if project.name == name:
        return 0
    changed = _record_name(project, name)
    record_project(project.data, project.name, name)
    return changed + _record_name(project, name)


def _record_name(project: ProjectContext, name: str) -> int:
    """Let each table's log say that the project was called otherwise; returns how many did not yet."""
    changed = 0
    for table in project.tables():

        def draft(state: TableState | None, _: int, table: TableName = table) -> CommitDraft | None:
            assert state is not None  # it is listed
            record = TableRecord.of(state.snapshot)
            after = replace(record, former=tuple(dict.fromkeys((*record.former, (project.name, str(table))))))
            actions = after.actions(record)
            return (
                CommitDraft("RENAME PROJECT", actions, {"renamed": {"project": name}}, announces=False)
                if actions
                else None
            )

        changed += TableOperations(project, table).change(draft) is not None
    return changed
