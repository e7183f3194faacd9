"""Another partitions definition never doubles rows, or takes some for others: what the keys mean is remembered."""

import dagster as dg
import pyarrow as pa
import pytest

from dagster_versioned import FreshParents, HeadIntegrity, Partitioning, build_version_checks, build_version_sensor
from dagster_versioned.errors import InvalidInput


def days(start="2026-10-01", end="2026-12-05", **given):
    return dg.DailyPartitionsDefinition(start, end_date=end, **given)


def sales(definition, value=1):
    @dg.asset(name="sales", partitions_def=definition)
    def asset(context):
        return pa.table({"key": [str(context.partition_key)], "v": [value]})

    return asset


@pytest.fixture
def daily(house):
    for key in ("2026-10-01", "2026-10-02"):
        house.run(sales(days()), partition_key=key)
    return house


@pytest.mark.parametrize(
    ("definition", "key"),
    [
        (dg.MonthlyPartitionsDefinition("2026-10-01"), "2026-10-01"),
        (dg.WeeklyPartitionsDefinition("2026-10-04"), "2026-10-04"),
        (days(timezone="Europe/Berlin"), "2026-10-03"),
        (dg.StaticPartitionsDefinition(["north", "2026-10-01"]), "north"),
        (dg.DynamicPartitionsDefinition(name="sales"), "north"),
    ],
)
def test_a_definition_whose_keys_mean_something_else_is_refused_and_nothing_is_written(daily, definition, key):
    before = daily.project.table("sales").read().to_pydict()
    if isinstance(definition, dg.DynamicPartitionsDefinition):
        daily.instance.add_dynamic_partitions("sales", [key])
    with pytest.raises(InvalidInput, match=r"would overlap others.*repartition sales"):
        daily.run(sales(definition), partition_key=key)
    assert daily.project.table("sales").read().to_pydict() == before


def test_an_asset_that_loses_its_definition_is_refused(daily):
    @dg.asset(name="sales")
    def whole():
        return pa.table({"key": ["x"], "v": [1]})

    with pytest.raises(InvalidInput, match="of a whole table, but sales was written as partitions"):
        daily.run(whole)


@pytest.mark.parametrize(
    "definition", [days("2026-10-03"), days("2020-01-01"), days(end="2027-12-05"), days(end=None, end_offset=-1)]
)
def test_a_definition_that_begins_or_ends_elsewhere_goes_on(daily, definition):
    daily.run(sales(definition), partition_key="2026-10-03")
    assert len(daily.project.table("sales").partitions()) == 3


def test_names_that_are_added_or_become_dynamic_go_on(house):
    house.run(sales(dg.StaticPartitionsDefinition(["a"])), partition_key="a")
    house.run(sales(dg.StaticPartitionsDefinition(["b", "c"])), partition_key="b")
    house.instance.add_dynamic_partitions("sales", ["c", "d"])
    house.run(sales(dg.DynamicPartitionsDefinition(name="sales")), partition_key="d")
    assert sorted(house.project.table("sales").partitions()) == ["a", "b", "d"]


def test_dimensions_are_compared_one_by_one(house):
    def by(time):
        return dg.MultiPartitionsDefinition({"time": time, "where": dg.StaticPartitionsDefinition(["n", "s"])})

    key = dg.MultiPartitionKey({"time": "2026-10-01", "where": "n"})
    house.run(sales(by(days())), partition_key=key)
    house.run(sales(by(days("2026-09-01"))), partition_key=key)
    with pytest.raises(InvalidInput, match="would overlap others"):
        house.run(sales(by(dg.MonthlyPartitionsDefinition("2026-10-01"))), partition_key=key)


def test_a_definition_that_changes_while_a_backfill_runs_stops_the_runs_that_come_after(house):
    """The runs of one backfill, of which a reload of the code location changes what later ones mean by their keys."""
    backfill = {"dagster/backfill": "xyz"}
    for key in ("2026-10-01", "2026-11-01"):
        house.run(sales(days()), partition_key=key, tags=backfill)
    with pytest.raises(InvalidInput, match="would overlap others"):
        house.run(sales(dg.MonthlyPartitionsDefinition("2026-10-01")), partition_key="2026-10-01", tags=backfill)
    house.run(sales(days()), partition_key="2026-11-02", tags=backfill)
    assert house.project.table("sales").read().to_pydict()["key"] == ["2026-10-01", "2026-11-01", "2026-11-02"]


def by_dimension(time):
    return dg.MultiPartitionsDefinition({"time": time, "where": dg.StaticPartitionsDefinition(["n"])})


HOURS = dg.HourlyPartitionsDefinition("2026-10-01-00:00")
MONTHS = dg.MonthlyPartitionsDefinition("2026-10-01")
OTHERS = {
    "days as months": (days(), MONTHS, "2026-10-01"),
    "hours as days": (dg.HourlyPartitionsDefinition("2026-10-01", fmt="%Y-%m-%d"), days(), "2026-10-01"),
    "days as weeks": (days(), dg.WeeklyPartitionsDefinition("2026-10-04"), "2026-10-04"),
    "names as days": (dg.StaticPartitionsDefinition(["2026-10-01"]), days(), "2026-10-01"),
    "days as names that come and go": (days(), dg.DynamicPartitionsDefinition(name="sales"), "2026-10-01"),
    "days of another zone": (days(), days(timezone="Asia/Tokyo"), "2026-10-01"),
    "days from another hour on": (days(), days(hour_offset=6), "2026-10-01"),
    "a dimension of months": (by_dimension(days()), by_dimension(MONTHS), "2026-10-01|n"),
    "dimensions as names": (by_dimension(days()), dg.StaticPartitionsDefinition(["2026-10-01|n"]), "2026-10-01|n"),
    "a whole table as days": (None, days(), "2026-10-01"),
}


TWO = pytest.mark.parametrize("misread", ["days as months", "a whole table as days"], indirect=True)


def in_october(rows):
    return pa.array(["2026-10-01"] * len(rows))


@pytest.fixture(params=OTHERS)
def misread(house, request):
    """A table, and its asset with the partitions definition that it does not have (any more)."""
    before, after, key = OTHERS[request.param]
    if isinstance(after, dg.DynamicPartitionsDefinition):
        house.instance.add_dynamic_partitions("sales", [key])

    @dg.asset(name="sales")
    def whole():
        return pa.table({"v": [1]})

    house.run(whole if before is None else sales(before), partition_key=None if before is None else key)
    return house, sales(after), key


CANNOT = "sales cannot be read by the partitions of its asset"


def test_a_table_is_not_read_by_keys_that_mean_something_else(misread):
    house, upstream, key = misread

    @dg.asset(ins={"sales": dg.AssetIn(metadata={"allow_missing_partitions": True})})
    def report(sales: pa.Table) -> pa.Table:
        raise AssertionError

    with pytest.raises(InvalidInput, match=CANNOT):
        house.run(upstream, report, selection=[report])
    definitions = dg.Definitions(assets=[upstream], resources={"io_manager": house.io_manager()})
    with pytest.raises(InvalidInput, match=CANNOT):
        definitions.load_asset_value("sales", python_type=pa.Table, partition_key=key, instance=house.instance)


@TWO
@pytest.mark.parametrize("parked", [False, True])
def test_a_function_does_not_load_by_such_keys_either(misread, parked):
    house, upstream, key = misread

    @dg.asset(deps=["sales"])
    def report(context: dg.AssetExecutionContext) -> None:
        context.load_asset_value(dg.AssetKey("sales"), python_type=pa.Table, partition_key=key)

    manager = house.io_manager(publish="after_checks") if parked else None
    with pytest.raises(InvalidInput, match=CANNOT):
        house.run(upstream, report, selection=[report], io_manager=manager)


@TWO
def test_a_version_is_not_recorded_as_built_from_such_partitions(misread):
    house, upstream, _ = misread

    @dg.asset(deps=[dg.AssetDep("sales", partition_mapping=dg.LastPartitionMapping())])
    def report() -> pa.Table:
        return pa.table({"v": [1]})

    with pytest.raises(InvalidInput, match=CANNOT):
        house.run(upstream, report, selection=[report])


@TWO
def test_no_sensor_asks_for_runs_that_would_read_or_write_by_such_keys(misread):
    house, upstream, _ = misread

    @dg.asset
    def report(sales: pa.Table) -> pa.Table:
        raise AssertionError

    @dg.asset(name="source")
    def source() -> pa.Table:
        raise AssertionError

    house.project.table("source").write(pa.table({"v": [1]}))

    @dg.asset(name="sales", partitions_def=upstream.partitions_def)
    def written(source) -> pa.Table:
        raise AssertionError

    for assets, target in (([upstream, report], report), ([source, written], written)):
        sensor = build_version_sensor("watch", dg.AssetSelection.assets(target))
        definitions = dg.Definitions(assets=assets, sensors=[sensor], resources={"io_manager": house.io_manager()})
        result = sensor.evaluate_tick(dg.build_sensor_context(house.instance, definitions=definitions))
        assert not result.run_requests
        assert CANNOT in (result.skip_message or "")


@TWO
def test_checks_find_that_keys_mean_something_else(misread):
    house, upstream, _ = misread
    (checks,) = build_version_checks([upstream], [HeadIntegrity()])
    result = house.run(upstream, checks, selection=dg.AssetSelection.checks(checks), raise_on_error=False)
    (found,) = result.get_asset_check_evaluations()
    assert not found.passed
    assert CANNOT in found.description

    @dg.asset(name="report")
    def before() -> pa.Table:
        return pa.table({"v": [1]})

    house.run(before)

    @dg.asset
    def report(sales: pa.Table) -> pa.Table:
        raise AssertionError

    (checks,) = build_version_checks([report], [FreshParents()])
    result = house.run(upstream, report, checks, selection=dg.AssetSelection.checks(checks), raise_on_error=False)
    (found,) = result.get_asset_check_evaluations()
    assert not found.passed
    assert CANNOT in found.description


def test_a_version_from_before_a_repartition_is_read_by_the_partitions_of_then(daily):
    table = daily.project.table("sales")
    before = f"@{table.state.log_version}"
    table.repartition(Partitioning.time_windows("monthly"), in_october, dry_run=False)

    def read(definition, version):
        @dg.asset(ins={"sales": dg.AssetIn(metadata={"dagster_versioned/version": version})})
        def report(sales: pa.Table) -> pa.Table:
            return sales

        daily.run(sales(definition), report, selection=[report])
        return daily.project.table("report").read()["key"].to_pylist()

    end = {"end_date": "2026-11-01"}
    assert read(days(end="2026-10-03"), before) == ["2026-10-01", "2026-10-02"]
    assert read(dg.MonthlyPartitionsDefinition("2026-10-01", **end), None) == ["2026-10-01", "2026-10-02"]
    for definition, version in ((dg.MonthlyPartitionsDefinition("2026-10-01", **end), before), (days(), None)):
        with pytest.raises(InvalidInput, match=CANNOT):
            read(definition, version)


def test_a_sensor_sees_that_a_table_was_repartitioned(daily):
    """Which is another definition's by then, and its own again once that is what the code says."""

    @dg.asset
    def report(sales: pa.Table) -> pa.Table:
        raise AssertionError

    sensor = build_version_sensor("watch", dg.AssetSelection.assets(report))

    def tick(definition):
        definitions = dg.Definitions(
            assets=[sales(definition), report], sensors=[sensor], resources={"io_manager": daily.io_manager()}
        )
        return sensor.evaluate_tick(dg.build_sensor_context(daily.instance, definitions=definitions))

    assert "does not exist" not in (tick(days(end="2026-10-03")).skip_message or "")
    assert len(tick(days(end="2026-10-03")).run_requests) == 1
    daily.project.table("sales").repartition(Partitioning.time_windows("monthly"), in_october, dry_run=False)
    assert CANNOT in tick(days(end="2026-10-03")).skip_message
    months = dg.MonthlyPartitionsDefinition("2026-10-01", end_date="2026-11-01")
    assert len(tick(months).run_requests) == 1


def test_keys_that_nobody_said_the_meaning_of_are_read_where_they_may_be_the_assets(house):
    for key in ("2026-10-01", "2026-10-02"):
        house.project.table("sales").write(pa.table({"key": [key]}), partition=key)

    def read(definition):
        daily = dg.Definitions(assets=[sales(definition)], resources={"io_manager": house.io_manager()})
        return daily.load_asset_value(
            "sales", python_type=pa.Table, partition_key="2026-10-01", instance=house.instance
        )["key"].to_pylist()

    assert read(days()) == read(dg.StaticPartitionsDefinition(["2026-10-01"])) == ["2026-10-01"]
    with pytest.raises(InvalidInput, match=CANNOT):
        read(MONTHS)
