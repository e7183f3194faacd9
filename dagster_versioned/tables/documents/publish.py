"""Documents that are derived from the log: heads, the datom documents, the manifest, checkpoints, the version index.

Each is a function of the log alone, so any of them can be deleted and comes back byte for byte (a checkpoint, which is
Parquet, with the same release of pyarrow). None is on the commit path: a crash before they are written loses nothing,
and whoever publishes next brings them up to date. So a put of one need not wait for the disk (ten of a commit's sixteen
fsyncs): what a power failure does, `repair` mends.
The exceptions: checkpoints and their index, which other programs and this one load a table from.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from dagster_versioned.delta.commit.checkpoint import (
    checkpoint_bytes,
    checkpoint_key,
    hint_of_size,
    same_rows,
    write_checkpoint,
)
from dagster_versioned.delta.log.commits import (
    LAST_CHECKPOINT_KEY,
    LOG_FOLDER,
    Commit,
    checkpoints_of,
    last_checkpoint_version,
)
from dagster_versioned.delta.log.derived_files import MisleadingFiles, misleading_files
from dagster_versioned.delta.log.snapshot import Snapshot, load_snapshot, replayed
from dagster_versioned.errors import ObjectNotFound, VersionedError
from dagster_versioned.identity.names import TableName
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables import version_index
from dagster_versioned.tables.chain_head import REF_KEY, chain_head
from dagster_versioned.tables.document import read_if_any
from dagster_versioned.tables.documents.datom_documents import Check, DatomDocuments, is_one_of, was_made_again
from dagster_versioned.tables.documents.head import (
    HeadDocument,
    TableHead,
    former_partition_heads,
    table_head,
)
from dagster_versioned.tables.history import REDACTION, CommitRecord, History
from dagster_versioned.tables.state import StateCache, TableState
from dagster_versioned.tables.version_index import FOLDER, index_bytes, index_key, note_of, parse_index

CHECKPOINT_INTERVAL = 5
"""Commits from one checkpoint to the next: what a write of a small table costs to begin with; of a large table, whose
checkpoints cost more, twice as many."""

_LARGE = 1_000
"""Live files of a large table."""


class Publisher:
    """Writes the derived documents of one table.

    ``data`` is the project's data folder (heads, manifest), ``store`` the table's own folder inside it, ``head`` the
    table's head there. ``forked_at`` is the log version up to which they are somebody else's, in an environment, which
    has no documents for datom.
    """

    def __init__(
        self,
        project: str,
        table: TableName,
        data: ObjectStore,
        store: ObjectStore,
        head: TableHead,
        *,
        forked_at: int | None = None,
    ) -> None:
        self._table = table
        self._data = data
        self._store = store
        self._head = head
        self._datom = DatomDocuments(project, table, data, store) if forked_at is None else None
        self._forked_at = -1 if forked_at is None else forked_at
        self._ref: str | None = None  # where the chain ends, as this process wrote it

    def publish(self, cache: StateCache, state: TableState) -> None:
        """Bring every derived document up to the state, or to a later one where somebody already published that.

        What the commits since the stored head call for comes first and the head last, so that a head never hides that
        something is still to be put. Where something fails before it, the head says so, and the next publisher does it.
        Documents other than heads are put without a condition, so an older publisher may overwrite a newer one's;
        therefore one that finds the head beyond its state publishes what is current.
        """
        self._publish_since(self._head.last_seen().published, cache, state)

    def _publish_since(self, since: int, cache: StateCache, state: TableState) -> None:
        while since <= state.log_version:
            failed: VersionedError | None = None
            is_shared = False
            try:
                is_shared = self._publish_others(state, since)
            except VersionedError as error:
                failed = error
            before = self._publish_head(state, since, is_owed=failed is not None)
            if failed is not None:
                raise failed
            if before.log_version <= state.log_version:
                return
            newer = cache.existing_state()
            if any(record.member(REDACTION) for record in newer.history.between(state.log_version, newer.log_version)):
                self.rebuild(cache)  # what was put here is from before the redaction
                return
            if not is_shared and not (self._datom and was_made_again(newer.history, since, state.log_version)):
                return
            state = newer

    def rebuild(self, cache: StateCache) -> None:
        """Write every derived document again from the commits alone, whatever is there now."""
        while True:
            stored = self._head.read()  # before the log: see `TableHead.publish`
            state, commits = cache.replay()
            before = self._publish_head(state, -1, ahead=stored, is_owed=True)
            if before.log_version <= state.log_version or before == stored:
                break  # else somebody else was faster, and the head does not say that anything is owed
        self._rebuild_others(state, commits)
        self._publish_head(state, -1)
        if (newest := cache.existing_state()).log_version > state.log_version:
            self._publish_since(-1, cache, newest)  # what others put meanwhile is among what was written over

    def _rebuild_others(self, state: TableState, commits: Sequence[Commit]) -> None:
        self._data.delete([info.key for info in self._data.list(former_partition_heads(self._table))])
        if self._datom is not None:
            self._datom.rebuild(state.history)
        self._ref = None
        self._publish_ref(state)
        self._store.delete([key for file in self.misleading(commits) for key in file.keys])
        for key, data in self.checkpoints(commits):
            self._put_unless_there(key, data)
        for at, records in self._own_segments(state.history):
            self._put_unless_there(index_key(at), index_bytes(records))
        self._store.delete(self.extra_indexes(state))

    def note_git_commits(self, commits: Mapping[str, str]) -> None:
        """Let datom's history name, by ``metadata_sha``, the commit of a git mirror that recorded a version first."""
        if self._datom is not None:
            self._datom.note_git_commits(commits)

    def withdraw(self) -> None:
        """Take away what datom readers see of the table, which has left for another name."""
        if self._datom is not None:
            self._datom.withdraw()

    def checkpoints(self, commits: Sequence[Commit]) -> Iterator[tuple[str, bytes]]:
        """The checkpoints, and what names the last of them, by key below the table's folder."""
        checkpoint = None
        for checkpoint in self._own_checkpoints(commits):
            yield checkpoint_key(checkpoint.version), checkpoint.noted[0]
        if checkpoint is not None and not self._names_foreign(checkpoint.version):
            yield LAST_CHECKPOINT_KEY, checkpoint.noted[1]

    def checkpoint_checks(self, commits: Sequence[Commit]) -> Iterator[tuple[str, Check]]:
        """What must hold of the checkpoints, and of what names the last of them.

        One that is not named may be missing, since whoever opens the table begins at an older one; and one may note
        nothing, as those that earlier versions of the package wrote. Another release of pyarrow encodes it otherwise.
        """
        hints: list[bytes] = []
        last, named = 0, last_checkpoint_version(self._store)
        for checkpoint in self._own_checkpoints(commits):
            last = checkpoint.version
            yield checkpoint_key(checkpoint.version), checkpoint.check(may_lack=named != checkpoint.version)
            if (size := self._size(checkpoint_key(checkpoint.version))) is not None:
                hint = checkpoint.noted[1]
                hints += (hint, checkpoint.plain[1], hint_of_size(hint, size))
        if hints and not self._names_foreign(last):
            yield LAST_CHECKPOINT_KEY, lambda data: data in hints

    def misleading(self, commits: Sequence[Commit]) -> Iterator[MisleadingFiles]:
        """What lies in the log beside the commits, whoever wrote it, and is not what they say: checksums, compactions,
        checkpoints but for those of `checkpoints`, and a ``_last_checkpoint`` that names none."""
        own = [checkpoint_key(snapshot.version) for snapshot, _ in _due_checkpoints(commits)]
        found = list(misleading_files(self._store, commits, self._forked_at, own))
        yield from found
        named = last_checkpoint_version(self._store)
        if self._size(LAST_CHECKPOINT_KEY) is None or (named is not None and named <= self._forked_at):
            return
        false = {file.keys for file in found}
        if named not in {files.version for files in checkpoints_of(self._store) if files.keys not in false}:
            yield MisleadingFiles((LAST_CHECKPOINT_KEY,), "it names no checkpoint that can be used")

    def _names_foreign(self, log_version: int) -> bool:
        """Whether ``_last_checkpoint`` may name one that another program wrote: after a log version, or under a name of
        its own, as those of the V2 spec."""
        named = last_checkpoint_version(self._store)
        if named is None or named < log_version:
            return False
        there = {info.key for info in self._store.list(f"{LOG_FOLDER}{named:020d}.checkpoint")}
        return bool(there if named > log_version else there - {checkpoint_key(named)})

    def extra_indexes(self, state: TableState) -> list[str]:
        """Segments of the version index that were stored, but that no publisher would have left."""
        due = {index_key(at) for at, _ in segments(state.history)}
        return [info.key for info in self._store.list(FOLDER) if info.key not in due]

    def checks(self, state: TableState) -> dict[str, Check]:
        """What must hold of the datom documents, the chain's reference and the index, by key below the table's
        folder."""
        checks = {} if self._datom is None else self._datom.checks(state.history)
        if (end := chain_head(state.snapshot)) is not None and state.log_version > self._forked_at:
            checks[REF_KEY] = is_one_of(end.head.encode())
        return checks | {
            index_key(at): _holds(records, may_lack=at == state.log_version)
            for at, records in self._own_segments(state.history)
        }

    def _own_checkpoints(self, commits: Sequence[Commit]) -> Iterator["_Checkpoint"]:
        due = _due_checkpoints(commits)
        return (_Checkpoint(snapshot, history) for snapshot, history in due if snapshot.version > self._forked_at)

    def _own_segments(self, history: History) -> Iterator[tuple[int, Sequence[CommitRecord]]]:
        return ((at, records) for at, records in segments(history) if at > self._forked_at)

    def _publish_head(
        self, state: TableState, since: int, *, is_owed: bool = False, ahead: HeadDocument | None = None
    ) -> HeadDocument:
        """Publish the table's head, once what the commits after ``since`` call for was put, or is owed.

        ``ahead`` was read before the log. Returns the head that was there.
        """
        return self._head.publish(
            table_head(self._table, state),
            state.log_version,
            ahead=ahead,
            durability="later",
            put_after=state.log_version if is_owed else since,
            owed_since=since if is_owed else None,
        )

    def _publish_others(self, state: TableState, since: int) -> bool:
        """Publish all but the heads; whether any of it might be taken back by who is slower."""
        is_checkpoint = state.log_version > 0 and state.log_version % CHECKPOINT_INTERVAL == 0
        # A commit with a checkpoint leaves its own versions' documents to the next one, to be no dearer than others.
        after = since - 1 if since > 0 and since % CHECKPOINT_INTERVAL == 0 else since
        shared = self._publish_ref(state)
        if self._datom is not None:
            shared |= self._datom.publish(state.history, since, after, with_newest=not is_checkpoint)
        self._publish_checkpoint(state, since)
        for end, records in segments(state.history, since):
            if end < state.log_version:  # the next commit's: that of a checkpoint has enough to put
                self._store.put(index_key(end), index_bytes(records))
        return shared

    def _publish_ref(self, state: TableState) -> bool:
        """Publish where the chain ends, for those who read it without the log."""
        end = chain_head(state.snapshot)
        if end is None or end.head == self._ref:
            return False
        self._store.put(REF_KEY, end.head.encode(), durability="later")
        self._ref = end.head
        return True

    def _publish_checkpoint(self, state: TableState, since: int) -> None:
        """Write the newest checkpoint that the commits after ``since`` call for.

        Any commit sees to it, not only the one that is a multiple of the interval: that one's process may have died, or
        have been overtaken.
        """
        due = state.log_version - state.log_version % CHECKPOINT_INTERVAL
        if due <= max(since, 0):
            return
        at = state if due == state.log_version else None
        snapshot = at.snapshot if at else load_snapshot(self._store, due)
        if has_checkpoint(snapshot):
            history = at.history if at else state.history.until(due)
            # In one file: its name does not depend on its bytes, which do on the release of pyarrow.
            write_checkpoint(self._store, snapshot, note_of(history), is_newest=True, in_one_file=True)

    def _put_unless_there(self, key: str, data: bytes) -> None:
        if read_if_any(self._store, key) != data:
            self._store.put(key, data)

    def _size(self, key: str) -> int | None:
        try:
            return self._store.head(key).size
        except ObjectNotFound:
            return None


class _Checkpoint:
    """One checkpoint with the hint that names it, as bytes: with its note, and without, as earlier releases wrote."""

    def __init__(self, snapshot: Snapshot, history: History) -> None:
        self.version = snapshot.version
        self._snapshot, self._history = snapshot, history

    @cached_property
    def noted(self) -> tuple[bytes, bytes]:
        return checkpoint_bytes(self._snapshot, note_of(self._history))

    @cached_property
    def plain(self) -> tuple[bytes, bytes]:
        return checkpoint_bytes(self._snapshot)

    def check(self, *, may_lack: bool) -> Check:
        both = self.noted[0], self.plain[0]

        def check(data: bytes | None) -> bool:
            if data is None:
                return may_lack
            return data in both or any(same_rows(data, expected) for expected in both)

        return check


def _due_checkpoints(commits: Sequence[Commit]) -> Iterator[tuple[Snapshot, History]]:
    """What checkpoints are to hold, oldest first."""
    snapshot, history = replayed(commits[:1]), History().advance(commits[:1])
    for at in range(CHECKPOINT_INTERVAL, len(commits), CHECKPOINT_INTERVAL):
        tail = commits[snapshot.version + 1 : at + 1]
        snapshot, history = snapshot.advance(tail), history.advance(tail)
        if has_checkpoint(snapshot):
            yield snapshot, history


def has_checkpoint(snapshot: Snapshot) -> bool:
    """Whether there is to be a checkpoint at a version."""
    interval = CHECKPOINT_INTERVAL if snapshot.num_files <= _LARGE else 2 * CHECKPOINT_INTERVAL
    return snapshot.version > 0 and snapshot.version % interval == 0


def checkpoint_before(log_version: int) -> int:
    """A log version, from which on the log up to another one has a checkpoint, whether the table is large or not."""
    return log_version - log_version % (2 * CHECKPOINT_INTERVAL)


def segments(history: History, since: int = 0) -> Iterator[tuple[int, Sequence[CommitRecord]]]:
    """The segments of the version index that end after a log version: their last log versions, and their commits."""
    size = version_index.SEGMENT
    for end in range(size, history.log_version + 1, size):
        if end >= since:
            first = 0 if end == size else end - size + 1
            yield end, history.between(first, end)


def _holds(records: Sequence[CommitRecord], *, may_lack: bool) -> Check:
    """Whether a segment holds these commits, or those before them as well, as earlier versions of the package did."""
    expected = index_bytes(records)

    def check(data: bytes | None) -> bool:
        if data is None or data == expected:
            return may_lack or data is not None
        try:
            found = parse_index(data)
        except (VersionedError, ValueError, LookupError, OSError):
            return False
        return index_bytes(found[-len(records) :]) == expected

    return check
