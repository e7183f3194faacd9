"""SQL transforms as assets."""

import dagster as dg
import pyarrow as pa
import pytest

from dagster_versioned.assets.sql_asset import sql_asset
from dagster_versioned.errors import InvalidInput
from dagster_versioned.io_managers.parquet import VersionedParquetIOManager
from dagster_versioned.odf.event_table import EventTable
from dagster_versioned.odf.transform_query import QueryStep
from dagster_versioned.resources.project import ProjectResource
from dagster_versioned.tables.event_history import EventHistory, SnapshotMerge
from support.transforms import at

FLIGHTS = dg.AssetSpec("flights").with_io_manager_key("io_manager")
LATE = "SELECT event_time, id, delay FROM f WHERE delay > 6"


@pytest.fixture
def house(tmp_path):
    """Dagster over a project whose flights are written by others."""
    return Dagster(tmp_path)


class Dagster:
    def __init__(self, folder):
        self._resource = ProjectResource(name="flying", location=str(folder))
        self.project = self._resource.project()

    def write(self, *rows):
        table = pa.table(dict(zip(("event_time", "id", "delay"), zip(*rows, strict=True), strict=True)))
        EventTable(self.project.table("flights"), EventHistory(merge=SnapshotMerge(primary_key=("id",)))).write(table)

    def run(self, *assets):
        manager = VersionedParquetIOManager(project=self._resource)
        return dg.materialize(
            [FLIGHTS, *assets], selection=[asset.key for asset in assets], resources={"io_manager": manager}
        )

    def current(self, name, *columns):
        return [
            tuple(row.values()) for row in EventTable(self.project.table(name)).current().select(columns).to_pylist()
        ]


def shown(result, asset):
    (event,) = result.asset_materializations_for_node(asset.op.name)
    return event.metadata


@pytest.mark.spark
@pytest.mark.slow
def test_assets_take_what_is_new_and_record_from_where(spark, house):
    late = sql_asset("late", inputs={"f": FLIGHTS.key}, query=LATE)
    worst = sql_asset(
        "worst",
        inputs={"late": late},
        queries=[
            ("top", "SELECT max(delay) AS delay FROM late"),
            "SELECT event_time, id FROM late JOIN top USING (delay)",
        ],
    )
    house.write((at(1), 1, 5), (at(2), 2, 9))
    result = house.run(late, worst)
    assert house.current("late", "id", "delay") == [(2, 9)]
    assert house.current("worst", "id") == [(2,)]
    told = shown(result, late)
    assert told["dagster_versioned/run"].value == "map"
    taken = [one.data for one in told["dagster_versioned/inputs"].records]
    assert [(one["input"], one["after_offset"], one["until_offset"]) for one in taken] == [("f", "", "1")]
    parents = house.project.table("worst").version().identity.parents
    assert [parent.table for parent in parents] == ["late"]

    house.write((at(1), 1, 5), (at(3), 2, 7), (at(4), 3, 8))
    assert shown(house.run(late, worst), worst)["dagster_versioned/run"].value == "whole"
    assert house.current("worst", "id") == [(3,)]
    again = shown(house.run(late, worst), late)
    assert [again[f"dagster_versioned/{name}"].value for name in ("run", "change")] == ["none", "none"]


@pytest.mark.spark
def test_a_query_that_is_refused_fails_the_step_and_writes_nothing(spark, house):
    house.write((at(1), 1, 5))
    for query, named in (("SELECT event_time, rand() AS r FROM f", r"rand\(\)"), ("SELECT * FROM planes", "planes")):
        with pytest.raises(InvalidInput, match=named):
            house.run(sql_asset("late", inputs={"f": FLIGHTS.key}, query=query))
    assert not house.project.table("late").exists()


def test_the_code_version_is_another_if_and_only_if_the_query_is(house):
    def version(**options):
        asset = sql_asset("late", inputs={"f": "flights"}, **options)
        return asset.code_versions_by_key[asset.key]

    one = version(query=LATE)
    assert one == version(query=LATE, description="of another")
    assert one == version(queries=[QueryStep(LATE)])
    assert len({one, version(query=LATE + " "), version(query=LATE, temporal_tables={"f": ["id"]})}) == 3


def test_what_an_asset_reads_is_named_in_any_way(house):
    key = dg.AssetKey(["raw", "flights"])
    for named in (
        key,
        dg.AssetIn(key),
        ["raw", "flights"],
        sql_asset("flights", key_prefix="raw", inputs={"x": "x"}, query=LATE),
    ):
        assert sql_asset("late", inputs={"f": named}, query=LATE).dependency_keys == {key}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "neither a query nor queries"),
        ({"query": LATE, "queries": [LATE]}, "a query and queries"),
        ({"queries": [LATE, LATE]}, "each but the last needs an alias"),
        ({"query": " "}, "empty"),
        ({"query": LATE, "temporal_tables": {"g": ["id"]}}, "'g' is no input"),
    ],
)
def test_an_asset_without_a_query_is_refused_when_it_is_defined(options, reason):
    with pytest.raises(InvalidInput, match=reason):
        sql_asset("late", inputs={"f": "flights"}, **options)
