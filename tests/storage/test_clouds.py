"""What the stores of Azure and of Google do when the server, or the way to it, does not do its part."""

import json
import multiprocessing
import pickle
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from dagster_versioned.errors import (
    AccessDenied,
    AlreadyExists,
    InvalidInput,
    ObjectNotFound,
    PreconditionFailed,
    StorageError,
    StoreUnavailable,
)
from dagster_versioned.storage import CloudOptions, CloudStore, Location, open_store
from support.azurite import ACCOUNT, AzureServer
from support.faulty_proxy import (
    CUT,
    DROP_AFTER,
    DROP_BEFORE,
    FAIL_AFTER,
    NO_CONDITION,
    FaultyProxy,
    answer,
    faulty_proxy,
)
from support.gcs_server import GcsServer, service_account
from support.store_verbs import of_bucket, written

FEW_ATTEMPTS = CloudOptions(attempts=3, part_bytes=5 * 1024**2)
UNAVAILABLE = answer(503, "ServerBusy")
CLOUDS = [Location.parse("gs://bucket/prefix"), Location.parse(f"az://container/prefix?account={ACCOUNT}")]


def puts(method: str, path: str) -> bool:
    return method == "PUT"


def every_verb(store: CloudStore, file: Path) -> list[Callable[[], object]]:
    return [*of_bucket(store, file), lambda: store.put_chunks("key", [b"data"])]


@pytest.fixture(scope="module")
def container(azurite: AzureServer) -> str:
    return azurite.new_container()


@pytest.fixture(scope="module")
def bucket(gcs_server: GcsServer) -> str:
    return gcs_server.new_bucket()


@pytest.fixture(
    params=[
        pytest.param("azure", marks=[pytest.mark.azure, pytest.mark.slow]),
        pytest.param("gcs", marks=pytest.mark.slow),  # which is asked again after a second, as Google wants
    ]
)
def cloud(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def direct(request: pytest.FixtureRequest, cloud: str, prefix: str) -> CloudStore:
    """Past the proxy."""
    if cloud == "azure":
        return request.getfixturevalue("azurite").store(request.getfixturevalue("container"), prefix)
    return request.getfixturevalue("gcs_server").store(request.getfixturevalue("bucket"), prefix)


@pytest.fixture
def proxy(request: pytest.FixtureRequest, cloud: str) -> Iterator[FaultyProxy]:
    server = request.getfixturevalue("azurite" if cloud == "azure" else "gcs_server")
    with faulty_proxy(server.endpoint_url.removesuffix(f"/{ACCOUNT}")) as proxy:
        yield proxy


@pytest.fixture
def store(request: pytest.FixtureRequest, cloud: str, proxy: FaultyProxy, prefix: str) -> CloudStore:
    """Through the proxy."""
    if cloud == "azure":
        through = replace(request.getfixturevalue("azurite"), endpoint_url=f"{proxy.endpoint_url}/{ACCOUNT}")
        return through.store(request.getfixturevalue("container"), prefix, FEW_ATTEMPTS)
    through = replace(request.getfixturevalue("gcs_server"), endpoint_url=proxy.endpoint_url)
    return through.store(request.getfixturevalue("bucket"), prefix, FEW_ATTEMPTS)


class TestOnAServer:
    @pytest.mark.parametrize("lost", [DROP_AFTER, FAIL_AFTER])
    @pytest.mark.parametrize("attempts", [1, 2])
    def test_a_create_that_landed_succeeds(
        self, store: CloudStore, direct: CloudStore, proxy: FaultyProxy, lost: str, attempts: int
    ):
        proxy.set(*[lost] * attempts, on=puts)
        info = store.put_if_absent("log/0", b"mine")
        assert info == direct.head("log/0")
        assert direct.get("log/0") == b"mine"
        with pytest.raises(AlreadyExists):
            store.put_if_absent("log/0", b"mine")

    @pytest.mark.parametrize("lost", [DROP_AFTER, FAIL_AFTER])
    @pytest.mark.parametrize("attempts", [1, 3])
    def test_a_swap_that_landed_succeeds(
        self, store: CloudStore, direct: CloudStore, proxy: FaultyProxy, lost: str, attempts: int
    ):
        etag = direct.put("head", b"old").etag
        proxy.set(*[lost] * attempts, on=puts)
        info = store.put_if_match("head", b"new", etag)
        assert info == direct.head("head")
        assert direct.get("head") == b"new"
        with pytest.raises(PreconditionFailed):
            store.put_if_match("head", b"new", etag)

    @pytest.mark.parametrize("data", [b"theirs", b"mine"])
    def test_a_create_that_another_won_is_a_conflict_even_with_equal_bytes(
        self, store: CloudStore, direct: CloudStore, proxy: FaultyProxy, data: bytes
    ):
        pending = [lambda: direct.put_if_absent("log/0", data)]
        proxy.meanwhile = lambda: pending.pop()() if pending else None
        proxy.set(DROP_BEFORE, on=puts)
        with pytest.raises(AlreadyExists):
            store.put_if_absent("log/0", b"mine")
        assert direct.get("log/0") == data

    @pytest.mark.parametrize("fault", [DROP_BEFORE, UNAVAILABLE], ids=["dropped", "503"])
    def test_what_never_landed_is_unavailable(
        self, store: CloudStore, direct: CloudStore, proxy: FaultyProxy, fault: object
    ):
        etag = direct.put("head", b"old").etag
        for attempt in (
            lambda: store.put_if_absent("log/0", b"mine"),
            lambda: store.put_if_match("head", b"mine", etag),
        ):
            proxy.set(fault, for_ever=True, on=puts)
            with pytest.raises(StoreUnavailable, match="may or may not have landed"):
                attempt()
        assert [info.key for info in direct.list()] == ["head"]
        assert direct.get("head") == b"old"

    def test_every_verb_outlasts_a_short_fault(
        self, store: CloudStore, direct: CloudStore, proxy: FaultyProxy, file: Path
    ):
        for verb in every_verb(store, file):
            direct.put("key", b"data")
            proxy.set(UNAVAILABLE)
            with suppress(AlreadyExists, PreconditionFailed):  # there is an object
                verb()
            assert len(proxy.seen) >= 2

    @pytest.mark.parametrize(
        "name", ["metadata", "identity", "credentials", "ContainerNotFound", "status: 404", "Decode"]
    )
    def test_a_key_that_reads_like_an_error_is_not_taken_for_one(
        self, store: CloudStore, direct: CloudStore, proxy: FaultyProxy, name: str
    ):
        key = f"token request/{name}"
        proxy.set(DROP_AFTER, on=puts)
        assert store.put_if_absent(key, b"mine") == direct.head(key)
        with pytest.raises(ObjectNotFound):
            store.get(f"{key} of another")
        proxy.set(DROP_BEFORE, for_ever=True)
        for attempt in (lambda: store.get(key), lambda: store.put_if_absent(key, b"mine")):
            with pytest.raises(StoreUnavailable, match="may or may not have landed"):
                attempt()

    @pytest.mark.parametrize("size", [1000, 5_000_000])
    def test_a_body_that_breaks_off_is_read_again(
        self, store: CloudStore, direct: CloudStore, proxy: FaultyProxy, size: int
    ):
        data = bytes(range(250)) * (size // 250)
        direct.put("part", data)
        for read in (lambda: store.get("part"), lambda: store.get_range("part", 0, size)):
            proxy.set(CUT, on=lambda method, path: method == "GET")
            assert read() == data
            assert len(proxy.seen) > 1

    def test_what_a_source_of_chunks_raises_is_passed_on(self, direct: CloudStore):
        def chunks() -> Iterator[bytes]:
            yield bytes(5 * 1024**2)
            raise ZeroDivisionError("the caller's own")

        direct.put("part", b"old")
        with pytest.raises(ZeroDivisionError, match="the caller's own"):
            direct.put_chunks("part", chunks())
        assert direct.get("part") == b"old"


@pytest.mark.azure
@pytest.mark.slow
class TestOnAzurite:
    @pytest.fixture
    def cloud(self) -> str:
        return "azure"

    def test_a_server_that_ignores_conditions_is_refused(
        self, azurite: AzureServer, container: str, prefix: str, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
    ):
        # With the account's key the conditions are signed, so that the proxy could not take them out.
        monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
        monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", azurite.sas_token)
        store = AzureServer(f"{proxy.endpoint_url}/{ACCOUNT}", azurite.key).store(container, prefix, FEW_ATTEMPTS)
        etag = store.put("head", b"old").etag
        proxy.set(NO_CONDITION, for_ever=True)
        with pytest.raises(StorageError, match=r"\(If-None-Match\).*created 'log/0' again") as raised:
            store.put_if_absent("log/0", b"mine")
        with pytest.raises(StorageError, match=r"\(If-Match\).*replaced 'head' twice"):
            store.put_if_match("head", b"new", etag)
        assert "sig=" not in written(raised.value)
        proxy.set()
        etag = store.put_if_match("head", b"newer", store.head("head").etag).etag
        store.put_if_absent("log/1", b"mine")
        proxy.set()
        store.put_if_match("head", b"newest", etag)
        store.put_if_absent("log/2", b"mine")
        assert proxy.seen == ["PUT", "PUT"]  # looked at once

    def test_a_token_that_is_no_good_is_denied_and_not_shown(
        self, azurite: AzureServer, container: str, file: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
        signature = azurite.sas_token.rpartition("sig=")[2]
        monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", azurite.sas_token.replace("sp=rwdlac", "sp=rwdlacx"))
        store = azurite.store(container)
        for verb in every_verb(store, file):
            with pytest.raises(AccessDenied) as raised:
                verb()
            assert signature not in written(raised.value)

    def test_a_forked_child_does_not_wait_for_ever(self, direct: CloudStore):
        direct.put("key", b"data")
        context = multiprocessing.get_context("fork")
        results = context.SimpleQueue()
        child = context.Process(target=_read_in_a_child, args=(direct, results))
        child.start()
        child.join(60)
        assert child.exitcode == 0
        assert re.search("forked.*spawn", results.get())

    def test_a_missing_container_is_not_a_missing_object(self, azurite: AzureServer, file: Path):
        store = azurite.store("no-such-container")
        for verb in every_verb(store, file):
            with pytest.raises(StorageError, match="container 'no-such-container' does not exist") as raised:
                verb()
            assert not isinstance(raised.value, ObjectNotFound)

    def test_a_wrong_key_is_denied_and_not_shown(
        self, azurite: AzureServer, container: str, file: Path, monkeypatch: pytest.MonkeyPatch
    ):
        wrong = "aHVudGVyMmh1bnRlcjI="
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", wrong)
        store = azurite.store(container)
        for verb in every_verb(store, file):
            with pytest.raises(AccessDenied) as raised:
                verb()
            assert wrong not in written(raised.value)

    def test_one_that_was_opened_by_its_uri_reads_what_the_other_wrote(
        self, direct: CloudStore, container: str, azurite
    ):
        direct.put("a/b", b"data")
        prefix = direct.uri.rpartition("/")[2]
        store = open_store(azurite.location(container, prefix).uri)
        assert store.get("a/b") == b"data"
        assert pickle.loads(pickle.dumps(store)).get("a/b") == b"data"


class TestGenerations:
    @pytest.fixture
    def cloud(self) -> str:
        return "gcs"

    def test_a_server_that_ignores_generations_is_refused(
        self, store: CloudStore, direct: CloudStore, proxy: FaultyProxy
    ):
        etag = direct.put("head", b"old").etag
        proxy.set(NO_CONDITION, for_ever=True)
        with pytest.raises(StorageError, match=r"\(x-goog-if-generation-match\).*created 'log/0' again"):
            store.put_if_absent("log/0", b"mine")
        with pytest.raises(StorageError, match=r"\(x-goog-if-generation-match\).*replaced 'head' twice"):
            store.put_if_match("head", b"new", etag)
        proxy.set()
        etag = store.put_if_match("head", b"newer", store.head("head").etag).etag
        store.put_if_absent("log/1", b"mine")
        proxy.set()
        store.put_if_match("head", b"newest", etag)
        store.put_if_absent("log/2", b"mine")
        assert proxy.seen == ["HEAD", "PUT", "PUT"]  # looked at once; a replacement asks for the generation first

    def test_a_check_whose_answer_is_lost_is_made_again(
        self, store: CloudStore, direct: CloudStore, proxy: FaultyProxy
    ):
        for fault in (DROP_BEFORE, DROP_AFTER):
            etag = direct.put("head", b"old").etag
            proxy.set(NO_CONDITION, fault, on=puts)
            store.put_if_match("head", b"new", etag)
        proxy.set(NO_CONDITION, for_ever=True)
        with pytest.raises(StorageError, match="ignores the condition"):
            store.put_if_match("head", b"newer", direct.head("head").etag)

    def test_an_object_that_was_put_anew_with_the_same_bytes_is_another_one(
        self, store: CloudStore, direct: CloudStore, proxy: FaultyProxy
    ):
        etag = direct.put("head", b"old").etag
        pending = [lambda: direct.put("head", b"old")]
        proxy.meanwhile = lambda: pending.pop()() if pending else None
        proxy.set(DROP_BEFORE, on=puts)
        with pytest.raises(PreconditionFailed):
            store.put_if_match("head", b"new", etag)
        assert direct.get("head") == b"old"
        store.put_if_match("head", b"new", etag)


def _read_in_a_child(store: CloudStore, results) -> None:
    try:
        results.put(store.get("key"))
    except StorageError as error:
        results.put(str(error))


def test_nobody_at_the_endpoint(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "aHVudGVyMmh1bnRlcjI=")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        server = AzureServer(f"http://127.0.0.1:{unused.getsockname()[1]}/{ACCOUNT}", "")
        store = server.store("container", options=CloudOptions(attempts=2))
        for verb in every_verb(store, file):
            with pytest.raises(StoreUnavailable, match="may or may not have landed"):
                verb()


@pytest.mark.parametrize("location", CLOUDS, ids=["gcs", "azure"])
def test_no_credentials_at_all_are_said(location: Location, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/nonexistent")  # where gcloud keeps a login
    for name in ("AZURE_STORAGE_ACCOUNT_KEY", "GOOGLE_SERVICE_ACCOUNT_KEY"):  # of the servers of these tests
        monkeypatch.delenv(name, raising=False)
    store = CloudStore(location, options=CloudOptions(attempts=1, timeout=5))
    for verb in (lambda: store.get("key"), lambda: store.put_if_absent("key", b"data")):
        with pytest.raises(AccessDenied, match=r"no usable credentials.*set (AZURE|GOOGLE)"):
            verb()


@pytest.mark.parametrize(
    ("name", "value", "location"),
    [
        ("AZURE_STORAGE_ACCOUNT_KEY", "hunter2 is no base64", CLOUDS[1]),
        ("GOOGLE_SERVICE_ACCOUNT_KEY", '{"private_key": "hunter2"}', CLOUDS[0]),
        ("GOOGLE_SERVICE_ACCOUNT", "/nonexistent/hunter2", CLOUDS[0]),
    ],
)
def test_settings_that_are_none_are_refused_and_not_shown(
    name: str, value: str, location: Location, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("GOOGLE_SERVICE_ACCOUNT_KEY", raising=False)  # of the server of these tests
    monkeypatch.setenv(name, value)
    with pytest.raises(AccessDenied) as raised:
        CloudStore(location).get("key")
    assert "hunter2" not in written(raised.value)


@pytest.mark.parametrize("status", [401, 403])
def test_a_key_that_google_does_not_take_is_denied_and_not_shown(
    status: int, file: Path, monkeypatch: pytest.MonkeyPatch
):
    account = json.loads(service_account()) | {"private_key_id": "hunter2", "client_email": "hunter2@example.com"}
    pem = account["private_key"]
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(account))
    with faulty_proxy("http://127.0.0.1:9") as google:
        google.set(answer(status, "AccessDenied"), for_ever=True)
        location = Location(type="gcs", root="bucket", endpoint_url=google.endpoint_url)
        for verb in every_verb(CloudStore(location, options=FEW_ATTEMPTS), file):
            google.seen.clear()
            with pytest.raises(AccessDenied, match=f"refused .{status}|refused .[A-Z]") as raised:
                verb()
            assert google.seen
            told = written(raised.value)
            assert not [secret for secret in ("hunter2", "Bearer", pem.splitlines()[1]) if secret in told]


def test_another_store_is_not_opened():
    with pytest.raises(InvalidInput, match="neither cloud"):
        CloudStore(Location.parse("s3://bucket/prefix"))
