"""A migration ends every log at the old place, and nobody commits there any more."""

import shutil
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_versioned.errors import GovernanceError, ProjectMoved
from dagster_versioned.governance.fence import is_moved_with, lift_fence, raise_fence
from dagster_versioned.projects.project import Project
from dagster_versioned.storage.local import LocalStore
from dagster_versioned.storage.location import Location
from dagster_versioned.storage.wrappers import CountingStore, Verb
from dagster_versioned.tables.pins import PINS_KEY
from dagster_versioned.tables.relocation.migration_mark import MARK_KEY, MigrationMark, clear_mark, put_mark, read_mark
from support.hooked_store import HookedStore
from support.readers import assert_same
from support.stores import contents

OLD, NEW = pa.table({"n": [1, 2]}), pa.table({"n": [1, 2, 3]})


def mark(old: Path, new: Path, *, arriving: bool = False, name: str = "m-1") -> MigrationMark:
    places = (Location.parse(str(old)), Location.parse(str(new)))
    return MigrationMark(name, "arriving" if arriving else "leaving", *places, "2026-01-01T00:00:00Z")


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return tmp_path / "old"


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return tmp_path / "new"


def project(root: Path) -> Project:
    return Project("P", LocalStore(root))


def copied(old: Path, new: Path) -> Project:
    """The project at the new place, as a migration copies it."""
    belongs = is_moved_with(project(old))
    for path in sorted((old / "datom").rglob("*")):
        key = path.relative_to(old / "datom").as_posix()
        if path.is_file() and belongs(key):
            target = new / "datom" / key
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    return project(new)


class Governed:
    """Somebody who knows where the bytes are."""

    def __init__(self, here: Path, now: Path) -> None:
        self.here, self.now = here, now

    def check_write(self) -> None:
        if self.here != self.now:
            raise ProjectMoved(f"not here: {self.now}")

    def relocated(self) -> LocalStore | None:
        return None if self.here == self.now else LocalStore(self.now)


def hooked(root: Path, verb: Verb, ending: str, hook: Callable[[], object]) -> Project:
    return Project("P", HookedStore(LocalStore(root), verb, ending, hook))


def test_who_is_about_to_commit_when_the_fence_goes_up_commits_nothing(old, new):
    project(old).table("t").write(OLD)
    late = hooked(old, "put_if_absent", "00000001.json", lambda: raise_fence(project(old), mark(old, new)))
    with pytest.raises(ProjectMoved, match=str(new)):
        late.table("t").write(NEW)
    table = project(old).table("t")
    assert [version.operation for version in table.history()] == ["WRITE"]
    assert table.state.log_version == 1
    assert not list(old.glob("datom/t/_staging/**/*.parquet"))
    assert_same(table.read(), OLD)


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p.table("t").revert(1, hold=True, why="w"),
        lambda p: p.table("new").write(OLD),
        lambda p: p.unpin("kept"),
    ],
    ids=["hold", "create", "unpin"],
)
def test_nothing_is_changed_at_a_place_that_was_left(old, new, change):
    before = project(old)
    before.table("t").write(OLD)
    before.table("t").write(pa.table({"n": [7]}))
    before.pin("kept", "t", "@1")
    raise_fence(project(old), mark(old, new))
    kept = contents(LocalStore(old))
    with pytest.raises(ProjectMoved):
        change(project(old))
    now = contents(LocalStore(old))
    assert {key for key in now if key not in kept and "/heads/" not in key and not key.endswith(".parquet")} == set()
    assert all(now[key] == sha for key, sha in kept.items())


def test_a_lifted_fence_lets_everybody_go_on(old, new):
    table = project(old).table("t")
    table.write(OLD)
    raise_fence(project(old), mark(old, new))
    raise_fence(project(old), mark(old, new))
    lift_fence(project(old), "m-1")
    lift_fence(project(old), "m-1")
    assert table.write(NEW).version.log_version == 3
    project(old).table("another").write(OLD)
    project(old).pin("p", "t")
    table.verify().require_ok()


def test_a_lift_that_died_after_its_first_step_lifts_too(old, new):
    project(old).table("t").write(OLD)
    raise_fence(project(old), mark(old, new))
    assert clear_mark(project(old).data, "m-1")
    assert project(old).table("t").write(NEW).change == "full"


def test_a_creator_that_announced_before_the_fence_and_commits_after_it_creates_nothing(old, new):
    project(old).table("t").write(OLD)
    late = hooked(old, "put_if_absent", "0" * 20 + ".json", lambda: raise_fence(project(old), mark(old, new)))
    with pytest.raises(ProjectMoved):
        late.table("late").write(NEW)
    there = copied(old, new)
    assert there.tables() == ["t"]
    assert [info.key for info in there.data.list() if "late" in info.key] == []
    lift_fence(project(old), "m-1")
    assert project(old).table("late").write(NEW).version.log_version == 2
    assert_same(project(old).table("late").read(), NEW)
    project(old).table("late").verify().require_ok()


def test_a_creator_that_comes_after_the_fence_leaves_no_log(old, new):
    project(old).table("t").write(OLD)
    raise_fence(project(old), mark(old, new))
    with pytest.raises(ProjectMoved):
        project(old).table("late").write(NEW)
    assert not (old / "datom/late/_delta_log").exists()


def test_a_pin_that_was_about_to_be_set_when_the_fence_went_up_is_not_set(old, new):
    project(old).table("t").write(OLD)
    late = hooked(old, "put_if_match", PINS_KEY, lambda: raise_fence(project(old), mark(old, new)))
    with pytest.raises(ProjectMoved):
        late.pin("late", "t")
    assert project(old).pins() == {}


def test_the_fence_waits_for_a_collection_that_is_deleting(old, new):
    table = project(old).table("t")
    for n in range(3):
        table.write(pa.table({"n": [n]}))
    fence = threading.Thread(target=lambda: raise_fence(project(old), mark(old, new)))

    def meanwhile() -> None:
        fence.start()
        fence.join(1)
        assert fence.is_alive()
        assert [r.operation for r in project(old).table("t").state.history.records][-1] == "EXPIRE"

    collecting = hooked(old, "delete", ".parquet", meanwhile)
    collecting.table("t").expire(keep_last=1, dry_run=False)
    fence.join(120)
    assert not fence.is_alive()
    assert [r.operation for r in project(old).table("t").state.history.records][-3:] == ["EXPIRE", "EXPIRE", "MOVE"]


class TestAtTheNewPlace:
    def test_everything_is_there_and_goes_on(self, old, new):
        table = project(old).table("t")
        first = table.write(OLD).version
        second = table.write(NEW).version
        project(old).pin("audit", "t", "@0")
        raise_fence(project(old), mark(old, new))
        there = copied(old, new)
        moved = there.table("t")
        assert [v.metadata_sha for v in moved.history()] == [second.metadata_sha, first.metadata_sha]
        assert_same(moved.read(first.metadata_sha), OLD)
        assert_same(moved.read("pin:audit"), OLD)
        assert moved.write(NEW).change == "none"
        assert moved.write(pa.table({"n": [9]})).version.log_version == 3
        there.table("another").write(OLD)
        there.pin("later", "t")
        moved.expire(keep_last=1, dry_run=False)
        moved.vacuum(min_age=timedelta(0), dry_run=False)
        moved.resolve()
        moved.verify().require_ok()

    def test_documents_rebuilt_after_a_move_are_byte_equal(self, old, new):
        table = project(old).table("t")
        table.write(OLD)
        raise_fence(project(old), mark(old, new))
        there = copied(old, new)
        there.table("t").resolve()
        before = contents(there.store)
        for path in (new / "datom/t/.metadata").glob("*.json"):
            path.unlink()
        (new / "datom/.metadata/heads/t.json").unlink()
        there.table("t").repair()
        assert contents(there.store) == before

    def test_until_it_has_arrived_only_governance_may_write(self, old, new):
        project(old).table("t").write(OLD)
        raise_fence(project(old), mark(old, new))
        put_mark(project(new).data, mark(old, new, arriving=True))
        copied(old, new)
        for use in (lambda p: p.table("t").write(NEW), lambda p: p.table("new").write(NEW), lambda p: p.pin("p", "t")):
            with pytest.raises(ProjectMoved, match="not finished arriving"):
                use(project(new))
        governed = Project("P", LocalStore(new), placement_authority=Governed(new, new))
        governed.table("t").write(NEW)
        governed.table("new").write(NEW)
        governed.pin("p", "t")

    def test_there_and_back_again(self, old, new):
        project(old).table("t").write(OLD)
        raise_fence(project(old), mark(old, new))
        copied(old, new).table("t").write(NEW)
        raise_fence(project(new), mark(new, old, name="m-2"))
        put_mark(project(old).data, mark(new, old, name="m-2", arriving=True))
        copied(new, old)
        clear_mark(project(old).data, "m-2")
        back = project(old).table("t")
        assert back.write(pa.table({"n": [5]})).version.log_version == 4
        with pytest.raises(ProjectMoved):
            project(new).table("t").write(OLD)
        back.verify().require_ok()


class TestStaleReaders:
    @pytest.fixture
    def moved(self, old, new):
        project(old).table("t").write(OLD)
        raise_fence(project(old), mark(old, new))
        copied(old, new).table("t").write(NEW)
        return Project("P", LocalStore(old), placement_authority=Governed(old, new))

    def test_a_governed_reader_reads_on_at_the_new_place_and_is_told(self, moved, caplog):
        table = moved.table("t")
        assert_same(table.read(), NEW)
        assert "is not at" in caplog.text
        assert len(table.history()) == 2
        assert table.verify().ok
        assert moved.table("t").resolve().head.log_version == 2

    def test_where_the_old_place_was_emptied_too(self, moved, old, caplog):
        shutil.rmtree(old)
        assert_same(moved.table("t").read(), NEW)
        assert moved.table("t").head().head is not None

    def test_but_does_not_write_there(self, moved, new):
        table = moved.table("t")
        assert_same(table.read(), NEW)
        with pytest.raises(ProjectMoved, match="not here"):
            table.write(OLD)

    def test_somebody_without_governance_is_told_once_and_reads_what_is_here(self, moved, old, caplog):
        table = project(old).table("t")
        assert_same(table.read(), OLD)
        assert_same(table.read(), OLD)
        assert caplog.text.count("was moved") == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p.table("new").write(NEW),
        lambda p: p.unpin("p"),
    ],
    ids=["create", "unpin"],
)
def test_governance_is_asked_before_anything_is_written(old, new, change):
    project(old).table("t").write(OLD)
    project(old).table("t").write(NEW)
    counting = CountingStore(LocalStore(old))
    governed = Project("P", counting, placement_authority=Governed(old, new))
    before = contents(LocalStore(old))
    with pytest.raises(ProjectMoved, match="not here"):
        change(governed)
    assert contents(LocalStore(old)) == before
    assert counting.bytes_written == 0


def test_a_mark_that_cannot_be_read_stops_who_creates_a_table(old):
    (old / "datom/.metadata").mkdir(parents=True)
    (old / f"datom/{MARK_KEY}").write_bytes(b'{"state": "gone"}')
    with pytest.raises(GovernanceError, match=r"migration\.json"):
        project(old).table("t").write(OLD)


def test_a_second_migration_does_not_arrive_where_one_is_arriving(old, new):
    data = project(new).data
    put_mark(data, mark(old, new, arriving=True))
    put_mark(data, mark(old, new, arriving=True))
    with pytest.raises(GovernanceError, match="m-1"):
        put_mark(data, mark(old, new, arriving=True, name="m-2"))
    with pytest.raises(GovernanceError, match="m-1"):
        put_mark(data, mark(old, new))
    assert read_mark(data) == mark(old, new, arriving=True)
    assert not clear_mark(data, "m-2")
