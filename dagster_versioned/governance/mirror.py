"""The mirror of the registry in governance storage: what writers and readers ask (FORMAT.md, Governance).

It is derived from the registry and can be published anew, with one exception: the put of a mirrored ref.json is the
commit point of a migration. Between that put and the commit that records it, the mirror is ahead, and nothing takes it
back. The mirror never holds a credential.
"""

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from tenacity import RetryError, Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from dagster_versioned.errors import (
    GovernanceError,
    InvalidName,
    ObjectNotFound,
    PreconditionFailed,
    RegistryConflict,
    StorageError,
)
from dagster_versioned.governance.documents import (
    DISPATCH,
    HISTORY,
    IN_ORDER,
    MAX_DOCUMENT_BYTES,
    PENDING,
    REF,
    Dispatch,
    Document,
    Event,
    MigrationHistory,
    PendingMigration,
    ProjectDocuments,
    Ref,
    check_mirrored_agreement,
    project_name,
)
from dagster_versioned.storage.location import Location
from dagster_versioned.storage.object_store import ObjectStore

if TYPE_CHECKING:  # a reader needs no git
    from dagster_versioned.governance.registry import ProjectState, Registry

T = TypeVar("T")

FOLDER = "datom/projects"
_ATTEMPTS = 20

DifferenceState = Literal["missing", "differs", "unreadable", "surplus", "unrecorded"]
"""How a mirrored document is not the registry's. ``"unrecorded"``: a migration switched, and the registry does not know
yet; finish it."""


@dataclass(frozen=True)
class Difference:
    """A document of the mirror that is not what the registry implies."""

    project: str
    document: str
    state: DifferenceState


@dataclass(frozen=True)
class _MirroredDocument:
    """A mirrored document as it lies there; ``data`` is ``None`` where there is none, or none that can be read."""

    data: bytes | None
    etag: str | None

    @property
    def exists(self) -> bool:
        return self.etag is not None


@dataclass(frozen=True)
class _Step:
    difference: Difference
    wanted: bytes | None
    stored: _MirroredDocument
    is_due: bool = True


class GovernanceStore:
    """The mirror below ``datom/projects/`` of a governance storage. Cheap to make; picklable as its store is."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store

    def __repr__(self) -> str:
        return f"GovernanceStore({self.store.uri!r})"

    @staticmethod
    def key(project: str, document: str) -> str:
        """Where a document of a project lies. Raises `InvalidName`."""
        return f"{FOLDER}/{project_name(project)}/{document}"

    # ---- reading: always live

    def projects(self) -> list[str]:
        """The projects that the mirror has a folder of, sorted. Raises `GovernanceError`."""
        with self._readable(FOLDER):
            return [name for name in self.store.folders(f"{FOLDER}/") if _is_name(name)]

    def ref(self, project: str) -> Ref:
        """ref.json of a project, in one request.

        Raises `GovernanceError` where it is not there, cannot be read, or no ref.json.
        """
        return self._parse(project, REF, self._get(project, REF), Ref)

    def ref_with_etag(self, project: str) -> tuple[Ref, str]:
        """As `ref`, with the ETag of what was read."""
        stored = self._stored(project, REF)
        if stored.etag is None:
            raise self._absent(project, REF)
        return self._parse(project, REF, stored.data, Ref), stored.etag

    def pending(self, project: str) -> PendingMigration | None:
        """The migration of a project that is on its way. Raises `GovernanceError`."""
        stored = self._stored(project, PENDING)
        return self._parse(project, PENDING, stored.data, PendingMigration) if stored.exists else None

    def documents(self, project: str) -> ProjectDocuments:
        """All documents of a project.

        Raises `GovernanceError` as `ref` does, and where ref.json is not what the history implies.
        """
        # ref.json first: the history is put before it, so what is read after it is never the older of the two.
        ref = self.ref(project)
        dispatch = self._parse(project, DISPATCH, self._get(project, DISPATCH), Dispatch)
        history = self._parse(project, HISTORY, self._get(project, HISTORY), MigrationHistory)
        pending = self.pending(project)
        check_mirrored_agreement(project, ref, history, self.store.uri)
        return ProjectDocuments(ref, dispatch, history, pending)

    # ---- the commit point of a migration

    def commit_migration(self, project: str, event: Event) -> Event:
        """Switch a project: put the history with the event, then replace ref.json by the one that follows.

        Returns the event as the mirror has it: where this was done before, or begun, the one of that time. That is what
        `Registry.record_migration` is to be given. Raises `RegistryConflict` where the migration was called off or is
        not prepared, or the project is not at its source; `GovernanceError`.
        """

        def attempt() -> Event:
            ref, ref_etag = self.ref_with_etag(project)
            stored = self._stored(project, HISTORY)
            history = self._parse(project, HISTORY, stored.data, MigrationHistory)
            known = history.event(event.id)
            if known is None:
                before, after = history, history.with_event(event)
            elif known != history.events[-1]:
                return known
            else:
                before, after = history.without_last(), history
            new = after.ref()
            assert new is not None
            if ref.says_the_same_as(new):
                return after.events[-1]
            if ref.aborted == event.id or not ref.says_the_same_as(before.ref()):
                raise self._changed(project, ref)
            # After ref.json, which whoever ends a migration changes first: so the swap below fails if this gets old.
            pending = self.pending(project)
            if pending is None or pending.id != event.id:
                raise RegistryConflict(
                    f"The migration {event.id} of {project} is not on its way: it was called off, and others may have "
                    f"been done since. The project is at {ref.current.uri}, as before."
                )
            if known is None:
                self.store.put_if_match(self.key(project, HISTORY), after.to_bytes(), stored.etag)
            self.store.put_if_match(self.key(project, REF), new.to_bytes(), ref_etag)
            return after.events[-1]

        return self._again(attempt, project)

    def call_off(self, project: str, migration_id: str) -> None:
        """Make it impossible for whoever still runs a migration to switch, before anything of it is undone.

        Raises `RegistryConflict` where it has switched; `GovernanceError`.
        """

        def attempt() -> None:
            ref, etag = self.ref_with_etag(project)
            stored = self._stored(project, HISTORY)
            history = self._parse(project, HISTORY, stored.data, MigrationHistory)
            known = history.event(migration_id)
            if known is not None and not (
                history.events[-1] == known and ref.says_the_same_as(history.without_last().ref())
            ):
                raise RegistryConflict(
                    f"The migration {migration_id} of {project} has switched: the project is at {ref.current.uri}. "
                    "Nothing was changed. Finish it by running it again."
                )
            if ref.aborted != migration_id:
                barred = ref.model_copy(update={"aborted": migration_id})
                self.store.put_if_match(self.key(project, REF), barred.to_bytes(), etag)
            if known is not None:
                self.store.put_if_match(self.key(project, HISTORY), history.without_last().to_bytes(), stored.etag)

        self._again(attempt, project)

    # ---- from the registry

    def publish(self, registry: "Registry", projects: Iterable[str] | None = None) -> list[Difference]:
        """Bring the mirror of the named projects, or of all, up to the registry, and return what was changed.

        Fetches the registry. Idempotent. What cannot be read is replaced. A ref.json that a migration has just switched
        stays. Raises `GovernanceError` where the registry's documents cannot be used or disagree, and where the mirror
        knows of events that the registry does not; `RegistryUnavailable`, `RegistryConflict`.
        """
        if projects is None:
            registry.fetch()
            projects = registry.all_projects()
        # Read before the fetch: so what is put is never older than what it replaces.
        stored = {name: self._all_stored(name) for name in map(project_name, projects)}
        registry.fetch()
        done: list[Difference] = []
        for project, state in registry.states(stored).items():
            try:
                done += self._take_over(project, stored[project], state, registry)
            except PreconditionFailed:
                done += self._again(lambda project=project: self._publish(project, registry), project)
        return done

    def _publish(self, project: str, registry: "Registry") -> list[Difference]:
        stored = self._all_stored(project)
        registry.fetch()
        return self._take_over(project, stored, registry.state(project), registry)

    def _take_over(
        self, project: str, stored: dict[str, _MirroredDocument], state: "ProjectState", registry: "Registry"
    ) -> list[Difference]:
        """Raises `PreconditionFailed` where somebody else was faster with one of the documents."""
        steps = [step for step in self._steps(project, stored, state, registry) if step.is_due]
        for step in steps:
            key = self.key(project, step.difference.document)
            if step.wanted is None:
                self.store.delete([key])
            else:
                self.store.put_if_match(key, step.wanted, step.stored.etag)
        return [step.difference for step in steps]

    def status(self, registry: "Registry", projects: Iterable[str] | None = None) -> list[Difference]:
        """How the mirror differs from the registry as it was last fetched; nothing is changed. Raises as `publish`."""
        if projects is None:
            known = registry.all_projects()
            surplus = [Difference(name, REF, "surplus") for name in self.projects() if name not in known]
        else:
            known, surplus = [project_name(project) for project in projects], []
        return surplus + [
            step.difference
            for project, state in registry.states(known).items()
            for step in self._steps(project, self._all_stored(project), state, registry)
        ]

    def _steps(
        self, project: str, stored: dict[str, _MirroredDocument], state: "ProjectState", registry: "Registry"
    ) -> list[_Step]:
        """What is to be put, in the order in which it is to be put, and what is only to be reported."""
        if not state.is_decommissioned:
            registry.agreed(project, state)
        ref = _usable(stored[REF], Ref)
        history = _usable(stored[HISTORY], MigrationHistory)
        self._check_continued(project, ref, history, state, registry)
        documents = (state.history, state.ref, state.dispatch, state.pending)
        expected: dict[str, Ref | Dispatch | MigrationHistory | PendingMigration | None]
        expected = dict(zip(IN_ORDER, documents, strict=True))
        steps: list[_Step] = []
        event = _event_ahead(ref, history, state)
        if event is not None:
            after = state.history.with_event(event)
            expected[HISTORY] = after
            # Where ref.json is lost: a history is put when the target has everything and the source takes no more, so
            # to go on is right, whether the switch came or not.
            if ref is None or ref.says_the_same_as(after.ref()):
                expected[REF] = after.ref()
                steps.append(_Step(Difference(project, REF, "unrecorded"), None, stored[REF], is_due=False))
        if ref is not None and ref.says_the_same_as(state.ref) and state.pending and ref.aborted == state.pending.id:
            expected[REF] = ref  # being called off
        for name in IN_ORDER:
            document, old = expected[name], stored[name]
            wanted = document.to_bytes() if document is not None else None
            if (old.data, old.exists) != (wanted, wanted is not None):
                is_readable = {REF: ref, HISTORY: history}.get(name, old.data) is not None
                steps.append(_Step(Difference(project, name, _difference(old, wanted, is_readable)), wanted, old))
        return steps

    def _check_continued(
        self,
        project: str,
        ref: Ref | None,
        history: MigrationHistory | None,
        state: "ProjectState",
        registry: "Registry",
    ) -> None:
        """The mirror is a witness of the registry: it knows of no move that the registry neither knows nor prepared."""
        known, recorded = _moves(history) if history is not None else [], _moves(state.history)
        shared = min(len(known), len(recorded))
        ahead = (
            {move[0] for move in known[shared:]}
            if ref is not None and history and ref.says_the_same_as(history.ref())
            else set[str]()
        )
        prepared = {state.pending.id} if state.pending is not None else set[str]()
        if known[:shared] != recorded[:shared] or len(known) > len(recorded) + 1 or not ahead <= prepared:
            raise RegistryConflict(
                f"The mirror {self.store.uri} knows events of {project} that the registry {registry.remote} does not. "
                "The mirror was left as it is. Either the clone is behind (`dagster-versioned gov pull`), or the "
                "mirror is another registry's, or one of the two was edited by hand: compare the two "
                "migration_history.json. Restore the registry from git; or, where the mirror is wrong, delete its "
                f"{FOLDER}/{project}/ and publish it anew with `dagster-versioned gov pull`."
            )

    # ---- the store

    def _get(self, project: str, document: str) -> bytes:
        key = self.key(project, document)
        with self._readable(key):
            self._check_links(key)
            try:
                return self.store.get_range(key, 0, MAX_DOCUMENT_BYTES + 1)
            except ObjectNotFound:
                raise self._absent(project, document) from None

    def _stored(self, project: str, document: str) -> _MirroredDocument:
        key = self.key(project, document)
        with self._readable(key):
            try:
                self._check_links(key)
                info = self.store.head(key)
                if info.size > MAX_DOCUMENT_BYTES:
                    return _MirroredDocument(None, info.etag)
                data, info = self.store.get_with_info(key)
                return _MirroredDocument(data, info.etag)
            except ObjectNotFound:
                return _MirroredDocument(None, None)

    def _all_stored(self, project: str) -> dict[str, _MirroredDocument]:
        return {name: self._stored(project, name) for name in IN_ORDER}

    def _parse(self, project: str, document: str, data: bytes | None, kind: type[Document]) -> Document:
        where = f"{self.key(project, document)} in {self.store.uri}"
        if data is None:
            raise GovernanceError(
                f"{where} cannot be used: it has more than {MAX_DOCUMENT_BYTES} bytes. Nothing was changed. Write it "
                "anew from the registry: `dagster-versioned gov pull`."
            )
        return kind.parse(data, where)

    def _check_links(self, key: str) -> None:
        """Refuse a link on the way, even one that stays in the store: it would give one project another's ref.json."""
        path = self.store.local_path(key)
        if path is not None and any(place.is_symlink() for place in _upwards(path, key)):
            raise GovernanceError(
                f"{key} in {self.store.uri} cannot be used: a symbolic link is on the way to it. Nothing was changed. "
                "Delete the link, and publish the mirror anew: `dagster-versioned gov pull`."
            )

    @contextmanager
    def _readable(self, key: str) -> Generator[None]:
        try:
            yield
        except (StorageError, InvalidName) as error:
            raise GovernanceError(
                f"{key} could not be read from {self.store.uri}: {error} Nothing was changed."
            ) from error

    def _absent(self, project: str, document: str) -> GovernanceError:
        return GovernanceError(
            f"There is no {self.key(project, document)} in {self.store.uri}: {project} is not registered, or was "
            "decommissioned, or the mirror is behind. Nothing was changed. See `dagster-versioned gov status`; publish "
            "the mirror: `dagster-versioned gov pull`."
        )

    def _changed(self, project: str, ref: Ref) -> RegistryConflict:
        off = f", and the migration {ref.aborted} was called off" if ref.aborted is not None else ""
        return RegistryConflict(
            f"The mirrored ref.json of {project} in {self.store.uri} is not the one expected: it names "
            f"{ref.current.uri}{off}. It was left as it is. Look again: `dagster-versioned gov status {project}`."
        )

    def _again(self, attempt: Callable[[], T], project: str) -> T:
        retrying = Retrying(
            stop=stop_after_attempt(_ATTEMPTS),
            wait=wait_random_exponential(multiplier=0.01, max=0.5),
            retry=retry_if_exception_type(PreconditionFailed),
        )
        try:
            return retrying(attempt)
        except RetryError:
            raise RegistryConflict(
                f"{_ATTEMPTS} changes of the mirror of {project} in {self.store.uri} lost the race against others. It "
                "was left as they left it. Try again."
            ) from None


def _usable(stored: _MirroredDocument, kind: type[Document]) -> Document | None:
    """A mirrored document, where it can be used; else it is going to be replaced."""
    try:
        return None if stored.data is None else kind.parse(stored.data, "it")
    except GovernanceError:
        return None


def _difference(old: _MirroredDocument, wanted: bytes | None, is_readable: bool) -> DifferenceState:
    """What a stored document is to one that is wanted."""
    if not old.exists:
        return "missing"
    if wanted is None:
        return "surplus"
    return "differs" if is_readable else "unreadable"


def _event_ahead(ref: Ref | None, history: MigrationHistory | None, state: "ProjectState") -> Event | None:
    """The event of a migration that the mirror knows and the registry does not, if it is not one that was aborted."""
    pending = state.pending
    if history is not None and len(history.events) > len(state.history.events):
        event, is_switched = history.events[-1], ref is not None and ref.says_the_same_as(history.ref())
        if is_switched or (pending and event.id == pending.id):
            return event
    if pending is None or ref is None or ref.current != pending.target:
        return None
    return _event_of_switch(ref, pending)


def _event_of_switch(ref: Ref, pending: PendingMigration) -> Event:
    """The event of a migration that has switched, whose history was lost since; what was counted is lost with it."""
    return Event(
        id=pending.id,
        kind="migrated",
        timestamp=ref.previous[-1].until if ref.previous else pending.started_at,
        actor=pending.actor,
        source=pending.source,
        target=pending.target,
        reason=pending.reason,
        verified=pending.verify,
    )


def _moves(history: MigrationHistory) -> list[tuple[str, Location | None, Location | None]]:
    return [(event.id, event.source, event.target) for event in history.events]


def _is_name(text: str) -> bool:
    try:
        return bool(project_name(text))
    except InvalidName:
        return False


def _upwards(path: Path, key: str) -> list[Path]:
    """A file and the folders above it that belong to its key."""
    return [path, *path.parents[: key.count("/")]]
