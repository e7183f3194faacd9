"""What the S3 store does when S3, or the way to it, does not do its part."""

import multiprocessing
import pickle
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dagster_versioned.errors import (
    AccessDenied,
    AlreadyExists,
    InvalidInput,
    InvalidName,
    ObjectNotFound,
    PreconditionFailed,
    StorageError,
    StoreUnavailable,
)
from dagster_versioned.storage import S3Credentials, S3Options, S3Store, open_store
from dagster_versioned.storage.object_store import UnfinishedWrite
from support.faulty_proxy import (
    CUT,
    DROP_AFTER,
    DROP_BEFORE,
    FAIL_AFTER,
    HANG,
    NO_CONDITION,
    NO_METADATA,
    FaultyProxy,
    answer,
    faulty_proxy,
)
from support.s3_server import S3Server
from support.store_verbs import of_bucket, written

FEW_ATTEMPTS = S3Options(attempts=3, part_bytes=5 * 1024**2)
UNAVAILABLE = answer(503, "SlowDown")


def requests(method: str, containing: str = "") -> Callable[[str, str], bool]:
    return lambda verb, path: verb == method and containing in path


@pytest.fixture(scope="module")
def module_proxy(moto_server: S3Server) -> Iterator[FaultyProxy]:
    with faulty_proxy(moto_server.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def proxy(module_proxy: FaultyProxy) -> FaultyProxy:
    module_proxy.set()
    module_proxy.meanwhile = None
    return module_proxy


@pytest.fixture(scope="module")
def bucket(moto_server: S3Server) -> str:
    return moto_server.new_bucket()


@pytest.fixture(scope="class")  # a client that has failed too often does not retry any more
def stores(module_proxy: FaultyProxy, moto_server: S3Server, bucket: str) -> tuple[S3Store, S3Store]:
    through = S3Server(module_proxy.endpoint_url, moto_server.access_key, moto_server.secret_key)
    return moto_server.store(bucket, "all"), through.store(bucket, "all", FEW_ATTEMPTS)


@pytest.fixture
def direct(stores: tuple[S3Store, S3Store], prefix: str) -> S3Store:
    """Past the proxy."""
    return stores[0].subfolder(prefix)


@pytest.fixture
def store(stores: tuple[S3Store, S3Store], proxy: FaultyProxy, prefix: str) -> S3Store:
    """Through the proxy."""
    return stores[1].subfolder(prefix)


def every_verb(store: S3Store, file: Path) -> list[Callable[[], object]]:
    return [
        *of_bucket(store, file),
        lambda: list(store.unfinished()),
        lambda: store.abort([UnfinishedWrite("id", datetime.now(UTC), "key")]),
        lambda: store.put_if_match("key", b"data", None),
    ]


class TestLostAnswers:
    """A conditional put whose answer was lost is never taken for somebody else's."""

    @pytest.mark.every(3)
    @pytest.mark.parametrize("lost", [DROP_AFTER, FAIL_AFTER, NO_METADATA])
    @pytest.mark.parametrize("attempts", [1, 2])
    def test_a_create_that_landed_succeeds(
        self, store: S3Store, direct: S3Store, proxy: FaultyProxy, lost: str, attempts: int
    ):
        proxy.set(*[lost] * attempts, on=requests("PUT"))
        info = store.put_if_absent("log/0", b"mine")
        assert info == direct.head("log/0")
        assert direct.get("log/0") == b"mine"
        with pytest.raises(AlreadyExists):
            store.put_if_absent("log/0", b"mine")

    @pytest.mark.parametrize("lost", [DROP_AFTER, FAIL_AFTER])
    @pytest.mark.parametrize("attempts", [1, 3])
    def test_a_swap_that_landed_succeeds(
        self, store: S3Store, direct: S3Store, proxy: FaultyProxy, lost: str, attempts: int
    ):
        etag = direct.put("head", b"old").etag
        proxy.set(*[lost] * attempts, on=requests("PUT"))
        info = store.put_if_match("head", b"new", etag)
        assert info == direct.head("head")
        assert direct.get("head") == b"new"
        with pytest.raises(PreconditionFailed):
            store.put_if_match("head", b"new", etag)

    @pytest.mark.parametrize("data", [b"theirs", b"mine"])
    @pytest.mark.parametrize("attempts", [1, 3])
    def test_a_create_that_another_won_is_a_conflict_even_with_equal_bytes(
        self, store: S3Store, direct: S3Store, proxy: FaultyProxy, data: bytes, attempts: int
    ):
        list(direct.list())  # makes its client now, so that the store does not lose patience meanwhile
        proxy.meanwhile = once(lambda: direct.put_if_absent("log/0", data))
        proxy.set(*[DROP_BEFORE] * attempts, on=requests("PUT"))
        with pytest.raises(AlreadyExists):
            store.put_if_absent("log/0", b"mine")
        assert direct.get("log/0") == data

    @pytest.mark.parametrize("data", [b"theirs", b"mine"])
    @pytest.mark.parametrize("attempts", [1, 3])
    def test_a_swap_that_another_won_is_a_conflict_even_with_equal_bytes(
        self, store: S3Store, direct: S3Store, proxy: FaultyProxy, data: bytes, attempts: int
    ):
        etag = direct.put("head", b"old").etag
        proxy.meanwhile = once(lambda: direct.put_if_match("head", data, etag))
        proxy.set(*[DROP_BEFORE] * attempts, on=requests("PUT"))
        with pytest.raises(PreconditionFailed):
            store.put_if_match("head", b"mine", etag)
        assert direct.get("head") == data

    def test_a_swap_whose_object_was_deleted_is_a_conflict(self, store: S3Store, direct: S3Store, proxy: FaultyProxy):
        etag = direct.put("head", b"old").etag
        proxy.meanwhile = once(lambda: direct.delete(["head"]))
        proxy.set(*[DROP_BEFORE] * 3, on=requests("PUT"))
        with pytest.raises(PreconditionFailed):
            store.put_if_match("head", b"mine", etag)

    @pytest.mark.parametrize("fault", [DROP_BEFORE, UNAVAILABLE])
    def test_what_never_landed_is_unavailable(self, store: S3Store, direct: S3Store, proxy: FaultyProxy, fault):
        etag = direct.put("head", b"old").etag
        for attempt in (
            lambda: store.put_if_absent("log/0", b"mine"),
            lambda: store.put_if_match("head", b"mine", etag),
        ):
            proxy.set(fault, for_ever=True, on=requests("PUT"))
            with pytest.raises(StoreUnavailable):
                attempt()
        assert [info.key for info in direct.list()] == ["head"]
        assert direct.get("head") == b"old"

    def test_a_plain_conflict_is_not_read_back(self, store: S3Store, direct: S3Store, proxy: FaultyProxy):
        direct.put("log/0", b"theirs")
        with pytest.raises(AlreadyExists):
            store.put_if_absent("log/0", b"mine")
        assert proxy.seen == ["PUT"]

    def test_s3s_own_conflict_answer_is_tried_again(self, store: S3Store, direct: S3Store, proxy: FaultyProxy):
        conflict = answer(409, "ConditionalRequestConflict")
        proxy.set(conflict, conflict, on=requests("PUT"))
        store.put_if_absent("log/0", b"mine")
        assert direct.get("log/0") == b"mine"
        proxy.set(conflict, for_ever=True, on=requests("PUT"))
        with pytest.raises(StoreUnavailable, match="409"):
            store.put_if_absent("log/1", b"mine")


def test_a_server_without_conditional_writes_is_refused(
    proxy: FaultyProxy, moto_server: S3Server, bucket: str, prefix: str
):
    store = S3Server(proxy.endpoint_url, moto_server.access_key, moto_server.secret_key).store(bucket, prefix)
    proxy.set(NO_CONDITION, for_ever=True)
    with pytest.raises(StorageError, match=r"ignores the condition of a write.*created 'log/0' again"):
        store.put_if_absent("log/0", b"mine")
    assert store.get("log/0") == b"mine"
    proxy.set()
    store.put_if_absent("log/1", b"mine")
    assert proxy.seen == ["PUT", "PUT"]
    store.put_if_absent("log/2", b"mine")
    assert proxy.seen == ["PUT", "PUT", "PUT"]  # looked at once


def test_a_server_that_replaces_whatever_is_there_is_refused(
    proxy: FaultyProxy, moto_server: S3Server, bucket: str, prefix: str
):
    store = S3Server(proxy.endpoint_url, moto_server.access_key, moto_server.secret_key).store(bucket, prefix)
    etag = store.put("head", b"old").etag
    proxy.set(NO_CONDITION, for_ever=True)
    with pytest.raises(StorageError, match=r"ignores the condition of a write \(If-Match\).*replaced 'head' twice"):
        store.put_if_match("head", b"new", etag)
    assert store.get("head") == b"new"
    proxy.set()
    etag = store.put("head", b"one").etag
    etag = store.put_if_match("head", b"one", etag).etag  # which proves nothing: the ETag is what it was
    etag = store.put_if_match("head", b"two", etag).etag
    assert proxy.seen == ["PUT"] * 4
    store.put_if_match("head", b"three", etag)
    assert proxy.seen == ["PUT"] * 5  # looked at once
    assert store.get("head") == b"three"


def once(action: Callable[[], object]) -> Callable[[], None]:
    pending = [action]
    return lambda: pending.pop()() and None if pending else None


class TestRetries:
    @pytest.fixture(autouse=True)
    def _in_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A delete is in time to be begun again, however long its first attempts took."""
        monkeypatch.setattr("dagster_versioned.storage.bucket._DELETE_RETRIES", 600.0)

    @pytest.mark.parametrize(
        "fault",
        [pytest.param(UNAVAILABLE, id="503", marks=pytest.mark.slow), pytest.param(DROP_AFTER, id="lost")],
    )
    def test_every_verb_outlasts_a_short_fault(
        self, store: S3Store, direct: S3Store, proxy: FaultyProxy, file: Path, fault
    ):
        for verb in every_verb(store, file):
            direct.put("key", b"data")
            proxy.set(fault)
            with suppress(AlreadyExists, PreconditionFailed):  # there is an object
                verb()
            assert len(proxy.seen) >= 2

    def test_a_body_that_breaks_off_is_read_again(self, store: S3Store, direct: S3Store, proxy: FaultyProxy):
        data = bytes(range(256)) * 1000
        direct.put("key", data)
        proxy.set(CUT, CUT)
        assert store.get("key") == data
        proxy.set(CUT)
        assert store.get_range("key", 10, 1000) == data[10:1010]
        proxy.set(CUT, for_ever=True)
        with pytest.raises(StoreUnavailable, match="get 'key'"):
            store.get("key")

    def test_a_delete_that_failed_for_some_keys_is_tried_again_for_those(
        self, store: S3Store, direct: S3Store, proxy: FaultyProxy, prefix: str
    ):
        direct.put("a", b"")
        direct.put("b", b"")
        proxy.set((200, delete_answer(f"all/{prefix}/b", "InternalError")))
        store.delete(["a", "b"])
        assert proxy.seen == ["POST", "POST"]
        assert [info.key for info in direct.list()] == ["a"]  # the forged answer said that "a" was gone
        for code, kind in (("AccessDenied", AccessDenied), ("InternalError", StoreUnavailable)):
            proxy.set((200, delete_answer(f"all/{prefix}/a", code)), for_ever=True)
            with pytest.raises(kind, match=f"'a'.*{code}"):
                store.delete(["a", "b"])
        proxy.set((200, delete_answer(f"all/{prefix}/a", "NoSuchKey")))
        store.delete(["a"])

    def test_a_delete_is_not_begun_again_late(
        self, store: S3Store, direct: S3Store, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
    ):
        direct.put("a", b"")
        proxy.set(DROP_BEFORE)
        store.delete(["a"])
        assert proxy.seen == ["POST", "POST"]
        monkeypatch.setattr("dagster_versioned.storage.bucket._DELETE_RETRIES", 0.0)
        proxy.set(DROP_BEFORE, for_ever=True)
        with pytest.raises(StoreUnavailable, match="delete 'a'"):
            store.delete(["a"])
        assert proxy.seen == ["POST"]


def delete_answer(key: str, code: str) -> str:
    return f"<DeleteResult><Error><Key>{key}</Key><Code>{code}</Code><Message>no</Message></Error></DeleteResult>"


class TestErrors:
    @pytest.mark.every(3)
    @pytest.mark.parametrize(
        ("fault", "kind"),
        [
            (UNAVAILABLE, StoreUnavailable),
            (HANG, StoreUnavailable),
            (DROP_BEFORE, StoreUnavailable),
            (answer(429, "TooManyRequests"), StoreUnavailable),
            (answer(403, "AccessDenied"), AccessDenied),
            (answer(403, "SignatureDoesNotMatch"), AccessDenied),
            (answer(400, "ExpiredToken"), AccessDenied),
            (answer(400, "InvalidRequest"), StorageError),
        ],
        ids=str,
    )
    def test_every_verb_says_what_is_wrong(
        self, proxy: FaultyProxy, moto_server: S3Server, bucket: str, file: Path, fault, kind: type[Exception]
    ):
        # One attempt: what several do is tried elsewhere. A HEAD has no body, so its answer may only be a number.
        secret = "hunter2hunter2"
        options = S3Options(read_timeout=0.3 if fault == HANG else 60, attempts=1)
        store = S3Server(proxy.endpoint_url, f"key-{secret}", secret).store(bucket, "prefix", options)
        proxy.set(fault, for_ever=True)
        for verb in every_verb(store, file):
            with pytest.raises(StorageError, match=f"in s3://{bucket}/prefix") as raised:
                verb()
            if "head" not in str(raised.value) and "copy" not in str(raised.value):
                assert type(raised.value) is kind
            assert secret not in written(raised.value)

    def test_a_missing_bucket_is_not_a_missing_object(self, moto_server: S3Server, file: Path):
        store = moto_server.store("no-such-bucket", "prefix")
        for verb in every_verb(store, file):
            with pytest.raises(StorageError, match="bucket 'no-such-bucket' does not exist") as raised:
                verb()
            assert not isinstance(raised.value, ObjectNotFound)

    @pytest.mark.s3
    def test_a_missing_bucket_of_a_real_server(self, s3_server: S3Server):
        store = s3_server.store("no-such-bucket", "prefix")
        for verb in (lambda: store.get("key"), lambda: store.head("key"), lambda: list(store.list())):
            with pytest.raises(StorageError) as raised:
                verb()
            assert not isinstance(raised.value, ObjectNotFound)

    @pytest.mark.s3
    def test_wrong_keys_are_denied_and_not_shown(self, s3_server: S3Server, file: Path):
        bucket = s3_server.new_bucket()
        for access_key in (s3_server.access_key, "unknown-key"):
            store = S3Server(s3_server.endpoint_url, access_key, "hunter2hunter2").store(bucket)
            for verb in every_verb(store, file):
                with pytest.raises(AccessDenied) as raised:
                    verb()
                assert "hunter2" not in written(raised.value)
                assert access_key not in written(raised.value)

    def test_nobody_at_the_endpoint(self, file: Path):
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
            store = S3Server(endpoint, "key", "secret").store("bucket", options=S3Options(attempts=2))
            for verb in every_verb(store, file):
                with pytest.raises(StoreUnavailable, match="may or may not have landed"):
                    verb()

    def test_a_key_that_is_too_long_with_its_prefix(self, store: S3Store, proxy: FaultyProxy):
        proxy.set(answer(400, "KeyTooLongError"))
        with pytest.raises(InvalidName, match="shorter"):
            store.put("key", b"")


class TestMultipart:
    def test_a_failed_upload_is_aborted_and_the_old_object_stays(
        self, store: S3Store, direct: S3Store, proxy: FaultyProxy, moto_server: S3Server, bucket: str, tmp_path: Path
    ):
        file = tmp_path / "file"
        file.write_bytes(bytes(12 * 1024**2))
        direct.put("part", b"old")
        for fault, kind in ((UNAVAILABLE, StoreUnavailable), (answer(403, "AccessDenied"), AccessDenied)):
            proxy.set(fault, for_ever=True, on=requests("PUT", "partNumber=2"))
            with pytest.raises(kind, match="put_file 'part'"):
                store.put_file("part", file)
        assert direct.get("part") == b"old"
        assert "Uploads" not in moto_server.client().list_multipart_uploads(Bucket=bucket)
        proxy.set(UNAVAILABLE, on=requests("PUT", "partNumber=2"))
        assert store.put_file("part", file).size == 12 * 1024**2


class TestCredentials:
    def test_none_at_all_is_said(self, moto_server: S3Server, monkeypatch: pytest.MonkeyPatch):
        with pytest.raises(AccessDenied, match="no usable credentials"):
            open_store(moto_server.location("bucket")).get("key")

    def test_an_unknown_profile_is_said(self, moto_server: S3Server):
        with pytest.raises(InvalidInput, match="no AWS profile 'nobody'"):
            open_store(moto_server.location("bucket"), profile="nobody").get("key")

    @pytest.mark.s3
    def test_a_profile_is_read_from_the_aws_files_also_after_unpickling(
        self, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        file = tmp_path / "credentials"
        file.write_text(
            f"[ours]\naws_access_key_id = {s3_server.access_key}\naws_secret_access_key = {s3_server.secret_key}\n"
        )
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
        store = open_store(s3_server.location(s3_server.new_bucket()).uri, profile="ours")
        store.put("key", b"data")
        assert pickle.loads(pickle.dumps(store)).get("key") == b"data"

    def test_expiring_keys_are_asked_for_again(self, moto_server: S3Server, bucket: str):
        asked: list[datetime] = []

        def source() -> S3Credentials:
            asked.append(datetime.now(UTC))
            lifetime = timedelta(seconds=1) if len(asked) <= 2 else timedelta(hours=5)
            return S3Credentials("key", "secret", "token", datetime.now(UTC) + lifetime)

        store = S3Store(moto_server.location(bucket), credentials=source)
        for _ in range(3):
            store.put("key", b"data")
        assert len(asked) == 3

    def test_keys_are_not_shown(self):
        assert "hunter2" not in repr(S3Credentials("hunter2", "hunter2", "hunter2"))

    def test_a_failing_source_is_not_hidden(self, moto_server: S3Server):
        def source() -> S3Credentials:
            raise OSError("the vault is closed")

        with pytest.raises(OSError, match="vault"):
            S3Store(moto_server.location("bucket"), credentials=source).get("key")


def _read_in_a_child(store: S3Store, results) -> None:
    results.put(store.get("key"))


def test_a_forked_child_has_connections_of_its_own(direct: S3Store):
    direct.put("key", b"data")
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=_read_in_a_child, args=(direct, results))
    child.start()
    child.join(120)
    assert child.exitcode == 0
    assert results.get() == direct.get("key") == b"data"


def test_what_a_console_leaves_in_a_bucket_is_not_listed(
    direct: S3Store, moto_server: S3Server, bucket: str, prefix: str
):
    for key in ("/folder/", "/a//b", "", "ed/other"):
        moto_server.client().put_object(Bucket=bucket, Key=f"all/{prefix}{key}", Body=b"")
    direct.put("folder/object", b"data")
    assert [info.key for info in direct.list()] == ["folder/object"]
    assert list(direct.folders()) == ["a", "folder"]
