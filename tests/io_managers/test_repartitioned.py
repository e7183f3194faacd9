"""Another partitions definition never doubles rows: what the keys mean is remembered, how many there are is not."""

import dagster as dg
import pyarrow as pa
import pytest

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
