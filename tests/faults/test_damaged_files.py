"""Bad input: files that were cut, altered, removed or replaced behind our back, down to single bytes.

Whatever happened to them, a read returns the rows of the version or raises an error of ours, and a derived file costs
nobody his table.
"""

import random
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_versioned.errors import IntegrityError, VersionedError
from dagster_versioned.storage import LocalStore
from dagster_versioned.tables import version_index
from dagster_versioned.tables.documents import publish
from dagster_versioned.tables.table import VersionedTable
from support.crashes import SMALL_PARTS, table_in
from support.frames import numbered
from support.readers import assert_same
from support.stores import contents
from support.tmpfs import scratch

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

VERSIONS = [numbered(20), numbered(90, 100), numbered(40), numbered(25), numbered(7)]


@pytest.fixture(scope="module", autouse=True)
def every_third() -> Iterator[None]:
    """A checkpoint, and a segment of the index, after every third commit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publish, "CHECKPOINT_INTERVAL", 3)
        patch.setattr(version_index, "SEGMENT", 3)
        yield


@pytest.fixture(scope="module")
def whole() -> Iterator[Path]:
    with scratch() as folder:
        root = folder / "whole"
        table = table_in(LocalStore(root))
        for rows in VERSIONS:
            table.write(rows, options=SMALL_PARTS)
        table.project.pin("kept", "flights", table.version(1).metadata_sha)
        table.repair()
        yield root


@pytest.fixture(params=[8, pytest.param(200, marks=pytest.mark.slow)])
def flips(request: pytest.FixtureRequest) -> int:
    """How many bits of a file are turned over, each alone; half as many other damages are done to it."""
    return request.param


@pytest.fixture
def root(whole: Path) -> Iterator[Path]:
    with scratch() as folder:
        yield shutil.copytree(whole, folder / "store")


def flights(root: Path) -> Path:
    return root / "datom" / "flights"


def commit_file(root: Path, version: int) -> Path:
    return flights(root) / "_delta_log" / f"{version:020d}.json"


def the_one(root: Path, pattern: str) -> Path:
    (found,) = root.glob(pattern)
    return found


def witnesses(root: Path) -> dict[int, str]:
    return {record.log_version: record.sha256 for record in table_in(LocalStore(root)).state.history.records}


def reads_right_or_refuses(table: VersionedTable) -> int:
    """How many versions could not be read."""
    refused = 0
    for number, rows in enumerate(VERSIONS):
        try:
            found = table.read(number)
        except VersionedError:
            refused += 1
        else:
            assert_same(found, rows)
    return refused


def damages(data: bytes, seed: str, flips: int) -> Iterator[bytes]:
    """A file cut at some places, and with single bits and bytes changed at others; the same ones every time."""
    chance = random.Random(seed)
    yield b""
    for _ in range(flips // 4):
        yield data[: chance.randrange(len(data))]
    for _ in range(flips):
        at = chance.randrange(len(data))
        yield data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
    for _ in range(flips // 4):
        at = chance.randrange(len(data))
        yield data[:at] + chance.randbytes(1) + data[at:]


@pytest.mark.parametrize("version", range(len(VERSIONS)))
def test_a_damaged_commit_never_changes_a_row(root: Path, version: int, flips: int) -> None:
    known = witnesses(root)
    path = commit_file(root, version)
    original = path.read_bytes()
    for data in damages(original, f"commit {version}", flips):
        if data == original:
            continue
        path.write_bytes(data)
        table = table_in(LocalStore(root))
        try:
            reads_right_or_refuses(table)
        except AssertionError as error:
            error.add_note(f"{len(data)} of {len(original)} bytes: {data!r}")
            raise
        assert not table.verify(witnesses=known).ok
        path.unlink()  # the store must not see the file's identity reused


@pytest.mark.parametrize("version", range(len(VERSIONS)))
def test_a_damaged_part_never_changes_a_row(root: Path, version: int, flips: int) -> None:
    table = table_in(LocalStore(root))
    part = flights(root) / f"{table.files(version).adds[0].path}"
    original = part.read_bytes()
    for data in damages(original, f"part {version}", flips):
        if data == original:
            continue
        part.unlink()
        part.write_bytes(data)
        with pytest.raises(IntegrityError):
            table.read(version)
        assert not table.verify().ok


DERIVED = {
    "checkpoint": "datom/flights/_delta_log/*.checkpoint.parquet",
    "last checkpoint": "datom/flights/_delta_log/_last_checkpoint",
    "index": "datom/flights/.metadata/versions/*.parquet",
    "head": "datom/.metadata/heads/flights.json",
    "manifest": "datom/.metadata/manifest.json",
    "datom history": "datom/flights/.metadata/version_history.json",
    "datom metadata": "datom/flights/.metadata/metadata.json",
}


@pytest.mark.every(3)
@pytest.mark.parametrize("document", DERIVED)
def test_a_damaged_derived_document_never_changes_a_row(root: Path, document: str, flips: int) -> None:
    before = contents(LocalStore(root))
    path = the_one(root, DERIVED[document])
    original = path.read_bytes()
    entry = orjson.loads(original)["artifacts"]["flights"] if document == "manifest" else None
    for data in damages(original, document, flips):
        if data == original:
            continue
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        table = table_in(LocalStore(root))
        reads_right_or_refuses(table)
        table_in(LocalStore(root)).repair()
        if document == "manifest":  # of the whole project: what it says of other tables is not this one's to judge
            assert orjson.loads(path.read_bytes())["artifacts"]["flights"] == entry
            continue
        assert contents(LocalStore(root)) == before


@pytest.mark.every(3)
@pytest.mark.parametrize("document", DERIVED)
def test_a_write_over_a_damaged_derived_document_succeeds(whole: Path, document: str) -> None:
    rows = numbered(3, 500)
    for data in (b"", b"{", b"null", b"[]", b"{}", b"\0" * 40, b"PAR1" * 5):
        with scratch() as folder:
            root = shutil.copytree(whole, folder / "store")
            path = the_one(root, DERIVED[document])
            path.unlink()
            path.write_bytes(data)
            table = table_in(LocalStore(root))
            table.resolve()
            table.write(rows)
            assert_same(table_in(LocalStore(root)).read(), rows)
            assert reads_right_or_refuses(table_in(LocalStore(root))) == 0
            table_in(LocalStore(root)).repair()
            table_in(LocalStore(root)).verify().require_ok()


@pytest.mark.parametrize(
    ("document", "text"),
    [("index", b"WRITE"), ("index", b"operation"), ("checkpoint", b"numRecords"), ("checkpoint", b"configuration")],
)
def test_a_derived_document_whose_text_is_no_utf8_is_passed_over(root: Path, document: str, text: bytes) -> None:
    path = the_one(root, DERIVED[document])
    sink = pa.BufferOutputStream()
    pq.write_table(pq.read_table(path), sink, compression="none", use_dictionary=False, store_schema=False)
    data = sink.getvalue().to_pybytes()
    assert text in data
    path.unlink()
    path.write_bytes(data.replace(text, text[:-1] + b"\xe2"))
    assert reads_right_or_refuses(table_in(LocalStore(root))) == 0


def test_damaged_pins_stop_expiry_and_nothing_else(root: Path, flips: int) -> None:
    path = root / "datom/.metadata/pins.json"
    original = path.read_bytes()
    for data in damages(original, "pins", flips):
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        before = contents(LocalStore(root))
        table = table_in(LocalStore(root))
        try:
            pins = table.project.pins()
        except IntegrityError:
            for refused in (
                lambda table=table: table.expire(keep_last=1, dry_run=False),
                lambda table=table: table.purge([0], why="x", dry_run=False),
                lambda table=table: table.project.pin("more", "flights"),
            ):
                with pytest.raises(IntegrityError, match="pins"):
                    refused()
            assert contents(LocalStore(root)) == before
        else:
            assert len(pins) == 1
        assert reads_right_or_refuses(table) == 0


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_gap_in_the_log_is_named_and_nothing_is_built_on_it(root: Path, version: int) -> None:
    for path in flights(root).glob("_delta_log/*checkpoint*"):
        path.unlink()
    shutil.rmtree(flights(root) / ".metadata" / "versions")
    commit_file(root, version).unlink()
    before = contents(LocalStore(root))
    table = table_in(LocalStore(root))
    for use in (
        lambda: table.read(),
        lambda: table.write(numbered(3)),
        lambda: table.expire(keep_last=1, dry_run=False),
        lambda: table.history(),
        lambda: table.repair(),
    ):
        with pytest.raises(VersionedError, match=f"{version:020d}|version 0|begins"):
            use()
    assert contents(LocalStore(root)) == before
    assert not table.verify().ok


def test_a_gap_that_a_checkpoint_covers_is_found_by_verify(root: Path) -> None:
    commit_file(root, 1).unlink()
    table = table_in(LocalStore(root))
    assert_same(table.read(), VERSIONS[-1])
    assert not table.verify().ok


def test_a_commit_that_was_exchanged_breaks_the_chain(root: Path) -> None:
    data = commit_file(root, 1).read_bytes()
    commit_file(root, 1).unlink()
    commit_file(root, 1).write_bytes(data.replace(b'"isBlindAppend":false', b'"isBlindAppend":true'))
    assert {finding.subject for finding in table_in(LocalStore(root)).verify().findings} >= {"chain"}


@pytest.mark.parametrize("what", ["part", "log", "table", "metadata", "heads", "staging"])
def test_a_planted_link_leads_nobody_out(root: Path, what: str) -> None:
    outside = root.parent / "outside"
    table = table_in(LocalStore(root))
    planted = {
        "part": flights(root) / table.files().adds[0].path,
        "log": flights(root) / "_delta_log",
        "table": flights(root),
        "metadata": flights(root) / ".metadata",
        "heads": root / "datom" / ".metadata" / "heads",
        "staging": flights(root) / "_staging",
    }[what]
    if what == "staging":
        outside.mkdir()
        (outside / "precious").write_bytes(b"precious")
    else:
        planted.rename(outside)
    planted.symlink_to(outside)
    before = contents(LocalStore(outside)) if outside.is_dir() else {"": outside.read_bytes().hex()}
    for use in (
        lambda table: table.read(),
        lambda table: table.write(numbered(90, 700), options=SMALL_PARTS),
        lambda table: table.expire(keep_last=1, dry_run=False),
        lambda table: table.vacuum(dry_run=False),
        lambda table: table.repair(),
        lambda table: table.verify(),
    ):
        with suppress(VersionedError):
            use(table_in(LocalStore(root)))
    after = contents(LocalStore(outside)) if outside.is_dir() else {"": outside.read_bytes().hex()}
    assert after == before
