"""The protocol's and the reference's rules, one row each."""

from dataclasses import dataclass, replace
from typing import Literal

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_versioned.delta.actions import (
    Action,
    Add,
    Cdc,
    CommitInfo,
    DeletionVector,
    DomainMetadata,
    Metadata,
    Protocol,
    Remove,
    Txn,
)
from dagster_versioned.delta.commit.conflicts import NOTHING, WHOLE_TABLE, Intent, Isolation, Reads, check, isolation
from dagster_versioned.delta.commit.transaction import Committed, Conflicted, Transaction
from dagster_versioned.delta.log.commits import Commit
from dagster_versioned.delta.log.snapshot import Snapshot, load_snapshot
from dagster_versioned.storage.local import LocalStore


def schema(**metadata: object) -> str:
    column = {"name": "x", "type": "long", "nullable": True, "metadata": metadata}
    return orjson.dumps({"type": "struct", "fields": [column]}).decode()


SCHEMA = schema()
FEATURES = ("deletionVectors", "columnMapping", "v2Checkpoint")
WRITER_FEATURES = (*FEATURES, "domainMetadata", "inCommitTimestamp", "rowTracking", "changeDataFeed", "identityColumns")
PROTOCOL = Protocol(3, 7, FEATURES, WRITER_FEATURES)
METADATA = Metadata("id", SCHEMA, (), {})


def with_properties(metadata: Metadata = METADATA, **properties: str) -> Metadata:
    """Names with ``__`` for dots, all below ``delta.``."""
    added = {f"delta.{key.replace('__', '.')}": value for key, value in properties.items()}
    return replace(metadata, configuration={**metadata.configuration, **added})


def with_features(*more: str) -> Protocol:
    return replace(PROTOCOL, writer_features=(*WRITER_FEATURES, *more))


def add(path: str, partition: str | None = None, *, data_change: bool = True) -> Add:
    return Add(path, {}, 1, 1, data_change, '{"numRecords":1}', tags={"partition": partition} if partition else None)


def remove(path: str, *, data_change: bool = True) -> Remove:
    return Remove(path, data_change, 1)


@pytest.fixture
def read(store: LocalStore) -> Snapshot:
    actions = [PROTOCOL, METADATA, add("one", "p"), add("two", "q")]
    Transaction(None, actions, "CREATE").attempt(store)
    return load_snapshot(store)


def winner(*actions: Action, version: int = 1) -> Commit:
    info = next((action.value for action in actions if isinstance(action, CommitInfo)), None)
    return Commit(version, "", 0, actions, info, 0)


BLIND = CommitInfo({"isBlindAppend": True})


PARTITION_P = Reads(lambda file: (file.tags or {}).get("partition") == "p")
WRITES_P: list[Action] = [remove("one"), add("new", "p")]

CASES = [
    # what we read, what we write, what won, the rule that is broken
    ("blind appends pass each other", NOTHING, [add("a")], [add("b")], None),
    ("a blind append passes a delete", NOTHING, [add("a")], [remove("one")], None),
    ("a blind append passes a replace", NOTHING, [add("a")], [remove("one"), remove("two"), add("b")], None),
    ("a read of everything does not pass an append", WHOLE_TABLE, [add("a")], [add("b")], "new rows"),
    ("nor a delete", WHOLE_TABLE, [add("a")], [remove("two")], "removed rows"),
    ("nor a compaction, which removes what was read", WHOLE_TABLE, [add("a")],
     [add("b", data_change=False), remove("two", data_change=False)], "removed rows"),
    ("statistics added to a file are no rows", WHOLE_TABLE, [add("a")], [add("two", "q", data_change=False)], None),
    ("both delete one file", WHOLE_TABLE, [remove("one")], [remove("one")], "same file"),
    ("both delete one file, spelled otherwise", NOTHING, [remove("./one")], [remove("one")], "same file"),
    ("both add one file", NOTHING, [add("same")], [add("same")], "same file"),
    ("one adds what the other removes", NOTHING, [add("one")], [remove("one")], "same file"),
    ("a vector on a file that we remove", NOTHING, [remove("one")],
     [Add("one", {}, 1, 1, True, deletion_vector=DeletionVector("u", "x", 1, 1))], "same file"),
    ("another partition's append", PARTITION_P, WRITES_P, [add("b", "q")], None),
    ("another partition's delete", PARTITION_P, WRITES_P, [remove("two")], None),
    ("another partition's replace", PARTITION_P, WRITES_P, [remove("two"), add("b", "q")], None),
    ("the same partition's append", PARTITION_P, WRITES_P, [add("b", "p")], "new rows"),
    ("the same partition's delete", PARTITION_P, [add("new", "p")], [remove("one")], "removed rows"),
    ("a read of everything, then a removal of what was not there yet", WHOLE_TABLE, [add("a")], [remove("later")],
     "removed rows"),
    ("a blind append is an append to who reads", WHOLE_TABLE, [add("a")], [BLIND, add("b")], "new rows"),
    ("only rearranging passes an append", WHOLE_TABLE, [remove("one", data_change=False), add("a", data_change=False)],
     [add("b")], None),
    ("but not a removal of what is rearranged", WHOLE_TABLE,
     [remove("one", data_change=False), add("a", data_change=False)], [remove("one")], "same file"),
    ("nor one of what was read", WHOLE_TABLE,
     [remove("one", data_change=False), add("a", data_change=False)], [remove("two")], "removed rows"),
    ("nothing at all passes an append", WHOLE_TABLE, [], [add("b")], None),
    ("new properties, for a blind append too", NOTHING, [add("a")], [with_properties(appendOnly="true")], "metadata"),
    ("a new schema", NOTHING, [add("a")], [replace(METADATA, schema_string=schema(comment="x"))], "metadata"),
    ("a new name", NOTHING, [add("a")], [replace(METADATA, name="t")], "metadata"),
    ("metadata on both sides", NOTHING, [METADATA], [METADATA], "metadata"),
    ("metadata that changes nothing", NOTHING, [add("a")], [METADATA], None),
    ("protocol on both sides", NOTHING, [PROTOCOL], [PROTOCOL], "protocol"),
    ("a protocol that changes nothing", NOTHING, [add("a")], [PROTOCOL], None),
    ("a feature that properties turn on", NOTHING, [add("a")], [with_features("appendOnly")], None),
    ("a feature that binds at once", NOTHING, [add("a")], [with_features("checkConstraints")], "protocol"),
    ("a feature that nobody knows", NOTHING, [add("a")], [with_features("somethingNew")], "protocol"),
    ("a feature that was dropped", NOTHING, [add("a")], [Protocol(1, 7, None, ("domainMetadata",))], "protocol"),
    ("one application twice", NOTHING, [Txn("app", 1)], [Txn("app", 2)], "txn"),
    ("two applications", NOTHING, [Txn("app", 1)], [Txn("other", 1)], None),
    ("an application that was looked up", Reads(NOTHING.files, frozenset({"app"})), [], [Txn("app", 2)], "txn"),
    ("one domain twice", NOTHING, [DomainMetadata("d", "1")], [DomainMetadata("d", "2")], "domain"),
    ("one domain, removed by the other", NOTHING, [DomainMetadata("d", "1")],
     [DomainMetadata("d", "", True)], "domain"),
    ("two domains", NOTHING, [DomainMetadata("d", "1")], [DomainMetadata("e", "2")], None),
    ("a domain that was looked up", Reads(NOTHING.files, domains=frozenset({"d"})), [],
     [DomainMetadata("d", "2")], "domain"),
    ("a shared domain", NOTHING, [DomainMetadata("shared/x", "1")], [DomainMetadata("shared/x", "2")], None),
    ("a shared domain that was looked up", Reads(NOTHING.files, domains=frozenset({"shared/x"})),
     [DomainMetadata("shared/x", "1")], [DomainMetadata("shared/x", "2")], "domain"),
    ("provenance alone", WHOLE_TABLE, [add("a")], [], None),
]  # fmt: skip


IDENTITY = {"delta.identity.start": 1, "delta.identity.step": 1}
MAPPED = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "x"}
NAMES = {"columnMapping__mode": "name", "columnMapping__maxColumnId": "1"}
IDS = {
    "enableRowTracking": "true",
    "rowTracking__materializedRowIdColumnName": "_i",
    "rowTracking__materializedRowCommitVersionColumnName": "_v",
}
STAMPS = {
    "enableInCommitTimestamps": "true",
    "inCommitTimestampEnablementVersion": "1",
    "inCommitTimestampEnablementTimestamp": "7",
}

METADATA_CASES = [
    # what the metadata was, what it became, what we write, the rule that is broken
    ("deletion vectors on", METADATA, with_properties(enableDeletionVectors="true"), [add("a")], None),
    ("deletion vectors off", with_properties(enableDeletionVectors="true"),
     with_properties(enableDeletionVectors="false"), [add("a")], "metadata"),
    ("a property unset", with_properties(enableDeletionVectors="true"), METADATA, [add("a")], "metadata"),
    ("V2 checkpoints", METADATA, with_properties(checkpointPolicy="v2"), [add("a")], None),
    ("classic checkpoints", with_properties(checkpointPolicy="v2"), with_properties(checkpointPolicy="classic"),
     [add("a")], "metadata"),
    ("in-commit timestamps", METADATA, with_properties(**STAMPS), [add("a")], None),
    ("change data feed", METADATA, with_properties(enableChangeDataFeed="true"), [add("a")], "metadata"),
    ("a constraint", METADATA, with_properties(constraints__c="x > 1"), [add("a")], "metadata"),
    ("row tracking under an append", METADATA, with_properties(**IDS), [add("a")], None),
    ("row tracking under a delete of files", METADATA, with_properties(**IDS), [remove("one")], None),
    ("row tracking under an update", METADATA, with_properties(**IDS), [remove("one"), add("a")], "metadata"),
    ("names mapped to themselves", METADATA,
     with_properties(replace(METADATA, schema_string=schema(**MAPPED)), **NAMES), [add("a")], None),
    ("names mapped to others", METADATA,
     with_properties(replace(METADATA, schema_string=schema(**{**MAPPED, "delta.columnMapping.physicalName": "y"})),
                     **NAMES), [add("a")], "metadata"),
    ("names mapped to nothing", METADATA, with_properties(**NAMES), [add("a")], "metadata"),
    ("columns mapped by id", METADATA,
     with_properties(replace(METADATA, schema_string=schema(**MAPPED)), columnMapping__mode="id"), [add("a")],
     "metadata"),
    ("an identity column that went on", replace(METADATA, schema_string=schema(**IDENTITY)),
     replace(METADATA, schema_string=schema(**IDENTITY, **{"delta.identity.highWaterMark": 4})), [add("a")], None),
    ("an identity column that went on on both sides", replace(METADATA, schema_string=schema(**IDENTITY)),
     replace(METADATA, schema_string=schema(**IDENTITY, **{"delta.identity.highWaterMark": 4})), [METADATA, add("a")],
     "metadata"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "ours", "rule"), [case[1:] for case in METADATA_CASES], ids=[case[0] for case in METADATA_CASES]
)
def test_what_may_be_changed_under_a_transaction(
    read: Snapshot, before: Metadata, after: Metadata, ours: list[Action], rule: str | None
) -> None:
    conflict = check(Intent(replace(read, metadata=before), ours, NOTHING), [winner(after)])
    assert (conflict and conflict.rule) == rule


def test_properties_count_with_the_features_of_their_commit(read: Snapshot) -> None:
    bare = replace(read, protocol=Protocol(1, 7, None, ("domainMetadata",)))
    intent = Intent(bare, [add("a")], NOTHING)
    enabled = with_properties(enableDeletionVectors="true")
    assert check(intent, [winner(enabled)]) is not None
    upgraded = Protocol(3, 7, ("deletionVectors",), ("deletionVectors", "domainMetadata"))
    assert check(intent, [winner(upgraded, enabled)]) is None
    assert check(intent, [winner(upgraded), winner(enabled, version=2)]) is None
    assert check(intent, [winner(upgraded, enabled), winner(METADATA, version=2)]) is not None


WEAKER = with_properties(isolationLevel="WriteSerializable")


@pytest.mark.parametrize(
    ("reads", "ours", "theirs", "rule"),
    [
        (WHOLE_TABLE, [add("a")], [BLIND, add("b")], None),
        (WHOLE_TABLE, [add("a")], [add("b")], "new rows"),
        (WHOLE_TABLE, [add("a")], [CommitInfo({"isBlindAppend": False}), add("b")], "new rows"),
        (WHOLE_TABLE, [add("a"), WEAKER], [BLIND, add("b")], "new rows"),
        (WHOLE_TABLE, [remove("one")], [remove("two")], "removed rows"),
        (WHOLE_TABLE, [], [add("b")], "new rows"),
    ],
)
def test_write_serializable_lets_blind_appends_come_later(
    read: Snapshot, reads: Reads, ours: list[Action], theirs: list[Action], rule: str | None
) -> None:
    conflict = check(Intent(replace(read, metadata=WEAKER), ours, reads), [winner(*theirs)])
    assert (conflict and conflict.rule) == rule


@pytest.mark.parametrize(
    ("level", "ours", "expected"),
    [
        ("Serializable", [add("a")], "Serializable"),
        ("writeserializable", [add("a")], "WriteSerializable"),
        ("SnapshotIsolation", [add("a")], "Serializable"),
        ("Serializable", [add("a", data_change=False)], "SnapshotIsolation"),
        ("WriteSerializable", [add("a", data_change=False)], "SnapshotIsolation"),
        ("Serializable", [add("a", data_change=False), Txn("a", 1)], "Serializable"),
        ("Serializable", [add("a", data_change=False), remove("b")], "Serializable"),
        ("Serializable", [Cdc("_change_data/a", {}, 1), remove("b")], "Serializable"),
    ],
)
def test_isolation(read: Snapshot, level: str, ours: list[Action], expected: Isolation) -> None:
    snapshot = replace(read, metadata=with_properties(isolationLevel=level))
    assert isolation(Intent(snapshot, ours, WHOLE_TABLE)) == expected


def test_a_blind_append_is_called_one(store: LocalStore, read: Snapshot) -> None:
    for number, (reads, actions, blind) in enumerate(
        [(NOTHING, [add("a")], True), (WHOLE_TABLE, [add("b")], False), (NOTHING, [remove("a")], False)], 1
    ):
        info = Transaction(load_snapshot(store), actions, "WRITE", reads).attempt(store).commit.commit_info  # type: ignore[union-attr]
        assert info["isBlindAppend"] is blind
        assert info["isolationLevel"] == "Serializable"
        assert info["readVersion"] == number - 1


@pytest.mark.parametrize(
    ("reads", "ours", "theirs", "rule"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_rule(read: Snapshot, reads: Reads, ours: list[Action], theirs: list[Action], rule: str | None) -> None:
    conflict = check(Intent(read, ours, reads, ("shared/",)), [winner(*theirs)])
    assert (conflict and conflict.rule) == rule
    if conflict:
        assert conflict.version == 1


def test_nothing_passes_the_creation_of_the_table() -> None:
    conflict = check(Intent(None, [PROTOCOL, METADATA], NOTHING), [winner(PROTOCOL, METADATA, version=0)])
    assert conflict is not None
    assert conflict.rule == "created"


def test_the_first_of_several_winners_that_conflicts_is_named(read: Snapshot) -> None:
    winners = [winner(add("b")), winner(remove("one"), version=2), winner(replace(METADATA, name="t"), version=3)]
    conflict = check(Intent(read, [remove("one")], NOTHING), winners)
    assert conflict is not None
    assert (conflict.version, conflict.rule) == (2, "same file")


def test_a_file_added_and_removed_by_winners_leaves_its_mark(read: Snapshot) -> None:
    winners = [winner(add("b")), winner(remove("b"), version=2)]
    conflict = check(Intent(read, [add("a")], WHOLE_TABLE), winners)
    assert conflict is not None
    assert conflict.rule == "new rows"


# --- what the rules are for ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """A transaction on a table of two partitions, begun at most ``behind`` versions ago.

    It reads partitions, and what it writes to ``target`` is one row, a number that stands for all it read: appended, or
    in the place of what is there. ``empty`` removes what is there, ``move`` joins its files and keeps every row.
    """

    behind: int
    reads: frozenset[str]
    target: str
    kind: Literal["append", "replace", "empty", "move"]


Rows = dict[str, tuple[int, ...]]


def written(rows: Rows, step: Step, number: int) -> tuple[int, ...]:
    read = (row for name in sorted(step.reads) for row in sorted(rows[name]))
    return {"empty": (), "move": rows[step.target]}.get(step.kind, (hash((number, *read)),))


def applied(rows: Rows, step: Step, number: int) -> Rows:
    kept = rows[step.target] if step.kind == "append" else ()
    return {**rows, step.target: (*kept, *written(rows, step, number))}


def rows_of(snapshot: Snapshot) -> Rows:
    held: Rows = {"p": (), "q": ()}
    for file in snapshot.adds():
        tags = file.tags or {}
        name = tags["partition"] or ""
        held[name] = (*held[name], *map(int, (tags["rows"] or "").split()))
    return held


def transaction(read: Snapshot, step: Step, number: int) -> Transaction:
    changes = step.kind != "move"
    rows = " ".join(map(str, written(rows_of(read), step, number)))
    new = replace(add(f"f{number}", data_change=changes), tags={"partition": step.target, "rows": rows})
    there = [file for file in read.adds() if (file.tags or {})["partition"] == step.target]
    gone = [] if step.kind == "append" else [file.removed(1, data_change=changes) for file in there]
    looked_at = step.reads | (set() if step.kind == "append" else {step.target})
    reads = Reads(lambda file: (file.tags or {})["partition"] in looked_at) if looked_at else NOTHING
    return Transaction(read, [*gone, *([] if step.kind == "empty" else [new])], "X", reads)


steps = st.builds(
    Step,
    st.integers(0, 3),
    st.frozensets(st.sampled_from("pq")),
    st.sampled_from("pq"),
    st.sampled_from(["append", "replace", "empty", "move"]),
)


@given(st.lists(steps, max_size=8))
def test_what_passes_is_as_if_it_had_run_alone(tmp_path_factory: pytest.TempPathFactory, history: list[Step]) -> None:
    store = LocalStore(tmp_path_factory.mktemp("table"))
    first: list[Action] = [replace(add("f"), tags={"partition": "p", "rows": "1"}), PROTOCOL, METADATA]
    Transaction(None, first, "CREATE").attempt(store)
    snapshots, model = [load_snapshot(store)], {"p": (1,), "q": ()}
    for number, step in enumerate(history):
        begun = snapshots[max(0, len(snapshots) - 1 - step.behind)]
        outcome = transaction(begun, step, number).attempt(store, len(snapshots))
        if isinstance(outcome, Conflicted):
            assert begun.version < snapshots[-1].version, "nobody was faster"
            continue
        assert isinstance(outcome, Committed)
        snapshots.append(snapshots[-1].advance([outcome.commit]))
        if outcome.commit.adds or outcome.commit.removes:  # else it counts as run when it was begun
            model = applied(model, step, number)
        held = rows_of(snapshots[-1])
        assert {name: sorted(rows) for name, rows in held.items()} == {
            name: sorted(rows) for name, rows in model.items()
        }
