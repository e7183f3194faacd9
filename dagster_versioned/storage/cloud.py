"""Google Cloud Storage and Azure, through obstore."""

import os
import re
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)
from obstore.store import AzureStore, GCSStore

from dagster_versioned.errors import (
    AccessDenied,
    AlreadyExists,
    InvalidInput,
    ObjectNotFound,
    PreconditionFailed,
    StorageError,
    StoreUnavailable,
)
from dagster_versioned.process_state import PROCESS
from dagster_versioned.storage.backoff import REQUEST, Backoff
from dagster_versioned.storage.bucket import HTTP, BucketStore, ConditionCheck, Conditions, quoted_etag
from dagster_versioned.storage.keys import check_folder, check_key, is_key
from dagster_versioned.storage.object_store import Durability, ObjectInfo, UnfinishedWrite

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutMode
    from obstore.store import ClientConfig, RetryConfig
    from obstore.store import ObjectStore as Client

    from dagster_versioned.storage.location import Location

_WRITE_ID = "write_id"  # Azure's names of metadata are identifiers
_DELETERS = 16
_NO_BUCKET = re.compile("ContainerNotFound|NoSuchBucket|specified bucket does not exist|AccountNotFound")
_STATUS = re.compile(r"\b(?:status code|status): (\d{3})\b")
_ADDRESS = re.compile(r"https?://\S+")
_CREDENTIALS = re.compile(r"Generic \w+ error: (Error performing token request|\w+ credential error)")
"""How obstore begins where it has no credentials; what it says of a request begins otherwise, and repeats its key."""


@dataclass(frozen=True, slots=True)
class CloudOptions:
    """How patiently to talk to a cloud: times in seconds, sizes in bytes.

    ``attempts`` counts the first one. Files above ``part_bytes`` are uploaded in parts of that size.
    """

    connect_timeout: float = 10.0
    timeout: float = 300.0
    attempts: int = 5
    part_bytes: int = 16 * 1024**2


@dataclass(frozen=True, slots=True)
class _Bucket:
    """A location without its prefix, as executors have it, where pydantic may be missing."""

    type: str
    name: str
    account: str | None
    endpoint_url: str | None
    uri: str


class CloudStore(BucketStore):
    """Objects below a prefix of a bucket (Google Cloud Storage) or of a container (Azure).

    Conditional writes are the cloud's own: ``If-None-Match`` and ``If-Match`` on Azure, generations on Google Cloud
    Storage. Each carries a write id in the object's metadata, so that a write whose answer was lost is recognized when
    it is read back. Credentials are found where each cloud's own tools find them (``AZURE_STORAGE_…``, a service
    account, an identity of the machine). A pickle holds the location and the options.

    Neither cloud shows unfinished uploads through obstore: Azure forgets them after a week, and a bucket of Google's by
    a rule of its life cycle.
    """

    def __init__(self, location: "Location", *, options: CloudOptions | None = None) -> None:
        if location.type not in ("gcs", "azure"):
            raise InvalidInput(f"CloudStore cannot open {location.uri}: it is in neither cloud. Use open_store.")
        uri = location.model_copy(update={"prefix": ""}).bare_uri
        self._bucket = _Bucket(location.type, location.root, location.account, location.endpoint_url, uri)
        self._options = options or CloudOptions()
        # Azure promises an alphabet, not which one; other servers are not taken at their word.
        is_ordered = location.type == "gcs" and not location.endpoint_url
        super().__init__(uri, location.prefix, self._options.attempts, is_ordered=is_ordered)
        self._connection = _Connection(self._bucket, self._options)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        if length == 0:  # HTTP has no empty range
            self.head(key)
            return b""
        full = self._full(key)
        try:
            with self._translated("get_range", key):
                return bytes(obstore.get_range(self._patient, full, start=start, length=length))
        except (ObjectNotFound, AccessDenied):
            raise
        except StorageError:
            if self.head(key).size <= start:  # obstore refuses a range that begins at or after the end
                return b""
            raise

    def head(self, key: str) -> ObjectInfo:
        full = self._full(key)
        with self._translated("head", key):
            return _info(key, obstore.head(self._patient, full))

    def folders(self, prefix: str = "") -> Iterator[str]:
        check_folder(prefix)
        full = self._prefix + prefix
        with self._translated("list", prefix):
            found = obstore.list_with_delimiter(self._patient, full or None)["common_prefixes"]
        return iter(sorted(filter(is_key, (folder[len(full) :] for folder in found))))

    def put(self, key: str, data: bytes, *, durability: Durability = "now") -> ObjectInfo:
        full = self._full(key)
        with self._translated("put", key):
            return _made(key, len(data), obstore.put(self._patient, full, data, use_multipart=False))

    def put_file(self, key: str, path: Path) -> ObjectInfo:
        full, size = self._full(key), path.stat().st_size
        with self._translated("put_file", key):
            part = self._options.part_bytes
            return _made(key, size, obstore.put(self._patient, full, path, use_multipart=size > part, chunk_size=part))

    def put_chunks(self, key: str, chunks: Iterable[bytes]) -> ObjectInfo:
        full, size = self._full(key), 0

        def counted() -> Iterator[bytes]:
            nonlocal size
            for chunk in chunks:
                size += len(chunk)
                yield chunk

        with self._translated("put_chunks", key):
            part = self._options.part_bytes
            answer = obstore.put(self._patient, full, counted(), chunk_size=part, max_concurrency=1)
            return _made(key, size, answer)

    def copy(self, source: str, target: str) -> ObjectInfo:
        origin, full = self._full(source), self._full(target)
        with self._translated("copy", source):
            obstore.copy(self._patient, origin, full)
        return self.head(target)

    def delete(self, keys: Iterable[str]) -> None:
        checked = [check_key(key) for key in keys]  # all of them before the first is touched
        with ThreadPoolExecutor(_DELETERS, thread_name_prefix="delete") as pool:
            for done in [pool.submit(self._delete, key) for key in checked]:
                done.result()

    def unfinished(self) -> Iterator[UnfinishedWrite]:
        """None: obstore lists no unfinished uploads."""
        return iter(())

    def abort(self, writes: Iterable[UnfinishedWrite]) -> None:
        """Nothing: there are no unfinished writes here."""

    @property
    def _patient(self) -> "Client":
        return self._connection.clients[0]

    @property
    def _once(self) -> "Client":
        return self._connection.clients[1]

    def _fetch(self, key: str) -> tuple[bytes, ObjectInfo, str | None]:
        full = self._full(key)
        with self._translated("get", key):
            answer = obstore.get(self._patient, full)
            return bytes(answer.bytes()), _info(key, answer.meta), dict(answer.attributes).get(_WRITE_ID)

    def _list(self, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        # obstore lists folders; what a key begins with is looked for in its folder.
        folder = prefix[: prefix.rfind("/") + 1]
        outer = len(self._prefix)
        after = max(start_after, prefix[:-1])
        offset = self._prefix + after if after > folder else None
        full = (self._prefix + folder).rstrip("/") or None
        with self._translated("list", prefix):
            for batch in obstore.list(self._patient, full, offset=offset and offset.rstrip("/")):
                for meta in batch:
                    key = meta["path"][outer:]
                    # A console makes "folder/" objects, which are none of ours.
                    if key.startswith(prefix) and key > start_after and is_key(key):
                        yield _info(key, meta)

    def _put_if(self, operation: str, key: str, data: bytes, etag: str | None) -> ObjectInfo | None:
        mode: PutMode | None = "create" if etag is None else self._mode(key, etag)
        if mode is None:
            return None

        def ask(write_id: str) -> ObjectInfo | None:
            """One request; ``None`` where the server refuses."""
            full, attributes = self._full(key), {_WRITE_ID: write_id}
            try:
                with self._translated(operation, key):
                    answer = obstore.put(self._once, full, data, mode=mode, attributes=attributes, use_multipart=False)
            except (AlreadyExists, PreconditionFailed, ObjectNotFound):
                return None
            return _made(key, len(data), answer)

        info = self._settled(key, data, etag, ask)
        if info is None:
            return None
        return self._connection.conditions.kept(info, etag, lambda: ask(uuid4().hex), self.uri)

    def _settled(
        self, key: str, data: bytes, etag: str | None, ask: Callable[[str], ObjectInfo | None]
    ) -> ObjectInfo | None:
        """Ask until there is an answer, or until the object shows what became of a request without one."""
        write_id = uuid4().hex
        lost = False  # an earlier attempt may have landed, though its answer did not arrive
        for attempt in range(self._attempts):
            try:
                info = ask(write_id)
                return self._landed(key, data, write_id)[0] if info is None and lost else info
            except StoreUnavailable:
                lost = True
                landed, found = self._landed(key, data, write_id)
                if landed is not None or found != etag:
                    return landed
                if attempt == self._attempts - 1:
                    raise
            _PAUSES[self._bucket.type].pause(attempt)
        raise AssertionError("unreachable: attempts is at least 1")

    def _mode(self, key: str, etag: str) -> "PutMode | None":
        """The mode of a put that replaces this object alone; ``None`` where it is another one by now."""
        if self._bucket.type == "azure":
            return {"e_tag": etag}
        # Google Cloud Storage compares generations, which a listing does not say: the one with this ETag is looked up.
        full = self._full(key)
        try:
            with self._translated("head", key):
                meta = obstore.head(self._patient, full)
        except ObjectNotFound:
            return None
        return {"e_tag": etag, "version": meta["version"]} if quoted_etag(meta["e_tag"]) == etag else None

    def _delete(self, key: str) -> None:
        full, began = self._full(key), time.monotonic()
        for attempt in range(self._attempts):
            try:
                with self._translated("delete", key):
                    obstore.delete(self._once, full)
                return
            except ObjectNotFound:
                return
            except StoreUnavailable:
                if self._is_last_delete(attempt, began):
                    raise
            REQUEST.pause(attempt)

    @contextmanager
    def _translated(self, operation: str, key: str) -> Generator[None]:
        # Messages of obstore may repeat signed requests: they are looked at and never passed on, and "from None" keeps
        # them out of tracebacks.
        where = f"{operation} {key!r} in {self.uri}"
        try:
            yield
        except (BaseError, FileNotFoundError) as error:
            # A key is not to be taken for what went wrong.
            message = _ADDRESS.sub("", str(error)).replace(self._prefix + key, "")
            raise self._from_failure(where, error, message) from None

    def _from_failure(self, where: str, error: Exception, message: str) -> Exception:
        status = int(found[1]) if (found := _STATUS.search(message)) else 0
        if self._is_of_bucket(error, message):
            kind = "container" if self._bucket.type == "azure" else "bucket"
            return StorageError(
                f"{where}: the {kind} {self._bucket.name!r} does not exist. Nothing was written; check the name, the "
                "account and the endpoint."
            )
        for of_obstore, ours, text in _ANSWERS:
            if isinstance(error, of_obstore):
                return ours(f"{where}: {text}")
        name = type(error).__name__
        if isinstance(error, (PermissionDeniedError, UnauthenticatedError)) or status in (401, 403):
            return AccessDenied(
                f"{where}: the server refused ({status or name}). The object is as it was; check which credentials are "
                "used and that their role allows this."
            )
        if isinstance(error, UnknownConfigurationKeyError) or _CREDENTIALS.match(message):
            return AccessDenied(
                f"{where}: no usable credentials ({name}). Nothing was sent; {_WAYS[self._bucket.type]}"
            )
        if 0 < status < 500 and status not in (408, 409, 429):
            return StorageError(f"{where}: the server answered {status}. The object is as it was; check the location.")
        return StoreUnavailable(
            f"{where}: no usable answer ({status or name}). A write may or may not have landed; check "
            "the network and the endpoint and run again."
        )

    def _is_of_bucket(self, error: Exception, message: str) -> bool:
        """Whether the bucket or container is missing; an answer to HEAD has no body, so it does not say which 404."""
        if _NO_BUCKET.search(message):
            return True
        if not isinstance(error, FileNotFoundError) or "<" in message:  # the body, in which no bucket is missing
            return False
        try:
            next(iter(obstore.list(self._patient, "-", chunk_size=1)), None)
        except FileNotFoundError:
            return True
        except BaseError as failure:
            return bool(_NO_BUCKET.search(str(failure)))
        return False


_ANSWERS = (
    (FileNotFoundError, ObjectNotFound, "no such object. Nothing was read."),
    (AlreadyExistsError, AlreadyExists, "there already is an object. It was left as it is."),
    (PreconditionError, PreconditionFailed, "the object is another one by now. It was left as it is."),
)

_PAUSES = {"azure": REQUEST, "gcs": Backoff(1.0, 16.0)}
"""Google takes one write a second of each object, and refuses the next ones for now (429)."""

_CONDITIONS = {"azure": HTTP, "gcs": Conditions("x-goog-if-generation-match", "x-goog-if-generation-match")}

_WAYS = {
    "azure": "set AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN, or AZURE_CLIENT_ID, AZURE_CLIENT_SECRET and "
    "AZURE_TENANT_ID, or run where a managed identity is.",
    "gcs": "set GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT to a key file, run `gcloud auth "
    "application-default login`, or run where a service account is attached.",
}


class ObstoreThreads:
    """The process whose threads obstore runs on; a forked child, which has none of them, would wait for ever."""

    began_in: int | None = None


class _Connection:
    """The clients of a store and its subfolders, made when first needed: one tries again by itself, one never does."""

    def __init__(self, bucket: _Bucket, options: CloudOptions) -> None:
        self._pickled = (bucket, options)
        self.conditions = ConditionCheck(bucket.endpoint_url, _CONDITIONS[bucket.type])
        self._made: tuple[Client, Client] | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self._pickled

    @property
    def clients(self) -> "tuple[Client, Client]":
        threads = PROCESS.of(ObstoreThreads)
        if threads.began_in not in (None, os.getpid()):
            raise StorageError(
                f"{self._pickled[0].uri} cannot be reached from this process, which was forked from one that has "
                "used Google Cloud Storage or Azure: the threads that talk to them stayed there. Nothing was sent. "
                "Start processes by 'spawn' or 'forkserver', as Dagster's executors do."
            )
        if self._made is None:  # two threads may both make clients; either will do
            threads.began_in = os.getpid()
            attempts = self._pickled[1].attempts
            self._made = self._make(attempts), self._make(1)
        return self._made

    def _make(self, attempts: int) -> "Client":
        bucket, options = self._pickled
        client: ClientConfig = {
            "connect_timeout": timedelta(seconds=options.connect_timeout),
            "timeout": timedelta(seconds=options.timeout),
            "allow_http": (bucket.endpoint_url or "").startswith("http://"),
        }
        retry: RetryConfig = {
            "max_retries": attempts - 1,
            "retry_timeout": timedelta(seconds=options.timeout),
            "backoff": {
                "init_backoff": timedelta(seconds=_PAUSES[bucket.type].first),
                "max_backoff": timedelta(seconds=_PAUSES[bucket.type].longest),
                "base": 2,
            },
        }
        made = partial(_azure, bucket) if bucket.type == "azure" else partial(_google, bucket)
        try:
            return made(client, retry)
        except (BaseError, ValueError, OSError) as error:
            name = type(error).__name__
        raise AccessDenied(
            f"{bucket.uri} cannot be opened with the settings of this environment ({name}). Nothing was sent; "
            f"{_WAYS[bucket.type]}"
        )


def _azure(bucket: _Bucket, client: "ClientConfig", retry: "RetryConfig") -> "Client":
    assert bucket.account is not None  # as the location has checked
    config: dict[str, Any] = {"account_name": bucket.account}
    if bucket.endpoint_url:
        config["endpoint"] = bucket.endpoint_url
    return AzureStore(bucket.name, config=config, client_options=client, retry_config=retry)  # pyright: ignore[reportArgumentType] - built above


def _google(bucket: _Bucket, client: "ClientConfig", retry: "RetryConfig") -> "Client":
    config: dict[str, Any] = {"base_url": bucket.endpoint_url} if bucket.endpoint_url else {}
    return GCSStore(bucket.name, config=config, client_options=client, retry_config=retry)  # pyright: ignore[reportArgumentType] - built above


def _info(key: str, meta: "ObjectMeta") -> ObjectInfo:
    return ObjectInfo(key, meta["size"], quoted_etag(meta["e_tag"]), meta["last_modified"].astimezone(UTC))


def _made(key: str, size: int, answer: Any) -> ObjectInfo:
    # The answer to a put has no time.
    return ObjectInfo(key, size, quoted_etag(answer["e_tag"]), datetime.now(UTC))
