"""A folder behind HTTP is read like any store, is never written, and its server is not trusted."""

import pickle
import socket
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from dagster_versioned.errors import (
    AccessDenied,
    IntegrityError,
    InvalidInput,
    InvalidName,
    ObjectNotFound,
    StorageError,
)
from dagster_versioned.storage import LocalStore
from dagster_versioned.storage.http import HttpClient
from dagster_versioned.storage.http_store import HttpStore
from support.names import INSIDE, OUTSIDE, outside_is_public, resolving
from support.static_server import Request, answering, static_server

DATA = bytes(range(256)) * 40_000  # more than a few chunks


@pytest.fixture
def patient() -> HttpClient:
    return HttpClient(attempts=3, timeout=60)


def test_objects_are_read_as_from_the_folder_that_is_served(tmp_path: Path):
    folder = LocalStore(tmp_path)
    folder.put("a/b c.bin", DATA)
    with static_server(tmp_path) as url:
        store = pickle.loads(pickle.dumps(HttpStore(url).subfolder("a")))
        assert store.get("b c.bin") == DATA
        assert store.get_range("b c.bin", 100_001, 300) == DATA[100_001:100_301]
        assert store.get_range("b c.bin", len(DATA) - 5, 300) == DATA[-5:]
        assert b"".join(store.chunks("b c.bin", 7)) == DATA[7:]
        assert store.head("b c.bin").size == len(DATA)
        with pytest.raises(ObjectNotFound):
            store.get("c.bin")
        with pytest.raises(InvalidName):
            store.get("../secret")


def test_a_body_that_breaks_off_is_taken_up_where_it_broke(patient: HttpClient):
    asked: list[str | None] = []

    def respond(request: Request) -> None:
        span = request.headers.get("Range")
        asked.append(span)
        start = int(span.removeprefix("bytes=").rstrip("-")) if span else 0
        body = DATA[start:]
        headers = {"Content_Range": f"bytes {start}-{len(DATA) - 1}/{len(DATA)}"} if span else {}
        request.reply(206 if span else 200, body[:4_000_000], Content_Length=str(len(body)), **headers)

    with answering(respond) as url:
        assert HttpStore(url, client=patient).get("x") == DATA
    assert asked[0] is None
    assert len(asked) == 3


def test_a_server_that_ignores_ranges_is_read_from_the_start(patient: HttpClient):
    bodies = [DATA[:3_000_000], DATA]

    def respond(request: Request) -> None:
        request.reply(200, bodies.pop(0), Content_Length=str(len(DATA)))

    with answering(respond) as url:
        assert b"".join(HttpStore(url, client=patient).chunks("x")) == DATA


def test_an_object_without_end_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dagster_versioned.storage.http_store.WHOLE_BYTES", 1000)

    def endless(request: Request) -> None:
        request.reply(200, Content_Length=str(10**11))
        while True:
            request.wfile.write(bytes(100_000))

    with answering(endless) as url:
        assert HttpStore(url).get_range("x", 5, 10) == bytes(10)
        with pytest.raises(IntegrityError, match="more than 1000 bytes"):
            HttpStore(url).get("x")


@pytest.mark.parametrize(("status", "error"), [(404, ObjectNotFound), (403, AccessDenied), (500, StorageError)])
def test_statuses_are_the_errors_of_any_store(patient: HttpClient, status: int, error: type[Exception]):
    with answering(lambda request: request.reply(status)) as url, pytest.raises(error, match=f"HTTP {status}"):
        HttpStore(url, client=patient).get("x")


def test_nothing_is_written_and_nothing_listed(tmp_path: Path):
    store = HttpStore("http://127.0.0.1:9/x")
    for write in (
        lambda: store.put("a", b""),
        lambda: store.put_file("a", tmp_path),
        lambda: store.put_chunks("a", []),
        lambda: store.put_if_absent("a", b""),
        lambda: store.put_if_match("a", b"", None),
        lambda: store.copy("a", "b"),
        lambda: store.delete(["a"]),
    ):
        with pytest.raises(AccessDenied, match="read only"):
            write()
    with pytest.raises(StorageError, match="cannot be listed"):
        store.list()


@pytest.mark.parametrize("url", ["ftp://host/", "http://", "http://me:hunter2@host/", "http://host/?hunter2=1", "x"])
def test_a_url_that_is_no_folder_is_refused_and_no_secret_repeated(url: str):
    with pytest.raises(InvalidInput) as refused:
        HttpStore(url)
    assert "hunter2" not in str(refused.value)


# --- headers, proxies and redirects ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [("X-Token", "s3cret\n"), ("X-Token", "s3cret\u2026"), ("X Token", "s3cret"), ("X:\r\nY", "s3cret")],
)
def test_a_header_that_cannot_be_sent_is_named_and_its_value_is_not_repeated(
    patient: HttpClient, name: str, value: str
):
    with (
        pytest.raises(InvalidInput, match="characters that no header may have") as refused,
        patient.open("http://127.0.0.1:9/x", {name: value}),
    ):
        pass
    assert "s3cret" not in str(refused.value)


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


def test_the_proxy_of_the_environment_is_asked(patient: HttpClient, no_proxies: pytest.MonkeyPatch):
    asked: list[tuple[str, str | None]] = []

    def proxy(request: Request) -> None:
        asked.append((request.path, request.headers.get("Proxy-Authorization")))
        request.reply(200, DATA)

    def nobody(*_: object, **__: object) -> NoReturn:
        """What a server of names says, without asking one."""
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with answering(proxy) as url, answering(lambda request: request.reply(200, b"itself")) as here:
        no_proxies.setenv("http_proxy", url.replace("//", "//ada:p%40ss@"))
        assert HttpStore("http://data.example.test/cities", client=patient).get("refs/head") == DATA
        assert asked == [("http://data.example.test/cities/refs/head", "Basic YWRhOnBAc3M=")]
        assert HttpStore(here, client=patient).get("x") == b"itself"
        no_proxies.setenv("no_proxy", "example.test")
        no_proxies.setattr(socket, "getaddrinfo", nobody)
        with pytest.raises(StorageError, match="did not answer") as refused:
            HttpStore("http://data.example.test/cities", client=HttpClient(attempts=1)).get("refs/head")
        assert "p%40ss" not in str(refused.value)
    assert len(asked) == 1


def test_a_proxy_of_another_kind_is_refused_and_its_password_not_repeated(
    patient: HttpClient, no_proxies: pytest.MonkeyPatch
):
    no_proxies.setenv("ALL_PROXY", "socks5://ada:hunter2@proxy:1080")
    with pytest.raises(InvalidInput, match=r"the proxy 'socks5://proxy:1080'") as refused:
        HttpStore("http://data.example.test/", client=patient).get("x")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "target", ["http://127.0.0.1:9/x", "http://169.254.169.254/latest", "http://[::1]/x", "http://10.0.0.1/"]
)
def test_who_is_elsewhere_cannot_lead_into_this_network(
    patient: HttpClient, no_proxies: pytest.MonkeyPatch, target: str
):
    with answering(lambda request: request.reply(302, Location=target)) as url:
        no_proxies.setenv("http_proxy", url)  # so that an address elsewhere answers
        with pytest.raises(StorageError, match="an address of this machine or its network"):
            HttpStore("http://8.8.8.8/cities", client=patient).get("x")


def is_outside(n: int) -> list[str]:
    return [OUTSIDE]


def rebinds(n: int) -> list[str]:
    return [OUTSIDE if n == 1 else INSIDE]


def is_both(n: int) -> list[str]:
    return [OUTSIDE, INSIDE]


@pytest.mark.parametrize(("name", "found"), [("other", rebinds), ("other", is_both), ("first", is_both)])
@pytest.mark.parametrize("verb", ["GET", "PUT", "redirect"])
def test_who_is_elsewhere_leads_to_no_socket_of_this_network(
    no_proxies: pytest.MonkeyPatch, verb: str, name: str, found: Callable[[int], list[str]]
):
    asked: list[str] = []
    outside_is_public(no_proxies)
    resolving(no_proxies, **{"first": is_outside, name: found})
    with answering(lambda request: asked.append(request.path), INSIDE) as inside:
        target = f"http://{name}.example:{inside.rpartition(':')[2]}/secret"
        client = HttpClient(attempts=1)
        with answering(lambda request: request.reply(302, Location=target)) as url:
            first = url.replace(OUTSIDE, "first.example")
            client.connect(first).close()  # as who opens a channel: it is known to be elsewhere
            ways = {
                "GET": lambda: b"".join(client.chunks(target, named_by=first)),
                "PUT": lambda: client.put(target, lambda: iter([b"x"]), 1, named_by=first),
                "redirect": lambda: HttpStore(first, client=client).get("x"),
            }
            with pytest.raises(StorageError, match="address of this machine or its network"):
                ways[verb]()
    assert asked == []


def test_who_named_an_address_inside_may_be_led_to_others_there(no_proxies: pytest.MonkeyPatch):
    outside_is_public(no_proxies)
    with (
        answering(lambda request: request.reply(200, DATA), INSIDE) as other,
        answering(lambda request: request.reply(302, Location=f"{other}/x"), "127.0.0.3") as first,
    ):
        assert HttpStore(first).get("x") == DATA


def test_a_socket_for_another_protocol_is_of_the_public_network_where_that_alone_is_allowed():
    with (
        answering(lambda request: request.reply(200)) as url,
        pytest.raises(StorageError, match="address of this machine or its network"),
    ):
        HttpClient().public().connect(url)
