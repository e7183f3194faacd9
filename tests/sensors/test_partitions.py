"""Partitions of a target: which are asked for, through Dagster's own partition mappings, and as which runs."""

from datetime import datetime, timedelta

import dagster as dg
import pyarrow as pa
import pytest
from dagster._core.definitions.partitions.mapping.partition_mapping import UpstreamPartitionsResult

from dagster_versioned import Project, ProjectResource, VersionedParquetIOManager, build_version_sensor

ABC = dg.StaticPartitionsDefinition(["a", "b", "c"])
WEEK = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-08")
WEEKLY = dg.WeeklyPartitionsDefinition("2024-01-07", end_date="2024-01-28", day_offset=0)
DAYS_OF_WEEKS = dg.DailyPartitionsDefinition("2024-01-07", end_date="2024-01-28")
PRODUCT = dg.MultiPartitionsDefinition({"day": WEEK, "where": ABC})


class Desk:
    """One sensor, asked without a daemon; what it requests is done by writing what the run would write."""

    def __init__(self, folder):
        self.location = str(folder)
        self.project = Project.open("HOUSE", self.location)
        self.instance = dg.DagsterInstance.ephemeral()
        self.cursor = None

    def define(self, *assets, **options):
        io_manager = VersionedParquetIOManager(project=ProjectResource(name="HOUSE", location=self.location))
        made = [one for one in assets if isinstance(one, dg.AssetsDefinition)]
        selection = dg.AssetSelection.assets(*made)
        self.sensor = build_version_sensor("desk", selection, **{"max_runs_per_tick": 1000, **options})
        self.definitions = dg.Definitions(
            assets=list(assets), sensors=[self.sensor], resources={"io_manager": io_manager}
        )

    def tick(self):
        context = dg.build_sensor_context(self.instance, cursor=self.cursor, definitions=self.definitions)
        result = self.sensor.evaluate_tick(context)
        self.cursor, self.skipped = result.cursor, result.skip_message
        return result.run_requests

    def ask(self):
        """What is requested: by asset, the partitions, or (first, last) of a range."""
        found = {}
        for request in self.tick():
            first = request.tags.get("dagster/asset_partition_range_start")
            key = (first, request.tags["dagster/asset_partition_range_end"]) if first else request.partition_key
            for asset in request.asset_selection:
                found.setdefault(asset.to_user_string(), []).append(key)
        return found

    def write(self, name, value=0, *partitions, parents=()):
        table = self.project.table([name])
        frame = pa.table({"n": [value]})
        read = [one for above, which in parents for one in self.project.table(above).upstream(partitions=which)]
        table.write_partitions(dict.fromkeys(partitions or (None,), frame), parents=read)


@pytest.fixture
def desk(tmp_path):
    one = Desk(tmp_path)
    yield one
    one.instance.dispose()


def asset(name, above, partitions=None, mapping=None, **options):
    """An asset that loads one upstream."""
    ins = {above: dg.AssetIn(partition_mapping=mapping, metadata=options.pop("input_metadata", None))}

    @dg.asset(name=name, ins=ins, partitions_def=partitions, **options)
    def made(**inputs) -> pa.Table:
        raise NotImplementedError

    return made


SINGLE = {"backfill_policy": dg.BackfillPolicy.single_run()}


def test_the_same_partition(desk):
    desk.define(dg.AssetSpec("up", partitions_def=ABC), asset("down", "up", ABC))
    desk.write("up", 0, "a", "c")
    assert desk.ask() == {"down": ["a", "c"]}
    desk.write("down", 0, "a", parents=[("up", ["a"])])
    desk.write("down", 0, "c", parents=[("up", ["c"])])
    assert desk.ask() == {}
    assert "down[b] (up[b])" in desk.skipped
    desk.write("up", 1, "c")
    assert desk.ask() == {"down": ["c"]}


def test_a_table_without_partitions_below_one_with_them_is_built_from_all(desk):
    desk.define(dg.AssetSpec("up", partitions_def=ABC), asset("down", "up"))
    desk.write("up", 0, "a", "b")
    assert desk.ask() == {}
    desk.write("up", 0, "c")
    assert desk.ask() == {"down": [None]}
    desk.write("down", 0, parents=[("up", None)])
    assert desk.ask() == {}
    desk.write("up", 1, "b")
    assert desk.ask() == {"down": [None]}


def test_an_input_that_does_without_missing_partitions_waits_for_none(desk):
    allowed = {"allow_missing_partitions": True}
    desk.define(dg.AssetSpec("up", partitions_def=ABC), asset("down", "up", input_metadata=allowed))
    assert desk.ask() == {}
    desk.write("up", 0, "a")
    assert desk.ask() == {"down": [None]}


def test_partitions_below_a_table_without_them_are_all_built_from_it(desk):
    desk.define(dg.AssetSpec("up"), asset("down", "up", ABC))
    desk.write("up", 0)
    assert desk.ask() == {"down": ["a", "b", "c"]}
    desk.write("down", 0, "a", "b", "c", parents=[("up", None)])
    desk.write("up", 1)
    assert desk.ask() == {"down": ["a", "b", "c"]}


def test_days_in_weeks(desk):
    desk.define(dg.AssetSpec("up", partitions_def=DAYS_OF_WEEKS), asset("down", "up", WEEKLY))
    days = DAYS_OF_WEEKS.get_partition_keys()
    desk.write("up", 0, *days[:13])
    assert desk.ask() == {"down": ["2024-01-07"]}
    desk.write("down", 0, "2024-01-07", parents=[("up", days[:7])])
    desk.write("up", 0, *days[13:])
    assert desk.ask() == {"down": ["2024-01-14", "2024-01-21"]}
    for week in (1, 2):
        desk.write("down", 0, WEEKLY.get_partition_keys()[week], parents=[("up", days[7 * week : 7 * week + 7])])
    assert desk.ask() == {}
    desk.write("up", 1, days[8])
    assert desk.ask() == {"down": ["2024-01-14"]}


def test_the_day_before_by_an_offset(desk):
    before = dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)
    desk.define(dg.AssetSpec("up", partitions_def=WEEK), asset("down", "up", WEEK, before))
    desk.write("up", 0, "2024-01-03")
    assert desk.ask() == {"down": ["2024-01-04"]}


@pytest.mark.parametrize(
    ("mapping", "written", "requested"),
    [
        (dg.LastPartitionMapping(), "c", {"down": [None]}),
        (dg.LastPartitionMapping(), "b", {}),
        (dg.SpecificPartitionsPartitionMapping(["b"]), "b", {"down": [None]}),
        (dg.SpecificPartitionsPartitionMapping(["b"]), "c", {}),
    ],
)
def test_some_partitions_of_a_table_below(desk, mapping, written, requested):
    desk.define(dg.AssetSpec("up", partitions_def=ABC), asset("down", "up", mapping=mapping))
    desk.write("up", 0, written)
    assert desk.ask() == requested
    if requested:
        desk.write("down", 0, parents=[("up", [written])])
        assert desk.ask() == {}
        desk.write("up", 1, "a")
        assert desk.ask() == {}


def test_a_static_mapping(desk):
    xy = dg.StaticPartitionsDefinition(["x", "y"])
    mapping = dg.StaticPartitionMapping({"a": "x", "b": "x", "c": "y"})
    desk.define(dg.AssetSpec("up", partitions_def=ABC), asset("down", "up", xy, mapping))
    desk.write("up", 0, "a", "c")
    assert desk.ask() == {"down": ["y"]}
    desk.write("up", 0, "b")
    assert desk.ask() == {"down": ["x", "y"]}
    desk.write("down", 0, "x", parents=[("up", ["a", "b"])])
    desk.write("down", 0, "y", parents=[("up", ["c"])])
    desk.write("up", 1, "b")
    assert desk.ask() == {"down": ["x"]}


def test_a_dimension_of_a_product(desk):
    desk.define(dg.AssetSpec("up", partitions_def=WEEK), asset("down", "up", PRODUCT, **SINGLE))
    desk.write("up", 0, "2024-01-02")
    runs = [f"2024-01-02|{where}" for where in "abc"]
    assert desk.ask() == {"down": runs}  # each a run: a range of a product is not what lies in a row
    request = desk.tick()[0]
    assert request.tags["dagster/partition/where"] == "a"


def test_dimensions_that_are_mapped_by_name(desk):
    """Of a product on a product: equal places, and the day before."""
    before = dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)
    mapping = dg.MultiPartitionMapping(
        {
            "day": dg.DimensionPartitionMapping("day", before),
            "where": dg.DimensionPartitionMapping("where", dg.IdentityPartitionMapping()),
        }
    )
    desk.define(dg.AssetSpec("up", partitions_def=PRODUCT), asset("down", "up", PRODUCT, mapping))
    desk.write("up", 0, "2024-01-02|a", "2024-01-05|c")
    assert desk.ask() == {"down": ["2024-01-03|a", "2024-01-06|c"]}
    desk.write("down", 0, "2024-01-03|a", parents=[("up", ["2024-01-02|a"])])
    assert desk.ask() == {"down": ["2024-01-06|c"]}
    desk.write("up", 1, "2024-01-02|a")
    assert desk.ask() == {"down": ["2024-01-03|a", "2024-01-06|c"]}


class Backwards(dg.PartitionMapping):
    """A mapping of the user's own: the first is built from the last, and so on."""

    def get_upstream_mapped_partitions_result_for_partitions(
        self, downstream_partitions_subset, downstream_partitions_def, upstream_partitions_def, *args, **kwargs
    ):
        keys = upstream_partitions_def.get_partition_keys()
        wanted = [keys[-1 - keys.index(key)] for key in downstream_partitions_subset.get_partition_keys()]
        return UpstreamPartitionsResult(
            partitions_subset=upstream_partitions_def.subset_with_partition_keys(wanted),
            required_but_nonexistent_subset=upstream_partitions_def.empty_subset(),
        )

    def get_downstream_partitions_for_partitions(self, *args, **kwargs):
        raise NotImplementedError

    def validate_partition_mapping(self, *args, **kwargs): ...

    @property
    def description(self):
        return "backwards"


@pytest.mark.filterwarnings("ignore:.*PartitionMapping.*")
def test_a_mapping_of_the_users_own(desk):
    desk.define(dg.AssetSpec("up", partitions_def=ABC), asset("down", "up", ABC, Backwards()))
    desk.write("up", 0, "a")
    assert desk.ask() == {"down": ["c"]}
    desk.write("down", 0, "c", parents=[("up", ["a"])])
    assert desk.ask() == {}


def test_dynamic_partitions(desk):
    cities = dg.DynamicPartitionsDefinition(name="cities")
    desk.instance.add_dynamic_partitions("cities", ["rome"])
    desk.define(dg.AssetSpec("up", partitions_def=cities), asset("down", "up", cities))
    desk.write("up", 0, "rome", "oslo")
    assert desk.ask() == {"down": ["rome"]}
    desk.instance.add_dynamic_partitions("cities", ["oslo"])
    assert desk.ask() == {"down": ["rome", "oslo"]}
    desk.instance.delete_dynamic_partition("cities", "rome")
    assert desk.ask() == {"down": ["oslo"]}


def test_partitions_side_by_side_are_one_run_where_the_asset_takes_ranges(desk):
    days = WEEK.get_partition_keys()
    desk.define(dg.AssetSpec("up", partitions_def=WEEK), asset("down", "up", WEEK, **SINGLE))
    desk.write("up", 0, *days[:3], days[4])
    assert desk.ask() == {"down": [(days[0], days[2]), days[4]]}
    (first, _) = desk.tick()
    assert len(first.tags[".dagster/versioned_states"].split()) == 3
    assert first.tags["dagster_versioned/why"].endswith("and 2 more partitions")


def test_a_partition_built_from_the_one_before_runs_after_it_and_never_in_a_range(desk):
    @dg.asset(
        partitions_def=WEEK,
        ins={
            "up": dg.AssetIn(),
            "down": dg.AssetIn(partition_mapping=dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)),
        },
        **SINGLE,
    )
    def down(up, down) -> pa.Table:
        raise NotImplementedError

    days = WEEK.get_partition_keys()
    desk.define(dg.AssetSpec("up", partitions_def=WEEK), down)
    desk.write("up", 0, *days)
    for number, day in enumerate(days):
        assert desk.ask() == {"down": [day]}
        before = [("down", [days[number - 1]])] if number else []
        desk.write("down", 0, day, parents=[("up", [day]), *before])
    assert desk.ask() == {}
    desk.write("up", 1, days[3])
    assert desk.ask() == {"down": [days[3]]}


def test_no_more_runs_in_a_tick_than_allowed_and_failures_take_no_place(desk):
    desk.define(dg.AssetSpec("up", partitions_def=WEEK), asset("down", "up", WEEK), max_runs_per_tick=2)
    days = WEEK.get_partition_keys()
    desk.write("up", 0, *days)
    requests = desk.tick()
    assert [one.partition_key for one in requests] == days[:2]
    for one in requests:
        tags = {**one.tags, "dagster/partition": one.partition_key}
        run = desk.instance.create_run_for_job(desk.definitions.resolve_implicit_global_asset_job_def(), tags=tags)
        desk.instance.report_run_failed(run)
    assert [one.partition_key for one in desk.tick()] == days[2:4]


def test_several_levels_run_upstream_first_by_partition(desk):
    desk.define(dg.AssetSpec("up", partitions_def=ABC), asset("middle", "up", ABC), asset("down", "middle", ABC))
    desk.write("up", 0, "a", "b")
    for name, above in (("middle", "up"), ("down", "middle")):
        for key in "ab":
            desk.write(name, 0, key, parents=[(above, [key])])
    assert desk.ask() == {}
    desk.write("up", 1, "a")
    desk.write("middle", 1, "b", parents=[("up", ["b"])])
    assert desk.ask() == {"middle": ["a"], "down": ["b"]}
    desk.write("middle", 1, "a", parents=[("up", ["a"])])
    assert desk.ask() == {"down": ["a", "b"]}


def test_outputs_that_only_run_together_are_one_run(desk):
    @dg.multi_asset(
        outs={"one": dg.AssetOut(), "two": dg.AssetOut()},
        internal_asset_deps={"one": {dg.AssetKey("up")}, "two": {dg.AssetKey("one"), dg.AssetKey("other")}},
    )
    def both(up, other):
        raise NotImplementedError

    desk.define(dg.AssetSpec("up"), dg.AssetSpec("other"), both)
    desk.write("up", 0)
    assert desk.ask() == {}
    desk.write("other", 0)
    (request,) = desk.tick()
    assert request.asset_selection == [dg.AssetKey("one"), dg.AssetKey("two")]
    desk.write("one", 0, parents=[("up", None)])
    desk.write("two", 0, parents=[("one", None), ("other", None)])
    assert desk.ask() == {}
    desk.write("other", 1)
    assert len(desk.tick()) == 1


def test_what_is_no_versioned_table_is_left_alone(desk):
    @dg.asset(io_manager_key="elsewhere")
    def plain() -> int:
        return 1

    @dg.asset(deps=["file"])
    def nothing() -> None: ...

    @dg.asset(deps=["plain", "nothing", "file"])
    def down(up) -> pa.Table:
        raise NotImplementedError

    desk.define(dg.AssetSpec("up"), dg.AssetSpec("file"), plain, nothing, down)
    desk.definitions = dg.Definitions.merge(
        desk.definitions, dg.Definitions(resources={"elsewhere": dg.mem_io_manager})
    )
    assert desk.ask() == {}
    desk.write("up", 0)
    assert desk.ask() == {"down": [None]}
    desk.write("down", 0, parents=[("up", None)])
    assert desk.ask() == {}


@pytest.mark.parametrize(
    ("end", "count"), [("2020-05-30", 150), pytest.param("2022-09-27", 1000, marks=pytest.mark.slow)]
)
def test_a_first_time_backfill_is_driven_to_its_end_by_ticks_alone(desk, end, count):
    """All partitions of two levels, a tenth of them in a tick."""
    days = dg.DailyPartitionsDefinition("2020-01-01", end_date=end)
    keys = days.get_partition_keys()
    assert len(keys) == count
    desk.define(
        dg.AssetSpec("up", partitions_def=days),
        asset("middle", "up", days),
        asset("down", "middle", days, **SINGLE),
        max_runs_per_tick=count // 10,
    )
    desk.write("up", 0, *keys)
    done, ticks = [], 0
    while requests := desk.tick():
        ticks += 1
        assert len(requests) <= count // 10
        by_asset = {}
        for one in requests:
            first, last = one.partition_key, one.partition_key
            if first is None:
                first, last = (one.tags[f"dagster/asset_partition_range_{end}"] for end in ("start", "end"))
            (key,) = one.asset_selection
            by_asset.setdefault(key.to_user_string(), []).extend(keys[keys.index(first) : keys.index(last) + 1])
        for name, partitions in by_asset.items():
            above = desk.project.table({"middle": "up", "down": "middle"}[name])
            parents = {one.parent.partition: [one] for one in above.upstream(partitions=partitions)}
            frames = dict.fromkeys(partitions, pa.table({"n": [1]}))
            desk.project.table([name]).write_partitions(frames, parents=parents)
            done += [(name, key) for key in partitions]
    assert sorted(done) == sorted((name, key) for name in ("middle", "down") for key in keys)
    assert ticks <= 12


@pytest.mark.slow
def test_a_target_that_was_dropped_is_requested_again_though_it_was_built_from_just_these_versions(daemon):
    parts = dg.StaticPartitionsDefinition(["a", "b"])

    @dg.asset(partitions_def=parts)
    def up() -> pa.Table:
        return pa.table({"n": [1]})

    @dg.asset(partitions_def=parts)
    def down(up: pa.Table) -> pa.Table:
        return up

    sensor = build_version_sensor("keep", dg.AssetSelection.assets(down))
    daemon.deploy(up, down, sensors=[sensor])
    for key in ("a", "b"):
        daemon.project.table("up").write(pa.table({"n": [1]}), partition=key)
    assert sorted(daemon.settle()) == [("down", "a"), ("down", "b")]
    daemon.project.table("down").drop_partitions(["b"], dry_run=False)
    assert daemon.settle() == [("down", "b")]
    daemon.project.table("down").drop(dry_run=False)
    assert sorted(daemon.settle()) == [("down", "a"), ("down", "b")]
    daemon.deploy(up, down, sensors=[sensor])
    assert daemon.settle() == []


@pytest.mark.parametrize(("day", "count"), [(datetime(2025, 10, 26), 9), (datetime(2025, 3, 30), 7)])
def test_over_a_change_of_the_clock_every_hour_is_asked_for_and_each_by_its_own(desk, day, count):
    hours = dg.HourlyPartitionsDefinition(
        day - timedelta(hours=2), end_date=day + timedelta(hours=6), timezone="Europe/Berlin"
    )
    keys = hours.get_partition_keys()
    in_one = asset("in_one", "up", hours, backfill_policy=dg.BackfillPolicy.single_run())
    desk.define(asset("low", "up", hours), in_one, dg.AssetSpec("up", partitions_def=hours))
    desk.write("up", 1, *keys)
    assert len(keys) == count
    assert desk.ask() == {"low": keys, "in_one": [(keys[0], keys[-1])]}
    for key in keys:
        for below in ("low", "in_one"):
            desk.write(below, 1, key, parents=[("up", [key])])
    assert desk.ask() == {}
    desk.write("up", 2, keys[5])
    assert keys[5] == ("2025-10-26-02:00+0100" if count == 9 else "2025-03-30-04:00")
    assert desk.ask() == {"low": [keys[5]], "in_one": [keys[5]]}
