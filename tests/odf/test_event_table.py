"""A table as a history of events: what a write commits, what reads tell, what is refused, what is repaired."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from dagster_versioned.errors import (
    ChainCorrupt,
    CommitConflict,
    EmptyTable,
    IntegrityError,
    InvalidInput,
    TableNotFound,
    UnsupportedType,
    VersionNotFound,
)
from dagster_versioned.identity.version import Run
from dagster_versioned.odf.blocks.events import (
    AddData,
    AddPushSource,
    DatasetKind,
    FetchStepUrl,
    MergeStrategyChangelogStream,
    MergeStrategySnapshot,
    MergeStrategyUpsertStream,
    ReadStepCsv,
    Seed,
    SetDataSchema,
    SetPollingSource,
    SetVocab,
    SourceState,
)
from dagster_versioned.odf.event_table import EventTable
from dagster_versioned.odf.identity.arrow0 import Arrow0
from dagster_versioned.odf.identity.multihash import Multihash
from dagster_versioned.odf.identity.signing_key import SIGNATURE_KEY, HeadSignature, SigningKey
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.event_history import (
    AppendMerge,
    ChangelogMerge,
    EventHistory,
    LedgerMerge,
    SnapshotMerge,
    UpsertMerge,
)
from dagster_versioned.tables.options import TableOptions
from support.colliding import colliding_texts
from support.crashes import append_as_another_program

PLANES = EventHistory(merge=SnapshotMerge(primary_key=("id",)))


def year(number: int) -> datetime:
    return datetime(number, 1, 1, tzinfo=UTC)


def dump(*rows: tuple[Any, ...], names: tuple[str, ...] = ("id", "seats")) -> pa.Table:
    kinds = {"id": pa.int64(), "seats": pa.int64(), "engine": pa.string()}
    return pa.table({name: pa.array([row[i] for row in rows], kinds[name]) for i, name in enumerate(names)})


def rows_of(frame: pa.Table, *names: str) -> list[tuple[Any, ...]]:
    return sorted(zip(*(frame[name].to_pylist() for name in names or ("id", "seats")), strict=True))


def kinds(history: EventTable) -> list[str]:
    return [type(block.event).__name__ for _, block in history.blocks()][::-1]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project.open("NYC", str(tmp_path / "store"), author="Ada <ada@example.org>")


@pytest.fixture
def planes(project: Project) -> EventTable:
    return EventTable(project.table("planes"), PLANES)


def three_years(planes: EventTable) -> EventTable:
    planes.write(dump((1, 100), (2, 50)), event_time=year(2013))
    planes.write(dump((1, 120), (2, 50), (3, 10)), event_time=year(2014))
    planes.write(dump((1, 120), (3, 10)), event_time=year(2015))
    return planes


# --- streams of changes ----------------------------------------------------------------------------------------------

UPSERT = EventHistory(merge=UpsertMerge(primary_key=("id",)))
CHANGELOG = EventHistory(merge=ChangelogMerge(primary_key=("id",)))


def changed(*rows: tuple[Any, ...]) -> pa.Table:
    return pa.table({"op": [row[0] for row in rows], "id": [row[1] for row in rows], "seats": [row[2] for row in rows]})


def test_an_upsert_looks_up_what_was(project: Project):
    planes = EventTable(project.table("planes"), UPSERT)
    planes.write(dump((1, 100), (2, 50)), event_time=year(2013))
    planes.write(changed((0, 1, 120), (1, 2, 0), (0, 3, 9)), event_time=year(2014))
    events = planes.events().select(["op", "id", "seats"]).to_pylist()
    assert [tuple(event.values()) for event in events][2:] == [(2, 1, 100), (3, 1, 120), (1, 2, 50), (0, 3, 9)]
    assert rows_of(planes.current()) == [(1, 120), (3, 9)]
    assert planes.write(dump((1, 120)), event_time=year(2014)).change == "none"
    source = next(iter(planes.chain.push_sources.values()))
    assert source.merge == MergeStrategyUpsertStream(("id",))
    assert rows_of(EventTable(planes.table).current()) == [(1, 120), (3, 9)]


def test_a_changelog_is_taken_at_its_word(project: Project):
    planes = EventTable(project.table("planes"), CHANGELOG)
    run = Run("run-1", "step", 0)
    for _ in range(2):  # a step that is tried again appends once
        planes.write(changed((0, 1, 100), (2, 1, 100), (3, 1, 120), (0, 2, 5), (1, 2, 5), (0, 2, 6)), run=run)
    assert [event["op"] for event in planes.events().to_pylist()] == [0, 2, 3, 0, 1, 0]
    assert rows_of(planes.current()) == [(1, 120), (2, 6)]
    assert next(iter(planes.chain.push_sources.values())).merge == MergeStrategyChangelogStream(("id",))


def test_a_changelog_takes_rows_back_with_the_time_that_they_have(project: Project):
    """The specification: a retraction and a correct-from carry the fields of the event that they take back."""
    planes = EventTable(project.table("planes"), CHANGELOG)
    planes.write(changed((0, 1, 100), (0, 2, 50), (0, 4, 1), (2, 4, 1), (3, 4, 2)), event_time=year(2013))
    planes.write(changed((2, 1, 100), (3, 1, 120), (1, 2, 50), (0, 3, 7), (1, 3, 7), (1, 5, 1)), event_time=year(2014))
    planes.write(changed((2, 1, 120), (3, 1, 130), (2, 1, 130), (3, 1, 140), (1, 4, 2)), event_time=year(2015))
    found = [(row["op"], row["id"], row["event_time"].year) for row in planes.events().to_pylist()]
    assert found == [
        *((0, 1, 2013), (0, 2, 2013), (0, 4, 2013), (2, 4, 2013), (3, 4, 2013)),
        *((2, 1, 2013), (3, 1, 2014), (1, 2, 2013), (0, 3, 2014), (1, 3, 2014), (1, 5, 2014)),
        *((2, 1, 2014), (3, 1, 2015), (2, 1, 2015), (3, 1, 2015), (1, 4, 2013)),
    ]
    assert rows_of(planes.as_of(year(2013))) == [(1, 100)]


@pytest.mark.parametrize(
    ("history", "rows", "reason"),
    [
        (CHANGELOG, dump((1, 1)), "'op', a whole number .* and this one has none"),
        (UPSERT, pa.table({"op": ["+A"], "id": [1], "seats": [1]}), "has it as string"),
        (UPSERT, changed((7, 1, 1)), "'op' has 7, which is no operation"),
        (CHANGELOG, changed((-1, 1, 1)), "'op' has -1, which is no operation"),
        (UPSERT, changed((0, None, 1), (0, 2, 1)), "1 rows have a null"),
        (CHANGELOG, changed((0, 1, 1), (2, 1, 1)), "of the 'id' 1 there is half a one"),
        (CHANGELOG, changed((0, 1, 1), (3, 1, 2)), "of the 'id' 1 there is half a one"),
        (CHANGELOG, changed((2, 1, 1), (1, 1, 1), (3, 1, 2)), "of the 'id' 1 there is half a one"),
        (EventHistory(merge=LedgerMerge(primary_key=("id",))), changed((0, 1, 1)), "column 'op', which every event is"),
    ],
)
def test_changes_that_are_none_are_refused(project: Project, history: EventHistory, rows: pa.Table, reason: str):
    table = EventTable(project.table("planes"), history)
    with pytest.raises(InvalidInput, match=reason):
        table.write(rows)
    assert not table.table.exists()


# --- writing ---------------------------------------------------------------------------------------------------------


def test_the_first_write_begins_a_chain_in_one_commit(planes: EventTable):
    result = planes.write(dump((1, 100), (2, 50)), event_time=year(2013))
    assert result.change == "full"
    assert planes.table.state.log_version == 0
    assert kinds(planes) == ["Seed", "AddPushSource", "SetDataSchema", "AddData"]
    (name, last), *_, (_, seed) = planes.blocks()
    assert isinstance(seed.event, Seed)
    assert seed.event.dataset_kind is DatasetKind.ROOT
    source = next(block.event for _, block in planes.blocks() if isinstance(block.event, AddPushSource))
    assert source.merge == MergeStrategySnapshot(("id",), None)
    assert isinstance(last.event, AddData)
    assert last.event.new_watermark is not None
    assert last.event.new_watermark.to_datetime() == year(2013)
    assert planes.table.store.get("refs/head") == str(name).encode()
    commit = orjson.loads(planes.table.store.get("_delta_log/00000000000000000000.json").splitlines()[0])
    assert commit["commitInfo"]["dagsterVersioned"]["block"] == str(name)


def test_a_slice_is_named_and_described_by_its_hashes(planes: EventTable):
    three_years(planes)
    for _, block in planes.blocks():
        if (said := block.new_data) is not None:
            data = planes.table.store.get(f"data/{said.physical_hash}")
            assert Multihash.sha3_256(data) == said.physical_hash
            assert len(data) == said.size
            records = pq.read_table(pa.BufferReader(data))
            logical = Arrow0(records.schema)
            logical.update(records)
            assert logical.digest() == said.logical_hash
            interval = said.offset_interval
            assert records["offset"].to_pylist() == list(range(interval.start, interval.end + 1))
            assert records.schema.field("system_time").type == pa.timestamp("ms", tz="UTC")
            assert set(records["system_time"].to_pylist()) == {block.system_time.to_datetime()}


def test_a_dump_that_changed_nothing_writes_nothing(planes: EventTable):
    first = planes.write(dump((1, 100)))
    before = {info.key: info.etag for info in planes.table.store.list()}
    again = planes.write(dump((1, 100)))
    assert (again.change, again.version) == ("none", first.version)
    assert {info.key: info.etag for info in planes.table.store.list()} == before


def test_a_dump_of_a_later_time_that_changed_nothing_moves_the_watermark_alone(planes: EventTable):
    planes.write(dump((1, 100)), event_time=year(2013))
    again = planes.write(dump((1, 100)), event_time=year(2014))
    assert again.change == "none"
    assert kinds(planes)[-2:] == ["AddData", "AddData"]
    assert planes.chain.watermark is not None
    assert planes.chain.watermark.to_datetime() == year(2014)
    assert planes.chain.next_offset == 1
    assert planes.table.verify().ok


def test_other_metadata_is_a_version_without_a_block(planes: EventTable):
    planes.write(dump((1, 100)), code_version="1")
    head = planes.chain.head
    result = planes.write(dump((1, 100)), code_version="2")
    assert result.change == "metadata_only"
    assert planes.chain.head == head


@pytest.mark.parametrize("kind", [pl.DataFrame, pd.DataFrame, pa.RecordBatchReader, pl.LazyFrame], ids=str)
def test_frames_of_every_kind(planes: EventTable, kind: type):
    made = {
        pl.DataFrame: lambda rows: pl.from_arrow(rows),
        pl.LazyFrame: lambda rows: pl.from_arrow(rows).lazy(),
        pd.DataFrame: lambda rows: rows.to_pandas(),
        pa.RecordBatchReader: lambda rows: rows.to_reader(),
    }[kind]
    planes.write(made(dump((1, 100), (2, 50))))
    planes.write(made(dump((1, 120), (2, 50))))
    found = planes.current(as_type=kind)
    assert isinstance(found, kind)
    table = {
        pl.DataFrame: lambda: found.to_arrow(),
        pl.LazyFrame: lambda: found.collect().to_arrow(),
        pd.DataFrame: lambda: pa.Table.from_pandas(found),
        pa.RecordBatchReader: lambda: found.read_all(),
    }[kind]()
    assert rows_of(table) == [(1, 120), (2, 50)]


def test_new_columns_are_null_in_what_was_there_and_recorded(planes: EventTable):
    planes.write(dump((1, 100), (2, 50)))
    planes.write(dump((1, 100, "jet"), (2, 50, None), names=("id", "seats", "engine")))
    assert kinds(planes)[-2:] == ["SetDataSchema", "AddData"]
    assert rows_of(planes.current(), "id", "engine") == [(1, "jet"), (2, None)]
    assert rows_of(planes.as_at(planes_time(planes, 0)), "id", "engine") == [(1, None), (2, None)]
    assert planes.table.verify().ok
    with pytest.raises(InvalidInput, match="no column 'engine'"):
        planes.write(dump((1, 100)))
    with pytest.raises(UnsupportedType, match="'seats'"):
        planes.write(pa.table({"id": [1], "seats": ["many"], "engine": ["jet"]}))


def planes_time(history: EventTable, merge: int) -> datetime:
    """The system time of one of the merges that brought data."""
    times = [block.system_time.to_datetime() for _, block in history.blocks() if block.new_data is not None]
    return times[::-1][merge]


def test_columns_are_called_as_the_history_says(project: Project):
    history = EventHistory(
        merge=LedgerMerge(primary_key=("id",)),
        event_time="at",
        offset="position",
        operation_type="does",
        system_time="known",
    )
    table = EventTable(project.table("calls"), history)
    table.write(pa.table({"at": pa.array([year(2001)], pa.timestamp("us", "UTC")), "id": [1], "op": ["data"]}))
    assert table.events().column_names == ["position", "does", "known", "at", "id", "op"]
    vocab = next(block.event for _, block in table.blocks() if isinstance(block.event, SetVocab))
    assert vocab == SetVocab("position", "does", "known", "at")
    assert EventTable(project.table("calls")).as_of(year(2001)).num_rows == 1
    with pytest.raises(InvalidInput, match="Columns are never renamed"):
        EventTable(project.table("calls"), EventHistory(merge=history.merge)).write(pa.table({"id": [1], "op": ["x"]}))


def test_a_polled_source_replaces_the_pushed_one_and_its_state_is_carried(planes: EventTable):
    planes.write(dump((1, 100)))
    merge = MergeStrategySnapshot(("id",))
    polled = SetPollingSource(fetch=FetchStepUrl("https://example.org/p.csv"), read=ReadStepCsv(), merge=merge)
    state = SourceState("default", "odf/etag", "a")
    planes.write(dump((1, 120)), source=polled, source_state=state)
    assert kinds(planes)[-3:] == ["DisablePushSource", "SetPollingSource", "AddData"]
    planes.write(dump((1, 120)), source=polled, source_state=SourceState("default", "odf/etag", "b"))
    assert planes.chain.source_states["default"].value == "b"
    head = planes.chain.head
    planes.write(dump((1, 120)), source=polled, source_state=SourceState("default", "odf/etag", "b"))
    assert planes.chain.head == head


def test_a_key_makes_the_identity_and_signs_the_head(project: Project):
    key = SigningKey.generate()
    table = EventTable(project.table("signed"), PLANES, key=key)
    table.write(dump((1, 100)))
    assert table.chain.seed.dataset_id == key.dataset_id
    signature = HeadSignature.parse(table.table.store.get(SIGNATURE_KEY))
    assert (signature.dataset_id, signature.head) == (key.dataset_id, table.chain.head)
    with pytest.raises(InvalidInput, match="Give the dataset's own key"):
        EventTable(project.table("signed"), PLANES, key=SigningKey.generate()).write(dump((1, 120)))


def test_a_head_that_a_write_died_before_signing_is_signed_by_the_next(project: Project):
    table = EventTable(project.table("signed"), PLANES, key=SigningKey.generate())
    table.write(dump((1, 100)))
    early = table.table.store.get(SIGNATURE_KEY)
    table.write(dump((1, 120)))
    for died in (
        lambda: table.table.store.put(SIGNATURE_KEY, early),
        lambda: table.table.store.delete([SIGNATURE_KEY]),
    ):
        died()
        assert table.write(dump((1, 120))).change == "none"
        assert HeadSignature.parse(table.table.store.get(SIGNATURE_KEY)).head == table.chain.head


# --- watermarks ------------------------------------------------------------------------------------------------------


def timed(*times: datetime) -> pa.Table:
    return pa.table(
        {"event_time": pa.array(times, pa.timestamp("us", "UTC")), "id": pa.array(range(len(times)), pa.int64())}
    )


def reached(table: EventTable) -> datetime | None:
    return None if table.chain.watermark is None else table.chain.watermark.to_datetime()


@pytest.mark.parametrize("delay", [timedelta(0), timedelta(days=1)], ids=str)
def test_the_watermark_is_the_latest_event_time_and_never_falls(project: Project, delay: timedelta):
    table = EventTable(project.table("t"), EventHistory(watermark=delay or "latest"))
    for times in ((year(2001), year(2003)), (year(2002),)):
        table.write(timed(*times))
        assert reached(table) == year(2003) - delay


def test_a_manual_watermark_moves_when_told(project: Project):
    table = EventTable(project.table("t"), EventHistory(watermark="manual"))
    table.write(timed(year(2003)))
    assert reached(table) is None
    table.write(timed(), watermark=year(2004))
    assert reached(table) == year(2004)
    assert table.chain.next_offset == 1
    with pytest.raises(InvalidInput, match="A watermark never goes back"):
        table.write(timed(), watermark=year(2003))


def test_a_watermark_is_set_without_data(project: Project):
    table = EventTable(project.table("t"), EventHistory(watermark="manual"))
    written = table.write(timed(year(2003)))
    reading = EventTable(project.table("t"))
    result = reading.set_watermark(year(2004))
    assert (result.change, result.version.metadata_sha) == ("none", written.version.metadata_sha)
    _, last = next(reading.blocks())
    assert isinstance(last.event, AddData)
    assert (last.event.new_data, last.event.prev_offset) == (None, 0)
    assert reached(reading) == year(2004)
    blocks = reading.chain.sequence_number
    reading.set_watermark(year(2004))
    assert reading.chain.sequence_number == blocks  # nothing happened
    with pytest.raises(InvalidInput, match="A watermark never goes back"):
        reading.set_watermark(year(2003))
    with pytest.raises(InvalidInput, match="has no time zone"):
        reading.set_watermark(datetime(2005, 1, 1))
    for no_moment in ("2005-01-01", date(2005, 1, 1), None):
        with pytest.raises(InvalidInput, match="no moment"):
            reading.set_watermark(no_moment)  # pyright: ignore[reportArgumentType]
    assert (reading.chain.sequence_number, reached(reading)) == (blocks, year(2004))
    table.write(timed(year(2005)))
    assert reached(table) == year(2004)
    assert reading.events().num_rows == 2


def test_only_a_history_has_a_watermark(project: Project):
    with pytest.raises(TableNotFound):
        EventTable(project.table("t")).set_watermark(year(2003))
    project.table("rows").write(pa.table({"id": [1]}))
    with pytest.raises(InvalidInput, match="no history of events"):
        EventTable(project.table("rows")).set_watermark(year(2003))


# --- reading ---------------------------------------------------------------------------------------------------------


def test_what_was_known_at_a_time_and_what_is_known_of_a_time(planes: EventTable):
    three_years(planes)
    assert rows_of(planes.as_at(planes_time(planes, 0))) == [(1, 100), (2, 50)]
    assert rows_of(planes.as_at(planes_time(planes, 1))) == [(1, 120), (2, 50), (3, 10)]
    assert rows_of(planes.as_at(planes_time(planes, 1) - timedelta(milliseconds=1))) == [(1, 100), (2, 50)]
    assert rows_of(planes.as_of(year(2013))) == [(1, 100)]
    assert rows_of(planes.read(as_at=planes_time(planes, 1), as_of=year(2013))) == [(1, 100), (2, 50)]
    assert rows_of(planes.current()) == [(1, 120), (3, 10)]
    assert rows_of(planes.current(0)) == [(1, 100), (2, 50)]


def test_changes_between_blocks(planes: EventTable):
    three_years(planes)
    names = [name for name, block in planes.blocks() if isinstance(block.event, AddData)][::-1]
    assert planes.changes(str(names[0]), names[1])["op"].to_pylist() == [2, 3, 0]
    assert planes.changes(names[1])["op"].to_pylist() == [1]
    assert planes.changes(0).num_rows == 6
    with pytest.raises(VersionNotFound, match="No block 99"):
        planes.changes(99)


def test_slices_that_came_after_a_time_or_before_a_block_are_not_opened(planes: EventTable):
    three_years(planes)
    last, _, first = (block.new_data.physical_hash for _, block in planes.blocks() if block.new_data is not None)
    times = [planes_time(planes, merge) for merge in range(3)]
    newest = next(planes.blocks())[1].sequence_number
    planes.table.store.delete([f"data/{last}"])
    assert rows_of(planes.as_at(times[2] - timedelta(milliseconds=1))) == [(1, 120), (2, 50), (3, 10)]
    assert planes.as_at(times[0] - timedelta(milliseconds=1)).num_rows == 0
    assert planes.changes(0, newest - 1).num_rows == 5
    with pytest.raises(IntegrityError):
        planes.as_at(times[2])
    planes.table.store.delete([f"data/{first}"])
    assert planes.changes(newest - 2, newest - 1)["op"].to_pylist() == [2, 3, 0]


def test_delta_readers_see_the_events(planes: EventTable):
    three_years(planes)
    delta = DeltaTable(planes.table.store.uri.removeprefix("file://"))
    assert delta.to_pyarrow_table().num_rows == 6
    assert delta.metadata().configuration["delta.appendOnly"] == "true"


def test_a_history_is_opened_for_reading_without_knowing_how_it_is_written(planes: EventTable, project: Project):
    three_years(planes)
    read = EventTable(project.table("planes"))
    assert rows_of(read.current()) == [(1, 120), (3, 10)]
    with pytest.raises(InvalidInput, match="opened for reading"):
        read.write(dump((1, 100)))


@pytest.mark.parametrize(
    "merge", [SnapshotMerge(primary_key=("id",)), UpsertMerge(primary_key=("id",))], ids=["snapshot", "upsert"]
)
def test_rows_that_were_made_to_have_the_open_digest_of_others_are_changes(project: Project, merge: Any):
    table = EventTable(project.table("log"), EventHistory(merge=merge))
    for note in colliding_texts():
        assert table.write(pa.table({"id": [1], "note": [note]})).change == "full"
    assert table.current()["note"].to_pylist() == [colliding_texts()[1]]


@pytest.mark.parametrize(
    ("merge", "more"),
    [(AppendMerge(), {}), (ChangelogMerge(primary_key=("id",)), {"op": [0]})],
    ids=["append", "changelog"],
)
def test_a_retry_with_such_rows_says_that_it_left_them_out(project: Project, merge: Any, more: Any):
    table = EventTable(project.table("log"), EventHistory(merge=merge))
    one, other = (pa.table({"id": [1], "note": [note], **more}) for note in colliding_texts())
    table.write(one, run=Run("r", "log", 0))
    again, left = (table.write(frame, run=Run("r", "log", 1)) for frame in (one, other))
    assert (again.replayed, again.left_out) == (True, False)
    assert (left.replayed, left.left_out) == (True, True)


# --- retries and races -----------------------------------------------------------------------------------------------


def test_a_step_that_is_tried_again_appends_once(project: Project):
    table = EventTable(project.table("log"), EventHistory(merge=AppendMerge()))
    run = Run("r", "log", 0)
    first = table.write(dump((1, 1), (1, 1)), run=run)
    head = table.chain.head
    again = table.write(dump((1, 1), (1, 1)), run=Run("r", "log", 1))
    assert (again.replayed, again.version, table.chain.head) == (True, first.version, head)
    for other in (Run("r", "log", 2), Run("s", "log", 0, first_run_id="r")):
        left = table.write(dump((1, 2)), run=other)
        assert (left.replayed, left.left_out, table.chain.head) == (True, True, head)
    assert table.write(dump((1, 1)), run=Run("another", "log", 0)).change == "full"


def test_events_computed_on_a_head_that_moved_go_nowhere(planes: EventTable, project: Project):
    planes.write(dump((1, 100)))
    other = EventTable(project.table("planes"), PLANES)
    late = planes.ground()
    other.write(dump((1, 120)))
    planes.ground = lambda: late  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(CommitConflict, match="by now"):
        planes.write(dump((1, 90)))
    assert rows_of(other.current()) == [(1, 120)]
    assert other.table.verify().ok


# --- upkeep ----------------------------------------------------------------------------------------------------------


def test_a_lost_reference_is_found_and_repaired(planes: EventTable):
    three_years(planes)
    head = planes.table.store.get("refs/head")
    planes.table.store.delete(["refs/head"])
    assert [finding.where for finding in planes.table.verify().findings] == ["refs/head"]
    planes.table.repair()
    assert planes.table.store.get("refs/head") == head
    assert planes.table.verify().ok


def test_vacuum_takes_slices_that_no_commit_names_and_nothing_else(planes: EventTable):
    three_years(planes)
    planes.table.store.put("data/f1620" + "0" * 64, b"left behind")
    report = planes.table.vacuum(dry_run=False, min_age=timedelta(0))
    assert report.keys == ("data/f1620" + "0" * 64,)
    assert rows_of(planes.current()) == [(1, 120), (3, 10)]
    assert len(kinds(planes)) == 6


def test_nothing_is_taken_from_a_history(planes: EventTable):
    three_years(planes)
    table = planes.table
    for change in (
        lambda: table.revert(0),
        lambda: table.expire(keep_last=1, dry_run=False),
        lambda: table.purge([0], why="erasure", dry_run=False),
        lambda: table.adopt(),
    ):
        with pytest.raises(InvalidInput, match="nothing is ever changed or taken away"):
            change()
    assert table.verify().ok


def test_rows_and_events_do_not_mix(planes: EventTable, project: Project):
    three_years(planes)
    with pytest.raises(InvalidInput, match="This write is of rows, but the table was written as a history"):
        planes.table.write(dump((1, 1)))
    project.table("rows").write(dump((1, 1)))
    with pytest.raises(InvalidInput, match="This write is of events, but the table was written as rows"):
        EventTable(project.table("rows"), PLANES).write(dump((1, 1)))
    with pytest.raises(InvalidInput, match="no history of events"):
        EventTable(project.table("rows")).current()
    with pytest.raises(InvalidInput, match=r"EventTable\(table, options.history\)"):
        project.table("new").write(dump((1, 1)), options=TableOptions(history=PLANES))


def test_files_that_another_program_added_stop_the_history(planes: EventTable):
    planes.write(dump((1, 100)))
    append_as_another_program(planes.table, planes.events())
    with pytest.raises(CommitConflict, match="of which its chain says nothing"):
        planes.write(dump((1, 120)))


def test_an_altered_block_is_not_believed(planes: EventTable, project: Project):
    planes.write(dump((1, 100)))
    key = f"blocks/{planes.chain.head}"
    data = bytearray(planes.table.store.get(key))
    data[-1] ^= 1
    planes.table.store.put(key, bytes(data))
    with pytest.raises(ChainCorrupt, match="was altered"):
        list(planes.blocks())


# --- bad input -------------------------------------------------------------------------------------------------------


def test_keys_that_are_null_or_repeated_in_a_dump(planes: EventTable, project: Project):
    with pytest.raises(InvalidInput, match="1 rows have a null in it, and several rows have the same, for example"):
        planes.write(dump((1, 100), (1, 120), (None, 1)))
    assert not planes.table.exists()
    planes.write(dump((1, 100), (2, 50)))
    for repeated in (
        dump((1, 100), (1, 100), (2, 50)),
        dump((1, 100), (1, 120), (2, 50)),
        dump((1, 9), (1, 9), (2, 50)),
    ):
        with pytest.raises(InvalidInput, match="several rows have the same"):
            planes.write(repeated)
    ledger = EventTable(project.table("ledger"), EventHistory(merge=LedgerMerge(primary_key=("id",))))
    with pytest.raises(InvalidInput, match=r"1 rows have a null in it\. Nothing"):
        ledger.write(dump((1, 100), (1, 120), (None, 1)))
    with pytest.raises(InvalidInput, match="primary_key names 'id', which is no column"):
        EventTable(project.table("others"), PLANES).write(pa.table({"name": ["a"]}))


def test_dumps_out_of_order(planes: EventTable):
    three_years(planes)
    with pytest.raises(InvalidInput, match="it is outdated"):
        planes.write(dump((1, 100)), event_time=year(2014))
    assert rows_of(planes.current()) == [(1, 120), (3, 10)]


def test_an_empty_dump_must_be_meant(planes: EventTable):
    planes.write(dump((1, 100)))
    with pytest.raises(EmptyTable, match="every row of the history would be retracted"):
        planes.write(dump())
    planes.write(dump(), options=TableOptions(allow_empty=True))
    assert planes.current().num_rows == 0
    assert planes.events()["op"].to_pylist() == [0, 1]


def test_times_without_a_zone_and_finer_than_a_millisecond(planes: EventTable, project: Project):
    with pytest.raises(InvalidInput, match="no time zone"):
        planes.write(dump((1, 100)), event_time=datetime(2013, 1, 1))
    table = EventTable(project.table("t"), EventHistory())
    with pytest.raises(UnsupportedType, match="parts of a millisecond"):
        table.write(timed(year(2001) + timedelta(microseconds=1)))
    assert not table.table.exists()
    planes.write(dump((1, 100)))
    with pytest.raises(InvalidInput, match="no time zone"):
        planes.as_at(datetime(2013, 1, 1))


def test_the_columns_of_a_chain_are_those_of_its_slices(planes: EventTable):
    from dagster_versioned.odf.blocks.data_schema_arrow import arrow_schema

    three_years(planes)
    said = next(block.event for _, block in planes.blocks() if isinstance(block.event, SetDataSchema))
    assert isinstance(said, SetDataSchema)
    slices = planes.table.files().scan.files
    stored = pq.read_schema(pa.BufferReader(planes.table.store.get(slices[0].key)))
    columns = arrow_schema(said)
    assert columns.types == stored.types
    assert columns.names == stored.names
    assert [columns.field(name).nullable for name in columns.names] == [False] * 4 + [True] * (len(stored) - 4)


def test_what_a_write_does_not_know_is_refused_and_nothing_is_written(project):
    table = EventTable(project.table("misspelt"), EventHistory())
    with pytest.raises(TypeError, match="mesage"):
        table.write(pa.table({"n": [1]}), mesage="x")
    assert not project.table("misspelt").exists()
