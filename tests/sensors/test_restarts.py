"""No update is lost when the code location is loaded again, whatever writers, stores and governance did before."""

import shutil
from datetime import timedelta

import dagster as dg
import pyarrow as pa
import pytest
from dagster._core.definitions.partitions.mapping.partition_mapping import UpstreamPartitionsResult

from dagster_versioned import Project, ProjectResource, VersionedParquetIOManager, build_version_sensor
from dagster_versioned.errors import AccessDenied
from dagster_versioned.identity.names import TableName
from dagster_versioned.sensors import heads as heads_module
from dagster_versioned.sensors import judgement
from dagster_versioned.sensors.heads import ProjectHeads
from dagster_versioned.storage import LocalStore
from dagster_versioned.storage.wrappers import StoreWrapper
from support.died_writers import die_at

ABC = dg.StaticPartitionsDefinition(["a", "b", "c"])
UP = TableName("up")


def frame(value):
    return pa.table({"n": [value]})


class Place:
    """A project below a folder, and a code location over it that can be loaded again, which knows nothing then."""

    def __init__(self, folder, partitions=None):
        self.folder, self.partitions = str(folder), partitions
        self.project = Project.open("HOUSE", self.folder)
        self.instance = dg.DagsterInstance.ephemeral()
        self.cursor = None
        self.mapping = None
        self.load()

    def load(self):
        @dg.asset(ins={"up": dg.AssetIn(partition_mapping=self.mapping)}, partitions_def=self.partitions)
        def down(up) -> pa.Table:
            raise NotImplementedError

        source = dg.AssetSpec("up", partitions_def=self.partitions)
        self.sensor = build_version_sensor("keep", dg.AssetSelection.assets(down))
        manager = VersionedParquetIOManager(project=ProjectResource(name="HOUSE", location=self.folder))
        self.definitions = dg.Definitions([source, down], sensors=[self.sensor], resources={"io_manager": manager})

    def tick(self):
        context = dg.build_sensor_context(self.instance, cursor=self.cursor, definitions=self.definitions)
        result = self.sensor.evaluate_tick(context)
        self.cursor = result.cursor
        return [request.partition_key for request in result.run_requests]

    def build(self, *keys, above=None):
        """What runs of the target would write."""
        read = self.project.table("up").upstream(partitions=above or keys or None)
        for key in keys or [None]:
            self.project.table("down").write(frame(0), partition=key, parents=[] if keys else read)
        if keys:
            parents = {key: self.project.table("up").upstream(partitions=above or [key]) for key in keys}
            self.project.table("down").write_partitions(dict.fromkeys(keys, frame(0)), parents=parents)

    def die(self, moment, value, **options):
        die_at(moment, self.project, self.folder, lambda project: project.table("up").write(frame(value), **options))


@pytest.fixture
def place(tmp_path):
    made = Place(tmp_path)
    made.project.table("up").write(frame(0))
    made.build()
    assert made.tick() == []
    yield made
    made.instance.dispose()


@pytest.fixture
def parted(tmp_path):
    made = Place(tmp_path, ABC)
    made.project.table("up").write_partitions(dict.fromkeys("abc", frame(0)))
    made.build(*"abc")
    assert made.tick() == []
    yield made
    made.instance.dispose()


@pytest.fixture
def later(monkeypatch):
    """Lets the minute pass that a writer has between its mark and its head."""
    return lambda: monkeypatch.setattr(heads_module, "RESOLVE_AFTER", timedelta(0))


# Marks


def test_a_commit_whose_writer_died_is_found_after_a_tick_while_its_mark_was_young_and_a_restart(place, later):
    place.die("committed", 1)
    assert place.tick() == []  # a minute is given to the writer
    later()
    place.load()
    assert place.tick() == [None]


def test_an_old_mark_that_a_later_writer_uses_again_hides_no_commit(place, later):
    later()
    place.die("marked", 1)
    assert place.tick() == []  # looked up: the log ends before
    before = place.project.data.head(".metadata/heads/up.json").etag
    place.die("committed", 2)
    assert place.project.data.head(".metadata/heads/up.json").etag == before
    place.load()
    assert place.tick() == [None]


def test_a_mark_of_a_writer_whose_clock_is_ahead_is_looked_up_at_once(place, monkeypatch):
    from dagster_versioned.tables.documents import head

    class Ahead(head.datetime):
        @classmethod
        def now(cls, zone=None):
            return super().now(zone) + timedelta(hours=5)

    with monkeypatch.context() as clock:
        clock.setattr(head, "datetime", Ahead)
        place.die("committed", 1)
    assert place.tick() == [None]


def test_partitions_whose_writers_died_are_found_after_a_restart(parted, later):
    parted.die("committed", 1, partition="b")
    assert parted.tick() == []
    later()
    parted.load()
    assert parted.tick() == ["b"]


def test_a_process_that_may_not_write_finds_what_died_writers_committed(tmp_path, later):
    class ReadOnly(StoreWrapper):
        def _around(self, verb, key, size, action):
            if verb not in ("get", "get_range", "head", "list", "folders"):
                raise AccessDenied(f"{key} may be read only")
            return action()

    table = Project.open("HOUSE", str(tmp_path)).table("up")
    table.write_partitions(dict.fromkeys("abcdefgh", frame(0)))
    heads = ProjectHeads(Project("HOUSE", ReadOnly(LocalStore(tmp_path))))
    heads.look(heads.listing(), [UP])
    later()
    project = Project.open("HOUSE", str(tmp_path))
    for number, key in enumerate("abcdefgh"):  # so many commits that stored heads are looked at rather than the log
        die_at("committed", project, str(tmp_path), lambda one, n=number, k=key: commit_unpublished(one, n + 1, k))
    heads.look(heads.listing(), [UP])
    current = Project.open("HOUSE", str(tmp_path)).table("up").partitions()
    found = heads.heads(UP).partitions
    assert {key: head.metadata_sha for key, head in found.items()} == {k: v.metadata_sha for k, v in current.items()}


def commit_unpublished(project, value, key):
    project.table("up").write(frame(value), partition=key)


# What was remembered of a table


class Flaky(StoreWrapper):
    """Raises what a test wants, once, for the next call that it picks."""

    def __init__(self, store):
        super().__init__(store)
        self.shared = {"pick": None, "error": None}

    def next(self, pick, error):
        self.shared.update(pick=pick, error=error)

    def _around(self, verb, key, size, action):
        pick = self.shared["pick"]
        if pick is not None and pick(verb, key):
            self.shared["pick"] = None
            raise self.shared["error"]
        return action()


def seen(heads, name):
    heads.look(heads.listing(), [TableName("first"), TableName("second")])
    found = heads.heads(TableName(name)).partitions
    return {key: head.metadata_sha for key, head in found.items()}


def stored(table):
    return {key: version.metadata_sha for key, version in table.partitions().items()}


def test_partitions_that_could_not_be_read_once_are_read_again_whole(tmp_path):
    store = Flaky(LocalStore(tmp_path))
    table = Project.open("HOUSE", str(tmp_path)).table("first")
    table.write_partitions(dict.fromkeys("abcdefgh", frame(0)))
    heads = ProjectHeads(Project("HOUSE", store))
    assert seen(heads, "first") == stored(table)
    for number in range(10):
        table.write(frame(number + 1), partition="a")
    assert seen(heads, "first") == stored(table)  # by a listing of stored heads, whose ETags are remembered
    table.write(frame(100), partition="b")
    store.next(lambda verb, key: verb == "get" and "_delta_log" in key, AccessDenied("not now"))
    assert seen(heads, "first") == {}
    assert heads.heads(TableName("first")).unreadable is not None
    assert seen(heads, "first") == stored(table)


def test_a_look_that_breaks_off_takes_nothing_for_seen(tmp_path):
    store = Flaky(LocalStore(tmp_path))
    project = Project.open("HOUSE", str(tmp_path))
    tables = [project.table(name) for name in ("first", "second")]
    for table in tables:
        table.write_partitions(dict.fromkeys("ab", frame(0)))
    heads = ProjectHeads(Project("HOUSE", store))
    seen(heads, "first")
    for table in tables:
        table.write(frame(1), partition="a")
    store.next(lambda verb, key: verb == "get" and "_delta_log" in key, MemoryError())
    with pytest.raises(MemoryError):
        seen(heads, "first")
    assert seen(heads, "first") == stored(tables[0])
    assert seen(heads, "second") == stored(tables[1])


class WrittenOnceRead(StoreWrapper):
    """Lets something else happen, once, right after a head was read."""

    def __init__(self, store, then):
        super().__init__(store)
        self.waiting = [then]

    def _around(self, verb, key, size, action):
        found = action()
        if verb == "get" and key.endswith("heads/first.json") and self.waiting:
            self.waiting.pop()()
        return found


def test_a_head_that_is_written_right_after_it_was_read_is_read_again(tmp_path):
    table = Project.open("HOUSE", str(tmp_path)).table("first")
    before = table.write(frame(0)).version.metadata_sha
    store = WrittenOnceRead(LocalStore(tmp_path), lambda: table.write(frame(1)))
    heads = ProjectHeads(Project("HOUSE", store))

    def seen():
        heads.look(heads.listing(), [TableName("first")])
        return heads.heads(TableName("first")).whole.metadata_sha

    assert seen() == before
    assert seen() == table.version().metadata_sha != before


def test_a_tick_that_breaks_off_as_it_judges_loses_no_update(place, monkeypatch):
    place.project.table("up").write(frame(1))

    def fail(*_, **__):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(judgement, "find", fail)
        with pytest.raises(MemoryError):
            place.tick()
    assert place.tick() == [None]


@pytest.mark.parametrize("commits", [1, 2, 3])
def test_a_table_that_was_deleted_and_made_anew_has_no_partitions_of_before(tmp_path, commits):
    project = Project.open("HOUSE", str(tmp_path))
    project.table("first").write_partitions(dict.fromkeys("abc", frame(0)))
    project.table("first").write(frame(1), partition="b")
    heads = ProjectHeads(Project("HOUSE", LocalStore(tmp_path)))
    seen(heads, "first")
    shutil.rmtree(tmp_path / "datom/first")
    (tmp_path / "datom/.metadata/heads/first.json").unlink()
    table = Project.open("HOUSE", str(tmp_path)).table("first")
    for number in range(commits):
        table.write(frame(number + 5), partition="a")
    assert seen(heads, "first") == stored(table)


def test_a_head_that_was_listed_and_is_gone_when_it_is_read_settles_nothing(place):
    store = Flaky(LocalStore(place.folder))
    store.next(lambda verb, key: verb == "get" and key.endswith("heads/up.json"), None)
    from dagster_versioned.errors import ObjectNotFound

    store.shared["error"] = ObjectNotFound("listed, and gone")
    heads = ProjectHeads(Project("HOUSE", store))
    listing = heads.listing()
    look = heads.look(listing, [UP, TableName("down")])
    assert heads.heads(UP).whole is None
    assert not look.is_known
    assert heads.look(heads.listing(), [UP, TableName("down")]).is_known
    assert heads.heads(UP).whole is not None


# What a digest stands for


class Shifted(dg.PartitionMapping):
    """A mapping of somebody's own, which looks the same whatever it does."""

    def __init__(self, by):
        self.by = by

    def __repr__(self):
        return "Shifted()"

    def get_upstream_mapped_partitions_result_for_partitions(
        self, downstream_partitions_subset, downstream_partitions_def, upstream_partitions_def, *_, **__
    ):
        keys = upstream_partitions_def.get_partition_keys()
        wanted = {keys[(keys.index(k) + self.by) % 3] for k in downstream_partitions_subset.get_partition_keys()}
        return UpstreamPartitionsResult(
            partitions_subset=upstream_partitions_def.subset_with_partition_keys(wanted),
            required_but_nonexistent_subset=upstream_partitions_def.empty_subset(),
        )

    def get_downstream_partitions_for_partitions(self, *_, **__):
        raise NotImplementedError

    def validate_partition_mapping(self, *_, **__):
        return

    @property
    def description(self):
        return ""


def test_a_mapping_of_the_users_own_that_does_something_else_now_is_seen_after_a_restart(parted):
    parted.mapping = Shifted(0)
    parted.load()
    assert parted.tick() == []
    parted.mapping = Shifted(1)
    parted.load()
    assert sorted(parted.tick()) == ["a", "b", "c"]


def sensor():
    return build_version_sensor("keep_current", dg.AssetSelection.assets("delays"))


@pytest.mark.parametrize("kind", ["pin", pytest.param("tag", marks=pytest.mark.slow)])
def test_a_pin_or_tag_that_moved_between_two_processes_is_seen_after_a_restart(daemon, kind):
    daemon.write("flights", frame(0))
    daemon.approve(kind)
    daemon.write("flights", frame(1))
    assets = dg.AssetSpec("flights"), daemon.pinned(f"{kind}:approved")
    daemon.deploy(*assets, sensors=[sensor()])
    assert daemon.settle() == [("delays", None)]
    assert daemon.settle() == []
    daemon.disapprove(kind)
    daemon.approve(kind)
    daemon.deploy(*assets, sensors=[sensor()])
    assert daemon.settle() == [("delays", None)]


@pytest.mark.slow
def test_a_partition_that_was_added_between_two_processes_is_seen_after_a_restart(daemon):
    daemon.instance.add_dynamic_partitions("cities", ["rome"])
    daemon.write("flights", frame(0))

    @dg.asset(partitions_def=dg.DynamicPartitionsDefinition(name="cities"))
    def delays(flights) -> pa.Table:
        return flights

    daemon.deploy(dg.AssetSpec("flights"), delays, sensors=[sensor()])
    assert daemon.settle() == [("delays", "rome")]
    assert daemon.settle() == []
    daemon.instance.add_dynamic_partitions("cities", ["oslo"])
    daemon.deploy(dg.AssetSpec("flights"), delays, sensors=[sensor()])
    assert daemon.settle() == [("delays", "oslo")]
