"""Tables that store what changed: rows that a frame and the head have are not written again."""

import threading
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pydantic import ValidationError

from dagster_versioned.branches.environments import create_environment
from dagster_versioned.branches.promote import promote
from dagster_versioned.branches.rebase import rebase_environment
from dagster_versioned.delta.files.deletion_vectors import named_by_content
from dagster_versioned.delta_tables.change_feed import read_changes
from dagster_versioned.engines import refresh as policy
from dagster_versioned.errors import EmptyTable, IntegrityError, InvalidInput
from dagster_versioned.identity.version import RefreshedRows, Run
from dagster_versioned.projects.project import Project
from dagster_versioned.publication.park import park
from dagster_versioned.publication.publish import publish_run
from dagster_versioned.storage import LocalStore
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.table import VersionedTable
from dagster_versioned.tables.write import addition
from support.colliding import colliding_texts
from support.crashes import append_as_another_program
from support.one_table import folder
from support.readers import by_datafusion
from support.spark import spark

__all__ = ["spark"]

REFRESH = TableOptions(refresh="changed_rows")
WITH_FEED = TableOptions(refresh="changed_rows", properties={"delta.enableChangeDataFeed": "true"})
COUNT = 20_000


def people(count: int = COUNT, seed: int = 0) -> pa.Table:
    numbers = np.random.default_rng(seed)
    return pa.table(
        {
            "id": np.arange(count),
            "name": [f"person {number}" for number in numbers.integers(0, 1000, count)],
            "amount": numbers.random(count),
        }
    )


def with_amount(rows: pa.Table, amount: float, *ids: int) -> pa.Table:
    amounts = rows["amount"].to_numpy().copy()
    amounts[list(ids)] = amount
    return rows.set_column(2, "amount", pa.array(amounts))


def without(rows: pa.Table, *ids: int) -> pa.Table:
    kept = np.ones(rows.num_rows, np.bool_)
    kept[list(ids)] = False
    return rows.filter(pa.array(kept))


def in_order(rows: pa.Table) -> list[Any]:
    names = rows.column_names
    return sorted(zip(*(rows[name].to_pylist() for name in names), strict=True), key=repr)


def assert_says(table: VersionedTable, rows: pa.Table, at: Any = None) -> None:
    assert in_order(table.read(at)) == in_order(rows)


def files(table: VersionedTable) -> set[str]:
    return {add.key for add in table.files().adds}


def told(table: VersionedTable, version: int) -> set[tuple[str, int]]:
    """What the feed tells of a commit, as two readers read it, without rows that went and came."""
    theirs = pa.table(DeltaTable(str(folder(table))).load_cdf(version, ending_version=version))
    ours = read_changes(str(folder(table)), version, version)
    first, second = (
        sorted(zip(read["_change_type"].to_pylist(), read["id"].to_pylist(), strict=True)) for read in (theirs, ours)
    )
    assert first == second
    came, went = (Counter(row for change, row in first if change == kind) for kind in ("insert", "delete"))
    return {*(("insert", row) for row in came - went), *(("delete", row) for row in went - came)}


class TestWhatIsStored:
    def test_one_changed_row_is_written_alone(self, table):
        rows = people()
        table.write(rows, options=REFRESH)
        before = files(table)
        changed = with_amount(rows, 7.0, 1234)
        result = table.write(changed, options=REFRESH)
        assert (result.change, result.version.facts.refreshed) == ("full", RefreshedRows(1, 1, COUNT - 1, 1, 1))
        assert before < files(table)
        assert result.bytes_uploaded < 2_000
        assert_says(table, changed)
        assert_says(table, rows, 0)
        assert in_order(by_datafusion(folder(table), 1)) == in_order(changed)
        assert in_order(pl.read_delta(str(folder(table)), version=1).to_arrow().cast(rows.schema)) == in_order(changed)
        assert result.version.identity.nrow == COUNT
        table.verify().require_ok()

    def test_of_equal_rows_as_many_go_as_the_frame_has_fewer(self, table):
        rows = pa.concat_tables([people(), *[people(3)] * 40])
        table.write(rows, options=REFRESH)
        fewer = without(rows, 1, COUNT + 1, COUNT + 4)
        result = table.write(fewer, options=REFRESH)
        assert result.version.facts.refreshed == RefreshedRows(0, 3, fewer.num_rows, 0, 3)
        assert_says(table, fewer)

    @pytest.mark.parametrize("order", ["another", "as it was"])
    def test_an_earlier_version_comes_back_without_a_new_part(self, table, order):
        rows, other = people(), with_amount(people(), 1.5, 5)
        for frame in (rows, other):
            table.write(frame, options=REFRESH)
        again = rows if order == "as it was" else rows.take(pa.array(np.random.default_rng(1).permutation(COUNT)))
        result = table.write(again, options=REFRESH)
        assert (result.change, result.bytes_uploaded, result.version.facts.refreshed) == ("full", 0, None)
        assert result.version.metadata_sha == table.version(0).metadata_sha

    def test_rows_in_another_order_are_the_same_version(self, table):
        table.write(people(), options=REFRESH)
        assert table.write(people().sort_by("amount"), options=REFRESH).change == "none"

    @pytest.mark.parametrize(
        "after",
        [
            pytest.param(people(seed=1), id="most rows are others"),
            pytest.param(people().rename_columns(["id", "called", "amount"]), id="a column has another name"),
            pytest.param(people().select(["amount", "id", "name"]), id="columns are in another order"),
            pytest.param(people().set_column(0, "id", people()["id"].cast(pa.int32())), id="a column is narrower"),
            pytest.param(people().append_column("more", people()["id"]), id="a column more"),
            pytest.param(people().drop_columns(["name"]), id="a column less"),
        ],
    )
    def test_a_frame_that_is_better_stored_whole_is(self, table, after):
        table.write(people(), options=REFRESH)
        result = table.write(after, options=REFRESH)
        assert result.version.facts.refreshed is None
        assert table.read().schema.names == after.schema.names
        assert_says(table, after)
        changed = without(after, 3)
        assert table.write(changed, options=REFRESH).version.facts.refreshed == RefreshedRows(0, 1, COUNT - 1, 0, 1)
        assert_says(table, changed)

    def test_a_small_table_is_stored_whole(self, table):
        table.write(people(100), options=REFRESH)
        assert table.write(people(99), options=REFRESH).version.facts.refreshed is None

    @pytest.mark.spark
    def test_a_frame_of_spark_is_stored_whole(self, table, spark):
        table.write(people(), options=REFRESH)
        changed = without(people(), 3)
        result = table.write(spark.createDataFrame(changed), options=REFRESH)
        assert result.version.facts.refreshed is None
        assert_says(table, changed)

    def test_many_nights_leave_few_parts(self, table):
        rows = people()
        table.write(rows, options=REFRESH)
        for night in range(30):
            rows = with_amount(rows, float(night), *range(night, COUNT, 200))
            table.write(rows, options=REFRESH)
        assert_says(table, rows)
        assert len(files(table)) < 10
        table.verify().require_ok()

    def test_a_frame_that_can_be_read_once(self, table):
        table.write(people(), options=REFRESH)
        changed = with_amount(people(), 2.0, 9)
        reader = pa.RecordBatchReader.from_batches(changed.schema, iter(changed.to_batches(1000)))
        assert table.write(reader, options=REFRESH).version.facts.refreshed == RefreshedRows(1, 1, COUNT - 1, 1, 1)
        assert_says(table, changed)

    @pytest.mark.parametrize("layout", [{"cluster_by": ("name",)}, {"partition_columns": ("name",)}])
    def test_layouts(self, table, layout):
        rows = people().set_column(1, "name", pa.array([f"{number % 3}" for number in range(COUNT)]))
        options = REFRESH.model_copy(update=layout)
        table.write(rows, options=options)
        changed = with_amount(without(rows, 4, 5), 3.0, 7)
        result = table.write(changed, options=options)
        assert result.version.facts.refreshed == RefreshedRows(1, 3, COUNT - 3, 1, 3)
        assert_says(table, changed)
        table.verify().require_ok()

    def test_partitions_of_dagster_are_refreshed_each(self, table):
        table.write_partitions({"a": people(), "b": people(seed=1)}, options=REFRESH)
        changed = with_amount(people(), 1.0, 8)
        first, second = table.write_partitions({"a": changed, "b": people(seed=1)}, options=REFRESH)
        assert (first.version.facts.refreshed, second.change) == (RefreshedRows(1, 1, COUNT - 1, 1, 1), "none")
        assert in_order(table.read(partition="a")) == in_order(changed)
        assert in_order(table.read(partition="b")) == in_order(people(seed=1))

    def test_a_column_of_every_kind(self, table):
        rows = pa.table(
            {
                "id": np.arange(COUNT),
                "number": pa.array([(None, float("nan"), -0.0, 1.5)[i % 4] for i in range(COUNT)]),
                "nested": pa.array([{"a": [i, None], "b": {"c": f"{i}"}} for i in range(COUNT)]),
                "map": pa.array(
                    [[("k", i)] if i % 3 else None for i in range(COUNT)], pa.map_(pa.string(), pa.int64())
                ),
                "key": pa.array([f"{i % 7}" for i in range(COUNT)]).dictionary_encode(),
            }
        )
        table.write(rows, options=REFRESH)
        changed = without(rows, 1, 2, 3)
        result = table.write(changed, options=REFRESH)
        assert result.version.facts.refreshed == RefreshedRows(0, 3, COUNT - 3, 0, 3)
        assert table.read().num_rows == COUNT - 3


class TestBadInput:
    @pytest.mark.parametrize(
        "also",
        [
            {"mode": "append"},
            {"single_part": True},
            {"sort_rows": ("id",)},
            {"row_order": "significant"},
            {"personal_columns": ("name",)},
            {"properties": {"delta.enableDeletionVectors": "false"}},
        ],
    )
    def test_options_that_do_not_go_with_it(self, also):
        with pytest.raises(ValidationError, match=r"refresh|merge_key"):
            TableOptions(refresh="changed_rows", **also)

    def test_a_table_with_personal_columns(self, table):
        table.write(people(), options=TableOptions(personal_columns=("name",)))
        with pytest.raises(InvalidInput, match="personal columns"):
            table.write(people(), options=REFRESH)
        assert table.state.log_version == 0

    def test_rows_with_the_open_digest_of_others_are_other_rows(self, table):
        one, other = (
            people().set_column(1, "name", pa.array([note, *["x"] * (COUNT - 1)])) for note in colliding_texts()
        )
        table.write(one, options=REFRESH)
        assert table.write(other, options=REFRESH).version.facts.refreshed == RefreshedRows(1, 1, COUNT - 1, 1, 1)
        assert_says(table, other)
        assert_says(table, one, 0)

    def test_positions_that_are_wrong_are_never_committed(self, table, monkeypatch):
        rows = without(people(), 5)
        table.write(people(), options=REFRESH)
        table.write(rows, options=REFRESH)
        monkeypatch.setattr(
            addition,
            "named_by_content",
            lambda deleted: named_by_content({key: positions + 1 for key, positions in deleted.items()}),
        )
        with pytest.raises(IntegrityError, match="is not what the frame says"):
            table.write(without(rows, 100), options=REFRESH)
        assert table.project.table("flights").state.log_version == 1
        assert_says(table, rows)

    @pytest.mark.parametrize("damage", ["gone", "altered"])
    def test_a_lost_part_is_not_counted_on(self, table, damage):
        table.write(people(), options=REFRESH)
        (part,) = folder(table).glob("*.parquet")
        data = bytearray(part.read_bytes())
        data[1000] ^= 1
        part.unlink() if damage == "gone" else part.write_bytes(data)
        changed = without(people(), 3)
        assert Project("NYC", table.project.store).table("flights").write(changed, options=REFRESH).change == "full"
        assert_says(table, changed)

    def test_another_program_between_two_nights_stops_neither(self, table):
        rows = people()
        table.write(rows, options=REFRESH)
        rows = with_amount(rows, 4.0, 2)
        table.write(rows, options=REFRESH)
        append_as_another_program(table, people(5, 9))
        other = Project("NYC", table.project.store).table("flights")
        changed = without(rows, 8)
        assert other.write(changed, options=REFRESH).version.facts.refreshed is None
        assert_says(other, changed)

    def test_whole_and_back(self, table):
        rows = people()
        table.write(rows, options=REFRESH)
        for night in range(4):
            rows = without(rows, night)
            options = REFRESH if night % 2 else TableOptions(row_order="ignored")
            result = table.write(rows, options=options)
            assert (result.version.facts.refreshed is None) == (night % 2 == 0)
            assert_says(table, rows)
        table.verify().require_ok()


class TestBesideOthers:
    def test_the_feed_tells_which_rows_came_and_went(self, table):
        rows = people()
        table.write(rows, options=WITH_FEED)
        table.write(with_amount(without(rows, 3), 9.0, 10), options=WITH_FEED)
        changes = pa.table(DeltaTable(str(folder(table))).load_cdf(starting_version=1))
        found = sorted(zip(changes["_change_type"].to_pylist(), changes["id"].to_pylist(), strict=True))
        assert found == [("delete", 3), ("delete", 11), ("insert", 11)]

    @pytest.mark.parametrize(
        ("before", "after", "expected"),
        [
            pytest.param({"b": 100}, {"b": 99}, {("delete", 99)}, id="one that is too small"),
            pytest.param({}, {"b": 3}, {("insert", 0), ("insert", 1), ("insert", 2)}, id="a new one"),
        ],
    )
    def test_of_several_partitions_it_tells_all(self, table, before, after, expected):
        others = {key: people(COUNT + 1).slice(0, count) for key, count in before.items()}
        table.write_partitions({"a": people(), **others}, options=WITH_FEED)
        others = {key: people(COUNT + 1).slice(0, count) for key, count in after.items()}
        table.write_partitions({"a": without(people(), 7), **others}, options=WITH_FEED)
        assert told(table, 1) == {("delete", 7), *expected}
        table.verify().require_ok()

    def test_of_a_partition_that_is_an_earlier_version_again_it_tells_the_difference(self, table):
        first, second = people(), without(people(), 9)
        for a, b in ((people(), first), (people(), second), (without(people(), 7), first)):
            table.write_partitions({"a": a, "b": b}, options=WITH_FEED)
        assert told(table, 2) == {("delete", 7), ("insert", 9)}
        table.verify().require_ok()

    def test_a_whole_write_after_vectors_is_told_alike_by_all_readers(self, table):
        table.write(people(), options=WITH_FEED)
        table.write(without(people(), 9), options=WITH_FEED)
        table.write(people(COUNT + 5).slice(COUNT), options=WITH_FEED)
        assert len(told(table, 2)) == COUNT - 1 + 5
        table.verify().require_ok()

    def test_nobody_empties_a_table_by_mistake(self, table):
        nothing = people().slice(0, 0)
        table.write(nothing, options=REFRESH.model_copy(update={"allow_empty": True}))
        table.write(people(), options=REFRESH)
        with pytest.raises(EmptyTable):
            table.write(nothing, options=REFRESH)
        assert_says(table, people())

    def test_its_deletion_vectors_begin_with_the_first_row_that_goes(self, table):
        table.write(people(), options=REFRESH)
        grown = pa.concat_tables([people(), people(5, 1)])
        table.write(grown, options=REFRESH)
        assert pa.table(DeltaTable(str(folder(table))).to_pyarrow_table()).num_rows == COUNT + 5
        table.write(without(grown, 3), options=REFRESH)
        with pytest.raises(Exception, match="deletionVectors"):
            DeltaTable(str(folder(table))).to_pyarrow_table()

    def test_a_retried_step_is_the_version_that_it_made(self, table):
        table.write(people(), options=REFRESH)
        changed = without(people(), 3)
        table.write(changed, options=REFRESH, run=Run("run", "rows", 0))
        table.write(people(), options=REFRESH)
        again = table.write(changed, options=REFRESH, run=Run("run", "rows", 1))
        assert (again.change, again.replayed) == ("none", True)

    def test_two_at_once_each_leave_what_they_were_given(self, table):
        table.write(people(), options=REFRESH)
        frames = [with_amount(people(), float(number), *range(number, COUNT, 50)) for number in range(4)]
        opened = [Project("NYC", table.project.store).table("flights") for _ in frames]
        writers = [
            threading.Thread(target=own.write, args=(frame,), kwargs={"options": REFRESH})
            for own, frame in zip(opened, frames, strict=True)
        ]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        read = [in_order(table.read(at)) for at in range(1, 5)]
        assert sorted(read, key=repr) == sorted(map(in_order, frames), key=repr)
        table.verify().require_ok()

    def test_after_an_expiry_it_goes_on(self, table):
        rows = people()
        for night in range(6):
            rows = with_amount(rows, float(night), night)
            table.write(rows, options=REFRESH)
        table.expire(keep_last=1, dry_run=False)
        table.vacuum(min_age=timedelta(0), dry_run=False)
        assert_says(table, rows)
        rows = without(rows, 2)
        assert table.write(rows, options=REFRESH).version.facts.refreshed is not None
        assert_says(table, rows)
        table.verify().require_ok()

    def test_an_older_version_is_current_again(self, table):
        first, second = people(), without(people(), 3)
        table.write(first, options=REFRESH)
        table.write(second, options=REFRESH)
        table.revert(0)
        third = without(people(), 4)
        assert table.write(third, options=REFRESH).version.facts.refreshed == RefreshedRows(0, 1, COUNT - 1, 0, 1)
        for at, rows in enumerate((first, second, first, third)):
            assert_says(table, rows, at)

    @pytest.mark.parametrize("verify", ["rows", "bytes"])
    @pytest.mark.parametrize("apart", [20, 700])
    def test_what_an_environment_refreshed_is_promoted(self, table, verify, apart):
        options = REFRESH.model_copy(update={"table_type": "derived"})
        table.write(people(), options=options)
        create_environment(table.project, "dev")
        there = table.project.in_environment("dev").table("flights")
        changed = with_amount(without(people(), 3), 5.0, *range(0, COUNT - 1, apart))
        made = there.write(changed, code_version="1", options=options).version
        assert made.facts.refreshed is not None
        report = promote(table.project, "dev", accept=["flights"], dry_run=False, verify=verify)
        assert report.left == ()
        here = Project("NYC", table.project.store).table("flights")
        assert (here.version().metadata_sha, here.version().facts.refreshed) == (
            made.metadata_sha,
            made.facts.refreshed,
        )
        assert_says(here, changed)
        assert_says(here, people(), 0)
        here.verify().require_ok()
        here.vacuum(min_age=timedelta(0), dry_run=False)
        assert_says(here, changed)
        again = without(changed, 9)
        refreshed = here.write(again, options=options).version.facts.refreshed
        assert refreshed is not None
        assert (refreshed.inserted, refreshed.deleted) == (0, 1)
        assert_says(here, again)

    def test_a_vector_that_was_altered_there_is_not_promoted(self, table):
        options = REFRESH.model_copy(update={"table_type": "derived"})
        table.write(people(), options=options)
        create_environment(table.project, "dev")
        there = table.project.in_environment("dev").table("flights")
        there.write(with_amount(people(), 5.0, *range(0, COUNT, 20)), code_version="1", options=options)
        (vectors,) = folder(there).glob("*.bin")
        data = bytearray(vectors.read_bytes())
        data[-10] ^= 1
        vectors.write_bytes(data)
        with pytest.raises(IntegrityError, match="deletion vector that cannot be read"):
            promote(table.project, "dev", accept=["flights"], dry_run=False)
        assert table.project.table("flights").state.log_version == 0

    def test_an_environment_refreshes_for_itself(self, table):
        derived = REFRESH.model_copy(update={"table_type": "derived"})
        table.write(people(), options=derived)
        create_environment(table.project, "dev")
        there = table.project.in_environment("dev").table("flights")
        changed = without(people(), 3)
        assert there.write(changed, code_version="1", options=derived).version.facts.refreshed == RefreshedRows(
            0, 1, COUNT - 1, 0, 1
        )
        assert_says(there, changed)
        assert_says(table, people())
        table.write(changed, options=derived)
        assert_says(table.project.table("flights"), changed)

    def test_a_rebase_keeps_what_an_environment_refreshed(self, table):
        options = REFRESH.model_copy(update={"table_type": "derived"})
        other = table.project.table("airports")
        for each in (table, other):
            each.write(people(), options=options)
        create_environment(table.project, "dev")
        there = table.project.in_environment("dev").table("flights")
        rows = people()
        for row in (3, 4):
            rows = without(rows, row)
            there.write(rows, code_version="1", options=options)
        other.write(without(people(), 8), options=options)
        report = rebase_environment(table.project, "dev", dry_run=False)
        assert report.left == ()
        again = Project("NYC", table.project.store).in_environment("dev")
        assert_says(again.table("flights"), rows)
        assert_says(again.table("airports"), without(people(), 8))

    @pytest.mark.parametrize("order", ["as it was", "another"])
    def test_a_draft_of_what_is_there_is_none(self, table, order):
        table.write(people(), options=REFRESH)
        table.write(without(people(), 3), options=REFRESH)
        rows = without(people(), 3)
        rows = rows if order == "as it was" else rows.sort_by("amount")
        assert park(table, {None: rows}, run=Run("run", "rows", 0), options=REFRESH).draft is None

    def test_what_waits_for_checks_is_stored_whole(self, table):
        table.write(people(), options=REFRESH)
        changed = without(people(), 3)
        park(table, {None: changed}, run=Run("run", "rows", 0), options=REFRESH)
        publish_run(table.project, "run", by="Ada")
        assert_says(table, changed)
        assert table.version().facts.refreshed is None

    def test_who_is_erased_is_in_no_file(self, table):
        rows = people().set_column(1, "name", pa.array([f"name-{number:05}" for number in range(COUNT)]))
        table.write(rows, options=REFRESH)
        table.write(without(rows, 77), options=REFRESH)
        table.write(with_amount(without(rows, 77), 1.0, 100, 200), options=REFRESH)
        table.project.erase("id = 77 or id = 101", ["flights"], why="asked", dry_run=False)
        for file in folder(table).glob("**/*.parquet"):
            names = pl.read_parquet(file)["name"].to_list() if "_delta_log" not in str(file) else []
            assert not {"name-00077", "name-00101"} & {*names}
        assert_says(table, without(rows, 77, 101), 1)
        changed = without(rows, 77, 101, 500)
        table.write(changed, options=REFRESH)
        assert_says(table, changed)
        table.verify().require_ok()


@pytest.mark.parametrize("seed", [1, 2, pytest.param(range(3, 40), marks=pytest.mark.slow, id="more")])
def test_whatever_happens_each_version_has_the_rows_of_its_frame(tmp_path, monkeypatch, seed):
    """Rows come, go and repeat, anywhere; the table is read by a program of others, too."""
    monkeypatch.setattr(policy, "FEWEST_BYTES", 1)
    for number in [seed] if isinstance(seed, int) else seed:
        chance = np.random.default_rng(number)
        store = LocalStore(tmp_path / str(number))
        options = TableOptions(refresh="changed_rows", target_part_bytes=int(chance.choice([300, 1_000, 10**9])))
        rows, versions = people(200, number).slice(0, 120), dict[int, pa.Table]()
        refreshed = 0
        for _ in range(25):
            table = Project("NYC", store).table("flights")
            result = table.write(rows, options=options)
            refreshed += result.version.facts.refreshed is not None
            versions[table.state.log_version] = rows
            assert_says(table, rows)
            some = chance.integers(0, rows.num_rows, chance.integers(0, 12))
            match chance.integers(0, 6):
                case 0:
                    rows = without(rows, *some)
                case 1:
                    rows = pa.concat_tables([rows, rows.take(pa.array(some))])
                case 2:
                    rows = rows.take(pa.array(chance.permutation(rows.num_rows)))
                case 3:
                    rows = pa.concat_tables([people(5, int(chance.integers(0, 10**6))), rows])
                case 4:
                    rows = list(versions.values())[int(chance.integers(0, len(versions)))]
                case _:
                    rows = with_amount(rows, float(chance.random()), *some)
        assert refreshed > 3
        table = Project("NYC", store).table("flights")
        for at, expected in versions.items():
            assert_says(table, expected, at)
            assert in_order(by_datafusion(folder(table), at)) == in_order(expected)
        with suppress(InvalidInput):
            table.expire(keep_last=2, dry_run=False)
        table.verify().require_ok()
