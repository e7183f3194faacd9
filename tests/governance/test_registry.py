"""What the registry records: one commit for each event, none for what is so already, nothing that contradicts it."""

import json
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dagster_versioned.errors import GovernanceError, InvalidInput, InvalidName, RegistryConflict
from dagster_versioned.governance import registry as registry_module
from dagster_versioned.governance.documents import (
    DEFAULT_DISPATCH,
    MAX_DOCUMENT_BYTES,
    Dispatch,
    Event,
    PendingMigration,
    Ref,
)
from dagster_versioned.governance.registry import REHEARSED, Registry, now
from dagster_versioned.storage import Location

Log = Callable[[], list[str]]
ByHand = Callable[[Callable[[Path], object]], None]

A, B, C = (Location.parse(f"/data/{name}") for name in "abc")
S3 = Location.parse("s3://bucket/nyc?region=eu-west-1")
CACHED = Dispatch(methods={"python": {"default": "dagster_versioned.read", "cached": "dagster_versioned.read_cached"}})


def planned(source: Location = A, target: Location = B) -> PendingMigration:
    return PendingMigration(source=source, target=target, actor="Ada", started_at=now(), reason="cheaper")


def done(pending: PendingMigration) -> Event:
    return Event(
        id=pending.id,
        kind="migrated",
        timestamp=now(),
        actor="Ada",
        source=pending.source,
        target=pending.target,
        reason=pending.reason,
        objects_copied=3,
        bytes_copied=9,
        verified="structural",
    )


def test_the_life_of_a_project_is_one_commit_per_event(registry: Registry, log: Log):
    pending = planned()
    steps: list[Callable[[], str | None]] = [
        lambda: registry.register("NYC", A, kind="attached", reason="it was there before"),
        lambda: registry.set_dispatch("NYC", CACHED),
        lambda: registry.prepare_migration("NYC", pending),
        lambda: registry.record_migration("NYC", done(pending)),
        lambda: registry.unregister("NYC", reason="the study ended"),
    ]
    for step in steps:
        sha = step()
        assert sha == registry.commit_sha
        assert step() is None  # no new commit
        assert registry.commit_sha == sha
    assert log() == [
        "Begin the registry",
        "Attached: NYC at /data/a",
        "Dispatch: NYC",
        "Migration prepared: NYC to /data/b",
        "Migrated: NYC to /data/b",
        "Decommissioned: NYC",
    ]
    state = registry.state("NYC")
    assert state.is_decommissioned
    assert [event.kind for event in state.history.events] == ["attached", "migrated", "decommissioned"]
    assert (state.ref, state.dispatch, state.pending) == (None, None, None)
    assert registry.projects() == []
    assert registry.all_projects() == ["NYC"]


def test_the_documents_are_those_of_the_format(registry: Registry):
    registry.register("NYC", S3)
    ref = json.loads(registry.read("projects/NYC/ref.json") or b"")
    assert ref == {"current": S3.to_json(), "previous": [], "schema_version": 1}
    documents = registry.documents("NYC")
    assert documents.dispatch == DEFAULT_DISPATCH
    assert documents.history.events[0].actor == "Ada Lovelace <ada@example.org>"
    assert documents.pending is None
    assert registry.read("projects/NYC/none.json") is None


def test_a_migration_moves_current_to_previous(registry: Registry):
    registry.register("NYC", A)
    pending = planned()
    registry.prepare_migration("NYC", pending)
    assert registry.documents("NYC").pending == pending
    assert registry.documents("NYC").ref.current == A
    event = done(pending)
    registry.record_migration("NYC", event)
    documents = registry.documents("NYC")
    assert documents.pending is None
    assert documents.ref.current == B
    assert [(place.location, place.until) for place in documents.ref.previous] == [(A, event.timestamp)]


def test_an_aborted_migration_leaves_the_place_and_another_ref(registry: Registry, log: Log):
    registry.register("NYC", A)
    before = registry.documents("NYC").ref
    pending = planned()
    registry.prepare_migration("NYC", pending)
    assert registry.abort_migration("NYC", pending.id) is not None
    assert registry.abort_migration("NYC", pending.id) is None
    after = registry.documents("NYC")
    assert after.pending is None
    assert after.ref.says_the_same_as(before)
    assert after.ref.to_bytes() != before.to_bytes()
    with pytest.raises(RegistryConflict, match="aborted, or never begun"):
        registry.record_migration("NYC", done(pending))
    again = planned()
    registry.prepare_migration("NYC", again)
    registry.record_migration("NYC", done(again))
    assert registry.documents("NYC").ref.aborted is None
    with pytest.raises(RegistryConflict, match=r"is done and cannot be called off.*migrate to /data/a"):
        registry.abort_migration("NYC", again.id)


def test_what_contradicts_the_registry_is_refused_and_recorded_nowhere(registry: Registry, log: Log):
    registry.register("NYC", A)
    registry.register("LAX", C)
    pending = planned()
    registry.prepare_migration("NYC", pending)
    before = log()
    for attempt, reason in [
        (lambda: registry.register("NYC", B), r"registered at /data/a, not at /data/b.*gov migrate NYC"),
        (lambda: registry.register("SFO", A), "/data/a is the place of the project NYC"),
        (lambda: registry.prepare_migration("NYC", planned()), rf"being moved to /data/b by Ada.*{pending.id}"),
        (lambda: registry.prepare_migration("LAX", planned(A, B)), r"LAX is at /data/c, not at /data/a"),
        (lambda: registry.prepare_migration("LAX", planned(C, A)), "is the place of the project NYC"),
        (lambda: registry.record_migration("LAX", done(planned(C, B))), "No migration"),
        (lambda: registry.abort_migration("NYC", "other"), "is being moved"),
        (lambda: registry.unregister("NYC"), "is being moved"),
    ]:
        with pytest.raises(RegistryConflict, match=reason):
            attempt()
    for project in ("SFO", "nyc"):
        for attempt in (
            lambda name=project: registry.documents(name),
            lambda name=project: registry.set_dispatch(name, CACHED),
            lambda name=project: registry.unregister(name),
            lambda name=project: registry.prepare_migration(name, planned()),
            lambda name=project: registry.abort_migration(name, "x"),
            lambda name=project: registry.repair_ref(name),
        ):
            with pytest.raises(GovernanceError, match="not registered"):
                attempt()
    assert log() == before


def test_the_region_of_a_bucket_does_not_make_it_another_place(registry: Registry):
    registry.register("NYC", S3)
    same = Location.parse("s3://bucket/nyc")
    assert registry.register("NYC", same) is None
    with pytest.raises(RegistryConflict, match="is the place of the project NYC"):
        registry.register("LAX", same)


def test_one_folder_is_one_place_however_it_is_written(registry: Registry, tmp_path: Path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    registry.register("NYC", Location.parse(str(tmp_path / "real")))
    for same in (
        Location.parse(str(tmp_path / "link")),
        Location.parse(str(tmp_path / "link" / ".." / "real")),
        Location(type="local", root=str(tmp_path), prefix="real/"),
    ):
        assert registry.register("NYC", same) is None
        with pytest.raises(RegistryConflict, match="is the place of the project NYC"):
            registry.register("LAX", same)


@pytest.mark.parametrize(
    ("place", "is_free"),
    [
        ("s3://bucket/nyc/datom/flights", False),
        ("s3://bucket/nyc/datom", False),
        ("s3://bucket/nyc/lax", True),  # beside the data folder
        ("s3://bucket", True),
        ("s3://bucket/nyc2", True),
        ("s3://bucket/ny", True),
        ("s3://bucket/NYC", True),
        ("s3://bucket/nyc?endpoint_url=http://localhost:1", True),
    ],
)
def test_no_project_lies_among_the_bytes_of_another(registry: Registry, place: str, is_free: bool):
    registry.register("NYC", Location.parse("s3://bucket/nyc"))
    with nullcontext() if is_free else pytest.raises(RegistryConflict, match="NYC"):
        registry.register("LAX", Location.parse(place))


def test_no_project_lies_around_the_bytes_of_another(registry: Registry):
    registry.register("NYC", Location.parse("s3://bucket/datom/nyc"))
    with pytest.raises(RegistryConflict, match="NYC"):
        registry.register("LAX", Location.parse("s3://bucket"))


def test_a_place_that_a_project_is_about_to_have_is_not_free(registry: Registry):
    registry.register("NYC", A)
    registry.register("LAX", C)
    registry.prepare_migration("NYC", planned())
    with pytest.raises(RegistryConflict, match="place of the project NYC"):
        registry.register("SFO", B)
    with pytest.raises(RegistryConflict, match="place of the project NYC"):
        registry.prepare_migration("LAX", planned(C, B))


@pytest.mark.parametrize("name", ["../NYC", "a/b", "..", "", "--upload-pack=x", "NYC\n", ".git"])
def test_a_project_name_with_a_path_trick_reaches_no_tree(registry: Registry, log: Log, name: str):
    for attempt in (
        lambda: registry.register(name, A),
        lambda: registry.documents(name),
        lambda: registry.state(name),
        lambda: registry.unregister(name),
        lambda: registry.repair_ref(name),
    ):
        with pytest.raises(InvalidName, match="not a project name"):
            attempt()
    assert log() == ["Begin the registry"]


def test_names_that_differ_by_case_alone_are_refused(registry: Registry):
    registry.register("NYC", A)
    with pytest.raises(InvalidName, match="case of letters"):
        registry.register("nyc", B)


def test_an_actor_and_a_reason_are_one_line(registry: Registry):
    for bad in ({"actor": "Ada\n\nSigned-off-by: Eve"}, {"reason": "a\nb"}):
        with pytest.raises(InvalidInput, match="not one line"):
            registry.register("NYC", A, **bad)


def test_a_project_that_was_given_up_can_be_registered_again(registry: Registry):
    registry.register("NYC", A)
    registry.unregister("NYC")
    with pytest.raises(GovernanceError, match=r"decommissioned by Ada.*gov register"):
        registry.documents("NYC")
    registry.register("NYC", B)
    documents = registry.documents("NYC")
    assert [place.location for place in documents.ref.previous] == [A]
    assert len(documents.history.events) == 3


def test_a_rehearsal_decides_and_records_nothing(registry: Registry, other: Registry, log: Log):
    other.register("NYC", A)
    rehearsal = registry.rehearsal()
    assert rehearsal.register("LAX", B) == REHEARSED
    assert rehearsal.register("NYC", A) is None
    with pytest.raises(RegistryConflict):
        rehearsal.register("NYC", B)
    assert rehearsal.unregister("NYC") == REHEARSED
    assert log() == ["Begin the registry", "Registered: NYC at /data/a"]
    assert registry.projects() == ["NYC"]


def test_a_registry_travels_by_pickle(registry: Registry):
    registry.register("NYC", A)
    copy = pickle.loads(pickle.dumps(registry))
    assert copy.documents("NYC") == registry.documents("NYC")
    assert copy.register("LAX", B) is not None


# ---- clocks


@pytest.mark.parametrize("jump", [timedelta(days=-20000), timedelta(days=20000)])
def test_a_clock_that_jumps_neither_breaks_nor_reorders_the_history(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, jump: timedelta
):
    registry.register("NYC", A)
    with monkeypatch.context() as jumped:
        jumped.setattr(registry_module, "now", lambda: datetime.now(UTC) + jump)
        registry.unregister("NYC")
    registry.register("NYC", B)
    documents = registry.documents("NYC")
    assert [event.kind for event in documents.history.events] == ["registered", "decommissioned", "registered"]
    assert documents.ref.current == B


def test_when_a_clone_was_fetched_is_known_unless_a_clock_jumped(registry: Registry, other: Registry, tmp_path: Path):
    noted = registry.path / "dagster-versioned-fetched"
    began = datetime.now(UTC)
    other.fetch()
    assert other.fetched_at is not None
    assert began <= other.fetched_at <= datetime.now(UTC)
    assert Registry.open(other.path).fetched_at == other.fetched_at
    for text in ["", "yesterday", "2026-01-01", (datetime.now(UTC) + timedelta(days=1)).isoformat()]:
        noted.write_text(text)
        assert registry.fetched_at is None
    registry.fetch()
    assert registry.fetched_at is not None
    noted.unlink()
    assert registry.fetched_at is None
    assert registry.projects() == []


# ---- by hand


def test_a_ref_that_was_edited_by_hand_is_found_out_and_repaired(registry: Registry, by_hand: ByHand, log: Log):
    registry.register("NYC", A)
    registry.register("LAX", C)
    right = registry.documents("NYC").ref

    def edit(work: Path) -> None:
        path = work / "projects/NYC/ref.json"
        path.write_bytes(Ref(current=B, previous=()).to_bytes())

    by_hand(edit)
    registry.fetch()
    for attempt in (
        lambda: registry.documents("NYC"),
        lambda: registry.register("NYC", B),
        lambda: registry.set_dispatch("NYC", CACHED),
        lambda: registry.prepare_migration("NYC", planned(B, A)),
        lambda: registry.unregister("NYC"),
    ):
        with pytest.raises(GovernanceError, match=r"NYC.*edited by hand.*/data/a.*gov ref NYC --repair"):
            attempt()
    assert registry.documents("LAX").ref.current == C
    assert registry.repair_ref("NYC") is not None
    assert registry.repair_ref("NYC") is None
    assert registry.documents("NYC").ref == right
    assert log()[-1] == "Repaired: ref.json of NYC"


def test_going_back_to_the_place_before_by_hand_is_found_out_too(registry: Registry, by_hand: ByHand):
    registry.register("NYC", A)
    before = registry.read("projects/NYC/ref.json") or b""
    pending = planned()
    registry.prepare_migration("NYC", pending)
    registry.record_migration("NYC", done(pending))
    by_hand(lambda work: (work / "projects/NYC/ref.json").write_bytes(before))
    registry.fetch()
    with pytest.raises(GovernanceError, match="edited by hand"):
        registry.documents("NYC")


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "file").write_text("x")


def as_link(target: str) -> Callable[[Path], None]:
    def link(path: Path) -> None:
        path.unlink()
        path.symlink_to(target)

    return link


SPOILED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a link": (as_link("../LAX/ref.json"), "is a symbolic link, not a plain file"),
    "a link outside": (as_link("/etc/passwd"), "is a symbolic link, not a plain file"),
    "executable": (lambda path: path.chmod(0o755), "mode 100755"),
    "a folder": (as_folder, "is a folder, not a plain file"),
    "too large": (lambda path: path.write_bytes(b" " * (MAX_DOCUMENT_BYTES + 1)), "1048577 bytes"),
    "empty": (lambda path: path.write_bytes(b""), "no JSON text"),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:-20]), "no JSON text"),
    "binary": (lambda path: path.write_bytes(b"\x80\x00"), "UnicodeDecodeError"),
    "another shape": (lambda path: path.write_text('{"current": "s3://bucket"}'), "cannot be used"),
    "newer": (lambda path: path.write_text('{"schema_version": 7}'), "newer dagster-versioned"),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("how", SPOILED)
def test_a_spoiled_document_is_named_with_the_reason_and_the_rest_goes_on(
    registry: Registry, by_hand: ByHand, how: str
):
    spoil, reason = SPOILED[how]
    projects = {"NYC": "ref.json", "SFO": "dispatch.json", "JFK": "migration_history.json"}
    for name in ("LAX", *projects):
        registry.register(name, Location.parse(f"/data/{name}"))

    def edit(work: Path) -> None:
        for name, document in projects.items():
            spoil(work / "projects" / name / document)

    by_hand(edit)
    registry.fetch()
    for name, document in projects.items():
        for attempt in (registry.documents, registry.unregister):
            with pytest.raises(GovernanceError, match=rf"projects/{name}/{document}.*{reason}"):
                attempt(name)
    assert registry.documents("LAX").ref.current.uri == "/data/LAX"
    assert set(registry.all_projects()) == {"LAX", *projects}
    registry.repair_ref("NYC")
    assert registry.documents("NYC").ref.current.uri == "/data/NYC"


def test_a_project_folder_that_is_a_link_or_a_submodule_is_refused(
    registry: Registry, remote: Path, by_hand: ByHand, git: Callable[..., str]
):
    registry.register("LAX", C)
    by_hand(lambda work: (work / "projects/NYC").symlink_to("LAX"))
    registry.fetch()
    with pytest.raises(GovernanceError, match=r"'projects/NYC' .* is a symbolic link, not a folder"):
        registry.documents("NYC")
    with pytest.raises(GovernanceError, match="is a symbolic link"):
        registry.register("NYC", A)
    assert registry.projects() == ["LAX"]

    def submodule(work: Path) -> None:
        (work / "projects/NYC").unlink()
        sha = git(work, "rev-parse", "HEAD").strip()
        git(work, "rm", "--cached", "--quiet", "projects/NYC")
        git(work, "update-index", "--add", "--cacheinfo", f"160000,{sha},projects/NYC")
        (work / "projects/NYC").mkdir()

    by_hand(submodule)
    registry.fetch()
    with pytest.raises(GovernanceError, match="is a submodule"):
        registry.documents("NYC")


def test_folders_with_names_that_no_project_has_are_passed_over(registry: Registry, by_hand: ByHand):
    registry.register("NYC", A)

    def add(work: Path) -> None:
        for name in ("-rf", "a b", "deep/er"):
            (work / "projects" / name).mkdir(parents=True)
            (work / "projects" / name / "ref.json").write_text("{}")
        (work / "projects/ref.json").write_text("{}")

    by_hand(add)
    registry.fetch()
    assert registry.projects() == registry.all_projects() == ["NYC"]
    assert registry.register("LAX", B) is not None


def test_a_deleted_document_is_missed(registry: Registry, by_hand: ByHand):
    registry.register("NYC", A)
    by_hand(lambda work: (work / "projects/NYC/dispatch.json").unlink())
    registry.fetch()
    with pytest.raises(GovernanceError, match=r"no dispatch.json of NYC.*gov dispatch NYC"):
        registry.documents("NYC")
    registry.set_dispatch("NYC", CACHED)
    assert registry.documents("NYC").dispatch == CACHED
    by_hand(lambda work: (work / "projects/NYC/ref.json").unlink())
    registry.fetch()
    with pytest.raises(GovernanceError, match="edited by hand"):
        registry.documents("NYC")
    with pytest.raises(GovernanceError, match="edited by hand"):
        registry.register("NYC", B)
    registry.repair_ref("NYC")
    assert registry.documents("NYC").ref.current == A
    by_hand(lambda work: (work / "projects/NYC/migration_history.json").unlink())
    registry.fetch()
    with pytest.raises(GovernanceError):
        registry.documents("NYC")
    with pytest.raises(GovernanceError, match="not registered"):
        registry.repair_ref("NYC")


def test_what_else_a_registry_holds_is_left_alone(registry: Registry, by_hand: ByHand):
    by_hand(lambda work: (work / "NOTES.md").write_text("ours\r\n"))
    registry.register("NYC", A)
    assert registry.read("NOTES.md") == b"ours\r\n"


def test_a_change_of_ones_own_is_one_commit_or_none(registry: Registry, log: Log):
    def add(path: str, data: bytes | None) -> str | None:
        return registry.change(f"Change {path}", lambda tree: {path: data})

    assert add("notes/ä ö.bin", b"\x00\r\n\xff") == registry.commit_sha
    assert registry.read("notes/ä ö.bin") == b"\x00\r\n\xff"
    assert add("notes/ä ö.bin", b"\x00\r\n\xff") is None
    assert registry.change("Nothing", lambda tree: None) is None
    assert add("none", None) is None
    assert add("notes/ä ö.bin", None) is not None
    assert registry.read("notes/ä ö.bin") is None
    with pytest.raises(InvalidName):
        add("../out", b"")
    assert log() == ["Begin the registry", "Change notes/ä ö.bin", "Change notes/ä ö.bin"]


def test_hooks_and_monitors_of_a_clone_that_somebody_was_given_are_not_run(registry: Registry, git: Callable[..., str]):
    ran = registry.path / "ran"
    (registry.path / "hooks").mkdir()
    for name in ("pre-push", "reference-transaction", "monitor"):
        hook = registry.path / "hooks" / name
        hook.write_text(f"#!/bin/sh\necho {name} >> {ran}\n")
        hook.chmod(0o755)
    git(registry.path, "config", "core.hooksPath", str(registry.path / "hooks"))
    git(registry.path, "config", "core.fsmonitor", str(registry.path / "hooks/monitor"))
    given = Registry.open(registry.path)
    given.register("NYC", A)
    given.fetch()
    assert not ran.exists()
