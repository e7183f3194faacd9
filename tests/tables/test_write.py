"""What a write commits: nothing, metadata only, or everything; and what it refuses before anything is written."""

import hashlib
import json
from typing import Any

import orjson
import polars as pl
import pyarrow as pa
import pytest

from dagster_versioned.delta.log.commits import commit_key
from dagster_versioned.errors import (
    EmptyTable,
    InvalidInput,
    InvalidMetadata,
    InvalidName,
    UnsupportedFrame,
    UnsupportedType,
)
from dagster_versioned.identity.version import Run
from dagster_versioned.projects.project import Project
from dagster_versioned.storage.wrappers import Call, CountingStore, Fault, FaultStore
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.table import VersionedTable
from support.stores import contents


def test_the_first_write_is_full_and_equal_rows_again_are_none(table: VersionedTable, rows: pa.Table) -> None:
    first = table.write(rows)
    before = contents(table.project.store)
    again = table.write(rows.slice(0))
    assert (first.change, again.change) == ("full", "none")
    assert again.version == first.version
    assert again.bytes_uploaded == 0
    assert contents(table.project.store) == before


def test_other_metadata_makes_a_version_without_writing_a_part(table: VersionedTable, rows: pa.Table) -> None:
    first = table.write(rows, code_version="1")
    second = table.write(rows, code_version="2")
    assert second.change == "metadata_only"
    assert second.bytes_uploaded == 0
    assert second.version.data_sha == first.version.data_sha
    assert second.version.metadata_sha != first.version.metadata_sha
    assert table.read(0).equals(table.read(1))


def test_data_sha_of_one_part_is_the_sha256_of_its_file(table: VersionedTable, rows: pa.Table) -> None:
    written = table.write(rows).version
    data = table.store.get(f"{written.data_sha}.parquet")
    assert hashlib.sha256(data).hexdigest() == written.data_sha


def test_metadata_sha_follows_from_the_log_by_ten_independent_lines(table: VersionedTable, rows: pa.Table) -> None:
    table.write(rows, code_version="1", message="Ünïcode ✓", options=TableOptions(custom={"b": [1.5, 2], "a": None}))
    log = table.store.local_path("_delta_log/00000000000000000000.json")
    assert log is not None
    line = json.loads(log.read_text().splitlines()[0])
    entry = line["commitInfo"]["dagsterVersioned"]["versions"][0]
    canonical = json.dumps(entry["identity"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert hashlib.sha256(canonical.encode()).hexdigest() == entry["metadata_sha"]


@pytest.mark.parametrize("options", [TableOptions(compression="snappy"), TableOptions(row_group_bytes=100_000)])
def test_equal_rows_stored_another_way_are_none(table: VersionedTable, options: TableOptions) -> None:
    frame = pa.table({"n": list(range(50_000)), "text": [f"row {n}" for n in range(50_000)]})
    table.write(frame)
    before = contents(table.project.store)
    assert table.write(frame, options=options).change == "none"
    assert contents(table.project.store) == before


def test_row_order_counts_where_it_is_significant_only(project: Project, rows: pa.Table) -> None:
    reversed_rows = rows.take([2, 1, 0])
    ordered, bag = project.table("ordered"), project.table("bag")
    ignored = TableOptions(row_order="ignored")
    assert ordered.write(rows).change == "full"
    assert ordered.write(reversed_rows).change == "full"
    assert bag.write(rows, options=ignored).change == "full"
    assert bag.write(reversed_rows, options=ignored).change == "none"


def test_sorted_rows_and_columns_make_an_identity_without_either_order(project: Project) -> None:
    options = TableOptions(sort_rows=("day",), sort_columns=True)
    frame = pa.table({"day": [2, 1, 2], "x": ["b", "c", "a"]})
    other = pa.table({"x": ["a", "b", "c"], "day": [2, 2, 1]})
    one, two = project.table("one"), project.table("two")
    assert one.write(frame, options=options).version.data_sha == two.write(other, options=options).version.data_sha
    assert one.read().column_names == ["day", "x"]
    assert one.read()["day"].to_pylist() == [1, 2, 2]


def test_equal_data_among_the_last_versions_is_not_uploaded_again(
    table: VersionedTable, rows: pa.Table, more: pa.Table
) -> None:
    a = table.write(rows)
    table.write(more)
    back = table.write(rows)
    assert back.change == "full"
    assert back.bytes_uploaded == 0
    assert back.version.metadata_sha == a.version.metadata_sha
    assert back.version.log_version == 2


def test_data_of_a_version_whose_commits_are_cleaned_up_is_written_anew(
    project: Project, table: VersionedTable
) -> None:
    for n in range(7):
        table.write(pa.table({"n": [n]}))
    table.store.delete([commit_key(version) for version in range(5)])
    for each in (table, Project("NYC", project.store).table("flights")):
        assert each.write(pa.table({"n": [3]})).change == "full"
        assert each.read().to_pylist() == [{"n": 3}]
        assert each.write(pa.table({"n": [4]})).change == "full"


def test_an_equal_second_write_puts_nothing_into_the_store(project: Project, rows: pa.Table) -> None:
    store = CountingStore(project.store)
    table = Project("NYC", store).table("flights")
    table.write(rows)
    store.reset()
    table.write(rows)
    assert store.bytes_written == 0
    assert store.count("put", "put_file", "put_if_absent", "put_if_match", "copy") == 0


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "truncated"])
def test_a_damaged_part_is_healed_by_materializing_again(table: VersionedTable, rows: pa.Table, is_lost: bool) -> None:
    written = table.write(rows)
    key = f"{written.version.data_sha}.parquet"
    truncated = table.store.get(key)[:-1]
    table.store.delete([key]) if is_lost else table.store.put(key, truncated)
    assert table.write(rows).change == "none"
    assert table.verify().ok
    assert table.read().equals(table.read(written.version.metadata_sha))


def test_a_retried_step_gets_its_own_commit_back(table: VersionedTable, rows: pa.Table, more: pa.Table) -> None:
    first = table.write(rows, run=Run("run-1", "flights", 0))
    table.write(more, run=Run("run-2", "flights", 0))
    retried = table.write(rows, run=Run("run-1", "flights", 1))
    assert retried.replayed
    assert retried.version == first.version
    assert table.version().log_version == 1


def test_a_retried_step_that_computed_something_else_commits_it(
    table: VersionedTable, rows: pa.Table, more: pa.Table
) -> None:
    table.write(rows, run=Run("run-1", "flights", 0))
    retried = table.write(more, run=Run("run-1", "flights", 1))
    assert (retried.change, retried.replayed) == ("full", False)


def test_parents_and_sources_are_recorded_and_a_table_is_no_parent_of_itself(project: Project, rows: pa.Table) -> None:
    source, middle, end = project.table("source"), project.table("middle"), project.table("end")
    imported = source.write(rows).version
    middle.write(rows.select(["delay"]), parents=source.upstream())
    end.write(rows.select(["carrier"]), parents=[*middle.upstream(), *middle.upstream()])
    identity = end.version().identity
    assert [(p.table, p.version) for p in identity.parents] == [("middle", middle.version().metadata_sha)]
    assert [(s.table, s.version_sha) for s in identity.source_lineage] == [("source", imported.metadata_sha)]
    assert (imported.identity.table_type, identity.table_type) == ("imported", "derived")
    again = end.write(rows.select(["carrier"]), parents=[*middle.upstream(), *end.upstream()])
    assert again.change == "none"


def test_partitions_have_versions_of_their_own(table: VersionedTable, rows: pa.Table, more: pa.Table) -> None:
    a = table.write(rows, partition="2013-01")
    b = table.write(rows, partition="2013-02")
    assert a.version.data_sha != b.version.data_sha, "equal rows in two partitions must be two files"
    assert table.read().num_rows == 6
    assert table.write(rows, partition="2013-01").change == "none"
    assert table.write(more, partition="2013-01").change == "full"
    assert table.read(partition="2013-01").num_rows == 4
    assert table.read(partition="2013-02").equals(rows.cast(table.read(partition="2013-02").schema))
    assert table.read(a.version.metadata_sha).num_rows == 3
    assert set(table.partitions()) == {"2013-01", "2013-02"}
    assert table.verify().ok


def test_several_partitions_are_committed_at_once(table: VersionedTable, rows: pa.Table, more: pa.Table) -> None:
    results = table.write_partitions({"a": rows, "b": more})
    assert [result.change for result in results] == ["full", "full"]
    assert table.state.log_version == 0
    again = table.write_partitions({"a": rows, "b": rows, "c": more})
    assert [result.change for result in again] == ["none", "full", "full"]
    assert table.state.log_version == 1


def test_a_partitioned_table_is_one_parent_that_can_be_read_again(
    project: Project, rows: pa.Table, more: pa.Table
) -> None:
    monthly, total = project.table("monthly"), project.table("total")
    monthly.write_partitions({"1": rows, "2": more})
    total.write(rows, parents=monthly.upstream())
    (parent,) = total.version().identity.parents
    monthly.write(more, partition="1")
    assert monthly.read(parent.version).num_rows == 7
    assert monthly.read().num_rows == 8
    assert monthly.head().head is not None
    assert monthly.head().head.metadata_sha != parent.version


def test_a_new_column_in_one_partition_is_null_in_the_others(table: VersionedTable, rows: pa.Table) -> None:
    table.write(rows, partition="old")
    table.write(rows.append_column("extra", pa.array([1, 2, 3])), partition="new")
    assert table.read().column_names == ["carrier", "delay", "extra"]
    assert table.read(partition="old").column_names == ["carrier", "delay"]
    with pytest.raises(UnsupportedType, match="delay"):
        table.write(pa.table({"delay": ["text"]}), partition="other")


def test_two_equal_parts_in_one_version_are_both_read_in_order(table: VersionedTable) -> None:
    frame = pa.table({"n": pa.array([0] * 2_000_000, pa.int64())})
    result = table.write(frame, options=TableOptions(target_part_bytes=1, row_group_bytes=8_000_000))
    parts = table.state.snapshot.num_files
    assert parts > 1
    assert table.read().num_rows == 2_000_000
    assert result.version.facts.part_count == parts


@pytest.mark.parametrize(
    ("frame", "error", "words"),
    [
        (pa.table({}), EmptyTable, "column"),
        (pa.table({"a": pa.array([], pa.int64())}), EmptyTable, "allow_empty"),
        (pa.table({"a": pa.array([1], pa.uint64())}), UnsupportedType, "'a'"),
        (pa.table({"a": pa.nulls(2)}), UnsupportedType, "'a'"),
        (pa.table({"a": pa.array([1], pa.duration("us"))}), UnsupportedType, "'a'"),
        (pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), InvalidInput, "a"),
        (pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "A"]), InvalidInput, "A"),
        ({"a": [1]}, UnsupportedFrame, "dict"),
    ],
)
def test_what_cannot_be_stored_is_refused_and_leaves_no_object(
    table: VersionedTable, frame: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        table.write(frame)
    assert contents(table.project.store) == {}


@pytest.mark.parametrize("custom", [{"n": 2**53}, {"x": float("nan")}, {"o": object()}, {"nested": {"k": [2**60]}}])
def test_metadata_without_a_canonical_form_is_refused_by_key(
    table: VersionedTable, rows: pa.Table, custom: Any
) -> None:
    table.write(rows)
    before = contents(table.project.store)
    with pytest.raises(InvalidMetadata, match=next(iter(custom))):
        table.write(rows, options=TableOptions(custom=custom))
    assert contents(table.project.store) == before


@pytest.mark.parametrize(
    "name", ["../up", "/etc/passwd", "a/b", "a\0b", "%2e%2e", ".metadata", "Renv", "", "x" * 129, "9lives", "a\n", "é"]
)
def test_names_that_could_escape_or_that_datom_refuses_are_refused(project: Project, name: str) -> None:
    with pytest.raises(InvalidName):
        project.table(name)


def test_two_asset_keys_that_map_to_one_table_are_refused(project: Project, rows: pa.Table) -> None:
    project.table(["a", "b__c"]).write(rows, asset_key=["a", "b__c"])
    with pytest.raises(InvalidName, match="a__b"):
        project.table(["a__b", "c"]).write(rows, asset_key=["a__b", "c"])


def test_names_that_differ_only_in_case_are_refused(project: Project, rows: pa.Table) -> None:
    project.table("flights").write(rows)
    with pytest.raises(InvalidName, match="case"):
        project.table("Flights").write(rows)


def test_a_table_is_not_created_under_another_projects_name(project: Project, rows: pa.Table) -> None:
    project.table("flights").write(rows, partition="1")
    with pytest.raises(InvalidInput, match="NYC"):
        Project("TYPO", project.store).table("planes").write(rows)


def test_an_empty_table_is_refused_and_a_version_where_it_was_allowed(table: VersionedTable) -> None:
    empty = pa.table({"a": pa.array([], pa.int64())})
    for options in (None, TableOptions(mode="append")):
        with pytest.raises(EmptyTable, match="Nothing was written"):
            table.write(empty, options=options)
    assert contents(table.store) == {}
    result = table.write(empty, options=TableOptions(allow_empty=True))
    assert result.change == "full"
    assert table.read().schema.names == ["a"]
    assert table.read().num_rows == 0
    assert table.verify().ok
    assert table.write(empty, options=TableOptions(allow_empty=True)).change == "none"


def test_the_same_pipeline_in_two_stores_gives_the_same_versions(tmp_path: Any, rows: pa.Table) -> None:
    shas = []
    for place in ("one", "two"):
        project = Project.open("NYC", str(tmp_path / place))
        source, derived = project.table("source"), project.table("derived")
        source.write(rows)
        derived.write(pl.DataFrame({"n": [1, 2]}), parents=source.upstream(), code_version="7")
        shas.append([source.version().metadata_sha, derived.version().metadata_sha])
    assert shas[0] == shas[1]


def test_commits_are_linked_by_the_hash_of_the_one_before(
    table: VersionedTable, rows: pa.Table, more: pa.Table
) -> None:
    for frame in (rows, more, rows):
        table.write(frame)
    before = None
    for version in range(3):
        data = table.store.get(f"_delta_log/{version:020d}.json")
        info = orjson.loads(data.splitlines()[0])["commitInfo"]
        assert info["dagsterVersioned"].get("prev") == before
        before = hashlib.sha256(data).hexdigest()


def test_a_table_that_was_opened_by_an_asset_key_records_it(project: Project, rows: pa.Table) -> None:
    project.table(["flights", "daily"]).write(rows)
    assert project.table("flights__daily").write(rows).change == "none"
    assert project.table("flights__daily").version().identity.asset_key == ("flights", "daily")


def test_a_retried_step_whose_commit_was_collected_commits_again(
    table: VersionedTable, rows: pa.Table, more: pa.Table
) -> None:
    run = Run("run-1", "flights", 0)
    table.write(rows, run=run)
    table.write(more)
    table.expire(keep_last=1, dry_run=False)
    again = table.write(rows, run=run)
    assert (again.change, again.replayed) == ("full", False)
    assert table.read().num_rows == 3


def test_a_retried_step_heals_the_part_of_its_own_commit(table: VersionedTable, rows: pa.Table) -> None:
    run = Run("run-1", "flights", 0)
    first = table.write(rows, run=run)
    table.store.delete([f"{first.version.data_sha}.parquet"])
    assert table.write(rows, run=run).replayed
    assert table.read().num_rows == 3


def test_no_partitions_are_not_all_partitions(table: VersionedTable, rows: pa.Table) -> None:
    table.write(rows, partition="a")
    with pytest.raises(InvalidInput, match="empty"):
        table.read(partitions=[])
    assert table.read(partitions=["a", "a"]).num_rows == 3


def test_a_write_stands_though_its_staging_could_not_be_deleted(project: Project, rows: pa.Table) -> None:
    def refuse(call: Call) -> Fault | None:
        return Fault.BEFORE if call.verb == "delete" else None

    table = Project("NYC", FaultStore(project.store, refuse)).table("flights")
    assert table.write(rows, options=TableOptions(single_part=True)).change == "full"


@pytest.mark.parametrize(
    ("keys", "said", "words"),
    [
        ([None], {"asset_key": "abc"}, "asset_key"),
        ([None], {"asset_key": [1]}, "asset_key"),
        ([None], {"code_version": 3}, "code_version"),
        ([None], {"message": 5}, "message"),
        ([None], {"parents": ["flights"]}, "not 'flights'"),
        ([1], {}, "must be text, not 1"),
        ([None, "a"], {}, "whole table"),
    ],
)
def test_what_is_said_of_versions_must_be_readable_again(
    table: VersionedTable, rows: pa.Table, keys: list[Any], said: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        table.write_partitions(dict.fromkeys(keys, rows), **said)
    assert contents(table.project.store) == {}
