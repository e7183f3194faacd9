"""Exporting an environment: its tables, at another place, as a project that every reader of production can read.

An environment's log begins in production's folder, so nobody but this package can read it. The order of things is what
makes it safe to die at any moment:

1. The document of the export is put if absent, in an empty place. It says as of which commit each table is exported, so
   that whoever runs it again copies the same states, whatever was written meanwhile.
2. For each table, its files are copied, and checked against their names; then its commits, the first of them last.
   Until that is there, the log has no beginning, and nobody reads it.
3. A further commit says of which older versions the files were not copied, in the words of an expiry; then all that is
   derived is put.
4. The document says that the export is complete.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from dagster_versioned.branches.environments import written_in
from dagster_versioned.delta.log.commits import Commit, begins_late, commit_key, commit_sha256, read_commits
from dagster_versioned.delta.log.snapshot import replayed
from dagster_versioned.errors import (
    AlreadyExists,
    IntegrityError,
    InvalidInput,
    ObjectNotFound,
    TableNotFound,
    UnsupportedFeature,
)
from dagster_versioned.identity.names import TableName, table_name
from dagster_versioned.projects.moment import commits_of, heads_at_one_moment
from dagster_versioned.storage import opening
from dagster_versioned.storage.keys import is_key
from dagster_versioned.storage.location import Location
from dagster_versioned.storage.object_store import ObjectInfo, ObjectStore
from dagster_versioned.storage.transfer import THREADS, CopyProgress, Transfer
from dagster_versioned.tables.chain_head import BLOCKS
from dagster_versioned.tables.document import encode
from dagster_versioned.tables.documents.export import EXPORT_KEY, Export, read_export, refuse_inside_project
from dagster_versioned.tables.documents.tag import TaggedTable
from dagster_versioned.tables.environment.fork import Fork
from dagster_versioned.tables.environment.registry import key_of
from dagster_versioned.tables.environment.table_fork import KEPT
from dagster_versioned.tables.history import Collection as CollectionRecord
from dagster_versioned.tables.history import CommitRecord, History, Version
from dagster_versioned.tables.maintenance.change_files import ChangeFiles
from dagster_versioned.tables.operations import TableOperations
from dagster_versioned.tables.parts import LiveParts, objects_of, parts_of, vector_object
from dagster_versioned.tables.rename import LEFT_KEY
from dagster_versioned.tables.state import TableState
from dagster_versioned.tables.verify import part_problems
from dagster_versioned.tables.write.commit import CommitDraft

if TYPE_CHECKING:
    from dagster_versioned.projects.project import Project

_CHAIN = (BLOCKS, "checkpoints/")
"""What a history of events has besides its slices, named by its content."""

Selected = Literal["written", "all"] | Collection[str]
"""Which tables are exported: those that were written in the environment, all, or these by name."""

Progress = Callable[[int, int], None]
"""Called with how many files there are, of how many."""


@dataclass(frozen=True)
class ExportedTable:
    """A table of an export: as of which log version of the environment, with how many files of which size."""

    table: TableName
    log_version: int
    files: int
    size_bytes: int


@dataclass(frozen=True)
class ExportReport:
    """What was exported, or (dry run) would be, to where; ``left_out`` are the environment's other tables."""

    environment: str
    location: str
    dry_run: bool
    tables: tuple[ExportedTable, ...]
    left_out: tuple[TableName, ...]

    @property
    def size_bytes(self) -> int:
        """The bytes of all files."""
        return sum(table.size_bytes for table in self.tables)


def export_environment(
    project: "Project",
    name: str,
    to: Location | str,
    *,
    tables: Selected = "written",
    dry_run: bool = False,
    by: str | None = None,
    open_store: Callable[[Location], ObjectStore] = opening.open_store,
    progress: Progress | None = None,
) -> ExportReport:
    """Make a project of the same name at another place, with tables as an environment has them at one moment.

    Its current versions can be read there; of older ones, the history alone. An empty place takes it, or one where an
    export of this environment died, which goes on with what that one began with. Raises `EnvironmentNotFound`;
    `InvalidInput` for another place, one inside of a project, and where nothing is to be exported; `TableNotFound` for
    a name that has no version in the environment; `CommitConflict`, see `heads_at_one_moment`; `UnsupportedFeature` for
    a table that other programs changed so that it cannot be copied; `IntegrityError` where files are not what the log
    says. Where it is raised, or dies, tables that are not done are read by nobody; run it again.
    """
    here = project.in_environment(name)
    location = Location.parse(to) if isinstance(to, str) else to
    refuse_inside_project(location, open_store, also=(key_of(name),))
    there = type(project)(project.name, open_store(location), author=by or project.author)  # not where governance says
    export = _begin(here, there, tables, by, dry_run=dry_run)
    assert here.environment is not None
    try:
        planned = [_Table(project, here, there, table, at) for table, at in export.tables.items()]
        total, done = sum(table.report.files for table in planned), 0

        def advance(copied: int) -> None:
            if progress is not None:
                progress(done + copied, total)

        if not dry_run:
            project.erasures.copy_to(there.data)
        for table in () if dry_run else planned:
            table.export(advance)
            done += table.report.files
            advance(0)
    except ObjectNotFound as error:
        here.environment.check_current()  # that explains it better
        raise IntegrityError(
            f"A file that the environment {name} needs is not there ({error}). The tables that are done at "
            f"{there.store.uri} can be read, the others cannot. `dagster-versioned --environment {name} verify` says "
            "what is lost."
        ) from error
    if not dry_run:
        there.data.put(EXPORT_KEY, replace(export, is_complete=True).to_bytes())
    return ExportReport(name, there.store.uri, dry_run, tuple(table.report for table in planned), export.left_out)


def _begin(here: "Project", there: "Project", selected: Selected, by: str | None, *, dry_run: bool) -> Export:
    """The export that was begun at a place, or is begun now. Raises `InvalidInput` where another one, or anything
    else, is there."""
    begun = read_export(there.data)
    if begun is None:
        if (found := next(iter(there.store.list()), None)) is not None:
            raise InvalidInput(
                f"{there.store.uri} is not empty: there is {found.key!r}, for one. Nothing was written. Name an empty "
                "place."
            )
        made = _export_of(here, selected, by)
        try:
            if not dry_run:
                there.data.put_if_absent(EXPORT_KEY, made.to_bytes())
            return made
        except AlreadyExists:
            begun = read_export(there.data)
            if begun is None:
                raise
    assert here.environment is not None
    _require_same(begun, here.environment.fork, selected, there.store.uri)
    return begun


def _require_same(begun: Export, fork: Fork, selected: Selected, uri: str) -> None:
    """Raise `InvalidInput` unless an export that was begun is this one."""
    if begun.is_complete or (begun.project, begun.generation) != (fork.project, fork.generation):
        how = "an export" if begun.is_complete else "an unfinished export"
        raise InvalidInput(
            f"At {uri} is {how} of the environment {begun.environment} of {begun.project}, of "
            f"{begun.at:%Y-%m-%d %H:%M}Z. Nothing was changed. Name an empty place, or empty this one if nobody needs "
            "what is there."
        )
    if selected == "all":
        is_other = bool(begun.left_out)
    else:
        is_other = selected != "written" and set(map(table_name, selected)) != set(begun.tables)
    if is_other:
        raise InvalidInput(
            f"At {uri} is an unfinished export of other tables: {', '.join(begun.tables)}. Nothing was changed. Finish "
            "it: name the same tables, or none. Or name an empty place."
        )


def _export_of(here: "Project", selected: Selected, by: str | None) -> Export:
    """What is exported, as of this moment."""
    assert here.environment is not None
    fork = here.environment.fork
    heads = {name: found for name, found in heads_at_one_moment(here).items() if found.head is not None}
    chosen = sorted(_selected(here, selected, heads))
    if missing := next((name for name in chosen if name not in heads), None):
        raise TableNotFound(
            f"The environment {fork.environment} has no version of {missing}. Nothing was written. It has: "
            f"{', '.join(sorted(heads)) or 'no table'}."
        )
    if not chosen:
        raise InvalidInput(
            f"Nothing was written in the environment {fork.environment}, so nothing is exported. Name tables of it, or "
            "export all."
        )
    shas = commits_of(here.data, {name: heads[name] for name in chosen})
    return Export(
        fork.project,
        fork.environment,
        fork.generation,
        datetime.now(UTC).isoformat(timespec="seconds"),
        by,
        {name: TaggedTable(heads[name].log_version, shas[name]) for name in chosen},
        tuple(sorted(heads.keys() - set(chosen))),
    )


def _selected(here: "Project", selected: Selected, there: Iterable[TableName]) -> Iterable[TableName]:
    if selected == "all":
        return there
    if selected == "written":  # what was dropped there is no table any more
        return {change.table for change in written_in(here) if change.after is not None}
    return set(map(table_name, selected))


class _Table:
    """One table of an export: what of it is copied, and from where."""

    def __init__(
        self, production: "Project", here: "Project", there: "Project", name: TableName, at: TaggedTable
    ) -> None:
        assert here.environment is not None
        self._name = name
        self._environment = here.environment.name
        self._there = there
        self._log = here.data.subfolder(str(name))
        # Each by itself, so that a server copies by itself. What is the environment's own comes first.
        sides = (here.environment.own_data(), *([production.data] if here.environment.forked_at(name) >= 0 else []))
        self._sides = [side.subfolder(str(name)) for side in sides]
        commits = self._commits(at)
        self._shas = [commit.sha256 for commit in commits]
        state = TableState(replayed(commits), History([CommitRecord.of(commit) for commit in commits]))
        self._adds = parts_of(state.snapshot)
        changes = ChangeFiles(commits)
        needed = changes.needed(state.history.versions)
        own = changes.of(state.history.heads.values())
        self._changes = [change for key, change in own.items() if key in needed]
        self._check_confined()
        keys = objects_of(self._log, self._adds) | own.keys() & needed.keys()
        self._left = tuple(self._versions_without(keys, commits, state, changes, needed.keys()))
        self._files = self._found(keys)
        self._add_all([*KEPT, *(_CHAIN if state.is_history else ())])
        files = [info for side in self._files for info in side.values()]
        self.report = ExportedTable(name, at.log_version, len(files), sum(info.size for info in files))

    def export(self, advance: Callable[[int], None]) -> None:
        """Copy what is not there yet, files before commits; nothing where it was done before."""
        data = self._there.data.subfolder(str(self._name))
        present = {info.key: info.size for info in data.list()}
        if LEFT_KEY not in present and commit_key(0) in present:
            return
        data.put(LEFT_KEY, encode({"from": self._name}))
        done = 0
        for side, files in zip(self._sides, self._files, strict=True):
            wanted = [info for info in files.values() if present.get(info.key) != info.size]
            done += len(files) - len(wanted)

            def tell(copied: CopyProgress, before: int = done) -> None:
                advance(before + copied.objects)

            copied = Transfer(side, data).copy_all(wanted, progress=tell)
            if copied.overtaken:
                raise ObjectNotFound(f"{copied.overtaken[0]} in {side.uri} changed, or vanished, while it was copied")
            done += len(wanted)
        self._check_files(data)
        self._copy_log(data)
        operations = TableOperations(self._there, self._name)
        operations.commit_as_migration(self._leave)
        operations.publisher.rebuild(operations.cache)
        data.delete([LEFT_KEY])

    # What there is

    def _commits(self, at: TaggedTable) -> Sequence[Commit]:
        """The commits up to the one that is exported, which is looked at first: what names it may be forged."""
        try:
            found = commit_sha256(at.log_version, self._log.get(commit_key(at.log_version)))
        except ObjectNotFound:
            found = None
        if found != at.commit_sha256:
            raise IntegrityError(
                f"The environment {self._environment} does not have the commit @{at.log_version} of {self._name} that "
                f"the export at {self._there.store.uri} began with. Nothing was copied. Export to an empty place."
            )
        try:
            self._log.head(commit_key(0))
        except ObjectNotFound:
            raise begins_late(self._log) from None
        return read_commits(self._log, 0, at.log_version)

    def _check_confined(self) -> None:
        for add in self._adds:
            is_elsewhere = add.deletion_vector is not None and add.deletion_vector.storage_type in ("u", "p")
            if not is_key(add.key) or (is_elsewhere and vector_object(self._log, add) is None):
                raise UnsupportedFeature(
                    f"{self._name} has files outside of its own folder, such as {add.path!r:.200}. Nothing was "
                    "copied. Leave it out, or write the table anew in the environment."
                )

    def _versions_without(
        self,
        keys: Collection[str],
        commits: Sequence[Commit],
        state: TableState,
        changes: ChangeFiles,
        needed: Collection[str],
    ) -> Iterator[tuple[int, str | None]]:
        """The versions that would be expected to have files that are not exported."""
        live = LiveParts()
        for version in sorted(state.history.versions, key=lambda version: version.log_version):
            live.advance(commits[live.log_version + 1 : version.log_version + 1])
            if version.is_drop or version.gone is not None:
                continue
            own = objects_of(self._log, live.of(version.partition))
            own |= {key for key in changes.of([version]) if key in needed}
            if not own <= set(keys):
                yield version.log_version, version.partition

    def _found(self, keys: Iterable[str]) -> list[dict[str, ObjectInfo]]:
        """The files, by the side that has them. Raises `ObjectNotFound`."""

        def find(key: str) -> tuple[int, ObjectInfo]:
            for number, side in enumerate(self._sides[:-1]):
                try:
                    return number, side.head(key)
                except ObjectNotFound:
                    continue
            return len(self._sides) - 1, self._sides[-1].head(key)

        files: list[dict[str, ObjectInfo]] = [{} for _ in self._sides]
        with ThreadPoolExecutor(THREADS, thread_name_prefix="export") as pool:
            for number, info in pool.map(find, sorted(keys)):
                files[number][info.key] = info
        return files

    def _add_all(self, folders: Iterable[str]) -> None:
        """Add all in some folders: what is known of versions, and the blocks of a history.

        What production has put there since is of no version here, or no part of the chain, and does no harm.
        """
        known = set[str]()
        for number, side in enumerate(self._sides):
            found = {info.key: info for folder in folders for info in side.list(folder) if info.key not in known}
            self._files[number].update(found)
            known |= found.keys()

    # Copying

    def _check_files(self, data: ObjectStore) -> None:
        """Compare what was copied with the SHA-256 that it must have. Raises `IntegrityError`."""
        problems = part_problems(data, [*self._adds, *self._changes])
        if problems:
            wrong = {key for key, _ in problems}
            # What has the right size is not copied again, so it does not stay.
            data.delete(sorted(objects_of(self._log, (add for add in self._adds if add.key in wrong)) | wrong))
            key, problem = problems[0]
            raise IntegrityError(
                f"{self._name}/{key} is not what the log of the environment {self._environment} says: {problem}. The "
                f"table cannot be read at {self._there.store.uri}. `dagster-versioned --environment "
                f"{self._environment} verify {self._name}` says what is damaged; run the export again once it is "
                "mended."
            )

    def _copy_log(self, data: ObjectStore) -> None:
        """Copy the commits, the first of them last: without it, the log has no beginning."""

        def copy(number: int) -> None:
            key = commit_key(number)
            entry = self._log.get(key)
            if commit_sha256(number, entry) != self._shas[number]:
                raise IntegrityError(f"{self._name}/{key} of {self._environment} changed while it was copied.")
            try:
                data.put_if_absent(key, entry)
            except AlreadyExists:
                if data.get(key) != entry:
                    raise IntegrityError(
                        f"{self._name}/{key} at {self._there.store.uri} is another commit than the environment "
                        f"{self._environment} has. It was left as it is. Export to an empty place."
                    ) from None

        with ThreadPoolExecutor(THREADS, thread_name_prefix="export") as pool:
            for _ in pool.map(copy, range(1, len(self._shas))):
                pass
        copy(0)

    def _leave(self, state: TableState | None, _: int) -> CommitDraft | None:
        """Say of which versions the files were not copied, as an expiry does; nothing where it was said."""
        assert state is not None  # the log was copied
        left = set(self._left)
        going: Mapping[tuple[int, str | None], Version] = {
            (version.log_version, version.partition): version
            for version in state.history.versions
            if version.gone is None
        }
        versions = tuple(sorted(left & going.keys(), key=lambda pair: (pair[0], pair[1] or "")))
        if not versions:
            return None
        collection = CollectionRecord(
            id=f"export-{self._shas[-1][:12]}",
            kind="expire",
            log_version=state.log_version + 1,
            done=True,
            paths=frozenset(),
            versions=versions,
            owner="",
            by=self._there.author,
            why=f"only current versions were exported from the environment {self._environment}",
        )
        return CommitDraft("EXPORT", [], {"collect": collection.to_json()}, announces=False)
