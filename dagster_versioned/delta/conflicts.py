"""May a transaction go on, when others committed since the version it read?

One rule below is one row of the protocol's and the reference's list; what is not listed does not conflict. The
isolation is *Serializable*: the result is as if the transactions had run one after the other.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from dagster_versioned.delta.actions import Action, Add, DomainMetadata, Remove, Txn
from dagster_versioned.delta.files import to_adds
from dagster_versioned.delta.log import Commit
from dagster_versioned.delta.paths import compute
from dagster_versioned.delta.snapshot import Snapshot

Rule = Literal["created", "protocol", "metadata", "txn", "domain", "same file", "new rows", "removed rows"]


def _every_file(_add: Add) -> bool:
    return True


def _no_file(_add: Add) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Reads:
    """What a transaction looked at, so that a change there makes its result stale.

    ``files`` says of a live file whether its rows were looked at; ``app_ids`` and ``domains`` are the transaction
    identifiers and metadata domains that were, beside those that the transaction writes.
    """

    files: Callable[[Add], bool] = _every_file
    app_ids: frozenset[str] = frozenset()
    domains: frozenset[str] = frozenset()


WHOLE_TABLE = Reads()
"""Every file: what a replace, a merge or an update of any row depends on."""

NOTHING = Reads(_no_file)
"""No file: a blind append."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why a transaction cannot go on: the rule, the winning commit's version, and a sentence for a person."""

    rule: Rule
    version: int
    reason: str


@dataclass(frozen=True, slots=True)
class Intent:
    """A transaction as its conflicts see it.

    ``read`` is the snapshot it started from, ``None`` for one that creates the table. ``shared_domains`` are prefixes
    of domains that several transactions may write, the last one winning.
    """

    read: Snapshot | None
    actions: Sequence[Action]
    reads: Reads = WHOLE_TABLE
    shared_domains: tuple[str, ...] = field(default=())


def check(intent: Intent, winners: Sequence[Commit]) -> Conflict | None:
    """The first conflict between ``intent`` and the commits that came in between, in their order; ``None`` if none."""
    for winner in winners:
        for rule, reason in _conflicts(intent, winner):
            return Conflict(rule, winner.version, reason)
    return None


def _conflicts(intent: Intent, winner: Commit) -> Iterator[tuple[Rule, str]]:
    if intent.read is None:
        yield "created", "the table was created by someone else meanwhile"
        return
    if winner.protocol:
        yield "protocol", "the table's protocol was changed"
    if winner.metadata:
        yield "metadata", "the table's schema or properties were changed"
    yield from _names(intent, winner)
    yield from _files(intent, intent.read, winner)


def _names(intent: Intent, winner: Commit) -> Iterator[tuple[Rule, str]]:
    app_ids = intent.reads.app_ids | {action.app_id for action in intent.actions if isinstance(action, Txn)}
    for txn in winner.txns:
        if txn.app_id in app_ids:
            yield "txn", f"the application {txn.app_id!r} committed version {txn.version} of its own"
    written = {action.domain for action in intent.actions if isinstance(action, DomainMetadata)}
    exclusive = {domain for domain in written if not domain.startswith(intent.shared_domains)}
    for domain in winner.domains:
        if domain.domain in exclusive | intent.reads.domains:
            yield "domain", f"the metadata domain {domain.domain!r} was changed"


def _files(intent: Intent, read: Snapshot, winner: Commit) -> Iterator[tuple[Rule, str]]:
    ours = {action.key for action in intent.actions if isinstance(action, Add | Remove)}
    for action in (*winner.adds, *winner.removes):
        if action.key in ours:
            yield "same file", f"the file {action.key!r} was {'added' if isinstance(action, Add) else 'removed'}"
    for add in winner.adds:
        if add.data_change and intent.reads.files(add):
            yield "new rows", f"rows were added to what was read, in {add.key!r}"
    gone = pa.array([remove.key for remove in winner.removes], pa.string())
    if len(gone):
        removed = read.files.filter(compute.is_in(read.files["key"], value_set=gone))
        for add in to_adds(removed):
            if intent.reads.files(add):
                yield "removed rows", f"rows that were read were removed, in {add.key!r}"
