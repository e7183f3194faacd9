"""The change data feed of a versioned table: which rows each version inserted, updated and deleted."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_versioned.delta_tables.change_feed import read_changes
from dagster_versioned.errors import IntegrityError, InvalidInput
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.table import VersionedTable
from support.one_table import folder
from support.stores import contents

FEED = {"delta.enableChangeDataFeed": "true"}
VECTORS = {"delta.enableDeletionVectors": "true"}
REPLACE = TableOptions(row_order="ignored", properties=FEED)
Change = tuple[str, int, int | None]


@pytest.fixture(params=[{}, VECTORS], ids=["rewriting", "vectors"])
def merge(request: pytest.FixtureRequest) -> TableOptions:
    return TableOptions(mode="merge", merge_key=("key",), properties={**FEED, **request.param})


def frame(rows: Mapping[int, int | None]) -> pa.Table:
    return pa.table({"key": pa.array(list(rows), pa.int64()), "value": pa.array(list(rows.values()), pa.int64())})


def changes(table: VersionedTable, version: int) -> list[Change]:
    read = read_changes(str(folder(table)), version, version)
    assert set(read["_commit_version"].to_pylist()) <= {version}
    return sorted(zip(*(read[name].to_pylist() for name in ("_change_type", "key", "value")), strict=True), key=str)


def change_files(table: VersionedTable) -> list[str]:
    return sorted(key for key in contents(table.store) if key.startswith("_change_data/"))


TEN = dict.fromkeys(range(10), 0)


def test_an_update_is_told_by_its_row_before_and_after(table: VersionedTable, merge: TableOptions) -> None:
    table.write(frame(TEN), options=merge)
    table.write(frame({3: 1, 4: 0, 20: 2}), options=merge)
    assert changes(table, 0) == [("insert", key, 0) for key in range(10)]
    assert changes(table, 1) == [("insert", 20, 2), ("update_postimage", 3, 1), ("update_preimage", 3, 0)]
    assert len(change_files(table)) == 1
    table.verify().require_ok()


def test_new_rows_alone_need_no_file_of_changes(table: VersionedTable, merge: TableOptions) -> None:
    table.write(frame(TEN), options=merge)
    table.write(frame({20: 2}), options=merge)
    table.write(frame({30: 3}), options=TableOptions(mode="append"))
    assert changes(table, 1) == [("insert", 20, 2)]
    assert changes(table, 2) == [("insert", 30, 3)]
    assert change_files(table) == []


def test_a_replaced_table_and_a_revert_are_told_by_their_parts(table: VersionedTable, merge: TableOptions) -> None:
    table.write(frame(TEN), options=merge)
    table.write(frame({3: 1}), options=merge)
    table.write(frame({50: 5}), options=REPLACE)
    assert ("delete", 3, 1) in changes(table, 2)
    assert ("delete", 3, 0) not in changes(table, 2)
    table.revert(1)
    assert ("insert", 3, 1) in changes(table, 3)
    assert len(changes(table, 3)) == 11
    table.revert(0)
    told = {change for change in changes(table, 4) if change[1] == 3}
    assert told == {("delete", 3, 1), ("insert", 3, 0)}


def test_files_of_changes_depend_on_the_rows_alone(project: Project, merge: TableOptions) -> None:
    found: list[list[str]] = []
    for name in ("one", "two"):
        table = project.table(name)
        table.write(frame(TEN), options=merge)
        table.write(frame({3: 1, 4: 1}), options=merge)
        found.append(change_files(table))
    assert found[0] == found[1] != []


def test_partitions_in_one_commit_are_all_told_by_files_or_none(project: Project, merge: TableOptions) -> None:
    table = project.table("daily")
    table.write_partitions({"mon": frame({1: 0, 2: 0}), "tue": frame({3: 0})}, options=merge)
    table.write_partitions({"mon": frame({1: 5}), "tue": frame({4: 0}), "wed": frame({6: 0})}, options=merge)
    assert changes(table, 1) == [
        ("insert", 4, 0),
        ("insert", 6, 0),
        ("update_postimage", 1, 5),
        ("update_preimage", 1, 0),
    ]
    table.verify().require_ok()


def test_partition_columns_are_told_too(table: VersionedTable, merge: TableOptions) -> None:
    by_value = merge.model_copy(update={"partition_columns": ("value",)})
    table.write(frame(TEN), options=by_value)
    table.write(frame({3: 1}), options=by_value)
    assert changes(table, 1) == [("update_postimage", 3, 1), ("update_preimage", 3, 0)]
    table.verify().require_ok()


def test_columns_that_a_change_has_are_refused(table: VersionedTable, merge: TableOptions) -> None:
    own = frame({1: 1}).append_column("_change_type", pa.array(["x"]))
    with pytest.raises(InvalidInput, match="_change_type"):
        table.write(own, options=merge)
    table.write(own, options=TableOptions())
    with pytest.raises(InvalidInput, match="_change_type"):
        table.write(own, options=TableOptions(properties=FEED))
    assert table.state.log_version == 0


def test_deltalake_reads_the_same_feed(table: VersionedTable) -> None:
    merge = TableOptions(mode="merge", merge_key=("key",), properties=FEED)
    table.write(frame(TEN), options=merge)
    table.write(frame({3: 1, 20: 2}), options=merge)
    table.write(frame({30: 3}), options=merge)
    for version in range(3):
        feed = DeltaTable(folder(table)).load_cdf(starting_version=version, ending_version=version)
        read = pa.table(feed.read_all())
        told = zip(*(read[name].to_pylist() for name in ("_change_type", "key", "value")), strict=True)
        assert sorted(told, key=str) == changes(table, version)


# --- damage and collecting -------------------------------------------------------------------------------------------


def test_a_file_of_changes_that_is_altered_or_lost_is_found(table: VersionedTable, merge: TableOptions) -> None:
    table.write(frame(TEN), options=merge)
    table.write(frame({3: 1}), options=merge)
    (key,) = change_files(table)
    data = table.store.get(key)
    for damage in (data[:-1], bytes([*data[:-1], data[-1] ^ 1])):
        table.store.put(key, damage)
        assert [(finding.subject, finding.where) for finding in table.verify().findings] == [("part", key)]
    table.store.delete([key])
    assert [finding.problem for finding in table.verify().findings] == ["it is missing"]
    with pytest.raises(IntegrityError):
        changes(table, 1)


def test_changes_are_kept_as_long_as_their_version(table: VersionedTable, merge: TableOptions) -> None:
    table.write(frame(TEN), options=merge)
    for value in (1, 2, 3):
        table.write(frame({3: value}), options=merge)
    assert len(change_files(table)) == 3
    assert table.vacuum(min_age=timedelta(0), dry_run=False).keys == ()
    sizes = {info.key: info.size for info in table.store.list()}
    report = table.expire(keep_last=2, dry_run=False)
    assert report.size_bytes == sum(sizes[key] for key in report.keys)
    assert len(change_files(table)) == 2
    assert changes(table, 2) == [("update_postimage", 3, 2), ("update_preimage", 3, 1)]
    table.verify().require_ok()


def test_a_purge_takes_every_file_that_tells_of_the_rows(table: VersionedTable, merge: TableOptions) -> None:
    table.write(frame(TEN), options=merge)
    for value in (1, 2, 3):
        table.write(frame({3: value}), options=merge)
    told = {version: changes(table, version) for version in (1, 2, 3)}
    assert told[2] == [("update_postimage", 3, 2), ("update_preimage", 3, 1)]
    sharing = merge.properties.get("delta.enableDeletionVectors")
    if sharing:  # its first part is that of the others as well
        table.write(frame({50: 5}), options=REPLACE)
        table.purge([0, 1, 2, 3], why="erasure", dry_run=False)
        assert change_files(table) == []
    else:
        table.purge([1], why="erasure", dry_run=False)
        assert len(change_files(table)) == 1
        assert changes(table, 3) == told[3]
        with pytest.raises(IntegrityError):
            changes(table, 2)
    table.verify().require_ok()
    assert table.vacuum(min_age=timedelta(0)).keys == ()


# --- any sequence ----------------------------------------------------------------------------------------------------

ROWS = st.dictionaries(st.integers(0, 9), st.integers(0, 3), min_size=1, max_size=5)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("merge"), ROWS),
        st.tuples(st.just("merge"), ROWS),
        st.tuples(st.just("replace"), ROWS),
        st.tuples(st.just("revert"), st.integers(0, 6)),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, by_vectors=st.booleans(), tiny=st.booleans())
def test_the_feed_makes_every_version_of_the_one_before(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, Any]], by_vectors: bool, tiny: bool
) -> None:
    table = Project.open("P", str(tmp_path_factory.mktemp("any"))).table("rows")
    properties = {**FEED, **(VECTORS if by_vectors else {})}
    merge = TableOptions(mode="merge", merge_key=("key",), properties=properties)
    if tiny:
        merge = merge.model_copy(update={"target_part_bytes": 1, "row_group_bytes": 1})
    table.write(frame(dict.fromkeys(range(6), 0)), options=merge)
    for kind, what in steps:
        if kind == "revert":
            table.revert(what % (table.state.log_version + 1))
        else:
            table.write(frame(what), options=merge if kind == "merge" else REPLACE)
    rows: dict[int, int] = {}
    for version in range(table.state.log_version + 1):
        told = changes(table, version)
        for kind, key, value in sorted(told, key=lambda change: change[0] in ("insert", "update_postimage")):
            if kind in ("delete", "update_preimage"):
                assert rows.pop(key) == value
            else:
                assert key not in rows
                rows[key] = value or 0
        read = table.read(version).to_pydict()
        assert dict(zip(read["key"], read["value"], strict=True)) == rows
    table.verify().require_ok()
    assert table.vacuum(min_age=timedelta(0)).keys == ()
