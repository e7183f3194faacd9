"""Datasets travel: what arrives is what their hashes promise, or nothing arrives; no copy is ever rewritten."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_versioned.errors import (
    ChainCorrupt,
    CommitConflict,
    IntegrityError,
    InvalidInput,
    ObjectNotFound,
    StorageError,
    StoreUnavailable,
    VersionedError,
)
from dagster_versioned.odf.blocks.block import Block, block_hash, encode_block
from dagster_versioned.odf.blocks.events import DatasetKind, Seed, SetInfo, Timestamp
from dagster_versioned.odf.event_table import EventTable
from dagster_versioned.odf.identity.dataset_id import DatasetId
from dagster_versioned.odf.identity.multihash import Multihash
from dagster_versioned.odf.identity.signing_key import SIGNATURE_KEY, SigningKey
from dagster_versioned.odf.sharing.remote import RemoteDataset, open_remote
from dagster_versioned.odf.sharing.staged_pull import PULLED
from dagster_versioned.odf.sharing.transfer import pull, push
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import LocalStore, ObjectStore
from dagster_versioned.storage.http import HttpClient
from dagster_versioned.storage.http_store import HttpStore
from dagster_versioned.storage.wrappers import Call, CountingStore, Fault, FaultStore
from dagster_versioned.tables.event_history import EventHistory, SnapshotMerge
from dagster_versioned.tables.table import VersionedTable
from support.s3_server import S3Server
from support.static_server import Request, answering, static_server
from support.stores import held_by

KEY = SigningKey(bytes(range(32)))
CITIES = EventHistory(merge=SnapshotMerge(primary_key=("id",)))
DUMPS = (
    pa.table({"id": [1, 2], "name": ["Oslo", "Rome"]}),
    pa.table({"id": [1, 3], "name": ["Oslo!", "Bonn"]}),
    pa.table({"id": [1, 3, 4], "name": ["Oslo!", "Bonn", "Cork"]}),
)


class Origin:
    """A dataset at its source, which grows by one dump at a time."""

    def __init__(self, folder: Path, key: SigningKey | None = KEY, had: int = 0) -> None:
        self.table = Project.open("SOURCE", str(folder)).table("cities")
        self.folder = folder / "datom" / "cities"
        self.events = EventTable(self.table, CITIES, key=key)
        self._dumps = iter(DUMPS[had:])

    def extend(self) -> None:
        self.events.write(next(self._dumps))

    @property
    def remote(self) -> RemoteDataset:
        return open_remote(str(self.folder))


@pytest.fixture(scope="module")
def two_dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which two dumps were written, to be copied."""
    folder = tmp_path_factory.mktemp("two-dumps")
    made = Origin(folder)
    made.extend()
    made.extend()
    return folder


@pytest.fixture
def origin(tmp_path: Path, two_dumps: Path) -> Origin:
    shutil.copytree(two_dumps, tmp_path / "origin")
    return Origin(tmp_path / "origin", had=2)


@pytest.fixture
def copy(tmp_path: Path) -> VersionedTable:
    return Project.open("COPY", str(tmp_path / "copy")).table("cities")


def fork_of(folder: Path) -> EventTable:
    """The origin's dataset, which is to go on otherwise."""
    shutil.copytree(folder / "origin", folder / "fork")
    return Origin(folder / "fork").events


def current(table: VersionedTable) -> list[dict[str, object]]:
    return EventTable(table).current().select(["id", "name"]).sort_by("id").to_pylist()


def test_served_by_pythons_own_server_pulled_extended_and_tampered_with(
    tmp_path: Path, origin: Origin, copy: VersionedTable
):
    log = tmp_path / "requests"
    with static_server(origin.folder, log) as url:
        first = pull(open_remote(url), copy, require_signature=True)
        assert (first.dataset_id, first.before, first.blocks, first.files) == (KEY.dataset_id, None, 5, 2)
        assert copy.verify().ok
        assert current(copy) == DUMPS[1].to_pylist()
        assert [row["op"] for row in EventTable(copy).events().to_pylist()] == [0, 0, 2, 3, 1, 0]
        assert len(copy.history()) == 2

        assert pull(open_remote(url), copy).blocks == 0

        before = len(log.read_text().splitlines())
        origin.extend()
        second = pull(open_remote(url), copy, require_signature=True)
        assert (second.before, second.blocks, second.files) == (first.head, 1, 1)
        fetched = [line.split('"')[1].split()[1] for line in log.read_text().splitlines()[before:]]
        blocks = [path for path in fetched if path.startswith("/blocks/")]
        slices = [path for path in fetched if path.startswith("/data/")]
        assert blocks == [f"/blocks/{second.head}"]
        assert len(slices) == 1
        assert current(copy) == DUMPS[2].to_pylist()
        assert copy.verify().ok

        kept = held_by(copy)
        origin.events.write(DUMPS[0])
        newest = max((origin.folder / "data").iterdir(), key=lambda path: path.stat().st_mtime_ns)
        flipped(newest)
        with pytest.raises(IntegrityError, match=f"{newest.name} .* other bytes than its hash says"):
            pull(open_remote(url), copy)
        assert held_by(copy) == kept


# --- sources that lie ------------------------------------------------------------------------------------------------


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lengthened(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


@pytest.mark.parametrize("folder", ["refs", "blocks", "data"])
@pytest.mark.parametrize("harm", [flipped, truncated, lengthened, Path.unlink])
def test_any_file_that_is_not_what_it_was_is_refused(
    origin: Origin, copy: VersionedTable, folder: str, harm: Callable[[Path], None]
):
    pull(origin.remote, copy)
    kept = held_by(copy)
    before = {path.name for path in (origin.folder / folder).iterdir()}
    origin.extend()
    files = {path.name: path for path in (origin.folder / folder).iterdir()}
    harm(files["head"] if folder == "refs" else next(path for name, path in files.items() if name not in before))
    with pytest.raises((IntegrityError, ObjectNotFound)):
        pull(origin.remote, copy)
    assert held_by(copy) == kept


def serving(folder: Path, place: str, lie: Callable[[Request], object]) -> Callable[[Request], None]:
    """Answers from a folder, but for what is below a place (of the head: for that alone), of which it lies."""

    def respond(request: Request) -> None:
        if request.path == place or (place != "/refs/head" and request.path.startswith(place)):
            lie(request)
        else:
            path = folder / request.path.lstrip("/")
            request.reply(200, path.read_bytes()) if path.is_file() else request.reply(404)

    return respond


def patient(url: str) -> RemoteDataset:
    return RemoteDataset(HttpStore(url, client=HttpClient(attempts=2, timeout=60)))


def test_blocks_that_go_in_a_circle_are_refused(origin: Origin, copy: VersionedTable):
    head = (origin.folder / "blocks" / (origin.folder / "refs/head").read_text()).read_bytes()
    lying = serving(origin.folder, "/blocks/", lambda request: request.reply(200, head))
    with answering(lying) as url, pytest.raises(ChainCorrupt, match="other bytes than its hash"):
        pull(patient(url), copy)
    assert not copy.exists()


@pytest.mark.parametrize("place", ["/refs/head", "/refs/head.sig", "/blocks/", "/data/"])
def test_a_source_that_serves_a_hundred_gigabytes_is_not_read_to_its_end(
    origin: Origin, copy: VersionedTable, place: str
):
    sent = 0

    def lie(request: Request) -> None:
        nonlocal sent
        request.reply(200, Content_Length=str(10**11))
        while True:
            sent += request.wfile.write(bytes(100_000))

    with answering(serving(origin.folder, place, lie)) as url, pytest.raises(IntegrityError):
        pull(patient(url), copy)
    assert sent < 100_000_000
    assert not copy.exists()


@pytest.mark.parametrize("place", ["/refs/head", "/blocks/", "/data/"])
def test_a_source_that_redirects_to_a_local_file_is_refused(origin: Origin, copy: VersionedTable, place: str):
    def lie(request: Request) -> None:
        request.reply(302, Location=(origin.folder / request.path.lstrip("/")).as_uri())

    lying = serving(origin.folder, place, lie)
    with answering(lying) as url, pytest.raises(StorageError, match=r"leads from http to .file:"):
        pull(patient(url), copy)
    assert not copy.exists()


def test_an_answer_that_is_cut_short_again_and_again_is_refused(origin: Origin, copy: VersionedTable):
    lying = serving(origin.folder, "/data/", lambda request: request.reply(200, b"PAR1", Content_Length="1000"))
    with answering(lying) as url, pytest.raises((StoreUnavailable, IntegrityError)):
        pull(patient(url), copy)
    assert not copy.exists()


# --- what is expected of a source ------------------------------------------------------------------------------------


def test_another_dataset_than_the_expected_one_is_refused(origin: Origin, copy: VersionedTable, tmp_path: Path):
    with pytest.raises(IntegrityError, match="serves the dataset"):
        pull(origin.remote, copy, dataset_id=DatasetId(bytes(32)))
    assert pull(origin.remote, copy, dataset_id=KEY.dataset_id).blocks == 5
    other = Origin(tmp_path / "other", SigningKey.generate())
    other.extend()
    kept = held_by(copy)
    with pytest.raises(CommitConflict, match="share no block"):
        pull(other.remote, copy)
    assert held_by(copy) == kept


def test_more_than_is_allowed_is_not_pulled(origin: Origin, copy: VersionedTable):
    with pytest.raises(InvalidInput, match="100 are allowed"):
        pull(origin.remote, copy, max_bytes=100)
    assert not copy.exists()


def test_chains_that_grew_apart_are_reported_and_left_as_they_are(origin: Origin, copy: VersionedTable, tmp_path: Path):
    fork = fork_of(tmp_path)
    pull(origin.remote, copy)
    origin.extend()
    pull(origin.remote, copy)
    kept = held_by(copy)
    fork.write(DUMPS[0])
    fork.write(DUMPS[1])
    said = r"share the blocks up to f1620\w+ \(number 4\); then the source has 2 blocks and the copy 1 others"
    with pytest.raises(CommitConflict, match=said):
        pull(open_remote(fork.table.store.uri), copy)
    assert held_by(copy) == kept


def test_a_source_that_is_behind_its_copy_takes_nothing_from_it(origin: Origin, copy: VersionedTable, tmp_path: Path):
    shutil.copytree(origin.folder, tmp_path / "older")
    origin.extend()
    pull(origin.remote, copy)
    kept = held_by(copy)
    found = pull(open_remote(str(tmp_path / "older")), copy)
    assert (found.blocks, found.ahead) == (0, 1)
    assert held_by(copy) == kept


def test_a_table_of_rows_does_not_become_a_copy(origin: Origin, copy: VersionedTable):
    copy.write(DUMPS[0])
    with pytest.raises(InvalidInput, match="holds rows"):
        pull(origin.remote, copy)


# --- signatures ------------------------------------------------------------------------------------------------------


def test_a_head_that_its_owner_did_not_sign_is_reported_or_refused(
    origin: Origin, copy: VersionedTable, tmp_path: Path
):
    signed_up_to = origin.remote.head()
    EventTable(origin.table, CITIES).write(DUMPS[2])
    with pytest.raises(IntegrityError, match=f"signed up to {signed_up_to} only"):
        pull(origin.remote, copy, require_signature=True)
    assert pull(origin.remote, copy).signed == signed_up_to
    origin.table.store.delete([SIGNATURE_KEY])
    assert pull(origin.remote, copy).signed == signed_up_to  # as the copy still knows
    fresh = Project.open("FRESH", str(tmp_path / "fresh")).table("cities")
    with pytest.raises(IntegrityError, match="is not signed"):
        pull(origin.remote, fresh, require_signature=True)
    assert pull(origin.remote, fresh).signed is None


@pytest.mark.parametrize("signer", [SigningKey.generate(), KEY])
def test_a_signature_of_somebody_else_or_of_another_head_is_refused(
    origin: Origin, copy: VersionedTable, signer: SigningKey
):
    origin.table.store.put(SIGNATURE_KEY, signer.sign_head(Multihash.sha3_256(b"another")).document())
    with pytest.raises(IntegrityError, match="not its owner" if signer != KEY else "not in its chain"):
        pull(origin.remote, copy)
    assert not copy.exists()


def test_a_signature_travels_with_its_head(origin: Origin, copy: VersionedTable, tmp_path: Path):
    pull(origin.remote, copy)
    push(copy, LocalStore(tmp_path / "shared"))
    third = Project.open("THIRD", str(tmp_path / "third")).table("cities")
    assert pull(open_remote(str(tmp_path / "shared")), third, require_signature=True).signed == origin.remote.head()


# --- interruptions ---------------------------------------------------------------------------------------------------


def test_a_pull_that_was_interrupted_goes_on_where_it_stopped(origin: Origin, copy: VersionedTable):
    origin.extend()
    slices = sorted(path.name for path in (origin.folder / "data").iterdir())

    def decide(call: Call) -> Fault | None:
        return Fault.BEFORE if call.key == f"data/{slices[0]}" else None

    with pytest.raises(StoreUnavailable):
        pull(RemoteDataset(FaultStore(LocalStore(origin.folder), decide)), copy)
    assert not copy.exists()
    counting = CountingStore(LocalStore(origin.folder))
    pull(RemoteDataset(counting), copy)
    read = [call.key for call in counting.calls]
    assert [key for key in read if key.startswith("blocks/")] == []
    assert {key for key in read if key.startswith("data/")} <= {f"data/{name}" for name in slices}
    assert f"data/{slices[0]}" in read
    assert current(copy) == DUMPS[2].to_pylist()
    assert list(copy.store.list(PULLED)) == []


def test_what_an_interrupted_pull_left_is_not_believed(origin: Origin, copy: VersionedTable):
    head = origin.remote.head()
    copy.store.put(f"{PULLED}blocks/{head}", b"altered since")
    pull(origin.remote, copy)
    assert current(copy) == DUMPS[1].to_pylist()


# --- pushing ---------------------------------------------------------------------------------------------------------


def test_a_push_puts_files_then_blocks_then_the_head(origin: Origin, tmp_path: Path):
    target = CountingStore(LocalStore(tmp_path / "shared"))
    first = push(origin.table, target, key=KEY)
    folders = [call.key.split("/")[0] for call in target.calls if call.verb.startswith("put")]
    assert folders == ["data"] * 2 + ["blocks"] * 5 + ["refs"] * 2
    assert first.signed == origin.remote.head()
    origin.extend()
    target.reset()
    second = push(origin.table, target, key=KEY)
    assert (second.blocks, second.files) == (1, 1)
    assert sum(call.verb.startswith("put") and call.key.startswith("data/") for call in target.calls) == 1


def test_a_push_that_was_interrupted_shows_readers_the_old_head(origin: Origin, copy: VersionedTable, tmp_path: Path):
    shared = LocalStore(tmp_path / "shared")
    push(origin.table, shared, key=KEY)
    origin.extend()
    for place in ("data/", "blocks/", "refs/head"):

        def decide(call: Call, place: str = place) -> Fault | None:
            return Fault.BEFORE if call.verb.startswith("put") and call.key.startswith(place) else None

        with pytest.raises(StoreUnavailable):
            push(origin.table, FaultStore(shared, decide), key=KEY)
        pull(RemoteDataset(shared), copy, require_signature=True)
        assert current(copy) == DUMPS[1].to_pylist()
    push(origin.table, shared, key=KEY)
    pull(RemoteDataset(shared), copy, require_signature=True)
    assert current(copy) == DUMPS[2].to_pylist()


def test_a_push_never_overwrites_what_grew_apart_or_what_somebody_else_pushed(origin: Origin, tmp_path: Path):
    shared = LocalStore(tmp_path / "shared")
    fork = fork_of(tmp_path)
    fork.write(DUMPS[0])
    push(fork.table, shared)
    origin.extend()
    kept = {info.key: shared.get(info.key) for info in shared.list()}
    with pytest.raises(CommitConflict, match="grown apart"):
        push(origin.table, shared)
    assert {info.key: shared.get(info.key) for info in shared.list()} == kept

    class Racing(FaultStore):
        def put_if_match(self, key: str, data: bytes, etag: str | None, **more: object):
            self._store.put(key, data[::-1])
            return self._store.put_if_match(key, data, etag)

    with pytest.raises(CommitConflict, match="Somebody else pushed"):
        push(origin.table, Racing(LocalStore(tmp_path / "raced"), lambda call: None))


def test_what_cannot_be_pushed_is_refused(origin: Origin, copy: VersionedTable, tmp_path: Path):
    copy.write(DUMPS[0])
    with pytest.raises(InvalidInput, match="no chain"):
        push(copy, LocalStore(tmp_path / "x"))
    with pytest.raises(InvalidInput, match="a log of its own"):
        push(origin.table, copy.store)
    with pytest.raises(InvalidInput, match="The private key is that of"):
        push(origin.table, LocalStore(tmp_path / "x"), key=SigningKey.generate())
    slice_file = next((origin.folder / "data").iterdir())
    data = slice_file.read_bytes()
    for altered, message in (
        (b"X" + data[1:], "other bytes"),  # where no reader of Parquet looks
        (data[:4] + bytes(20) + data[24:], "cannot be read as a slice of events"),  # the first of its pages
    ):
        slice_file.write_bytes(altered)
        with pytest.raises(IntegrityError, match=message):
            push(origin.table, LocalStore(tmp_path / "x"))
    assert not (tmp_path / "x/refs").exists()


# --- chains that break the rules -------------------------------------------------------------------------------------


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Callable[..., RemoteDataset]]:
    """Serves blocks that are put one after another, each with its true hash."""

    def make(*blocks: Callable[[Multihash | None], Block], manifest_version: int = 2) -> RemoteDataset:
        store: ObjectStore = LocalStore(tmp_path / "made")
        head: Multihash | None = None
        for block in blocks:
            data = encode_block(block(head), manifest_version)
            head = block_hash(data)
            store.put(f"blocks/{head}", data)
        store.put("refs/head", str(head).encode())
        return RemoteDataset(store)

    return make


NOW = Timestamp(2026, 1, 0)
SEED = Seed(KEY.dataset_id, DatasetKind.ROOT)


@pytest.mark.parametrize(
    "blocks",
    [
        [lambda head: Block(NOW, head, 0, SetInfo("no seed"))],
        [lambda head: Block(NOW, head, 3, SEED)],
        [lambda head: Block(NOW, head, 0, SEED), lambda head: Block(NOW, head, 2, SetInfo("a gap"))],
        [lambda head: Block(NOW, head, 0, SEED), lambda head: Block(NOW, head, 1, SEED)],
        [lambda head: Block(NOW, head, 0, SEED), lambda head: Block(NOW, head, 0, SetInfo("a loop"))],
        [lambda head: Block(NOW, head, 0, SEED), lambda head: Block(NOW, None, 1, SetInfo("torn off"))],
        [lambda head: Block(NOW, head, 0, SEED), lambda head: Block(NOW, Multihash.sha3_256(b""), 1, SetInfo("x"))],
    ],
)
def test_a_chain_that_breaks_its_rules_is_refused(chain, copy: VersionedTable, blocks):
    with pytest.raises((ChainCorrupt, ObjectNotFound)):
        pull(chain(*blocks), copy)
    assert not copy.exists()


def test_a_dataset_without_columns_cannot_become_a_table(chain, copy: VersionedTable):
    with pytest.raises(InvalidInput, match="has no columns yet"):
        pull(chain(lambda head: Block(NOW, head, 0, SEED), manifest_version=3), copy)
    assert not copy.exists()


@pytest.mark.parametrize("text", ["", "\xff", "f00", "f1620" + "0" * 62, "f1220" + "00" * 32, "../../etc/passwd"])
def test_a_head_that_names_no_block_is_refused(tmp_path: Path, copy: VersionedTable, text: str):
    store = LocalStore(tmp_path / "made")
    store.put("refs/head", text.encode("latin1"))
    with pytest.raises(ChainCorrupt, match="names no block"):
        pull(RemoteDataset(store), copy)


@pytest.mark.slow
def test_pushed_to_a_bucket_and_pulled_from_it(origin: Origin, copy: VersionedTable, moto_server: S3Server):
    bucket = moto_server.store(moto_server.new_bucket(), "shared")
    push(origin.table, bucket, key=KEY)
    origin.extend()
    push(origin.table, bucket, key=KEY)
    pull(RemoteDataset(bucket), copy, require_signature=True)
    assert current(copy) == DUMPS[2].to_pylist()
    remote = Project("REMOTE", moto_server.store(moto_server.new_bucket(), "project")).table("cities")
    pull(RemoteDataset(bucket), remote, require_signature=True)
    assert current(remote) == DUMPS[2].to_pylist()


def test_errors_of_a_pull_are_the_packages_own(copy: VersionedTable, tmp_path: Path):
    for location in (str(tmp_path / "nothing"), "http://127.0.0.1:9/"):
        with pytest.raises(VersionedError):
            pull(open_remote(location), copy)
    with pytest.raises(InvalidInput):
        open_remote("ftp://host/x")
