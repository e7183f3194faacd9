"""The registry: a git repository that says where every project's bytes belong (seed 003; FORMAT.md, Governance).

Git is canonical. Each event is one commit, made on the newest state of the remote and pushed, or it did not happen;
whoever does the same thing again finds it done and makes no commit.
"""

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from dagster_versioned.errors import GovernanceError, InvalidName, RegistryConflict
from dagster_versioned.governance.documents import (
    DEFAULT_DISPATCH,
    DISPATCH,
    HISTORY,
    IN_ORDER,
    MAX_DOCUMENT_BYTES,
    PENDING,
    REF,
    Dispatch,
    Document,
    Event,
    Keys,
    MigrationHistory,
    PendingMigration,
    ProjectDocuments,
    Ref,
    RegistrationKind,
    as_line,
    check_agreement,
    check_json,
    project_name,
)
from dagster_versioned.governance.git_command import TIMEOUT_SECONDS
from dagster_versioned.governance.git_remote import remote_url
from dagster_versioned.governance.git_repository import GitRepository, make_bare
from dagster_versioned.governance.git_tree import Tree
from dagster_versioned.governance.place import same_place, share_bytes
from dagster_versioned.storage.location import Location

_Documents = Mapping[str, Ref | Dispatch | MigrationHistory | PendingMigration | None]

FOLDER = "projects"
REHEARSED = "rehearsed"
"""What a change returns in place of a commit's SHA where it was only rehearsed."""

MARKER = "registry.json"
"""The file that says that a repository is a registry, so that none is made of another repository by mistake."""

KEYS = "keys.json"
"""Stays in the registry: who may change the governance storage is not who says whom to trust."""

_MARKER_TEXT = b'{\n  "kind": "dagster-versioned registry",\n  "schema_version": 1\n}\n'
_README = b"""# Registry

Where the bytes of each project are, how they are read, and how they came to be there. Code alone writes this repository
(`dagster-versioned gov`): a hand that edits `ref.json` breaks its link with `migration_history.json`, and is found out.
"""


@dataclass(frozen=True)
class ProjectState:
    """What the registry holds of a project, document by document, agreeing or not; ``None``: it does not hold it."""

    ref: Ref | None
    dispatch: Dispatch | None
    history: MigrationHistory
    pending: PendingMigration | None

    @property
    def is_decommissioned(self) -> bool:
        """Whether the project was given up, and not registered again."""
        return bool(self.history.events) and self.history.events[-1].kind == "decommissioned"


class Registry:
    """A developer's clone of the registry.

    Reads use no network and say what was fetched last; every change fetches first, and again if somebody else was
    faster. Picklable; shared by threads and processes.
    """

    def __init__(self, repository: GitRepository, *, rehearses: bool = False) -> None:
        self.repository = repository
        self.rehearses = rehearses

    def __repr__(self) -> str:
        return f"Registry({str(self.repository.path)!r}, {self.remote!r})"

    @classmethod
    def init(cls, remote: str, clone: Path, *, timeout: float = TIMEOUT_SECONDS) -> Self:
        """Make a remote repository a registry, and clone it; a folder that is empty or not there is made one.

        Run again, it finds all done. Raises `InvalidInput` for a remote that is not allowed, and as `GitRepository`
        does.
        """
        url = remote_url(remote)
        if url.local is not None and not (url.local.is_dir() and any(url.local.iterdir())):
            make_bare(url.local, timeout=timeout)
        registry = cls(GitRepository.open_or_clone(url, clone, timeout=timeout))

        def begin(tree: Tree) -> Mapping[str, bytes | None] | None:
            if tree.read(MARKER) is not None:
                return None
            return {MARKER: _MARKER_TEXT, **({} if tree.paths() else {"README.md": _README})}

        registry.change("Begin the registry", begin)
        registry.tree()
        return registry

    @classmethod
    def clone(cls, remote: str, clone: Path, *, timeout: float = TIMEOUT_SECONDS) -> Self:
        """Clone a registry into a folder that is empty or not there; an existing clone of it is opened.

        Raises `GovernanceError` where the remote is no registry, and as `GitRepository` does; no clone is then left.
        """
        is_new = not (clone.expanduser() / "HEAD").exists()
        registry = cls(GitRepository.open_or_clone(remote, clone, timeout=timeout))
        try:
            registry.tree()
        except GovernanceError:
            if is_new:
                shutil.rmtree(registry.path)
            raise
        return registry

    @classmethod
    def open(cls, clone: Path, *, timeout: float = TIMEOUT_SECONDS) -> Self:
        """Open a clone; no network. Raises `GovernanceError`."""
        return cls(GitRepository.open(clone, timeout=timeout))

    @property
    def remote(self) -> str:
        """The URL that the clone was made from; it holds no credential."""
        return str(self.repository.remote)

    @property
    def path(self) -> Path:
        """The folder of the clone."""
        return self.repository.path

    @property
    def fetched_at(self) -> datetime | None:
        """When the clone was last up to date; ``None`` if that is not known (never, or a clock jumped)."""
        return self.repository.fetched_at

    @property
    def commit_sha(self) -> str | None:
        """The commit of the registry that was fetched last."""
        return self.repository.sha

    def identity(self) -> str:
        """The user's git identity, ``Name <mail>``. Raises `GovernanceError` where git knows none."""
        return self.repository.identity()

    def fetch(self) -> str | None:
        """Bring the clone up to date. Raises `RegistryUnavailable`, `RegistryConflict`."""
        return self.repository.fetch()

    def tree(self) -> Tree:
        """The files that were fetched last. Raises `GovernanceError` where they are no registry's."""
        tree = self.repository.tree()
        self._check_marker(tree)
        return tree

    def projects(self) -> list[str]:
        """The projects that are registered, sorted; those that were decommissioned are not."""
        return _with_document(self.tree(), REF)

    def all_projects(self) -> list[str]:
        """The projects that are or were registered, sorted."""
        tree = self.tree()
        return sorted({*_with_document(tree, REF), *_with_document(tree, HISTORY)})

    def read(self, path: str) -> bytes | None:
        """The bytes of a file of the registry, ``None`` where there is none.

        Raises `GovernanceError` for what is no plain file (a link, a submodule), and for more than 1 MiB.
        """
        return self.tree().read_all([path], at_most=MAX_DOCUMENT_BYTES)[path]

    def state(self, project: str) -> ProjectState:
        """What the registry holds of a project, without asking whether it agrees. Raises `GovernanceError`."""
        return self.states([project])[project]

    def states(self, projects: Iterable[str]) -> dict[str, ProjectState]:
        """As `state`, for several projects as one commit has them. Raises `GovernanceError`."""
        return self._states(self.tree(), [project_name(project) for project in projects])

    def documents(self, project: str) -> ProjectDocuments:
        """The documents of a registered project.

        Raises `GovernanceError` where it is not registered, was decommissioned, or a document is missing, cannot be
        used, or was edited by hand.
        """
        return self.agreed(project, self.state(project))

    def check_nobody_else(self, project: str, location: Location) -> None:
        """Refuse to delete a project's bytes where another's are among them, or are about to be, as last fetched.

        Raises `RegistryConflict`.
        """
        found = self._neighbour(self.tree(), project, location)
        if found is not None:
            other, place = found
            raise RegistryConflict(
                f"The bytes of {project} at {location.uri} cannot be distinguished from those of {other} at "
                f"{place.uri}. Nothing was deleted. Keep them, and delete by hand what is nobody else's."
            )

    def rehearsal(self) -> "Registry":
        """The same registry for a dry run: changes are decided on the newest state, and raise what they would raise,
        but nothing is committed; where a commit would be made they return `REHEARSED`."""
        return Registry(self.repository, rehearses=True)

    def change(self, message: str, change: Callable[[Tree], Mapping[str, bytes | None] | None]) -> str | None:
        """Commit the files that ``change`` returns for the newest tree (``None`` for bytes: removed), and push.

        Returns the commit's SHA, ``None`` where nothing differs. ``change`` may run several times. Raises as
        `GitRepository.change` does.
        """

        def compute(tree: Tree) -> str | None:
            for path, data in (change(tree) or {}).items():
                tree.write(path, data)
            return message

        if self.rehearses:
            return REHEARSED if self.repository.would_change(compute) else None
        return self.repository.change(compute)

    # ---- events: each one commit, and none the second time

    def register(
        self,
        project: str,
        location: Location,
        *,
        actor: str | None = None,
        kind: RegistrationKind = "registered",
        dispatch: Dispatch = DEFAULT_DISPATCH,
        reason: str | None = None,
    ) -> str | None:
        """Record that a project's bytes belong at a location; ``"attached"``: they were there before, ungoverned.

        ``None``, and no commit, where that is so already. Raises `InvalidName`, and `RegistryConflict` where the
        project is registered elsewhere, or the location is another project's.
        """
        event = Event(kind=kind, timestamp=now(), actor=self._actor(actor), target=location, reason=_reason(reason))

        def decide(tree: Tree, state: ProjectState) -> _Documents:
            if (state.history.events and not state.is_decommissioned) or state.ref is not None:
                ref = self._registered(project, state)
                if same_place(ref.current, location):
                    return {}
                raise RegistryConflict(
                    f"{project} is registered at {ref.current.uri}, not at {location.uri}. Nothing was recorded. "
                    f"To move it: `dagster-versioned gov migrate {project}`."
                )
            self._check_unlike(tree, project)
            self._check_free(tree, project, location)
            history = state.history.with_event(event)
            return {HISTORY: history, REF: history.ref(), DISPATCH: dispatch}

        return self._update(project, f"{kind.capitalize()}: {project} at {location.uri}", reason, decide)

    def set_dispatch(self, project: str, dispatch: Dispatch) -> str | None:
        """Record how a project is read. Raises `GovernanceError` where it is not registered."""

        def decide(tree: Tree, state: ProjectState) -> _Documents:
            self._registered(project, state)
            return {DISPATCH: dispatch}

        return self._update(project, f"Dispatch: {project}", None, decide)

    def unregister(self, project: str, *, actor: str | None = None, reason: str | None = None) -> str | None:
        """Record that a project was given up: its history stays, its other documents go.

        ``None``, and no commit, where it was given up before. Raises `GovernanceError` where it was never registered,
        `RegistryConflict` while it is being moved.
        """
        actor = self._actor(actor)

        def decide(tree: Tree, state: ProjectState) -> _Documents:
            if state.ref is None and state.is_decommissioned:
                return {}
            documents = self.agreed(project, state)
            if documents.pending is not None:
                raise _being_moved(project, documents.pending)
            event = Event(
                kind="decommissioned",
                timestamp=now(),
                actor=actor,
                source=documents.ref.current,
                reason=_reason(reason),
            )
            return {HISTORY: state.history.with_event(event), REF: None, DISPATCH: None}

        return self._update(project, f"Decommissioned: {project}", reason, decide)

    def prepare_migration(self, project: str, pending: PendingMigration) -> str | None:
        """Record that a migration begins. ``None`` where this very one has begun.

        Raises `RegistryConflict` while another one is on its way, where the project is not at its source, and where the
        target is another project's; `GovernanceError`.
        """

        def decide(tree: Tree, state: ProjectState) -> _Documents:
            documents = self.agreed(project, state)
            if documents.pending is not None:
                if documents.pending.id == pending.id:
                    return {}
                raise _being_moved(project, documents.pending)
            if state.history.event(pending.id) is not None:
                raise RegistryConflict(f"The migration {pending.id} of {project} is done. Nothing was recorded.")
            if documents.ref.current != pending.source:
                raise RegistryConflict(
                    f"{project} is at {documents.ref.current.uri}, not at {pending.source.uri}: somebody moved it. "
                    "Nothing was recorded. Look again: `dagster-versioned gov status`."
                )
            self._check_free(tree, project, pending.target)
            return {PENDING: pending}

        message = f"Migration prepared: {project} to {pending.target.uri}"
        return self._update(project, message, pending.reason, decide)

    def record_migration(self, project: str, event: Event) -> str | None:
        """Record that a prepared migration switched: its event, the ref.json that follows, and its end.

        ``None`` where it is recorded. Raises `RegistryConflict` where it was not prepared, or aborted;
        `GovernanceError` where the event does not begin where the project is.
        """

        def decide(tree: Tree, state: ProjectState) -> _Documents:
            documents = self.agreed(project, state)
            if state.history.event(event.id) is not None:
                return {}
            if documents.pending is None or documents.pending.id != event.id:
                raise RegistryConflict(
                    f"No migration {event.id} of {project} is prepared: it was aborted, or never begun. Nothing was "
                    f"recorded. Look at it: `dagster-versioned gov status {project}`."
                )
            history = state.history.with_event(event)
            return {HISTORY: history, REF: history.ref(), PENDING: None}

        where = event.target.uri if event.target is not None else "nowhere"
        return self._update(project, f"Migrated: {project} to {where}", event.reason, decide)

    def abort_migration(self, project: str, migration_id: str) -> str | None:
        """Record that a prepared migration was called off. ``None`` where it is not prepared, nor was it ever done.

        Raises `RegistryConflict` where it is recorded as done, or another one is prepared; `GovernanceError`.
        """

        def decide(tree: Tree, state: ProjectState) -> _Documents:
            documents = self.agreed(project, state)
            if state.history.event(migration_id) is not None:
                raise RegistryConflict(
                    f"The migration {migration_id} of {project} is done and cannot be called off. Nothing was "
                    f"recorded. To go back, migrate to {documents.ref.previous[-1].uri}."
                )
            if documents.pending is None:
                return {}
            if documents.pending.id != migration_id:
                raise _being_moved(project, documents.pending)
            return {REF: documents.ref.model_copy(update={"aborted": migration_id}), PENDING: None}

        return self._update(project, f"Migration aborted: {project}", f"Migration {migration_id}", decide)

    def keys(self, project: str) -> Keys:
        """The keys that are trusted for a project, as last fetched. Raises `GovernanceError`."""
        return self._one(self.tree(), project_name(project), KEYS, Keys) or Keys()

    def change_keys(self, project: str, subject: str, change: Callable[[Keys], Keys]) -> str | None:
        """Record other keys, or other requirements. ``None``, and no commit, where they are those that there are.

        Raises `GovernanceError` where the project is not registered, and what ``change`` raises.
        """
        name = project_name(project)

        def changed(tree: Tree) -> Mapping[str, bytes | None]:
            self._check_marker(tree)
            self._registered(name, self._states(tree, [name])[name])
            known = self._one(tree, name, KEYS, Keys) or Keys()
            new = change(known)
            return {} if new == known else {_path(name, KEYS): new.to_bytes()}

        return self.change(f"Keys: {subject} for {name}", changed)

    def repair_ref(self, project: str) -> str | None:
        """Write ref.json anew from migration_history.json. ``None`` where they agree.

        Raises `GovernanceError` where the history itself cannot be used: then only git's own history helps.
        """
        name = project_name(project)

        def change(tree: Tree) -> Mapping[str, bytes | None]:
            self._check_marker(tree)
            history = self._one(tree, name, HISTORY, MigrationHistory)
            if history is None:
                raise self._not_registered(name)
            try:
                old = self._one(tree, name, REF, Ref)
            except GovernanceError:
                old = None
            implied = history.ref()
            if old is not None and implied is not None:
                implied = implied.model_copy(update={"aborted": old.aborted})
            return {_path(name, REF): implied.to_bytes() if implied is not None else None}

        return self.change(f"Repaired: ref.json of {name}", change)

    # ---- reading a tree

    def _update(
        self, project: str, subject: str, body: str | None, decide: Callable[[Tree, ProjectState], _Documents]
    ) -> str | None:
        name = project_name(project)

        def change(tree: Tree) -> Mapping[str, bytes | None]:
            self._check_marker(tree)
            documents = decide(tree, self._states(tree, [name])[name])
            return {
                _path(name, key): document.to_bytes() if document is not None else None
                for key, document in documents.items()
            }

        return self.change(f"{subject}\n\n{body}" if body else subject, change)

    def _states(self, tree: Tree, projects: Sequence[str]) -> dict[str, ProjectState]:
        # All of them in one call of git.
        data = tree.read_all(
            [_path(project, name) for project in projects for name in IN_ORDER], at_most=MAX_DOCUMENT_BYTES
        )

        def one(project: str, name: str, kind: type[Document]) -> Document | None:
            return self._parsed(data[_path(project, name)], _path(project, name), kind)

        return {
            project: ProjectState(
                ref=one(project, REF, Ref),
                dispatch=one(project, DISPATCH, Dispatch),
                history=one(project, HISTORY, MigrationHistory) or MigrationHistory(),
                pending=one(project, PENDING, PendingMigration),
            )
            for project in projects
        }

    def _one(self, tree: Tree, project: str, name: str, kind: type[Document]) -> Document | None:
        path = _path(project, name)
        return self._parsed(tree.read_all([path], at_most=MAX_DOCUMENT_BYTES)[path], path, kind)

    def _parsed(self, data: bytes | None, path: str, kind: type[Document]) -> Document | None:
        return None if data is None else kind.parse(data, f"{path} in the registry {self.remote}")

    def _registered(self, project: str, state: ProjectState) -> Ref:
        """ref.json of a project that is registered and not edited by hand."""
        if state.ref is None and (state.is_decommissioned or not state.history.events):
            last = state.history.events[-1] if state.history.events else None
            if last is None:
                raise self._not_registered(project)
            raise GovernanceError(
                f"{project} was decommissioned by {last.actor} at {last.timestamp.isoformat()}. Nothing was changed. "
                f"Its history is in the registry {self.remote}; to begin anew: `dagster-versioned gov register`."
            )
        check_agreement(project, state.ref, state.history, f"the registry {self.remote}")
        assert state.ref is not None
        return state.ref

    def agreed(self, project: str, state: ProjectState) -> ProjectDocuments:
        """What `documents` returns, or raises, for a state that was read."""
        ref = self._registered(project, state)
        if state.dispatch is None:
            raise GovernanceError(
                f"The registry {self.remote} holds no dispatch.json of {project}: somebody deleted it. Nothing was "
                f"changed. Say again how it is read: `dagster-versioned gov dispatch {project}`."
            )
        return ProjectDocuments(ref, state.dispatch, state.history, state.pending)

    def _not_registered(self, project: str) -> GovernanceError:
        return GovernanceError(
            f"{project} is not registered in {self.remote}, as it was last fetched. Nothing was changed. See what is: "
            "`dagster-versioned gov list`; register it: `dagster-versioned gov register`."
        )

    def _check_marker(self, tree: Tree) -> None:
        if tree.holds(MARKER, _MARKER_TEXT):  # by its hash: no call of git
            return
        data = tree.read(MARKER)
        if data is None:
            raise GovernanceError(
                f"{self.remote} is no registry: it has no {MARKER}. Nothing was changed. Correct the URL, or make it "
                "one: `dagster-versioned gov init`."
            )
        check_json(data, f"{MARKER} in {self.remote}")

    def _check_unlike(self, tree: Tree, project: str) -> None:
        """A folder of the mirror may lie where upper and lower case are the same."""
        for other in _with_document(tree, HISTORY):
            if other != project and other.lower() == project.lower():
                raise InvalidName(
                    f"{project} and {other}, which is registered, differ by the case of letters alone. Nothing was "
                    "recorded. Choose another name."
                )

    def _check_free(self, tree: Tree, project: str, location: Location) -> None:
        """Two projects whose bytes lie among each other's would overwrite, move and delete them."""
        found = self._neighbour(tree, project, location)
        if found is not None:
            other, place = found
            what = "is" if same_place(place, location) else f"has its bytes among those at {place.uri},"
            raise RegistryConflict(
                f"{location.uri} {what} the place of the project {other}. Nothing was recorded. Give {project} a place "
                "of its own."
            )

    def _neighbour(self, tree: Tree, project: str, location: Location) -> tuple[str, Location] | None:
        others = [other for other in _with_document(tree, REF) if other != project]
        paths = {_path(other, name): (other, name) for other in others for name in (REF, PENDING)}
        for path, data in tree.read_all(paths, at_most=MAX_DOCUMENT_BYTES).items():
            other, name = paths[path]
            place = self._place(data, path, is_pending=name == PENDING)
            if place is not None and share_bytes(place, location):
                return other, place
        return None

    def _place(self, data: bytes | None, path: str, *, is_pending: bool) -> Location | None:
        if is_pending:
            pending = self._parsed(data, path, PendingMigration)
            return None if pending is None else pending.target
        ref = self._parsed(data, path, Ref)
        return None if ref is None else ref.current

    def _actor(self, actor: str | None) -> str:
        return as_line(actor or self.identity(), "actor")


def now() -> datetime:
    """The time for a document: UTC, in whole seconds."""
    return datetime.now(UTC).replace(microsecond=0)


def _reason(reason: str | None) -> str | None:
    return None if reason is None else as_line(reason, "reason")


def _path(project: str, name: str) -> str:
    return f"{FOLDER}/{project}/{name}"


def _with_document(tree: Tree, name: str) -> list[str]:
    found: list[str] = []
    for path in tree.paths(FOLDER):
        parts = path.split("/")
        if len(parts) == 3 and parts[2] == name:
            with suppress(InvalidName):
                found.append(project_name(parts[1]))
    return found


def _being_moved(project: str, pending: PendingMigration) -> RegistryConflict:
    return RegistryConflict(
        f"{project} is being moved to {pending.target.uri} by {pending.actor}, since {pending.started_at.isoformat()} "
        f"(migration {pending.id}). Nothing was recorded. Finish that migration, or abort it: `dagster-versioned gov "
        f"migrate {project}`."
    )
