"""The mirror in governance storage: derived from the registry, but for the put that is a migration's commit point."""

import multiprocessing
import pickle
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_versioned.errors import (
    AccessDenied,
    GovernanceError,
    InvalidName,
    RegistryConflict,
    RegistryUnavailable,
    VersionedError,
)
from dagster_versioned.governance.documents import (
    MAX_DOCUMENT_BYTES,
    Dispatch,
    Event,
    MigrationHistory,
    PendingMigration,
    Ref,
)
from dagster_versioned.governance.mirror import Difference, GovernanceStore
from dagster_versioned.governance.registry import Registry, now
from dagster_versioned.storage import LocalStore, Location, ObjectStore
from dagster_versioned.storage.wrappers import AtCall, Call, CountingStore, Fault, FaultStore
from support.s3_server import S3Server

A, B, C = (Location.parse(f"/data/{name}") for name in "abc")
WRITES = ("put", "put_if_match", "put_if_absent", "delete")
NAMES = ("migration_history.json", "ref.json", "dispatch.json", "migration.json")


@pytest.fixture(
    params=["local", pytest.param("moto", marks=pytest.mark.slow), pytest.param("s3", marks=pytest.mark.s3)]
)
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> GovernanceStore:
    """A mirror in each kind of store."""
    if request.param == "local":
        return GovernanceStore(LocalStore(tmp_path / "anywhere"))
    server: S3Server = request.getfixturevalue(f"{request.param}_server")
    return GovernanceStore(server.store(server.new_bucket(), "gov"))


@pytest.fixture
def published(registry: Registry, mirror: GovernanceStore) -> GovernanceStore:
    registry.register("NYC", A)
    mirror.publish(registry)
    return mirror


def planned(source: Location = A, target: Location = B) -> PendingMigration:
    return PendingMigration(source=source, target=target, actor="Ada", started_at=now())


def event_of(pending: PendingMigration) -> Event:
    return Event(
        id=pending.id, kind="migrated", timestamp=now(), actor="Ada", source=pending.source, target=pending.target
    )


def prepared(registry: Registry, mirror: GovernanceStore, pending: PendingMigration | None = None) -> PendingMigration:
    pending = pending or planned()
    registry.prepare_migration("NYC", pending)
    mirror.publish(registry)
    return pending


def key(name: str, project: str = "NYC") -> str:
    return f"datom/projects/{project}/{name}"


# ---- publishing


def test_a_published_mirror_holds_the_registrys_bytes_and_a_second_publication_writes_nothing(
    registry: Registry, anywhere: GovernanceStore
):
    registry.register("NYC", A)
    registry.register("LAX", C)
    counting = CountingStore(anywhere.store)
    mirror = GovernanceStore(counting)
    missing = {Difference(project, name, "missing") for project in ("NYC", "LAX") for name in NAMES[:3]}
    assert set(mirror.status(registry)) == missing
    assert set(mirror.publish(registry)) == missing
    assert mirror.publish(registry) == mirror.status(registry) == []
    assert counting.count(*WRITES) == 6
    assert [call.key for call in counting.calls if call.verb in WRITES][:3] == [key(name, "LAX") for name in NAMES[:3]]
    for name in NAMES[:3]:
        assert anywhere.store.get(key(name)) == registry.read(f"projects/NYC/{name}")
    assert mirror.projects() == ["LAX", "NYC"]
    assert mirror.documents("NYC") == registry.documents("NYC")
    counting.reset()
    assert mirror.ref("NYC") == registry.documents("NYC").ref
    assert [call.verb for call in counting.calls] == ["get_range"]


def test_the_mirror_follows_every_event(registry: Registry, anywhere: GovernanceStore):
    registry.register("NYC", A)
    anywhere.publish(registry, ["NYC"])
    pending = prepared(registry, anywhere)
    assert anywhere.documents("NYC") == registry.documents("NYC")
    event = anywhere.commit_migration("NYC", event_of(pending))
    registry.record_migration("NYC", event)
    anywhere.publish(registry)
    assert anywhere.documents("NYC") == registry.documents("NYC")
    dispatch = Dispatch(methods={"python": {"default": "a.b"}})
    registry.set_dispatch("NYC", dispatch)
    assert anywhere.publish(registry) == [Difference("NYC", "dispatch.json", "differs")]
    assert anywhere.documents("NYC").dispatch == dispatch
    registry.unregister("NYC")
    anywhere.publish(registry)
    assert anywhere.status(registry) == []
    with pytest.raises(GovernanceError, match="not registered, or was decommissioned"):
        anywhere.ref("NYC")
    assert [info.key for info in anywhere.store.list("datom/projects/NYC/")] == [key("migration_history.json")]


def test_what_somebody_else_recorded_is_published_too(registry: Registry, other: Registry, mirror: GovernanceStore):
    other.register("NYC", A)
    assert len(mirror.publish(registry)) == 3
    other.register("LAX", B)
    assert len(mirror.publish(registry, ["LAX"])) == 3
    assert mirror.projects() == ["LAX", "NYC"]


def test_a_stale_clone_does_not_put_the_mirror_back(registry: Registry, other: Registry, published: GovernanceStore):
    other.fetch()
    pending = prepared(registry, published)
    registry.record_migration("NYC", published.commit_migration("NYC", event_of(pending)))
    published.publish(registry)
    back = prepared(registry, published, planned(B, C))
    registry.record_migration("NYC", published.commit_migration("NYC", event_of(back)))
    assert other.documents("NYC").ref.current == A
    with pytest.raises(RegistryConflict, match=r"knows events.*clone is behind"):
        published.status(other)  # which asks no network
    assert published.publish(other) == [Difference("NYC", "migration.json", "surplus")]
    assert published.ref("NYC").current == C


def test_a_project_that_is_not_registered_is_not_published(registry: Registry, mirror: GovernanceStore):
    with pytest.raises(GovernanceError, match="not registered"):
        mirror.publish(registry, ["NYC"])
    with pytest.raises(InvalidName):
        mirror.publish(registry, ["../NYC"])
    assert list(mirror.store.list()) == []


def test_a_registry_that_is_down_or_edited_by_hand_is_not_published(
    registry: Registry, published: GovernanceStore, remote: Path, by_hand: Callable[..., None]
):
    before = published.documents("NYC")
    by_hand(lambda work: (work / "projects/NYC/ref.json").write_bytes(Ref(current=B).to_bytes()))
    with pytest.raises(GovernanceError, match="edited by hand"):
        published.publish(registry)
    remote.rename(remote.with_name("gone"))
    with pytest.raises(RegistryUnavailable):
        published.publish(registry)
    assert published.documents("NYC") == before


def test_a_mirror_of_another_registry_is_refused(published: GovernanceStore, tmp_path: Path):
    second = Registry.init(str(tmp_path / "second.git"), tmp_path / "second")
    second.register("NYC", C)
    with pytest.raises(RegistryConflict, match=r"knows events of NYC that the registry .* does not.*left as it is"):
        published.publish(second)
    assert published.ref("NYC").current == A
    second.register("LAX", B)
    assert published.status(second, ["LAX"]) != []
    with pytest.raises(InvalidName):
        published.status(second, ["a/b"])


def test_a_surplus_project_is_shown_and_left(registry: Registry, published: GovernanceStore):
    published.store.put(key("ref.json", "OLD"), Ref(current=C).to_bytes())
    assert published.status(registry) == [Difference("OLD", "ref.json", "surplus")]
    assert published.publish(registry) == []
    assert published.ref("OLD").current == C


# ---- what cannot be read


def spoil(store: ObjectStore, name: str, how: str) -> str:
    """Spoil a mirrored document; returns the reason that reading it gives."""
    data = store.get(key(name))
    bad, reason = {
        "empty": (b"", "no JSON text"),
        "cut": (data[:-9], "no JSON text"),
        "binary": (b"\xff\xfe\x00", "UnicodeDecodeError"),
        "another shape": (b'{"current": 1, "methods": 1, "events": 1}', "cannot be used"),
        "newer": (b'{"schema_version": 2}', "newer dagster-versioned"),
        "oversized": (data + b" " * MAX_DOCUMENT_BYTES, "more than 1048576 bytes"),
        "deep": (b"[" * 10_000, "no JSON text"),
    }[how]
    store.put(key(name), bad)
    return reason


@pytest.mark.every(4)
@pytest.mark.parametrize("name", NAMES[:3])
@pytest.mark.parametrize("how", ["empty", "cut", "binary", "another shape", "newer", "oversized", "deep"])
def test_a_spoiled_document_is_named_with_the_reason_and_published_anew(
    registry: Registry, mirror: GovernanceStore, published: GovernanceStore, name: str, how: str
):
    reason = spoil(mirror.store, name, how)
    with pytest.raises(GovernanceError, match=rf"{key(name)}.*{reason}"):
        mirror.documents("NYC")
    if name == "ref.json":
        for attempt in (mirror.ref, mirror.ref_with_etag):
            with pytest.raises(GovernanceError, match=reason):
                attempt("NYC")
    what = "differs" if name == "dispatch.json" and how != "oversized" else "unreadable"
    assert mirror.publish(registry) == [Difference("NYC", name, what)]
    assert mirror.documents("NYC") == registry.documents("NYC")


@pytest.mark.parametrize("name", NAMES[:3])
@pytest.mark.parametrize("target", ["file in", "file out", "folder"])
def test_a_symbolic_link_is_refused_even_one_within_the_storage(
    registry: Registry, published: GovernanceStore, tmp_path: Path, name: str, target: str
):
    registry.register("LAX", C)
    published.publish(registry)
    root = tmp_path / "governance/datom/projects"
    outside = tmp_path / "outside.json"
    outside.write_bytes((root / "LAX" / name).read_bytes())
    if target == "folder":
        (root / "NYC").rename(root / "kept")
        (root / "NYC").symlink_to("LAX")
    else:
        (root / "NYC" / name).unlink()
        (root / "NYC" / name).symlink_to(f"../LAX/{name}" if target == "file in" else outside)
    for attempt in (lambda: published.documents("NYC"), lambda: published.publish(registry)):
        with pytest.raises(GovernanceError, match=r"projects/NYC/.*symbolic link"):
            attempt()
    assert published.documents("LAX").ref.current == C


def test_a_mirror_that_denies_or_does_not_answer_is_a_governance_error(published: GovernanceStore):
    for refuse in (denied, unavailable):
        broken = GovernanceStore(FaultStore(published.store, refuse))
        for attempt in (broken.ref, broken.documents, broken.ref_with_etag):
            with pytest.raises(
                GovernanceError, match=r"datom/projects/NYC/ref\.json could not be read from .*governance"
            ):
                attempt("NYC")
        with pytest.raises(GovernanceError, match="could not be read"):
            broken.projects()


def unavailable(call: Call) -> Fault:
    return Fault.BEFORE


def denied(call: Call) -> None:
    raise AccessDenied(f"{call.verb} {call.key!r}: not permitted.")


@pytest.mark.parametrize("name", ["../NYC", "a/b", "", "..", ".", "NYC/../LAX"])
def test_a_project_name_with_a_path_trick_reaches_no_key(published: GovernanceStore, name: str):
    counting = CountingStore(published.store)
    mirror = GovernanceStore(counting)
    for attempt in (mirror.ref, mirror.documents, lambda name: mirror.call_off(name, "x")):
        with pytest.raises(InvalidName, match="not a project name"):
            attempt(name)
    assert counting.calls == []


def test_a_ref_that_was_edited_by_hand_in_the_mirror_is_found_out_and_published_over(
    registry: Registry, published: GovernanceStore
):
    published.store.put(key("ref.json"), Ref(current=B).to_bytes())
    with pytest.raises(GovernanceError, match=r"edited by hand.*gov ref NYC --repair"):
        published.documents("NYC")
    assert published.status(registry) == [Difference("NYC", "ref.json", "differs")]
    published.publish(registry)
    assert published.documents("NYC").ref.current == A


def test_a_mirror_travels_by_pickle(published: GovernanceStore):
    assert pickle.loads(pickle.dumps(published)).documents("NYC") == published.documents("NYC")


# ---- the commit point


def test_a_migration_switches_once_however_often_it_is_run(registry: Registry, anywhere: GovernanceStore):
    registry.register("NYC", A)
    anywhere.publish(registry)
    pending = prepared(registry, anywhere)
    event = event_of(pending)
    assert anywhere.commit_migration("NYC", event) == event
    later = event.model_copy(update={"actor": "Grace", "timestamp": now()})
    assert anywhere.commit_migration("NYC", later) == event
    assert anywhere.ref("NYC").current == B
    assert [(place.location, place.until) for place in anywhere.ref("NYC").previous] == [(A, event.timestamp)]
    assert anywhere.documents("NYC").history.events[-1] == event
    registry.record_migration("NYC", event)
    anywhere.publish(registry)
    assert anywhere.commit_migration("NYC", later) == event
    back = prepared(registry, anywhere, planned(B, A))
    anywhere.commit_migration("NYC", event_of(back))
    assert anywhere.commit_migration("NYC", later) == event
    assert anywhere.ref("NYC").current == A


def test_nothing_takes_a_switch_back_that_is_not_recorded_yet(
    registry: Registry, other: Registry, published: GovernanceStore
):
    other.fetch()
    pending = prepared(registry, published)
    event = published.commit_migration("NYC", event_of(pending))
    for clone in (registry, other):
        assert published.publish(clone) == []
        assert published.ref("NYC").current == B
        assert {one.state for one in published.status(clone)} == {"unrecorded"}
    with pytest.raises(RegistryConflict, match=r"has switched: the project is at /data/b"):
        published.call_off("NYC", pending.id)
    registry.record_migration("NYC", event)
    assert published.publish(other) == [Difference("NYC", "migration.json", "surplus")]
    assert published.status(other) == []


@pytest.mark.parametrize("name", ["migration_history.json", "ref.json"])
@pytest.mark.parametrize("how", ["cut", "oversized", "lost"])
def test_a_switch_is_known_even_where_one_of_its_documents_is_spoiled(
    registry: Registry, published: GovernanceStore, name: str, how: str
):
    pending = prepared(registry, published)
    event = published.commit_migration("NYC", event_of(pending))
    expected = published.ref("NYC")
    if how == "lost":
        published.store.delete([key(name)])
    else:
        spoil(published.store, name, how)
    assert published.publish(registry) == [Difference("NYC", name, "missing" if how == "lost" else "unreadable")]
    assert published.documents("NYC").ref == expected
    again = published.commit_migration("NYC", event_of(pending))
    assert (again.id, again.timestamp) == (event.id, event.timestamp)
    registry.record_migration("NYC", again)
    published.publish(registry)
    assert published.documents("NYC") == registry.documents("NYC")


@pytest.mark.parametrize("name", ["migration_history.json", "ref.json"])
def test_a_document_that_is_spoiled_before_the_switch_is_published_anew(
    registry: Registry, published: GovernanceStore, name: str
):
    prepared(registry, published)
    spoil(published.store, name, "cut")
    assert published.publish(registry) == [Difference("NYC", name, "unreadable")]
    assert published.documents("NYC") == registry.documents("NYC")


def test_a_history_that_is_ahead_stays_while_the_migration_is_on_its_way_and_goes_when_it_was_aborted(
    registry: Registry, published: GovernanceStore
):
    pending = prepared(registry, published)
    ahead = registry.documents("NYC").history.with_event(event_of(pending))
    published.store.put(key("migration_history.json"), ahead.to_bytes())  # and then whoever ran it died
    assert published.publish(registry) == []
    assert published.documents("NYC").ref.current == A
    assert published.documents("NYC").history == ahead
    published.call_off("NYC", pending.id)
    assert published.documents("NYC").history == registry.documents("NYC").history
    published.store.put(key("migration_history.json"), ahead.to_bytes())  # whoever ran it was only slow
    registry.abort_migration("NYC", pending.id)
    published.publish(registry)
    assert published.documents("NYC") == registry.documents("NYC")
    assert published.status(registry) == []


def test_a_migration_that_was_called_off_cannot_switch(registry: Registry, anywhere: GovernanceStore):
    registry.register("NYC", A)
    anywhere.publish(registry)
    pending = prepared(registry, anywhere)
    anywhere.call_off("NYC", pending.id)
    anywhere.call_off("NYC", pending.id)
    for _ in range(2):
        with pytest.raises(RegistryConflict, match=rf"the migration {pending.id} was called off"):
            anywhere.commit_migration("NYC", event_of(pending))
        anywhere.publish(registry)  # a publication by somebody else does not put the bar away
    registry.abort_migration("NYC", pending.id)
    anywhere.publish(registry)
    with pytest.raises(RegistryConflict, match="called off"):
        anywhere.commit_migration("NYC", event_of(pending))
    again = prepared(registry, anywhere)
    anywhere.commit_migration("NYC", event_of(again))
    assert anywhere.ref("NYC").current == B


def test_a_migration_that_was_called_off_long_ago_does_not_switch_a_project_that_came_back(
    registry: Registry, anywhere: GovernanceStore
):
    registry.register("NYC", A)
    anywhere.publish(registry)
    late = prepared(registry, anywhere)
    anywhere.call_off("NYC", late.id)
    registry.abort_migration("NYC", late.id)
    for source, target in ((A, C), (C, A)):
        event = anywhere.commit_migration("NYC", event_of(prepared(registry, anywhere, planned(source, target))))
        registry.record_migration("NYC", event)
        anywhere.publish(registry)
    with pytest.raises(RegistryConflict, match="not on its way"):
        anywhere.commit_migration("NYC", event_of(late))
    assert anywhere.documents("NYC") == registry.documents("NYC")


def test_a_move_that_was_never_prepared_is_not_taken_for_one(registry: Registry, published: GovernanceStore):
    forged = published.documents("NYC").history.with_event(event_of(planned()))
    published.store.put(key("migration_history.json"), forged.to_bytes())
    ref = forged.ref()
    assert ref is not None
    published.store.put(key("ref.json"), ref.to_bytes())
    for look in (published.publish, published.status):
        with pytest.raises(RegistryConflict, match=r"edited by hand.*delete its datom/projects/NYC/"):
            look(registry)
    for info in list(published.store.list("datom/projects/NYC/")):
        published.store.delete([info.key])
    published.publish(registry)
    assert published.ref("NYC").current == A


def test_a_registry_whose_documents_were_both_edited_by_hand_is_not_published(
    registry: Registry, published: GovernanceStore, by_hand: Callable[[Callable[[Path], object]], None]
):
    def move(work: Path) -> None:
        for name in ("ref.json", "migration_history.json"):
            path = work / "projects/NYC" / name
            path.write_text(path.read_text().replace(A.root, C.root))

    by_hand(move)
    with pytest.raises(RegistryConflict, match="edited by hand"):
        published.publish(registry)
    assert published.ref("NYC").current == A


class Meanwhile:
    """Does something just before the n-th write of a store."""

    def __init__(self, number: int, act: Callable[[], object]) -> None:
        self.number, self.act, self.turn = number, act, 0

    def __call__(self, call: Call) -> None:
        if call.verb in WRITES:
            self.turn += 1
            if self.turn == self.number:
                self.act()


@pytest.mark.parametrize("number", [1, 2])
def test_a_migration_that_is_called_off_between_two_of_its_writes_does_not_switch(
    registry: Registry, published: GovernanceStore, number: int
):
    pending = prepared(registry, published)
    racing = GovernanceStore(
        FaultStore(published.store, Meanwhile(number, lambda: published.call_off("NYC", pending.id)))
    )
    with pytest.raises(RegistryConflict, match="called off"):
        racing.commit_migration("NYC", event_of(pending))
    assert published.ref("NYC").current == A
    registry.abort_migration("NYC", pending.id)
    published.publish(registry)
    assert published.documents("NYC") == registry.documents("NYC")


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.LOST_ANSWER])
def test_a_failure_at_any_call_leaves_one_place_and_can_be_run_again(
    registry: Registry, mirror: GovernanceStore, fault: Fault
):
    registry.register("NYC", A)
    pending = planned()
    registry.prepare_migration("NYC", pending)
    event = event_of(pending)
    for number in range(1, 60):
        for info in list(mirror.store.list()):
            mirror.store.delete([info.key])
        mirror.publish(registry)
        broken = GovernanceStore(FaultStore(mirror.store, AtCall(number, fault)))
        try:
            broken.commit_migration("NYC", event)
        except VersionedError:
            assert mirror.documents("NYC").ref.current in (A, B)
            assert mirror.commit_migration("NYC", event) == event
        else:
            break
        assert mirror.documents("NYC").ref.current == B
    assert number > 5


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.LOST_ANSWER])
def test_a_publication_that_fails_at_any_call_is_never_read_as_edited_by_hand(
    registry: Registry, mirror: GovernanceStore, fault: Fault
):
    registry.register("NYC", A)
    failures = 0
    for number in range(1, 8):  # four looks, three puts
        for info in list(mirror.store.list()):
            mirror.store.delete([info.key])
        broken = GovernanceStore(FaultStore(mirror.store, AtCall(number, fault)))
        try:
            broken.publish(registry)
        except VersionedError:
            failures += 1
            with suppress(GovernanceError):
                mirror.documents("NYC")
                assert number >= 7
            mirror.publish(registry)
        assert mirror.documents("NYC") == registry.documents("NYC")
    assert failures >= 3


# ---- several at once


def _publish(clone: Path, store: ObjectStore, barrier: Any, results: Any) -> None:
    try:
        registry, mirror = Registry.open(clone), GovernanceStore(store)
        barrier.wait(120)
        mirror.publish(registry)
        results.put("done")
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent waits to hear of everybody
        results.put(repr(error))


@pytest.mark.slow
def test_many_who_publish_at_once_while_events_go_on_end_with_the_registrys_state(
    registry: Registry, mirror: GovernanceStore, tmp_path: Path
):
    clones = [Registry.clone(registry.remote, tmp_path / f"clone-{who}").path for who in range(3)]
    registry.register("NYC", A)
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(4), context.SimpleQueue()
    others = [context.Process(target=_publish, args=(clone, mirror.store, barrier, results)) for clone in clones]
    for process in others:
        process.start()
    barrier.wait(120)
    for turn in range(3):
        registry.set_dispatch("NYC", Dispatch(methods={"python": {"default": f"a.b{turn}"}}))
        mirror.publish(registry)
    assert [results.get() for _ in others] == ["done"] * 3
    for process in others:
        process.join()
    assert mirror.documents("NYC") == registry.documents("NYC")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(st.lists(st.binary(max_size=40) | st.none(), min_size=4, max_size=4))
def test_any_bytes_in_the_mirror_are_a_governance_error_and_published_over(
    registry: Registry, mirror: GovernanceStore, contents: list[bytes | None]
):
    registry.register("NYC", A)
    for name, data in zip(NAMES, contents, strict=True):
        mirror.store.delete([key(name)])
        if data is not None:
            mirror.store.put(key(name), data)
    with pytest.raises(GovernanceError):
        mirror.documents("NYC")
    mirror.publish(registry)
    assert mirror.documents("NYC") == registry.documents("NYC")
    assert MigrationHistory.parse(mirror.store.get(key(NAMES[0])), "history").ref() == mirror.ref("NYC")
