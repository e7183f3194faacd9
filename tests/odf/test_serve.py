"""A server of datasets goes on serving others, whatever strangers hold open, and answers to its own names alone."""

import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from dagster_versioned.odf.sharing import serve
from dagster_versioned.odf.sharing.serve import Limits, server
from dagster_versioned.storage import LocalStore


@contextmanager
def serving(folder: Path, **limits: Any) -> Generator[int]:
    """The port of a server of a folder that has a head."""
    LocalStore(folder).put("refs/head", b"f1620")
    with server(LocalStore(folder), port=0, limits=Limits(**limits)) as made:
        threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield made.server_address[1]
        made.shutdown()


def ask(port: int, host: str = "localhost") -> bytes:
    """The answer to who asks for the head."""
    with socket.create_connection(("127.0.0.1", port)) as one:
        one.sendall(f"GET /refs/head HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        return rest(one)


def rest(one: socket.socket) -> bytes:
    """What comes until the server closes a connection, or breaks it off."""
    found = b""
    with suppress(ConnectionResetError):
        while data := one.recv(2**20):
            found += data
    return found


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
        serving(tmp_path, head_seconds=60, bytes_a_second=-(2**19)) as port,  # over as soon as the answer begins
        socket.create_connection(("127.0.0.1", port)) as one,
    ):
        before = set(threading.enumerate())
        one.sendall(b"GET /data/x HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert one.recv(5) == b"HTTP/"
        while set(threading.enumerate()) - before:  # that of the connection
            threading.Event().wait(0.05)
        assert len(rest(one)) < 2**25


@pytest.mark.parametrize("limit", ["connections", "of_a_peer"])
def test_so_many_connections_are_open_and_no_more(tmp_path: Path, limit: str):
    with serving(tmp_path, **{limit: 2}) as port:
        held = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
        assert rest(held[2]) == b""
        held[0].close()
        answer = b""
        while not answer:  # until the server has seen that one is closed
            try:
                answer = ask(port)
            except ConnectionError:
                continue
        assert answer.endswith(b"f1620")


def test_a_silent_conversation_gives_way_to_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serve, "CONVERSATIONS", {"/pull": 1, "/push": 1})

    def converse(port: int) -> ClientConnection:
        return connect(f"ws://127.0.0.1:{port}/pull", additional_headers={"x-odf-smtp-version": "1"})

    with serving(tmp_path, silent_seconds=0) as port, converse(port) as first, converse(port) as second:
        with pytest.raises(ConnectionClosed):
            first.recv()
        second.send("{}")
        assert second.recv()
