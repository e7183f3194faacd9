"""Assets whose rows are appended to their table, or merged into it: what is kept, what is counted, what is refused."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_versioned.delta.log.commits import commit_key
from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.errors import (
    EmptyTable,
    InvalidInput,
    UnsupportedType,
)
from dagster_versioned.identity.version import AddedRows, Run
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.table import VersionedTable
from support.one_table import by_key, folder
from support.stores import contents

APPEND = TableOptions(mode="append")
MERGE = TableOptions(mode="merge", merge_key=("key",))


def frame(**rows: int | None) -> pa.Table:
    return pa.table({"key": pa.array(list(rows), pa.string()), "value": pa.array(list(rows.values()), pa.int64())})


def counts(added: AddedRows | None) -> tuple[int, int]:
    assert added is not None
    return added.inserted, added.updated


def files(table: VersionedTable) -> set[str]:
    return {add.key for add in table.files().adds}


# --- append ----------------------------------------------------------------------------------------------------------


def test_appended_rows_are_beside_the_others_and_no_part_is_written_again(table: VersionedTable) -> None:
    table.write(frame(a=1, b=2), options=APPEND)
    before = files(table)
    result = table.write(frame(c=3), options=APPEND)
    assert (result.change, counts(result.version.facts.added)) == ("full", (1, 0))
    assert by_key(table) == {"a": 1, "b": 2, "c": 3}
    assert before < files(table)
    assert result.version.identity.nrow == 3
    assert by_key(table, 0) == {"a": 1, "b": 2}
    table.verify().require_ok()


def test_equal_rows_appended_twice_are_there_twice(table: VersionedTable) -> None:
    for _ in range(3):
        table.write(frame(a=1), options=APPEND)
    assert table.read().to_pydict() == {"key": ["a"] * 3, "value": [1] * 3}
    assert len(files(table)) == 3


def test_a_retried_step_appends_its_rows_once(table: VersionedTable) -> None:
    table.write(frame(a=1), options=APPEND, run=Run("run-1", "rows", 0))
    table.write(frame(b=2), options=APPEND, run=Run("run-2", "rows", 0))
    again = table.write(frame(a=1), options=APPEND, run=Run("run-1", "rows", 1))
    assert (again.change, again.replayed, again.version.log_version) == ("none", True, 0)
    assert by_key(table) == {"a": 1, "b": 2}


@pytest.mark.parametrize("given", [frame(b=2), frame()], ids=["others", "none"])
def test_a_retried_step_with_other_rows_appends_nothing_and_says_so(table: VersionedTable, given: pa.Table) -> None:
    first = table.write(frame(a=1), options=APPEND, run=Run("run-1", "rows", 0))
    before = contents(table.project.store)
    again = table.write(given, options=APPEND, run=Run("run-1", "rows", 1))
    assert (again.change, again.version, again.replayed, again.left_out) == ("none", first.version, True, True)
    assert contents(table.project.store) == before


def test_an_attempt_in_a_later_run_finds_what_the_first_run_committed(table: VersionedTable) -> None:
    first = table.write(frame(a=1), options=APPEND, run=Run("run-1", "rows", 0))
    for number in range(3):
        table.write(frame(b=number), options=APPEND, run=Run(f"other-{number}", "rows", 0))
    for later in ("run-2", "run-3"):
        again = table.write(frame(a=1), options=APPEND, run=Run(later, "rows", 0, first_run_id="run-1"))
        assert (again.change, again.replayed, again.version) == ("none", True, first.version)
    assert table.read().num_rows == 4


def test_what_a_later_attempt_committed_is_found_by_the_one_after_it(table: VersionedTable) -> None:
    table.write(frame(b=2), options=APPEND)
    second = table.write(frame(a=1), options=APPEND, run=Run("run-2", "rows", 0, first_run_id="run-1"))
    run = second.version.facts.run
    assert run == Run("run-2", "rows", 0, "run-1")
    assert table.write(frame(a=1), options=APPEND, run=Run("run-3", "rows", 0, first_run_id="run-1")).replayed
    assert by_key(table) == {"a": 1, "b": 2}


def test_attempts_at_other_computations_append_theirs(table: VersionedTable) -> None:
    table.write(frame(a=1), options=APPEND, run=Run("run-1", "rows", 0))
    for run in (Run("run-2", "rows", 0), Run("run-1", "others", 0), Run("run-3", "rows", 0, first_run_id="run-2b")):
        assert table.write(frame(a=1), options=APPEND, run=run).change == "full"
    assert table.read().num_rows == 4


def test_rows_are_appended_once_though_the_version_that_brought_them_expired(table: VersionedTable) -> None:
    run = Run("run-1", "rows", 0)
    table.write(frame(a=1), options=APPEND, run=run)
    table.write(frame(b=2), options=APPEND)
    table.expire(keep_last=1, dry_run=False)
    assert table.history()[-1].gone == "expire"
    assert table.write(frame(a=1), options=APPEND, run=run).replayed
    assert by_key(table) == {"a": 1, "b": 2}


def test_a_commit_of_a_release_that_did_not_number_transactions_is_found(table: VersionedTable) -> None:
    run = Run("run-1", "rows", 0)
    table.write(frame(b=2), options=APPEND)
    table.write(frame(a=1), options=APPEND, run=run)
    key = commit_key(1)
    numbered = table.store.get(key)
    before = numbered.replace(
        b'"appId":"dagster/run-1/rows/","version":1', b'"appId":"dagster/run-1/rows/","version":0'
    )
    assert before != numbered
    table.store.put(key, before)
    found = Project(table.project.name, table.project.store).table(str(table.name))
    assert found.write(frame(a=1), options=APPEND, run=run).replayed
    assert by_key(found) == {"a": 1, "b": 2}


def test_a_merge_that_another_has_overtaken_is_not_merged_again(table: VersionedTable) -> None:
    table.write(frame(a=1), options=MERGE, run=Run("run-1", "rows", 0))
    table.write(frame(a=2), options=MERGE, run=Run("other", "rows", 0))
    again = table.write(frame(a=1), options=MERGE, run=Run("run-2", "rows", 0, first_run_id="run-1"))
    assert (again.replayed, again.left_out) == (True, False)
    assert by_key(table) == {"a": 2}
    assert table.write(frame(a=3), options=MERGE, run=Run("run-3", "rows", 0, first_run_id="run-1")).change == "full"
    assert by_key(table) == {"a": 3}


def test_a_table_that_was_replaced_before_can_be_appended_to(table: VersionedTable) -> None:
    table.write(frame(b=2, a=1))  # Arrow's rows have an order, which ends here
    result = table.write(frame(c=3), options=APPEND)
    assert by_key(table) == {"a": 1, "b": 2, "c": 3}
    assert result.version.facts.digest.startswith("bag-xxh64x2:")


# --- merge -----------------------------------------------------------------------------------------------------------


def test_merged_rows_take_the_place_of_those_with_their_key(table: VersionedTable) -> None:
    table.write(frame(a=1, b=2), options=MERGE)
    result = table.write(frame(b=20, c=30), options=MERGE)
    assert (result.change, counts(result.version.facts.added)) == ("full", (1, 1))
    assert by_key(table) == {"a": 1, "b": 20, "c": 30}


def test_parts_in_which_no_row_changes_stay(table: VersionedTable) -> None:
    small = TableOptions(mode="merge", merge_key=("key",), target_part_bytes=1, row_group_bytes=1)
    table.write(frame(a=1, b=2, c=3), options=small)
    before = files(table)
    assert len(before) == 3
    table.write(frame(b=2, c=30), options=small)
    assert len(before & files(table)) == 2
    assert by_key(table) == {"a": 1, "b": 2, "c": 30}


@pytest.mark.parametrize("given", [frame(a=1, b=None), frame(b=None)])
def test_rows_that_are_there_already_make_no_version(table: VersionedTable, given: pa.Table) -> None:
    table.write(frame(a=1, b=None), options=MERGE)
    before = contents(table.project.store)
    result = table.write(given, options=MERGE)
    assert (result.change, result.bytes_uploaded) == ("none", 0)
    assert contents(table.project.store) == before


def test_no_new_row_but_other_code_is_a_version_of_metadata(table: VersionedTable) -> None:
    first = table.write(frame(a=1, b=2), options=MERGE, code_version="1")
    second = table.write(frame(a=1), options=MERGE, code_version="2")
    assert second.change == "metadata_only"
    assert second.version.data_sha == first.version.data_sha


def test_partitions_are_merged_each_on_its_own(project: Project) -> None:
    table = project.table("daily")
    table.write_partitions({"mon": frame(a=1), "tue": frame(a=2)}, options=MERGE)
    results = table.write_partitions({"mon": frame(b=3), "tue": frame(a=2)}, options=MERGE)
    assert [result.change for result in results] == ["full", "none"]
    assert table.read(partition="mon").sort_by("key").to_pydict() == {"key": ["a", "b"], "value": [1, 3]}
    assert table.read(partition="tue").to_pydict() == {"key": ["a"], "value": [2]}


def test_a_new_column_is_null_in_the_rows_of_before(table: VersionedTable) -> None:
    table.write(frame(a=1, b=2), options=MERGE)
    wider = frame(b=2, c=3).append_column("note", pa.array([None, "new"]))
    result = table.write(wider, options=MERGE)
    assert table.read().sort_by("key").to_pydict() == {
        "key": ["a", "b", "c"],
        "value": [1, 2, 3],
        "note": [None, None, "new"],
    }
    assert counts(result.version.facts.added) == (1, 0)
    assert result.version.facts.digest == ArrowEngine().measure(table.read(), _schema(table)).digest.text
    assert by_key(table, 0) == {"a": 1, "b": 2}


def test_columns_are_matched_by_name(table: VersionedTable) -> None:
    table.write(frame(a=1), options=MERGE)
    table.write(frame(a=5, b=6).select(["value", "key"]), options=MERGE)
    assert table.read().column_names == ["key", "value"]
    assert by_key(table) == {"a": 5, "b": 6}


def test_zeros_and_nans_in_a_key_are_one_each(table: VersionedTable) -> None:
    def rows(*keys: float) -> pa.Table:
        return pa.table({"key": pa.array(keys, pa.float64()), "value": list(range(len(keys)))})

    table.write(rows(0.0, float("nan")), options=MERGE)
    assert table.write(rows(-0.0, float("nan")), options=MERGE).change == "none"


def test_what_a_crash_between_two_writers_leaves_is_in_the_result(project: Project) -> None:
    """Two writers that read the same head: the second puts its rows onto what the first has committed."""
    first, second = project.table("rows"), project.table("rows")
    first.write(frame(a=1), options=MERGE)
    second.read()
    first.write(frame(a=10, b=2), options=MERGE)
    second.write(frame(c=3), options=MERGE)
    assert by_key(first) == {"a": 10, "b": 2, "c": 3}


# --- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (pa.table({"key": ["b", "b", None], "value": [1, 2, 3]}), InvalidInput, "1 rows have a null in it, and 1 keys"),
        (pa.table({"key": ["b"]}), InvalidInput, "has no column 'value', which the table has"),
        (pa.table({"key": ["b"], "value": ["x"]}), UnsupportedType, "'value' is string here"),
        (frame().slice(0), EmptyTable, "has no rows"),
    ],
)
def test_what_cannot_be_merged_changes_nothing(
    table: VersionedTable, given: pa.Table, error: type[Exception], message: str
) -> None:
    table.write(frame(a=1), options=MERGE)
    before = contents(table.project.store)
    with pytest.raises(error, match=message):
        table.write(given, options=MERGE)
    assert contents(table.project.store) == before


def test_a_key_that_several_rows_of_the_table_have_is_refused(table: VersionedTable) -> None:
    table.write(pa.table({"key": ["a", "a"], "value": [1, 2]}))
    with pytest.raises(InvalidInput, match=r"1 keys of the frame have more than one row there.*'a'"):
        table.write(frame(a=3), options=MERGE)


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "merge"},
        {"merge_key": ("key",)},
        {"mode": "merge", "merge_key": ("key", "key")},
        {"mode": "append", "row_order": "significant"},
        {"mode": "append", "sort_rows": ("key",)},
        {"mode": "append", "single_part": True},
    ],
)
def test_options_that_contradict_each_other_are_refused(options: Mapping[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"mode|merge_key"):
        TableOptions(**options)


# --- any sequence ----------------------------------------------------------------------------------------------------

KEYS = st.sampled_from("abcdefgh")
VALUES = st.one_of(st.none(), st.integers(0, 3))
WRITES = st.lists(
    st.tuples(st.sampled_from([MERGE, APPEND]), st.dictionaries(KEYS, VALUES, min_size=1, max_size=5), st.booleans()),
    min_size=1,
    max_size=6,
)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(writes=WRITES)
def test_every_version_is_what_a_dictionary_says(
    tmp_path_factory: pytest.TempPathFactory, writes: Sequence[tuple[TableOptions, dict[str, Any], bool]]
) -> None:
    table = Project.open("P", str(tmp_path_factory.mktemp("any"))).table("rows")
    model: dict[str, Any] = {}
    expected: dict[int, dict[str, Any]] = {}
    for options, given_rows, tiny in writes:
        if options is APPEND:  # of keys that are not there, so that a key has one row
            given_rows = {key: value for key, value in given_rows.items() if key not in model}
        if not given_rows:
            continue
        if tiny:
            options = options.model_copy(update={"target_part_bytes": 1, "row_group_bytes": 1})
        result = table.write(frame(**given_rows), options=options)
        changes = {key for key, value in given_rows.items() if key not in model or model[key] != value}
        if result.change != "none":
            assert counts(result.version.facts.added) == (
                len(given_rows.keys() - model.keys()),
                len(changes & model.keys()),
            )
        assert (result.change == "none") == (not changes)
        model |= given_rows
        expected[result.version.log_version] = dict(model)
    for version, rows in expected.items():
        assert by_key(table, version) == rows
        read = table.read(version)
        facts = table.version(version).facts
        measured = ArrowEngine().measure(read, _schema(table))
        assert (facts.digest, list(facts.null_counts)) == (measured.digest.text, list(measured.null_counts))
        assert facts.digest.endswith(f":{len(rows)}")
        assert pc.sum(pc.is_null(read["value"])).as_py() in (facts.null_counts[1], None)
    table.verify().require_ok()


def _schema(table: VersionedTable) -> Any:
    return table.files().scan.schema


def test_deltalake_reads_every_version(tmp_path: Path) -> None:
    table = Project.open("P", str(tmp_path)).table("rows")
    for given_rows in (frame(a=1, b=2), frame(b=3), frame(c=4)):
        table.write(given_rows, options=MERGE)
    for version in range(3):
        peer = DeltaTable(str(folder(table)), version=version).to_pyarrow_table().sort_by("key")
        assert peer.to_pydict() == table.read(version).sort_by("key").to_pydict()
