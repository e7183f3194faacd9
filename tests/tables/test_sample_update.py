"""Updates of tables of samples: what goes and what stays, against which version, what is refused."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from dagster_versioned.delta_tables.change_feed import read_changes
from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.engines.samples import DATA_VERSION, DATA_VERSION_BY_FIELD, PROVENANCE, PROVENANCE_BY_FIELD
from dagster_versioned.errors import CommitConflict, InvalidInput, UnsupportedFrame, UnsupportedType
from dagster_versioned.features.sample_update import SampleUpdate
from dagster_versioned.identity.version import Run
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.table import VersionedTable
from support.one_table import by_key, folder
from support.stores import contents

VECTORS = TableOptions(properties={"delta.enableDeletionVectors": "true"})
SMALL = TableOptions(target_part_bytes=1, row_group_bytes=1)
PLAIN = TableOptions()


def samples(
    rows: Mapping[int, Any], fields: Sequence[str] = ("audio",), versions: Mapping[int, str] | None = None
) -> pa.Table:
    """A sample for each id, with the versions of its fields: its value, unless said otherwise."""
    by_field = pa.array(
        [{field: (versions or {}).get(key, f"{field} {value}") for field in fields} for key, value in rows.items()],
        pa.struct([(field, pa.string()) for field in fields]),
    )
    whole = pa.array([str(value) for value in rows.values()], pa.string())
    return pa.table(
        {
            "id": pa.array(list(rows), pa.int64()),
            "value": pa.array(list(rows.values()), pa.int64()),
            PROVENANCE_BY_FIELD: by_field,
            PROVENANCE: whole,
            DATA_VERSION_BY_FIELD: by_field,
            DATA_VERSION: whole,
        }
    )


def units(*ids: int | None) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def update(
    table: VersionedTable,
    frame: pa.Table | Mapping[int, Any],
    *gone: int | None,
    partition: str | None = None,
    **also: Any,
) -> SampleUpdate:
    """What was computed from the table's head."""
    heads = table.state.history.heads if table.exists() else {}
    head = heads.get(partition)
    return SampleUpdate(
        **{
            "frame": frame if isinstance(frame, pa.Table) else samples(frame),
            "gone": units(*gone),
            "on": ("id",),
            "ids": ("id",),
            "base": head.metadata_sha if head else None,
            **also,
        }
    )


rows_of = partial(by_key, key="id")


def files(table: VersionedTable) -> dict[str, int]:
    """The rows that each part has lost."""
    return {add.key: add.deletion_vector.cardinality if add.deletion_vector else 0 for add in table.files().adds}


def counts(table: VersionedTable) -> tuple[int, int, int]:
    added = table.version().facts.added
    assert added is not None
    assert added.mode == "update"
    return added.inserted, added.updated, added.removed


def require_right(table: VersionedTable) -> None:
    """What is recorded of the head's rows is so."""
    facts = table.version().facts
    measured = ArrowEngine().measure(table.read(), table.files().scan.schema)
    assert (facts.digest, tuple(facts.null_counts)) == (measured.digest.text, measured.null_counts)
    assert table.version().identity.nrow == table.read().num_rows
    table.verify().require_ok()


@pytest.fixture(params=[PLAIN, VECTORS, SMALL], ids=["rewriting", "vectors", "small parts"])
def options(request: pytest.FixtureRequest) -> TableOptions:
    return request.param


TEN = dict.fromkeys(range(10), 0)


# --- rows ------------------------------------------------------------------------------------------------------------


def test_rows_that_come_take_the_place_of_those_that_go(table: VersionedTable, options: TableOptions) -> None:
    table.write(update(table, TEN), options=options)
    result = table.write(update(table, {3: 1, 20: 2, 4: 0}, 3, 5, 99), options=options)
    assert result.change == "full"
    assert rows_of(table) == {**{key: 0 for key in TEN if key != 5}, 3: 1, 20: 2}
    assert rows_of(table, 0) == TEN
    assert counts(table) == (1, 1, 1)
    require_right(table)


def test_only_parts_that_lose_a_row_are_written_again(table: VersionedTable) -> None:
    table.write(update(table, TEN), options=SMALL)
    before = files(table)
    assert len(before) == 10
    table.write(update(table, {3: 1, 4: 0}, 3, 4, 5), options=SMALL)
    assert len(before.keys() & files(table).keys()) == 8
    require_right(table)


def test_with_deletion_vectors_parts_stay_and_lose_rows(table: VersionedTable) -> None:
    table.write(update(table, TEN), options=VECTORS)
    table.write(update(table, {3: 1}, 5), options=VECTORS)
    assert sorted(files(table).values()) == [0, 2]
    require_right(table)


def test_orphans_go_where_no_row_comes(table: VersionedTable, options: TableOptions) -> None:
    table.write(update(table, TEN), options=options)
    table.write(update(table, {}, 1, 2), options=options)
    assert rows_of(table) == {key: 0 for key in TEN if key not in (1, 2)}
    assert counts(table) == (0, 0, 2)
    require_right(table)


def test_a_table_may_become_empty_and_be_filled_again(table: VersionedTable, options: TableOptions) -> None:
    table.write(update(table, TEN), options=options)
    result = table.write(update(table, {}, *TEN), options=options)
    assert (result.change, result.version.identity.nrow, rows_of(table)) == ("full", 0, {})
    table.write(update(table, {1: 5}), options=options)
    assert rows_of(table) == {1: 5}
    require_right(table)


def test_the_first_version_may_have_no_rows(table: VersionedTable) -> None:
    assert table.write(update(table, {})).change == "full"
    assert table.read().schema.names == samples({}).schema.names
    assert table.write(update(table, {})).change == "none"


@pytest.mark.parametrize("given", [({}, ()), ({}, (99,)), ({3: 0}, ()), ({3: 0, 4: 0}, (3, 4))])
def test_what_says_nothing_new_makes_no_version(table: VersionedTable, options: TableOptions, given: Any) -> None:
    table.write(update(table, TEN, custom={"feature": {"a": 1}}), options=options)
    before = contents(table.project.store)
    frame, gone = given
    result = table.write(update(table, frame, *gone, custom={"feature": {"a": 1}}), options=options)
    assert (result.change, result.bytes_uploaded) == ("none", 0)
    assert contents(table.project.store) == before


def test_what_an_update_says_of_itself_is_part_of_the_identity(table: VersionedTable) -> None:
    own = TableOptions(custom={"owner": "Ada"})
    table.write(update(table, TEN, custom={"feature": {"fields": 1}}), options=own)
    before = files(table)
    result = table.write(update(table, {}, custom={"feature": {"fields": 2}}), options=own)
    assert result.change == "metadata_only"
    assert result.version.identity.custom == {"owner": "Ada", "feature": {"fields": 2}}
    assert files(table) == before


def test_all_rows_of_a_unit_go_and_only_equal_ones_come_back_as_they_are(
    table: VersionedTable, options: TableOptions
) -> None:
    def crops(*pairs: tuple[int, int]) -> pa.Table:
        """Some crops of each video; an id is of one crop."""
        return samples(dict(pairs)).rename_columns(["crop", "id", *samples({}).column_names[2:]])

    def of_videos(frame: pa.Table, *gone: int) -> SampleUpdate:
        return update(table, frame, *gone, ids=("id", "crop"))

    table.write(of_videos(crops((1, 10), (2, 10), (3, 20), (4, 20), (5, 30))), options=options)
    table.write(of_videos(crops((1, 10), (6, 10)), 20), options=options)
    assert sorted(table.read()["crop"].to_pylist()) == [1, 5, 6]
    assert counts(table) == (1, 0, 3)
    require_right(table)


def test_a_sample_that_is_of_another_unit_now_is_there_once(table: VersionedTable) -> None:
    moving = {"on": ("value",), "gone": pa.table({"value": pa.array([], pa.int64())})}
    table.write(update(table, {1: 10, 2: 20}, **moving))
    table.write(update(table, {1: 30}, **moving))
    assert rows_of(table) == {1: 30, 2: 20}
    require_right(table)


def test_delta_partition_columns_and_updates_go_together(table: VersionedTable) -> None:
    by_value = VECTORS.model_copy(update={"partition_columns": ("value",)})
    table.write(update(table, {key: key % 2 for key in TEN}), options=by_value)
    table.write(update(table, {3: 0, 4: 2}, 5), options=by_value)
    assert rows_of(table) == {**{key: key % 2 for key in TEN if key != 5}, 3: 0, 4: 2}
    require_right(table)


def test_a_table_whose_rows_had_an_order_is_a_set_from_now_on(table: VersionedTable) -> None:
    table.write(samples({2: 2, 1: 1}))
    table.write(update(table, {3: 3}, 2))
    assert rows_of(table) == {1: 1, 3: 3}
    assert table.version().facts.digest.startswith("bag-xxh64x2:")
    require_right(table)


def test_pandas_and_polars_frames_are_taken(table: VersionedTable) -> None:
    table.write(update(table, TEN))
    ids = units(3).to_pandas()
    table.write(update(table, {}, gone=ids))
    assert 3 not in rows_of(table)


# --- columns ---------------------------------------------------------------------------------------------------------


def test_a_new_column_is_null_in_the_rows_that_stay(table: VersionedTable, options: TableOptions) -> None:
    table.write(update(table, TEN), options=options)
    wider = samples({3: 1}).append_column("note", pa.array(["new"]))
    table.write(update(table, wider, 4), options=options)
    notes = dict(zip(table.read()["id"].to_pylist(), table.read()["note"].to_pylist(), strict=True))
    assert notes == {**{key: None for key in TEN if key != 4}, 3: "new"}
    require_right(table)


@pytest.mark.parametrize(
    ("fields", "kept"),
    [(("audio", "frames"), {"audio": "audio 0", "frames": None}), (("frames",), {"frames": None})],
    ids=["a field more", "another field"],
)
def test_versions_have_the_fields_of_the_new_rows(
    table: VersionedTable, options: TableOptions, fields: Sequence[str], kept: Mapping[str, Any]
) -> None:
    table.write(update(table, TEN), options=options)
    table.write(update(table, samples({3: 1}, fields), 4), options=options)
    assert rows_of(table) == {**{key: 0 for key in TEN if key != 4}, 3: 1}
    for column in (PROVENANCE_BY_FIELD, DATA_VERSION_BY_FIELD):
        found = dict(zip(table.read()["id"].to_pylist(), table.read()[column].to_pylist(), strict=True))
        assert found == {key: {f: f"{f} 1" for f in fields} if key == 3 else kept for key in TEN if key != 4}
    assert counts(table) == (0, 1, 1)
    require_right(table)


def test_a_field_that_comes_back_has_no_versions_of_before(table: VersionedTable) -> None:
    """Parts that were written with the field are not read again once it was taken away."""
    table.write(update(table, samples(TEN, ("audio", "frames"))))
    table.write(update(table, samples({}, ("audio",))))
    table.write(update(table, samples({}, ("audio", "frames"))))
    assert {row["frames"] for row in table.read()[PROVENANCE_BY_FIELD].to_pylist()} == {None}
    assert (
        table.read(0)[PROVENANCE_BY_FIELD].to_pylist()
        == samples(TEN, ("audio", "frames"))[PROVENANCE_BY_FIELD].to_pylist()
    )
    require_right(table)


def test_the_order_of_fields_is_nothing(table: VersionedTable) -> None:
    table.write(update(table, samples(TEN, ("audio", "frames"))))
    assert table.write(update(table, samples({3: 0}, ("frames", "audio")))).change == "none"


def test_partitions_may_have_versions_of_other_fields(project: Project) -> None:
    table = project.table("daily")
    table.write_partitions({day: update(table, TEN) for day in ("mon", "tue")})
    table.write(update(table, samples({3: 1}, ("frames",)), 4, partition="mon"), partition="mon")
    assert table.read(partition="tue")[PROVENANCE_BY_FIELD].to_pylist() == [{"audio": "audio 0"}] * 10
    assert table.read(partition="mon")[PROVENANCE_BY_FIELD].type == pa.struct([("frames", pa.string())])
    whole = table.read()
    assert whole.num_rows == 19
    assert {"audio": None, "frames": "frames 1"} in whole[PROVENANCE_BY_FIELD].to_pylist()
    assert {"audio": "audio 0", "frames": None} in whole[PROVENANCE_BY_FIELD].to_pylist()
    table.verify().require_ok()


@pytest.mark.parametrize("partitions", [(None,), ("mon", "tue")], ids=["whole", "partitions"])
def test_versions_of_other_fields_can_be_reverted_to(project: Project, partitions: Sequence[str | None]) -> None:
    table = project.table("samples")
    first = partitions[0]
    table.write_partitions({key: update(table, TEN, partition=key) for key in partitions})
    old = table.version(partition=first)
    assert old.metadata_sha is not None
    for fields in (("frames",), ("audio", "frames")):
        table.write_partitions({key: update(table, samples({3: 1}, fields), partition=key) for key in partitions})
        table.revert(old.metadata_sha, partition=first)
        assert table.read(partition=first)[PROVENANCE_BY_FIELD].to_pylist() == [{"audio": "audio 0"}] * 10
        assert table.read().num_rows == 10 * len(partitions)
        table.verify().require_ok()


# --- partitions ------------------------------------------------------------------------------------------------------


def test_partitions_are_updated_in_one_commit_each_against_its_own_head(
    project: Project, options: TableOptions
) -> None:
    table = project.table("daily")
    table.write_partitions({day: update(table, TEN) for day in ("mon", "tue", "wed")}, options=options)
    results = table.write_partitions(
        {
            "mon": update(table, {3: 1}, 4, partition="mon"),
            "tue": update(table, {}, partition="tue"),
            "thu": update(table, {7: 7}, partition="thu"),
        },
        options=options,
    )
    assert [result.change for result in results] == ["full", "none", "full"]
    assert {result.version.log_version for result in results} == {0, 1}
    assert table.read(partition="mon").num_rows == 9
    assert table.read(partition="thu").num_rows == 1
    stale = update(table, {1: 1}, partition="mon")
    table.write(update(table, {2: 2}, partition="mon"), partition="mon", options=options)
    before = contents(project.store)
    both = {"mon": stale, "wed": update(table, {1: 1}, partition="wed")}
    with pytest.raises(CommitConflict, match="the head of partition 'mon'"):
        table.write_partitions(both, options=options)
    assert contents(project.store) == before
    table.verify().require_ok()


def test_an_update_and_a_frame_are_not_written_together(project: Project) -> None:
    table = project.table("daily")
    with pytest.raises(InvalidInput, match="SampleUpdate and a frame"):
        table.write_partitions({"mon": update(table, TEN), "tue": samples(TEN)})
    assert not table.exists()


# --- the version that it was computed from ---------------------------------------------------------------------------


def test_an_update_goes_onto_no_other_version(table: VersionedTable) -> None:
    first = update(table, TEN)
    table.write(first)
    late = update(table, {3: 1})
    table.write(update(table, {4: 2}))
    before = contents(table.project.store)
    for stale in (late, first, update(table, {3: 1}, base="0" * 64)):
        with pytest.raises(CommitConflict, match=r"computed from .* Run again: only what is stale"):
            table.write(stale)
    assert contents(table.project.store) == before


def test_a_head_with_other_parents_is_another_version(table: VersionedTable) -> None:
    table.write(update(table, TEN))
    late = update(table, {3: 1})
    assert table.write(update(table, {}), code_version="2").change == "metadata_only"
    with pytest.raises(CommitConflict):
        table.write(late)


def test_of_two_that_computed_the_same_one_commits(project: Project) -> None:
    one, other = project.table("rows"), project.table("rows")
    one.write(update(one, TEN))
    mine, theirs = update(one, {3: 1}), update(other, {3: 1})
    one.write(mine)
    with pytest.raises(CommitConflict):
        other.write(theirs)
    assert other.write(update(other, {3: 1})).change == "none"


def test_an_update_may_go_onto_a_version_that_came_back(table: VersionedTable) -> None:
    table.write(update(table, TEN))
    pending = update(table, {3: 1})
    table.write(update(table, {3: 2}))
    table.revert(0)
    table.write(pending)
    assert rows_of(table)[3] == 1
    require_right(table)


def test_one_step_may_commit_several_updates_and_its_retry_goes_on(table: VersionedTable) -> None:
    def run(attempt: int) -> Run:
        return Run("run-1", "samples", attempt)

    table.write(update(table, {1: 1}), run=run(0))
    table.write(update(table, {2: 2}), run=run(0))
    again = table.write(update(table, {2: 2}), run=run(1))
    assert (again.change, again.replayed) == ("none", True)
    table.write(update(table, {3: 3}), run=run(1))
    assert rows_of(table) == {1: 1, 2: 2, 3: 3}


# --- the change data feed --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [("audio",), ("audio", "frames")], ids=["same fields", "a field more"])
def test_the_feed_tells_rows_that_came_changed_and_went(
    table: VersionedTable, options: TableOptions, fields: Sequence[str]
) -> None:
    feed = options.model_copy(update={"properties": {**options.properties, "delta.enableChangeDataFeed": "true"}})
    table.write(update(table, TEN), options=feed)
    table.write(update(table, samples({3: 1, 20: 2}, fields), 5), options=feed)
    table.write(update(table, samples({}, fields), 6), options=feed)
    told: list[list[tuple[Any, ...]]] = []
    for version in (1, 2):
        read = read_changes(str(folder(table)), version, version)
        told.append(sorted(zip(*(read[name].to_pylist() for name in ("_change_type", "id", "value")), strict=True)))
    assert told == [
        [("delete", 5, 0), ("insert", 20, 2), ("update_postimage", 3, 1), ("update_preimage", 3, 0)],
        [("delete", 6, 0)],
    ]
    table.verify().require_ok()


# --- other readers ---------------------------------------------------------------------------------------------------


def test_deltalake_reads_every_version(table: VersionedTable, options: TableOptions) -> None:
    table.write(update(table, TEN), options=options)
    table.write(update(table, {3: 1, 20: 2}, 5), options=options)
    table.write(update(table, samples({4: 1}, ("audio", "frames")), 6), options=options)
    table.write(update(table, samples({}, ("frames",)), *TEN), options=options)
    for version in range(4):
        peer = QueryBuilder().register("t", DeltaTable(str(folder(table)), version=version))
        found = pa.table(peer.execute("select * from t order by id").read_all())
        assert found.to_pylist() == table.read(version).sort_by("id").to_pylist()


# --- refused ---------------------------------------------------------------------------------------------------------


def _without(name: str) -> pa.Table:
    return samples({1: 1}).drop_columns([name])


@pytest.mark.parametrize(
    ("also", "error", "message"),
    [
        ({"frame": pa.concat_tables([samples({1: 1})] * 2)}, InvalidInput, r"ids \['id'\].* 1 keys have more than one"),
        (
            {"frame": samples({1: 1}).set_column(0, "id", pa.nulls(1, pa.int64()))},
            InvalidInput,
            "rows .* 1 have a null",
        ),
        ({"gone": units(1, None)}, InvalidInput, "units that go .* 1 have a null"),
        ({"gone": pa.table({"key": [1]})}, InvalidInput, "units that go has no column 'id'"),
        ({"gone": pa.table({"id": ["x"]})}, InvalidInput, "'id' is string in the units that go, and long"),
        ({"frame": samples({1: 1}).set_column(1, "value", pa.array(["x"]))}, UnsupportedType, "'value' is string"),
        ({"gone": [1]}, InvalidInput, "frames of one kind"),
        ({"frame": [1]}, UnsupportedFrame, "list"),
        ({"frame": _without("value")}, InvalidInput, "has no column 'value'"),
        ({"frame": _without(PROVENANCE_BY_FIELD)}, InvalidInput, "has no column"),
        ({"frame": _without("id")}, InvalidInput, "'id'"),
        ({"ids": ("other",)}, InvalidInput, "ids names 'other'"),
        ({"on": ("other",)}, InvalidInput, "on names 'other'"),
        ({"on": (PROVENANCE_BY_FIELD,)}, InvalidInput, "nested column"),
        ({"custom": {"owner": 1}}, InvalidInput, "TableOptions.custom has the member 'owner'"),
    ],
)
def test_what_cannot_be_updated_changes_nothing(
    table: VersionedTable, also: Mapping[str, Any], error: type[Exception], message: str
) -> None:
    own = TableOptions(custom={"owner": "Ada"})
    table.write(update(table, TEN), options=own)
    before = contents(table.project.store)
    given = SampleUpdate(**{**vars(update(table, {1: 1})), **also})
    with pytest.raises(error, match=message):
        table.write(given, options=own)
    assert contents(table.project.store) == before


@pytest.mark.parametrize(("name", "value"), [("ids", ()), ("on", ()), ("on", "id"), ("ids", ("id", "id"))])
def test_units_are_matched_by_some_columns(name: str, value: Any) -> None:
    fields: dict[str, Any] = {"ids": ("id",), "on": ("id",), name: value}
    with pytest.raises(InvalidInput, match=f"{name} of a SampleUpdate"):
        SampleUpdate(frame=samples({}), gone=units(), base=None, **fields)


@pytest.mark.parametrize(
    "options",
    [
        TableOptions(mode="append"),
        TableOptions(mode="merge", merge_key=("id",)),
        TableOptions(row_order="significant"),
        TableOptions(sort_rows=("id",)),
        TableOptions(single_part=True),
    ],
)
def test_options_that_an_update_cannot_keep_are_refused(table: VersionedTable, options: TableOptions) -> None:
    with pytest.raises(InvalidInput, match="contradicts"):
        table.write(update(table, TEN), options=options)
    assert not table.exists()


def test_rows_that_break_a_constraint_are_refused(table: VersionedTable) -> None:
    positive = TableOptions(constraints={"positive": "value >= 0"})
    table.write(update(table, TEN), options=positive)
    with pytest.raises(InvalidInput, match="'positive'"):
        table.write(update(table, {3: -1}))
    table.write(update(table, {3: 1}, 4))
    assert rows_of(table)[3] == 1


def test_samples_that_the_table_has_twice_are_refused(table: VersionedTable) -> None:
    table.write(pa.concat_tables([samples({1: 1}), samples({1: 2})]))
    with pytest.raises(InvalidInput, match=r"ids \['id'\].*1 keys of the frame have more than one row there"):
        table.write(update(table, {1: 3}))
    table.write(update(table, {}, 1))
    assert rows_of(table) == {}
