"""An asset that depends on its own earlier partition starts: with nothing, as its annotation has it."""

import dagster as dg
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dagster_versioned import (
    EventHistory,
    Project,
    ProjectResource,
    SnapshotMerge,
    TableOptions,
    VersionedParquetIOManager,
)
from dagster_versioned.errors import TableNotFound, UnsupportedFrame, VersionNotFound
from support.house import changes

DAYS = dg.DailyPartitionsDefinition("2026-11-01", end_date="2026-11-06")
BEFORE = dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)
ALLOW = {"allow_missing_partitions": True}
FIRST, SECOND, THIRD, FOURTH = (f"2026-11-0{day}" for day in (1, 2, 3, 4))
LOCATION = "NOTHING_YET_TEST_LOCATION"


def arrow(frame):
    match frame:
        case None:
            return None
        case pl.LazyFrame():
            return frame.collect().to_arrow()
        case pl.DataFrame():
            return frame.to_arrow()
        case pd.DataFrame():
            return pa.Table.from_pandas(frame, preserve_index=False)
        case pa.RecordBatchReader():
            return frame.read_all()
        case _:
            return frame


def balance(annotation, seen, *, metadata=None, mapping=BEFORE, options=None, **more):
    """An asset that adds one to what it was on the day before, and hands what it was handed to the test."""

    def body(context, balance):
        seen.append(balance)
        before = arrow(balance) if not isinstance(balance, dict) else None
        n = before["n"][-1].as_py() if before is not None and before.num_rows else 0
        made = pa.table({"n": [n + 1]})
        return dict.fromkeys(context.partition_keys, made) if len(context.partition_keys) > 1 else made

    body.__annotations__ = {"balance": annotation} if annotation is not None else {}
    ins = {"balance": dg.AssetIn(partition_mapping=mapping, metadata=metadata)}
    return dg.asset(name="balance", partitions_def=DAYS, ins=ins, metadata=options, **more)(body)


KINDS = {
    "pyarrow": pa.Table,
    "reader": pa.RecordBatchReader,
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "lazy polars": pl.LazyFrame,
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_partition_gets_a_frame_without_rows_and_without_columns_before_there_are_any(house, kind):
    seen = []
    asset = balance(KINDS[kind], seen)
    for day in (FIRST, SECOND):
        house.run(asset, partition_key=day)
    assert [type(one) for one in seen] == [type(seen[1])] * 2
    assert isinstance(seen[0], KINDS[kind])
    assert house.project.table("balance").read(partition=SECOND)["n"].to_pylist() == [2]
    assert house.parents("balance", FIRST) == []


@pytest.mark.parametrize("kind", KINDS)
def test_where_the_columns_are_known_nothing_has_them(house, kind):
    house.project.table("balance").write(pa.table({"n": [5]}), partition=THIRD)
    seen = []
    for metadata, day in ((None, FIRST), (ALLOW, "2026-11-05")):
        house.run(balance(KINDS[kind], seen, metadata=metadata), partition_key=day)
    for one in map(arrow, seen):
        assert (one.schema.names, one.num_rows) == (["n"], 0)
    assert house.parents("balance", FIRST) == house.parents("balance", "2026-11-05") == []


@pytest.mark.every(3)
@pytest.mark.parametrize("known", [False, True], ids=["no table", "a table"])
@pytest.mark.parametrize("kind", KINDS)
def test_where_the_annotation_allows_none_nothing_is_none(house, kind, known):
    if known:
        house.project.table("balance").write(pa.table({"n": [5]}), partition=THIRD)
    seen = []
    house.run(balance(KINDS[kind] | None, seen, metadata=ALLOW), partition_key=SECOND)
    house.run(balance(KINDS[kind] | None, seen, metadata=ALLOW), partition_key=FOURTH if known else THIRD)
    assert seen[0] is None
    assert isinstance(seen[1], KINDS[kind])


def test_without_an_annotation_nothing_is_none_until_the_columns_are_known(house):
    seen = []
    asset = balance(None, seen, metadata=ALLOW)
    for day in (FIRST, FOURTH):
        house.run(asset, partition_key=day)
    assert seen[0] is None
    assert (seen[1].schema.names, seen[1].num_rows) == (["n"], 0)


def test_a_partition_that_has_no_version_is_missed_unless_the_input_may_do_without(house):
    with pytest.raises(TableNotFound, match=r"asset balance has no version"):
        house.run(balance(pa.Table, []), partition_key=SECOND)
    house.run(balance(pa.Table, []), partition_key=FIRST)
    with pytest.raises(VersionNotFound, match=r"Partition '2026-11-02' .*allow_missing_partitions"):
        house.run(balance(pa.Table, []), partition_key=THIRD)
    assert list(house.project.table("balance").partitions()) == [FIRST]


def test_of_several_partitions_those_that_are_there_are_handed_on(house):
    mapping = dg.TimeWindowPartitionMapping(start_offset=-3, end_offset=-1)
    for day, n in ((FIRST, 1), (THIRD, 3)):
        house.project.table("balance").write(pa.table({"n": [n]}), partition=day)
    seen = []
    for annotation in (dict[str, pa.Table], pa.Table, dict[str, pa.Table] | None):
        house.run(balance(annotation, seen, metadata=ALLOW, mapping=mapping), partition_key=FOURTH)
    assert {key: frame["n"].to_pylist() for key, frame in seen[0].items()} == {FIRST: [1], THIRD: [3]}
    assert seen[1]["n"].to_pylist() == [1, 3]
    assert seen[2].keys() == {FIRST, THIRD}
    heads = [("balance", key, house.head("balance", key).metadata_sha) for key in (FIRST, THIRD)]
    assert sorted(house.parents("balance", FOURTH)) == heads


@pytest.mark.parametrize(("annotation", "nothing"), [(dict[str, pa.Table], {}), (dict[str, pa.Table] | None, None)])
def test_of_no_partition_a_dict_is_empty(house, annotation, nothing):
    seen = []
    house.run(balance(annotation, seen), partition_key=FIRST)
    house.run(balance(annotation, seen, metadata=ALLOW), partition_key=FOURTH)
    assert seen == [nothing, nothing]


@pytest.mark.parametrize("metadata", [None, ALLOW])
def test_a_run_over_several_partitions_starts_with_what_was_there_before_it(house, metadata):
    seen = []
    asset = balance(dict[str, pa.Table], seen, metadata=metadata, backfill_policy=dg.BackfillPolicy.single_run())
    tags = {"dagster/asset_partition_range_start": FIRST, "dagster/asset_partition_range_end": THIRD}
    found = changes(house.run(asset, tags=tags))
    assert found == {f"balance[{day}]": "full" for day in (FIRST, SECOND, THIRD)}
    house.run(asset, tags=tags)
    assert [sorted(one) for one in seen] == [[], [FIRST, SECOND]]


def test_a_later_range_still_misses_what_it_does_not_make_itself(house):
    asset = balance(dict[str, pa.Table], [], backfill_policy=dg.BackfillPolicy.single_run())
    house.run(asset, partition_key=FIRST)
    tags = {"dagster/asset_partition_range_start": THIRD, "dagster/asset_partition_range_end": FOURTH}
    with pytest.raises(VersionNotFound, match=f"Partition '{SECOND}'"):
        house.run(asset, tags=tags)


def test_a_missing_partition_of_another_asset_is_handled_the_same_way(house):
    @dg.asset(partitions_def=DAYS)
    def up(context):
        return pa.table({"n": [1]})

    seen = []

    @dg.asset(partitions_def=DAYS, ins={"up": dg.AssetIn(metadata=ALLOW)})
    def down(up: pl.DataFrame | None):
        seen.append(up)
        return pa.table({"n": [2]})

    house.run(up, partition_key=FIRST)
    for day in (FIRST, SECOND):
        house.run(down, up, selection=[down], partition_key=day)
    assert [one if one is None else one["n"].to_list() for one in seen] == [[1], None]


def test_columns_that_are_asked_for_are_those_of_nothing_as_well(house):
    house.project.table("balance").write(pa.table({"n": [5], "m": [1]}), partition=THIRD)
    seen = []
    house.run(balance(pa.Table, seen, metadata={"dagster_versioned/columns": ["n"]}), partition_key=FIRST)
    assert seen[0].schema.names == ["n"]


def test_a_history_of_events_starts_with_nothing_too(house):
    options = TableOptions(history=EventHistory(merge=SnapshotMerge(primary_key=["n"]))).as_metadata()
    seen = []
    asset = balance(pa.Table, seen, options=options)
    for day in (FIRST, SECOND, FIRST):
        house.run(asset, partition_key=day, raise_on_error=False)
    assert (seen[0].schema.names, seen[0].num_rows) == ([], 0)
    assert seen[1]["n"].to_pylist() == [1]
    assert ("n" in seen[2].schema.names, seen[2].num_rows) == (True, 0)


def test_what_is_no_frame_is_refused_though_there_is_nothing_to_read(house):
    with pytest.raises(UnsupportedFrame, match=r"builtins\.str"):
        house.run(balance(str, []), partition_key=FIRST)


@dg.asset(partitions_def=DAYS, ins={"total": dg.AssetIn(partition_mapping=BEFORE)})
def total(total: pl.DataFrame | None) -> pl.DataFrame:
    return pl.DataFrame({"n": [1 if total is None else total["n"][0] + 1]})


def job():
    project = ProjectResource(name="HOUSE", location=dg.EnvVar(LOCATION))
    io_manager = VersionedParquetIOManager(project=project)
    job = dg.define_asset_job("total_job", "total")
    return dg.Definitions(assets=[total], jobs=[job], resources={"io_manager": io_manager}).resolve_job_def("total_job")


@pytest.mark.slow
def test_it_starts_where_each_step_is_a_process(tmp_path, monkeypatch):
    monkeypatch.setenv(LOCATION, str(tmp_path / "data"))
    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
        for day in (FIRST, SECOND):
            with dg.execute_job(dg.reconstructable(job), instance, tags={"dagster/partition": day}) as result:
                assert result.success
    project = Project.open("HOUSE", str(tmp_path / "data"))
    assert project.table("total").read(partition=SECOND)["n"].to_pylist() == [2]
