"""A source gives what is new in it, once, in order, and nothing leads the fetch elsewhere."""

import contextlib
import gzip
import io
import os
import socket
import zipfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dagster_versioned.errors import InvalidInput, ObjectNotFound, StorageError, StoreUnavailable
from dagster_versioned.odf.blocks.events import (
    CompressionFormat,
    EventTimeSourceFromPath,
    EventTimeSourceFromSystemTime,
    FetchStep,
    FetchStepContainer,
    FetchStepEthereumLogs,
    FetchStepFilesGlob,
    FetchStepMqtt,
    FetchStepUrl,
    MqttTopicSubscription,
    PrepStepDecompress,
    PrepStepPipe,
    RequestHeader,
    SourceCachingForever,
    SourceOrdering,
    SourceState,
)
from dagster_versioned.odf.ingest.fetch import CONTENT, ETAG, LAST_MODIFIED, FetchOptions, SourceFile, fetch
from dagster_versioned.odf.ingest.poll import prepare
from dagster_versioned.storage import public_network
from dagster_versioned.storage.http import HttpClient
from support.static_server import Request, answering, static_server

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NEW_YEAR = "Wed, 01 Jan 2020 00:00:00 GMT"


@pytest.fixture
def fetching(tmp_path: Path) -> FetchOptions:
    folder = tmp_path / "fetched"
    folder.mkdir()
    client = HttpClient(attempts=2, timeout=60)
    return FetchOptions(folder=folder, now=NOW, client=client, variables={"TOKEN": "s3cret"}, max_bytes=1000)


def contents(step, states, fetching) -> list[str]:
    return [found.file.path.read_text() for found in fetch(step, states, fetching)]


def test_a_url_is_fetched_again_when_its_server_says_that_it_changed(tmp_path: Path, fetching: FetchOptions):
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "a.csv").write_text("one")
    os.utime(folder / "a.csv", (1_577_836_800, 1_577_836_800))
    with static_server(folder) as url:
        step = FetchStepUrl(f"{url}/a.csv")
        (first,) = fetch(step, [], fetching)
        assert first.file.path.read_text() == "one"
        assert first.event_time == datetime(2020, 1, 1, tzinfo=UTC)
        assert first.state == SourceState("default", LAST_MODIFIED, NEW_YEAR)
        assert contents(step, [first.state], fetching) == []
        (folder / "a.csv").write_text("two")
        assert contents(step, [first.state], fetching) == ["two"]
        assert contents(FetchStepUrl(step.url, cache=SourceCachingForever()), [first.state], fetching) == []
        with pytest.raises(ObjectNotFound, match="HTTP 404"):
            contents(FetchStepUrl(f"{url}/b.csv"), [], fetching)


def test_an_etag_goes_before_a_time_and_bytes_tell_where_a_server_says_nothing(fetching: FetchOptions):
    served = {"body": b"one", "headers": {"ETag": '"1"', "Last_Modified": NEW_YEAR}}

    def respond(request: Request) -> None:
        if request.headers.get("If-None-Match") == served["headers"].get("ETag", "none"):
            request.reply(304)
        else:
            request.reply(200, served["body"], **served["headers"])

    with answering(respond) as url:
        step = FetchStepUrl(f"{url}/x")
        (first,) = fetch(step, [], fetching)
        assert (first.state.kind, first.state.value) == (ETAG, '"1"')
        assert contents(step, [first.state], fetching) == []
        served["headers"] = {}
        (silent,) = fetch(step, [first.state], fetching)
        assert silent.state.kind == CONTENT
        assert silent.event_time is None
        assert contents(step, [silent.state], fetching) == []
        served["body"] = b"two"
        assert contents(step, [silent.state], fetching) == ["two"]


def test_a_secret_is_filled_in_for_the_request_alone_and_does_not_follow_to_another_server(fetching: FetchOptions):
    seen: list[str | None] = []

    def other(request: Request) -> None:
        seen.append(request.headers.get("X-Token"))
        request.reply(200, b"there")

    with answering(other) as elsewhere:

        def respond(request: Request) -> None:
            seen.append(request.headers.get("X-Token"))
            request.reply(302, Location=f"{elsewhere}/y")

        with answering(respond) as url:
            step = FetchStepUrl(
                f"{url}/x?k=${{{{ env.TOKEN }}}}", headers=(RequestHeader("X-Token", "${{ env.TOKEN }}"),)
            )
            (found,) = fetch(step, [], fetching)
            assert seen == ["s3cret", None]
            assert "s3cret" not in found.file.name
            with pytest.raises(InvalidInput, match="variable 'HOME', which it was not given"):
                contents(FetchStepUrl(f"{url}/${{{{ env.HOME }}}}"), [], fetching)


def test_a_source_that_a_stranger_may_have_written_names_no_files_of_this_machine(
    fetching: FetchOptions, tmp_path: Path
):
    (tmp_path / "own.csv").write_text("mine")
    named: list[FetchStep] = [
        FetchStepUrl(f"file://{tmp_path}/own.csv"),
        FetchStepUrl(f"FILE://{tmp_path}/own.csv"),
        FetchStepUrl(f"${{{{ env.TOKEN }}}}://{tmp_path}/own.csv"),
        FetchStepFilesGlob(f"{tmp_path}/*.csv"),
    ]
    of_a_stranger = replace(fetching, local_files=False, variables={"TOKEN": "file"})
    for step in named:
        assert contents(step, [], replace(of_a_stranger, local_files=True)) == ["mine"]
        with pytest.raises(InvalidInput, match=r"names files of this machine.*Nothing was read.*--manifest"):
            contents(step, [], of_a_stranger)


def test_a_stranger_s_source_reaches_no_local_address(fetching: FetchOptions):
    asked: list[str] = []

    def respond(request: Request) -> None:
        asked.append(request.path)
        request.reply(200, b"internal")

    of_a_stranger = replace(fetching, local_files=False)
    with answering(respond) as url:
        port = url.rpartition(":")[2]
        hosts = ["127.0.0.1", "localhost", "127.1", "2130706433", "0.0.0.0", "[::ffff:127.0.0.1]"]
        for host in hosts:
            with pytest.raises(StorageError, match=r"address of this machine or its network.*--manifest"):
                contents(FetchStepUrl(f"http://{host}:{port}/secret"), [], of_a_stranger)
        assert asked == []
        step = FetchStepUrl(f"{url}/secret")
        assert contents(step, [], replace(of_a_stranger, local_addresses=True)) == ["internal"]
        assert contents(step, [], fetching) == ["internal"]


def test_a_name_that_resolves_to_another_address_the_second_time_does_not_pass(
    fetching: FetchOptions, monkeypatch: pytest.MonkeyPatch
):
    asked: list[str] = []
    resolved: list[str] = []
    real = socket.getaddrinfo

    def resolve(host, port, *arguments, **named):
        if host != "rebinding.example":
            return real(host, port, *arguments, **named)
        resolved.append(host)
        return real("93.184.215.14" if len(resolved) == 1 else "127.0.0.1", port, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    socket.getaddrinfo("rebinding.example", 80)  # whoever looks before the connection is made sees this one
    with answering(lambda request: asked.append(request.path)) as url:
        step = FetchStepUrl(f"http://rebinding.example:{url.rpartition(':')[2]}/")
        with pytest.raises(StorageError, match=r"'rebinding.example' is 127\.0\.0\.1, an address of this machine"):
            contents(step, [], replace(fetching, local_files=False))
    assert len(resolved) >= 2
    assert asked == []


def test_a_redirect_of_a_stranger_s_source_reaches_no_local_address(
    fetching: FetchOptions, monkeypatch: pytest.MonkeyPatch
):
    """The first server stands for one of the public network, as far as its address is asked for."""
    asked: list[str] = []
    with answering(lambda request: asked.append(request.path)) as inner:
        port = int(inner.rpartition(":")[2])
        first = answering(lambda request: request.reply(302, Location=f"http://[::ffff:127.0.0.1]:{port}/secret"))
        monkeypatch.setattr(public_network, "is_public", lambda address: address == "127.0.0.1")
        monkeypatch.setattr(public_network, "_is_here", lambda connected: False)
        with first as url, pytest.raises(StorageError, match=r"::ffff:127\.0\.0\.1.*an address of this machine"):
            contents(FetchStepUrl(url), [], replace(fetching, local_files=False))
    assert asked == []


def test_a_stranger_s_source_is_not_fetched_through_a_proxy(fetching: FetchOptions, monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []

    def respond(request: Request) -> None:
        asked.append(request.path)
        request.reply(200, b"through")

    with answering(respond) as proxy:
        monkeypatch.setenv("http_proxy", proxy)
        step = FetchStepUrl("http://intranet.example/secret")
        with pytest.raises(StorageError, match=r"proxy of the environment.*no_proxy"):
            contents(step, [], replace(fetching, local_files=False))
        assert asked == []
        assert contents(step, [], replace(fetching, local_files=False, local_addresses=True)) == ["through"]


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.100.100.200",
        "0.0.0.0",
        "255.255.255.255",
        "224.0.0.1",
        "168.63.129.16",
        "::1",
        "::",
        "fe80::1%eth0",
        "fd00:ec2::254",
        "fec0::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::5db8:d70e",
        "::ffff:0:93.184.215.14",
        "::93.184.215.14",
        "2002:7f00:1::",
        "2001:0:7f00:1::",
    ],
)
def test_an_address_that_is_not_of_the_public_network(address: str):
    assert not public_network.is_public(address)


@pytest.mark.parametrize(
    "address", ["93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c", "::ffff:93.184.215.14", "64:ff9b::5db8:d70e"]
)
def test_an_address_of_the_public_network(address: str):
    assert public_network.is_public(address)


@pytest.mark.parametrize(
    "name",
    ["Host", "Authorization", "Metadata", "Metadata-Flavor", "X-aws-ec2-metadata-token", "Cookie", "X-Forwarded-For"],
)
def test_headers_of_a_stranger_s_source_are_limited(fetching: FetchOptions, name: str):
    asked: list[str] = []

    def respond(request: Request) -> None:
        asked.append(request.headers.get("Accept", ""))
        request.reply(200, b"public")

    of_a_stranger = replace(fetching, local_files=False, local_addresses=True)
    with answering(respond) as url:
        step = FetchStepUrl(url, headers=(RequestHeader("Accept", "text/csv"), RequestHeader(name, "hunter2")))
        with pytest.raises(
            InvalidInput, match=f"sends the header '{name}'.*Nothing was fetched.*--manifest"
        ) as refused:
            contents(step, [], of_a_stranger)
        assert "hunter2" not in str(refused.value)
        assert asked == []
        assert contents(replace(step, headers=step.headers[:1]), [], of_a_stranger) == ["public"]
        assert asked == ["text/csv"]


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://host/x", "gopher://host/", "data:,x"])
def test_a_redirect_to_anything_but_http_is_refused(fetching: FetchOptions, target: str):
    with (
        answering(lambda request: request.reply(301, Location=target)) as url,
        pytest.raises(StorageError, match="which is refused"),
    ):
        contents(FetchStepUrl(f"{url}/x"), [], fetching)
    assert not list(fetching.folder.iterdir())


def test_redirects_that_never_end_and_bodies_that_never_end_do(fetching: FetchOptions):
    with (
        answering(lambda request: request.reply(301, Location="/again")) as url,
        pytest.raises(StorageError, match="leads on more than"),
    ):
        contents(FetchStepUrl(f"{url}/x"), [], fetching)

    def endless(request: Request) -> None:
        request.reply(200, Content_Length=str(10**11))
        while True:
            request.wfile.write(bytes(10_000))

    with answering(endless) as url, pytest.raises(StorageError, match="more than 1000 bytes"):
        contents(FetchStepUrl(f"{url}/x"), [], fetching)


def test_an_answer_that_breaks_off_is_asked_for_anew(fetching: FetchOptions):
    bodies = [b"cut", b"whole"]
    with answering(lambda request: request.reply(200, bodies.pop(0), Content_Length="5")) as url:
        assert contents(FetchStepUrl(f"{url}/x"), [], fetching) == ["whole"]
    with (
        answering(lambda request: request.reply(200, b"cut", Content_Length="5")) as url,
        pytest.raises(StoreUnavailable, match="broke off"),
    ):
        contents(FetchStepUrl(f"{url}/x"), [], fetching)


def test_a_url_with_a_password_or_another_scheme_is_refused_and_not_repeated(fetching: FetchOptions):
    with pytest.raises(InvalidInput, match="holds a user or a password") as refused:
        contents(FetchStepUrl("https://me:hunter2@example.com/x"), [], fetching)
    assert "hunter2" not in str(refused.value)
    with pytest.raises(InvalidInput, match="not http or https"):
        contents(FetchStepUrl("gopher://example.com/x"), [], fetching)


def test_a_file_of_this_machine_is_known_by_its_bytes(tmp_path: Path, fetching: FetchOptions):
    (tmp_path / "a b.csv").write_text("one")
    step = FetchStepUrl((tmp_path / "a b.csv").as_uri(), EventTimeSourceFromSystemTime())
    (found,) = fetch(step, [], fetching)
    assert found.event_time == NOW
    os.utime(tmp_path / "a b.csv", (0, 0))
    assert contents(step, [found.state], fetching) == []
    (tmp_path / "a b.csv").write_text("two")
    assert contents(step, [found.state], fetching) == ["two"]
    with pytest.raises(InvalidInput, match="is not there"):
        contents(FetchStepUrl((tmp_path / "c").as_uri()), [], fetching)


def test_files_are_fetched_in_order_each_once(tmp_path: Path, fetching: FetchOptions):
    for name in ("b-2021-02-01.csv", "a-2022-01-01.csv", "c-2020-01-01.csv"):
        (tmp_path / name).write_text(name[0])
    pattern = EventTimeSourceFromPath(r"-(\d{4}-\d\d-\d\d)")
    by_name = FetchStepFilesGlob(str(tmp_path / "*.csv"), pattern)
    by_time = FetchStepFilesGlob(str(tmp_path / "*.csv"), pattern, order=SourceOrdering.BY_EVENT_TIME)
    assert contents(by_name, [], fetching) == ["a", "b", "c"]
    found = list(fetch(by_time, [], fetching))
    assert [one.file.path.read_text() for one in found] == ["c", "b", "a"]
    assert found[1].event_time == datetime(2021, 2, 1, tzinfo=UTC)
    states = [one.state for one in found]
    assert contents(by_time, states[:1], fetching) == ["b", "a"]
    assert contents(by_time, states, fetching) == []
    (tmp_path / "d-2021-06-01.csv").write_text("d")
    assert contents(by_name, states, fetching) == ["d"]
    with pytest.raises(InvalidInput, match=r"d-2021-06-01\.csv comes before 'a-2022-01-01\.csv', which was added"):
        contents(by_time, states, fetching)


def test_an_event_time_that_a_path_does_not_hold_is_refused(tmp_path: Path, fetching: FetchOptions):
    (tmp_path / "x.csv").write_text("x")
    step = FetchStepFilesGlob(str(tmp_path / "*.csv"), EventTimeSourceFromPath(r"(\d+)\.csv", "%Y"))
    with pytest.raises(InvalidInput, match="does not match"):
        contents(step, [], fetching)
    (tmp_path / "x.csv").rename(tmp_path / "99999.csv")
    with pytest.raises(InvalidInput, match="'99999' is not of the form '%Y'"):
        contents(step, [], fetching)
    (tmp_path / "99999.csv").rename(tmp_path / "1999.csv")
    (found,) = fetch(step, [], fetching)
    assert found.event_time == datetime(1999, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "step",
    [
        FetchStepContainer("image"),
        FetchStepMqtt(host="host", port=1, topics=(MqttTopicSubscription("t"),)),
        FetchStepEthereumLogs(),
    ],
)
def test_what_is_not_fetched_here_is_refused_in_a_sentence(step, fetching: FetchOptions):
    with pytest.raises(InvalidInput, match="recorded but not fetched here"):
        fetch(step, [], fetching)


# --- unpacking -------------------------------------------------------------------------------------------------------


def zipped(**members: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return packed.getvalue()


def unpacked(tmp_path: Path, data: bytes, *steps: PrepStepDecompress | PrepStepPipe) -> SourceFile:
    (tmp_path / "packed").write_bytes(data)
    return prepare(SourceFile("x.packed", tmp_path / "packed"), steps, tmp_path, max_bytes=10_000)


GZIP = PrepStepDecompress(CompressionFormat.GZIP)
ZIP = PrepStepDecompress(CompressionFormat.ZIP)


def test_files_are_unpacked_step_by_step(tmp_path: Path):
    inner = zipped(readme=b"no", data=b"a,b")
    found = unpacked(tmp_path, gzip.compress(inner), GZIP, PrepStepDecompress(CompressionFormat.ZIP, "d*"))
    assert found.path.read_bytes() == b"a,b"
    assert found.name == "x.packed#data"
    two_members = gzip.compress(b"a") + gzip.compress(b"b")
    assert unpacked(tmp_path, two_members, GZIP).path.read_bytes() == b"ab"


@pytest.mark.parametrize("name", ["../../../outside", "/tmp/outside", "a/../../outside", "C:\\outside"])
def test_an_archive_names_no_place_that_is_written_to(tmp_path: Path, name: str):
    (tmp_path / "in/here").mkdir(parents=True)
    before = set(tmp_path.rglob("*"))
    found = unpacked(tmp_path / "in/here", zipped(**{name: b"a,b"}), ZIP)
    assert found.path.read_bytes() == b"a,b"
    assert set(tmp_path.rglob("*")) - before == {tmp_path / "in/here/packed", found.path}
    assert found.path.parent == tmp_path / "in/here"


def test_a_link_in_an_archive_is_its_text(tmp_path: Path):
    packed = io.BytesIO()
    link = zipfile.ZipInfo("link")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(link, "/etc/passwd")
    found = unpacked(tmp_path, packed.getvalue(), ZIP)
    assert not found.path.is_symlink()
    assert found.path.read_text() == "/etc/passwd"


@pytest.mark.parametrize("step", [GZIP, ZIP], ids=["gzip", "zip"])
def test_an_archive_with_any_byte_changed_is_read_as_it_was_or_refused(tmp_path: Path, step: PrepStepDecompress):
    packed = gzip.compress(b"hello world", mtime=0) if step is GZIP else zipped(a=b"hello world")
    for at in range(len(packed)):
        damaged = bytearray(packed)
        damaged[at] ^= 0xFF
        with contextlib.suppress(InvalidInput):
            assert unpacked(tmp_path, bytes(damaged), step).path.read_bytes() == b"hello world"


@pytest.mark.parametrize(
    ("data", "step", "reason"),
    [
        (b"plain", GZIP, "cannot be unpacked as Gzip"),
        (gzip.compress(b"whole" * 1000, mtime=0)[:-12], GZIP, "cannot be unpacked as Gzip"),
        (b"plain", ZIP, "cannot be unpacked as Zip"),
        (zipped(a=b"", b=b""), ZIP, r"2 members, and one is to be read; there are 'a', 'b'"),
        (zipped(a=b""), PrepStepDecompress(CompressionFormat.ZIP, "c"), "0 members that match 'c'"),
        (gzip.compress(b"", mtime=0), PrepStepDecompress(CompressionFormat.GZIP, "c"), "has no members"),
        (gzip.compress(bytes(10**6), mtime=0), GZIP, "larger than 10000 bytes"),
        (zipped(a=bytes(10**6)), ZIP, "larger than 10000 bytes"),
        (b"", PrepStepPipe(("rm", "-rf", "/")), "recorded but not run here"),
    ],
    ids=range(9),  # not the bytes themselves: archives hold the time at which they were made
)
def test_what_cannot_or_must_not_be_unpacked_is_refused(tmp_path: Path, data: bytes, step, reason: str):
    with pytest.raises(InvalidInput, match=reason):
        unpacked(tmp_path, data, step)
