"""Environments: the tables of a project at one moment go on elsewhere, and production's bytes stay what they are."""

import threading
from datetime import timedelta
from pathlib import Path

import orjson
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_versioned.branches.environments import create_environment, drop_environment, size_of, written_in
from dagster_versioned.errors import (
    AccessDenied,
    CommitConflict,
    EnvironmentNotFound,
    ExpiredVersion,
    IntegrityError,
    InvalidInput,
    InvalidName,
    ProjectMoved,
    TableNotFound,
)
from dagster_versioned.odf.event_table import EventTable
from dagster_versioned.odf.sharing.remote import dataset_of
from dagster_versioned.odf.verification.verify import verify as verify_dataset
from dagster_versioned.projects.moment import heads_at_one_moment
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import LocalStore
from dagster_versioned.storage.location import Location
from dagster_versioned.storage.wrappers import StoreWrapper
from dagster_versioned.tables.environment.fork import Fork
from dagster_versioned.tables.environment.registry import environments_of, names_of
from dagster_versioned.tables.event_history import EventHistory, UpsertMerge
from dagster_versioned.tables.relocation.migration_mark import MigrationMark, clear_mark, put_mark
from support.chain import forked, numbers, rows
from support.hooked_store import HookedStore
from support.s3_server import S3Server
from support.stores import contents, left_of_environments

KEY = "environments/forks/pr-1.json"
WRITES = ("put", "put_file", "put_chunks", "put_if_absent", "put_if_match", "copy", "delete", "abort")


class ReadOnlyBase(StoreWrapper):
    """What somebody may do who may write below ``environments/`` alone."""

    def _around(self, verb, key, size, action):
        if verb in WRITES and key and not key.startswith("environments/"):
            raise AccessDenied(f"{verb} {key}: not permitted")
        return action()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project.open("NYC", str(tmp_path / "lake"))
    for n in range(7):
        made.table("numbers").write(rows(n))
    made.table("others").write(rows(70))
    return made


@pytest.fixture
def branch(project: Project) -> Project:
    create_environment(project, "pr-1", by="Ada")
    return project.in_environment("pr-1")


def production(project: Project) -> dict[str, str]:
    return contents(project.data)


class TestReading:
    def test_it_is_production_at_the_fork(self, project, branch):
        project.table("numbers").write(rows(99))
        project.table("later").write(rows(1))
        assert branch.tables() == ["numbers", "others"]
        assert numbers(branch) == [6]
        assert numbers(branch, version="@2") == [2]
        assert len(branch.table("numbers").history()) == 7
        assert branch.table("numbers").head().log_version == 6
        assert not branch.table("numbers").verify().findings
        with pytest.raises(TableNotFound):
            branch.table("later").read()

    def test_reading_and_making_it_write_nothing_to_production(self, project):
        before = production(project)
        create_environment(project, "pr-1")
        numbers(project.in_environment("pr-1"))
        assert production(project) == before
        assert list(names_of(project.store)) == ["pr-1"]
        assert size_of(project, "pr-1") == 0

    def test_pins_are_those_of_the_fork(self, project):
        project.pin("audit", "numbers", "@3")
        branch = forked(project)
        project.unpin("audit")
        assert numbers(branch, version="pin:audit") == [3]

    def test_a_commit_in_flight_is_looked_up_in_the_log(self, project, tmp_path):
        """A writer that dies between its commit and its head leaves a mark, and the fork has the commit."""
        store = HookedStore(LocalStore(tmp_path / "lake"), "put_if_match", "heads/numbers.json", lambda: None)
        table = Project("NYC", store).table("numbers")
        table.operations.publisher.publish = lambda *_: None
        table.write(rows(8))
        assert project.table("numbers").head().pending is not None
        branch = forked(project)
        assert numbers(branch) == [8]
        assert branch.table("numbers").head().log_version == 7
        assert branch.table("numbers").head().pending is None

    def test_listings_are_in_the_order_of_keys(self, project):
        """A space sorts before a slash, so the files of "a b" stand before those of "a"."""
        for name in ("a", "a b", "a-b", "aB"):
            project.table(name).write(rows(1))
        branch = forked(project)
        branch.table("a").write(rows(2))
        found = [info.key for info in branch.data.list()]
        assert found == sorted(found)
        assert sum(key.endswith(".json") and "_delta_log" in key for key in found) == 7 + 1 + 4 + 1


class TestWriting:
    def test_it_goes_on_and_production_does_not_notice(self, project, branch):
        before = production(project)
        outcome = branch.table("numbers").write(rows(50))
        branch.table("mine").write(rows(51))
        assert outcome.change == "full"
        assert numbers(branch) == [50]
        assert branch.tables() == ["mine", "numbers", "others"]
        assert production(project) == before
        assert numbers(project) == [6]
        assert numbers(Project.open("NYC", project.store.uri, environment="pr-1")) == [50]

    def test_it_needs_no_right_to_write_to_production(self, project, branch, tmp_path):
        confined = Project("NYC", ReadOnlyBase(LocalStore(tmp_path / "lake"))).in_environment("pr-1")
        for n in range(12):
            confined.table("numbers").write(rows(100 + n))
        confined.table("numbers").revert("@3")
        confined.table("numbers").drop(dry_run=False)
        confined.table("numbers").restore()
        confined.table("numbers").vacuum(dry_run=False, min_age=timedelta(0))
        confined.table("numbers").repair()
        assert numbers(confined) == [3]
        assert not confined.table("numbers").verify().findings

    def test_equal_rows_are_the_same_version_as_in_production(self, project, branch):
        here = branch.table("numbers").write(rows(50)).version
        there = project.table("numbers").write(rows(50)).version
        assert (here.metadata_sha, here.data_sha) == (there.metadata_sha, there.data_sha)

    def test_an_unchanged_write_makes_no_version(self, branch):
        assert branch.table("numbers").write(rows(6)).change == "none"
        assert written_in(branch) == []

    def test_partitions_go_on(self, project):
        project.table("daily").write(rows(1), partition="a")
        project.table("daily").write(rows(2), partition="b")
        branch = forked(project)
        branch.table("daily").write(rows(3), partition="b")
        assert branch.table("daily").read(partition="a")["n"].to_pylist() == [1]
        assert branch.table("daily").read(partition="b")["n"].to_pylist() == [3]
        assert project.table("daily").read(partition="b")["n"].to_pylist() == [2]
        assert not branch.table("daily").verify().findings

    def test_writers_of_one_environment_lose_nothing(self, project, branch):
        def write(first: int) -> None:
            mine = project.in_environment("pr-1").table("numbers")
            for n in range(5):
                mine.write(rows(first + n))

        threads = [threading.Thread(target=write, args=(100 * i,)) for i in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(branch.table("numbers").history()) == 7 + 20
        assert not branch.table("numbers").verify().findings

    def test_on_s3(self, s3_server: S3Server):
        project = Project("NYC", s3_server.store(s3_server.new_bucket()))
        project.table("numbers").write(rows(1))
        before = production(project)
        branch = forked(project)
        for n in range(7):
            branch.table("numbers").write(rows(10 + n))
        assert numbers(branch) == [16]
        assert numbers(branch, version="@0") == [1]
        assert not branch.table("numbers").verify().findings
        assert production(project) == before
        assert drop_environment(project, "pr-1") > 0
        assert not left_of_environments(project.store)


class TestWhatProductionKeeps:
    def test_expire_keeps_what_an_environment_began_with(self, project, branch):
        project.table("numbers").write(rows(98))
        project.table("numbers").write(rows(99))
        report = project.table("numbers").expire(keep_last=1, dry_run=False)
        assert [reason for reason in report.kept.values() if "environment 'pr-1'" in reason]
        assert numbers(branch) == [6]
        drop_environment(project, "pr-1")
        project.table("numbers").expire(keep_last=1, dry_run=False)
        with pytest.raises(ExpiredVersion):
            numbers(project, version="@6")

    def test_purge_names_the_environment(self, project, branch):
        project.table("numbers").write(rows(99))
        with pytest.raises(InvalidInput, match=r"the environment 'pr-1' began with.*Drop that environment first"):
            project.table("numbers").purge(["@6"], why="erasure request 12", dry_run=False)
        drop_environment(project, "pr-1")
        assert project.table("numbers").purge(["@6"], why="erasure request 12", dry_run=False).keys

    def test_an_older_version_that_is_current_again_is_own(self, project, branch):
        """Production keeps what the environment began with, and may expire everything else."""
        branch.table("numbers").revert("@2")
        branch.table("others").write(rows(71))
        project.table("numbers").write(rows(99))
        project.table("numbers").expire(keep_last=1, dry_run=False)
        assert numbers(branch) == [2]

    def test_purge_leaves_no_copy_in_an_environment(self, project, branch):
        branch.table("numbers").revert("@2")
        with pytest.raises(InvalidInput, match="'pr-1' has a copy of the bytes"):
            project.table("numbers").purge(["@2"], why="erasure request 12", dry_run=False)
        assert numbers(branch) == [2]

    def test_a_table_that_is_renamed_is_read_on_under_the_name_that_it_had(self, project, branch):
        project.table("numbers").rename("digits", dry_run=False)
        key = "environments/forks/pr-1.json"
        for document in (project.store.get(key)[:-1], project.store.get(key)):  # one that cannot be read names it too
            project.store.put(key, document)
            project.table("digits").vacuum(dry_run=False, min_age=timedelta(seconds=-1))
        assert numbers(branch) == [6]
        branch.table("numbers").write(rows(50))
        assert numbers(branch) == [50]
        project.table("digits").write(rows(99))
        with pytest.raises(InvalidInput, match="'pr-1' reads the table as numbers"):
            project.table("digits").purge(["@2"], why="erasure request 12", dry_run=False)
        assert numbers(branch, version="@2") == [2]
        drop_environment(project, "pr-1")
        project.table("digits").purge(["@2"], why="erasure request 12", dry_run=False)
        with pytest.raises(ExpiredVersion):
            numbers(project, "digits", version="@2")

    @pytest.mark.parametrize("name", ["pr-1", "No Name", "x" * 100])
    def test_one_that_cannot_be_read_stops_nothing_and_is_named(self, project, name):
        key = f"environments/forks/{name}.json"
        project.store.put(key, b"{}")
        project.table("numbers").write(rows(99))
        assert project.table("numbers").expire(keep_last=1, dry_run=False).unreadable == (key,)
        with pytest.raises(ExpiredVersion):
            numbers(project, version="@6")

    def test_of_one_that_cannot_be_read_what_it_names_is_kept(self, project, branch):
        key = "environments/forks/pr-1.json"
        project.store.put(key, project.store.get(key).replace(b'"generation"', b'"gen"'))
        project.table("numbers").write(rows(99))
        project.table("numbers").expire(keep_last=1, dry_run=False)
        assert numbers(project, version="@6") == [6]


class TestNames:
    @pytest.mark.parametrize("name", ["prod", "main", "master", "base", "default", "none", "production"])
    def test_names_for_production_are_refused(self, project, name):
        with pytest.raises(InvalidName, match="is called 'production'"):
            create_environment(project, name)

    @pytest.mark.parametrize("name", ["", "../x", "a/b", "A", "ä", "-a", "a-", "a b", ".", "x" * 500, "a\0", "a.json"])
    def test_tricks_are_refused(self, project, name):
        before = contents(project.store)
        with pytest.raises(InvalidName, match="no name of an environment"):
            create_environment(project, name)
        with pytest.raises(InvalidName):
            drop_environment(project, name)
        with pytest.raises(InvalidName):
            project.in_environment(name)
        assert contents(project.store) == before

    def test_production_by_its_name(self, project):
        assert numbers(Project.open("NYC", project.store.uri, environment="production")) == [6]

    def test_an_unknown_one_is_not_made(self, project, branch):
        with pytest.raises(EnvironmentNotFound, match=r"no environment 'pr-2'.*There are: pr-1"):
            Project.open("NYC", project.store.uri, environment="pr-2")
        assert list(names_of(project.store)) == ["pr-1"]

    def test_one_of_that_name_stays_as_it_is(self, project, branch):
        branch.table("numbers").write(rows(50))
        with pytest.raises(InvalidInput, match="There is an environment 'pr-1' already"):
            create_environment(project, "pr-1")
        assert numbers(branch) == [50]

    def test_another_projects(self, project, branch):
        with pytest.raises(InvalidInput, match="one of the project 'NYC', not of 'OTHER'"):
            Project("OTHER", project.store).in_environment("pr-1")


class TestDropping:
    def test_nothing_of_it_is_left_and_nothing_else_goes(self, project):
        before = production(project)
        for name in ("pr-1", "pr-10"):
            create_environment(project, name)
            project.in_environment(name).table("numbers").write(rows(50))
        assert drop_environment(project, "pr-1") > 0
        assert numbers(project.in_environment("pr-10")) == [50]
        drop_environment(project, "pr-10")
        assert production(project) == before
        assert left_of_environments(project.store) == []
        assert not list(Path(project.store.uri, "environments/files").iterdir())

    def test_a_writer_that_is_late_commits_nothing(self, project, branch):
        drop_environment(project, "pr-1")
        with pytest.raises(EnvironmentNotFound, match="was dropped since"):
            branch.table("numbers").write(rows(50))
        create_environment(project, "pr-1", by="Grace")
        with pytest.raises(EnvironmentNotFound, match=r"made anew, at .* by Grace"):
            branch.table("numbers").write(rows(50))
        assert numbers(project.in_environment("pr-1")) == [6]

    def test_what_a_crash_left_is_dropped_by_another_try(self, project, branch):
        branch.table("numbers").write(rows(50))
        project.store.delete(["environments/forks/pr-1.json"])
        assert drop_environment(project, "pr-1") > 0
        with pytest.raises(EnvironmentNotFound):
            drop_environment(project, "pr-1")


class TestRefused:
    def test_what_would_change_production_or_makes_no_sense(self, project, branch, tmp_path):
        from dagster_versioned.features.graph import FeatureGraph
        from dagster_versioned.features.snapshots import GraphHistory
        from dagster_versioned.governance.version_mirror import VersionMirror
        from dagster_versioned.odf.sharing.transfer import push

        table = branch.table("numbers")
        before = contents(project.store)
        for attempt in (
            lambda: branch.at(project.store),
            lambda: branch.in_environment("pr-1"),
            lambda: create_environment(branch, "pr-2"),
            lambda: drop_environment(branch, "pr-1"),
            lambda: VersionMirror(branch, None),
            lambda: push(table, LocalStore(tmp_path / "copy")),
            lambda: GraphHistory(branch).push(FeatureGraph([])),
        ):
            with pytest.raises(InvalidInput, match="in the environment pr-1"):
                attempt()
        assert contents(project.store) == before

    def test_a_place_that_a_migration_leaves(self, project):
        place = Location.parse(project.store.uri)
        put_mark(project.data, MigrationMark("m1", "leaving", place, place, "2026-11-24T00:00:00+00:00"))
        with pytest.raises(ProjectMoved):
            create_environment(project, "pr-1")
        assert not list(names_of(project.store))


class TestForgedDocuments:
    @given(st.data())
    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_what_is_no_fork_is_refused_whole(self, project, data):
        if not list(names_of(project.store)):
            create_environment(project, "pr-1")
        raw = orjson.loads(Fork.from_bytes(project.store.get("environments/forks/pr-1.json"), "x").to_bytes())
        places = [raw, raw["tables"], raw["tables"]["numbers"], raw["tables"]["numbers"]["head"]]
        place = data.draw(st.sampled_from(places))
        member = data.draw(st.sampled_from(sorted(place)))
        value = data.draw(st.sampled_from([None, 0, -1, "", "../x", [], {}, {"../x": {}}, "2026-11-24", True, 2**70]))
        place[member] = value
        try:
            forged = orjson.dumps(raw)
        except TypeError:
            return
        try:
            fork = Fork.from_bytes(forged, "environments/forks/pr-1.json")
        except IntegrityError:
            return
        assert "/" not in fork.environment
        assert fork.path == f"environments/files/{fork.environment}/{fork.generation}"
        assert all(name and "/" not in name and ".." not in name for name in fork.tables)

    def test_the_document_of_another_one(self, project, branch):
        project.store.put("environments/forks/pr-2.json", project.store.get("environments/forks/pr-1.json"))
        with pytest.raises(IntegrityError, match="is the document of the environment 'pr-1'"):
            project.in_environment("pr-2")

    @pytest.mark.parametrize("bad", [b"", b"[]", b"{", b"\xff", b'{"environment": "pr-1"}'])
    def test_damage_is_named(self, project, branch, bad):
        project.store.put("environments/forks/pr-1.json", bad)
        with pytest.raises(IntegrityError, match="cannot be read"):
            project.in_environment("pr-1")


class TestOneMoment:
    def test_no_version_without_what_it_was_built_from(self, project, tmp_path):
        """Somebody writes a table and then what is built from it, between the reading of one head and of the other."""

        def write_both() -> None:
            made = project.table("numbers").write(rows(41)).version
            project.table("others").write(rows(42), parents=project.table("numbers").upstream())
            assert made is not None

        store = HookedStore(LocalStore(tmp_path / "lake"), "get", "heads/others.json", write_both)
        heads = heads_at_one_moment(Project("NYC", store))
        others, parents = heads["others"].head, heads["numbers"].head
        assert others is not None
        assert parents is not None
        assert [parent["version"] for parent in others.parents] == [parents.metadata_sha]


STEP = st.tuples(
    st.sampled_from(["write", "write", "branch", "branch", "create", "drop", "expire", "revert"]),
    st.sampled_from(["a", "b", "c"]),
    st.integers(0, 3),
)


@given(st.lists(STEP, max_size=30))
@settings(max_examples=25, deadline=None)
def test_walks_of_production_and_an_environment(tmp_path_factory, steps):
    """Against two dictionaries: production's rows, and those of the environment, which began as a copy."""
    project = Project.open("NYC", str(tmp_path_factory.mktemp("walk")))
    real: dict[str, int] = {}
    forked: dict[str, int] | None = None
    for verb, table, number in steps:
        match verb:
            case "write":
                project.table(table).write(rows(number))
                real[table] = number
            case "create" if forked is None:
                create_environment(project, "pr")
                forked = dict(real)
            case "branch" if forked is not None:
                project.in_environment("pr").table(table).write(rows(10 + number))
                forked[table] = 10 + number
            case "revert" if forked is not None and table in forked:
                branch = project.in_environment("pr")
                oldest = branch.table(table).history()[-1]
                if oldest.gone is None:
                    branch.table(table).revert(f"@{oldest.log_version}")
                    forked[table] = numbers(branch, table)[0]
            case "expire" if table in real:
                project.table(table).expire(keep_last=1, dry_run=False)
            case "drop" if forked is not None:
                drop_environment(project, "pr")
                forked = None
            case _:
                pass
    assert {name: numbers(project, name)[0] for name in project.tables()} == real
    assert not any(project.table(name).verify().findings for name in real)
    if forked is not None:
        branch = project.in_environment("pr")
        assert {name: numbers(branch, name)[0] for name in branch.tables()} == forked


class _InBetween(StoreWrapper):
    """Calls ``hook`` once, right before the call of this number; ``read_at`` is that which read the document."""

    def __init__(self, store, at, hook):
        super().__init__(store)
        self.calls, self.read_at, self._at, self._hook = 0, None, at, hook

    def _around(self, verb, key, size, action):
        self.calls += 1
        if verb == "get" and key == KEY and self.read_at is None:
            self.read_at = self.calls
        if self.calls == self._at:
            self._hook()
        return action()


def made_anew(project: Project) -> None:
    """As another drop, another CI job and a writer do it."""
    drop_environment(project, "pr-1")
    create_environment(project, "pr-1")
    project.in_environment("pr-1").table("t").write(rows(2))


@pytest.mark.parametrize("between", [made_anew, lambda project: drop_environment(project, "pr-1")])
def test_a_drop_takes_what_it_has_seen_and_nothing_that_was_made_since(tmp_path, between):
    """Whatever stands between two of its calls, to the last of them."""
    at, calls, conflicts = 0, 1, 0  # at first, nothing stands between
    while at <= calls:
        project = Project.open("HOUSE", str(tmp_path / str(at)))
        project.table("t").write(rows(0))
        earlier = create_environment(project, "pr-1")
        project.in_environment("pr-1").table("t").write(rows(1))
        store = _InBetween(project.store, at, lambda project=project: between(project))
        try:
            drop_environment(Project("HOUSE", store), "pr-1")
        except CommitConflict:
            conflicts += 1
        except EnvironmentNotFound:
            assert between is not made_anew
        if between is made_anew and store.read_at < at <= store.calls:
            assert numbers(project.in_environment("pr-1"), "t") == [2]
        else:
            assert not left_of_environments(project.store)
        assert list(project.store.list(earlier.path)) == []
        assert numbers(project, "t") == [0]
        at, calls = at + 1, max(calls, store.calls)
    assert calls > 5
    assert conflicts == (between is made_anew)


class _After(StoreWrapper):
    """Calls ``hook`` right after an object is put under a key that ends in ``ending``."""

    def __init__(self, store, ending, hook):
        super().__init__(store)
        self._ending, self._hook = ending, hook

    def _around(self, verb, key, size, action):
        done = action()
        if verb == "put_if_absent" and key.endswith(self._ending):
            self._hook()
        return done


@pytest.mark.parametrize(
    ("create", "drop", "key"),
    [
        (lambda project, by: create_environment(project, "x", by=by), drop_environment, "forks/x.json"),
        (lambda project, by: project.tag("x", by=by), lambda project, name: project.drop_tag(name), "tags/x.json"),
    ],
    ids=["environment", "tag"],
)
@pytest.mark.parametrize("anew", [True, False])
def test_what_comes_too_late_takes_itself_away_and_no_other(tmp_path, create, drop, key, anew):
    """A migration begins before it has looked, and another one was made in its place."""
    project = Project.open("HOUSE", str(tmp_path / "house"))
    project.table("t").write(rows(0))

    def in_its_place():
        if anew:
            drop(project, "x")
            create(project, "Ada")
        put_mark(project.data, mark)

    place = Location.parse(project.store.uri)
    mark = MigrationMark("m1", "leaving", place, place, "2026-11-24T00:00:00+00:00")
    with pytest.raises(ProjectMoved):
        create(Project("HOUSE", _After(project.store, key, in_its_place)), "Grace")
    clear_mark(project.data, mark.id)
    there = {**project.tags(), **{fork.environment: fork for fork in environments_of(project.store)}}
    assert {name: one.by for name, one in there.items()} == ({"x": "Ada"} if anew else {})
    create(project, "Bob") if not anew else drop(project, "x")


def test_two_that_drop_a_tag_leave_the_one_that_is_made_between(tmp_path):
    project = Project.open("HOUSE", str(tmp_path / "house"))
    project.table("t").write(rows(0))
    project.tag("x", by="Ada")

    def made_anew():
        project.drop_tag("x")
        project.tag("x", by="Grace")

    Project("HOUSE", HookedStore(project.store, "put_if_match", "tags/x.json", made_anew)).drop_tag("x")
    assert project.tags()["x"].by == "Grace"


def test_a_chain_is_verified_where_it_was_forked_and_where_it_went_on(tmp_path):
    project = Project.open("NYC", str(tmp_path))

    def history(of):
        return EventTable(of.table("flights"), EventHistory(merge=UpsertMerge(primary_key=("id",))))

    history(project).write(pa.table({"id": [1], "delay": [5]}))
    create_environment(project, "dev")
    history(project).write(pa.table({"id": [2], "delay": [6]}))
    inside = project.in_environment("dev")
    for events in (1, 2):
        assert inside.table("flights").verify().ok
        report = verify_dataset(dataset_of(inside.table("flights")), log=inside.table("flights").state.snapshot)
        assert (report.ok, report.datasets[0].files) == (True, events)
        history(inside).write(pa.table({"id": [3], "delay": [7]}))
