"""May a transaction go on, when others committed since the version it read?

One rule below is one row of the reference's list; what is not listed does not conflict. Two rules are stricter: nobody
may add a file that was added meanwhile (the reference gives every file a new name, and not everybody does), nor remove
one that was described anew. One is laxer: files that were only rearranged or described anew hold no new rows, so who
read the rows is disturbed by their removal alone.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import pyarrow as pa

from dagster_versioned.delta.actions import (
    Action,
    Add,
    Cdc,
    DomainMetadata,
    LogicalFile,
    Metadata,
    Protocol,
    Remove,
    Txn,
    of_kind,
)
from dagster_versioned.delta.features import reader_features, writer_features
from dagster_versioned.delta.files.file_actions import to_adds
from dagster_versioned.delta.log.commits import Commit
from dagster_versioned.delta.log.snapshot import Snapshot
from dagster_versioned.delta.paths import compute
from dagster_versioned.delta.schema.column_mapping import ID, PHYSICAL_NAME, physical_schema
from dagster_versioned.delta.schema.identity_columns import HIGH_WATER_MARK
from dagster_versioned.delta.schema.mapped_columns import NESTED_IDS
from dagster_versioned.delta.schema.types import parse_schema
from dagster_versioned.errors import LogCorrupt, UnsupportedType

Rule = Literal["created", "protocol", "metadata", "txn", "domain", "same file", "new rows", "removed rows"]

Isolation = Literal["Serializable", "WriteSerializable", "SnapshotIsolation"]
"""``Serializable``: as if the transactions had run one after the other, in the order of their versions.
``WriteSerializable``: in some order; a blind append may count as later than its version says. ``SnapshotIsolation``:
for transactions that only move rows, and may come before or after whatever left these in place."""


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

    @property
    def whole_table(self) -> bool:
        return self.files is _every_file

    @property
    def no_file(self) -> bool:
        return self.files is _no_file


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

    def holds(self, kind: type[Action]) -> bool:
        """Whether there is an action of this kind."""
        return any(isinstance(action, kind) for action in self.actions)

    @property
    def is_blind_append(self) -> bool:
        """Whether files are added without a look at any other."""
        return self.reads.no_file and self.holds(Add) and not self.holds(Remove)


def isolation(intent: Intent) -> Isolation:
    """How much of what came in between disturbs the transaction.

    The table's property ``delta.isolationLevel``, by default (as in the reference) ``Serializable``.
    """
    wanted = intent.read.metadata.configuration.get("delta.isolationLevel", "") if intent.read else ""
    level: Isolation = "WriteSerializable" if wanted.casefold() == "writeserializable" else "Serializable"
    files = of_kind(intent.actions, LogicalFile)
    only_files = len(files) + len(of_kind(intent.actions, Cdc)) == len(intent.actions)
    changed = any(action.data_change for action in files)
    if only_files and not changed and (intent.actions or level == "Serializable"):
        return "SnapshotIsolation"
    return level


def check(intent: Intent, winners: Sequence[Commit]) -> Conflict | None:
    """The first conflict between ``intent`` and the commits that came in between, in their order; ``None`` if none."""
    if intent.read is None:
        reason = "the table was created by someone else meanwhile"
        return Conflict("created", winners[0].version, reason) if winners else None
    protocol, metadata = intent.read.protocol, intent.read.metadata
    for winner in winners:
        for rule, reason in _conflicts(intent, intent.read, winner, protocol, metadata):
            return Conflict(rule, winner.version, reason)
        protocol, metadata = winner.protocol or protocol, winner.metadata or metadata
    return None


def _conflicts(
    intent: Intent, read: Snapshot, winner: Commit, protocol: Protocol, metadata: Metadata
) -> Iterator[tuple[Rule, str]]:
    """``protocol`` and ``metadata`` are those before ``winner``."""
    yield from _protocol(intent, protocol, winner.protocol)
    yield from _metadata(intent, metadata, winner.metadata, writer_features(winner.protocol or protocol))
    yield from _names(intent, winner)
    yield from _same_files(intent, winner)
    yield from _new_rows(intent, winner)
    yield from _removed_rows(intent, read, winner)


# --- protocol and metadata -------------------------------------------------------------------------------------------

_ASK_NOTHING_ALONE = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "icebergCompatV1",
        "icebergCompatV2",
        "inCommitTimestamp",
        "rowTracking",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
"""Features that ask nothing of a commit that was begun without them: properties turn them on, or (row tracking) what
they ask is done at each attempt."""


def _protocol(intent: Intent, before: Protocol, after: Protocol | None) -> Iterator[tuple[Rule, str]]:
    if after is None:
        return
    if intent.holds(Protocol):
        yield "protocol", "the table's protocol was changed, and is to be changed here, too"
    had, has = (reader_features(protocol) | writer_features(protocol) for protocol in (before, after))
    if had - has:
        yield "protocol", f"the table's protocol lost {', '.join(sorted(had - has))}"
    if asking := has - had - _ASK_NOTHING_ALONE:
        yield "protocol", f"the table's protocol got {', '.join(sorted(asking))}, which the commit does not obey"


_SETTLED: Mapping[str, Callable[[str, Collection[str]], bool]] = {
    "delta.enableDeletionVectors": lambda value, features: value == "true" and "deletionVectors" in features,
    "delta.checkpointPolicy": lambda value, features: value == "v2" and "v2Checkpoint" in features,
    "delta.enableInCommitTimestamps": lambda value, features: value == "true" and "inCommitTimestamp" in features,
    "delta.inCommitTimestampEnablementVersion": lambda _value, _features: True,
    "delta.inCommitTimestampEnablementTimestamp": lambda _value, _features: True,
    "delta.enableRowTracking": lambda value, features: value == "true" and "rowTracking" in features,
    "delta.rowTracking.materializedRowIdColumnName": lambda _value, features: "rowTracking" in features,
    "delta.rowTracking.materializedRowCommitVersionColumnName": lambda _value, features: "rowTracking" in features,
    "delta.columnMapping.mode": lambda value, features: value == "name" and "columnMapping" in features,
    "delta.columnMapping.maxColumnId": lambda _value, features: "columnMapping" in features,
}
"""Properties that may be set under a transaction -> whether they may be set to this value, with these features."""

_MAPPING_KEYS = frozenset({ID, PHYSICAL_NAME, NESTED_IDS})


def _metadata(
    intent: Intent, before: Metadata, after: Metadata | None, features: Collection[str]
) -> Iterator[tuple[Rule, str]]:
    if after is None:
        return
    if intent.holds(Metadata):
        yield "metadata", "the table's schema or properties were changed, and are to be changed here, too"
    elif not _still_fits(intent, before, after, features):
        yield "metadata", "the table's schema or properties were changed"


def _still_fits(intent: Intent, before: Metadata, after: Metadata, features: Collection[str]) -> bool:
    """Whether what was written under the old metadata is right under the new."""
    if replace(after, configuration=before.configuration, schema_string=before.schema_string) != before:
        return False
    if before.configuration.keys() - after.configuration.keys():
        return False
    changed = {key: value for key, value in after.configuration.items() if before.configuration.get(key) != value}
    if not all(_is_settled(key, value, features) for key, value in changed.items()):
        return False
    if "delta.enableRowTracking" in changed and intent.holds(Remove) and intent.holds(Add):
        return False  # Rows that were moved did not take their ids along.
    return _same_columns(before, after, maps="delta.columnMapping.mode" in changed)


def _is_settled(key: str, value: str, features: Collection[str]) -> bool:
    return key in _SETTLED and _SETTLED[key](value.lower(), features)


def only_identity_went_on(before: Metadata, after: Metadata) -> bool:
    """Whether metadata differs in the high water marks of identity columns alone."""
    same = replace(after, schema_string=before.schema_string) == before
    return same and after.schema_string != before.schema_string and _same_columns(before, after, maps=False)


def _same_columns(before: Metadata, after: Metadata, *, maps: bool) -> bool:
    """Whether the schemas differ in nothing but how far identity columns have come, and how columns were mapped."""
    if before.schema_string == after.schema_string and not maps:
        return True
    try:
        old, new = parse_schema(before.schema_string), parse_schema(after.schema_string)
        if maps:
            # Files that are written under the old names are found if these are the physical ones.
            new = physical_schema(new, "name")
    except (LogCorrupt, UnsupportedType):
        return False
    ignored = {HIGH_WATER_MARK, *(_MAPPING_KEYS if maps else ())}
    return _stripped(old.to_json(), ignored) == _stripped(new.to_json(), ignored)


def _stripped(value: Any, ignored: Collection[str]) -> Any:
    """A schema's JSON without some members of its columns' metadata."""
    if isinstance(value, list):
        return [_stripped(entry, ignored) for entry in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    members = cast("dict[str, Any]", value)
    return {
        key: {name: entry for name, entry in member.items() if name not in ignored}
        if key == "metadata"
        else _stripped(member, ignored)
        for key, member in members.items()
    }


# --- names -----------------------------------------------------------------------------------------------------------


def _names(intent: Intent, winner: Commit) -> Iterator[tuple[Rule, str]]:
    app_ids = intent.reads.app_ids | {action.app_id for action in of_kind(intent.actions, Txn)}
    for txn in winner.txns:
        if txn.app_id in app_ids:
            yield "txn", f"the application {txn.app_id!r} committed version {txn.version} of its own"
    written = {action.domain for action in of_kind(intent.actions, DomainMetadata)}
    exclusive = {domain for domain in written if not domain.startswith(intent.shared_domains)} | intent.reads.domains
    for domain in winner.domains:
        if domain.domain in exclusive:
            yield "domain", f"the metadata domain {domain.domain!r} was changed"


# --- files -----------------------------------------------------------------------------------------------------------


def _same_files(intent: Intent, winner: Commit) -> Iterator[tuple[Rule, str]]:
    ours = {action.key for action in of_kind(intent.actions, LogicalFile)}
    for action in (*winner.adds, *winner.removes):
        if action.key in ours:
            yield "same file", f"the file {action.key!r} was {'added' if isinstance(action, Add) else 'removed'}"


def _new_rows(intent: Intent, winner: Commit) -> Iterator[tuple[Rule, str]]:
    level = isolation(intent)
    blind = bool(winner.commit_info) and winner.commit_info.get("isBlindAppend") is True
    if level == "SnapshotIsolation" or (level == "WriteSerializable" and blind and not intent.holds(Metadata)):
        return
    for add in winner.adds:
        if add.data_change and intent.reads.files(add):
            yield "new rows", f"rows were added to what was read, in {add.key!r}"


def _removed_rows(intent: Intent, read: Snapshot, winner: Commit) -> Iterator[tuple[Rule, str]]:
    if intent.reads.no_file or not winner.removes:
        return
    if intent.reads.whole_table:
        yield "removed rows", f"rows that were read were removed, in {winner.removes[0].key!r}"
        return
    gone = pa.array([remove.key for remove in winner.removes], pa.string())
    removed = read.files.filter(compute.is_in(read.files["key"], value_set=gone))
    for add in to_adds(removed):
        if intent.reads.files(add):
            yield "removed rows", f"rows that were read were removed, in {add.key!r}"
