"""Partitions: one version for each, in one commit for a run over several; inputs by partition mapping."""

import dagster as dg
import pandas as pd
import pyarrow as pa
import pytest

from dagster_versioned.errors import InvalidInput, VersionNotFound
from support.house import changes, materializations

DAYS = dg.StaticPartitionsDefinition(["a", "b", "c"])
SINGLE_RUN = dg.BackfillPolicy.single_run()


def range_tags(first, last):
    return {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}


def daily(value=lambda key: [key], name="daily", **options):
    @dg.asset(name=name, partitions_def=DAYS, backfill_policy=SINGLE_RUN, **options)
    def asset(context) -> dict[str, pa.Table]:
        return {key: pa.table({"s": value(key)}) for key in context.partition_keys}

    return asset


def test_one_partition_is_one_version(house):
    @dg.asset(partitions_def=DAYS)
    def daily(context):
        return pa.table({"s": [context.partition_key]})

    result = house.run(daily, partition_key="b")
    one = materializations(result)["daily", "b"]
    assert one.metadata["dagster/partition_row_count"].value == 1
    assert "dagster/row_count" not in one.metadata
    assert one.tags["dagster/data_version"] == house.head("daily", "b").metadata_sha
    assert list(house.project.table("daily").partitions()) == ["b"]


def test_a_run_over_several_partitions_is_one_commit_with_a_version_for_each(house):
    shown = house.io_manager(preview_rows=5)
    found = materializations(house.run(daily(), tags=range_tags("a", "c"), io_manager=shown))
    table = house.project.table("daily")
    assert {version.log_version for version in table.history()} == {0}
    for key in "abc":
        metadata = found["daily", key].metadata
        assert table.read(partition=key).to_pydict() == {"s": [key]}
        assert metadata["dagster_versioned/metadata_sha"].value == house.head("daily", key).metadata_sha
        assert metadata["dagster_versioned/preview"].value.startswith(f"| s |\n| --- |\n| {key} |")


TIMES = {"b": 1}


def test_only_partitions_that_changed_get_a_version(house, monkeypatch):
    repeated = daily(lambda key: [key * TIMES.get(key, 1)])
    house.run(repeated, tags=range_tags("a", "c"))
    monkeypatch.setitem(TIMES, "b", 2)
    result = house.run(repeated, tags=range_tags("a", "c"))
    assert changes(result) == {"daily[a]": "none", "daily[b]": "full", "daily[c]": "none"}
    assert len(house.project.table("daily").history()) == 4


def test_other_code_of_equal_rows_is_recorded_with_the_same_versions(house):
    house.run(daily(), tags=range_tags("a", "b"))
    before = {head.partition: head.metadata_sha for head in house.project.table("daily").history()}
    result = house.run(daily(lambda key: [key * 1]), tags=range_tags("a", "b"))
    assert changes(result) == {"daily[a]": "metadata_only", "daily[b]": "metadata_only"}
    assert {head.partition: head.metadata_sha for head in house.project.table("daily").history()} == before
    again = house.run(daily(lambda key: [key * 1]), tags=range_tags("a", "b"))
    assert changes(again) == {"daily[a]": "none", "daily[b]": "none"}


def test_a_dict_is_taken_for_one_partition_too(house):
    house.run(daily(), partition_key="b")
    assert house.project.table("daily").read(partition="b").to_pydict() == {"s": ["b"]}


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (pa.table({"s": ["x"]}), r"covers 2 partitions of daily \('a', 'b'\), but the value is one Table"),
        ({"a": pa.table({"s": ["x"]})}, "lacks 'b'"),
        ({key: pa.table({"s": ["x"]}) for key in "abc"}, "also has 'c'"),
    ],
)
def test_a_value_that_does_not_match_the_runs_partitions_is_refused_and_nothing_is_written(house, value, fault):
    @dg.asset(partitions_def=DAYS, backfill_policy=SINGLE_RUN)
    def daily():
        return value

    with pytest.raises(InvalidInput, match=fault):
        house.run(daily, tags=range_tags("a", "b"))
    assert not house.project.table("daily").exists()


def test_keys_of_several_dimensions_and_with_slashes_are_partitions(house):
    dimensions = dg.MultiPartitionsDefinition({"day": dg.StaticPartitionsDefinition(["1/2"]), "where": DAYS})
    key = dg.MultiPartitionKey({"day": "1/2", "where": "a"})

    @dg.asset(partitions_def=dimensions)
    def daily():
        return pa.table({"n": [1]})

    @dg.asset(partitions_def=dimensions)
    def copy(daily):
        return daily

    house.run(daily, copy, partition_key=key)
    assert list(house.project.table("copy").partitions()) == ["1/2|a"]


def downstream(seen, annotation=None, **options):
    def down(daily):
        seen.append(daily)

    down.__annotations__ = {"return": None, **({"daily": annotation} if annotation is not None else {})}
    return dg.asset(**options)(down)


def test_a_partition_reads_the_partition_it_maps_to(house):
    seen = []
    house.run(daily(), downstream(seen, partitions_def=DAYS), partition_key="b")
    assert seen[0].to_pydict() == {"s": ["b"]}


def test_an_asset_without_partitions_reads_all_as_one_frame(house):
    seen = []
    for key in "cab":
        house.run(daily(), partition_key=key)
    house.run(daily(), downstream(seen), selection="down")
    assert seen[0]["s"].to_pylist() == ["a", "b", "c"]


@pytest.mark.parametrize(
    "annotation", [dict[str, pd.DataFrame], dict[str, pd.DataFrame | None]], ids=["frames", "perhaps frames"]
)
def test_several_partitions_come_by_key_if_the_input_is_annotated_so(house, annotation):
    seen = []
    for key in "cab":
        house.run(daily(), partition_key=key)
    house.run(daily(), downstream(seen, annotation), selection="down")
    assert [(key, frame["s"].tolist()) for key, frame in seen[0].items()] == [("a", ["a"]), ("b", ["b"]), ("c", ["c"])]


def test_an_explicit_mapping_is_followed(house):
    seen = []
    ins = {"daily": dg.AssetIn(partition_mapping=dg.SpecificPartitionsPartitionMapping(["a", "c"]))}
    house.run(daily(), tags=range_tags("a", "c"))
    house.run(daily(), downstream(seen, ins=ins), selection="down")
    assert seen[0]["s"].to_pylist() == ["a", "c"]


def test_several_partitions_come_in_the_order_of_their_keys(house):
    """Dagster keeps the keys of a range in a set of texts, whose order is another in every process."""
    keys = [f"k{number:02}" for number in range(20)]
    days = dg.StaticPartitionsDefinition(keys)

    @dg.asset(partitions_def=days, backfill_policy=SINGLE_RUN)
    def daily(context) -> dict[str, pa.Table]:
        return {key: pa.table({"s": [key]}) for key in context.partition_keys}

    seen = []
    house.run(daily, tags=range_tags(keys[0], keys[-1]))
    down = downstream(seen, partitions_def=days, backfill_policy=SINGLE_RUN)
    house.run(daily, down, selection="down", tags=range_tags(keys[0], keys[-2]))
    assert seen[0]["s"].to_pylist() == keys[:-1]


def test_missing_partitions_are_named_with_what_to_run(house):
    house.run(daily(), partition_key="a")
    with pytest.raises(VersionNotFound, match=r"Partition 'b', 'c' of the asset daily has no version.*--partition 'b'"):
        house.run(daily(), downstream([]), selection="down")


def test_missing_partitions_can_be_allowed(house):
    seen = []
    house.run(daily(), partition_key="a")
    ins = {"daily": dg.AssetIn(metadata={"allow_missing_partitions": True})}
    house.run(daily(), downstream(seen, ins=ins), selection="down")
    assert seen[0].to_pydict() == {"s": ["a"]}


def test_a_pin_reads_all_partitions_as_they_were_then(house):
    house.run(daily(), tags=range_tags("a", "c"))
    house.run(daily(lambda key: [key * 2]), tags=range_tags("a", "b"))
    seen = []
    down = downstream(seen, dict[str, pa.Table])
    house.run(daily(), down, selection="down", tags={"dagster_versioned/pin/daily": "@0"})
    assert {key: frame["s"].to_pylist() for key, frame in seen[0].items()} == {"a": ["a"], "b": ["b"], "c": ["c"]}


# Lineage


def test_the_whole_table_is_one_parent(house):
    house.run(daily(), daily_total(), tags=range_tags("a", "c"))
    table = house.project.table("daily")
    assert house.parents("total") == [("daily", None, table.state.history.whole.metadata_sha)]


def daily_total():
    @dg.asset
    def total(daily):
        return daily

    return total


def test_a_partition_of_a_ranged_run_has_the_parents_that_it_has_alone(house):
    """Else a backfill in one run and one in many would make different versions of the same thing."""

    @dg.asset(partitions_def=DAYS, backfill_policy=SINGLE_RUN)
    def copy(daily: dict[str, pa.Table]) -> dict[str, pa.Table]:
        return daily

    house.run(daily(), copy, tags=range_tags("a", "c"))
    for key in "abc":
        assert house.parents("copy", key) == [("daily", key, house.head("daily", key).metadata_sha)]
        assert changes(house.run(daily(), copy, partition_key=key, selection="copy")) == {f"copy[{key}]": "none"}


def test_a_partition_that_needs_its_predecessor_names_it_and_not_itself(house):
    days = dg.DailyPartitionsDefinition(start_date="2024-01-01", end_date="2024-01-04")
    before = dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)

    @dg.asset(partitions_def=days, ins={"total": dg.AssetIn(partition_mapping=before)})
    def total(context, total: dict[str, pa.Table]):
        return pa.table({"n": [1 + sum(sum(frame["n"].to_pylist()) for frame in total.values())]})

    first, second = "2024-01-02", "2024-01-03"
    house.project.table("total").write(pa.table({"n": [1]}), partition="2024-01-01")
    house.run(total, partition_key=first)
    house.run(total, partition_key=second)
    assert house.project.table("total").read(partition=second)["n"].to_pylist() == [3]
    assert house.parents("total", second) == [("total", first, house.head("total", first).metadata_sha)]
