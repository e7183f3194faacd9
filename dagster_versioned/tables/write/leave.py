"""Leaving: a table that any program may write to, as a Delta table like any other, and taking it back.

Two commits, as the protocol asks of who drops features: one that takes away what belongs to them, and one that lowers
the protocol. Versions stay in the log, and can be read as before; the next ones are of whoever commits them.
"""

from dataclasses import dataclass, replace

from dagster_versioned.delta.actions import Action, DomainMetadata, Metadata
from dagster_versioned.delta.commit.protocol_upgrade import protocol_without
from dagster_versioned.delta.features import reader_features, writer_features
from dagster_versioned.delta.log.commits import read_commit
from dagster_versioned.delta.log.snapshot import OWN_DOMAINS, Snapshot
from dagster_versioned.delta.schema.clustering import DOMAIN as CLUSTERING
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.configuration import LEFT_PROPERTY, RETENTION
from dagster_versioned.tables.state import TableState
from dagster_versioned.tables.write.commit import CommitDraft
from dagster_versioned.tables.write.table_actions import STAMPED, has_left, table_actions

_LEAVE = "LEAVE"
LEFT = "left"
"""The member of ``commitInfo.dagsterVersioned`` that the commits of leaving and of taking back have."""

_ENABLEMENT = ("delta.inCommitTimestampEnablementVersion", "delta.inCommitTimestampEnablementTimestamp")


@dataclass(frozen=True)
class LeaveReport:
    """What became of a table that is left, or (dry run) would: the ``dropped`` features of its protocol, and those that
    every program has to know which writes to it from now on; ``reader_features`` are those that readers have to know.
    """

    dry_run: bool
    dropped: tuple[str, ...]
    features: tuple[str, ...]
    reader_features: tuple[str, ...]


class Departure:
    """The drafts of leaving a table, one after the other; ``retention`` is how long other programs keep what they
    remove (an interval of Delta's), ``None``: as long as the table says. The log is kept, or nobody could come back."""

    def __init__(self, retention: str | None, by: str | None, why: str | None) -> None:
        self._retention = retention
        self._reason = {name: text for name, text in {"by": by, "why": why}.items() if text}

    def draft(self, state: TableState | None, _: int) -> CommitDraft | None:
        """The next log entry; ``None`` where the table was left. Raises as `refuse_dropped` does."""
        assert state is not None  # the caller asked for the table's state first
        snapshot = state.snapshot
        metadata = self._metadata(snapshot.metadata)
        if not has_left(state):  # else what there is belongs to others
            removed = [DomainMetadata(name, text, removed=True) for name, text in _own_domains(snapshot).items()]
            return CommitDraft(_LEAVE, [metadata, *removed], {LEFT: self._reason})
        protocol = protocol_without(snapshot.protocol, _dropped(snapshot))
        if protocol == snapshot.protocol:
            return None
        return CommitDraft("DROP FEATURE", [protocol], {LEFT: {}}, announces=False)

    def report(self, snapshot: Snapshot, *, dry_run: bool) -> LeaveReport:
        """What the drafts make of a table."""
        dropped = _dropped(snapshot)
        after = protocol_without(snapshot.protocol, dropped)
        features = (reader_features(after) | writer_features(after)) - {"appendOnly", "invariants"}
        return LeaveReport(
            dry_run, tuple(sorted(dropped)), tuple(sorted(features)), tuple(sorted(reader_features(after)))
        )

    def _metadata(self, metadata: Metadata) -> Metadata:
        left = {key: text for key, text in metadata.configuration.items() if key not in (STAMPED, *_ENABLEMENT)}
        kept = {} if self._retention is None else {RETENTION: self._retention}
        return replace(metadata, configuration={**left, **kept, LEFT_PROPERTY: "true"})


class Readmission:
    """The draft that takes a table back that was left, with what its log said of it then."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def draft(self, state: TableState | None, timestamp: int) -> CommitDraft | None:
        """The next log entry; ``None`` where the table was not left. Raises `UnsupportedFeature` and `LogCorrupt`."""
        if state is None or not has_left(state):
            return None
        restored: list[Action] = []
        left_at = next((r.log_version for r in reversed(state.history.records) if r.operation == _LEAVE), None)
        if left_at is not None:
            domains = read_commit(self._store, left_at).domains
            restored = [replace(each, removed=False) for each in domains if each.domain.startswith(OWN_DOMAINS)]
        known = state.snapshot.metadata.configuration
        properties = {key: text for key, text in known.items() if key != LEFT_PROPERTY}
        actions = table_actions(state, state.snapshot.schema, timestamp, properties, takes_over=True)
        return CommitDraft("ADOPT", [*actions, *restored], {LEFT: {}})


def _own_domains(snapshot: Snapshot) -> dict[str, str]:
    """What the log says for this package, and of the table's clustering, which has the domain of a feature."""
    return {name: text for name, text in snapshot.domains.items() if name == CLUSTERING or name.startswith(OWN_DOMAINS)}


def _dropped(snapshot: Snapshot) -> frozenset[str]:
    """The features that nothing needs once the table is left; domains of other programs need theirs."""
    others = snapshot.domains.keys() - _own_domains(snapshot).keys()
    had = reader_features(snapshot.protocol) | writer_features(snapshot.protocol)
    return had & {"clustering", "inCommitTimestamp", *(() if others else ("domainMetadata",))}
