"""What FORMAT and seed 000 promise of a version's identity and facts."""

import dataclasses
import hashlib
import json
import random
import re
import time
from typing import Any

import orjson
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from dagster_versioned.delta.actions import parse_line
from dagster_versioned.errors import IntegrityError, InvalidInput, InvalidMetadata, InvalidName, LogCorrupt
from dagster_versioned.identity.canonical import canonical_json
from dagster_versioned.identity.computation import ComputationInput, computation_key
from dagster_versioned.identity.version import (
    Facts,
    Identity,
    Parent,
    Run,
    SourceVersion,
    VersionEntry,
    Writer,
    created_at_text,
    data_sha,
    has_sha,
    partitions_sha,
)

SHA_A, SHA_B, SHA_C = "a" * 64, "b" * 64, "c" * 64
SCHEMA = {"type": "struct", "fields": [{"name": "x", "type": "long", "nullable": True, "metadata": {}}]}
FACTS = Facts("2024-05-01T12:00:00.000001Z", Writer("dagster-versioned", "0.1.0"), 100, 1, "bag-xxh64x2:00:1")


def identity(**members: Any) -> Identity:
    return Identity(
        **{"asset_key": ["a", "b"], "table_type": "derived", "data_sha": SHA_A, "nrow": 1, "schema": SCHEMA, **members}
    )


shas = st.text("0123456789abcdef", min_size=64, max_size=64)
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
numbers = st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(-1e15, 1e15) | st.sampled_from([1e21, 1e-7, 5e-324, -0.0])
json_values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
parents = st.builds(
    Parent,
    source=texts,
    table=texts,
    version=shas,
    data_sha=shas,
    partition=st.none() | texts.filter(lambda key: "\0" not in key),
)
identities = st.builds(
    Identity,
    asset_key=st.lists(texts, min_size=1, max_size=3),
    table_type=st.sampled_from(["imported", "derived"]),
    data_sha=shas,
    nrow=st.integers(0, 2**40),
    schema=st.just(SCHEMA),
    partition=st.none() | texts.filter(lambda key: "\0" not in key),
    parents=st.lists(parents, max_size=3),
    source_lineage=st.lists(st.builds(SourceVersion, project=texts, table=texts, version_sha=shas), max_size=3),
    code_version=st.none() | texts,
    message=st.none() | texts,
    custom=st.dictionaries(texts, json_values, max_size=3),
)


def shuffled(value: Any, chance: random.Random) -> Any:
    """The same JSON with the keys of every object in another order."""
    if isinstance(value, dict):
        items = [(key, shuffled(item, chance)) for key, item in value.items()]
        chance.shuffle(items)
        return dict(items)
    return [shuffled(item, chance) for item in value] if isinstance(value, list) else value


@given(identities)
def test_a_json_round_trip_changes_nothing(one: Identity) -> None:
    back = Identity.from_json(json.loads(json.dumps(one.to_json())))
    assert back == one
    assert back.to_json() == one.to_json()
    assert back.metadata_sha() == one.metadata_sha()


@given(identities, st.randoms(use_true_random=False))
def test_key_order_at_any_depth_changes_nothing(one: Identity, chance: random.Random) -> None:
    assert Identity.from_json(shuffled(one.to_json(), chance)).metadata_sha() == one.metadata_sha()


@given(identities)
def test_time_writer_and_run_are_not_part_of_the_version(one: Identity) -> None:
    later = dataclasses.replace(
        FACTS,
        created_at=created_at_text(time.time_ns() // 1_000_000),
        writer=Writer("other", "9"),
        run=Run("r", "s", 2),
        size_bytes=7,
        previous=SHA_C,
    )
    first, second = VersionEntry.of(one, FACTS, "full"), VersionEntry.of(one, later, "metadata_only")
    assert first.metadata_sha == second.metadata_sha == one.metadata_sha()


@given(identities)
def test_empty_members_are_left_out_and_nothing_else_is(one: Identity) -> None:
    stored = one.to_json()
    assert all(value not in (None, "", [], {}) for value in stored.values())
    padded = {**stored, "message": stored.get("message"), "code_version": stored.get("code_version"), "new": None}
    assert Identity.from_json(padded).metadata_sha() == one.metadata_sha()
    for entry in stored.get("parents", []):
        assert all(value not in (None, "", [], {}) for value in entry.values())


def test_zero_rows_are_a_member_and_empty_custom_values_stay() -> None:
    assert identity(nrow=0).to_json()["nrow"] == 0
    kept = {"a": None, "b": "", "c": [], "d": {}, "e": 0, "f": False}
    assert identity(custom=kept).to_json()["custom"] == kept
    assert "custom" not in identity(custom={}).to_json()
    assert identity(message="", code_version="").metadata_sha() == identity().metadata_sha()


@pytest.mark.parametrize(
    "change",
    [
        {"asset_key": ["a__b"]},
        {"partition": "p"},
        {"table_type": "imported"},
        {"data_sha": SHA_B},
        {"nrow": 2},
        {"schema": {"type": "struct", "fields": []}},
        {"parents": [Parent("p", "t", SHA_A, SHA_B)]},
        {"source_lineage": [SourceVersion("p", "t", SHA_A)]},
        {"code_version": "1"},
        {"message": "m"},
        {"custom": {"k": None}},
        {"hash_algo": "other"},
        {"unknown": {"later": 1}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_member_counts(change: dict[str, Any]) -> None:
    assert identity(**change).metadata_sha() != identity().metadata_sha()


def test_metadata_sha_by_ten_independent_lines() -> None:
    one = identity(
        parents=[Parent("p", "t", SHA_B, SHA_C, "2024"), Parent("p", "s", SHA_A, SHA_C)],
        source_lineage=[SourceVersion("p", "raw", SHA_B)],
        code_version="3",
        message="first",
        custom={"owner": "me", "tags": ["x", "y"], "n": 12, "nested": {"b": None, "a": True}},
    )
    stored = json.loads(json.dumps(VersionEntry.of(one, FACTS, "full").to_json()))
    # Sorting and compact separators are all of RFC 8785 for text in ASCII and whole numbers.
    text = json.dumps(stored["identity"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert hashlib.sha256(text.encode()).hexdigest() == stored["metadata_sha"]


@given(st.lists(parents, max_size=4), st.randoms(use_true_random=False))
def test_parents_are_sorted_and_deduplicated(entries: list[Parent], chance: random.Random) -> None:
    doubled = entries + entries
    chance.shuffle(doubled)
    one, other = identity(parents=doubled), identity(parents=entries)
    assert one == other
    assert len(one.parents) == len(set(entries))


def test_source_lineage_is_sorted_and_deduplicated() -> None:
    first, second = SourceVersion("p", "a", SHA_B), SourceVersion("p", "b", SHA_A)
    assert identity(source_lineage=[second, first, second]).source_lineage == (first, second)


@pytest.mark.parametrize("where", ["identity", "parent", "source"])
def test_members_of_a_newer_writer_are_kept_and_hashed(where: str) -> None:
    stored = identity(
        parents=[Parent("p", "t", SHA_A, SHA_B)], source_lineage=[SourceVersion("p", "t", SHA_A)]
    ).to_json()
    target = {"identity": stored, "parent": stored.get("parents", [{}])[0], "source": stored["source_lineage"][0]}[
        where
    ]
    target["later"] = {"b": [1, None], "a": "x"}
    sha = hashlib.sha256(json.dumps(stored, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    facts = {**FACTS.to_json(), "also_later": [1]}
    raw = {"identity": stored, "facts": facts, "metadata_sha": sha, "change": "full"}
    entry = VersionEntry.from_json(json.loads(json.dumps(raw)))
    assert entry.metadata_sha == entry.identity.metadata_sha() == sha
    assert entry.to_json() == raw


@given(identities)
def test_an_entry_is_read_back(one: Identity) -> None:
    facts = dataclasses.replace(FACTS, run=Run("r", "s", 0), parquet_sha=SHA_A, previous=SHA_B)
    entry = VersionEntry.of(one, facts, "full")
    assert VersionEntry.from_json(json.loads(json.dumps(entry.to_json()))) == entry


def _altered(path: str, value: Any) -> dict[str, Any]:
    one = identity(parents=[Parent("p", "b", SHA_A, SHA_B), Parent("p", "a", SHA_A, SHA_B)], custom={"k": 1})
    raw: dict[str, Any] = json.loads(json.dumps(VersionEntry.of(one, FACTS, "full").to_json()))
    *steps, last = path.split(".")
    target = raw
    for step in steps:
        target = target[step]
    if value is ...:
        del target[last]
    else:
        target[last] = value
    return raw


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("identity.nrow", 2),
        ("identity.nrow", True),
        ("identity.nrow", -1),
        ("identity.nrow", "1"),
        ("identity.custom.k", 2),
        ("identity.custom", []),
        ("identity.asset_key", "ab"),
        ("identity.asset_key", []),
        ("identity.data_sha", ...),
        ("identity.data_sha", "A" * 64),
        ("identity.parents", [{"source": "p"}]),
        ("identity.parents", ["p"]),
        ("identity.later", 1),
        ("identity.later", 2**60),
        ("identity.message", ""),
        ("identity.schema", ...),
        ("identity", ...),
        ("identity", []),
        ("facts", ...),
        ("facts.created_at", "yesterday"),
        ("facts.writer", ...),
        ("facts.writer", {"name": "x"}),
        ("facts.run", {"run_id": "x"}),
        ("facts.previous", "x"),
        ("metadata_sha", SHA_C),
        ("metadata_sha", ...),
        ("change", "none"),
        ("change", ...),
    ],
)
def test_an_altered_entry_is_refused(path: str, value: Any) -> None:
    with pytest.raises(IntegrityError):
        VersionEntry.from_json(_altered(path, value))


def test_a_computation_has_one_name_whatever_the_order_of_its_parents() -> None:
    parents = [Parent("house", "orders", sha * 64, sha * 64) for sha in "ab"]

    def name(*given: Parent) -> str:
        inputs = {"orders": ComputationInput(["orders"], given, "pandas.DataFrame")}
        return computation_key(
            ["total"], None, "1", config=None, options={}, message=None, partitioning=None, inputs=inputs
        )

    assert name(*parents) == name(*reversed(parents))
    assert name(*parents) != name(parents[0])


def test_an_entry_whose_parents_are_out_of_order_is_refused_even_if_its_hash_fits() -> None:
    raw = _altered("change", "full")
    raw["identity"]["parents"].reverse()
    text = json.dumps(raw["identity"], sort_keys=True, separators=(",", ":"))
    raw["metadata_sha"] = hashlib.sha256(text.encode()).hexdigest()
    with pytest.raises(IntegrityError, match="canonical form"):
        VersionEntry.from_json(raw)


def test_user_metadata_without_canonical_json_is_refused_by_key() -> None:
    with pytest.raises(InvalidMetadata, match=r"custom\.a\[1\]\.b"):
        identity(custom={"a": [0, {"b": 2**53}]})


def test_user_metadata_is_copied() -> None:
    custom = {"a": [1]}
    one = identity(custom=custom)
    before = one.metadata_sha()
    custom["a"].append(2)
    assert one.metadata_sha() == before


@pytest.mark.parametrize(
    "members",
    [
        {"asset_key": "ab"},
        {"asset_key": []},
        {"asset_key": ["a", ""]},
        {"table_type": "other"},
        {"data_sha": "x"},
        {"nrow": -1},
        {"partition": ""},
        {"partition": "a\0b"},
    ],
)
def test_impossible_identities_are_refused(members: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        identity(**members)


def test_facts_hold_times_in_utc_with_microseconds() -> None:
    assert created_at_text(1_714_564_800_000) == "2024-05-01T12:00:00.000000Z"
    assert created_at_text(1_714_564_800_007) == "2024-05-01T12:00:00.007000Z"
    assert created_at_text(999) == "1970-01-01T00:00:00.999000Z"
    assert Facts.from_json(FACTS.to_json()) == FACTS
    for wrong in ("2024-05-01T12:00:00Z", "2024-05-01T12:00:00.000000+00:00", "2024-05-01T12:00:00.000000Z\n"):
        with pytest.raises(InvalidInput, match="created_at"):
            dataclasses.replace(FACTS, created_at=wrong)


def test_data_sha_is_that_of_the_only_part_or_of_all_lines() -> None:
    assert data_sha([SHA_A], "significant") == data_sha([SHA_A], "ignored") == SHA_A
    forwards = hashlib.sha256(f"{SHA_A}\n{SHA_B}\n".encode()).hexdigest()
    assert data_sha([SHA_A, SHA_B], "significant") == forwards
    assert data_sha([SHA_B, SHA_A], "ignored") == data_sha([SHA_A, SHA_B], "ignored") == forwards
    assert data_sha([SHA_B, SHA_A], "significant") != forwards
    assert data_sha([SHA_A, SHA_A], "ignored") not in (SHA_A, forwards)
    assert data_sha([], "significant") == data_sha([], "ignored") == hashlib.sha256(b"").hexdigest()
    with pytest.raises(InvalidInput):
        data_sha([SHA_A.upper()], "ignored")


def test_partitions_sha_is_over_sorted_lines() -> None:
    expected = hashlib.sha256(f"2024\0{SHA_B}\n2024-01\0{SHA_A}\n".encode()).hexdigest()
    assert partitions_sha({"2024-01": SHA_A, "2024": SHA_B}) == expected
    assert partitions_sha({"2024-01": SHA_B, "2024": SHA_A}) != expected
    with pytest.raises(InvalidName):
        partitions_sha({f"2024\0{SHA_B}\n2024-01": SHA_A})
    with pytest.raises(InvalidInput):
        partitions_sha({"2024": "short"})


@pytest.mark.parametrize(
    ("kind", "members"),
    [
        (Parent, {"source": 1}),
        (Parent, {"source": ""}),
        (Parent, {"table": None}),
        (Parent, {"version": 5}),
        (Parent, {"partition": 3}),
        (SourceVersion, {"project": 1}),
        (SourceVersion, {"table": ""}),
        (Identity, {"asset_key": "abc"}),
        (Identity, {"asset_key": [1]}),
        (Identity, {"asset_key": [""]}),
        (Identity, {"asset_key": 7}),
        (Identity, {"code_version": 3}),
        (Identity, {"message": 5}),
        (Identity, {"nrow": "1"}),
        (Identity, {"nrow": True}),
        (Identity, {"hash_algo": ""}),
        (Identity, {"data_sha": None}),
        (Identity, {"partition": 1}),
        (Identity, {"schema": []}),
        (Identity, {"custom": [("a", 1)]}),
        (Identity, {"parents": ["x"]}),
        (Identity, {"source_lineage": [Parent("p", "t", SHA_A, SHA_B)]}),
        (Writer, {"version": 1}),
        (Run, {"attempt": "1"}),
        (Run, {"run_id": None}),
        (Facts, {"author": 5}),
        (Facts, {"created_at": 5}),
        (Facts, {"size_bytes": 1.0}),
        (Facts, {"part_count": -1}),
        (Facts, {"digest": ""}),
        (Facts, {"writer": "me"}),
        (Facts, {"run": {"run_id": "r"}}),
        (Facts, {"previous": 4}),
        (Facts, {"null_counts": ["1"]}),
        (Facts, {"null_counts": "11"}),
        (Facts, {"kind": None}),
    ],
)
def test_what_could_not_be_read_back_is_refused_by_the_name_of_the_member(kind: Any, members: dict[str, Any]) -> None:
    good: dict[Any, Any] = {
        Parent: Parent("p", "t", SHA_A, SHA_B),
        SourceVersion: SourceVersion("p", "t", SHA_A),
        Identity: identity(),
        Writer: Writer("w", "1"),
        Run: Run("r", "s", 0),
        Facts: FACTS,
    }
    (name,) = members
    with pytest.raises(InvalidInput, match=name.replace("_", ".")):
        dataclasses.replace(good[kind], **members)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=50)
@given(st.dictionaries(st.text(max_size=3), _JSON, max_size=3))
@example({"x": -0.0})
@example({"x": 1.0})
@example({"x": 5e-324})
@example({"x": 1e21})
@example({"\U0001f600": 1, "\ufb33": 2})
def test_what_has_its_sha_at_a_glance_has_it_by_the_canonical_text_too(identity: dict[str, Any]) -> None:
    """However it was stored; where a glance does not decide (floats, keys beyond ASCII), the entry is parsed."""
    try:
        text = canonical_json(identity)
    except InvalidMetadata:  # NaN, infinities and what is too large, which no identity has
        assume(False)
    sha = hashlib.sha256(text).hexdigest()
    for stored in (orjson.loads(text), orjson.loads(orjson.dumps(identity))):
        assert canonical_json(stored) == text
        assert not has_sha({**stored, "altered": 1}, sha)
    plain = not re.search(rb"[.\x80-\xff]|\d[eE]", text) and b"\\u" not in text
    assert has_sha(orjson.loads(text), sha) or not plain


@pytest.mark.parametrize("value", [b"NaN", b"Infinity", b"-Infinity"])
def test_what_no_json_is_is_no_identity_in_a_log(value: bytes) -> None:
    """A glance takes it for a null, so none may come as far as that."""
    line = b'{"commitInfo":{"dagsterVersioned":{"versions":[{"identity":{"x":%s}}]}}}' % value
    with pytest.raises(LogCorrupt):
        parse_line(line, "here")
