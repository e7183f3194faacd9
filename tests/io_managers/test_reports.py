"""What follows a commit: nothing of it fails the step."""

import dagster as dg
import pyarrow as pa
import pytest

from dagster_versioned import Project, ProjectResource, VersionedParquetIOManager
from dagster_versioned.storage import LocalStore
from dagster_versioned.storage.wrappers import Call, Fault, FaultStore
from support.house import materializations


class Outage:
    """A store that is away from its first commit to the moment it is mended."""

    def __init__(self, root: str) -> None:
        self.began = False
        self.store = FaultStore(LocalStore(root), self.decide)

    def decide(self, call: Call) -> Fault | None:
        if self.began:
            return Fault.BEFORE
        self.began = call.verb == "put_if_absent" and "_delta_log/" in call.key
        return None


def io_manager_on(store, **options):
    class Away(ProjectResource):
        """The same project, over another store."""

        def project(self) -> Project:
            return Project("HOUSE", store)

    return VersionedParquetIOManager(project=Away(name="HOUSE", location="/nowhere"), **options)


def warnings_of(house, result):
    return [entry.user_message for entry in house.instance.all_logs(result.run_id) if entry.level == 30]


@pytest.mark.parametrize("partitions", [None, ["a"], ["a", "b", "c"]], ids=["whole", "one partition", "several"])
def test_a_store_that_is_away_after_the_commit_fails_no_step(house, partitions):
    outage = Outage(house.location)
    definition = dg.StaticPartitionsDefinition(partitions) if partitions else None

    @dg.asset(partitions_def=definition, backfill_policy=dg.BackfillPolicy.single_run() if partitions else None)
    def one(context):
        rows = pa.table({"n": [1]})
        return dict.fromkeys(context.partition_keys, rows) if partitions else rows

    ends = {"start": partitions[0], "end": partitions[-1]} if partitions else {}
    tags = {f"dagster/asset_partition_range_{end}": key for end, key in ends.items()}
    result = house.run(one, io_manager=io_manager_on(outage.store, preview_rows=5), tags=tags)
    assert outage.began
    for key in partitions or [None]:
        metadata = materializations(result)["one", key].metadata
        assert metadata["dagster_versioned/metadata_sha"].value == house.head("one", key).metadata_sha
        assert "dagster_versioned/preview" not in metadata
    told = warnings_of(house, result)
    assert any("what was written is committed, but a preview of the rows could not be read" in text for text in told)
    assert len(told) == len(set(told)) <= 2  # however many partitions there are


def test_a_later_output_of_the_step_still_records_the_one_that_was_made_in_an_outage(house):
    outage = Outage(house.location)

    @dg.multi_asset(
        outs={"first": dg.AssetOut(), "second": dg.AssetOut()},
        internal_asset_deps={"first": set(), "second": {dg.AssetKey("first")}},
    )
    def two():
        yield dg.Output(pa.table({"n": [1]}), "first")
        outage.decide = lambda call: None
        outage.began = False
        yield dg.Output(pa.table({"n": [2]}), "second")

    store = FaultStore(LocalStore(house.location), lambda call: outage.decide(call))
    house.run(two, io_manager=io_manager_on(store))
    assert house.parents("second") == [("first", None, house.head("first").metadata_sha)]


def told_of(house, result):
    """The lines of a run's log that say what became of an output."""
    entries = house.instance.all_logs(result.run_id)
    return [entry.user_message for entry in entries if entry.level == 20 and " in " in entry.user_message]


def test_the_log_of_a_run_says_in_one_line_what_became_of_each_asset(house):
    @dg.asset
    def up(context):
        return pa.table({"n": [1, 2, int(context.run.tags.get("third", 3))]})

    @dg.asset
    def down(up):
        return up.slice(0, 1)

    def told(**tags):
        result = house.run(up, down, tags=tags)
        return told_of(house, result), [house.head(name).short for name in ("up", "down")]

    lines, (first, below) = told()
    assert lines == [f"up: full, version {first}, 3 rows in 1 part.", f"down: full, version {below}, 1 row in 1 part."]
    lines, same = told()
    assert same == [first, below]
    assert lines == [f"up: none, version {first}, 3 rows in 1 part.", f"down: none, version {below}, 1 row in 1 part."]
    lines, (second, later) = told(third="4")
    assert lines == [
        f"up: full, version {second}, 3 rows in 1 part.",
        f"down: metadata_only, version {later}, 1 row in 1 part.",
    ]


def test_the_log_of_a_run_over_partitions_names_some_of_each_change(house):
    keys = list("abcde")

    @dg.asset(partitions_def=dg.StaticPartitionsDefinition(keys), backfill_policy=dg.BackfillPolicy.single_run())
    def daily(context):
        return {key: pa.table({"n": [context.run.tags.get("last", "x") if key == "e" else key]}) for key in keys}

    ends = {"dagster/asset_partition_range_start": "a", "dagster/asset_partition_range_end": "e"}
    house.run(daily, tags=ends)
    (line,) = told_of(house, house.run(daily, tags=ends | {"last": "y"}))
    short = {key: house.head("daily", key).short for key in keys}
    same = ", ".join(f"{key}={short[key]}" for key in "abc")
    assert line == f"daily, 5 partitions: 4 none ({same}, …), 1 full (e={short['e']}), 5 rows in 5 parts."

    @dg.asset(key=daily.key, partitions_def=daily.partitions_def)
    def alone():
        return pa.table({"n": ["z"]})

    one = house.run(alone, partition_key="e")
    assert told_of(house, one) == [f"daily[e]: full, version {house.head('daily', 'e').short}, 1 row in 1 part."]
