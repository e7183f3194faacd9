"""Sources whose hashes are right and whose data are not: they are refused, and the copy does not change by a byte."""

import shutil
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_versioned.errors import (
    ChainCorrupt,
    IntegrityError,
    InvalidInput,
    InvalidName,
    ObjectNotFound,
    UnsupportedFeature,
    VersionNotFound,
)
from dagster_versioned.odf.blocks.arrow_schema import encode_schema
from dagster_versioned.odf.blocks.block import Block, block_hash, encode_block
from dagster_versioned.odf.blocks.events import (
    AddData,
    AttachmentEmbedded,
    AttachmentsEmbedded,
    DatasetKind,
    DataSlice,
    MetadataEvent,
    OffsetInterval,
    Seed,
    SetAttachments,
    SetDataSchema,
    SetInfo,
    SetVocab,
)
from dagster_versioned.odf.identity.multihash import Multihash
from dagster_versioned.odf.identity.signing_key import SIGNATURE_KEY, SigningKey
from dagster_versioned.odf.sharing.finder import datasets_of
from dagster_versioned.odf.sharing.remote import RemoteDataset, open_remote
from dagster_versioned.odf.sharing.serve import server
from dagster_versioned.odf.sharing.staged_pull import PULLED
from dagster_versioned.odf.sharing.transfer import pull, push
from dagster_versioned.odf.verification.verify import verify
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import LocalStore
from dagster_versioned.tables.table import VersionedTable
from support.odf_chains import moment
from support.odf_graph import SCHEMA, Served, add_readings, logical_hash, root_of
from support.stores import held_by


def events(start: int, count: int, operations: list[int] | None = None, schema: pa.Schema = SCHEMA) -> pa.Table:
    times = [moment(9).to_datetime()] * count
    columns = [range(start, start + count), operations or [0] * count, times, times, ["a"] * count, [1] * count]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def only_problem(source: Served) -> str:
    """What verification finds of the only file that it finds something of."""
    (report,) = verify(source.remote).datasets
    assert not report.unchecked
    (finding,) = report.findings
    assert finding.subject == "slice"
    return finding.problem


def add(source: Served, rows: pa.Table, start: int, end: int, logical: Multihash | None = None) -> None:
    """Add rows, of which the block says that they are the records ``start`` to ``end``, with this hash or theirs."""
    written = pa.BufferOutputStream()
    pq.write_table(rows, written)
    data = written.getvalue().to_pybytes()
    physical = Multihash.sha3_256(data)
    source.store(f"data/{physical}", data)
    logical = logical or logical_hash(rows, rows.schema)
    made = DataSlice(logical, physical, OffsetInterval(start, end), len(data))
    source.append(AddData(prev_offset=source.last.last_offset, new_data=made, new_watermark=moment(9)))


# --- slices that are not what their blocks say -----------------------------------------------------------------------


@pytest.mark.parametrize("known", [False, True], ids=["new", "known"])
@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (events(99, 3), "other offsets than its block says"),
        (events(15, 2), "other offsets than its block says"),
        (events(15, 4), "other offsets than its block says"),
        (events(15, 3, [0, 4, 0]), "an operation that is none"),
        (events(15, 3).drop_columns(["heat"]), "and the chain says"),
        (events(15, 3).rename_columns([*SCHEMA.names[:5], "cold"]), "and the chain says"),
    ],
    ids=["offsets", "less", "more", "operations", "columns", "names"],
)
def test_of_a_source_that_is_refused_nothing_is_added_however_much_of_it_was_right(
    source: Served, copy: VersionedTable, rows: pa.Table, reason: str, known: bool
):
    if known:
        pull(source.remote, copy)
    kept = held_by(copy)
    add(source, events(12, 3), 12, 14)
    add(source, rows, 15, 17)
    with pytest.raises(IntegrityError, match=reason):
        pull(source.remote, copy)
    assert held_by(copy) == kept


def test_a_slice_that_is_no_parquet_is_refused(source: Served, copy: VersionedTable):
    add(source, events(12, 3), 12, 14)
    source.store(f"data/{Multihash.sha3_256(b'x' * 50)}", b"x" * 50)
    made = DataSlice(logical_hash(events(15, 1)), Multihash.sha3_256(b"x" * 50), OffsetInterval(15, 15), 50)
    source.append(AddData(prev_offset=source.last.last_offset, new_data=made, new_watermark=moment(9)))
    with pytest.raises(IntegrityError, match="cannot be read as a slice of events"):
        pull(source.remote, copy)
    assert not copy.exists()


def begun(folder: Path, key: SigningKey, schema: pa.Schema, *before: MetadataEvent) -> Served:
    """A dataset with these columns, and no records yet."""
    made = Served(folder, key)
    for event in (Seed(made.dataset_id, DatasetKind.ROOT), *before, SetDataSchema(encode_schema(schema))):
        made.append(event)
    return made


def retyped(**types: pa.DataType) -> pa.Schema:
    return pa.schema([field.with_type(types.get(field.name, field.type)) for field in SCHEMA])


@pytest.mark.parametrize(
    ("schema", "vocab", "reason"),
    [
        (pa.schema([field for field in SCHEMA if field.name != "offset"]), None, "no column 'offset'"),
        (pa.schema([field for field in SCHEMA if field.name != "op"]), None, "no column 'op'"),
        (pa.schema([field for field in SCHEMA if field.name not in ("station", "heat")]), None, "no data beside"),
        (retyped(offset=pa.string()), None, "'offset' is of the type string, not long"),
        (retyped(heat=pa.uint64()), None, "uint64"),
        (retyped(op=pa.float64()), None, "'op' is of the type double, not integer"),
        (retyped(event_time=pa.string()), None, "'event_time' is a string, which is no moment"),
        (pa.schema([*SCHEMA, pa.field("HEAT", pa.int64())]), None, "the same name"),
        (pa.schema([*SCHEMA, pa.field("m", pa.map_(pa.string(), pa.int64()))]), None, "'m' is, or holds, a map"),
        (pa.schema([*SCHEMA, pa.field("m", pa.duration("s"))]), None, "'m'"),
        (SCHEMA, SetVocab("heat", "station", "op", "offset"), "no moment"),
    ],
)
def test_columns_that_no_history_here_can_have_are_refused(
    source: Served, copy: VersionedTable, schema: pa.Schema, vocab: SetVocab | None, reason: str, tmp_path: Path
):
    made = begun(tmp_path / "made", source.key, schema, *([] if vocab is None else [vocab]))
    add(made, schema.empty_table(), 0, 0, logical=logical_hash(events(0, 1)))
    with pytest.raises(UnsupportedFeature, match=reason):
        pull(made.remote, copy)
    assert not copy.exists()


def test_what_an_interrupted_pull_left_of_a_slice_is_not_believed(source: Served, copy: VersionedTable):
    path = next((source.folder / "data").iterdir())
    altered = path.read_bytes().replace(b"parquet-cpp", b"Parquet-cpp")  # of the same size, and as readable
    copy.store.put(f"{PULLED}data/{path.name}", altered)
    pull(source.remote, copy)
    assert copy.store.get(f"data/{path.name}") == path.read_bytes() != altered


@pytest.mark.parametrize("known", [False, True], ids=["new", "known"])
def test_records_with_another_hash_than_their_block_says_are_refused_and_reported(
    source: Served, copy: VersionedTable, known: bool
):
    if known:
        pull(source.remote, copy)
    kept = held_by(copy)
    add(source, events(12, 3), 12, 14, logical=logical_hash(events(12, 2)))
    problem = f"its records have the logical hash {logical_hash(events(12, 3))}, not {logical_hash(events(12, 2))}"
    assert only_problem(source) == problem
    with pytest.raises(IntegrityError, match=rf"data/f1620\w+: {problem}\. Nothing of it was added"):
        pull(source.remote, copy)
    assert held_by(copy) == kept


@pytest.mark.parametrize("rows", [events(19, 3), events(12, 2), events(12, 4)], ids=["others", "less", "more"])
def test_other_offsets_than_a_block_says_are_reported(source: Served, rows: pa.Table):
    add(source, rows, 12, 14)
    assert only_problem(source) == "it has other offsets than its block says, which is 12 to 14"


def test_the_records_of_what_is_served_are_verified_as_those_of_a_folder_are(source: Served):
    with server(LocalStore(source.folder), port=0) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        served = open_remote(f"http://127.0.0.1:{running.server_address[1]}")
        assert verify(served).ok
        add(source, events(19, 3), 12, 14)
        (finding,) = verify(served).datasets[0].findings
    assert "other offsets than its block says" in finding.problem


@pytest.mark.parametrize(
    ("operations", "problem"),
    [
        ([0, 4], "it has an operation that is none at offset 13: 4"),
        ([0, None], "it has an operation that is none at offset 13: None"),
        ([0, 2], "the correct-from at offset 13 is not followed by its correct-to in the slice"),
        ([2, 0, 3], "the correct-from at offset 12 is not followed by its correct-to in the slice"),
        ([2, 2, 3, 3], "the correct-from at offset 12 is not followed by its correct-to in the slice"),
        ([3], "the correct-to at offset 12 does not follow a correct-from"),
        ([3, 2], "the correct-to at offset 12 does not follow a correct-from"),
        ([2, 3, 3], "the correct-to at offset 14 does not follow a correct-from"),
    ],
)
def test_operations_that_are_none_and_halves_of_corrections_are_refused_and_reported(
    copy: VersionedTable, tmp_path: Path, operations: list[int], problem: str
):
    loose = pa.schema([field.with_nullable(True) for field in SCHEMA])
    source = root_of(tmp_path / "made", columns=SetDataSchema(encode_schema(loose)))
    add(source, events(12, len(operations), operations, loose), 12, 11 + len(operations))
    assert only_problem(source) == problem
    with pytest.raises(IntegrityError, match=rf"{problem}\. Nothing of it was added"):
        pull(source.remote, copy)
    assert not copy.exists()


def test_a_correction_may_lie_across_the_batches_in_which_a_slice_is_read(source: Served, copy: VersionedTable):
    count = 65_537  # one more than a batch: the first ends with a correct-from
    add(source, events(12, count, [*[0] * (count - 2), 2, 3]), 12, 11 + count)
    assert verify(source.remote).ok
    assert pull(source.remote, copy).files == 3
    add(source, events(12 + count, count, [*[0] * (count - 2), 2, 0]), 12 + count, 11 + 2 * count)
    assert only_problem(source).startswith(f"the correct-from at offset {10 + 2 * count} is not followed")


DAYS = [moment(day).to_datetime() for day in range(1, 10)]


@pytest.mark.parametrize(
    ("times", "problem"),
    [
        ([DAYS[8], None], "the record at offset 13 has no system time"),
        ([None], "the record at offset 12 has no system time"),
        ([DAYS[7], DAYS[8], DAYS[7]], "the record at offset 14 has an earlier system time than the one before it"),
        ([DAYS[3], DAYS[8]], "its first record has an earlier system time than those of the slice before it"),
    ],
    ids=["null", "first", "decreasing", "before"],
)
@pytest.mark.parametrize("known", [False, True], ids=["new", "known"])
def test_system_times_that_are_none_or_go_back_are_refused_and_reported(
    copy: VersionedTable, tmp_path: Path, times: list[Any], problem: str, known: bool
):
    loose = pa.schema([field.with_nullable(True) for field in SCHEMA])
    source = root_of(tmp_path / "made", columns=SetDataSchema(encode_schema(loose)))
    if known:
        pull(source.remote, copy)
    rows = events(12, len(times), schema=loose)
    rows = rows.set_column(2, loose.field("system_time"), pa.array(times, loose.field("system_time").type))
    add(source, rows, 12, 11 + len(times))
    assert only_problem(source) == problem
    with pytest.raises(IntegrityError, match=rf"{problem}\. Nothing of it was added"):
        pull(source.remote, copy)
    assert copy.exists() == known


def test_system_times_may_stay_the_same(source: Served, copy: VersionedTable):
    pull(source.remote, copy)
    for start in (12, 14):
        rows = events(start, 2)
        times = pa.array([DAYS[4]] * 2, SCHEMA.field("system_time").type)
        add(source, rows.set_column(2, SCHEMA.field("system_time"), times), start, start + 1)
        assert verify(source.remote).ok
        assert pull(source.remote, copy).files == 1


NESTED = pa.schema([*SCHEMA, pa.field("place", pa.struct([pa.field("x", pa.int64())]))])


@pytest.mark.parametrize("null", [False, True])
def test_a_hash_of_null_structs_proves_nothing(source: Served, copy: VersionedTable, tmp_path: Path, null: bool):
    made = begun(tmp_path / "made", source.key, NESTED)
    places = pa.array([None if null else {"x": 1}, {"x": 2}], NESTED.field("place").type)
    rows = events(0, 2).append_column(NESTED.field("place"), places)
    add(made, rows, 0, 1, logical=logical_hash(events(0, 2)))
    (report,) = verify(made.remote).datasets
    assert bool(report.unchecked) == null
    assert bool(report.findings) != null
    if null:
        assert "structs in them are null, and then their logical hash proves nothing" in report.unchecked[0]
        assert pull(made.remote, copy).files == 1
    else:
        with pytest.raises(IntegrityError, match="its records have the logical hash"):
            pull(made.remote, copy)


def test_records_of_columns_that_have_no_hash_are_listed_as_unchecked(source: Served, tmp_path: Path):
    schema = pa.schema([*SCHEMA, pa.field("m", pa.map_(pa.string(), pa.int64()))])
    made = begun(tmp_path / "made", source.key, schema)
    rows = events(0, 1).append_column(schema.field("m"), pa.array([[("a", 1)]], schema.field("m").type))
    add(made, rows, 0, 0, logical=logical_hash(events(0, 1)))
    (report,) = verify(made.remote).datasets
    assert not report.findings
    assert "The column 'm' cannot be hashed" in report.unchecked[0]


# --- sources that are too large --------------------------------------------------------------------------------------


def test_blocks_count_among_what_is_allowed(source: Served, copy: VersionedTable):
    source.append(SetAttachments(AttachmentsEmbedded((AttachmentEmbedded("README.md", "x" * 100_000),))))
    slices = sum(path.stat().st_size for path in (source.folder / "data").iterdir())
    with pytest.raises(InvalidInput, match=rf"more, and {slices + 50_000} are allowed\. Nothing was pulled"):
        pull(source.remote, copy, max_bytes=slices + 50_000)
    assert not copy.exists()
    assert pull(source.remote, copy, max_bytes=slices + 150_000).blocks == 6


@pytest.mark.parametrize(
    ("size", "error", "reason"),
    [(4 * 1024**4, InvalidInput, "are free on the disk"), (2**63, ChainCorrupt, "no file has more than")],
)
def test_a_slice_that_is_said_to_be_larger_than_the_disk_is_not_begun(
    source: Served, copy: VersionedTable, size: int, error: type[Exception], reason: str
):
    if shutil.disk_usage(source.folder).free >= 4 * 1024**4:
        pytest.skip("the disk is larger")
    made = DataSlice(logical_hash(events(12, 1)), Multihash.sha3_256(b""), OffsetInterval(12, 12), size)
    source.append(AddData(prev_offset=source.last.last_offset, new_data=made, new_watermark=moment(9)))
    with pytest.raises(error, match=reason):
        pull(source.remote, copy)
    assert not copy.exists()


# --- signatures ------------------------------------------------------------------------------------------------------


def test_an_older_signature_does_not_take_the_place_of_a_newer_one(source: Served, copy: VersionedTable):
    older = (source.folder / SIGNATURE_KEY).read_bytes()
    add_readings(source, 12)
    newer = (source.folder / SIGNATURE_KEY).read_bytes()
    pull(source.remote, copy, require_signature=True)
    source.store(SIGNATURE_KEY, older)
    assert pull(source.remote, copy).signed == source.remote.head()
    assert copy.store.get(SIGNATURE_KEY) == newer
    (source.folder / SIGNATURE_KEY).unlink()
    assert pull(source.remote, copy, require_signature=True).signed == source.remote.head()
    assert copy.store.get(SIGNATURE_KEY) == newer


def test_a_push_leaves_a_newer_signature_and_takes_none_that_does_not_hold(
    source: Served, copy: VersionedTable, tmp_path: Path
):
    older = (source.folder / SIGNATURE_KEY).read_bytes()
    add_readings(source, 12)
    pull(source.remote, copy)
    shared = LocalStore(tmp_path / "shared")
    push(copy, shared, key=source.key)
    newer = shared.get(SIGNATURE_KEY)
    copy.store.put(SIGNATURE_KEY, older)
    assert push(copy, shared).signed == source.remote.head()
    assert shared.get(SIGNATURE_KEY) == newer
    for wrong in (b"{}", SigningKey.generate().sign_head(source.remote.head()).document()):
        copy.store.put(SIGNATURE_KEY, wrong)
        fresh = LocalStore(tmp_path / Multihash.sha3_256(wrong).digest.hex())
        assert push(copy, fresh).signed is None
        assert RemoteDataset(fresh).signature() is None
        assert RemoteDataset(fresh).head() == source.remote.head()


def test_a_source_that_was_taken_back_to_an_older_signed_head_is_told_from_one_that_is_up_to_date(
    source: Served, copy: VersionedTable, tmp_path: Path
):
    shutil.copytree(source.folder, tmp_path / "older")
    add_readings(source, 12)
    head = source.remote.head()
    pull(source.remote, copy)
    kept = held_by(copy)
    found = pull(open_remote(str(tmp_path / "older")), copy, require_signature=True)
    assert (found.blocks, found.ahead, found.signed) == (0, 1, head)
    assert held_by(copy) == kept


def test_a_head_that_moves_while_it_is_read_is_read_again(source: Served, copy: VersionedTable):
    class Moving(LocalStore):
        def get_range(self, key: str, start: int, length: int) -> bytes:
            data = super().get_range(key, start, length)
            if key == "refs/head" and source.state is not None and source.state.last_offset == 11:
                add_readings(source, 12)
            return data

    found = pull(RemoteDataset(Moving(source.folder)), copy, require_signature=True)
    assert found.signed == found.head == source.remote.head()
    assert found.files == 3


# --- folders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["refs/head", "refs/head.sig", "blocks", "data"])
def test_a_link_that_leads_out_of_a_folder_is_refused(
    source: Served, copy: VersionedTable, folder: str, tmp_path: Path
):
    path = source.folder / folder
    path = next(path.iterdir()) if path.is_dir() else path
    path.rename(tmp_path / "outside")
    path.symlink_to(tmp_path / "outside")
    with pytest.raises(InvalidName, match="a symbolic link leads out of the root"):
        pull(source.remote, copy)
    assert not copy.exists()


def test_where_no_dataset_is_says_so(copy: VersionedTable, tmp_path: Path):
    with pytest.raises(ObjectNotFound, match=r"so no dataset is there\. Nothing was read"):
        pull(open_remote(str(tmp_path / "nothing")), copy)


def test_an_address_at_which_nothing_can_listen_is_refused(tmp_path: Path):
    with server(LocalStore(tmp_path), port=0) as taken, pytest.raises(InvalidInput, match="Nothing is served"):
        server(LocalStore(tmp_path), port=taken.server_address[1])


def test_a_place_that_cannot_be_read_does_not_hide_the_others(source: Served, copy: VersionedTable, tmp_path: Path):
    pull(source.remote, copy)
    broken = copy.project.table("broken").store
    broken.put("_delta_log/00000000000000000000.json", b"{")
    nowhere = open_remote(str(tmp_path / "nothing"))
    find = datasets_of(Project.open("COPY", str(tmp_path / "copy")), [nowhere])
    assert find(source.dataset_id).head() == source.remote.head()
    with pytest.raises(VersionNotFound, match=r"is no table of project COPY.*nothing, which could not.*broken, which"):
        find(SigningKey.generate().dataset_id)


# --- what comes of a later version -----------------------------------------------------------------------------------


def test_a_block_of_a_later_version_is_named_and_nothing_is_pulled(source: Served, copy: VersionedTable):
    data = bytearray(encode_block(Block(moment(9), source.last.head, source.last.sequence_number + 1, SetInfo("new"))))
    data[data.index((2).to_bytes(4, "little") + (0x400000).to_bytes(8, "little"))] = 9
    name = block_hash(bytes(data))
    source.store(f"blocks/{name}", bytes(data))
    source.store("refs/head", str(name).encode())
    (source.folder / SIGNATURE_KEY).unlink()
    with pytest.raises(UnsupportedFeature, match=rf"{name}.*manifest version 9"):
        pull(source.remote, copy)
    assert not copy.exists()
