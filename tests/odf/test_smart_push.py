"""Datasets are pushed to smart servers: what arrives is checked as a pull checks it, and one of two pushes wins."""

import json
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from dagster_versioned.errors import (
    AccessDenied,
    CommitConflict,
    IntegrityError,
    InvalidInput,
    ObjectNotFound,
    StorageError,
    StoreUnavailable,
    VersionedError,
)
from dagster_versioned.odf.blocks.events import AddData, DataSlice, OffsetInterval, SetInfo
from dagster_versioned.odf.event_table import EventTable
from dagster_versioned.odf.identity.multihash import Multihash
from dagster_versioned.odf.sharing.remote import RemoteDataset, files_of
from dagster_versioned.odf.sharing.serve import server
from dagster_versioned.odf.sharing.smart import push_server
from dagster_versioned.odf.sharing.smart.client import SmartDataset, open_smart
from dagster_versioned.odf.sharing.smart.push import push_smart
from dagster_versioned.odf.sharing.smart.push_server import Receiver
from dagster_versioned.odf.sharing.staged_pull import PULLED
from dagster_versioned.odf.sharing.transfer import pull
from dagster_versioned.odf.verification.verify import verify
from dagster_versioned.projects.project import Project
from dagster_versioned.storage.http import HttpClient
from dagster_versioned.tables.table import VersionedTable
from support.names import INSIDE, OUTSIDE, outside_is_public, resolving
from support.odf_graph import Served, add_readings
from support.smart_peers import Json, Peer, Running, batch, serving
from support.static_server import answering
from support.stores import held_by

TOKEN = "secret-1"
PATIENT = HttpClient(attempts=2, timeout=60.0)


@pytest.fixture
def own(source: Served, tmp_path: Path) -> VersionedTable:
    """The table whose dataset is pushed: that of the source."""
    table = Project.open("OWN", str(tmp_path / "own")).table("readings")
    pull(source.remote, table)
    return table


@pytest.fixture
def shared(tmp_path: Path) -> VersionedTable:
    """The table that takes what is pushed, which is not there yet."""
    return Project.open("SHARED", str(tmp_path / "shared")).table("readings")


@contextmanager
def receiving(shared: VersionedTable, **given: Any) -> Iterator[Running]:
    with serving(shared.store, receiver=Receiver(shared, TOKEN, **given)) as running:
        yield running


def dataset(address: str, token: str | None = TOKEN) -> SmartDataset:
    return open_smart(address, token=token, client=PATIENT)


# --- pushed ----------------------------------------------------------------------------------------------------------


def test_a_dataset_is_made_brought_up_to_date_and_verified_where_it_is_pushed_to(
    source: Served, own: VersionedTable, shared: VersionedTable, tmp_path: Path
):
    with receiving(shared) as running:
        first = push_smart(own, dataset(running.smart))
        assert (first.before, first.blocks, first.files, first.signed) == (None, 5, 2, None)
        assert shared.verify().ok
        assert verify(RemoteDataset(shared.store)).ok
        assert EventTable(shared).events().equals(EventTable(own).events())
        assert not list(shared.store.list("_staging/"))

        assert push_smart(own, dataset(running.smart)).blocks == 0

        add_readings(source, 12)
        pull(source.remote, own)
        running.log.clear()
        second = push_smart(own, dataset(running.smart))
        assert (second.before, second.blocks, second.files) == (first.head, 1, 1)
        assert len(running.asked("PUT")) == 1
        assert EventTable(shared).events().num_rows == 18

        copy = Project.open("COPY", str(tmp_path / "copy")).table("readings")
        assert pull(dataset(running.smart, None), copy).head == second.head
    assert len(shared.history()) == 3


def test_a_push_that_was_interrupted_goes_on_with_the_files_that_are_missing(
    own: VersionedTable, shared: VersionedTable
):
    lost = sorted(info.key for info in own.store.list("data/"))[0]
    kept = own.store.get(lost)
    own.store.delete([lost])
    with receiving(shared) as running:
        with pytest.raises(ObjectNotFound, match=lost):
            push_smart(own, dataset(running.smart))
        assert not shared.exists()
        assert len(list(shared.store.list(f"{PULLED}data/"))) == 1
        own.store.put(lost, kept)
        assert push_smart(own, dataset(running.smart)).files == 1
    assert EventTable(shared).events().num_rows == 12


def test_what_is_pushed_by_who_has_no_token_is_refused(
    own: VersionedTable, shared: VersionedTable, capfd: pytest.CaptureFixture[str]
):
    with receiving(shared) as running:
        for token in (None, "secret-2", TOKEN[:-1], f"{TOKEN}1"):
            with pytest.raises(AccessDenied, match=r"HTTP 401.*token"):
                push_smart(own, dataset(running.smart, token))
    with serving(shared.store) as running, pytest.raises(AccessDenied, match="HTTP 403"):
        push_smart(own, dataset(running.smart))
    assert not shared.exists()
    assert not list(shared.store.list())
    assert TOKEN not in repr(Receiver(shared, TOKEN))


def test_neither_the_token_nor_where_files_are_sent_is_logged(
    own: VersionedTable, shared: VersionedTable, capfd: pytest.CaptureFixture[str]
):
    with server(shared.store, port=0, receiver=Receiver(shared, TOKEN)) as running:  # as it logs by itself
        threading.Thread(target=running.serve_forever, daemon=True).start()
        push_smart(own, dataset(f"odf+http://127.0.0.1:{running.server_address[1]}"))
    logged = capfd.readouterr().err
    assert "PUT /push/…/data/f1620" in logged
    assert TOKEN not in logged


# --- two who push ----------------------------------------------------------------------------------------------------


def grown(source: Served, folder: Path, name: str) -> VersionedTable:
    """A table of the source's dataset, which goes on with events of its own."""
    fork = Served(Path(shutil.copytree(source.folder, folder / f"{name}-source")), source.key, source.state)
    fork.append(SetInfo(f"Readings of {name}.", ()))
    add_readings(fork, 12)
    table = Project.open("P", str(folder / name)).table("readings")
    pull(fork.remote, table)
    return table


def test_of_two_pushes_at_once_one_wins_and_the_other_is_refused(
    source: Served, own: VersionedTable, shared: VersionedTable, tmp_path: Path
):
    first, second = grown(source, tmp_path, "first"), grown(source, tmp_path, "second")
    with receiving(shared) as running:
        push_smart(own, dataset(running.smart))
        done: list[Multihash] = []

        def while_files_are_sent(size: int, total: int) -> None:
            if not done:
                done.append(push_smart(second, dataset(running.smart)).head)

        with pytest.raises(CommitConflict, match=r"Somebody else pushed meanwhile.*grown apart.*\(number 4\)"):
            push_smart(first, dataset(running.smart), progress=while_files_are_sent)
        assert RemoteDataset(shared.store).head() == done[0]
        assert EventTable(shared).events().equals(EventTable(second).events())
        assert verify(RemoteDataset(shared.store)).ok
        # Nothing of the first is lost, and what is in the way is named.
        with pytest.raises(CommitConflict, match=r"grown apart.*\(number 4\).*2 blocks.*the copy 2 others"):
            push_smart(first, dataset(running.smart))
    assert EventTable(first).events().num_rows == 18


@pytest.mark.slow
def test_of_many_pushes_at_once_one_wins(source: Served, own: VersionedTable, shared: VersionedTable, tmp_path: Path):
    tables = [grown(source, tmp_path, f"number{number}") for number in range(4)]
    outcomes: list[object] = []
    with receiving(shared) as running:
        push_smart(own, dataset(running.smart))

        def run(table: VersionedTable) -> None:
            try:
                outcomes.append(push_smart(table, dataset(running.smart)).head)
            except VersionedError as error:
                outcomes.append(error)

        threads = [threading.Thread(target=run, args=(table,)) for table in tables]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    (head,) = [one for one in outcomes if isinstance(one, Multihash)]
    assert all(isinstance(one, CommitConflict) for one in outcomes if one is not head), outcomes
    assert RemoteDataset(shared.store).head() == head
    assert verify(RemoteDataset(shared.store)).ok
    assert shared.verify().ok


# --- clients that lie ------------------------------------------------------------------------------------------------


class Client:
    """Pushes step by step, as kamu's messages are, and as a test has it."""

    def __init__(self, running: Running, source: Served, **plan: Any) -> None:
        headers = {"x-odf-smtp-version": "1", "Authorization": f"Bearer {TOKEN}"}
        url = f"{running.url.replace('http', 'ws')}/push"
        opened = connect(url, additional_headers=headers, max_size=2**26, compression=None)
        self.socket: ClientConnection = running.connections.enter_context(opened)
        self.source = source
        self.blocks = {
            name: (source.folder / "blocks" / name).read_bytes() for name in Peer(source.folder).chain(None, None) or ()
        }

    def ask(self, message: Any) -> Any:
        self.socket.send(message if isinstance(message, str | bytes) else json.dumps(message))
        return json.loads(self.socket.recv())

    def begin(self, head: str | None = None) -> Any:
        none = dict.fromkeys(("num_objects", "num_records", "bytes_in_raw_objects"), 0)
        plan = {"num_blocks": 1, "bytes_in_raw_blocks": 1, **none}
        asked = {"current_head": head, "transfer_plan": plan, "force_update_if_diverged": True}
        return self.ask({**asked, "visibility_for_created_dataset": "Private"})

    def send_blocks(self, blocks: dict[str, bytes] | None = None) -> Any:
        return self.ask({"new_blocks": batch(list((self.blocks if blocks is None else blocks).items()))})

    def files(self) -> list[Json]:
        found = [file for name in self.blocks for file in files_of(self.source.remote.block(Multihash.parse(name))[1])]
        return [
            {"object_type": "DataSlice", "physical_hash": str(file.physical_hash), "size": file.size} for file in found
        ]

    def ways(self) -> list[str]:
        """The URLs to which the files are to be sent."""
        assert self.begin() == {"Ok": {}}
        assert self.send_blocks() == {"Ok": {}}
        answer = self.ask({"object_files": self.files(), "is_truncated": False})
        return [way["upload_to"]["url"] for way in answer["Ok"]["object_transfer_strategies"]]

    def finish(self) -> Any:
        self.socket.send(json.dumps({"details": "Complete"}))
        return self.ask({})


def sent(url: str, data: bytes | Iterator[bytes], **headers: str) -> int:
    """The status of a PUT."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        return urllib.request.urlopen(urllib.request.Request(url, data, named, method="PUT")).status
    except urllib.error.HTTPError as error:
        return error.code
    except urllib.error.URLError:
        return 0  # it hung up before all was sent


def test_a_client_with_kamus_messages_pushes(source: Served, shared: VersionedTable, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(push_server, "ASK_SECONDS", 0.05)
    with receiving(shared) as running:
        client = Client(running, source)
        for url, file in zip(client.ways(), client.files(), strict=True):
            assert url == f"{running.url}/push/{url.split('/')[4]}/data/{file['physical_hash']}"
            assert len(url.split("/")[4]) == 43
            assert json.loads(client.socket.recv()) == {}  # how far is it?
            client.socket.send(json.dumps({"details": {"Running": {"uploaded_objects_count": 1}}}))
            assert sent(url, (source.folder / "data" / file["physical_hash"]).read_bytes()) == 201
        client.socket.send(json.dumps({"details": "Complete"}))
        client.socket.send("{}")
        assert set(client.socket) == {"{}"}  # questions, and in the end the confirmation
        assert RemoteDataset(shared.store).head() == source.remote.head()
        # Once the push has ended, its URLs are no more.
        assert sent(url, (source.folder / "data" / file["physical_hash"]).read_bytes()) == 404
    assert shared.verify().ok


def test_what_is_sent_to_a_url_is_the_file_that_it_is_for_or_nothing(source: Served, shared: VersionedTable):
    with receiving(shared) as running:
        client = Client(running, source)
        url, _ = client.ways()
        data = (source.folder / "data" / url.rpartition("/")[2]).read_bytes()
        base = url.partition("/data/")[0]
        assert sent(url, data[:-1] + b"!") == 422
        assert sent(url, data[:-1]) in (400, 0)
        assert sent(url, data + b"more") in (400, 0)
        assert sent(url, iter([data]), Transfer_Encoding="chunked") in (400, 0)
        for other in (
            f"{running.url}/push/{'x' * 43}/data/{url.rpartition('/')[2]}",
            f"{base}/data/{Multihash.sha3_256(b'')}",
            f"{base}/data/../../../_delta_log/00000000000000000000.json",
            f"{base}/data/..%2F..%2Frefs",
            f"{base}/checkpoints/{url.rpartition('/')[2]}",
            f"{base}/refs/head",
            f"{running.url}/refs/head",
            f"{running.url}/data/{url.rpartition('/')[2]}",
        ):
            assert sent(other, data) in (404, 405, 0), other
        assert not list(shared.store.list(f"{PULLED}data/"))
        assert "was not sent. Nothing was changed" in client.finish()
        with pytest.raises(ConnectionClosed, match="1011"):
            client.socket.recv()
    assert not shared.exists()


def forged(client: Client) -> Any:
    """Blocks of which the last one has other bytes than its name says."""
    client.begin()
    *_, last = client.blocks
    return client.send_blocks({**client.blocks, last: client.blocks[last][:-1] + b"!"})


def gap(client: Client) -> Any:
    client.begin()
    return client.send_blocks({name: data for number, (name, data) in enumerate(client.blocks.items()) if number != 2})


def wrong_file(**members: Any) -> Callable[[Client], Any]:
    def ask(client: Client) -> Any:
        client.begin()
        client.send_blocks()
        return client.ask({"object_files": [{**client.files()[0], **members}], "is_truncated": False})

    return ask


def nothing_sent(client: Client) -> Any:
    client.ways()
    return client.finish()


@pytest.mark.parametrize(
    ("lie", "answer"),
    [
        (lambda client: client.begin(str(Multihash.sha3_256(b""))), "'expected_head': None"),
        (lambda client: client.ask("{"), "no PushRequest"),
        (lambda client: client.ask(b"{}"), "sent bytes"),
        (lambda client: client.ask({"current_head": "../../x"}), "no PushRequest"),
        (lambda client: (client.begin(), client.ask({"new_blocks": 7})), "no PushedBlocks"),
        (lambda client: (client.begin(), client.send_blocks({})), "No block was pushed"),
        (lambda client: (client.begin(), client.send_blocks({"../../refs/head": b"x"})), "named by no hash"),
        (lambda client: (client.begin(), client.send_blocks({str(Multihash.sha3_256(b"x")): b"x"})), "and is none"),
        (forged, "other bytes than its hash says"),
        (gap, "was not pushed, and the blocks after it need it"),
        (wrong_file(size=1), "is no file of the blocks"),
        (wrong_file(physical_hash=str(Multihash.sha3_256(b"x"))), "is no file of the blocks"),
        (wrong_file(physical_hash="../../x"), "no PushFiles"),
        (wrong_file(object_type="Checkpoint"), "is no file of the blocks"),
        (nothing_sent, "was not sent. Nothing was changed"),
    ],
    ids=map(str, range(15)),
)  # fmt: skip
def test_a_client_that_lies_is_answered_so_and_nothing_is_changed(
    source: Served, shared: VersionedTable, lie: Callable[[Client], Any], answer: str
):
    with receiving(shared) as running:
        answered = str(lie(Client(running, source)))
        assert answer in answered
        assert str(shared.store.uri) not in answered
    assert not shared.exists()


def test_a_client_that_says_nothing_of_a_chain_that_has_grown_apart_is_refused(
    source: Served, own: VersionedTable, shared: VersionedTable, tmp_path: Path
):
    fork = Served(Path(shutil.copytree(source.folder, tmp_path / "fork")), source.key, source.state)
    fork.append(SetInfo("Readings of another one.", ()))
    add_readings(source, 12)
    pull(source.remote, own)
    with receiving(shared) as running:
        push_smart(own, dataset(running.smart))
        kept = held_by(shared)
        client = Client(running, fork)
        assert client.begin(str(RemoteDataset(shared.store).head())) == {"Ok": {}}
        assert "The chains have grown apart" in client.send_blocks()
    assert held_by(shared) == kept


def test_records_that_are_not_what_their_block_says_are_refused_after_all_was_sent(
    source: Served, shared: VersionedTable, tmp_path: Path
):
    state, path = source.last, sorted((source.folder / "data").iterdir())[0]
    physical, size = Multihash.parse(path.name), path.stat().st_size
    again = DataSlice(Multihash.parse(FALSE), physical, OffsetInterval(12, 17), size)
    source.append(AddData(prev_offset=state.last_offset, new_data=again, new_watermark=state.watermark))
    with receiving(shared) as running:
        client = Client(running, source)
        for url in client.ways():
            assert sent(url, (source.folder / "data" / url.rpartition("/")[2]).read_bytes()) in (201, 404)
        refusal = client.finish()
        assert "other offsets than its block says" in refusal or "logical hash" in refusal, refusal
    assert not shared.exists()


FALSE = "f9680c00120" + "0" * 64


def test_more_than_is_allowed_is_refused_before_a_file_is_sent(own: VersionedTable, shared: VersionedTable):
    with (
        receiving(shared, max_bytes=1000) as running,
        pytest.raises(IntegrityError, match=r"bytes of files are pushed, and 1000 are allowed"),
    ):
        push_smart(own, dataset(running.smart))
    assert running.asked("PUT") == []
    assert not shared.exists()


def test_a_client_that_falls_silent_is_hung_up_on(
    source: Served, shared: VersionedTable, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(push_server, "ASK_SECONDS", 0.05)
    with receiving(shared) as running:
        client = Client(running, source)
        client.ways()
        monkeypatch.setattr(push_server, "SILENCE_SECONDS", 0.5)
        heard: list[str | bytes] = []
        with pytest.raises(ConnectionClosed, match="1011"):
            heard.extend(client.socket)
        assert "Nothing was sent for too long" in str(heard[-1])
    assert not shared.exists()


# --- servers that lie ------------------------------------------------------------------------------------------------


@contextmanager
def uploads(status: int = 201, **headers: str) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Where files may be put, and what was put there."""
    taken: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            taken[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            for name, value in {"Content-Length": "0", **headers}.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *arguments: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_address[1]}", taken
        running.shutdown()


class Server:
    """Takes a push with kamu's messages; ``lies`` changes what it answers."""

    def __init__(self, base: str, **lies: Any) -> None:
        self.base, self.lies, self.heard = base, lies, list[Json]()

    def hear(self, connection: Any) -> Json:
        self.heard.append(json.loads(connection.recv()))
        return self.heard[-1]

    def answered(self, name: str, truth: Any) -> str:
        return json.dumps(self.lies.get(name, truth))

    def __call__(self, connection: Any) -> None:
        self.hear(connection)
        connection.send(self.answered("begin", {"Ok": {}}))
        self.hear(connection)
        connection.send(self.answered("blocks", {"Ok": {}}))
        more = True
        while more:
            asked = self.hear(connection)
            more = asked["is_truncated"]
            ways = [
                {
                    "object_file": file,
                    "push_strategy": "HttpUpload",
                    "upload_to": {
                        "url": f"{self.base}/{number}",
                        "headers": [{"name": "X-K", "value": "1"}],
                        **self.lies.get("url", {}),
                    },
                }
                for number, file in enumerate(asked["object_files"])
            ]
            connection.send(self.answered("ways", {"Ok": {"object_transfer_strategies": ways}}))
            while True:
                connection.send("{}")
                if self.hear(connection)["details"] == "Complete":
                    break
        assert self.hear(connection) == {}
        connection.send(self.answered("end", {}))


def test_a_server_with_kamus_messages_is_pushed_to(own: VersionedTable, tmp_path: Path):
    with uploads() as (base, taken):
        told = Server(base)
        with Peer(tmp_path, say=told).running() as address:
            done = push_smart(own, dataset(address))
    assert (done.before, done.blocks, done.files) == (None, 5, 2)
    assert sorted(map(Multihash.sha3_256, taken.values())) == sorted(
        Multihash.parse(info.key.removeprefix("data/")) for info in own.store.list("data/")
    )
    begin, blocks, files, *_ = told.heard
    assert begin["current_head"] is None
    assert begin["visibility_for_created_dataset"] == "Private"
    assert (begin["transfer_plan"]["num_blocks"], begin["transfer_plan"]["num_records"]) == (5, 12)
    assert blocks["new_blocks"]["num_blocks"] == 5
    assert files["is_truncated"] is False


@pytest.mark.parametrize(
    ("lies", "error", "reason"),
    [
        (
            {"begin": {"Err": {"InvalidHead": {"actual_head": None, "expected_head": "f1620"}}}},
            CommitConflict,
            "'f1620'",
        ),
        ({"begin": {"Err": {"Internal": {"phase": {}, "error_message": "full"}}}}, IntegrityError, "refused: full"),
        ({"begin": {}}, IntegrityError, "no Empty"),
        ({"blocks": {"Err": {"SeedBlockOverwriteRestricted": {}}}}, IntegrityError, "SeedBlockOverwriteRestricted"),
        ({"ways": {"Err": {"RefCollision": {"dataset_id": "x"}}}}, IntegrityError, "RefCollision"),
        ({"ways": {"Ok": {"object_transfer_strategies": []}}}, IntegrityError, "names no place for data/f1620"),
        ({"url": {"url": "file:///etc/passwd"}}, StorageError, "leads from http to"),
        ({"url": {"headers": [{"name": "Content-Length", "value": "1"}]}}, IntegrityError, "not its to set"),
        ({"end": "The chains have grown apart."}, IntegrityError, "refused: The chains have grown apart"),
        ({"end": []}, IntegrityError, "no Empty"),
    ],
    ids=map(str, range(10)),
)
def test_a_server_that_lies_or_refuses_is_named(
    own: VersionedTable, tmp_path: Path, lies: Any, error: type[VersionedError], reason: str
):
    with (
        uploads() as (base, _),
        Peer(tmp_path, say=Server(base, **lies)).running() as address,
        pytest.raises(error, match=reason) as caught,
    ):
        push_smart(own, dataset(address))
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "error", "reason"),
    [
        (307, StorageError, "leads what is sent to it elsewhere"),
        (403, AccessDenied, "HTTP 403"),
        (404, ObjectNotFound, "HTTP 404"),
        (500, StoreUnavailable, "HTTP 500"),
    ],
)
def test_files_are_sent_where_they_are_to_be_and_nowhere_else(
    own: VersionedTable, tmp_path: Path, status: int, error: type[VersionedError], reason: str
):
    with (
        uploads() as (elsewhere, taken),
        uploads(status, Location=f"{elsewhere}/x") as (base, _),
        Peer(tmp_path, say=Server(base)).running() as address,
        pytest.raises(error, match=reason),
    ):
        push_smart(own, dataset(address))
    assert not taken


def test_files_are_sent_to_no_address_of_this_network_for_a_server_elsewhere(
    own: VersionedTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    outside_is_public(monkeypatch)
    resolving(monkeypatch, other=lambda n: [OUTSIDE if n % 2 else INSIDE])  # as it is looked up, and connected to
    asked: list[str] = []
    with (
        answering(lambda request: asked.append(request.path), INSIDE) as inside,
        Peer(tmp_path, say=Server(inside.replace(INSIDE, "other.example"))).running() as address,
        pytest.raises(StorageError, match="an address of this machine or its network"),
    ):
        push_smart(own, open_smart(address, token=TOKEN, client=HttpClient(attempts=1)))
    assert asked == []


def test_what_is_no_dataset_or_no_head_is_not_pushed(
    own: VersionedTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rows = Project.open("ROWS", str(tmp_path / "rows")).table("rows")
    rows.write(pa.table({"n": [1]}))
    with pytest.raises(InvalidInput, match="no history of events"):
        push_smart(rows, dataset("odf+http://127.0.0.1:1/x"))
    with pytest.raises(InvalidInput, match="the head alone"):
        push_smart(own, open_smart("odf+http://127.0.0.1:1/x", reference="staging"))
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    with pytest.raises(StoreUnavailable):
        push_smart(own, open_smart("odf+http://127.0.0.1:1/x", client=HttpClient(attempts=1)))
    assert not waits
