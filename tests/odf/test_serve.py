"""A server of datasets goes on serving others, whatever strangers hold open, and answers to its own names alone."""

import json
import secrets
import socket
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from dagster_versioned.errors import StoreUnavailable
from dagster_versioned.odf.blocks.events import SetInfo
from dagster_versioned.odf.sharing import serve
from dagster_versioned.odf.sharing.guests import ArchiveRoom, Limits
from dagster_versioned.odf.sharing.serve import server
from dagster_versioned.odf.sharing.smart import conversation
from dagster_versioned.storage import LocalStore
from support.odf_graph import Served

TOO_MANY = "Too many blocks are being sent. Nothing was sent. Come again later."


@contextmanager
def serving(folder: Path, **limits: Any) -> Generator[int]:
    """The port of a server of a folder, which is given a head if it has none."""
    if not (folder / "refs/head").exists():
        LocalStore(folder).put("refs/head", b"f1620")
    with server(LocalStore(folder), port=0, limits=Limits(**limits)) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made.server_address[1]


def ask(port: int, host: str = "localhost") -> bytes:
    """The answer to who asks for the head."""
    with socket.create_connection(("127.0.0.1", port)) as one:
        one.sendall(f"GET /refs/head HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        return rest(one)


def rest(one: socket.socket) -> bytes:
    """What comes until the server closes a connection, or breaks it off."""
    found = b""
    with suppress(ConnectionResetError):
        while data := one.recv(2**20):
            found += data
    return found


def test_a_server_that_was_closed_before_it_served_serves_nothing_and_says_nothing(tmp_path: Path):
    with server(LocalStore(tmp_path), port=0) as made:
        address = made.server_address
    made.serve_forever()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", b"200"),
        ("127.0.0.1:8000", b"200"),
        ("[::1]", b"200"),
        ("rebound.example", b"421"),
        ("127.0.0.1.rebound.example", b"421"),
        ("", b"421"),
        ("local host", b"421"),
    ],
)
def test_who_asks_for_another_host_is_refused(tmp_path: Path, host: str, status: bytes):
    with serving(tmp_path) as port:
        answer = ask(port, host)
    assert answer.split()[1] == status
    assert answer.endswith(b"f1620") is (status == b"200")


def test_a_head_that_never_ends_is_cut_off(tmp_path: Path):
    with serving(tmp_path, head_seconds=0.1) as port, socket.create_connection(("127.0.0.1", port)) as one:
        one.sendall(b"GET /refs/head HTTP/1.1\r\nX: a")
        assert rest(one) == b""


def test_an_answer_that_is_not_read_is_cut_off(tmp_path: Path):
    LocalStore(tmp_path).put("data/x", bytes(2**25))
    with (
        serving(tmp_path, head_seconds=0.5, bytes_a_second=2**40, of_a_peer=1) as port,
        socket.create_connection(("127.0.0.1", port)) as one,
    ):
        one.sendall(b"GET /data/x HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert one.recv(5) == b"HTTP/"
        while not answered(port):  # there is room for another one when that one is cut off
            pass
        assert len(rest(one)) < 2**25


def answered(port: int) -> bool:
    with suppress(ConnectionError):
        return b"f1620" in ask(port)
    return False


@pytest.mark.parametrize("limit", ["connections", "of_a_peer"])
def test_so_many_connections_are_open_and_no_more(tmp_path: Path, limit: str):
    with serving(tmp_path, **{limit: 2}) as port:
        held = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
        assert rest(held[2]) == b""
        held[0].close()
        while not answered(port):  # until the server has seen that one is closed
            pass


def stalled(port: int, frames: int = 2) -> socket.socket:
    """A conversation that has asked for all blocks, and reads none."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.connect(("127.0.0.1", port))
    one.sendall(
        b"GET /pull HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nx-odf-smtp-version: 1\r\n\r\n"
    )
    while not one.recv(2**16).endswith(b"\r\n\r\n"):
        pass
    one.sendall(b"\x81\x82\0\0\0\0{}" * frames)
    return one


@pytest.fixture
def large(source: Served) -> Path:
    """The folder of a dataset whose archive is larger than what sockets hold."""
    for _ in range(6):
        source.append(SetInfo(secrets.token_hex(2**18), ()))
    return source.folder


def test_archives_of_one_address_take_so_much_memory_and_no_more(large: Path):
    def blocks(port: int, address: str) -> Any:
        headers = {"x-odf-smtp-version": "1"}
        url = f"ws://127.0.0.1:{port}/pull"
        with connect(url, additional_headers=headers, max_size=None, source_address=(address, 0)) as client:
            for _ in range(2):
                client.send("{}")
                answer = client.recv()
            return json.loads(answer)

    with serving(large, archive_bytes_of_a_peer=1, silent_seconds=0) as port, ExitStack() as others:
        others.enter_context(stalled(port))
        while (refused := blocks(port, "127.0.0.1")) != TOO_MANY:
            assert refused["blocks"]["num_blocks"] == 11
            others.enter_context(stalled(port))  # the other one has not come to that yet, or was refused itself
        assert blocks(port, "127.0.0.2")["blocks"]["num_blocks"] == 11


def test_archives_have_so_much_memory_in_all():
    room = ArchiveRoom(Limits(archive_bytes=2, archive_bytes_of_a_peer=2, silent_seconds=0))
    with room.held("a", 1), room.held("b", 1):
        with pytest.raises(StoreUnavailable, match="Come again later"), room.held("c", 1):
            pass
        with pytest.raises(StoreUnavailable), room.held("a", 1):
            pass
    with room.held("c", 3):  # of an archive that is larger than all room there is one
        pass


def test_an_archive_that_is_not_read_is_cut_off(large: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(conversation, "SILENCE_SECONDS", 0.5)
    with serving(large, of_a_peer=1) as port, stalled(port):
        while not answered(port):
            pass


def test_who_sends_messages_that_nobody_has_asked_for_is_cut_off(tmp_path: Path):
    with serving(tmp_path) as port, stalled(port, frames=10_000) as one:
        assert rest(one) == b""
        assert answered(port)


def test_a_silent_conversation_gives_way_to_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serve, "CONVERSATIONS", {"/pull": 1, "/push": 1})

    def converse(port: int) -> ClientConnection:
        return connect(f"ws://127.0.0.1:{port}/pull", additional_headers={"x-odf-smtp-version": "1"})

    with serving(tmp_path, silent_seconds=0) as port, converse(port) as first, converse(port) as second:
        with pytest.raises(ConnectionClosed):
            first.recv()
        second.send("{}")
        assert second.recv()
