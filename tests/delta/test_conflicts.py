"""The protocol's and the reference's rules, one row each."""

import pytest

from dagster_versioned.delta.actions import Action, Add, DeletionVector, DomainMetadata, Metadata, Protocol, Remove, Txn
from dagster_versioned.delta.conflicts import NOTHING, WHOLE_TABLE, Intent, Reads, check
from dagster_versioned.delta.log import Commit
from dagster_versioned.delta.snapshot import Snapshot, load_snapshot
from dagster_versioned.delta.transaction import Transaction
from dagster_versioned.storage.local import LocalStore

SCHEMA = '{"type":"struct","fields":[{"name":"x","type":"long","nullable":true,"metadata":{}}]}'
PROTOCOL = Protocol(1, 7, None, ("domainMetadata", "inCommitTimestamp"))
METADATA = Metadata("id", SCHEMA, (), {})


def add(path: str, partition: str | None = None, *, data_change: bool = True) -> Add:
    return Add(path, {}, 1, 1, data_change, tags={"partition": partition} if partition else None)


def remove(path: str, *, data_change: bool = True) -> Remove:
    return Remove(path, data_change, 1)


@pytest.fixture
def read(store: LocalStore) -> Snapshot:
    actions = [PROTOCOL, METADATA, add("one", "p"), add("two", "q")]
    Transaction(None, actions, "CREATE").attempt(store)
    return load_snapshot(store)


def winner(*actions: Action, version: int = 1) -> Commit:
    return Commit(version, "", 0, actions, None, 0)


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
    ("metadata, for a blind append too", NOTHING, [add("a")], [METADATA], "metadata"),
    ("metadata on both sides", WHOLE_TABLE, [METADATA], [METADATA], "metadata"),
    ("protocol, for a blind append too", NOTHING, [add("a")], [PROTOCOL], "protocol"),
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
    winners = [winner(add("b")), winner(remove("one"), version=2), winner(METADATA, version=3)]
    conflict = check(Intent(read, [remove("one")], NOTHING), winners)
    assert conflict is not None
    assert (conflict.version, conflict.rule) == (2, "same file")


def test_a_file_added_and_removed_by_winners_leaves_its_mark(read: Snapshot) -> None:
    winners = [winner(add("b")), winner(remove("b"), version=2)]
    conflict = check(Intent(read, [add("a")], WHOLE_TABLE), winners)
    assert conflict is not None
    assert conflict.rule == "new rows"
