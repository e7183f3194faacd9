import json
import subprocess
import sys
from typing import Any, cast

import hypothesis.strategies as st
import pytest
from hypothesis import given
from pyspark import cloudpickle

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
    check_commit,
    encode_action,
    parse_action,
    parse_line,
)
from dagster_versioned.engines.spark.by_value import pickled_by_value
from dagster_versioned.errors import InvalidInput, LogCorrupt


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
longs = st.integers(-(2**63), 2**63 - 1)
counts = st.integers(0, 2**63 - 1)
maps = st.dictionaries(texts, texts | st.none(), max_size=2)
text_maps = st.dictionaries(texts, texts, max_size=2)
vectors = st.builds(
    DeletionVector, st.sampled_from("uip"), texts, st.integers(0, 2**31 - 1), counts, maybe(st.integers(0, 99))
)
features = st.lists(texts, max_size=3).map(tuple)

VECTOR = DeletionVector("u", "x", 1, 1, 4)

actions = st.one_of(
    st.builds(
        Add,
        texts,
        maps,
        counts,
        longs,
        st.booleans(),
        maybe(texts),
        maybe(maps),
        maybe(vectors),
        maybe(longs),
        maybe(longs),
        maybe(texts),
    ),
    st.builds(
        Remove,
        texts,
        st.booleans(),
        maybe(longs),
        maybe(st.booleans()),
        maybe(maps),
        maybe(counts),
        maybe(texts),
        maybe(maps),
        maybe(vectors),
        maybe(longs),
        maybe(longs),
    ),
    st.builds(Cdc, texts, maps, counts, st.booleans(), maybe(maps)),
    st.builds(Metadata, texts, texts, features, text_maps, maybe(texts), maybe(texts), maybe(longs), texts, text_maps),
    st.builds(lambda names, more: Protocol(3, 7, names, (*names, *more)), features, features),
    st.builds(Protocol, st.integers(1, 2), st.integers(1, 6)),
    st.builds(Txn, texts, longs, maybe(longs)),
    st.builds(DomainMetadata, texts, texts, st.booleans()),
    st.builds(CommitInfo, st.dictionaries(texts, longs | texts | st.booleans() | st.none() | st.lists(texts))),
)


@given(actions)
def test_round_trip(action: Action) -> None:
    line = encode_action(action)
    assert b"\n" not in line
    assert parse_line(line, "here") == action
    assert json.loads(line).keys() == {action.NAME}


@given(actions, st.dictionaries(st.text("xyz", min_size=1, max_size=3), st.integers(0, 9), max_size=2))
def test_unknown_members_are_ignored(action: Action, unknown: dict[str, int]) -> None:
    members = {**unknown, **json.loads(encode_action(action))[action.NAME]}
    parsed = parse_line(json.dumps({action.NAME: members, "another": None}).encode(), "here")
    assert parsed == (CommitInfo(members) if isinstance(action, CommitInfo) else action)


@pytest.mark.parametrize("line", [b"{}", b'{"unknown":{}}', b'{"checkpointMetadata":{"version":1}}', b'{"add":null}'])
def test_unknown_actions_are_ignored(line: bytes) -> None:
    assert parse_line(line, "here") is None


GOOD: dict[str, dict[str, Any]] = {
    "add": {"path": "a", "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True},
    "remove": {"path": "a", "dataChange": True},
    "metaData": {"id": "1", "format": {"provider": "parquet"}, "partitionColumns": []},
    "protocol": {"minReaderVersion": 1, "minWriterVersion": 2},
    "txn": {"appId": "a", "version": 1},
    "domainMetadata": {"domain": "a", "configuration": "", "removed": False},
    "cdc": {"path": "a", "partitionValues": {}, "size": 1, "dataChange": False},
}


WRONG: dict[type, list[object]] = {
    str: [None, 1, 1.5, True, [], {}],
    int: [None, "1", 1.5, True, 2**70, []],
    bool: [None, 0, 1, "true", []],
    dict: [None, [], "{}", 1, True],
    list: [None, {}, "a", 1, [1], [None]],
}


@pytest.mark.parametrize(
    ("name", "member", "bad"),
    [
        (name, member, bad)
        for name, members in GOOD.items()
        for member, good in members.items()
        for bad in WRONG[type(good)] + ([-1] if member == "size" else [])
    ],
)
def test_a_required_member_of_the_wrong_type_is_refused_by_place_and_name(name: str, member: str, bad: object) -> None:
    with pytest.raises(LogCorrupt, match=r"file\.json, line 7, " + name) as error:
        parse_action({name: {**GOOD[name], member: bad}}, "file.json, line 7")
    assert member in str(error.value)


@pytest.mark.parametrize(("name", "member"), [(name, member) for name, value in GOOD.items() for member in value])
def test_a_missing_member_is_refused(name: str, member: str) -> None:
    with pytest.raises(LogCorrupt, match=member):
        parse_action({name: {key: value for key, value in GOOD[name].items() if key != member}}, "here")


@pytest.mark.parametrize(
    ("name", "members"),
    [
        ("add", {"stats": 1}),
        ("add", {"tags": {"a": 1}}),
        ("add", {"deletionVector": {"storageType": "u"}}),
        ("add", {"deletionVector": {**VECTOR.to_json(), "sizeInBytes": -1}}),
        ("add", {"deletionVector": {**VECTOR.to_json(), "sizeInBytes": 2**31}}),
        ("add", {"deletionVector": {**VECTOR.to_json(), "offset": 2**31}}),
        ("add", {"baseRowId": "1"}),
        ("remove", {"size": -1}),
        ("remove", {"deletionTimestamp": "now"}),
        ("metaData", {"configuration": {"a": 1}}),
        ("metaData", {"schemaString": {}}),
        ("protocol", {"minReaderVersion": 3}),
        ("protocol", {"minWriterVersion": 7}),
        ("protocol", {"readerFeatures": [1]}),
    ],
)
def test_an_optional_member_of_the_wrong_type_is_refused(name: str, members: dict[str, Any]) -> None:
    with pytest.raises(LogCorrupt, match="here, " + name):
        parse_action({name: {**GOOD[name], **members}}, "here")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"add":', "not JSON"),
        (b'{"txn":{"appId":"a","version":1}}{"txn":{"appId":"b","version":1}}', "not JSON"),
        (b'{"txn":{"appId":"\xff","version":1}}', "not JSON"),
        (b"[" * 5000 + b"]" * 5000, "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"add":[]}', "not an object"),
        (json.dumps({"add": GOOD["add"], "txn": GOOD["txn"]}).encode(), "several actions"),
    ],
)
def test_lines_that_are_no_action_are_refused(line: bytes, reason: str) -> None:
    with pytest.raises(LogCorrupt, match=reason):
        parse_line(line, "here")


def add(path: str, vector: DeletionVector | None = None) -> Add:
    return Add(path, {}, 1, 1, True, deletion_vector=vector)


@pytest.mark.parametrize(
    "pair",
    [
        (Metadata("1", "{}"), Metadata("2", "{}")),
        (Protocol(1, 2), Protocol(1, 2)),
        (Txn("a", 1), Txn("a", 2)),
        (DomainMetadata("a", "1"), DomainMetadata("a", "2")),
        (add("a"), add("a")),
        (add("a%20b"), add("a b")),
        (add("a"), add("a", VECTOR)),
        (Remove("a", True), Remove("a", False)),
        (add("a"), Remove("a", True)),
    ],
)
def test_actions_that_reconcile_with_each_other_cannot_share_a_commit(pair: tuple[Action, Action]) -> None:
    with pytest.raises(LogCorrupt, match="here: "):
        check_commit(pair, "here")


@pytest.mark.parametrize(
    "pair",
    [
        (add("a", VECTOR), Remove("a", True)),
        (add("a"), Cdc("a", {}, 1)),
        (add("a"), add("b")),
        (Txn("a", 1), Txn("b", 1)),
        (DomainMetadata("a", ""), DomainMetadata("A", "")),
    ],
)
def test_actions_of_different_things_can(pair: tuple[Action, Action]) -> None:
    check_commit(pair, "here")


@pytest.mark.parametrize("value", [{"a": "\ud800"}, {"a": 2**65}, {"a": object()}])
def test_what_has_no_json_form_is_not_written(value: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="commitInfo"):
        encode_action(CommitInfo(value))


def test_a_vectors_unique_id_has_its_offset() -> None:
    assert VECTOR.unique_id == "ux@4"
    assert DeletionVector("i", "wi5b", 1, 1).unique_id == "iwi5b"
    assert add("a", VECTOR).identity == ("a", "ux@4")


ELSEWHERE = """
import pickle, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "dagster_versioned":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
sys.stdout.buffer.write(pickle.loads(sys.stdin.buffer.read())())
"""


def test_actions_are_parsed_and_written_where_this_package_is_not() -> None:
    line = encode_action(Add("a", {"p": None}, 1, 1, True, deletion_vector=VECTOR))
    with pickled_by_value():
        task = cloudpickle.dumps(lambda: encode_action(cast("Action", parse_line(line, "here"))))
    done = subprocess.run([sys.executable, "-c", ELSEWHERE], input=task, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, line), done.stderr.decode()[-1000:]
