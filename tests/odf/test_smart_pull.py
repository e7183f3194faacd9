"""Datasets of smart servers: one archive of blocks and files by URLs, believed no more than what is read by name."""

import gzip
import io
import json
import os
import shutil
import socket
import tarfile
import threading
import time
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Response
from websockets.sync.client import connect

from dagster_versioned.errors import (
    AccessDenied,
    ChainCorrupt,
    CommitConflict,
    IntegrityError,
    InvalidInput,
    ObjectNotFound,
    StorageError,
    StoreUnavailable,
    UnsupportedFeature,
    VersionedError,
)
from dagster_versioned.odf.blocks.events import SetInfo
from dagster_versioned.odf.event_table import EventTable
from dagster_versioned.odf.identity.multihash import Multihash
from dagster_versioned.odf.sharing.remote import RemoteDataset
from dagster_versioned.odf.sharing.serve import CONVERSATIONS, server
from dagster_versioned.odf.sharing.smart import channel, client, conversation, messages
from dagster_versioned.odf.sharing.smart.client import SmartDataset, open_smart
from dagster_versioned.odf.sharing.smart.messages import (
    Batch,
    Empty,
    Progress,
    PullAccepted,
    PulledBlocks,
    PullFiles,
    PullRequest,
    PullWays,
    PushedBlocks,
    PushFiles,
    PushRequest,
    PushWays,
    decode,
    decode_result,
    pack,
    unpack,
)
from dagster_versioned.odf.sharing.staged_pull import PULLED
from dagster_versioned.odf.sharing.transfer import pull
from dagster_versioned.odf.verification.verify import verify
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import LocalStore
from dagster_versioned.storage.http import HttpClient
from dagster_versioned.storage.http_store import HttpStore
from dagster_versioned.tables.table import VersionedTable
from support.names import INSIDE, OUTSIDE, outside_is_public, resolving
from support.odf_graph import Served, add_readings
from support.smart_peers import Json, Peer, batch, packed, serving
from support.static_server import answering
from support.stores import held_by

NAMES = st.sampled_from(
    ["Ok", "Err", "blocks", "object_files", "details", "begin_after", "transfer_plan", "num_blocks"]
)
JSON = st.one_of(st.none(), st.integers(), st.text(max_size=5), st.lists(st.integers(), max_size=3))
PATIENT = HttpClient(attempts=2, timeout=60.0)


def dataset(address: str, **given: Any) -> SmartDataset:
    return open_smart(address, client=PATIENT, **given)


def fork(source: Served, folder: Path) -> Served:
    """The same dataset, which goes on otherwise."""
    made = Served(Path(shutil.copytree(source.folder, folder)), source.key, source.state)
    made.append(SetInfo("Readings of another one.", ()))
    return made


# --- this package's server -------------------------------------------------------------------------------------------


def test_pulled_and_extended_over_one_question_for_the_blocks_and_one_for_the_files(
    source: Served, copy: VersionedTable
):
    with serving(LocalStore(source.folder)) as running:
        first = pull(dataset(running.smart), copy, require_signature=True)
        assert (first.dataset_id, first.before, first.blocks, first.files) == (source.dataset_id, None, 5, 2)
        assert copy.verify().ok
        assert EventTable(copy).events().num_rows == 12
        assert running.asked("GET", "blocks") == []
        assert len(running.asked("GET", "pull")) == 1

        running.log.clear()
        assert pull(dataset(running.smart), copy).blocks == 0
        assert running.asked("GET", "data") == []

        add_readings(source, 12)
        running.log.clear()
        second = pull(dataset(running.smart), copy, require_signature=True)
        assert (second.before, second.blocks, second.files) == (first.head, 1, 1)
        assert (len(running.asked("GET", "data")), len(running.asked("GET", "pull"))) == (1, 1)
        assert EventTable(copy).events().num_rows == 18
        assert verify(RemoteDataset(copy.store)).ok
        assert verify(dataset(running.smart)).ok


def test_up_to_a_block_and_up_to_a_reference(source: Served, copy: VersionedTable):
    assert source.state is not None
    before = source.state.head
    add_readings(source, 12)
    source.store("refs/accepted", str(before).encode())
    with serving(LocalStore(source.folder)) as running:
        assert pull(dataset(running.smart, reference="accepted"), copy).head == before
        third = source.remote.block(before)[1].prev_block_hash
        assert third is not None
        assert pull(dataset(running.smart), copy, until=before).blocks == 0
        with pytest.raises(IntegrityError, match=r"refused: Block f1620\w+ is not in the chain"):
            pull(dataset(running.smart), Project.open("C", copy.store.uri).table("x"), until=Multihash.sha3_256(b""))


def test_an_interrupted_pull_goes_on_where_it_stopped(source: Served, copy: VersionedTable):
    lost = sorted((source.folder / "data").iterdir())[0]
    kept = lost.read_bytes()
    lost.unlink()
    with serving(LocalStore(source.folder)) as running:
        with pytest.raises(ObjectNotFound, match=lost.name):
            pull(dataset(running.smart), copy)
        assert not copy.exists()
        assert len(list(copy.store.list(f"{PULLED}data/"))) == 1
        lost.write_bytes(kept)
        running.log.clear()
        pull(dataset(running.smart), copy)
        assert running.asked("GET", "data") == [f"/data/{lost.name}"]
    assert EventTable(copy).events().num_rows == 12
    assert not list(copy.store.list(PULLED))


def test_chains_that_have_grown_apart_are_reported_and_one_behind_its_copy_is_no_error(
    source: Served, copy: VersionedTable, tmp_path: Path
):
    other = fork(source, tmp_path / "fork")
    with serving(LocalStore(other.folder)) as running:
        pull(dataset(running.smart), copy)
    kept = held_by(copy)
    with serving(LocalStore(source.folder)) as running:
        behind = pull(dataset(running.smart), copy)
        assert (behind.blocks, behind.ahead) == (0, 1)
        add_readings(source, 12)
        with pytest.raises(CommitConflict, match=r"share the blocks up to f1620\w+ \(number 4\).*1 blocks.*copy 1"):
            pull(dataset(running.smart), copy)
    assert held_by(copy) == kept


def test_nothing_is_served_to_another_version_nor_to_a_page_of_a_browser_nor_without_a_handshake(source: Served):
    with serving(LocalStore(source.folder)) as running:
        url = f"{running.url.replace('http', 'ws')}/pull"
        for headers, status in (
            ({}, 400),
            ({"x-odf-smtp-version": "2"}, 400),
            ({"x-odf-smtp-version": "1", "Origin": "https://example.org"}, 403),
        ):
            with pytest.raises(Exception, match=f"HTTP {status}"), connect(url, additional_headers=headers):
                pass
        with pytest.raises(StorageError, match=r"HTTP 426|HTTP 400"), PATIENT.open(f"{running.url}/pull"):
            pass


@pytest.mark.parametrize(
    ("messages", "answer"),
    [
        (["{"], "no PullRequest"),
        (["[]"], "no PullRequest"),
        (['{"begin_after": "../head"}'], "no PullRequest"),
        (['{"begin_after": 7}'], "no PullRequest"),
        ([b"bytes"], "sent bytes"),
        (["{}", "{}", '{"object_files": [{"object_type": "MetadataBlock"}]}'], "no PullFiles"),
        (["{}", "{}", json.dumps({"object_files": [None] * 10_001})], "no PullFiles"),
        (
            [
                "{}",
                "{}",
                json.dumps(
                    {
                        "object_files": [
                            {"object_type": "DataSlice", "physical_hash": str(Multihash.sha3_256(b"x")), "size": 1}
                        ]
                    }
                ),
            ],
            "no file of the blocks",
        ),
    ],
    ids=map(str, range(8)),
)
def test_a_client_that_sends_what_is_no_message_is_answered_so_and_hung_up_on(
    source: Served, messages: list[str | bytes], answer: str
):
    with serving(LocalStore(source.folder)) as running:
        url = f"{running.url.replace('http', 'ws')}/pull"
        with connect(url, additional_headers={"x-odf-smtp-version": "1"}) as client:
            for message in messages[:-1]:
                client.send(message)
                client.recv()
            client.send(messages[-1])
            assert answer in client.recv()
            with pytest.raises(Exception, match="1011"):
                client.recv()
        assert "/tmp" not in answer


def test_a_client_that_sends_too_much_at_once_is_hung_up_on(source: Served, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(conversation, "QUESTION_BYTES", 10_000)
    with serving(LocalStore(source.folder)) as running:
        url = f"{running.url.replace('http', 'ws')}/pull"
        with connect(url, additional_headers={"x-odf-smtp-version": "1"}) as client:
            client.send("x" * 10_001)
            with pytest.raises(Exception, match="1009"):
                client.recv()
        assert RemoteDataset(dataset(running.smart).store).head() == source.remote.head()


def test_no_more_clients_than_there_is_room_for_converse_at_once_and_files_are_served_to_all(
    source: Served, copy: VersionedTable, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(CONVERSATIONS, "/pull", 2)
    with serving(LocalStore(source.folder)) as running:
        url = f"{running.url.replace('http', 'ws')}/pull"
        headers = {"x-odf-smtp-version": "1"}
        with connect(url, additional_headers=headers):
            with connect(url, additional_headers=headers):
                with pytest.raises(StoreUnavailable, match=r"HTTP 503.*Come again later"):
                    pull(dataset(running.smart), copy)
                assert not copy.exists()
                assert RemoteDataset(HttpStore(running.url, client=PATIENT)).head() == source.remote.head()
            while not copy.exists():  # that one's end is on its way
                with suppress(StoreUnavailable):
                    pull(dataset(running.smart), copy)
            assert RemoteDataset(copy.store).head() == source.remote.head()
        with pytest.raises(Exception, match="HTTP 403"), connect(url.replace("/pull", "/push")):
            pass


# --- another server --------------------------------------------------------------------------------------------------


def test_a_server_with_kamus_messages_is_pulled_from(source: Served, copy: VersionedTable):
    peer = Peer(source.folder)
    with peer.running() as address:
        assert pull(dataset(address, token="secret-1"), copy).blocks == 5
        add_readings(source, 12)
        assert pull(dataset(address, token="secret-1"), copy).files == 1
    first, files, second, _ = peer.heard
    assert first == {"begin_after": None, "stop_at": None, "force_update_if_diverged": False}
    assert {one["object_type"] for one in files["object_files"]} == {"DataSlice"}
    assert second["begin_after"].startswith("f1620")
    asked = [request for request in peer.requests if request.path == "/pull"]
    assert [request.headers["x-odf-smtp-version"] for request in asked] == ["1", "1"]
    assert {request.headers["Authorization"] for request in asked} == {"Bearer secret-1"}
    # To the URLs that a server names go the headers that it names.
    data = [request for request in peer.requests if request.path.startswith("/data/")]
    assert len(data) == 3
    assert not any("Authorization" in request.headers for request in data)


def changed(**members: Any) -> Callable[[Json], Json]:
    return lambda message: {"blocks": {**message["blocks"], **members}}


def bomb(_: Json) -> Json:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as made:
        for name in range(20):
            member = tarfile.TarInfo(str(Multihash.sha3_256(bytes([name]))))
            member.size = 2**20
            made.addfile(member, io.BytesIO(bytes(2**20)))
    return {"blocks": packed(written.getvalue(), 20)}


def long_name(_: Json) -> Json:
    """A header that states a name of a terabyte, and zeros."""
    member = tarfile.TarInfo("././@LongLink")
    member.type, member.size = tarfile.GNUTYPE_LONGNAME, 2**40
    return {"blocks": packed(gzip.compress(member.tobuf(tarfile.GNU_FORMAT) + bytes(40 * 2**20)), 1)}


def renamed(name: str) -> Callable[[Json], Json]:
    return lambda message: {"blocks": batch([(name, b"x" * 100)])}


def members_of(message: Json) -> dict[str, bytes]:
    """The blocks of a message, by the names that they have in its archive."""
    with tarfile.open(fileobj=io.BytesIO(bytes(message["blocks"]["payload"])), mode="r:gz") as archive:
        files = [(member.name, archive.extractfile(member)) for member in archive]
        return {name: file.read() for name, file in files if file is not None}


def altered(message: Json) -> Json:
    members = members_of(message)
    first, *_ = members
    return {"blocks": batch([(first, members[first][:-1] + b"!")])}


def without_one(message: Json) -> Json:
    members = members_of(message)
    return {"blocks": batch([one for number, one in enumerate(members.items()) if number != 2])}


@pytest.mark.parametrize(
    ("what", "lie", "error", "reason"),
    [
        ("answer", lambda _: {"Ok": {}}, IntegrityError, "no PullAccepted"),
        ("answer", lambda _: {"transfer_plan": {}}, IntegrityError, "no PullAccepted"),
        ("answer", lambda _: "come back later", IntegrityError, "refused: come back later"),
        ("answer", lambda _: {"Err": {"Internal": {"error_message": "broken"}}}, IntegrityError, "refused: broken"),
        ("answer", lambda _: {"Err": {"Unheard": {}}}, IntegrityError, "refused: 'Unheard'"),
        ("answer", lambda truth: {"Ok": {"transfer_plan": {**truth["Ok"]["transfer_plan"], "num_blocks": 0}}},
         ObjectNotFound, "no such blocks"),
        ("answer", lambda truth: {"Ok": {"transfer_plan": {**truth["Ok"]["transfer_plan"], "num_blocks": -1}}},
         IntegrityError, "no PullAccepted"),
        ("blocks", lambda _: {"blocks": {}}, IntegrityError, "no PulledBlocks"),
        ("blocks", changed(media_type="application/zip"), UnsupportedFeature, "'application/zip'"),
        ("blocks", changed(encoding="base64"), UnsupportedFeature, "'base64'"),
        ("blocks", changed(payload=[256]), IntegrityError, "no PulledBlocks"),
        ("blocks", changed(payload="H4sI"), IntegrityError, "no PulledBlocks"),
        ("blocks", changed(payload=[1, 2, 3]), IntegrityError, "cannot be used"),
        ("blocks", lambda truth: {"blocks": {**truth["blocks"], "payload": truth["blocks"]["payload"][:-60]}},
         IntegrityError, "cannot be used"),
        ("blocks", changed(num_blocks=4), IntegrityError, "more blocks than the 4"),
        ("blocks", changed(num_blocks=6), IntegrityError, "5 blocks, not 6"),
        ("blocks", bomb, IntegrityError, "more than 10485760 bytes|other bytes"),
        ("blocks", long_name, IntegrityError, "more than 10485760 bytes"),
        ("blocks", renamed("../../blocks/x"), IntegrityError, "named by no hash"),
        ("blocks", renamed("/etc/passwd"), IntegrityError, "named by no hash"),
        ("blocks", renamed(f"x/{Multihash.sha3_256(b'')}"), IntegrityError, "named by no hash"),
        ("blocks", renamed(str(Multihash.sha3_256(b""))), ChainCorrupt, "other bytes than its hash says"),
        ("blocks", lambda _: {"blocks": batch([("../x", b"")], tarfile.SYMTYPE)}, IntegrityError, "no plain file"),
        ("blocks", altered, ChainCorrupt, "other bytes than its hash says"),
        ("blocks", without_one, ObjectNotFound, "did not send blocks/f1620"),
        ("ways", lambda _: {"object_transfer_strategies": []}, ObjectNotFound, "names no URL of data/f1620"),
        ("ways", lambda _: {}, IntegrityError, "no PullWays"),
        ("file", lambda data: data[:-1] + b"!", IntegrityError, "other bytes than its hash says"),
        ("file", lambda data: data + b"more", IntegrityError, "more than its"),
        ("file", lambda data: data[:-1], IntegrityError, r"\d+ bytes, not \d+"),
        ("file", lambda _: Response(403, "Forbidden", Headers()), AccessDenied, "HTTP 403"),
    ],
    ids=map(str, range(31)),
)  # fmt: skip
def test_a_server_that_lies_is_refused_and_nothing_is_kept(
    source: Served,
    copy: VersionedTable,
    what: str,
    lie: Callable[[Any], Any],
    error: type[VersionedError],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(messages, "MAX_UNPACKED_BYTES", 10 * 2**20)
    (source.folder / "refs/head.sig").unlink()
    with Peer(source.folder, {what: lie}).running() as address, pytest.raises(error, match=reason):
        pull(dataset(address), copy)
    assert not copy.exists()


def ways(**url: Any) -> Callable[[Json], Json]:
    def change(message: Json) -> Json:
        for way in message["object_transfer_strategies"]:
            way["download_from"].update(url)
        return message

    return change


@pytest.mark.parametrize(
    ("url", "error", "reason"),
    [
        ({"url": "file:///etc/passwd"}, StorageError, "leads from http to"),
        ({"url": "ftp://127.0.0.1/x"}, StorageError, "leads from http to"),
        ({"url": "http://user:secret@127.0.0.1/x"}, InvalidInput, "holds a user or a password"),
        ({"url": "http://[bad/x"}, InvalidInput, "cannot be read"),
        ({"url": "data/x"}, StorageError, "leads from http to"),
        ({"url": 7}, IntegrityError, "no PullWays"),
        ({"headers": [{"name": "Host", "value": "other"}]}, IntegrityError, "wants the header 'Host'"),
        ({"headers": [{"name": "transfer-encoding", "value": "chunked"}]}, IntegrityError, "wants the header"),
        ({"headers": [{"name": "X", "value": "a\r\nHost: other"}]}, InvalidInput, "characters that no header may have"),
        ({"headers": [{"name": "X", "value": "a"}] * 33}, IntegrityError, "no PullWays"),
        ({"expires_at": "soon"}, IntegrityError, "no PullWays"),
        ({"expires_at": "2030-01-01T00:00:00"}, IntegrityError, "no PullWays"),
    ],
    ids=map(str, range(12)),
)
def test_a_server_that_leads_to_where_it_should_not_is_not_followed(
    source: Served, copy: VersionedTable, url: Json, error: type[VersionedError], reason: str
):
    peer = Peer(source.folder, {"ways": ways(**url)})
    with peer.running() as address, pytest.raises(error, match=reason):
        pull(dataset(address), copy)
    assert not copy.exists()
    assert not [request for request in peer.requests if request.path.startswith("/data")]


def test_a_server_elsewhere_leads_nobody_into_this_network(
    source: Served, copy: VersionedTable, monkeypatch: pytest.MonkeyPatch
):
    """Files are where a name leads that is of the public network as long as nobody connects to it."""
    asked: list[str] = []
    outside_is_public(monkeypatch)
    resolving(monkeypatch, other=lambda n: [OUTSIDE if n == 1 else INSIDE])
    peer = Peer(source.folder)
    with peer.running() as address, answering(lambda request: asked.append(request.path), INSIDE) as inside:
        peer.base = inside.replace(INSIDE, "other.example")
        with pytest.raises(StorageError, match="an address of this machine or its network"):
            pull(open_smart(address, client=HttpClient(attempts=1)), copy)
    assert asked == []
    assert not copy.exists()


def test_where_urls_have_run_out_new_ones_are_asked_for(source: Served, copy: VersionedTable):
    peer = Peer(
        source.folder, {"ways": ways(expires_at="2020-01-01T00:00:00Z", headers=[{"name": "X-K", "value": "1"}])}
    )
    with peer.running() as address:
        assert pull(dataset(address), copy).files == 2
    assert len(peer.heard) == 3
    data = [request for request in peer.requests if request.path.startswith("/data/")]
    assert [request.headers["X-K"] for request in data] == ["1", "1"]


@pytest.mark.parametrize(
    ("status", "error", "reason"),
    [
        (301, StorageError, "It leads elsewhere, which is refused"),
        (400, StorageError, "Incompatible client version"),
        (401, AccessDenied, "Give its token"),
        (403, AccessDenied, "Give its token"),
        (404, ObjectNotFound, "No dataset is there"),
        (200, StorageError, "no WebSocket"),
        (503, StoreUnavailable, "Run again later"),
    ],
)
def test_a_server_that_does_not_have_the_protocol_is_named(
    source: Served, copy: VersionedTable, status: int, error: type[VersionedError], reason: str
):
    headers = Headers({"Location": "http://localhost:1/", "Content-Length": "27"})
    rejected = Response(status, "No", headers, b"Incompatible client version")
    peer = Peer(source.folder, reject=lambda _: rejected)
    with peer.running() as address, pytest.raises(error, match=reason) as caught:
        pull(dataset(address, token="secret-1"), copy)
    assert "secret-1" not in str(caught.value)
    assert not copy.exists()


def silent(connection: Any) -> None:
    with suppress(ConnectionClosed):
        while True:
            connection.recv()


def endless(connection: Any) -> None:
    connection.recv()
    with suppress(ConnectionClosed):
        connection.send("x" * 100 for _ in range(10**7))


def dripping(connection: Any) -> None:
    connection.recv()

    def drops() -> Any:
        while True:
            time.sleep(0.1)
            yield " "

    with suppress(ConnectionClosed):
        connection.send(drops())


@pytest.mark.parametrize(
    ("say", "seconds", "reason"),
    [
        (silent, 0.5, "sent nothing for too long"),
        (endless, 60, "more than 100000 bytes"),
        (dripping, 0.5, "sent nothing for too long"),
        (lambda connection: connection.close(1011, "Internal error"), 60, "'Internal error', 1011"),
        (lambda connection: connection.close(), 60, "broke off"),
        (lambda connection: connection.socket.close(), 60, "broke off"),
    ],
    ids=["silent", "endless", "dripping", "failed", "closed", "cut"],
)
def test_a_server_that_is_silent_or_without_end_is_left(
    source: Served,
    copy: VersionedTable,
    say: Callable[[Any], object],
    seconds: float,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
):
    def hasty(*place: Any) -> channel.Channel:
        opened = open_channel(*place)
        opened.timeout = seconds  # of messages; the handshake has what a busy machine needs
        return opened

    open_channel = channel.connect
    monkeypatch.setattr(client, "connect", hasty)
    monkeypatch.setattr("dagster_versioned.odf.sharing.smart.channel.MAX_MESSAGE_BYTES", 100_000)
    with Peer(source.folder, say=say).running() as address, pytest.raises(StoreUnavailable, match=reason):
        pull(dataset(address), copy)
    assert not copy.exists()


def test_a_token_goes_to_no_other_server_that_this_one_leads_to(source: Served, copy: VersionedTable):
    seen: list[dict[str, str]] = []

    def elsewhere(request: Any) -> None:
        seen.append(dict(request.headers))
        request.reply(404)

    with answering(elsewhere) as other:
        away = Response(302, "Found", Headers({"Location": f"{other}/x", "Content-Length": "0"}))
        peer = Peer(source.folder, {"file": lambda _: away})
        with peer.running() as address, pytest.raises(ObjectNotFound, match="HTTP 404"):
            pull(dataset(address, token="secret-1"), copy)
    assert len(seen) >= 2
    assert not any("secret-1" in str(headers) for headers in seen)


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The file of a certificate for ``localhost``, which is believed, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, *form) + made.public_bytes(serialization.Encoding.PEM)
    (tmp_path / "pem").write_bytes(pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "pem"))
    return str(tmp_path / "pem")


def test_over_tls_and_never_from_there_to_a_place_without_it(
    source: Served, copy: VersionedTable, certificate: str, monkeypatch: pytest.MonkeyPatch
):
    for scheme, refusal in (("https", None), ("http", "leads from https to")):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        with server(LocalStore(source.folder), port=port, url=f"{scheme}://localhost:{port}") as running:
            running.config.ssl_certfile, running.config.ssl_keyfile = certificate, certificate
            threading.Thread(target=running.serve_forever, daemon=True).start()
            address = f"odf+https://localhost:{port}"
            if refusal is None:
                assert pull(dataset(address), copy).blocks == 5
                monkeypatch.setenv("SSL_CERT_FILE", os.devnull)
                with pytest.raises(StoreUnavailable, match="did not answer"):
                    pull(open_smart(address, client=HttpClient(attempts=1)), copy)
                monkeypatch.setenv("SSL_CERT_FILE", str(copy.store.local_path("x")).partition("/copy/")[0] + "/pem")
            else:
                add_readings(source, 12)
                with pytest.raises(StorageError, match=refusal):
                    pull(dataset(address), copy)


def test_through_the_proxy_of_the_environment(source: Served, copy: VersionedTable, monkeypatch: pytest.MonkeyPatch):
    """It is asked for a tunnel to the server, by a name that only the proxy knows."""
    for name in ("https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    tunnels: list[tuple[str, str | None]] = []
    with serving(LocalStore(source.folder), url="http://data.example.test") as running:
        to = ("127.0.0.1", int(running.url.rpartition(":")[2]))

        class Proxy(BaseHTTPRequestHandler):
            def do_CONNECT(self) -> None:
                tunnels.append((self.path, self.headers["Proxy-Authorization"]))
                with socket.create_connection(to) as far:
                    self.connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                    back = threading.Thread(target=pump, args=(far, self.connection), daemon=True)
                    back.start()
                    pump(self.connection, far)

            def do_GET(self) -> None:
                path = source.folder / self.path.partition("//")[2].partition("/")[2]
                self.send_response(200 if path.is_file() else 404)
                self.send_header("Content-Length", str(path.stat().st_size if path.is_file() else 0))
                self.end_headers()
                self.wfile.write(path.read_bytes() if path.is_file() else b"")

            def log_message(self, *arguments: object) -> None: ...

        with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
            threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
            monkeypatch.setenv("http_proxy", f"http://ada:p%40ss@127.0.0.1:{proxy.server_address[1]}")
            assert pull(dataset("odf+http://data.example.test"), copy).files == 2
            proxy.shutdown()
    assert tunnels == [("data.example.test:80", f"Basic {b64encode(b'ada:p@ss').decode()}")]


def pump(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while data := one.recv(65536):
            other.sendall(data)


@settings(max_examples=25)
@given(st.dictionaries(st.binary(max_size=2000), st.none(), max_size=5))
def test_what_is_packed_is_unpacked(found: dict[bytes, None]):
    blocks = {Multihash.sha3_256(data): data for data in found}
    packed = pack(blocks.items())
    assert unpack(decode(packed.encode(), Batch, "x"), "x") == blocks
    assert list(unpack(packed, "x")) == list(blocks)


@settings(max_examples=25)
@given(st.binary(max_size=300), st.integers(0, 3), st.booleans())
def test_no_archive_gives_anything_but_blocks_or_a_sentence(payload: bytes, count: int, is_zipped: bool):
    payload = gzip.compress(payload + bytes(1024)) if is_zipped else payload
    with suppress(VersionedError):
        unpack(Batch(num_blocks=count, media_type="application/tar+gzip", encoding="raw", payload=payload), "x")


@settings(max_examples=25)
@given(st.one_of(st.text(max_size=50), st.recursive(JSON, lambda inner: st.dictionaries(NAMES, inner)).map(json.dumps)))
def test_no_text_gives_anything_but_a_message_or_a_sentence(text: str):
    for model in (PullRequest, PulledBlocks, PullFiles, PullWays, PushRequest, PushedBlocks, PushFiles, Progress):
        with suppress(VersionedError):
            assert decode(text, model, "x").encode()
    for model in (PullAccepted, PushWays, Empty):
        with suppress(VersionedError):
            decode_result(text, model, "x")


def test_an_address_that_is_none_and_a_token_that_is_none_are_refused(source: Served):
    for address in ("https://host/x", "odf+ftp://host/x", "odf+https://"):
        with pytest.raises(InvalidInput):
            open_smart(address)
    for token in ("", "a b", "a\r\nHost: x", "ü"):
        with pytest.raises(InvalidInput, match="The token has characters") as caught:
            open_smart("odf+https://host/x", token=token)
        assert token == "" or token not in str(caught.value)
    assert "secret-1" not in repr(open_smart("odf+https://host/x", token="secret-1"))
