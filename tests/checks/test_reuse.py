"""`ReuseIsHonest`: whether a computation that was made again gave the same rows."""

import itertools

import dagster as dg
import pyarrow as pa

from dagster_versioned import ReuseIsHonest, build_version_checks, versioned_asset

count = itertools.count()


def drawn(code_version):
    @versioned_asset(code_version=code_version)
    def drawn() -> pa.Table:
        return pa.table({"n": [next(count) if code_version == "1" else 0]})

    return drawn


def test_a_computation_that_gave_other_rows_fails_until_another_one_is_the_head(house):
    def verdict(code_version, **tags):
        asset = drawn(code_version)
        result = house.run(asset, *build_version_checks([asset], [ReuseIsHonest()]), tags=tags, raise_on_error=False)
        (one,) = result.get_asset_check_evaluations()
        return one

    again = {"dagster_versioned/recompute": "true"}
    assert verdict("1").passed
    assert verdict("1").passed
    failed = verdict("1", **again)
    assert not failed.passed
    assert "gave other rows" in failed.description
    assert failed.metadata["contradicted_keys"] == dg.IntMetadataValue(1)
    assert verdict("2", **again).passed
    assert verdict("2", **again).passed
