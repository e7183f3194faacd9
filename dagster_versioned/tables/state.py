"""A table at one log version: its snapshot (which files) beside its history (which versions)."""

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from dagster_versioned.delta.log.commits import (
    Commit,
    LogSegment,
    commit_key,
    commit_sha256,
    commits_after,
    list_log,
    read_log,
)
from dagster_versioned.delta.log.redaction import outline_sha256
from dagster_versioned.delta.log.snapshot import Snapshot, load_later, load_log, load_snapshot, replayed
from dagster_versioned.errors import ObjectNotFound, TableNotFound
from dagster_versioned.process_state import PROCESS
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.chain_head import chain_head
from dagster_versioned.tables.history import CommitRecord, History, redaction_in
from dagster_versioned.tables.parts import refuse_foreign_features
from dagster_versioned.tables.version_index import StoredCommits, load_history


@dataclass(frozen=True)
class TableState:
    """Snapshot and history of one table at one log version, taken from the same commits.

    ``newest`` are the bytes of the last of them, where these are known and few.
    """

    snapshot: Snapshot
    history: History
    newest: bytes | None = None

    def __post_init__(self) -> None:
        refuse_foreign_features(self.snapshot)

    def advance(self, commits: Sequence[Commit]) -> "TableState":
        """The state after commits that follow this one without a gap."""
        return TableState(self.snapshot.advance(commits), self.history.advance(commits), few_bytes(commits))

    @property
    def log_version(self) -> int:
        """The log version both are at."""
        return self.snapshot.version

    def outline_of(self, log_version: int) -> str | None:
        """The SHA-256 of what no redaction changes of a commit, if that is the last one, and its bytes are known."""
        return None if self.newest is None or log_version != self.log_version else outline_sha256(self.newest)

    @property
    def is_small(self) -> bool:
        """Whether it takes so little memory that it may be kept for a later look."""
        kept = self.snapshot.files.nbytes + len(self.snapshot.metadata.schema_string)
        return kept <= _SMALL and len(self.newest or b"") <= _SMALL_COMMIT

    @property
    def is_history(self) -> bool:
        """Whether the table is a history of events. Raises `LogCorrupt`."""
        return chain_head(self.snapshot) is not None


def few_bytes(commits: Sequence[Commit]) -> bytes | None:
    """The bytes of the last commit, if they are few enough to be kept."""
    return commits[-1].data if commits and commits[-1].size <= _FEW_BYTES else None


def says_redaction(commits: Iterable[Commit]) -> bool:
    """Whether one of these commits says that entries before it are redacted, so that none of them may be remembered."""
    return any(redaction_in(commit) is not None for commit in commits)


def next_version(state: TableState | None) -> int:
    """The log version of the next commit."""
    return 0 if state is None else state.log_version + 1


class ForkLock:
    """A lock between the threads of one process, as a context manager.

    A child that is forked while another thread holds an ordinary lock waits for it forever, because that thread does
    not exist in the child. What this one guards must be whole at every moment: replaced, never changed in place.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        PROCESS.of(ForkLocks).add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Forget who holds it; for the only thread of a forked child."""
        self._lock = threading.Lock()


class ForkLocks(weakref.WeakSet[ForkLock]):
    """The locks that a forked child has to renew."""


def _renew_all() -> None:
    for lock in PROCESS.of(ForkLocks):
        lock.renew()


os.register_at_fork(after_in_child=_renew_all)


@dataclass(frozen=True)
class _LoadedState:
    """A state as it was loaded, with the ETags of the files of its log, and where its checkpoint is."""

    state: TableState
    commits: StoredCommits
    etags: tuple[str, ...]
    checkpoint: int
    has_head: bool = False

    def is_part_of(self, segment: LogSegment) -> bool:
        """Whether a segment is these files, or these and commits after them."""
        return segment.etags[: len(self.etags)] == self.etags and segment.version >= self.state.log_version


class LoadedStates:
    """What was loaded of tables, for who opens one of them again. Thread-safe.

    A state is only taken again where a listing of the log shows the same files with the same ETags, so nobody sees
    anything else than who reads these files; where there are commits after them, those alone are read. What its history
    has to read is read by the store of who took it last. The small ones that were asked for last are kept.
    """

    def __init__(self) -> None:
        self._loaded: OrderedDict[str, _LoadedState] = OrderedDict()
        self._lock = ForkLock()

    def __reduce__(self) -> tuple[type["LoadedStates"], tuple[()]]:
        return LoadedStates, ()  # another process reads for itself

    def load(self, store: ObjectStore, near: Callable[[], int | None], commits: StoredCommits) -> TableState:
        """The state at the end of a table's log; ``near`` says from where on it has a checkpoint, if that is known.

        Raises `TableNotFound`, `LogCorrupt`, `UnsupportedFeature`.
        """
        with self._lock:
            known = self._loaded.get(store.uri)
            if known is not None:
                self._loaded.move_to_end(store.uri)
        segment = list_log(store, near=near() if known is None else known.checkpoint)
        checkpoint = segment.checkpoint.version if segment.checkpoint is not None else 0
        state = None
        if known is not None and checkpoint == known.checkpoint and known.is_part_of(segment):
            known.commits.read_by(store)
            if segment.version == known.state.log_version:
                return known.state
            later = load_later(store, segment, known.state.snapshot)
            if not says_redaction(later.commits):
                history, commits = known.state.history.advance(later.commits), known.commits
                state = TableState(later.snapshot, history, few_bytes(later.commits))
        if state is None:
            loaded = load_log(store, segment)
            state = TableState(loaded.snapshot, load_history(loaded, commits), few_bytes(loaded.commits))
        with self._lock:
            if state.is_small and all(segment.etags):
                self._loaded[store.uri] = _LoadedState(state, commits, segment.etags, checkpoint)
            while len(self._loaded) > _KEPT_STATES:
                self._loaded.popitem(last=False)
        return state

    def note_head(self, store: ObjectStore, state: TableState) -> None:
        """Remember that the head of a table was seen to be as this state, which was loaded, implies."""
        with self._lock:
            known = self._loaded.get(store.uri)
            if known is not None and known.state is state:
                self._loaded[store.uri] = replace(known, has_head=True)

    def has_head(self, store: ObjectStore, state: TableState) -> bool:
        """Whether that was seen: a head is never put back, so it need not be looked at again."""
        with self._lock:
            known = self._loaded.get(store.uri)
        return known is not None and known.state is state and known.has_head


_OPENERS = 8


class SharedStates:
    """What this process has loaded for all who open projects in one way, such as the resources of run after run.

    Others share none of it: a URI names no server, and they may have other rights. The openers that came last are kept.
    """

    def __init__(self) -> None:
        self._by_opener: OrderedDict[str, LoadedStates] = OrderedDict()
        self._lock = ForkLock()

    def by(self, opener: str) -> LoadedStates:
        """What was loaded by who opens projects in this way."""
        with self._lock:
            found = self._by_opener.setdefault(opener, LoadedStates())
            self._by_opener.move_to_end(opener)
            while len(self._by_opener) > _OPENERS:
                self._by_opener.popitem(last=False)
        return found


_SMALL = 64 * 1024
"""Bytes that its schema and the list of its files take of a table whose loaded state is kept."""

_SMALL_COMMIT = 4 * _SMALL
"""Bytes of the last commit of such a table, which says much where it wrote many partitions."""

_FEW_BYTES = 1 << 20
"""Bytes of the last commit that are kept with a state, so that the next one need not read it; one of more is read."""

_KEPT_STATES = 256


class StateCache:
    """The newest known state of one table, brought up to date by following the tail of its log.

    A cold start lists the log once, and takes from ``loaded`` what it may; later refreshes cost one read that misses.
    ``near`` says from where on the log has a checkpoint, if that is known. Thread-safe.
    """

    def __init__(
        self, store: ObjectStore, near: Callable[[], int | None] = lambda: None, loaded: LoadedStates | None = None
    ) -> None:
        self._store = self.store = store
        self._near = near
        self._loaded = loaded or LoadedStates()
        self._state: TableState | None = None
        self._older: Snapshot | None = None
        self._commits = StoredCommits(store)
        self._lock = ForkLock()

    def begin(self, *, just_opened: bool = False) -> tuple[TableState | None, bool]:
        """The state to commit on, and whether it is known to be that at the end of the log.

        It need not be: who commits on an older one loses the put. But the newest known commit must still be there,
        which is looked at unless the log was ``just_opened``: a table that was deleted and made anew would otherwise
        get a commit far beyond its end, and a log with a gap.
        """
        with self._lock:
            if self._state is not None and not just_opened and not self._is_of_the_log(self._state):
                self._forget()
            if self._state is not None:
                return self._state, False
        return self.refresh(), True

    def refresh(self) -> TableState | None:
        """The state at the end of the log, or ``None`` if the table has no log."""
        with self._lock:
            if self._state is not None and (commits := commits_after(self._store, self._state.log_version)):
                self._advance(self._state, commits)
            if self._state is None:
                self._state = self._load()
            return self._state

    def adopt(self, state: TableState) -> None:
        """Begin with a state that is known to be that of the log."""
        with self._lock:
            self._state = state

    def go_on_from(self, state: TableState) -> None:
        """Begin with the state of another log, which this one goes on from: what comes later is in this one alone."""
        self.adopt(TableState(state.snapshot, state.history.read_from(self._commits), state.newest))

    @property
    def known(self) -> TableState | None:
        """The newest state that is remembered, without asking the store; ``None`` if there is none."""
        return self._state

    def older(self, log_version: int) -> Snapshot:
        """The snapshot at a log version that is not the newest; the last one is kept: who reads one, reads it again."""
        older = self._older
        if older is None or older.version != log_version:
            self._older = older = load_snapshot(self._store, log_version)
        return older

    def existing_state(self) -> TableState:
        """The state at the end of the log. Raises `TableNotFound`."""
        state = self.refresh()
        if state is None:
            raise TableNotFound(
                f"No table at {self._store.uri}: it has no log. Nothing was ever written under this name; "
                "`dagster-versioned ls` lists the tables of a project."
            )
        return state

    def committed(self, before: TableState | None, made: Commit) -> TableState:
        """The state after a commit of this process that followed ``before``; kept, unless a newer one is known."""
        history = before.history if before else History((), self._commits)
        snapshot = before.snapshot.advance([made]) if before else replayed([made])
        state = TableState(snapshot, history.advance([made]), few_bytes([made]))
        with self._lock:
            if self._state is None or self._state.log_version < state.log_version:
                self._state = state
        return state

    def follow(self, before: TableState | None, commits: Sequence[Commit]) -> None:
        """Take over commits of others that were read after ``before``, so that they are not read again."""
        with self._lock:
            if before is not None and commits and self._state is before:
                self._advance(before, commits)

    def replay(self) -> tuple[TableState, Sequence[Commit]]:
        """The state from the commits alone, and these: nothing that is derived, and nothing remembered, is trusted.

        Raises `TableNotFound`, `LogCorrupt`, and `UnsupportedFeature` where the log does not begin at version 0.
        """
        with self._lock:
            self._forget()
            commits = read_log(self._store)
            history = History([CommitRecord.of(commit) for commit in commits])
            self._state = TableState(replayed(commits), history, few_bytes(commits))
            return self._state, commits

    def _advance(self, state: TableState, commits: Sequence[Commit]) -> None:
        """Go on with later commits; from what is stored now, where one says that entries before it are redacted."""
        if says_redaction(commits):
            self._forget()
        else:
            self._state = state.advance(commits)

    def _is_of_the_log(self, state: TableState) -> bool:
        try:
            newest = self._store.get(commit_key(state.log_version))
        except ObjectNotFound:
            return False
        return commit_sha256(state.log_version, newest) == state.snapshot.commit_sha256

    def _forget(self) -> None:
        self._state, self._older, self._commits = None, None, StoredCommits(self._store)

    def _load(self) -> TableState | None:
        try:
            return self._loaded.load(self._store, self._near, self._commits)
        except TableNotFound:
            return None
