"""Heads: one tiny document per table that says which version is current, for sensors and for people.

A head is derived from the log, except for its *pending* mark, which is put there before a commit so that no commit
can hide from someone who reads heads only (FORMAT.md, Order of a write). The invariant: if commit N exists, then the
head is at N or later, or carries a mark for N or later. So a mark is only taken away by a head at that log version
or later, or by `resolve` after the log has shown for a whole day that the announced commit never came.

It holds through a power failure: a mark is durable before its commit is attempted. The head after the commit need not
be: where it is lost the mark is there again, and where it cannot be read it counts as marked.

Partitions have no documents of their own: their heads are in the commits, and the table's head says how far to read.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Self, cast

from dagster_versioned.delta.actions import Members
from dagster_versioned.delta.log.commits import Commit
from dagster_versioned.errors import IntegrityError, InvalidName, LogCorrupt
from dagster_versioned.identity.names import TableName, partition_key, partition_path
from dagster_versioned.storage.object_store import Durability, ObjectStore
from dagster_versioned.tables.document import SwappedDocument, encode, optional_members, parse_object, read_if_any
from dagster_versioned.tables.feature_record import FeatureRecord
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.state import TableState
from dagster_versioned.tables.table_record import TableRecord, asset_key_of, parse_former

FRESH_MARK = timedelta(hours=12)
STALE_MARK = timedelta(hours=24)
HELD_DOMAIN = "dagster_versioned.held"
HEADS_FOLDER = ".metadata/heads/"


@dataclass(frozen=True)
class Pending:
    """Somebody announced a commit at ``log_version`` or before, at ``since`` (RFC 3339, UTC)."""

    log_version: int
    since: str

    @classmethod
    def parse(cls, members: Members) -> Self:
        """Parse the ``pending`` member of a head document. Raises `LogCorrupt`, `ValueError`."""
        since = members.text("since")
        if datetime.fromisoformat(since).tzinfo is None:
            raise members.wrong("since", f"is {since!r:.100}, a time without a zone")
        return cls(members.integer("log_version"), since)

    def age(self, now: datetime) -> timedelta:
        """How long ago the commit was announced."""
        return now - datetime.fromisoformat(self.since)


@dataclass(frozen=True)
class Held:
    """A person asked that nothing rebuilds this head: by whom and why."""

    by: str | None
    why: str


@dataclass(frozen=True)
class Head:
    """The current version of a table, or of one of its partitions, without reading its log.

    For a partitioned table as a whole, ``metadata_sha`` and ``data_sha`` are taken over its partitions' and
    ``parents`` is empty: each partition has a head of its own, in the log. ``feature`` says how a version of a
    feature came about, ``code`` which code made the newest version (the fingerprint and details of `Code`).
    """

    table: str
    asset_key: tuple[str, ...]
    partition: str | None
    log_version: int
    metadata_sha: str
    data_sha: str
    code_version: str | None
    parents: tuple[Mapping[str, Any], ...]
    timestamp: str
    partitions: int | None = None
    held: Held | None = None
    feature: FeatureRecord | None = None
    former: tuple[tuple[str, str], ...] = ()
    code: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """The ``head`` member of a head document."""
        return {
            "table": self.table,
            "asset_key": list(self.asset_key),
            "log_version": self.log_version,
            "metadata_sha": self.metadata_sha,
            "data_sha": self.data_sha,
            "parents": [dict(parent) for parent in self.parents],
            "timestamp": self.timestamp,
            **({"partition": self.partition} if self.partition is not None else {}),
            **({"code_version": self.code_version} if self.code_version is not None else {}),
            **({"partitions": self.partitions} if self.partitions is not None else {}),
            **({"held": {"by": self.held.by, "why": self.held.why}} if self.held else {}),
            **({"feature": self.feature.to_json()} if self.feature else {}),
            **({"former": [list(name) for name in self.former]} if self.former else {}),
            **({"code": dict(self.code)} if self.code else {}),
        }

    @classmethod
    def parse(cls, members: Members) -> Self:
        """Parse the ``head`` member of a head document. Raises `LogCorrupt`."""
        held, code = optional_members(members, "held"), optional_members(members, "code")
        return cls(
            table=members.text("table"),
            asset_key=members.texts("asset_key"),
            partition=members.optional_text("partition"),
            log_version=members.integer("log_version"),
            metadata_sha=members.text("metadata_sha"),
            data_sha=members.text("data_sha"),
            code_version=members.optional_text("code_version"),
            parents=tuple(parent.value for parent in members.objects("parents")),
            timestamp=members.text("timestamp"),
            partitions=members.optional_count("partitions"),
            held=Held(held.optional_text("by"), held.text("why")) if held else None,
            feature=FeatureRecord.parse(members.value.get("feature")),
            former=parse_former(members.value.get("former")),
            code=None if code is None else code.value,
        )


@dataclass(frozen=True)
class NameClaim:
    """A table that is being renamed takes the name: of which table, and whether its log has ended there already."""

    source: str
    has_left: bool


@dataclass(frozen=True)
class HeadDocument:
    """What is stored: the log version it was derived at, the head, the mark of an announced commit, or of a rename.

    ``log_version`` is -1 before the first commit, and ``head`` is ``None`` before the first version. It runs ahead of
    ``head.log_version`` when later commits made no version (a release, a collection). Where other documents could not
    be put with it, ``owed_since`` is the log version that they were at.
    """

    log_version: int
    head: Head | None
    pending: Pending | None = None
    arriving: NameClaim | None = None
    owed_since: int | None = None

    def to_bytes(self) -> bytes:
        """JSON with sorted keys, so that equal heads are equal bytes."""
        document: dict[str, Any] = {
            "schema_version": 1,
            "log_version": self.log_version,
            "head": self.head.to_json() if self.head else None,
        }
        if self.pending:
            document["pending"] = {"log_version": self.pending.log_version, "since": self.pending.since}
        if self.arriving:
            document["arriving"] = {"from": self.arriving.source, "has_left": self.arriving.has_left}
        if self.owed_since is not None:
            document["owed_since"] = self.owed_since
        return encode(document)

    @property
    def published(self) -> int:
        """The log version up to which the other documents of the table were put."""
        return self.log_version if self.owed_since is None else min(self.owed_since, self.log_version)

    def is_settled_at(self, log_version: int) -> bool:
        """Whether all documents are those of a log version, and no commit is announced."""
        return self.pending is None and self.published == log_version

    def pending_after(self, log_version: int) -> Pending | None:
        """The announcement of a commit after a log version."""
        return self.pending if self.pending is not None and self.pending.log_version > log_version else None

    @classmethod
    def from_bytes(cls, data: bytes, key: str) -> Self:
        """Parse a stored document. Raises `IntegrityError` where it is not one."""
        try:
            members = parse_object(data, key, "document")
            is_empty = "head" in members.value and members.value["head"] is None
            pending, arriving = optional_members(members, "pending"), optional_members(members, "arriving")
            return cls(
                members.integer("log_version"),
                None if is_empty else Head.parse(members.members("head")),
                None if pending is None else Pending.parse(pending),
                None if arriving is None else NameClaim(arriving.text("from"), arriving.flag("has_left")),
                members.optional_integer("owed_since"),
            )
        except (ValueError, LogCorrupt) as error:
            raise IntegrityError(
                f"The head document {key} cannot be read ({error!r}). The table is untouched: a head is derived from "
                "its log. Rebuild it with repair()."
            ) from error


EMPTY = HeadDocument(-1, None)
UNREADABLE = HeadDocument(-1, None, Pending(0, "1970-01-01T00:00:00+00:00"))
"""What bytes that are no head count as: one that says nothing, but that there is something to find in the log."""


def head_key(table: TableName) -> str:
    """Where a table's head is stored, below the project's data folder."""
    return f"{HEADS_FOLDER}{table}.json"


def former_partition_heads(table: TableName) -> str:
    """Where each partition once had a document of its own, below the project's data folder; nothing reads them."""
    return f".metadata/partition-heads/{table}/"


def table_head(table: TableName, state: TableState) -> Head | None:
    """The head that the log implies for the whole table; ``None`` before the first own version."""
    heads, record = state.history.heads, TableRecord.of(state.snapshot)
    if not heads or record.left_for(table) is not None:
        return None
    newest = max(heads.values(), key=lambda version: version.log_version)
    head = replace(
        _head(table, newest, state, None), asset_key=asset_key_of(state) or (str(table),), former=record.former
    )
    if not state.history.is_partitioned:
        return head
    whole = state.history.whole
    return replace(
        head,
        partition=None,
        metadata_sha=whole.metadata_sha,
        data_sha=whole.data_sha,
        parents=(),
        code_version=None,
        partitions=len(heads),
        feature=None,
    )


def partition_head(table: TableName, version: Version, state: TableState) -> Head:
    """The head that the log implies for one partition."""
    return _head(table, version, state, version.partition)


def held_in(commit: Commit) -> dict[str, Held | None]:
    """The partitions on whose heads a commit put a hold, or (``None``) took it off."""
    holds: dict[str, Held | None] = {}
    for action in commit.domains:
        if action.domain.startswith(f"{HELD_DOMAIN}/"):
            with suppress(InvalidName):  # a domain of another program, which is no partition's
                partition = partition_key(action.domain.removeprefix(f"{HELD_DOMAIN}/"))
                holds[partition] = None if action.removed else _held(action.configuration)
    return holds


def held_domain(partition: str | None) -> str:
    """The metadata domain that says that a head is held."""
    return HELD_DOMAIN if partition is None else f"{HELD_DOMAIN}/{partition_path(partition)}"


def read_head(store: ObjectStore, key: str) -> HeadDocument:
    """The document under a key; an empty one where there is none, a marked one where it cannot be read.

    Whoever resolves or writes next replaces an unreadable head from the log, so it stops nobody.
    """
    return parse_head(read_if_any(store, key), key)


class TableHead:
    """One head document, and what this process saw of it last."""

    def __init__(self, store: ObjectStore, key: str) -> None:
        self._document = SwappedDocument(store, key)
        self._key = key

    def read(self) -> HeadDocument:
        """The document as it is stored; see `read_head`."""
        return parse_head(self._document.read(), self._key)

    def last_seen(self) -> HeadDocument:
        """The document as this process saw it last."""
        return parse_head(self._document.seen, self._key)

    def remembered(self) -> HeadDocument | None:
        """The document as this process saw it last; ``None`` where it did not."""
        return parse_head(self._document.seen, self._key) if self._document.is_seen else None

    def announce(self, log_version: int) -> None:
        """Mark the head: a commit at ``log_version`` is about to be attempted."""

        def mark(data: bytes | None) -> bytes | None:
            document = parse_head(data, self._key)
            now = datetime.now(UTC)
            pending = document.pending
            if log_version == 0 and document.arriving is not None and document.arriving.has_left:
                raise InvalidName(
                    f"A rename of the table {document.arriving.source} takes this name, and is not done. Nothing was "
                    f"committed. Finish it by running it again: `dagster-versioned rename {document.arriving.source}`."
                )
            if document.log_version >= log_version:
                return None  # somebody is already past it: this attempt is going to lose, and needs no mark
            if pending and pending.log_version >= log_version and pending.age(now) < FRESH_MARK:
                return None
            # A rename that has not ended the log of its table yet sees that the name was taken.
            return replace(document, pending=Pending(log_version, now.isoformat()), arriving=None).to_bytes()

        self._document.update(mark)

    def publish(
        self,
        head: Head | None,
        log_version: int,
        *,
        ahead: HeadDocument | None = None,
        durability: Durability = "now",
        put_after: int = -1,
        owed_since: int | None = None,
    ) -> HeadDocument:
        """Bring the stored head up to what the log says at ``log_version``, never back; a later mark stays.

        ``put_after`` is the log version after which the publisher put what the commits call for, ``owed_since`` the one
        after which it did not. What the stored head owes from before ``put_after`` stays owed.

        Only the document ``ahead`` is taken back: one that was read before the log was, so that if it is beyond the
        log's end, it is not of this log (the table was deleted and made anew, or somebody wrote the document).
        Returns the document that was there before.
        """
        before = EMPTY

        def advance(data: bytes | None) -> bytes | None:
            nonlocal before
            before = parse_head(data, self._key)
            if before.log_version > log_version and before != ahead:
                return None
            owed = [owed_since, before.owed_since if before.published < put_after else None]
            since = min((version for version in owed if version is not None), default=None)
            return HeadDocument(log_version, head, before.pending_after(log_version), owed_since=since).to_bytes()

        self._document.update(advance, durability=durability)
        return before

    def withdraw_stale_mark(self, log_version: int) -> bool:
        """Take away a mark older than a day for a commit that the log, read up to ``log_version``, does not have."""

        def withdraw(data: bytes | None) -> bytes | None:
            document = parse_head(data, self._key)
            pending = document.pending_after(log_version)
            if pending is None or pending.age(datetime.now(UTC)) < STALE_MARK:
                return None
            return replace(document, pending=None).to_bytes()

        return self._document.update(withdraw)


def publish_head(
    store: ObjectStore,
    key: str,
    head: Head | None,
    log_version: int,
    *,
    ahead: HeadDocument | None = None,
    durability: Durability = "now",
) -> HeadDocument:
    """`TableHead.publish` of a head that this process has not seen."""
    return TableHead(store, key).publish(head, log_version, ahead=ahead, durability=durability)


def parse_head(data: bytes | None, key: str) -> HeadDocument:
    """The document in these bytes: an empty one in none, a marked one in those that cannot be read."""
    if data is None:
        return EMPTY
    try:
        return HeadDocument.from_bytes(data, key)
    except IntegrityError:
        return UNREADABLE


def _head(table: TableName, version: Version, state: TableState, partition: str | None) -> Head:
    # As recorded: to check the identity against its SHA is for those who read versions, not for every commit.
    assert version.raw is not None
    identity, facts = version.raw["identity"], version.raw["facts"]
    configuration = state.snapshot.domains.get(held_domain(partition))
    return Head(
        table=str(table),
        asset_key=tuple(identity["asset_key"]),
        partition=partition,
        log_version=version.log_version,
        metadata_sha=version.raw["metadata_sha"],
        data_sha=identity["data_sha"],
        code_version=identity.get("code_version"),
        parents=tuple(identity.get("parents", ())),
        timestamp=facts["created_at"],
        held=_held(configuration) if configuration is not None else None,
        feature=FeatureRecord.of(identity.get("custom", {})),
        code=code_member(facts),
    )


def code_member(facts: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What recorded facts say of the code, as much as a head has of it; ``None`` where they say nothing."""
    run = facts.get("run")
    code = cast("Mapping[str, Any]", run).get("code") if isinstance(run, Mapping) else None
    if not isinstance(code, Mapping):
        return None
    return {name: code[name] for name in ("fingerprint", "details") if isinstance(code.get(name), str)} or None


def _held(configuration: str) -> Held:
    """The hold that a domain records; where it says so in a form that is not ours, it is a hold all the same."""
    try:
        members = parse_object(configuration, HELD_DOMAIN, "held")
        return Held(members.optional_text("by"), members.text("why"))
    except (ValueError, LogCorrupt):
        return Held(None, configuration)
