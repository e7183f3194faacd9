"""What the package writes is what a reader that knows only the specification of Open Data Fabric reads, and accepts."""

import contextlib
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_versioned.errors import ChainCorrupt, UnsupportedFeature
from dagster_versioned.odf.blocks.arrow_schema import encode_schema
from dagster_versioned.odf.blocks.block import decode_block, encode_block
from dagster_versioned.odf.blocks.data_schema import ExtraAttributes
from dagster_versioned.odf.blocks.events import (
    AddData,
    AddPushSource,
    Checkpoint,
    DatasetKind,
    DataSlice,
    MergeStrategyLedger,
    MetadataEvent,
    OffsetInterval,
    ReadStepParquet,
    Seed,
    SetDataSchema,
    SetInfo,
    SetPollingSource,
    SetVocab,
    Timestamp,
)
from dagster_versioned.odf.event_table import EventTable
from dagster_versioned.odf.identity.multihash import Multihash
from dagster_versioned.odf.identity.signing_key import SigningKey
from dagster_versioned.odf.ingest.declare import declare, event_table, source_of
from dagster_versioned.odf.ingest.poll import Polling, poll
from dagster_versioned.odf.manifest import read_snapshot
from dagster_versioned.odf.sharing.remote import open_remote
from dagster_versioned.odf.sharing.transfer import pull, push
from dagster_versioned.odf.verification.verify import verify
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import LocalStore
from dagster_versioned.tables.event_history import (
    AppendMerge,
    ChangelogMerge,
    EventHistory,
    LedgerMerge,
    SnapshotMerge,
    UpsertMerge,
)
from support import odf_values
from support.derived import House
from support.foreign_blocks import foreign_block
from support.odf_broken import BROKEN, root
from support.odf_chains import moment
from support.odf_golden import GOLDEN, golden_block
from support.odf_graph import SCHEMA, Graph, Served, events_of, root_of
from support.odf_vectors import ABSENT, ARROW0, BLOCKS, records_of, values_of
from support.second_reader import check_inputs, read_block, read_dataset
from support.second_reader_agreement import agrees, as_text, shown
from support.second_reader_blocks import Document, Refused, physical_hash
from support.second_reader_records import column_digest, logical_hash
from support.transforms import at


def year(number: int) -> datetime:
    return datetime(number, 1, 1, tzinfo=UTC)


def decoded(data: bytes) -> Document:
    return read_block("f", data)[1]


# --- blocks ----------------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(odf_values.values(MetadataEvent), odf_values.TIMESTAMPS, st.sampled_from([2, 3]))
def test_every_event_that_can_be_written_is_read_alike(event: Any, time: Any, version: int) -> None:
    block = replace(golden_block(event), system_time=time)
    read = decoded(encode_block(block, version))
    assert as_text(read["event"]) == shown(event)
    assert (read["systemTime"], read["sequenceNumber"]) == (str(time), 117)
    assert read["prevBlockHash"] == str(block.prev_block_hash)


@pytest.mark.parametrize(("event", "second", "third"), GOLDEN.values(), ids=GOLDEN.keys())
def test_blocks_of_known_hashes_are_read(event: Any, second: str, third: str) -> None:
    for version, digest in ((2, second), (3, third)):
        data = encode_block(golden_block(event), version)
        assert physical_hash(data) == "f1620" + digest
        assert as_text(decoded(data)["event"]) == shown(event)


@pytest.mark.skipif(not BLOCKS, reason=ABSENT)
def test_blocks_of_the_reference_are_read() -> None:
    assert len(BLOCKS) >= 14
    for vector in BLOCKS:
        data = bytes.fromhex(vector["manifest_hex"])
        assert physical_hash(data) == "f1620" + vector["sha3_256"]
        assert decoded(data)["event"]["kind"] in ("AddData", "ExecuteTransform", "SetPollingSource", "SetTransform")


ENCODED = [encode_block(golden_block(event)) for event, _, _ in GOLDEN.values()]


@settings(max_examples=150)
@given(st.sampled_from(ENCODED), st.data())
def test_bytes_that_are_changed_are_read_alike_or_refused_by_both(block: bytes, data: st.DataObject) -> None:
    changed = bytearray(block)
    for place in data.draw(st.lists(st.integers(0, len(block) - 1), min_size=1, max_size=2)):
        changed[place] = data.draw(st.integers(0, 255))
    try:
        expected = decode_block(bytes(changed))
    except (ChainCorrupt, UnsupportedFeature) as error:
        # The specification leaves open which versions of a manifest there are, and whether a schema is stated twice.
        is_open = any(what in str(error) for what in ("manifest version", "as one of schema and rawArrowSchema"))
        with contextlib.suppress(Refused) if is_open else pytest.raises(Refused):
            decoded(bytes(changed))
        return
    read = decoded(bytes(changed))
    assert (as_text(read["event"]), read["systemTime"]) == (shown(expected.event), str(expected.system_time))


@pytest.mark.skipif(not ARROW0, reason=ABSENT)
def test_records_have_the_hashes_of_the_reference() -> None:
    for vector in ARROW0["vectors"]:
        if vector["kind"] == "record":
            assert logical_hash(records_of(vector)) == vector["multihash"], vector["name"]
        else:
            array = values_of(vector)
            assert column_digest(array, [True] * len(array)).hex() == vector["digest"], vector["name"]


# --- chains that the package writes ----------------------------------------------------------------------------------

PLAIN = {
    "id": pa.array([1, 2, 3], pa.int64()),
    "name": pa.array(["a", "b", None]),
    "x": pa.array([1.5, float("nan"), None]),
    "price": pa.array([Decimal("1.10"), None, Decimal("-2.00")], pa.decimal128(10, 2)),
    "day": pa.array([date(2020, 2, 29), None, date(1969, 12, 31)]),
    "open": pa.array([True, None, False]),
    "raw": pa.array([b"", b"\0", None]),
    "seen": pa.array([year(2000), None, year(1960)], pa.timestamp("us", "UTC")),
    "tags": pa.array([["x", None], [], None], pa.list_(pa.string())),
    "place": pa.array([{"lat": 1.0, "on": {"name": "n"}}, None, {"lat": None, "on": None}]),
}
FIRST = pa.table(PLAIN)
SECOND = pa.concat_tables([FIRST.slice(1), FIRST.slice(0, 1).set_column(0, "id", pa.array([4]))])
SECOND = SECOND.set_column(1, "name", pa.array(["b", "c", "d"]))
THIRD = SECOND.append_column("since", pa.array(["then", None, None])).slice(0, 2)
"""Three dumps of rows of all types; 1 goes, 3 is renamed, 4 comes and goes, and there is one column more at last."""


def changes(*rows: tuple[int, int, str | None]) -> pa.Table:
    """What was seen in 2013, changed later: rows of an operation, an id and a name."""
    given = {"op": [row[0] for row in rows], "id": [row[1] for row in rows], "name": [row[2] for row in rows]}
    return pa.table({**given, "event_time": pa.array([year(2013)] * len(rows), pa.timestamp("ms", "UTC"))})


PLAIN_CHANGES = changes((2, 2, "b"), (3, 2, "c"), (2, 2, "c"), (3, 2, "d")).drop_columns(["event_time"])

HISTORIES: dict[str, tuple[Any, list[pa.Table], int, int]] = {
    "append": (AppendMerge(), [FIRST, SECOND, THIRD], 8, 8),
    "ledger": (LedgerMerge(primary_key=("id",)), [FIRST, SECOND, THIRD], 4, 4),
    "snapshot": (SnapshotMerge(primary_key=("id",)), [FIRST, SECOND, THIRD], 10, 2),
    "snapshot by a column": (
        SnapshotMerge(primary_key=("id",), compare_columns=("name",)),
        [FIRST, SECOND, THIRD],
        8,
        2,
    ),
    "upsert": (
        UpsertMerge(primary_key=("id",)),
        [changes((0, 1, "a"), (0, 2, None)), changes((0, 2, "b"), (1, 1, None), (0, 3, "c"))],
        6,
        2,
    ),
    "changelog": (
        ChangelogMerge(primary_key=("id",)),
        [
            changes((0, 1, "a"), (0, 2, None)),
            changes((2, 2, None), (3, 2, "b"), (1, 1, "a"), (0, 1, "A")),
            PLAIN_CHANGES,
        ],
        10,
        2,
    ),
}


def written(folder: Path, merge: Any, frames: list[pa.Table]) -> EventTable:
    events = EventTable(Project.open("P", str(folder)).table("rows"), EventHistory(merge=merge))
    for number, frame in enumerate(frames):
        events.write(frame, event_time=year(2013 + number))
    events.set_watermark(year(2020))
    return events


@pytest.mark.parametrize(("merge", "frames", "records", "rows"), HISTORIES.values(), ids=HISTORIES.keys())
def test_a_history_is_accepted(merge: Any, frames: list[pa.Table], records: int, rows: int, tmp_path: Path) -> None:
    events = written(tmp_path, merge, frames)
    read = agrees(tmp_path / "datom/rows", events)
    assert (len(read.records), len(read.rows)) == (records, rows)
    assert read.watermark == "2020-01-01T00:00:00Z"
    push(events.table, LocalStore(tmp_path / "pushed"))
    agrees(tmp_path / "pushed", events)


def test_a_chain_of_arrow_schemas_is_gone_on_with_as_such(tmp_path: Path) -> None:
    """What was begun as 0.36 has it, by its Arrow schema, has no member of a later specification."""
    source = root_of(tmp_path / "source")
    table = Project.open("P", str(tmp_path / "project")).table("rows")
    pull(source.remote, table)
    events = EventTable(table, EventHistory(merge=AppendMerge()))
    more = pa.table({"station": ["a", None], "heat": pa.array([1, None], pa.int64()), "note": ["new", None]})
    events.write(more, event_time=year(2030))
    read = agrees(tmp_path / "project/datom/rows", events)
    schemas = [event for event in read.events if event["kind"] == "SetDataSchema"]
    assert [sorted(event) for event in schemas] == [["kind", "rawArrowSchema"]] * 2


MANIFEST = """
kind: DatasetSnapshot
version: 1
content:
  name: org.example.cities
  kind: Root
  metadata:
    - kind: SetVocab
      offsetColumn: place
      operationTypeColumn: change
      systemTimeColumn: known
      eventTimeColumn: seen
    - kind: SetPollingSource
      fetch:
        kind: FilesGlob
        path: {folder}/cities-*.csv
        eventTime:
          kind: FromPath
          pattern: "cities-([0-9-]+)"
      read:
        kind: Csv
        header: true
        schema:
          - id BIGINT NOT NULL
          - name STRING
          - opens TIME(3)
      merge:
        kind: Snapshot
        primaryKey: [id]
    - kind: SetInfo
      description: Cities of the world
      keywords: [cities, world]
    - kind: SetLicense
      shortName: CC0
      name: Creative Commons Zero
      websiteUrl: https://example.org
    - kind: SetAttachments
      attachments:
        kind: Embedded
        items:
          - path: README.md
            content: "# Städte"
"""


def test_a_dataset_of_a_manifest_is_accepted_with_all_that_it_declares(tmp_path: Path) -> None:
    (tmp_path / "cities-2013-01-01.csv").write_text("id,name,opens\n1,Oslo,09:30:00\n2,Rome,\n")
    (tmp_path / "cities-2014-01-01.csv").write_text("id,name,opens\n1,Oslo!,09:30:00\n3,Bonn,\n")
    snapshot = read_snapshot(MANIFEST.format(folder=tmp_path))
    events = event_table(Project.open("P", str(tmp_path / "store")).table("cities"), snapshot)
    source = source_of(snapshot)
    assert isinstance(source, SetPollingSource)
    declare(events, snapshot)
    assert len(list(poll(events, source, Polling()))) == 2
    read = agrees(tmp_path / "store/datom/cities", events)
    kinds = [event["kind"] for event in read.events]
    assert {"SetVocab", "SetPollingSource", "SetInfo", "SetLicense", "SetAttachments"} < set(kinds)
    assert read.vocabulary["offsetColumn"] == "place"
    assert [row["change"] for row in read.records] == [0, 0, 2, 3, 1, 0]
    assert [event["newSourceState"]["kind"] for event in read.events if event["kind"] == "AddData"]


def test_derivatives_are_accepted_beside_their_inputs(tmp_path: Path) -> None:
    graph = Graph.build(tmp_path)
    readings, hot, named = (read_dataset(served.folder) for served in (graph.readings, graph.hot, graph.named))
    check_inputs(hot, readings)
    check_inputs(named, hot)
    assert (len(readings.rows), len(hot.rows), len(named.rows)) == (18, 6, 6)
    with pytest.raises(Refused, match="is not given"):
        check_inputs(named, readings)


@pytest.mark.slow
@pytest.mark.spark
def test_what_queries_derive_is_accepted_with_the_corrections_that_late_rows_cause(spark: Any, tmp_path: Path) -> None:
    house = House(Project.open("P", str(tmp_path)))
    late = "SELECT event_time, id, carrier, delay FROM flights WHERE delay > 6"
    counts = "SELECT max(event_time) AS event_time, carrier, count(*) AS n FROM late GROUP BY carrier"
    dump = SnapshotMerge(primary_key=("id",))
    for rows in (
        [(at(1), 1, "UA", 7), (at(2), 2, "AA", 9)],
        [(at(1), 1, "UA", 7), (at(3), 2, "UA", 8), (at(3), 3, "UA", 1)],
        [(at(1), 1, "UA", 7), (at(4), 3, "AA", 30)],
    ):
        house.write(*rows, merge=dump)
        house.derive(late)
        house.derive(counts, "counts", ("late",))
    names = ("flights", "late", "counts")
    flights, derived, counted = (
        agrees(tmp_path / "datom" / name, EventTable(house.project.table(name))) for name in names
    )
    check_inputs(derived, flights)
    check_inputs(counted, derived)
    assert sorted((row["carrier"], row["n"]) for row in counted.rows) == [("AA", 1), ("UA", 1)]
    assert {row["op"] for row in counted.records} >= {0, 1}


@pytest.mark.parametrize("encode", [foreign_block, lambda block: encode_block(block, 3)], ids=["stock", "version 3"])
def test_blocks_that_another_program_lays_out_are_accepted(encode: Any, tmp_path: Path) -> None:
    source = root_of(tmp_path / "source", encode=encode)
    assert len(read_dataset(source.folder).rows) == 12
    assert verify(source.remote).ok


def base58(text: str) -> str:
    """A hash in base16 in the letters of Bitcoin."""
    number, letters = int(text[1:], 16), "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
    digits = ""
    while number:
        number, digit = divmod(number, 58)
        digits = letters[digit] + digits
    return "z" + digits


@pytest.mark.parametrize("encoded", [str.upper, base58], ids=["base16upper", "base58btc"])
def test_a_head_is_read_in_other_encodings(encoded: Callable[[str], str], source: Served) -> None:
    head = (source.folder / "refs/head").read_text()
    (source.folder / "refs/head").write_text(encoded(head))
    assert read_dataset(source.folder).blocks[-1].hash == head
    assert verify(open_remote(str(source.folder))).datasets[0].head == Multihash.parse(head)


# --- what breaks the rules -------------------------------------------------------------------------------------------

OF_THE_PACKAGE = {
    # The specification does not speak of blocks that change nothing, nor of how inputs are listed.
    *("no data, watermark or state", "data that add nothing", "schema again", "vocabulary again", "no information"),
    *("license again", "attachments again", "push source again", "polling source again", "transform again"),
    *("execution of nothing", "new block that is the old one", "new records without a new block"),
    *("no inputs", "same alias twice", "input of itself", "inputs out of order"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_breaks_a_rule_of_the_specification_is_refused_by_both(name: str, tmp_path: Path) -> None:
    build, event, _ = BROKEN[name]
    chain = build()
    head = chain.put(chain.next(event))
    for stored, data in chain.stored.items():
        LocalStore(tmp_path).put(f"blocks/{stored}", data)
    LocalStore(tmp_path).put("refs/head", str(head).encode())
    if name in OF_THE_PACKAGE:
        read_dataset(tmp_path, with_files=False)
        return
    with pytest.raises(Refused):
        read_dataset(tmp_path, with_files=False)


PLACES: dict[str, tuple[dict[str, Any], str]] = {
    "number left out": ({"sequence_number": 6}, "block 5 has the sequence number 6"),
    "number again": ({"sequence_number": 4}, "block 5 has the sequence number 4"),
    "time that goes back": ({"system_time": Timestamp(2023, 1, 0)}, "the system time of block 5 is before"),
    "no block before it": ({"prev_block_hash": None}, "block 0 has the sequence number 5"),
    "a block that is not there": ({"prev_block_hash": Multihash.sha3_256(b"x")}, "is missing"),
}


@pytest.mark.parametrize(("changed", "reason"), PLACES.values(), ids=PLACES.keys())
def test_a_block_out_of_its_place_is_refused_by_both(changed: dict[str, Any], reason: str, tmp_path: Path) -> None:
    chain = root()
    head = chain.put(chain.next(SetInfo("x"), **changed))
    for stored_as, data in chain.stored.items():
        LocalStore(tmp_path).put(f"blocks/{stored_as}", data)
    LocalStore(tmp_path).put("refs/head", str(head).encode())
    with pytest.raises(Refused, match=reason):
        read_dataset(tmp_path, with_files=False)
    assert [
        finding for finding in verify(open_remote(str(tmp_path))).datasets[0].findings if finding.subject == "block"
    ]


def test_a_manifest_of_another_kind_is_no_block() -> None:
    data = encode_block(golden_block(SetInfo("x")))
    with pytest.raises(Refused, match="is a manifest of kind 0x400001"):
        decoded(data.replace((0x400000).to_bytes(8, "little"), (0x400001).to_bytes(8, "little")))


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A history as it is pushed, with corrections."""
    folder = tmp_path_factory.mktemp("kept")
    push(written(folder, *HISTORIES["snapshot"][:2]).table, LocalStore(folder / "pushed"))
    return folder / "pushed"


def refused_by_both(folder: Path, reason: str | None = None) -> None:
    with pytest.raises(Refused, match=reason):
        read_dataset(folder)
    assert not verify(open_remote(str(folder))).ok


def test_every_changed_byte_is_refused_by_both(kept: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(kept, tmp_path / "copy"))
    chance = random.Random(7)
    for path in sorted(path for room in ("refs", "blocks", "data") for path in (folder / room).iterdir()):
        data = path.read_bytes()
        for _ in range(4):
            at = chance.randrange(len(data))
            path.write_bytes(data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :])
            refused_by_both(folder)
        path.write_bytes(data)
    assert read_dataset(folder).rows


def test_files_that_change_places_go_or_are_cut_are_refused_by_both(kept: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(kept, tmp_path / "copy"))
    one, other, *_ = sorted((folder / "data").iterdir())
    first, second = one.read_bytes(), other.read_bytes()
    for changed in ((second, first), (first[:-1], second), (first, second + b"\0")):
        one.write_bytes(changed[0])
        other.write_bytes(changed[1])
        refused_by_both(folder, r"data/f1620\w+ has \d+ bytes of hash")
    one.write_bytes(first)
    other.unlink()
    refused_by_both(folder, "is missing")
    other.write_bytes(second)
    (folder / "refs/head").write_text(sorted(path.name for path in (folder / "blocks").iterdir())[0][:-1])
    refused_by_both(folder)


ROWS = pa.table(
    {
        "event_time": pa.array([moment(9).to_datetime()] * 3, pa.timestamp("ms", "UTC")),
        "station": ["a", "b", "c"],
        "heat": [1, 2, 3],
    }
)


def operations(*given: int) -> Callable[[pa.Table], pa.Table]:
    return lambda rows: rows.set_column(1, SCHEMA.field("op"), pa.array(given, pa.int32()))


def offsets(*given: int) -> Callable[[pa.Table], pa.Table]:
    return lambda rows: rows.set_column(0, SCHEMA.field("offset"), pa.array(given, pa.int64()))


def times(*days: int | None) -> Callable[[pa.Table], pa.Table]:
    kind = pa.timestamp("ms", "UTC")
    given = pa.array([day and moment(day).to_datetime() for day in days], kind)
    return lambda rows: rows.set_column(2, pa.field("system_time", kind), given)


OTHERS = Multihash.parse(logical_hash(events_of(ROWS, 99, 6)))


def data_of(event: AddData) -> DataSlice:
    assert event.new_data is not None
    return event.new_data


def stored(source: Served, rows: pa.Table) -> DataSlice:
    """A file of rows, stated as the records 12 to 14."""
    written = pa.BufferOutputStream()
    pq.write_table(rows, written)
    data = written.getvalue().to_pybytes()
    source.store(f"data/{physical_hash(data)}", data)
    hashes = Multihash.parse(logical_hash(rows)), Multihash.parse(physical_hash(data))
    return DataSlice(*hashes, OffsetInterval(12, 14), len(data))


FORGED: dict[str, tuple[Callable[[pa.Table], pa.Table], Callable[[AddData], AddData], str]] = {
    "offsets of others": (offsets(12, 14, 13), lambda event: event, "do not have the offsets 12 to 14"),
    "an operation that is none": (operations(0, 7, 0), lambda event: event, "has the operation 7"),
    "half a correction": (operations(0, 2, 0), lambda event: event, "correct-from is not followed"),
    "the other half": (operations(3, 0, 0), lambda event: event, "correct-from is not followed"),
    "a time that goes back": (times(9, 8, 9), lambda event: event, "system times of the records go back"),
    "a time before those of others": (times(1, 9, 9), lambda event: event, "system times of the records go back"),
    "a time that is none": (times(9, None, 9), lambda event: event, "system times of the records go back"),
    "a hash of other records": (
        lambda rows: rows,
        lambda event: replace(event, new_data=replace(data_of(event), logical_hash=OTHERS)),
        "have the logical hash",
    ),
    "another size": (
        lambda rows: rows,
        lambda event: replace(event, new_data=replace(data_of(event), size=1)),
        "bytes of hash",
    ),
    "more records than there are": (
        lambda rows: rows,
        lambda event: replace(event, new_data=replace(data_of(event), offset_interval=OffsetInterval(12, 15))),
        "do not have the offsets 12 to 15",
    ),
    "a column less": (lambda rows: rows.drop_columns(["heat"]), lambda event: event, "other columns"),
    "a column of another type": (
        lambda rows: rows.set_column(5, "heat", rows["heat"].cast(pa.int32())),
        lambda event: event,
        "other columns",
    ),
}


@pytest.mark.parametrize(("rows", "event", "reason"), FORGED.values(), ids=FORGED.keys())
def test_slices_whose_file_has_the_hash_of_its_block_and_are_wrong_are_refused_by_both(
    source: Served, rows: Any, event: Any, reason: str
) -> None:
    read_dataset(source.folder)
    data = stored(source, rows(events_of(ROWS, 12, 6)))
    source.append(event(AddData(prev_offset=source.last.last_offset, new_data=data, new_watermark=moment(9))))
    refused_by_both(source.folder, reason)


TIME = pa.timestamp("ms", "UTC")


def typed(name: str, kind: pa.DataType | None) -> Callable[[pa.Table], pa.Table]:
    """Rows with a column of another type, or without it."""

    def changed(rows: pa.Table) -> pa.Table:
        at = rows.schema.get_field_index(name)
        return rows.drop_columns([name]) if kind is None else rows.set_column(at, name, rows[name].cast(kind))

    return changed


def served(folder: Path, rows: pa.Table, before: Sequence[MetadataEvent] = (), **added: Any) -> Served:
    """A root whose schema is that of its only slice, as another program might make it."""
    source = Served(folder, SigningKey(bytes([5]) * 32))
    source.append(Seed(source.dataset_id, DatasetKind.ROOT))
    for event in (*before, SetDataSchema(encode_schema(rows.schema))):
        source.append(event)
    data = replace(stored(source, rows), offset_interval=OffsetInterval(0, rows.num_rows - 1))
    source.append(AddData(new_data=data, new_watermark=moment(9), **added))
    return source


SYSTEM_COLUMNS = {
    "no offset": typed("offset", None),
    "offset is a text": typed("offset", pa.string()),
    "no operation": typed("op", None),
    "operation is a number with a fraction": typed("op", pa.float64()),
    "no system time": typed("system_time", None),
    "system time has no zone": typed("system_time", pa.timestamp("ms")),
    "system time is a number": typed("system_time", pa.int64()),
    "no event time": typed("event_time", None),
    "event time has no zone": typed("event_time", pa.timestamp("ms")),
    "event time is a text": typed("event_time", pa.string()),
}


@pytest.mark.parametrize("rows", SYSTEM_COLUMNS.values(), ids=SYSTEM_COLUMNS.keys())
def test_system_columns_that_are_missing_or_of_other_types_are_refused_by_both(rows: Any, tmp_path: Path) -> None:
    refused_by_both(served(tmp_path, rows(events_of(ROWS, 0, 3))).folder, "the system column")


def test_a_vocabulary_that_names_columns_which_are_not_there_is_refused_by_both(tmp_path: Path) -> None:
    source = served(tmp_path, events_of(ROWS, 0, 3), [SetVocab(event_time_column="seen")])
    refused_by_both(source.folder, "the system column seen is None")


def test_offsets_and_operations_may_be_unsigned(tmp_path: Path) -> None:
    """The text of the specification has them so, and RFC-001 the offset as a signed number."""
    source = served(tmp_path, typed("op", pa.uint8())(typed("offset", pa.uint64())(events_of(ROWS, 0, 3))))
    assert len(read_dataset(source.folder).rows) == 3
    assert verify(source.remote).ok


def test_a_checkpoint_has_the_bytes_of_its_hash(tmp_path: Path) -> None:
    state, name = b"what an engine keeps", physical_hash(b"what an engine keeps")
    kept = Checkpoint(Multihash.parse(name), len(state))
    source = served(tmp_path, events_of(ROWS, 0, 3), new_checkpoint=kept)
    refused_by_both(source.folder, f"checkpoints/{name} is missing")
    source.store(f"checkpoints/{name}", state)
    assert read_dataset(source.folder).checkpoint == name
    assert verify(source.remote).ok
    copy = Project.open("P", str(tmp_path / "project")).table("rows")
    pull(source.remote, copy)
    assert copy.store.get(f"checkpoints/{name}") == state
    source.store(f"checkpoints/{name}", state[::-1])
    refused_by_both(source.folder, f"checkpoints/{name} has 20 bytes of hash")


LEDGER = AddPushSource(source_name="p", read=ReadStepParquet(), merge=MergeStrategyLedger(("heat",)))

BEYOND: dict[str, tuple[Callable[[pa.Table], pa.Table], dict[str, Any], str]] = {
    "a key that is there twice": (
        lambda rows: rows.set_column(5, "heat", pa.array([1, 2, 1])),
        {"before": [LEDGER]},
        "the key .* is there twice",
    ),
    "system time in microseconds": (typed("system_time", pa.timestamp("us", "UTC")), {}, "the system column"),
    "event time in microseconds": (typed("event_time", pa.timestamp("us", "UTC")), {}, "the system column"),
    "operations of eight bytes": (typed("op", pa.int64()), {}, "the system column"),
    "attributes without a domain": (lambda rows: rows, {"extra": ExtraAttributes('{"a":1}')}, "no domain"),
}


@pytest.mark.parametrize(("rows", "added", "reason"), BEYOND.values(), ids=BEYOND.keys())
def test_what_the_package_reads_beyond_the_specification(rows: Any, added: Any, reason: str, tmp_path: Path) -> None:
    """See docs/reference/odf.md, where this differs, and its limits."""
    source = served(tmp_path / "source", rows(events_of(ROWS, 0, 3)), **added)
    with pytest.raises(Refused, match=reason):
        read_dataset(source.folder)
    assert verify(source.remote).ok
    pull(source.remote, Project.open("P", str(tmp_path / "project")).table("rows"))


def test_what_takes_back_what_is_not_there_is_reported_by_both_and_pulled(tmp_path: Path) -> None:
    source = served(tmp_path / "source", operations(0, 1, 0)(events_of(ROWS, 0, 3)))
    with pytest.raises(Refused, match="takes back what does not stand"):
        read_dataset(source.folder)
    assert not verify(source.remote).ok
    pull(source.remote, Project.open("P", str(tmp_path / "project")).table("rows"))
