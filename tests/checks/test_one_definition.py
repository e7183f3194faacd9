"""`OneDefinition`: whether a table was written by the definition that wrote it before."""

import dagster as dg
import pyarrow as pa
import pytest

from dagster_versioned import OneDefinition, TableOptions, build_version_checks
from support.house import materializations

OTHER = "dagster_versioned/other_definition"


@dg.asset(name="orders")
def of_the_shop():
    return pa.table({"n": [1]})


@dg.asset(name="orders", code_version="other team")
def of_the_bank():
    return pa.table({"n": ["one"]})


@pytest.mark.parametrize("blocking", [False, True])
def test_a_check_can_keep_what_is_downstream_from_the_second_definition(house, blocking):
    @dg.asset
    def down(orders):
        return orders

    def run(asset):
        checks = build_version_checks([asset], [OneDefinition(blocking=blocking)])
        return house.run(asset, down, *checks, raise_on_error=False)

    assert all(one.passed for one in run(of_the_shop).get_asset_check_evaluations())
    result = run(of_the_bank)
    (verdict,) = result.get_asset_check_evaluations()
    assert not verdict.passed
    assert "of_the_shop" in verdict.description
    assert "of_the_bank" in verdict.description
    assert ("down" in {one for one, _ in materializations(result)}) is not blocking


def test_the_partitions_of_one_commit_are_judged_once(house):
    days = dg.StaticPartitionsDefinition(["a", "b"])
    tags = {"dagster/asset_partition_range_start": "a", "dagster/asset_partition_range_end": "b"}

    def asset(value):
        def body(context):
            return dict.fromkeys(context.partition_keys, pa.table({"n": [value]}))

        body.__qualname__ = f"body_{value}"
        single = dg.BackfillPolicy.single_run()
        options = TableOptions().as_metadata()
        return dg.asset(name="daily", partitions_def=days, backfill_policy=single, metadata=options)(body)

    house.run(asset(1), tags=tags)
    result = house.run(asset(2), *build_version_checks(["daily"], [OneDefinition()]), tags=tags)
    assert materializations(result)["daily", "a"].metadata[OTHER].value.count("body_1") == 1
    (verdict,) = result.get_asset_check_evaluations()
    assert verdict.description.count("body_1") == 1
