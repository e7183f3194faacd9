"""The git mirror of version documents (the data repository of the source system), optional for each project.

It lies outside of the store, so it is a witness: somebody who cuts the end off a table's log there, or writes it anew,
does not change what git says. It is never on the commit path. What it holds is a function of the logs
(`version_documents`), so a mirror that was down is caught up by the next update, and equal documents are no new commit.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Self

from dagster_versioned.errors import GovernanceError, IntegrityError, TableNotFound, UnsupportedFeature, VersionedError
from dagster_versioned.governance.git_remote import cached_clone
from dagster_versioned.governance.git_repository import GitRepository
from dagster_versioned.governance.git_tree import Tree
from dagster_versioned.governance.registry import MARKER
from dagster_versioned.governance.version_documents import (
    PROJECT_PATH,
    SeenCommits,
    attestations_document,
    attestations_path,
    commits_path,
    is_table_document,
    parse_attestations,
    parse_project_document,
    project_document,
    table_documents,
)
from dagster_versioned.identity.names import table_name
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.attestations import signed_documents
from dagster_versioned.tables.history import History, Version

logger = logging.getLogger("dagster_versioned")

Progress = Callable[[int, int], None]
"""Called with (done, total) tables."""

_READERS = 8
"""Tables whose logs are read at once."""

_LISTED = 100
"""Tables that a commit message names."""


@dataclass(frozen=True)
class MirroredTable:
    """A table whose documents changed: the log version they are at, the one they were at, and the current version.

    ``before`` is -1 where the mirror had nothing of it; ``log_version`` is -1, and ``version`` ``None``, where a table
    that is gone was taken away.
    """

    table: str
    before: int
    log_version: int
    version: str | None


@dataclass(frozen=True)
class MirrorReport:
    """The outcome of an update.

    ``commit`` is the SHA of the one commit that was pushed, ``None`` where nothing had changed, and in a dry run.
    ``refused`` says why a table's documents were left as they are: its log cannot be read, or does not continue what
    the mirror saw.
    """

    commit: str | None
    changed: tuple[MirroredTable, ...]
    unchanged: int
    refused: Mapping[str, str]

    def require_ok(self) -> None:
        """Raise `IntegrityError`, naming the first, if a table was refused."""
        if self.refused:
            first = "; ".join(f"{table}: {why}" for table, why in islice(self.refused.items(), 5))
            more = f"; and {len(self.refused) - 5} more" if len(self.refused) > 5 else ""
            raise IntegrityError(
                f"{len(self.refused)} tables were not mirrored: {first}{more}. What git has of them is as it was. "
                "Verify them (`dagster-versioned gov mirror --verify`); where the log is right all the same, say so: "
                "--accept TABLE."
            )


@dataclass(frozen=True)
class _TableUpdate:
    """What an update makes of one table: its documents by path (``None``: to be removed), or why it leaves them."""

    mirrored: MirroredTable
    documents: Mapping[str, bytes | None] = field(default_factory=dict[str, bytes | None])
    versions: Sequence[tuple[int, str]] = ()
    """Log version and ``metadata_sha`` of what datom's documents may name, oldest first."""
    refused: str | None = None


class VersionMirror:
    """The mirror of one project in one git repository; whatever else that holds is left alone.

    ``repository`` is a bare clone, which no other project shares.
    """

    def __init__(self, project: Project, repository: GitRepository) -> None:
        project.refuse_in_environment("A mirror", "Mirror the project itself")
        self._project = project
        self._repository = repository

    @classmethod
    def open(cls, project: Project, remote: str, clone: Path | None = None) -> Self:
        """The mirror at a remote, by a bare clone in a local folder, which is made if it is not there.

        By default the folder is in the user's cache.

        Raises `InvalidInput` for a remote that is not allowed, `GovernanceError` where something else is in the folder,
        and `RegistryUnavailable` where it has to be cloned and the remote does not answer.
        """
        return cls(project, GitRepository.open_or_clone(remote, clone or cached_clone("mirrors", remote)))

    def update(
        self,
        tables: Iterable[str] | None = None,
        *,
        title: str = "Mirror",
        accept: Collection[str] = (),
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> MirrorReport:
        """Bring the documents of the named tables, or of all, up to their logs; in one commit, which is pushed.

        Equal documents are no commit. A table whose log does not continue the commits that the mirror saw is refused,
        unless it is one of ``accept``: then git gets what the log says, or loses the table if it is gone. One that
        cannot be read is refused too; the others are mirrored. ``title`` is the first line of the commit's message.

        Raises `TableNotFound` for a named table that neither the project nor the mirror knows, `GovernanceError` where
        the repository is another project's, `RegistryUnavailable` and `RegistryConflict` where it cannot be pushed to,
        and `StorageError`; in each case the mirror is as it was.
        """
        named = None if tables is None else sorted({str(table_name(table)) for table in tables})
        accepted = frozenset(map(str, accept))
        looked: list[_TableUpdate] = []
        changed: list[MirroredTable] = []

        def compute(tree: Tree) -> str | None:
            looked[:] = self._look(tree, named, accepted, progress)
            for look in looked:
                for path, data in look.documents.items():
                    tree.write(path, data)
            touched = {path.partition("/")[0] for path in tree.changes()}
            changed[:] = [look.mirrored for look in looked if look.mirrored.table in touched]
            if not changed:
                return None
            tree.write(PROJECT_PATH, project_document(self._project.name))
            return _message(title, changed)

        commit = None
        if dry_run:
            self._repository.would_change(compute)
        else:
            commit = self._repository.change(compute)
        if commit is not None:
            tables = {mirrored.table for mirrored in changed}
            self._note_commits([look for look in looked if look.mirrored.table in tables and look.versions])
        refused = {look.mirrored.table: look.refused for look in looked if look.refused is not None}
        return MirrorReport(commit, tuple(changed), len(looked) - len(changed) - len(refused), refused)

    def fetch(self) -> None:
        """Bring the clone up to the remote. Raises `RegistryUnavailable`, `RegistryConflict`."""
        self._repository.fetch()

    def tables(self) -> list[str]:
        """The tables that the clone knows, by name."""
        return _tables(self._repository.tree())

    def witnesses(self, table: str) -> dict[int, str]:
        """The SHA-256 of each commit of a table that the mirror saw, by log version, for `VersionedTable.verify`.

        Read from the clone, without a network (`fetch` first, to have what others pushed); empty for a table that it
        does not know. Raises `GovernanceError` where somebody edited them.
        """
        path = commits_path(str(table_name(table)))
        tree = self._repository.tree()
        self._check_owner(tree)
        data = tree.read(path)
        return dict(enumerate(self._parse(path, data).shas))

    def attested(self, commit: str) -> frozenset[str]:
        """The SHA-256 of all attestations that the mirror had seen at one of its own commits.

        Read from the clone, without a network. Raises `GovernanceError` where it has no such commit.
        """
        tree = Tree(self._repository, commit)
        self._check_owner(tree)
        return frozenset(sha for table in _tables(tree) for sha in self._attestations(attestations_path(table), tree))

    def _attestations(self, path: str, tree: Tree) -> list[str]:
        return parse_attestations(tree.read(path) or b"", f"{path} of {self._repository.remote}")

    def _note_commits(self, looked: Sequence[_TableUpdate]) -> None:
        """Let datom's documents name the commits here. They follow from this repository, so a failure is made up for by
        the next update that changes the table."""
        try:
            self._project.check_write()
            for look in looked:
                recorded = self._recorded(look.mirrored.table)
                commits: dict[str, str] = {}
                for log_version, version in look.versions:
                    if log_version < len(recorded):
                        commits.setdefault(version, recorded[log_version])
                self._project.table(look.mirrored.table).publisher.note_git_commits(commits)
        except VersionedError as error:
            logger.warning(
                "The mirror has what is new, but %s does not name its commits for datom's readers: the next update "
                "that changes the tables tries again. %s",
                self._project.store.uri,
                error,
            )

    def _recorded(self, table: str) -> list[str]:
        """Of each log version of a table, the commit that recorded it first; of another log since, that."""
        recorded: list[str] = []
        for sha, added, removed in self._repository.line_changes(commits_path(table)):
            recorded = recorded[: len(recorded) - removed] + [sha] * added
        return recorded

    def _look(
        self, tree: Tree, named: Sequence[str] | None, accepted: frozenset[str], progress: Progress | None
    ) -> list[_TableUpdate]:
        """Every table, its log read after the tree: so the log is at least as long as what the tree saw of it."""
        self._check_owner(tree)
        names = sorted({*map(str, self._project.tables()), *_tables(tree)}) if named is None else named
        seen = tree.read_all([commits_path(name) for name in names])

        def look(name: str) -> _TableUpdate:
            return self._look_at(tree, name, seen[commits_path(name)], name in accepted)

        looked: list[_TableUpdate] = []
        with ThreadPoolExecutor(_READERS, thread_name_prefix="mirror") as pool:
            for table in pool.map(look, names):
                looked.append(table)
                if progress is not None:
                    progress(len(looked), len(names))
        return looked

    def _look_at(self, tree: Tree, table: str, data: bytes | None, is_accepted: bool) -> _TableUpdate:
        seen, wrong = self._seen(table, data)
        gone, history = MirroredTable(table, seen.log_version, -1, None), None
        try:
            history = self._project.table(table).state.history
            wrong = wrong or seen.difference(SeenCommits.of(history))
        except TableNotFound:
            if data is None:
                raise
            wrong = wrong or f"the mirror saw the log up to @{seen.log_version}, but the table is gone"
        except (IntegrityError, UnsupportedFeature) as error:
            return _TableUpdate(gone, refused=str(error))
        if wrong is not None and not is_accepted:
            return _TableUpdate(gone, refused=wrong)
        # Where it is another table of that name, nothing of the old one may stay.
        replaced: Iterable[str] = () if wrong is None else filter(is_table_document, tree.paths(table))
        documents: dict[str, bytes | None] = dict.fromkeys(replaced)
        if history is None:
            return _TableUpdate(gone, documents)
        return self._update_of(tree, table, seen, history, documents)

    def _seen(self, table: str, data: bytes | None) -> tuple[SeenCommits, str | None]:
        """The commits that the mirror saw of a table, and why these cannot be read if they cannot."""
        try:
            return self._parse(commits_path(table), data), None
        except GovernanceError as error:
            return SeenCommits(()), str(error)

    def _update_of(
        self, tree: Tree, table: str, seen: SeenCommits, history: History, documents: dict[str, bytes | None]
    ) -> _TableUpdate:
        """The update to a history, beside documents that go."""
        documents |= table_documents(table, history)
        seen_shas = self._attestations(attestations_path(table), tree)
        signed = signed_documents(self._project.table(table).store)
        documents[attestations_path(table)] = attestations_document({*seen_shas, *signed})
        named: Iterable[Version] = () if history.is_partitioned else history.versions
        versions = sorted(
            (version.log_version, version.metadata_sha) for version in named if version.metadata_sha is not None
        )
        mirrored = MirroredTable(table, seen.log_version, history.log_version, _current(history))
        return _TableUpdate(mirrored, documents, versions)

    def _parse(self, path: str, data: bytes | None) -> SeenCommits:
        return SeenCommits(()) if data is None else SeenCommits.parse(data, f"{path} of {self._repository.remote}")

    def _check_owner(self, tree: Tree) -> None:
        if tree.read(MARKER) is not None:
            raise GovernanceError(
                f"{self._repository.remote} is a registry, which belongs to many projects. It was left as it is. "
                f"Mirror {self._project.name} into a repository of its own."
            )
        data = tree.read(PROJECT_PATH)
        owner = None if data is None else parse_project_document(data, str(self._repository.remote))
        if owner not in (None, self._project.name):
            raise GovernanceError(
                f"{self._repository.remote} is the mirror of the project {owner!a:.100}, not of "
                f"{self._project.name!r}. It was left as it is. Use a repository for each project."
            )


def _tables(tree: Tree) -> list[str]:
    return [table for path in tree.paths() if path == commits_path(table := path.partition("/")[0])]


def _current(history: History) -> str | None:
    if history.is_partitioned:
        return history.whole.metadata_sha
    head = history.heads.get(None)
    return head.metadata_sha if head is not None else None


def _message(title: str, changed: Sequence[MirroredTable]) -> str:
    lines = [
        f"{mirrored.table} @{mirrored.log_version} {(mirrored.version or '')[:8]}".rstrip()
        if mirrored.log_version >= 0
        else f"{mirrored.table} is gone"
        for mirrored in changed[:_LISTED]
    ]
    more = [f"and {len(changed) - _LISTED} more"] if len(changed) > _LISTED else []
    count = "1 table" if len(changed) == 1 else f"{len(changed)} tables"
    return "\n".join([f"{title}: {count}", "", *lines, *more])
