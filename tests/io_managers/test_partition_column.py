"""One frame with the partition key in a column: a version for each partition that the run covers, in one commit."""

import subprocess
import sys
import threading
from datetime import date, datetime

import dagster as dg
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dagster_versioned import TableOptions
from dagster_versioned.errors import EmptyTable, InvalidInput
from support.house import changes, materializations

KEYS = ["a", "b", "c"]
STATIC = dg.StaticPartitionsDefinition(KEYS)
SINGLE_RUN = dg.BackfillPolicy.single_run()


def range_tags(first, last):
    return {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}


def by_column(frame, column="k", partitions=STATIC, **options):
    metadata = {"partition_expr": column, **options.pop("metadata", {})}

    @dg.asset(name="daily", partitions_def=partitions, metadata=metadata, **{"backfill_policy": SINGLE_RUN, **options})
    def daily():
        return frame() if callable(frame) else frame

    return daily


@pytest.mark.parametrize(
    "make", [pa.table, pd.DataFrame, pl.DataFrame, pl.LazyFrame], ids=["arrow", "pd", "pl", "lazy"]
)
def test_each_partition_gets_its_rows_in_one_commit(house, make):
    frame = make({"k": ["c", "a", "b", "a"], "n": [1, 2, 3, 4]})
    found = materializations(house.run(by_column(frame), tags=range_tags("a", "c")))
    table = house.project.table("daily")
    assert {version.log_version for version in table.history()} == {0}
    assert {key: table.read(partition=key)["n"].to_pylist() for key in KEYS} == {"a": [2, 4], "b": [3], "c": [1]}
    counts = {key: found["daily", key].metadata["dagster/partition_row_count"].value for key in KEYS}
    assert counts == {"a": 2, "b": 1, "c": 1}


def test_a_frame_with_a_column_and_a_dict_by_key_are_the_same_versions(house):
    frame = pa.table({"k": ["a", "b"], "n": [1, 2]})
    house.run(by_column(frame), tags=range_tags("a", "b"))
    by_key = {"a": frame.slice(0, 1), "b": frame.slice(1, 1)}
    assert set(changes(house.run(by_column(by_key), tags=range_tags("a", "b"))).values()) == {"none"}


@pytest.mark.parametrize("policy", [SINGLE_RUN, dg.BackfillPolicy.multi_run(2), dg.BackfillPolicy.multi_run(1), None])
def test_the_backfill_policy_changes_how_many_commits_there_are_and_no_version(house, policy):
    """A run for the whole range, or one for each so many partitions: of one by its key, or by a range of one."""

    @dg.asset(partitions_def=STATIC, backfill_policy=policy, metadata={"partition_expr": "k"})
    def daily(context):
        keys = context.partition_keys
        return pa.table({"k": keys, "n": [KEYS.index(key) for key in keys]})

    size = 1 if policy is None else policy.max_partitions_per_run or len(KEYS)
    chunks = [KEYS[i : i + size] for i in range(0, len(KEYS), size)]
    for chunk in chunks:
        chosen = {"partition_key": chunk[0]} if policy is None else {"tags": range_tags(chunk[0], chunk[-1])}
        assert house.run(daily, **chosen).success
    history = house.project.table("daily").history()
    assert len({version.log_version for version in history}) == len(chunks)
    for i, key in enumerate(KEYS):
        house.project.table("alone").write(pa.table({"k": [key], "n": [i]}), partition=key, asset_key=["daily"])
        assert house.head("daily", key).metadata_sha == house.head("alone", key).metadata_sha


DAYS = dg.DailyPartitionsDefinition(start_date="2024-01-01", end_date="2024-01-04")
THREE_DAYS = range_tags("2024-01-01", "2024-01-03")


@pytest.mark.parametrize(
    "moments",
    [
        [date(2024, 1, 1), date(2024, 1, 2), date(2024, 1, 3)],
        [datetime(2024, 1, 1), datetime(2024, 1, 2, 23, 59), datetime(2024, 1, 3, 12)],
        ["2024-01-01", "2024-01-02", "2024-01-03"],
    ],
    ids=["dates", "timestamps", "texts"],
)
def test_days_are_told_by_dates_timestamps_or_texts(house, moments):
    house.run(by_column(pa.table({"t": moments}), "t", DAYS), tags=THREE_DAYS)
    table = house.project.table("daily")
    assert [table.read(partition=str(key))["t"].to_pylist() for key in table.partitions()] == [[one] for one in moments]


def test_days_in_a_time_zone_begin_at_its_midnight(house):
    days = dg.DailyPartitionsDefinition(start_date="2024-01-01", end_date="2024-01-03", timezone="America/New_York")
    moments = pa.array([datetime(2024, 1, 1, 5), datetime(2024, 1, 2, 4, 59), datetime(2024, 1, 2, 5)])
    frame = pa.table({"t": moments.cast(pa.timestamp("us", "UTC"))})
    house.run(by_column(frame, "t", days), tags=range_tags("2024-01-01", "2024-01-02"))
    assert [house.head("daily", key).identity.nrow for key in ("2024-01-01", "2024-01-02")] == [2, 1]


def test_dimensions_have_a_column_each(house):
    partitions = dg.MultiPartitionsDefinition({"day": DAYS, "where": STATIC})
    frame = pa.table({"t": [date(2024, 1, 2)] * 2, "w": ["b", "a"], "n": [1, 2]})
    daily = by_column(frame, {"day": "t", "where": "w"}, partitions)
    house.run(daily, tags=range_tags("2024-01-02|a", "2024-01-02|b"))
    table = house.project.table("daily")
    assert {key: table.read(partition=key)["n"].to_pylist() for key in table.partitions()} == {
        "2024-01-02|a": [2],
        "2024-01-02|b": [1],
    }


@pytest.mark.parametrize("column", [["k"], {"day": "t"}, "t"])
def test_columns_that_do_not_fit_the_dimensions_are_refused(house, column):
    partitions = dg.MultiPartitionsDefinition({"day": DAYS, "where": STATIC})
    with pytest.raises(InvalidInput, match="a dict of column names by dimension"):
        house.run(by_column(pa.table({"t": [1]}), column, partitions), partition_key="2024-01-02|a")


def test_a_row_of_another_partition_is_refused_and_nothing_is_written(house):
    for kwargs in ({"partition_key": "a"}, {"tags": range_tags("a", "b")}):
        with pytest.raises(InvalidInput, match=r"'k' is 'c' \(1 rows\)"):
            house.run(by_column(pa.table({"k": ["a", "b", "c"]}).slice(0 if "tags" in kwargs else 2)), **kwargs)
    assert not house.project.table("daily").exists()


def test_a_partition_of_the_run_without_rows_is_refused_unless_empty_ones_are_allowed(house):
    frame = pa.table({"k": ["a"]})
    with pytest.raises(EmptyTable, match="'b'"):
        house.run(by_column(frame), tags=range_tags("a", "b"))
    metadata = TableOptions(allow_empty=True).as_metadata()
    house.run(by_column(frame, metadata=metadata), tags=range_tags("a", "b"))
    assert house.head("daily", "b").identity.nrow == 0


def test_a_frame_for_several_partitions_without_a_column_is_refused_with_both_ways(house):
    @dg.asset(partitions_def=STATIC, backfill_policy=SINGLE_RUN)
    def daily():
        return pa.table({"k": ["a", "b"]})

    with pytest.raises(InvalidInput, match=r"dict of frames by partition key.*\{'partition_expr': 'day'\}"):
        house.run(daily, tags=range_tags("a", "b"))


def test_one_several_or_all_partitions_are_loaded(house):
    house.run(by_column(pa.table({"k": KEYS, "n": [1, 2, 3]})), tags=range_tags("a", "c"))
    daily = by_column(None)
    seen = {}

    def reader(name, **options):
        @dg.asset(name=name, **options)
        def down(daily: pa.Table) -> None:
            seen[name] = daily["n"].to_pylist()

        return down

    several = dg.AssetIn(partition_mapping=dg.SpecificPartitionsPartitionMapping(["a", "c"]))
    house.run(daily, reader("one", partitions_def=STATIC), selection="one", partition_key="b")
    house.run(daily, reader("several", ins={"daily": several}), selection="several")
    house.run(daily, reader("everything"), selection="everything")
    assert seen == {"one": [2], "several": [1, 3], "everything": [1, 2, 3]}


def test_a_failed_ranged_run_leaves_every_partition_as_it_was(house):
    house.run(by_column(pa.table({"k": KEYS, "n": [1, 2, 3]})), tags=range_tags("a", "c"))
    bad = {"a": pa.table({"n": [9]}), "b": pa.table({"n": [9]}), "c": 3}
    house.run(by_column(bad), tags=range_tags("a", "c"), raise_on_error=False)
    assert house.project.table("daily").read()["n"].to_pylist() == [1, 2, 3]


def test_eight_concurrent_partition_runs_make_eight_versions_and_no_retry(house):
    """Each run an instance, an IO manager and a table of its own, as in as many processes; all commit at once."""
    keys = [f"k{i}" for i in range(8)]
    together = threading.Barrier(len(keys), timeout=240)
    results = {}

    @dg.asset(partitions_def=dg.StaticPartitionsDefinition(keys))
    def daily(context):
        together.wait()
        return pa.table({"s": [context.partition_key]})

    def run(key):
        with dg.DagsterInstance.ephemeral() as instance:
            results[key] = dg.materialize(
                [daily], instance=instance, resources={"io_manager": house.io_manager()}, partition_key=key
            )

    threads = [threading.Thread(target=run, args=(key,)) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {key: changes(result) for key, result in results.items()} == {key: {f"daily[{key}]": "full"} for key in keys}
    assert not [e for r in results.values() for e in r.all_events if "RETRY" in e.event_type_value]
    table = house.project.table("daily")
    assert sorted(version.partition for version in table.history()) == keys
    assert {key: table.read(partition=key)["s"].to_pylist() for key in keys} == {key: [key] for key in keys}
    assert table.verify().ok


ONE_RUN = """
import sys

import dagster as dg
import pyarrow as pa

from dagster_versioned import ProjectResource, VersionedParquetIOManager

location, key, *keys = sys.argv[1:]


@dg.asset(partitions_def=dg.StaticPartitionsDefinition(keys))
def daily(context):
    print("ready", flush=True)
    sys.stdin.readline()
    return pa.table({"s": [context.partition_key]})


manager = VersionedParquetIOManager(project=ProjectResource(name="HOUSE", location=location))
with dg.DagsterInstance.ephemeral() as instance:
    result = dg.materialize([daily], instance=instance, resources={"io_manager": manager}, partition_key=key)
print(*(event.event_type_value for event in result.all_events))
"""


@pytest.mark.slow
def test_eight_processes_that_write_a_partition_each_make_eight_versions_and_no_retry(house):
    keys = [f"k{i}" for i in range(8)]
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", ONE_RUN, house.location, key, *keys],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for key in keys
    ]
    for run in runs:
        assert run.stdout.readline() == "ready\n"
    for run in runs:  # all of them are in the asset now
        run.stdin.write("go\n")
        run.stdin.flush()
    for run in runs:
        events, _ = run.communicate(timeout=200)
        assert "PIPELINE_SUCCESS" in events
        assert "RETRY" not in events
    table = house.project.table("daily")
    assert sorted(version.partition for version in table.history()) == keys
    assert table.read()["s"].to_pylist() == keys
    assert table.verify().ok
