"""Deletion vectors in every place and form: the rows that were deleted, or an error that names file and reason."""

import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyroaring import BitMap, BitMap64

from dagster_versioned.delta.actions import Add, DeletionVector
from dagster_versioned.delta.files.deletion_vectors import (
    NATIVE,
    PORTABLE,
    deleted_rows,
    inlined,
    vector_key,
    write_vectors,
    z85_decode,
    z85_encode,
)
from dagster_versioned.delta.files.file_actions import adds_table, to_adds
from dagster_versioned.delta.log.snapshot import load_snapshot
from dagster_versioned.errors import IntegrityError, InvalidInput, LogCorrupt, UnsupportedFeature, VersionedError
from dagster_versioned.storage import LocalStore

UUID = "d2c639aa-8816-431a-aaf6-d3fe2512ff61"
ENCODED = "^-aqEH.-t@S}K{vb[*k^"
PROTOCOLS_OWN = DeletionVector("i", "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L", 40, 6)
CONFORMANCE = Path(__file__).resolve().parents[3] / "shared" / "conformance" / "delta"

rows_of = st.sets(
    st.one_of(
        st.integers(0, 300), st.integers(65_000, 70_000), st.integers(2**32 - 2, 2**32 + 2), st.integers(0, 2**40)
    )
)


def portable(rows) -> bytes:
    return struct.pack("<I", PORTABLE) + BitMap64(rows).serialize()


def native(rows, order: str = "<") -> bytes:
    highest = max(rows, default=-1) >> 32
    bitmaps = [BitMap(row & 0xFFFFFFFF for row in rows if row >> 32 == key).serialize() for key in range(highest + 1)]
    return struct.pack(f"{order}II", NATIVE, len(bitmaps)) + b"".join(
        struct.pack(f"{order}I", len(bitmap)) + bitmap for bitmap in bitmaps
    )


def inline(payload: bytes, cardinality: int) -> DeletionVector:
    return DeletionVector("i", z85_encode(payload), len(payload), cardinality)


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload + struct.pack(">I", zlib.crc32(payload))


@pytest.fixture
def store(tmp_path) -> LocalStore:
    return LocalStore(tmp_path)


@pytest.fixture
def on_disk(store):
    """Stores bytes, by default a whole file with one vector of rows 1, 3 and 5; the vector of these rows in it."""

    def make(data: bytes = b"\1" + framed(portable({1, 3, 5})), **members) -> DeletionVector:
        store.put(f"ab/deletion_vector_{UUID}.bin", data)
        given = {"offset": 1, "size_in_bytes": len(portable({1, 3, 5})), "cardinality": 3} | members
        return DeletionVector("u", "ab" + ENCODED, **given)

    return make


def read(store: LocalStore, vector: DeletionVector, num_records: int = 10) -> list[int]:
    return deleted_rows(store, vector, num_records, "part.parquet").tolist()


def test_the_protocols_own_examples(store):
    assert read(store, PROTOCOLS_OWN, 30) == [3, 4, 7, 11, 18, 29]
    assert vector_key(store, DeletionVector("u", "ab" + ENCODED, 40, 6, 4), "x") == f"ab/deletion_vector_{UUID}.bin"
    assert z85_encode(z85_decode(ENCODED) or b"") == ENCODED


@pytest.mark.conformance
@pytest.mark.skipif(not CONFORMANCE.is_dir(), reason="needs ../shared/conformance")
def test_golden_vectors_of_other_writers():
    small = LocalStore(CONFORMANCE / "delta-rs/test/tests/data/table-with-dv-small")
    (add,) = load_snapshot(small).adds()
    assert deleted_rows(small, add.deletion_vector, 10, add.path).tolist() == [0, 9]
    large = LocalStore(CONFORMANCE / "spark/table-with-dv-large")
    remaining = deleted = 0
    for add in load_snapshot(large).adds():
        remaining += (total := json.loads(add.stats)["numRecords"])
        if add.deletion_vector:
            deleted += len(deleted_rows(large, add.deletion_vector, total, add.path))
    assert (remaining - deleted, deleted) == (1993, 11)


@given(rows_of)
@example({0})
@example({2**32 + 5})
def test_every_form_gives_the_rows_that_went_in(rows):
    store = LocalStore(Path("/nonexistent"))
    payloads = [portable(rows)]
    if max(rows, default=0) < 2**34:
        payloads += [native(rows), native(rows, ">")]
    for payload in payloads:
        assert read(store, inline(payload, len(rows)), 2**41) == sorted(rows)


def test_runs_and_dense_containers(store):
    rows = BitMap64(np.concatenate([np.arange(100_000), np.arange(2**33, 2**33 + 200_000, 2)]).astype(np.uint64))
    for optimized in (False, True):
        if optimized:
            rows.run_optimize()
        payload = struct.pack("<I", PORTABLE) + rows.serialize()
        assert read(store, inline(payload, len(rows)), 2**34) == list(rows)


def test_empty_buckets_as_the_reference_writes_them(store):
    buckets = [BitMap().serialize(), BitMap([4]).serialize()]
    payload = struct.pack("<IQ", PORTABLE, 2) + b"".join(struct.pack("<I", i) + data for i, data in enumerate(buckets))
    assert read(store, inline(payload, 1), 2**33) == [2**32 + 4]


@given(st.binary(max_size=60))
def test_base85_is_read_back(data):
    assert (z85_decode(z85_encode(data)) or b"")[: len(data)] == data
    assert len(z85_encode(data)) % 5 == 0


@pytest.mark.parametrize("text", ["1234", "1234`", "1234 ", "1234ä", "#####"])
def test_what_is_no_base85(text):
    assert z85_decode(text) is None


def test_vectors_that_share_a_file(store):
    payloads = [portable({0}), portable({1, 2}), portable({7})]
    data, vectors = b"\1", []
    for i, payload in enumerate(payloads):
        vectors.append(DeletionVector("u", ENCODED, len(payload), [1, 2, 1][i], len(data)))
        data += framed(payload)
    store.put(f"deletion_vector_{UUID}.bin", data)
    assert [read(store, vector) for vector in vectors] == [[0], [1, 2], [7]]
    assert [read(LocalStore(Path("/nonexistent")), inlined(store, vector, "x")) for vector in vectors] == [
        [0],
        [1, 2],
        [7],
    ]
    assert inlined(store, PROTOCOLS_OWN, "x") is PROTOCOLS_OWN


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_an_absolute_path_below_the_tables_folder(tmp_path, scheme):
    store = LocalStore(tmp_path / "a b%")
    store.put("d v%/x.bin", b"\1" + framed(portable({2})))
    path = f"{scheme}{tmp_path}/a%20b%25/d%20v%25/x.bin"
    assert read(store, DeletionVector("p", path, len(portable({2})), 1, 1)) == [2]


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/elsewhere/x.bin", UnsupportedFeature),
        ("s3://bucket/x.bin", UnsupportedFeature),
        ("{root}-other/x.bin", UnsupportedFeature),
        ("{root}/../x.bin", LogCorrupt),
        ("{root}/a/%2E%2E/%2E%2E/x.bin", LogCorrupt),
        ("x.bin", LogCorrupt),
        ("%zz", LogCorrupt),
    ],
)
def test_paths_that_leave_the_tables_folder(store, path, error):
    vector = DeletionVector("p", path.format(root=store.uri), 1, 1, 1)
    with pytest.raises(error):
        read(store, vector)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (DeletionVector("x", "", 1, 1), "storage type"),
        (DeletionVector("i", "1234", 1, 1), "Base85"),
        (DeletionVector("i", z85_encode(bytes(8)), 4, 1), "8 bytes instead of 4"),
        (DeletionVector("i", z85_encode(bytes(8)), 9, 1), "8 bytes instead of 9"),
        (DeletionVector("u", "short", 1, 1, 1), "UUID"),
        (DeletionVector("u", "../" + ENCODED, 1, 1, 1), "UUID"),
        (DeletionVector("u", ".." + ENCODED, 1, 1, 1), "UUID"),
        (DeletionVector("u", "ab" + ENCODED, 1, 1, 0), "offset"),
    ],
)
def test_descriptors_that_make_no_sense_are_named(store, changed, reason):
    with pytest.raises(LogCorrupt, match=f"part.parquet.*{reason}"):
        read(store, changed)


def test_a_checkpoint_may_hold_no_descriptor_that_a_commit_may_not():
    for vector in (DeletionVector("u", ENCODED, -1, 1, 1), DeletionVector("u", ENCODED, 1, -1, 1)):
        with pytest.raises(LogCorrupt, match=r"part\.parquet"):
            to_adds(adds_table([Add("part.parquet", {}, 1, 1, True, deletion_vector=vector)]))


def damaged(at: int, value: bytes) -> bytes:
    data = bytearray(b"\1" + framed(portable({1, 3, 5})))
    data[at : at + len(value)] = value
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "members", "reason"),
    [
        (damaged(0, b"\2"), {}, "version 02"),
        (b"", {}, "version none"),
        (damaged(1, b"\0\0\0\1"), {}, "1 bytes instead of"),
        (damaged(1, b"\xff\xff\xff\xff"), {}, "-1 bytes instead of"),
        (damaged(9, b"\7"), {}, "CRC-32"),
        (damaged(-1, b"\7"), {}, "CRC-32"),
        (damaged(0, b"\1")[:-1], {}, "ends after"),
        (damaged(0, b"\1"), {"offset": 1000}, "ends after 0"),
        (damaged(0, b"\1"), {"size_in_bytes": 2**31 - 1}, "ends after"),
        (damaged(0, b"\1"), {"cardinality": 4}, "3 rows instead of 4"),
    ],
)
def test_files_that_are_not_what_was_committed_are_named(on_disk, store, data, members, reason):
    with pytest.raises(IntegrityError, match=f"ab/deletion_vector_{UUID}.bin of the file 'part.parquet' .*{reason}"):
        read(store, on_disk(data, **members))


def test_a_file_that_is_missing_is_named(store):
    with pytest.raises(IntegrityError, match=f"deletion_vector_{UUID}.bin of 'part.parquet' is missing"):
        read(store, DeletionVector("u", ENCODED, 1, 1, 1))


def test_rows_that_the_file_does_not_have(on_disk, store):
    assert read(store, on_disk(), 6) == [1, 3, 5]
    with pytest.raises(IntegrityError, match="deletes row 5, but the file has 5 rows"):
        read(store, on_disk(), 5)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "nothing"),
        (struct.pack("<I", PORTABLE + 1), "d2d33964"),
        (struct.pack(">I", PORTABLE), "no known format"),
        (struct.pack("<I", PORTABLE), "no Roaring"),
        (struct.pack("<I", PORTABLE) + b"\1", "no Roaring"),
        (struct.pack("<IQ", PORTABLE, 2**40), "no Roaring"),
        (struct.pack("<II", NATIVE, 2**31), "no Roaring"),
        (struct.pack("<III", NATIVE, 1, 2**31) + bytes(4), "no Roaring"),
    ],
)
def test_bytes_that_are_no_bitmap(store, payload, reason):
    with pytest.raises(IntegrityError, match=reason):
        read(store, inline(payload, 1))


@pytest.mark.slow
def test_a_bitmap_that_would_not_fit_into_memory_is_not_spelled_out(store):
    bomb = BitMap64()
    bomb.add_range(0, 2**34)
    bomb.run_optimize()
    payload = struct.pack("<I", PORTABLE) + bomb.serialize()
    with pytest.raises(IntegrityError, match="deletes row"):
        read(store, inline(payload, 2**34))


@given(st.data())
def test_whatever_the_bytes_rows_or_an_error(data):
    payload = bytearray(data.draw(st.sampled_from([portable({1, 70_000}), native({1, 2, 3}), native({5}, ">")])))
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    payload = payload[: data.draw(st.integers(0, len(payload)))]
    try:
        rows = read(LocalStore(Path("/nonexistent")), inline(bytes(payload), 3), 100)
    except VersionedError:
        return
    assert len(rows) == 3
    assert rows == sorted(set(rows))
    assert all(0 <= row < 100 for row in rows)


# --- writing ---------------------------------------------------------------------------------------------------------


@given(st.dictionaries(st.text("abc/", min_size=1, max_size=4), rows_of.filter(bool), max_size=4))
def test_what_is_written_is_read(tmp_path_factory, deleted):
    store = LocalStore(tmp_path_factory.mktemp("table"))
    vectors = write_vectors(store, {key: np.array(sorted(rows), np.int64) for key, rows in deleted.items()})
    assert vectors.keys() == deleted.keys()
    assert len(list(store.list())) == bool(deleted)
    for key, rows in deleted.items():
        assert vectors[key].cardinality == len(rows)
        assert vectors[key].storage_type == "u"
        assert deleted_rows(store, vectors[key], 2**41, key).tolist() == sorted(rows)


def test_a_written_file_is_as_the_protocol_has_it(store):
    vectors = write_vectors(store, {"a": np.array([3, 4, 7]), "b": np.array([9, 1, 1])})
    (info,) = store.list()
    assert info.key == vector_key(store, vectors["a"], "a") == vector_key(store, vectors["b"], "b")
    data = store.get(info.key)
    assert data[0] == 1
    payloads = [portable({3, 4, 7}), portable({1, 9})]
    assert data[1:] == b"".join(map(framed, payloads))
    assert (vectors["a"].offset, vectors["b"].offset) == (1, 1 + len(payloads[0]) + 8)
    assert vectors["b"].cardinality == 2
    assert vectors["b"].size_in_bytes == len(payloads[1])


def test_long_runs_take_little_room(store):
    vector = write_vectors(store, {"a": np.arange(1_000_000)})["a"]
    assert vector.cardinality == 1_000_000
    assert vector.size_in_bytes < 1000
    assert len(deleted_rows(store, vector, 1_000_000, "a")) == 1_000_000


@pytest.mark.parametrize("rows", [[], [3, -1]])
def test_rows_that_cannot_be_deleted(store, rows):
    with pytest.raises(InvalidInput, match="Rows to delete from the file 'a'"):
        write_vectors(store, {"a": np.array(rows, np.int64)})
    assert not list(store.list())
