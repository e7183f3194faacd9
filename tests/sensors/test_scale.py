"""What a tick costs: calls of the store, counted, with heads as they are stored; and a change that fans out."""

import hashlib

import dagster as dg
import pyarrow as pa
import pytest

from dagster_versioned import Project, ProjectResource, VersionedParquetIOManager, build_version_sensor
from dagster_versioned.sensors.tick import _TABLES
from dagster_versioned.storage import LocalStore
from dagster_versioned.storage.wrappers import CountingStore
from dagster_versioned.tables.documents.head import Head, HeadDocument, head_key

PAGE = 1000
"""Keys that a store lists in one call, at most."""

_projects = {}


class Counted(ProjectResource):
    """A project whose store the test made."""

    def project(self):
        return _projects[self.location]


class Pairs:
    """Many tables ``up0`` -> ``down0``, as nothing but their heads."""

    def __init__(self, store, count, name):
        self.store = CountingStore(store)
        self.count = count // 2
        self.project = Project("HOUSE", self.store)
        _projects[name] = self.project
        assets = []
        for number in range(self.count):
            assets += self._pair(number)
            self.put(number, 0)
            parent = {"source": "HOUSE", "table": f"up{number}", "version": sha(number, 0), "data_sha": sha(number, 0)}
            self.put_head(f"down{number}", sha("down", number), 0, [parent])
        self.sensor = build_version_sensor("all", dg.AssetSelection.all(), max_runs_per_tick=1000)
        io_manager = VersionedParquetIOManager(project=Counted(name="HOUSE", location=name))
        self.definitions = dg.Definitions(assets=assets, sensors=[self.sensor], resources={"io_manager": io_manager})
        self.cursor = None

    @staticmethod
    def _pair(number):
        @dg.asset(name=f"up{number}")
        def up() -> pa.Table:
            raise NotImplementedError

        @dg.asset(name=f"down{number}", ins={"up": dg.AssetIn(f"up{number}")})
        def down(up) -> pa.Table:
            raise NotImplementedError

        return up, down

    def put(self, number, version):
        self.put_head(f"up{number}", sha(number, version), version, [])

    def put_head(self, table, version, log_version, parents):
        time = "2026-01-01T00:00:00.000000Z"
        head = Head(table, (table,), None, log_version, version, version, None, tuple(parents), time)
        self.project.data.put(head_key(table), HeadDocument(log_version, head).to_bytes(), durability="later")

    def tick(self, instance):
        """The result of a tick, and the store calls that it made."""
        context = dg.build_sensor_context(instance, cursor=self.cursor, definitions=self.definitions)
        self.store.reset()
        result = self.sensor.evaluate_tick(context)
        self.cursor = result.cursor
        return result, self.store.calls[:]


def sha(*of):
    return hashlib.sha256(repr(of).encode()).hexdigest()


def check_calls(pairs, changed):
    """The first tick reads every head, an idle one none, and one after changes those that changed."""
    pages = 2 * pairs.count / PAGE
    with dg.DagsterInstance.ephemeral() as instance:
        result, calls = pairs.tick(instance)
        assert result.run_requests == []
        assert len(calls) == 1 + 2 * pairs.count
        result, calls = pairs.tick(instance)
        assert [call.verb for call in calls] == ["list"]
        assert "All are built from current versions" in result.skip_message
        for number in range(changed):
            pairs.put(number, 1)
        result, calls = pairs.tick(instance)
        requested = {key.to_user_string() for one in result.run_requests for key in one.asset_selection}
        assert requested == {f"down{number}" for number in range(changed)}
        verbs = [call.verb for call in calls if "_delta_log" not in call.key]
        assert verbs.count("list") == 2  # one listing of heads, of so many pages, and one of drafts
        # To say where changes began the logs of a few tables are read; these have none, which is looked for again.
        assert len(calls) - 2 <= changed + 8 * min(changed, _TABLES)
        print(f"{2 * pairs.count} assets, {changed} changed: {pages:.0f} pages and {len(calls) - 2} reads")


def test_a_tick_lists_heads_once_and_reads_those_that_changed(tmp_path):
    check_calls(Pairs(LocalStore(tmp_path), 400, "small"), 20)


@pytest.mark.slow
def test_ten_thousand_assets_of_which_fifty_changed_on_local_disk(tmp_path):
    check_calls(Pairs(LocalStore(tmp_path), 10_000, "large"), 50)


@pytest.mark.slow
@pytest.mark.s3
@pytest.mark.timeout(1200)
def test_ten_thousand_assets_of_which_fifty_changed_on_s3(s3_server):
    store = s3_server.store(s3_server.new_bucket(), "house")
    check_calls(Pairs(store, 10_000, "s3"), 50)


def test_a_new_process_with_a_cursor_reads_no_head_where_nothing_changed(tmp_path):
    pairs = Pairs(LocalStore(tmp_path), 40, "restarted")
    with dg.DagsterInstance.ephemeral() as instance:
        pairs.tick(instance)
        cursor = pairs.cursor
        pairs = Pairs(LocalStore(tmp_path / "b"), 40, "elsewhere")
        pairs.cursor = cursor
        assert len(pairs.tick(instance)[1]) == 41  # another place: what was settled there says nothing
        settled, again = pairs.cursor, Pairs.__new__(Pairs)
        again.__dict__.update(pairs.__dict__)
        again.sensor = build_version_sensor("all", dg.AssetSelection.all())
        again.definitions = dg.Definitions(
            assets=pairs.definitions.assets, sensors=[again.sensor], resources=pairs.definitions.resources
        )
        again.cursor = settled
        result, calls = again.tick(instance)
        assert [call.verb for call in calls] == ["list"]
        assert "All are built" in result.skip_message
        pairs.put(3, 1)
        result, _ = again.tick(instance)
        assert len(result.run_requests) == 1


@pytest.mark.parametrize(("commits", "most"), [(1, 1), (2, 2), (40, 40)])
def test_a_partitioned_table_is_read_by_its_commits_since_the_last_look(tmp_path, commits, most):
    days = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-03-01")
    keys = days.get_partition_keys()
    store = CountingStore(LocalStore(tmp_path))
    writer = Project("HOUSE", LocalStore(tmp_path)).table("up")
    _projects["parted"] = Project("HOUSE", store)
    writer.write_partitions(dict.fromkeys(keys, pa.table({"n": [0]})))

    @dg.asset(partitions_def=days)
    def down(up) -> pa.Table:
        raise NotImplementedError

    sensor = build_version_sensor("parted", dg.AssetSelection.assets(down), max_runs_per_tick=1000)
    io_manager = VersionedParquetIOManager(project=Counted(name="HOUSE", location="parted"))
    source = dg.AssetSpec("up", partitions_def=days)
    definitions = dg.Definitions(assets=[source, down], sensors=[sensor], resources={"io_manager": io_manager})
    with dg.DagsterInstance.ephemeral() as instance:

        def tick():
            store.reset()
            return sensor.evaluate_tick(dg.build_sensor_context(instance, definitions=definitions)).run_requests

        assert {one.partition_key for one in tick()} == set(keys)
        below = Project("HOUSE", LocalStore(tmp_path)).table("down")
        above = {one.parent.partition: [one] for one in writer.upstream(partitions=keys)}
        below.write_partitions(dict.fromkeys(keys, pa.table({"n": [0]})), parents=above)
        assert tick() == []
        for number in range(commits):
            writer.write(pa.table({"n": [number + 1]}), partition=keys[number % 3])
        assert {one.partition_key for one in tick()} == set(keys[: min(3, commits)])
        reads = [call.key for call in store.calls if "/heads/" not in call.key]
        told = 2  # the log is listed, and the version before read, to say in the run where the change began
        assert len([key for key in reads if "/parked/" not in key]) <= most + told + min(commits, 3)
        assert len([key for key in reads if "/parked/" in key]) == 1


@pytest.mark.slow
def test_a_change_in_seven_of_365_days_runs_exactly_what_depends_on_them_each_once(daemon):
    """Three levels: the same day, the same day in ranges, and a week that is rolled up."""
    days = dg.DailyPartitionsDefinition("2023-01-01", end_date="2024-01-01")
    weeks = dg.WeeklyPartitionsDefinition("2023-01-01", end_date="2024-01-01")
    keys = days.get_partition_keys()
    assert len(keys) == 365

    def level(name, above, partitions, **options):
        @dg.asset(name=name, ins={above: dg.AssetIn()}, partitions_def=partitions, **options)
        def made(**inputs) -> pa.Table:
            raise NotImplementedError

        return made

    levels = [
        level("one", "raw", days),
        level("two", "one", days, backfill_policy=dg.BackfillPolicy.single_run()),
        level("three", "two", weeks),
    ]
    target = dg.AssetSelection.assets(*levels)
    sensor = build_version_sensor("roll_up", target, max_runs_per_tick=4)
    daemon.deploy(dg.AssetSpec("raw", partitions_def=days), *levels, sensors=[sensor])
    frame = pa.table({"n": [0]})
    above = {"one": "raw", "two": "one", "three": "two"}

    def days_of(week):
        start = keys.index(week)
        return keys[start : start + 7]

    def build(name, partitions):
        upstream = daemon.project.table(above[name])
        wanted = {p: days_of(p) if name == "three" else [p] for p in partitions}
        shas = upstream.partitions()
        parents = {p: [u for day in wanted[p] for u in upstream.upstream(shas[day].metadata_sha)] for p in partitions}
        daemon.project.table([name]).write_partitions(dict.fromkeys(partitions, frame), parents=parents)

    daemon.project.table(["raw"]).write_partitions(dict.fromkeys(keys, frame))
    build("one", keys)
    build("two", keys)
    build("three", weeks.get_partition_keys())
    assert daemon.tick() == []

    changed = [keys[10], *keys[100:104], keys[200], keys[364 - 7]]
    daemon.project.table(["raw"]).write_partitions(dict.fromkeys(changed, pa.table({"n": [1]})))
    ran, ranges = [], 0
    for _ in range(20):
        runs = daemon.tick()
        if not runs:
            break
        assert len(runs) <= 4
        for run in runs:
            ((name, partition),) = daemon.asked(run)
            covered = [partition]
            if isinstance(partition, tuple):
                ranges += 1
                covered = keys[keys.index(partition[0]) : keys.index(partition[1]) + 1]
            ran += [(name, one) for one in covered]
            daemon.pretend(run, lambda name=name, covered=covered: build(name, covered))
    expected = {(name, day) for name in ("one", "two") for day in changed}
    expected |= {("three", week) for week in weeks.get_partition_keys() if set(days_of(week)) & set(changed)}
    assert sorted(ran) == sorted(expected)
    assert ranges >= 1
    assert "All are built from current versions" in daemon.last_tick().skip_reason
