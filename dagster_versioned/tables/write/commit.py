"""The commit: one log entry, put if absent, after the head was marked; from the start again if somebody was first.

Every operation that changes a table (write, revert, hold, adopt, collect) is a *plan*: a function from the state at the
end of the log to the draft of the next entry. One that loses the race is computed anew from the new state, because what
it may do, removes and links to depends on it (FORMAT.md, Conflicts). Whatever a plan drafts has to pass the table's
guards before anything of it is stored; none of them is asked by the plan, so that no plan can forget one.
"""

import time
import typing
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from dagster_versioned.__about__ import __version__
from dagster_versioned.delta.actions import Action, CommitInfo, Metadata, Protocol
from dagster_versioned.delta.commit.transaction import Committed, Conflicted, Retryable, Transaction
from dagster_versioned.delta.features import row_rules
from dagster_versioned.delta.log.commits import commit_key
from dagster_versioned.delta.log.redaction import outline_sha256
from dagster_versioned.engines.staging import PROMOTERS
from dagster_versioned.errors import CommitConflict
from dagster_versioned.identity.version import Writer
from dagster_versioned.storage.backoff import RACE, RACES
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.configuration import refuse_features
from dagster_versioned.tables.history import MEMBER, OUTLINE, Collection, History
from dagster_versioned.tables.state import StateCache, TableState, next_version
from dagster_versioned.tables.upstream import Upstream
from dagster_versioned.tables.write.clustering import with_clustering_statistics
from dagster_versioned.tables.write.column_rules import require_rules

WRITER = Writer("dagster-versioned", __version__)

OBEYED = frozenset(
    {"allowColumnDefaults", "changeDataFeed", "checkConstraints", "clustering", "generatedColumns", "invariants"}
)
"""Rules for rows and files that modules beside this one see to."""


class StagedFiles(typing.Protocol):
    """Files that are nowhere in the table before a draft that needs them has passed the guards."""

    def put(self, history: History) -> None:
        """Give them their final names, unless they have these and no collection took one since."""
        ...


@dataclass(frozen=True)
class CommitDraft:
    """The next log entry, as computed from one state: its actions, and what goes into ``commitInfo`` for us.

    ``announces`` says that the entry changes a head, so the head is marked first. ``forgets`` are the keys of removed
    files that no version needs any more (`CommitInfo.forgotten`). ``built_from`` is what its versions are built from,
    as it was read. ``needs`` are the objects that have to be there, ``staged`` the files that are put before the
    commit. One that only heals what was lost puts them, and ``commits`` nothing.
    """

    operation: str
    actions: Sequence[Action]
    info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    parameters: Mapping[str, str] = field(default_factory=dict[str, str])
    announces: bool = True
    forgets: Sequence[str] = ()
    built_from: Sequence[Upstream] = ()
    needs: frozenset[str] = frozenset()
    staged: Sequence[StagedFiles] = ()
    commits: bool = True


class Guard:
    """What every commit to a table has to pass. A guard overrides the steps that it has a say in.

    It is asked of commits, not of verbs: a rename has claimed its name by then, a promotion said that it is open. What
    is to refuse the verb as a whole stands in `tables.preconditions` too. Nor does each verb end with what a guard
    raises: a promotion leaves a table for what is one of its `REASONS`, and a draft waits after any `VersionedError`.
    """

    def before(self, state: TableState | None) -> None:
        """Raise where nothing may be committed onto this state; nothing was planned yet."""

    def check(self, state: TableState | None, draft: CommitDraft) -> None:
        """Raise where this draft may not be committed; nothing of it was stored yet."""

    def complete(self, draft: CommitDraft) -> None:
        """See to the files that the draft needs besides its own, which are there by now."""

    def before_waiting(self, collection: Collection) -> None:
        """Raise where it is of no use to wait for this collection to end."""

    def committed(self) -> None:
        """Raise where what was committed a moment ago does not count."""


class CollectionInProgress(Exception):
    """A draft needs parts that an unfinished collection is about to delete; its caller waits and tries again."""

    def __init__(self, collection: Collection) -> None:
        super().__init__(collection.id)
        self.collection = collection


PlanCommit = Callable[[TableState | None, int], CommitDraft | None]
"""The draft of a state at the end of the log and the timestamp of the next entry; ``None``: nothing is to be done."""


def next_timestamp(state: TableState | None) -> int:
    """The in-commit timestamp of the next entry, in milliseconds: now, but later than the entry before.

    Source: seed 001, "In-Commit Timestamps" (file times do not survive a migration).
    """
    now = time.time_ns() // 1_000_000
    return now if state is None else max(now, state.snapshot.timestamp_ms + 1)


def commit(
    store: ObjectStore,
    cache: StateCache,
    plan: PlanCommit,
    announce: Callable[[int], None],
    settle: Callable[[Collection], object],
    guards: Sequence[Guard] = (),
    *,
    just_opened: bool = False,
) -> TableState | None:
    """Commit what ``plan(state, timestamp)`` says; ``None`` from it ends the loop without a commit.

    The first plan is made from the state that is remembered, which the put of the commit proves to be the newest one;
    where there is none to put, or the plan is refused, the end of the log is looked at first. A collection in the way
    is waited for, or ended, by ``settle``. Each draft has to pass the ``guards``, in their order.
    Returns the state after the commit, or ``None``. Raises `CommitConflict` after a thousand lost races, and whatever
    ``plan`` raises; in both cases nothing was committed.
    """
    state, is_newest = cache.begin(just_opened=just_opened)
    for attempt in range(RACES):
        timestamp = next_timestamp(state)
        try:
            drafted = _draft(store, state, timestamp, plan, guards)
        except Exception as refused:  # any refusal may be of what is no more
            newer = state if is_newest else cache.refresh()
            if newer is state:
                if not isinstance(refused, CollectionInProgress):
                    raise
                settle(refused.collection)
                newer = cache.refresh()
            state, is_newest = newer, True
            continue
        if drafted is None:
            if is_newest or (newer := cache.refresh()) is state:
                return None
            state, is_newest = newer, True
            continue
        if drafted.announces:
            announce(next_version(state))
        transaction = _transaction(store, state, drafted, timestamp)
        _check_rules(store, transaction)
        match transaction.attempt(store):
            case Committed(commit=made):
                return cache.committed(state, made)
            case Conflicted(winners=winners) | Retryable(winners=winners):
                cache.follow(state, winners)
                RACE.pause(attempt)
                state, is_newest = cache.refresh(), True
    raise CommitConflict(
        f"{RACES} commits to {store.uri} lost the race for the next log version. Nothing of this one was "
        "committed. Reduce the number of concurrent writers, or try again."
    )


def _draft(
    store: ObjectStore, state: TableState | None, timestamp: int, plan: PlanCommit, guards: Sequence[Guard]
) -> CommitDraft | None:
    """What is to be committed now, with all that it needs in its place. Raises what plan and guards do."""
    for guard in guards:
        guard.before(state)
    drafted = plan(state, timestamp)
    if drafted is None:
        return None
    history = state.history if state is not None else History([])
    refuse_collected(drafted.needs, history)
    for guard in guards:
        guard.check(state, drafted)
    _put_all(drafted.staged, history)
    for guard in guards:
        guard.complete(drafted)
    return drafted if drafted.commits else None


def refuse_collected(keys: Set[str], history: History) -> None:
    """Raise `CollectionInProgress` where objects that are needed are about to be deleted."""
    for collection in history.open_collections:
        if keys & collection.paths:
            raise CollectionInProgress(collection)


def _put_all(staged: Sequence[StagedFiles], history: History) -> None:
    """Put files: those of several partitions at once."""
    if len(staged) == 1:
        staged[0].put(history)
    elif staged:
        with ThreadPoolExecutor(PROMOTERS, thread_name_prefix="promote") as pool:
            running = [pool.submit(files.put, history) for files in staged]
        for done in running:
            done.result()


def _check_rules(store: ObjectStore, transaction: Transaction) -> None:
    """Raise where another program gave the table rules that versions do not obey, or that the rows break."""
    refuse_foreign_rules(transaction.protocol, transaction.metadata)
    if (read := transaction.read) is not None:  # also where the new schema would quietly take the rule away
        refuse_foreign_rules(read.protocol, read.metadata)
        require_rules(store, transaction)


def refuse_foreign_rules(protocol: Protocol, metadata: Metadata) -> None:
    """Raise `UnsupportedFeature` where another program gave the table rules for rows that versions do not obey."""
    refuse_features(row_rules(protocol, metadata) - OBEYED)


def _link(store: ObjectStore, state: TableState) -> Mapping[str, str | None]:
    """What binds a commit to the one before: its name, and what no redaction may change of it."""
    entry = store.get(commit_key(state.log_version)) if state.newest is None else state.newest
    return {"prev": state.snapshot.commit_sha256, OUTLINE: outline_sha256(entry)}


def _transaction(store: ObjectStore, state: TableState | None, drafted: CommitDraft, timestamp: int) -> Transaction:
    snapshot = state.snapshot if state else None
    previous: Mapping[str, str | None] = {} if state is None else _link(store, state)
    return Transaction(
        read=snapshot,
        actions=with_clustering_statistics(store, snapshot, drafted.actions),
        operation=drafted.operation,
        operation_parameters=drafted.parameters,
        commit_info={
            # The draft says in its facts when the version was made, so it is the draft's time that is committed.
            "inCommitTimestamp": timestamp,
            "timestamp": timestamp,
            "isBlindAppend": False,
            "engineInfo": f"{WRITER.name}/{WRITER.version}",
            MEMBER: {**drafted.info, **previous},
            **({CommitInfo.FORGOTTEN: list(drafted.forgets)} if drafted.forgets else {}),
        },
    )
