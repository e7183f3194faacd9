"""What would run, before anything runs: what the sensors request next, and what comes of it."""

from datetime import UTC, datetime, timedelta

import dagster as dg
import pyarrow as pa
import pytest

from dagster_versioned import (
    Project,
    ProjectResource,
    VersionedParquetIOManager,
    build_version_sensor,
    version_changed,
    versioned_source,
)
from dagster_versioned.branches.environments import create_environment
from dagster_versioned.errors import EnvironmentNotFound, InvalidInput
from dagster_versioned.sensors.forecast import forecast
from dagster_versioned.tables.documents.head import HeadDocument, Pending, head_key
from dagster_versioned.tables.table import VersionedTable

ABC = dg.StaticPartitionsDefinition(["a", "b", "c"])
DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-06")


class House:
    """A project, and code locations that write to it; what runs would do is done by writing what they would write."""

    def __init__(self, folder):
        self.folder = folder
        self.location = str(folder / "store")
        self.project = Project.open("HOUSE", self.location)

    def define(self, *assets, environment=None, **options):
        """A code location."""
        resource = ProjectResource(name="HOUSE", location=self.location, environment=environment)
        manager = VersionedParquetIOManager(project=resource)
        self.definitions = dg.Definitions(list(assets), resources={"io_manager": manager}, **options)
        return self.definitions.get_repository_def()

    def write(self, name, value=0, *partitions, above=(), code=None, project=None):
        project = project or self.project
        table = project.table([name])
        frame = pa.table({"n": [value]})
        read = [one for key in above for one in project.table(key).upstream()]
        table.write_partitions(dict.fromkeys(partitions or (None,), frame), parents=read, code_version=code)

    def link(self, name, above, keys, upstream_key=lambda key: key):
        """Versions of partitions, each built from one of the upstream's."""
        for key in keys:
            read = [] if upstream_key(key) is None else self.project.table(above).upstream(partition=upstream_key(key))
            self.project.table([name]).write(pa.table({"n": [0]}), partition=key, parents=read)

    def files(self):
        return {path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}


@pytest.fixture
def house(tmp_path):
    return House(tmp_path)


def asset(name, *above, **options):
    """An asset that loads its upstreams."""
    mappings = options.pop("mappings", {})
    ins = {one: dg.AssetIn(partition_mapping=mappings.get(one)) for one in above}

    @dg.asset(name=name, ins=ins, **options)
    def made(**inputs) -> pa.Table:
        raise NotImplementedError

    return made


def sensor(target="*", name="keep", **options):
    selection = dg.AssetSelection.all() if target == "*" else dg.AssetSelection.assets(*target)
    return build_version_sensor(name, selection, **options)


def told(found):
    """What becomes of each cell: by asset and partition, what and why."""
    return {(cell.asset, cell.partition): (cell.what, cell.why) for cell in found.cells}


def whats(found):
    return {key: what for key, (what, _) in told(found).items()}


class TestWithoutUpstreams:
    def test_what_has_no_version_is_new_though_no_sensor_requests_it(self, house):
        location = house.define(asset("up"), asset("down", "up"), sensors=[sensor()])
        found = forecast([location])
        assert told(found) == {
            ("up", None): ("new", "no version"),
            ("down", None): ("waits", "no version; after up"),
        }
        assert [cell.sensors for cell in found.cells] == [(), ("keep",)]
        assert [(cell.rows, cell.size_bytes) for cell in found.cells] == [(None, None)] * 2
        assert found.would_run
        assert not house.files()

    def test_another_code_version_runs_it(self, house):
        house.write("up", code="1")
        found = forecast([house.define(asset("up", code_version="2"), sensors=[sensor()])])
        assert told(found) == {("up", None): ("runs", "code version 1 -> 2")}
        assert found.cells[0].rows == 1
        assert found.cells[0].size_bytes > 0
        assert found.uncoded == ()
        same = forecast([house.define(asset("up", code_version="1"))])
        assert (same.cells, same.current, same.would_run) == ((), 1, False)

    def test_a_definition_without_one_says_nothing_and_is_named(self, house):
        house.write("up", code="1")
        found = forecast([house.define(asset("up"), sensors=[sensor(on_code_version=True)])])
        assert (found.cells, found.current, found.uncoded) == ((), 1, ("up",))


class TestAsSensorsJudge:
    def test_a_changed_upstream(self, house):
        house.write("up", 1)
        house.write("down", above=["up"])
        location = house.define(asset("up"), asset("down", "up"), sensors=[sensor(["down"], "one"), sensor([], "two")])
        assert forecast([location]).cells == ()
        before, after = house.project.table("up").version().short, None
        house.write("up", 2)
        after = house.project.table("up").version().short
        found = forecast([location])
        assert told(found) == {("down", None): ("runs", f"up {before} -> {after}")}
        assert found.cells[0].sensors == ("one",)

    def test_code_counts_though_the_sensor_does_not_look_at_it(self, house):
        house.write("up")
        house.write("down", above=["up"], code="1")
        sensors = [sensor(name="plain"), sensor(name="code", on_code_version=True)]
        found = forecast([house.define(asset("up"), asset("down", "up", code_version="2"), sensors=sensors)])
        assert told(found) == {("down", None): ("runs", "code version 1 -> 2")}
        assert found.cells[0].sensors == ("code",)

    def test_a_sensor_that_counts_a_code_version_that_is_gone_is_believed(self, house):
        house.write("up")
        house.write("down", above=["up"], code="1")
        assets = [asset("up"), asset("down", "up")]
        assert forecast([house.define(*assets, sensors=[sensor()])]).cells == ()
        found = forecast([house.define(*assets, sensors=[sensor(on_code_version=True)])])
        assert told(found) == {("down", None): ("runs", "code version 1 -> none")}

    def test_a_sensor_on_data_alone(self, house):
        house.write("up", code="1")
        house.write("down", above=["up"])
        house.write("up", code="2")
        sensors = [sensor(name="data", on="data_sha"), sensor(name="all")]
        found = forecast([house.define(asset("up"), asset("down", "up"), sensors=sensors)])
        assert [(cell.what, cell.sensors) for cell in found.cells] == [("runs", ("all",))]

    def test_what_a_sensor_requests_does_not_wait_for_what_it_does_not_watch(self, house):
        house.write("up", code="1")
        location = house.define(asset("up", code_version="2"), asset("down", "up"), sensors=[sensor()])
        assert whats(forecast([location])) == {("up", None): "runs", ("down", None): "new"}
        nobody = house.define(asset("up", code_version="2"), asset("down", "up"))
        assert whats(forecast([nobody])) == {("up", None): "runs", ("down", None): "waits"}

    def test_it_is_what_the_sensor_requests(self, house):
        location = house.define(
            asset("up", partitions_def=ABC),
            asset("down", "up", partitions_def=ABC),
            asset("end", "down"),
            sensors=[sensor()],
        )
        house.write("up", 1, "a", "b")
        house.link("down", "up", ["a"])
        with dg.DagsterInstance.ephemeral() as instance:
            context = dg.build_sensor_context(instance, definitions=house.definitions)
            requests = location.get_sensor_def("keep").evaluate_tick(context).run_requests
        asked = {(request.asset_selection[0].to_user_string(), request.partition_key) for request in requests}
        found = forecast([location])
        assert {key for key, what in whats(found).items() if what in ("runs", "new")} - {("up", "c")} == asked
        assert asked == {("down", "b")}

    def test_a_condition_is_named_by_its_sensor(self, house):
        house.write("up")
        one = asset("one", "up", automation_condition=version_changed() | dg.AutomationCondition.eager())
        two = asset("two", "up", automation_condition=dg.AutomationCondition.eager())
        sensors = [dg.AutomationConditionSensorDefinition("auto", target="*", use_user_code_server=True)]
        found = forecast([house.define(asset("up"), one, two, sensors=sensors)])
        assert {cell.asset: cell.sensors for cell in found.cells} == {"one": ("auto",), "two": ()}

    @pytest.mark.parametrize(
        ("sensors", "unasked"),
        [
            ([], ("one", "three")),
            ([dg.AutomationConditionSensorDefinition("auto", target="*")], ("one", "three")),
            ([dg.AutomationConditionSensorDefinition("auto", target="one", use_user_code_server=True)], ("three",)),
            ([dg.AutomationConditionSensorDefinition("auto", target="*", use_user_code_server=True)], ()),
        ],
        ids=["Dagster's own", "in the daemon", "of one", "of all"],
    )
    def test_a_condition_that_no_sensor_can_evaluate_is_named(self, house, sensors, unasked):
        house.write("up")
        one = asset("one", "up", automation_condition=version_changed())
        two = asset("two", "up", automation_condition=dg.AutomationCondition.eager())
        three = asset("three", "up", automation_condition=dg.AutomationCondition.eager() | version_changed())
        found = forecast([house.define(asset("up"), one, two, three, sensors=sensors)])
        assert found.unasked == unasked
        asked = {cell.asset: cell.sensors for cell in found.cells}
        assert asked == {key: () if key in ("two", *unasked) else ("auto",) for key in ("one", "two", "three")}

    def test_a_multi_asset_is_one_run_and_two_tables(self, house):
        @dg.multi_asset(outs={"one": dg.AssetOut(), "two": dg.AssetOut()}, ins={"up": dg.AssetIn()})
        def both(up):
            raise NotImplementedError

        house.write("up")
        house.write("one", above=["up"])
        found = forecast([house.define(asset("up"), both, sensors=[sensor(["one"])])])
        assert whats(found) == {("one", None): "new", ("two", None): "new"}
        assert [cell.rows for cell in found.cells] == [1, None]
        assert {cell.sensors for cell in found.cells} == {("keep",)}


class TestBelow:
    def chain(self, house, *, code):
        return house.define(
            asset("first", code_version=code), asset("second", "first"), asset("third", "second"), sensors=[sensor()]
        )

    def build(self, house):
        house.write("first", code="1")
        house.write("second", above=["first"])
        house.write("third", above=["second"])

    def test_all_that_is_below_may_run(self, house):
        self.build(house)
        found = forecast([self.chain(house, code="2")])
        assert told(found) == {
            ("first", None): ("runs", "code version 1 -> 2"),
            ("second", None): ("may run", "unknown until first has run"),
            ("third", None): ("may run", "unknown until second has run"),
        }
        assert [cell.sensors for cell in found.cells] == [(), ("keep",), ("keep",)]
        assert found.current == 0

    def test_nothing_below_a_held_head_runs(self, house):
        self.build(house)
        house.project.table("first").write(pa.table({"n": [9]}), code_version="1")
        first = house.project.table("second").version().metadata_sha
        house.project.table("second").revert(first, hold=True, why="audit")
        found = forecast([self.chain(house, code="1")])
        ((key, (what, why)),) = told(found).items()
        assert (key, what) == (("second", None), "blocked")
        assert why.endswith("held: audit")
        assert found.current == 2
        assert not found.would_run

    def test_what_is_pinned_does_not_move(self, house):
        self.build(house)
        pinned = house.project.table("first").version().metadata_sha
        ins = {"first": dg.AssetIn(metadata={"dagster_versioned/version": pinned})}

        @dg.asset(ins=ins)
        def second(first) -> pa.Table:
            raise NotImplementedError

        found = forecast([house.define(asset("first", code_version="2"), second)])
        assert whats(found) == {("first", None): "runs"}

    def test_what_lacks_something_that_nobody_makes_stays_blocked(self, house):
        assets = [asset("up"), versioned_source("elsewhere"), asset("down", "up", "elsewhere"), asset("end", "down")]
        found = forecast([house.define(*assets, sensors=[sensor()])])
        assert told(found) == {
            ("up", None): ("new", "no version"),
            ("down", None): ("blocked", "no version; no version of elsewhere"),
            ("end", None): ("blocked", "no version; no version of down"),
        }


class TestPartitions:
    def test_each_by_itself(self, house):
        house.write("up", 1, "a", "b")
        house.link("down", "up", ["a", "b"])
        house.write("up", 2, "a")
        assets = [asset("up", partitions_def=ABC), asset("down", "up", partitions_def=ABC), asset("end", "down")]
        found = forecast([house.define(*assets, sensors=[sensor()])])
        assert whats(found) == {
            ("up", "c"): "new",
            ("down", "a"): "runs",
            ("down", "c"): "waits",
            ("end", None): "waits",
        }
        assert {(cell.asset, cell.partition): cell.rows for cell in found.cells}["down", "a"] == 1
        assert found.current == 3

    def test_a_day_that_is_built_from_the_day_before(self, house):
        mapping = dg.TimeWindowPartitionMapping(
            start_offset=-1, end_offset=-1, allow_nonexistent_upstream_partitions=True
        )
        days = asset("days", "days", partitions_def=DAYS, mappings={"days": mapping}, code_version="2")
        location = house.define(days, sensors=[sensor()])
        found = forecast([location])
        assert list(whats(found).values()) == ["new", *["waits"] * 4]
        keys = DAYS.get_partition_keys()
        before = dict(zip(keys[1:], keys, strict=False))
        for key in keys[:3]:
            read = house.project.table("days").upstream(partition=before[key]) if key in before else []
            code = "1" if key == keys[1] else "2"
            house.project.table(["days"]).write(pa.table({"n": [0]}), partition=key, parents=read, code_version=code)
        last = house.project.table("days").version(partition=keys[2]).short
        assert told(forecast([location])) == {
            ("days", keys[1]): ("runs", "code version 1 -> 2"),
            ("days", keys[2]): ("may run", "unknown until days has run"),
            ("days", keys[3]): ("new", f"first version: days[{keys[2]}] none -> {last}"),
            ("days", keys[4]): ("waits", "no version; after days"),
        }

    def test_dynamic_ones_are_those_of_the_instance(self, house):
        location = house.define(asset("up", partitions_def=dg.DynamicPartitionsDefinition(name="those")))
        found = forecast([location])
        assert (found.cells, found.unlisted) == ((), ("up",))
        with dg.DagsterInstance.ephemeral() as instance:
            instance.add_dynamic_partitions("those", ["x"])
            found = forecast([location], instance=instance)
        assert (whats(found), found.unlisted) == ({("up", "x"): "new"}, ())


class TestInstance:
    @pytest.fixture
    def instance(self):
        with dg.DagsterInstance.ephemeral() as one:
            yield one

    def test_a_run_in_progress_is_waited_for_and_only_seen_on_request(self, house, instance):
        house.write("up")
        location = house.define(asset("up"), asset("down", "up"), sensors=[sensor()])
        job = house.definitions.resolve_implicit_global_asset_job_def()
        run = instance.create_run_for_job(
            job, status=dg.DagsterRunStatus.STARTED, asset_selection=frozenset([dg.AssetKey("down")])
        )
        assert whats(forecast([location])) == {("down", None): "new"}
        ((what, why),) = told(forecast([location], instance=instance)).values()
        assert what == "waits"
        assert why.endswith(f"run {run.run_id[:8]} is under way")

    def test_a_check_that_did_not_pass(self, house, instance):
        house.write("up")
        up = asset("up")

        @dg.asset_check(asset=up, blocking=True)
        def positive():
            raise NotImplementedError

        def located(**options):
            return house.define(up, asset("down", "up"), asset_checks=[positive], sensors=[sensor(**options)])

        assert whats(forecast([located()])) == {("down", None): "new"}
        ((what, why),) = told(forecast([located()], instance=instance)).values()
        assert what == "blocked"
        assert "positive" in why
        assert whats(forecast([located(wait_for_checks=False)], instance=instance)) == {("down", None): "new"}


class TestLocations:
    def test_two_are_looked_at_together(self, house):
        house.write("up", code="1")
        house.write("down", above=["up"])
        above = house.define(asset("up", code_version="2"))
        below = house.define(versioned_source("up"), asset("down", "up"), sensors=[sensor()])
        found = forecast([below, above])
        assert whats(found) == {("up", None): "runs", ("down", None): "may run"}
        assert list(whats(found)) == [("up", None), ("down", None)]

    def test_one_asset_twice_is_refused(self, house):
        location = house.define(asset("up"))
        with pytest.raises(InvalidInput, match="Two code locations define the asset up"):
            forecast([location, house.define(asset("up"))])

    def test_a_circle_is_refused(self, house):
        with pytest.raises(InvalidInput, match="in a circle: "):
            forecast(
                [
                    house.define(versioned_source(above), asset(name, above))
                    for name, above in (("one", "two"), ("two", "one"))
                ]
            )


class TestEnvironments:
    def test_the_definitions_write_where_they_are_asked_about(self, house):
        house.write("up", 1)
        house.write("down", above=["up"])
        create_environment(house.project, "pr-1")
        branch = house.project.in_environment("pr-1")
        house.write("up", 2, project=branch)
        assets = [asset("up"), asset("down", "up")]
        before = house.files()
        found = forecast([house.define(*assets, environment="pr-1", sensors=[sensor()])], environment="pr-1")
        assert (found.environment, found.projects, whats(found)) == ("pr-1", ("HOUSE",), {("down", None): "runs"})
        assert forecast([house.define(*assets)], environment="production").cells == ()
        with pytest.raises(InvalidInput, match="The definitions write to production, not to pr-1"):
            forecast([house.define(*assets)], environment="pr-1")
        with pytest.raises(EnvironmentNotFound):
            forecast([house.define(*assets, environment="pr-2")], environment="pr-2")
        assert house.files() == before


def test_a_head_that_its_writer_left_behind_is_seen_through_and_left(house):
    house.write("up", 1)
    house.write("down", above=["up"])
    table: VersionedTable = house.project.table("up")
    store, key = house.project.data, head_key(table.name)
    behind = HeadDocument.from_bytes(store.get(key), key)
    house.write("up", 2)
    hours = (datetime.now(UTC) - timedelta(hours=2)).isoformat()
    store.put(key, HeadDocument(behind.log_version, behind.head, Pending(1, hours)).to_bytes())
    location = house.define(asset("up"), asset("down", "up"), sensors=[sensor()])
    before = house.files()
    assert whats(forecast([location])) == {("down", None): "runs"}
    assert house.files() == before


def test_a_head_that_cannot_be_read_is_read_from_the_log_and_left(house):
    house.write("up", 1)
    house.write("down", above=["up"])
    house.write("up", 2)
    house.project.data.put(head_key(house.project.table("up").name), b"{")
    location = house.define(asset("up"), asset("down", "up"), sensors=[sensor()])
    before = house.files()
    assert whats(forecast([location])) == {("down", None): "runs"}
    assert house.files() == before


def test_a_table_that_cannot_be_read_blocks_itself_and_what_reads_it(house):
    house.write("up")
    house.write("down", above=["up"])
    house.project.data.put(head_key(house.project.table("up").name), b"{")
    house.project.data.put("up/_delta_log/00000000000000000000.json", b"{")
    found = forecast([house.define(asset("up"), asset("down", "up"), sensors=[sensor()])])
    assert whats(found) == {("up", None): "blocked", ("down", None): "blocked"}
    assert [cell.rows for cell in found.cells] == [None, 1]
    assert all("up cannot be read" in cell.why for cell in found.cells)


def test_what_is_no_versioned_table_is_left_out(house):
    @dg.asset
    def report() -> None:
        raise NotImplementedError

    found = forecast([house.define(report, asset("up"))])
    assert (whats(found), found.current, found.uncoded) == ({("up", None): "new"}, 0, ())
    with pytest.raises(InvalidInput, match="no versioned table"):
        forecast([house.define(report)])


def test_a_log_is_read_once_for_heads_and_for_what_is_shown(house, monkeypatch):
    house.write("up", 1, "a", "b", "c", code="1")
    opened = []
    table = Project.table
    monkeypatch.setattr(Project, "table", lambda self, name: opened.append(name) or table(self, name))
    found = forecast([house.define(asset("up", partitions_def=ABC, code_version="2"))])
    assert [(one.partition, one.rows) for one in found.cells] == [("a", 1), ("b", 1), ("c", 1)]
    assert opened == ["up"]  # an opened table keeps what it has read of its log
