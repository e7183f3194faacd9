"""A project moves to another place, and nothing that anybody reads or links to changes."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dagster_versioned.errors import (
    AccessDenied,
    GovernanceError,
    IntegrityError,
    InvalidInput,
    ProjectMoved,
    RegistryConflict,
    StorageError,
    StoreUnavailable,
)
from dagster_versioned.governance import migrate as migrate_module
from dagster_versioned.governance.enroll import enroll
from dagster_versioned.governance.governance_marker import MARKER_KEY
from dagster_versioned.governance.migrate import MigrationProgress, abort
from dagster_versioned.governance.mirror import GovernanceStore
from dagster_versioned.governance.registry import Registry
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import LocalStore, Location, ObjectStore
from dagster_versioned.storage.wrappers import AtCall, Call, Fault, FaultStore, StoreWrapper, Verb
from dagster_versioned.tables.context import PlacementAuthority
from dagster_versioned.tables.documents.tag import tag_names
from dagster_versioned.tables.pins import PINS_KEY
from dagster_versioned.tables.relocation.migration_mark import MARK_KEY, MigrationMark, put_mark, read_mark
from support.frames import numbered
from support.governed import NAME, WHO, Governed, Opener, chain, facts, fill, fill_a_little
from support.hooked_store import HookedStore
from support.readers import assert_same
from support.s3_server import S3Server
from support.stores import contents

Log = Callable[[], list[str]]


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str], Location]:
    """A new empty place of a kind."""
    made = 0

    def new(kind: str) -> Location:
        nonlocal made
        made += 1
        if kind == "local":
            return Location.parse(str(tmp_path / f"place{made}"))
        server: S3Server = request.getfixturevalue("moto_server")
        return server.location(server.new_bucket(), "study 1")

    return new


@pytest.fixture
def new(tmp_path: Path) -> Location:
    return Location.parse(str(tmp_path / "new"))


def hooked(governed: Governed, place: Location, verb: Verb, ending: str, hook: Callable[[], object]) -> Opener:
    """Opens stores; those at ``place`` call the hook."""

    def around(location: Location, store: ObjectStore) -> ObjectStore:
        return HookedStore(store, verb, ending, hook) if location == place else store

    return Opener(governed.open.servers, around)


def everything(governed: Governed, new: Location) -> tuple[object, ...]:
    """All that there is anywhere."""
    stores = (governed.open(governed.home), governed.open(new), governed.mirror.store)
    return (*map(contents, stores), governed.registry.fetch())


def assert_moved(governed: Governed, new: Location, before: dict[str, object]) -> None:
    """The project is at the new place, as it was, and nowhere else."""
    governed.registry.fetch()
    documents, mirrored = governed.registry.documents(NAME), governed.mirror.documents(NAME)
    assert documents.ref.current == mirrored.ref.current == new
    assert documents.history == mirrored.history
    assert documents.pending is mirrored.pending is None
    assert governed.mirror.status(governed.registry, [NAME]) == []
    assert facts(governed.at(new)) == before
    there = governed.open(new).subfolder("datom")
    assert read_mark(there) is None
    assert not [info.key for info in there.list() if "probe" in info.key or "_staging" in info.key]
    for name in governed.at(new).tables():
        table = governed.at(new).table(str(name))
        table.verify().require_ok()
        assert table.head().log_version == table.state.log_version
        assert not table.head().pending


def assert_still_there(governed: Governed, before: dict[str, object]) -> None:
    """The project is where it was, and can be written to."""
    governed.registry.fetch()
    assert governed.registry.documents(NAME).ref.current == governed.home
    assert governed.mirror.ref(NAME).current == governed.home
    assert facts(governed.at(governed.home)) == before
    governed.by_developer().table("flights").write(numbered(77))
    governed.at(governed.home).table("flights").verify().require_ok()


# --- the whole way


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("source", "target", "verify"),
    [
        pytest.param("local", "local", "structural", marks=pytest.mark.slow),
        ("local", "local", "content"),
        ("local", "s3", "content"),
        pytest.param("s3", "s3", "structural", marks=pytest.mark.slow),
        ("s3", "local", "structural"),
    ],
)
def test_everything_is_as_it_was_at_the_new_place(
    source: str,
    target: str,
    verify: str,
    place: Callable[[str], Location],
    registry: Registry,
    mirror: GovernanceStore,
    moto_server: S3Server,
    log: Log,
) -> None:
    old, new = place(source), place(target)
    governed = Governed.begin(registry, mirror, old, Opener({moto_server.endpoint_url: moto_server}))
    (fill if source == "local" else fill_a_little)(governed.at(old))
    before, links = facts(governed.at(old)), chain(governed.at(old), "flights")
    commits = log()
    report = governed.move(new, verify=verify, reason="cheaper")
    assert_moved(governed, new, before)
    assert chain(governed.at(new), "flights")[: len(links)] == links
    assert log() == [*commits, f"Migration prepared: {NAME} to {new.uri}", f"Migrated: {NAME} to {new.uri}"]
    event = mirror.documents(NAME).history.events[-1]
    assert (event.source, event.target, event.actor, event.reason) == (old, new, WHO, "cheaper")
    assert (event.objects_copied, event.bytes_copied) == (report.objects, report.bytes)
    assert (event.verified, event.id, report.tables) == (verify, report.id, 2)
    assert report.copied_objects >= report.objects > 15
    assert registry.documents(NAME).ref.previous[0].location == old


def test_who_opens_it_afterwards_writes_and_reads_at_the_new_place(governed: Governed, new: Location) -> None:
    early = governed.by_developer()
    stranger = governed.at(governed.home)
    governed.move(new)
    with pytest.raises(ProjectMoved):
        early.table("flights").write(numbered(50))
    with pytest.raises(ProjectMoved):
        stranger.table("flights").write(numbered(50))
    with pytest.raises(ProjectMoved):
        stranger.pin("late", "flights")
    made = governed.by_developer().table("flights").write(numbered(50)).version
    assert_same(governed.by_reader().table("flights").read(made.metadata_sha[:8]), numbered(50))
    assert governed.at(new).table("flights").version().metadata_sha == made.metadata_sha
    assert governed.at(governed.home).table("flights").version().metadata_sha != made.metadata_sha


def test_the_old_place_keeps_a_signpost_and_its_objects(governed: Governed, new: Location) -> None:
    before = facts(governed.at(governed.home))
    report = governed.move(new)
    mark = read_mark(governed.open(governed.home).subfolder("datom"))
    assert mark == MigrationMark(report.id, "leaving", governed.home, new, mark.since)
    assert facts(governed.at(governed.home)) == before
    assert report.deleted_objects == 0


def fence(project: Project) -> list[str]:
    """What stays at a place that was left: the mark, the pins, the end of each log, and which governance to ask."""
    ends = [f"{name}/_delta_log/{project.table(str(name)).state.log_version:020d}.json" for name in project.tables()]
    return sorted(f"datom/{key}" for key in [MARK_KEY, MARKER_KEY, PINS_KEY, *ends])


def test_the_source_is_deleted_but_for_the_fence(governed: Governed, new: Location) -> None:
    before = facts(governed.at(governed.home))
    report = governed.move(new, delete_source=True)
    assert sorted(contents(governed.open(governed.home))) == fence(governed.at(new))
    with pytest.raises(ProjectMoved, match=str(new.root)):
        governed.at(governed.home).table("flights").read()
    for late in (governed.at(governed.home), governed.by_developer().at(governed.open(governed.home))):
        for attempt in (lambda p: p.table("flights").write(numbered(1)), lambda p: p.table("t").write(numbered(1))):
            with pytest.raises(ProjectMoved):
                attempt(late)
    assert report.deleted_objects > 20
    assert_moved(governed, new, before)


def test_the_source_can_be_deleted_later_by_the_same_command(governed: Governed, new: Location) -> None:
    governed.move(new)
    expected = fence(governed.at(new))
    governed.by_developer().table("flights").write(numbered(50))
    before = facts(governed.at(new))
    assert governed.move(new, delete_source=True).deleted_objects > 20
    assert sorted(contents(governed.open(governed.home))) == expected
    assert governed.move(new, delete_source=True).deleted_objects == 0
    assert_moved(governed, new, before)


@pytest.mark.parametrize("deleted", [False, True])
def test_the_place_that_was_left_is_nobodys(governed: Governed, new: Location, deleted: bool) -> None:
    governed.move(new, delete_source=deleted)
    for kind in ("registered", "attached"):
        with pytest.raises(InvalidInput, match=r"closed: a project left it for .*new"):
            enroll(governed.registry, governed.mirror, "OTHER", governed.home, kind, open_store=governed.open)


def test_a_deletion_that_died_in_the_middle_goes_on(governed: Governed, new: Location) -> None:
    before = facts(governed.at(governed.home))
    governed.move(new)
    home = governed.open(governed.home)
    keys = [info.key for info in home.list()]
    gone = [key for key in keys if key.endswith((f"{0:020d}.json", ".parquet"))]
    home.delete(gone)
    assert governed.move(new, delete_source=True).deleted_objects > 5
    assert sorted(contents(home)) == fence(governed.at(new))
    assert_moved(governed, new, before)
    assert_moved(governed, new, before)


def sleeper(governed: Governed, verb: Verb, ending: str, meanwhile: Callable[[], object]) -> Project:
    """The project as a developer opened it, who falls asleep right before one call."""
    awake = governed.by_developer()
    return Project(
        NAME,
        HookedStore(awake.store, verb, ending, meanwhile),
        author=WHO,
        placement_authority=awake.placement_authority,
    )


@pytest.mark.every(4)
@pytest.mark.parametrize(
    ("ending", "change"),
    [
        ("flights/_delta_log/{next}.json", lambda p: p.table("flights").write(numbered(50))),
        ("flights/_delta_log/{next}.json", lambda p: p.table("flights").revert(1, hold=True, why="w")),
        ("delays/_delta_log/{next}.json", lambda p: p.table("delays").write(numbered(7), partition="a")),
        ("new/_delta_log/00000000000000000000.json", lambda p: p.table("new").write(numbered(50))),
    ],
    ids=["write", "hold", "partition", "create"],
)
def test_who_sleeps_until_the_source_is_deleted_commits_nothing(
    governed: Governed, new: Location, ending: str, change: Callable[[Project], object]
) -> None:
    before, name = facts(governed.at(governed.home)), ending.partition("/")[0]
    table = governed.at(governed.home).table(name)
    following = f"{table.state.log_version + 1:020d}" if table.exists() else ""
    late = sleeper(
        governed, "put_if_absent", ending.format(next=following), lambda: governed.move(new, delete_source=True)
    )
    with pytest.raises(ProjectMoved, match=str(new.root)):
        change(late)
    assert_moved(governed, new, before)


def test_who_sleeps_until_the_source_is_deleted_sets_no_first_pin(
    registry: Registry, mirror: GovernanceStore, tmp_path: Path, new: Location
) -> None:
    governed = Governed.begin(registry, mirror, Location.parse(str(tmp_path / "old")), Opener())
    governed.at(governed.home).table("flights").write(numbered(3))
    late = sleeper(governed, "put_if_match", PINS_KEY, lambda: governed.move(new, delete_source=True))
    with pytest.raises(ProjectMoved):
        late.pin("filed", "flights")
    assert governed.at(new).pins() == {}


def test_a_tag_moves_with_the_project_and_reads_the_same_there(governed: Governed, new: Location) -> None:
    here = governed.by_developer()
    made, rows = here.tag("x"), here.table("flights").read()
    governed.move(new, delete_source=True)
    there = governed.by_developer()
    assert there.tags() == {"x": made}
    there.table("flights").write(numbered(77))
    assert there.table("flights").read("tag:x") == rows
    there.drop_tag("x")


def test_who_sleeps_until_the_source_is_deleted_makes_no_tag(governed: Governed, new: Location) -> None:
    before = facts(governed.at(governed.home))
    late = sleeper(governed, "put_if_absent", "tags/x.json", lambda: governed.move(new, delete_source=True))
    with pytest.raises(ProjectMoved):
        late.tag("x")
    assert governed.at(new).tags() == {}
    assert not list(tag_names(governed.at(governed.home).data))
    assert_moved(governed, new, before)


class AskedBefore:
    """Custody that a writer asked before the project left, and asks again if it must."""

    def __init__(self, placement_authority: PlacementAuthority) -> None:
        self._custody, self.is_asked = placement_authority, False

    def check_write(self) -> None:
        if self.is_asked:
            self._custody.check_write()
        self.is_asked = True

    def relocated(self) -> ObjectStore | None:
        return None


@pytest.mark.parametrize("name", ["flights", "new"])
def test_who_began_before_it_left_commits_nothing_while_it_comes_back(
    governed: Governed, new: Location, name: str
) -> None:
    early = governed.by_developer()
    assert early.placement_authority is not None
    governed.move(new, delete_source=True)
    before = facts(governed.at(new))
    late = Project(NAME, early.store, author=WHO, placement_authority=AskedBefore(early.placement_authority))
    waiting = ["fencing"]

    def tell(progress: MigrationProgress) -> None:
        if progress.step in waiting:
            waiting.clear()
            with pytest.raises(ProjectMoved):
                late.table(name).write(numbered(70))

    governed.move(governed.home, progress=tell)
    assert not waiting
    assert_moved(governed, governed.home, before)


def test_a_source_with_the_bytes_of_another_project_is_not_deleted(
    governed: Governed, new: Location, by_hand: Callable[[Callable[[Path], object]], None]
) -> None:
    inner = Location.parse(f"{governed.home.root}/datom/inner")  # by hand: no command allows it
    governed.registry.register("OTHER", Location.parse(f"{governed.home.root}2"), actor=WHO)

    def move(work: Path) -> None:
        for path in (work / "projects/OTHER").iterdir():
            path.write_text(path.read_text().replace(f'"{governed.home.root}2"', f'"{inner.root}"'))

    by_hand(move)
    before = everything(governed, new)[:2]
    for dry_run in (True, False):
        with pytest.raises(RegistryConflict, match="OTHER"):
            governed.move(new, delete_source=True, dry_run=dry_run)
    assert everything(governed, new)[:2] == before


def test_a_source_whose_log_is_not_all_at_the_new_place_is_not_deleted(governed: Governed, new: Location) -> None:
    governed.move(new)
    governed.open(new).delete(
        [f"datom/flights/_delta_log/{governed.at(new).table('flights').state.log_version:020d}.json"]
    )
    before = contents(governed.open(governed.home))
    with pytest.raises(IntegrityError, match="Nothing was deleted"):
        governed.move(new, delete_source=True)
    assert contents(governed.open(governed.home)) == before


def test_it_moves_there_and_back_again(governed: Governed, new: Location) -> None:
    before = facts(governed.at(governed.home))
    governed.move(new, delete_source=True)
    governed.by_developer().table("flights").write(numbered(50))
    after = facts(governed.at(new))
    assert after != before
    governed.move(governed.home)
    assert_moved(governed, governed.home, after)
    assert [p.location for p in governed.mirror.ref(NAME).previous] == [governed.home, new]
    governed.by_developer().table("flights").write(numbered(51))


def test_a_move_that_is_done_is_done_again_without_a_trace(governed: Governed, new: Location, log: Log) -> None:
    first = governed.move(new)
    before, commits = everything(governed, new), log()
    again = governed.move(new)
    assert (again.id, again.objects, again.copied_objects) == (first.id, first.objects, 0)
    assert everything(governed, new) == before
    assert log() == commits


def test_a_dry_run_plans_and_changes_nothing(governed: Governed, new: Location) -> None:
    before = everything(governed, new)
    plan = governed.move(new, dry_run=True)
    assert everything(governed, new) == before
    done = governed.move(new)
    assert (plan.dry_run, plan.id, plan.tables, plan.source, plan.target) == (True, None, 2, governed.home, new)
    # The fence adds a commit to each table, one of which brings a checkpoint and what names it, and rewrites the pins
    # with one byte more.
    assert plan.objects == done.objects - 4
    assert 0 < plan.bytes < done.bytes


def test_progress_tells_every_step_in_order(governed: Governed, new: Location) -> None:
    seen: list[MigrationProgress] = []
    governed.move(new, progress=seen.append, delete_source=True)
    assert list(dict.fromkeys(one.step for one in seen)) == [
        "copying",
        "fencing",
        "finishing the copy",
        "verifying",
        "switching",
        "recording",
        "deleting",
    ]
    counted = [one.copied for one in seen if one.step == "copying" and one.copied]
    assert counted[-1].objects == counted[-1].total_objects == len(counted)


def test_a_project_without_tables_moves(registry: Registry, mirror: GovernanceStore, tmp_path: Path, new: Location):
    governed = Governed.begin(registry, mirror, Location.parse(str(tmp_path / "old")), Opener())
    governed.move(new)
    governed.by_developer().table("t").write(numbered(1))
    assert governed.at(new).tables() == ["t"]


def test_governance_in_the_root_of_the_data_stays(registry: Registry, tmp_path: Path, new: Location) -> None:
    mirror = GovernanceStore(LocalStore(tmp_path / "old"))
    governed = Governed.begin(registry, mirror, Location.parse(str(tmp_path / "old")), Opener())
    fill(governed.at(governed.home))
    before = facts(governed.at(governed.home))
    governed.move(new, delete_source=True)
    assert_moved(governed, new, before)
    assert not [key for key in contents(governed.open(new)) if "projects/" in key]
    governed.move(governed.home)
    assert_moved(governed, governed.home, before)


def test_what_is_no_tables_stays_behind(governed: Governed, new: Location) -> None:
    old = governed.open(governed.home)
    old.put("datom/flights/_staging/write/part", b"of a write that runs")
    old.put("datom/notes.txt", b"of a person")
    governed.move(new)
    assert [key for key in contents(governed.open(new)) if "_staging" in key or "notes" in key] == ["datom/notes.txt"]


def test_bytes_that_are_purged_while_it_copies_do_not_survive(governed: Governed, new: Location) -> None:
    table = governed.at(governed.home).table("flights")
    purged = next(v for v in table.history() if v.identity.nrow == 5)
    opener = hooked(governed, new, "put_file", f"{purged.data_sha}.parquet", lambda: None)
    # Once it is fenced nobody purges, so this comes after the first pass and before the fence.
    opener = hooked(
        governed,
        governed.home,
        "put_if_match",
        MARK_KEY,
        lambda: table.purge([purged.metadata_sha], why="erasure", dry_run=False),
    )
    governed.move(new, open_store=opener)
    assert not [key for key in contents(governed.open(new)) if purged.data_sha in key]
    assert governed.at(new).table("flights").version(purged.metadata_sha).gone


# --- what is refused, before anything is changed


@pytest.mark.parametrize("where", ["old", "old/", "old/inner", "old/datom/x", ".", "link", "link/inner"])
def test_a_target_that_is_the_source_or_around_or_inside_of_it(governed: Governed, tmp_path: Path, where: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "old")
    before = everything(governed, governed.home)
    for dry_run in (True, False):
        with pytest.raises(InvalidInput, match="Nothing was changed"):
            governed.move(Location.parse(str(tmp_path / where)), dry_run=dry_run)
    assert everything(governed, governed.home) == before


@pytest.mark.parametrize("prefix", ["", "study", "study/inner"])
@pytest.mark.slow
def test_an_s3_target_that_is_the_source_or_around_or_inside_of_it(
    registry: Registry, mirror: GovernanceStore, moto_server: S3Server, prefix: str
) -> None:
    bucket = moto_server.new_bucket()
    governed = Governed.begin(
        registry, mirror, moto_server.location(bucket, "study"), Opener({moto_server.endpoint_url: moto_server})
    )
    governed.at(governed.home).table("t").write(numbered(1))
    same = moto_server.location(bucket, prefix).model_copy(update={"region": "eu-west-1"})
    with pytest.raises(InvalidInput, match=r"is where the project is|lies inside of"):
        governed.move(same)
    governed.move(moto_server.location(bucket, "study-2"))


def test_a_target_that_is_inside_of_the_source_by_another_name(
    registry: Registry, mirror: GovernanceStore, moto_server: S3Server, log: Log
) -> None:
    alias = S3Server(
        moto_server.endpoint_url.replace("127.0.0.1", "localhost"), moto_server.access_key, moto_server.secret_key
    )
    bucket = moto_server.new_bucket()
    opener = Opener({one.endpoint_url: one for one in (moto_server, alias)})
    governed = Governed.begin(registry, mirror, moto_server.location(bucket), opener)
    governed.at(governed.home).table("t").write(numbered(1))
    before, commits = contents(opener(governed.home)), log()
    with pytest.raises(InvalidInput, match="by another name"):
        governed.move(alias.location(bucket, "inner"))
    assert (contents(opener(governed.home)), log()) == (before, commits)


@pytest.mark.parametrize("key", ["datom/flights/_delta_log/00000000000000000000.json", "readme.md"])
def test_a_target_that_is_not_empty(governed: Governed, new: Location, key: str) -> None:
    governed.open(new).put(key, b"of somebody")
    before = everything(governed, new)
    for dry_run in (True, False):
        with pytest.raises(InvalidInput, match=r"is not empty.*Nothing was changed"):
            governed.move(new, dry_run=dry_run)
    assert everything(governed, new) == before


@pytest.mark.parametrize("state", ["arriving", "leaving"])
def test_a_target_with_the_mark_of_somebody_else(governed: Governed, new: Location, state: str) -> None:
    elsewhere = Location.parse("/somewhere/else")
    put_mark(
        governed.open(new).subfolder("datom"),
        MigrationMark("theirs", state, elsewhere, elsewhere, "2026-01-01T00:00:00Z"),
    )
    before = everything(governed, new)
    with pytest.raises(InvalidInput, match="is not empty"):
        governed.move(new)
    assert everything(governed, new) == before


@pytest.mark.parametrize("verb", ["put_if_absent", "put_file"])
def test_a_target_that_may_not_be_written(governed: Governed, new: Location, verb: Verb, log: Log) -> None:
    def refuse() -> None:
        raise AccessDenied("403: no permission to write here.")

    before, commits = facts(governed.at(governed.home)), log()
    with pytest.raises(AccessDenied, match="403"):
        governed.move(new, open_store=hooked(governed, new, verb, "", refuse))
    assert_still_there(governed, before)
    # At once where it can be known at once; else it is on its way, and can be called off.
    assert len(log()) == len(commits) + (verb == "put_file")


def test_a_target_that_overwrites_where_it_should_create(governed: Governed, new: Location, log: Log) -> None:
    class Careless(StoreWrapper):
        def put_if_absent(self, key, data):
            return super().put(key, data)

    opener = Opener(around=lambda location, store: Careless(store) if location == new else store)
    commits = log()
    with pytest.raises(InvalidInput, match="If-None-Match"):
        governed.move(new, open_store=opener)
    assert contents(governed.open(new)) == {}
    assert log() == commits


def test_a_project_that_is_not_registered(governed: Governed, new: Location) -> None:
    with pytest.raises(GovernanceError, match="OTHER"):
        migrate_module.migrate(governed.registry, governed.mirror, "OTHER", new)


def test_the_place_of_another_project(governed: Governed, new: Location) -> None:
    governed.registry.register("OTHER", new, actor=WHO)
    before = everything(governed, new)
    for dry_run in (True, False):
        with pytest.raises(RegistryConflict, match="OTHER"):
            governed.move(new, dry_run=dry_run)
    assert everything(governed, new)[:2] == before[:2]


# --- what changes while it copies


@pytest.mark.parametrize("verb", ["put_file", "get"])
def test_an_object_that_changes_while_it_is_copied_arrives_as_it_is_in_the_end(
    governed: Governed, new: Location, verb: Verb
) -> None:
    old = governed.open(governed.home)
    old.put("datom/notes.txt", b"before" if verb == "get" else b"1" * 9 * 1024**2)
    end = governed.home if verb == "get" else new
    opener = hooked(governed, end, verb, "notes.txt", lambda: old.put("datom/notes.txt", b"after!"))
    governed.move(new, open_store=opener)
    assert governed.open(new).get("datom/notes.txt") == b"after!"


def test_an_object_that_vanishes_while_it_is_copied_is_not_there_in_the_end(governed: Governed, new: Location) -> None:
    old = governed.open(governed.home)
    old.put("datom/notes.txt", b"1" * 9 * 1024**2)
    governed.move(
        new, open_store=hooked(governed, new, "put_file", "notes.txt", lambda: old.delete(["datom/notes.txt"]))
    )
    assert "datom/notes.txt" not in contents(governed.open(new))


def test_a_part_that_vanished_from_the_source_is_found_by_reading_contents(governed: Governed, new: Location) -> None:
    part = next(key for key in contents(governed.open(governed.home)) if key.endswith(".parquet"))
    governed.open(governed.home).delete([part])
    with pytest.raises(IntegrityError, match=r"missing.*structural"):
        governed.move(new, verify="content")
    assert governed.mirror.ref(NAME).current == governed.home


def test_a_part_that_arrived_broken_is_found_by_reading_contents(governed: Governed, new: Location) -> None:
    class Lossy(StoreWrapper):
        def put_file(self, key: str, path: Path):
            made = super().put_file(key, path)
            if key.endswith(".parquet"):
                self.local_path(key).write_bytes(b"x" * made.size)
            return made

    opener = Opener(around=lambda location, store: Lossy(store) if location == new else store)
    with pytest.raises(IntegrityError, match="SHA-256"):
        governed.move(new, verify="content", open_store=opener)
    assert governed.mirror.ref(NAME).current == governed.home
    abort(governed.registry, governed.mirror, NAME)
    governed.move(new, verify="content")


def test_somebody_who_never_stops_changing_documents(governed: Governed, new: Location) -> None:
    old, count = governed.open(governed.home), iter(range(10**6))

    class Restless(StoreWrapper):
        def _around(self, verb, key, size, action):
            if verb == "list" and key == "datom/":
                old.put("datom/notes.txt", b"%d" % next(count))
            return action()

    opener = Opener(around=lambda location, store: Restless(store) if location == new else store)
    with pytest.raises(GovernanceError, match="keeps changing"):
        governed.move(new, open_store=opener)
    assert governed.mirror.ref(NAME).current == governed.home


def test_a_clock_that_jumps_changes_nothing_but_times(
    governed: Governed, new: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = facts(governed.at(governed.home))
    jumps = iter([timedelta(days=400), timedelta(days=-900)] * 20)
    monkeypatch.setattr(migrate_module, "now", lambda: datetime(2026, 8, 15, tzinfo=UTC) + next(jumps))
    governed.move(new)
    assert_moved(governed, new, before)
    third = Location.parse(str(tmp_path / "third"))
    governed.move(third)
    assert_moved(governed, third, before)
    assert [p.location for p in governed.mirror.ref(NAME).previous] == [governed.home, new]


# --- two at once


def test_two_developers_who_move_it_to_two_places(governed: Governed, other: Registry, tmp_path: Path) -> None:
    before = facts(governed.at(governed.home))
    places = [Location.parse(str(tmp_path / name)) for name in ("b", "c")]
    gate = threading.Barrier(2)

    def attempt(registry: Registry, target: Location) -> str:
        gate.wait()
        try:
            migrate_module.migrate(registry, governed.mirror, NAME, target, actor=WHO)
        except (RegistryConflict, InvalidInput) as error:
            return str(error)
        return "moved"

    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(attempt, [governed.registry, other], places))
    assert said.count("moved") >= 1
    # One after the other, they may both succeed: then the second has moved it on.
    now = governed.mirror.ref(NAME).current
    assert now in places
    assert_moved(governed, now, before)


def test_two_developers_who_move_it_to_one_place(governed: Governed, other: Registry, new: Location, log: Log) -> None:
    before = facts(governed.at(governed.home))
    gate = threading.Barrier(2)

    def attempt(registry: Registry) -> str:
        gate.wait()
        try:
            migrate_module.migrate(registry, governed.mirror, NAME, new, actor=WHO)
        except RegistryConflict as error:
            return str(error)
        except InvalidInput as error:
            # Who asked the registry before the other had begun, and looks at the place after it, finds it taken.
            if "is not empty" not in str(error):
                raise
            return str(error)
        return "moved"

    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(attempt, [governed.registry, other]))
    assert "moved" in said
    assert_moved(governed, new, before)
    assert len([subject for subject in log() if subject.startswith("Migrat")]) == 2


@pytest.mark.every(5)
@pytest.mark.parametrize(
    ("where", "verb", "ending"),
    [
        ("new", "put_if_match", MARK_KEY),
        ("new", "put_file", ".parquet"),
        ("old", "put_if_match", MARK_KEY),
        ("old", "put_if_absent", ".json"),
        ("new", "put_if_match", "pins.json"),
    ],
)
def test_another_run_that_finishes_it_at_any_moment(
    governed: Governed, other: Registry, new: Location, where: str, verb: Verb, ending: str, log: Log
) -> None:
    before = facts(governed.at(governed.home))

    def finish() -> None:
        migrate_module.migrate(other, governed.mirror, NAME, new, actor=WHO)
        governed.at(new).pin("later", "flights")

    end = {"new": new, "old": governed.home}[where]
    governed.move(new, open_store=hooked(governed, end, verb, ending, finish))
    # What was done at the new place meanwhile is not undone by the one that came late.
    assert set(governed.at(new).pins()) == {"filed", "later"}
    governed.at(new).unpin("later")
    assert_moved(governed, new, before)
    assert len([subject for subject in log() if subject.startswith("Migrat")]) == 2


def test_another_target_while_it_is_being_moved(governed: Governed, new: Location, tmp_path: Path) -> None:
    stopped(governed, new, 30)
    with pytest.raises(RegistryConflict, match="is being moved to"):
        governed.move(Location.parse(str(tmp_path / "third")))
    governed.move(new)


# --- calling it off


def stopped(governed: Governed, new: Location, call: int) -> None:
    """A migration that ended with an error at a call of the target's store."""
    opener = Opener(around=lambda at, store: FaultStore(store, AtCall(call, Fault.BEFORE)) if at == new else store)
    with pytest.raises(StorageError, match="injected"):
        governed.move(new, open_store=opener, threads=1)


def behind_fence(governed: Governed, new: Location) -> None:
    """A migration that ended with an error at the verification."""

    def stop(call: Call) -> Fault | None:
        raise StoreUnavailable("injected")

    def tell(progress: MigrationProgress) -> None:
        if progress.step == "verifying":
            stop(Call(0, "get", ""))

    with pytest.raises(StoreUnavailable, match="injected"):
        governed.move(new, progress=tell)


def test_a_move_that_failed_goes_on_where_it_was(governed: Governed, new: Location, log: Log) -> None:
    before = facts(governed.at(governed.home))
    stopped(governed, new, 30)
    done = len(contents(governed.open(new)))
    assert done > 10
    report = governed.move(new, actor="Grace <grace@example.org>")
    assert report.copied_objects < report.objects
    assert_moved(governed, new, before)
    assert governed.mirror.documents(NAME).history.events[-1].actor == WHO  # who prepared it
    assert len([subject for subject in log() if subject.startswith("Migrat")]) == 2


@pytest.mark.every(4)
@pytest.mark.parametrize("stage", [2, 6, 30, "fenced"])
def test_a_move_that_failed_can_be_called_off(governed: Governed, new: Location, stage: int | str, log: Log) -> None:
    before = facts(governed.at(governed.home))
    if stage == "fenced":
        behind_fence(governed, new)
        with pytest.raises(ProjectMoved):
            governed.by_developer().table("flights").write(numbered(66))
    else:
        stopped(governed, new, int(stage))
    if not any(subject.startswith("Migration prepared") for subject in log()):
        with pytest.raises(GovernanceError, match="No migration"):
            abort(governed.registry, governed.mirror, NAME)
        assert_still_there(governed, before)
        return
    report = abort(governed.registry, governed.mirror, NAME)
    assert contents(governed.open(new)) == {}
    assert log()[-1].startswith("Migration aborted")
    assert governed.mirror.status(governed.registry, [NAME]) == []
    with pytest.raises(GovernanceError, match="No migration"):
        abort(governed.registry, governed.mirror, NAME)
    assert_still_there(governed, before)
    assert report.source == governed.home
    after = facts(governed.at(governed.home))
    governed.move(new)
    assert_moved(governed, new, after)


def test_a_move_that_has_switched_cannot_be_called_off(governed: Governed, new: Location) -> None:
    def tell(progress: MigrationProgress) -> None:
        if progress.step == "recording":
            raise StoreUnavailable("injected")

    with pytest.raises(StoreUnavailable, match="injected"):
        governed.move(new, progress=tell)
    before = facts(governed.at(new))
    with pytest.raises(RegistryConflict, match="has switched"):
        abort(governed.registry, governed.mirror, NAME)
    governed.move(new)
    assert_moved(governed, new, before)


@pytest.mark.every(5)
@pytest.mark.parametrize("step", ["copying", "fencing", "finishing the copy", "verifying", "switching"])
def test_a_move_that_is_called_off_while_it_runs_ends_without_switching(
    governed: Governed, other: Registry, new: Location, step: str
) -> None:
    before = facts(governed.at(governed.home))
    waiting = [step]

    def tell(progress: MigrationProgress) -> None:
        if progress.step in waiting:
            waiting.clear()
            abort(other, governed.mirror, NAME)

    with pytest.raises(RegistryConflict):
        governed.move(new, progress=tell)
    assert contents(governed.open(new)) == {}
    assert_still_there(governed, before)


@pytest.mark.every(2)
@pytest.mark.parametrize("step", ["fencing", "switching"])
def test_a_run_that_wakes_up_when_the_project_has_been_elsewhere_and_is_back_changes_nothing(
    governed: Governed, other: Registry, new: Location, tmp_path: Path, step: str
) -> None:
    before = facts(governed.at(governed.home))
    third, waiting = Location.parse(str(tmp_path / "third")), [step]

    def tell(progress: MigrationProgress) -> None:
        if progress.step in waiting:
            waiting.clear()
            abort(other, governed.mirror, NAME)
            governed.move(third, delete_source=True)
            governed.move(governed.home)

    with pytest.raises(RegistryConflict, match="called off"):
        governed.move(new, progress=tell)
    assert contents(governed.open(new)) == {}
    assert_still_there(governed, before)


def test_a_run_that_was_called_off_soon_stops_copying(
    governed: Governed, other: Registry, new: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate_module, "_ASK_AGAIN", -1.0)
    told = 0

    def tell(progress: MigrationProgress) -> None:
        nonlocal told
        told += 1
        if told == 1:
            abort(other, governed.mirror, NAME)

    with pytest.raises(RegistryConflict, match="called off"):
        governed.move(new, progress=tell)
    assert told == 1
    assert contents(governed.open(new)) == {}


def test_a_run_that_was_called_off_deletes_nothing_of_who_came_after_it(
    governed: Governed, other: Registry, new: Location
) -> None:
    waiting = ["fencing"]
    before: dict[str, str] = {}

    def tell(progress: MigrationProgress) -> None:
        if progress.step in waiting:
            waiting.clear()
            abort(other, governed.mirror, NAME)
            enroll(other, governed.mirror, "OTHER", new, actor=WHO)
            fill_a_little(Project("OTHER", governed.open(new)))
            before.update(contents(governed.open(new)))

    with pytest.raises(RegistryConflict, match="called off"):
        governed.move(new, progress=tell)
    assert before
    assert contents(governed.open(new)) == before


def test_a_fence_that_went_up_after_it_was_called_off_comes_down(governed: Governed, new: Location) -> None:
    before = facts(governed.at(governed.home))
    opener = hooked(
        governed, governed.home, "put_if_match", MARK_KEY, lambda: abort(governed.registry, governed.mirror, NAME)
    )
    with pytest.raises(RegistryConflict, match="called off"):
        governed.move(new, open_store=opener)
    assert read_mark(governed.open(governed.home).subfolder("datom")) is None
    assert contents(governed.open(new)) == {}
    assert_still_there(governed, before)
