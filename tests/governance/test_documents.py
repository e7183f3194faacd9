"""What ref.json, dispatch.json, migration_history.json and migration.json may say, and that nothing else is read."""

import json
import pickle
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dagster_versioned.errors import GovernanceError, InvalidInput, InvalidName
from dagster_versioned.governance.documents import (
    DEFAULT_DISPATCH,
    MAX_DOCUMENT_BYTES,
    Dispatch,
    Event,
    MigrationHistory,
    PendingMigration,
    Previous,
    Ref,
    as_line,
    check_agreement,
    check_mirrored_agreement,
    project_name,
)
from dagster_versioned.storage import Location

NOON = datetime(2026, 8, 15, 10, 23, tzinfo=UTC)
SEED = b"""{
"current": {"type": "s3", "root": "your-org-datom-data-eu", "prefix": "study-001/", "region": "eu-west-1"},
"previous": [{"type": "s3", "root": "your-org-datom-data", "prefix": "study-001/", "region": "us-east-1",
"until": "2026-08-15T10:23:00Z"}],
"schema_version": 1
}"""

KINDS = [Ref, Dispatch, MigrationHistory, PendingMigration]

lines = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=30)
times = st.datetimes(
    datetime(1, 1, 3), datetime(9999, 12, 29), timezones=st.timezones() | st.just(UTC), allow_imaginary=False
)
places = st.sampled_from(
    [
        Location.parse(uri)
        for uri in (
            "/data",
            "/data/with space/ä",
            "s3://bucket",
            "s3://bucket/study-001?region=eu-west-1",
            "s3://bucket/study-001?endpoint_url=http://127.0.0.1:9000",
        )
    ]
)
refs = st.builds(
    Ref,
    current=places,
    previous=st.lists(st.builds(Previous.of, places, times), max_size=4).map(tuple),
    aborted=st.none() | st.uuids().map(str),
)
words = st.text("abz_09", max_size=5).map("w".__add__)
methods = st.text("aZ_.0", max_size=5).map("_".__add__) | st.just("datom::datom_read")
dispatches = st.builds(
    Dispatch,
    methods=st.dictionaries(
        words,
        st.dictionaries(words, methods, max_size=3).map(lambda contexts: {"default": "a.b", **contexts}),
        min_size=1,
        max_size=3,
    ),
)


@st.composite
def histories(draw: st.DrawFn, min_size: int = 0) -> MigrationHistory:
    """A life of a project: registered, moved, perhaps given up and registered again."""
    history, place = MigrationHistory(), None
    for _ in range(draw(st.integers(min_size, 6))):
        target = draw(places.filter(lambda candidate, now=place: candidate != now))
        common = {"timestamp": draw(times), "actor": draw(lines), "reason": draw(st.none() | lines)}
        if place is None:
            event = Event(kind=draw(st.sampled_from(["registered", "attached"])), target=target, **common)
        elif draw(st.integers(0, 3)):
            copied = draw(st.integers(0, 2**53 - 1))
            event = Event(
                kind="migrated", source=place, target=target, verified="content", objects_copied=copied, **common
            )
        else:
            event = Event(kind="decommissioned", source=place, **common)
        history = history.with_event(event)
        place = event.target
    return history


pendings = st.builds(
    lambda source, target, actor, at, delete: PendingMigration(
        source=source, target=target, actor=actor, started_at=at, delete_source=delete
    ),
    *(places, places, lines, times, st.booleans()),
)
documents = refs | dispatches | histories() | pendings


@given(documents)
def test_a_document_survives_its_bytes_and_a_pickle(document):
    data = document.to_bytes()
    assert type(document).parse(data, "it") == document
    assert type(document).parse(data, "it").to_bytes() == data
    assert data.endswith(b"}\n")
    assert list(json.loads(data)) == sorted(json.loads(data))
    assert pickle.loads(pickle.dumps(document)) == document


def test_the_ref_of_the_seed_is_read_and_written_with_the_same_members():
    ref = Ref.parse(SEED, "ref.json")
    assert ref.current.uri == "s3://your-org-datom-data-eu/study-001/?region=eu-west-1"
    assert ref.previous[0].location.uri == "s3://your-org-datom-data/study-001/?region=us-east-1"
    assert ref.previous[0].until == NOON
    assert json.loads(ref.to_bytes()) == json.loads(SEED)


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_are_a_document_or_a_governance_error(data):
    refused: list[str] = []
    for kind in KINDS:
        try:
            kind.parse(data, "the document")
        except GovernanceError as error:
            refused.append(str(error))
    assert all(text.startswith("the document ") and text.isprintable() for text in refused)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(documents, st.data())
def test_a_document_with_one_member_replaced_is_a_document_or_a_governance_error(document, data):
    raw = json.loads(document.to_bytes())
    place = raw
    while isinstance(place, dict | list) and place:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            place[key] = data.draw(json_values)
            break
        place = place[key]
    try:
        again = type(document).parse(json.dumps(raw).encode(), "it")
    except GovernanceError:
        return
    assert type(document).parse(again.to_bytes(), "it") == again


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no JSON text"),
        (b"{", "no JSON text"),
        (b"\xff\xfe", "UnicodeDecodeError"),
        (b"\xef\xbb\xbf{}", "no JSON text"),
        (b'{"a": NaN}', "no JSON text"),
        (b'{"a": -Infinity}', "no JSON text"),
        (b"[" * 100_000, "no JSON text"),
        (b'{"a":' * 100_000, "no JSON text"),
        (b'{"a": ' + b"9" * 5000 + b"}", "no JSON text"),
        (b"[]", "no JSON object"),
        (b"null", "no JSON object"),
        (b'"ref"', "no JSON object"),
        (b'{"schema_version": "1"}', "schema_version"),
        (b'{"schema_version": true}', "schema_version"),
        (b'{"schema_version": 1.0}', "schema_version"),
        (b'{"schema_version": 0}', "schema_version"),
        (b'{"x": 1, "x": 2}', "twice"),
        (b'{"x": {"y": 1, "y": 1}}', "twice"),
        (b'{"unknown": 1}', "unknown: Extra inputs"),
        (b" " * (MAX_DOCUMENT_BYTES + 1), "more than 1048576 bytes"),
    ],
)
def test_what_is_no_document_is_refused_by_reason(kind, data: bytes, reason: str):
    with pytest.raises(GovernanceError, match=reason) as refused:
        kind.parse(data, "projects/NYC/x.json")
    assert str(refused.value).startswith("projects/NYC/x.json cannot be used")
    assert "Nothing was changed" in str(refused.value)


@pytest.mark.parametrize("version", ["2", "9" * 400])
@pytest.mark.parametrize("kind", KINDS)
def test_a_newer_document_asks_for_an_upgrade(kind, version):
    with pytest.raises(GovernanceError, match=r"newer dagster-versioned.*pip install --upgrade"):
        kind.parse(b'{"schema_version": %s, "whatever": []}' % version.encode(), "ref.json")


@pytest.mark.parametrize(
    "current",
    [
        {"type": "s3", "root": "bucket", "secret_key": "hunter2"},
        {"type": "s3", "root": "bucket", "endpoint_url": "http://user:hunter2@host"},
        {"type": "s3", "root": "hunter2/@"},
        {"type": "hunter2", "root": "bucket"},
        {"type": "s3", "root": ["hunter2"]},
        "s3://AKIA:hunter2@bucket",
        {"type": "local", "root": "hunter2"},
        {"type": "local", "root": "/a", "prefix": "../hunter2"},
    ],
)
def test_a_secret_or_a_wrong_place_is_refused_and_not_repeated(current):
    for document in ({"current": current}, {"current": {"type": "local", "root": "/a"}, "previous": [current]}):
        with pytest.raises(GovernanceError) as refused:
            Ref.parse(json.dumps(document).encode(), "ref.json")
        seen = f"{refused.value!r}{refused.value.__cause__!r}{refused.value.__context__!r}"
        assert "hunter2" not in seen.replace("'../hunter2'", "")  # a path is no secret


@pytest.mark.parametrize(
    "until",
    ["2026-08-15", "2026-08-15T10:23:00", "yesterday", 5, None, "10000-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00"],
)
def test_a_place_was_left_at_a_time_with_a_zone(until):
    place = {"type": "local", "root": "/a"}
    with pytest.raises(GovernanceError, match="until"):
        Ref.parse(json.dumps({"current": place, "previous": [{**place, "until": until}]}).encode(), "ref.json")


def test_times_are_stored_in_utc():
    until = datetime(2026, 8, 15, 12, 23, tzinfo=timezone(timedelta(hours=2)))
    place = Previous.of(Location.parse("/a"), until)
    assert place.to_json() == {"type": "local", "root": "/a", "prefix": "", "until": "2026-08-15T10:23:00Z"}
    with pytest.raises(ValidationError, match="without a zone"):
        Previous.of(Location.parse("/a"), datetime(2026, 8, 15))


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({}, "methods: Field required"),
        ({"methods": {}}, "names no language"),
        ({"methods": {"python": {}}}, "python has no context 'default'"),
        ({"methods": {"python": {"cached": "a.b"}}}, "python has no context 'default'"),
        ({"methods": {"Python": {"default": "a.b"}}}, "pattern"),
        ({"methods": {"python": {"default": "a.b", "../up": "a.b"}}}, "pattern"),
        ({"methods": {"python": {"default": "import os; os.system('x')"}}}, "pattern"),
        ({"methods": {"python": {"default": "a.b\n"}}}, "pattern"),
        ({"methods": {"python": {"default": 1}}}, "valid string"),
        ({"methods": {"python": {"default": "a" * 256}}}, "255"),
        ({"methods": [["python", {"default": "a"}]]}, "methods"),
    ],
)
def test_a_dispatch_document_that_is_none_is_refused(document, reason: str):
    with pytest.raises(GovernanceError, match=reason):
        Dispatch.parse(json.dumps(document).encode(), "dispatch.json")


def test_the_dispatch_document_of_the_format_is_read_without_its_version():
    document = {"methods": {"python": {"default": "dagster_versioned.read"}, "r": {"default": "datom::datom_read"}}}
    parsed = Dispatch.parse(json.dumps(document).encode(), "dispatch.json")
    assert {language: parsed.method(language) for language in parsed.methods} == {
        language: DEFAULT_DISPATCH.method(language) for language in DEFAULT_DISPATCH.methods
    }


def test_a_project_is_registered_with_the_cached_context():
    assert DEFAULT_DISPATCH.method(context="cached") == "dagster_versioned.read_cached"


def test_a_method_is_named_by_language_and_context():
    dispatch = Dispatch(methods={"python": {"default": "a.b", "cached": "a.c"}})
    assert dispatch.method() == "a.b"
    assert dispatch.method("python", "cached") == "a.c"
    with pytest.raises(GovernanceError, match="'audited' for python; it has cached, default"):
        dispatch.method("python", "audited")
    with pytest.raises(GovernanceError, match="language 'r'; it has python"):
        dispatch.method("r")


@given(histories(min_size=1))
def test_the_ref_follows_from_the_history(history: MigrationHistory):
    ref, last = history.ref(), history.events[-1]
    left = [event for event in history.events if event.source is not None]
    if last.kind == "decommissioned":
        assert ref is None
    else:
        assert ref is not None
        assert ref.current == last.target
        assert [(place.location, place.until) for place in ref.previous] == [
            (one.source, one.timestamp) for one in left
        ]
    check_agreement("NYC", ref, history, "here")
    check_mirrored_agreement("NYC", ref, history, "here")
    before = history.without_last().ref()
    check_mirrored_agreement("NYC", before, history, "here")
    if before != ref:
        with pytest.raises(GovernanceError, match=r"edited by hand.*gov ref NYC --repair"):
            check_agreement("NYC", before, history, "here")


@given(refs, histories(min_size=1))
def test_a_ref_that_does_not_follow_is_found_out(ref: Ref, history: MigrationHistory):
    with pytest.raises(GovernanceError, match="edited by hand"):
        check_mirrored_agreement(
            "NYC", ref.model_copy(update={"current": Location.parse("/elsewhere")}), history, "here"
        )


def test_the_history_is_a_chain_whatever_the_clocks_say():
    a, b = Location.parse("/a"), Location.parse("/b")
    first = Event(kind="registered", timestamp=NOON, actor="Ada", target=a)
    earlier = Event(kind="migrated", timestamp=NOON - timedelta(days=9000), actor="Ada", source=a, target=b)
    history = MigrationHistory().with_event(first).with_event(earlier)
    ref = history.ref()
    assert ref is not None
    assert ref.current == b
    assert history.event(earlier.id) == earlier
    assert history.event("none") is None
    for event, reason in [
        (first, "id of an earlier"),
        (Event(kind="migrated", timestamp=NOON, actor="Ada", source=a, target=b), "events.2 does not begin"),
        (Event(kind="registered", timestamp=NOON, actor="Ada", target=a), "events.2 does not begin"),
    ]:
        with pytest.raises(GovernanceError, match=reason):
            history.with_event(event)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "moved"},
        {"kind": "registered"},
        {"kind": "decommissioned"},
        {"from": None},
        {"to": {"type": "local", "root": "/a"}},
        {"actor": ""},
        {"actor": "Ada\nEve"},
        {"actor": 5},
        {"reason": "\x1b[2J"},
        {"id": "../up"},
        {"id": ""},
        {"objects_copied": -1},
        {"bytes_copied": 2**53},
        {"bytes_copied": 1.5},
        {"verified": True},
        {"timestamp": 0},
        {"more": 1},
    ],
)
def test_an_event_that_is_none_is_refused(change):
    registered = {"id": "1", "kind": "registered", "timestamp": "2026-08-15T10:23:00Z", "actor": "Ada"}
    a, b = {"type": "local", "root": "/a"}, {"type": "local", "root": "/b"}
    migrated = {**registered, "id": "2", "kind": "migrated", "from": a, "to": b}

    def parse(event) -> MigrationHistory:
        return MigrationHistory.parse(json.dumps({"events": [{**registered, "to": a}, event]}).encode(), "history")

    assert len(parse(migrated).events) == 2
    with pytest.raises(GovernanceError, match="history cannot be used"):
        parse({**migrated, **change})


@given(st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,127}", fullmatch=True))
def test_a_project_name_is_one_plain_segment(name: str):
    assert project_name(name) == name
    assert "/" not in name


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "../x", "a/b", "a\\b", "/a", "a/", "a.b", ".git", "-a", "--upload-pack=x", "1a", "a b"),
        *("a\n", "a\0", "ä", "a" * 129, "$(id)", "a%2fb", "ａ"),
    ],
)
def test_a_project_name_with_a_trick_is_refused(name: str):
    with pytest.raises(InvalidName, match="not a project name"):
        project_name(name)


@pytest.mark.parametrize("text", ["", "a\nb", "\x1b", "x" * 1001, "\ud800"])
def test_an_actor_or_reason_is_one_line(text: str):
    assert as_line("why not", "reason") == "why not"
    with pytest.raises(InvalidInput, match="reason is not one line"):
        as_line(text, "reason")
