"""S3 and servers that speak it, through boto3."""
# boto3 makes its clients at run time and ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false

import os
import re
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import boto3
from boto3.exceptions import Boto3Error
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.credentials import RefreshableCredentials
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    ReadTimeoutError,
    ResponseStreamingError,
    TokenRetrievalError,
)
from botocore.exceptions import ConnectionError as NoConnectionError
from botocore.loaders import Loader
from botocore.session import Session as BotocoreSession
from botocore.session import get_session

from dagster_versioned.errors import (
    AccessDenied,
    InvalidInput,
    InvalidName,
    ObjectNotFound,
    PreconditionFailed,
    StorageError,
    StoreUnavailable,
)
from dagster_versioned.storage.backoff import REQUEST
from dagster_versioned.storage.bucket import BucketStore, ConditionCheck, quoted_etag
from dagster_versioned.storage.credentials import CredentialsSource
from dagster_versioned.storage.keys import check_folder, check_key, is_key
from dagster_versioned.storage.object_store import Durability, ObjectInfo, UnfinishedWrite

if TYPE_CHECKING:  # executors have no pydantic
    from dagster_versioned.storage.location import Location

_WRITE_ID = "write-id"
_DELETE_BATCH = 1000  # S3's limit
_REFUSED_FOR_NOW = ("InternalError", "SlowDown", "ServiceUnavailable")
_DENIED_CODES = {"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId", "SignatureDoesNotMatch"}


@dataclass(frozen=True, slots=True)
class S3Options:
    """How patiently and how widely to talk to S3: times in seconds, sizes in bytes.

    ``attempts`` counts the first one; a client whose calls keep failing makes fewer (botocore's retry quota). Files
    above ``part_bytes`` are uploaded in parts of that size; copies above
    ``whole_copy_bytes`` are made in parts (S3 copies at most 5 GiB at once).
    """

    connect_timeout: float = 10.0
    read_timeout: float = 60.0
    attempts: int = 5
    connections: int = 32
    part_bytes: int = 64 * 1024**2
    whole_copy_bytes: int = 5 * 1024**3


class S3Store(BucketStore):
    """Objects below a bucket's prefix.

    Conditional writes are S3's own (``If-None-Match``, ``If-Match``); each carries a write id in the object's metadata,
    so that a write whose answer was lost is recognized when it is read back. A pickle holds the location, the profile
    and the options; keys that came from a callable stay behind, and boto3 looks for others where it is unpickled.
    """

    def __init__(
        self,
        location: "Location",
        *,
        profile: str | None = None,
        credentials: CredentialsSource | None = None,
        options: S3Options | None = None,
    ) -> None:
        if location.type != "s3":
            raise InvalidInput(f"S3Store cannot open {location.uri}: it is not an S3 location. Use open_store.")
        options = options or S3Options()
        # AWS promises the order; other servers are not taken at their word.
        super().__init__(
            f"s3://{location.root}", location.prefix, options.attempts, is_ordered=not location.endpoint_url
        )
        self._bucket, self._endpoint_url = location.root, location.endpoint_url
        self._options = options
        self._connection = _Connection(location.region, location.endpoint_url, profile, options, credentials)
        once = replace(options, attempts=1)
        self._deletes = _Connection(location.region, location.endpoint_url, profile, once, credentials)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        if length == 0:  # HTTP has no empty range
            self.head(key)
            return b""
        return self._read("get_range", key, Range=f"bytes={start}-{start + length - 1}")[0]

    def head(self, key: str) -> ObjectInfo:
        with self._translated("head", key):
            answer = self._client.head_object(**self._at(key))
            return _info(key, answer["ContentLength"], answer)

    def folders(self, prefix: str = "") -> Iterator[str]:
        check_folder(prefix)
        outer = len(self._prefix) + len(prefix)
        found = [
            common["Prefix"][outer:-1]
            for page in self._pages(prefix, {"Delimiter": "/"})
            for common in page.get("CommonPrefixes", ())
        ]
        return iter(sorted(filter(is_key, found)))

    def put(self, key: str, data: bytes, *, durability: Durability = "now") -> ObjectInfo:
        with self._translated("put", key):
            answer = self._client.put_object(**self._at(key), Body=data)
            return _info(key, len(data), answer)

    def put_file(self, key: str, path: Path) -> ObjectInfo:
        at = self._at(key)
        size = path.stat().st_size
        with self._translated("put_file", key):
            if size <= self._options.part_bytes:
                with path.open("rb") as file:
                    return _info(key, size, self._client.put_object(**at, Body=file))
            transfer = self._transfer(self._options.part_bytes)
            self._client.upload_file(str(path), at["Bucket"], at["Key"], Config=transfer)
        return self.head(key)

    def put_chunks(self, key: str, chunks: Iterable[bytes]) -> ObjectInfo:
        at = self._at(key)
        with self._translated("put_chunks", key):
            upload = at | {"UploadId": self._client.create_multipart_upload(**at)["UploadId"]}
            try:
                size, parts = 0, list[dict[str, Any]]()
                for number, chunk in enumerate(chunks, 1):
                    answer = self._client.upload_part(**upload, PartNumber=number, Body=chunk)
                    parts.append({"PartNumber": number, "ETag": answer["ETag"]})
                    size += len(chunk)
                answer = self._client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
            except BaseException:
                # What is left of an upload is invisible, but is paid for until somebody ends it.
                with suppress(ClientError, BotoCoreError):
                    self._client.abort_multipart_upload(**upload)
                raise
            return _info(key, size, answer)

    def copy(self, source: str, target: str) -> ObjectInfo:
        check_key(target)
        size = self.head(source).size
        with self._translated("copy", source):
            if size > self._options.whole_copy_bytes:
                return self._copy_by_parts(self, source, target)
            # REPLACE: else S3 refuses to copy an object onto itself, which is how one is made young again.
            return self._copy_whole(self, source, target, size, MetadataDirective="REPLACE")

    def shares_server(self, other: "S3Store") -> bool:
        """Whether both are on one server, which then may copy between them by itself (`copy_from`)."""
        return self._endpoint_url == other._endpoint_url

    def copy_from(self, other: "S3Store", source_key: str, target_key: str, *, found: ObjectInfo) -> ObjectInfo:
        """Create or replace ``target_key`` with the bytes of an object of another store on the same server.

        The server copies by itself; this store's credentials must be allowed to read the other's bucket. ``found`` is
        the object as it was looked at: raises `PreconditionFailed` where it was replaced by other bytes since,
        `ObjectNotFound`, `AccessDenied`.
        """
        unchanged = {"CopySourceIfMatch": found.etag}
        with self._translated("copy", source_key):
            if found.size > self._options.whole_copy_bytes:
                made = self._copy_by_parts(other, source_key, target_key, ExtraArgs=unchanged)
            else:
                made = self._copy_whole(other, source_key, target_key, found.size, **unchanged)
        # Some servers overlook the condition. An ETag may differ for good reasons too: parts, encryption.
        if made.etag != found.etag and other.head(source_key).etag != found.etag:
            raise PreconditionFailed(
                f"copy {source_key!r} from {other.uri} to {self.uri}: it was replaced meanwhile. List it again and "
                "copy it anew."
            )
        return made

    def _copy_whole(self, other: "S3Store", source: str, target: str, size: int, **arguments: str) -> ObjectInfo:
        answer = self._client.copy_object(**self._at(target), CopySource=other._at(source), **arguments)
        return _info(target, size, answer | answer["CopyObjectResult"])

    def _copy_by_parts(self, other: "S3Store", source: str, target: str, **arguments: Any) -> ObjectInfo:
        arguments |= {"SourceClient": other._client, "Config": self._transfer(self._options.whole_copy_bytes)}
        self._client.copy(other._at(source), self._bucket, self._full(target), **arguments)
        return self.head(target)

    def delete(self, keys: Iterable[str]) -> None:
        checked = [check_key(key) for key in keys]  # all of them before the first is touched
        for first in range(0, len(checked), _DELETE_BATCH):
            self._delete(checked[first : first + _DELETE_BATCH])

    def unfinished(self) -> Iterator[UnfinishedWrite]:
        """As the protocol says: multipart uploads that were neither completed nor aborted."""
        outer = len(self._prefix)
        with self._translated("unfinished", ""):
            paginator = self._client.get_paginator("list_multipart_uploads")
            for page in paginator.paginate(Bucket=self._bucket, Prefix=self._prefix):
                for upload in page.get("Uploads", ()):
                    # Some servers take no prefix.
                    if upload["Key"].startswith(self._prefix) and is_key(key := upload["Key"][outer:]):
                        yield UnfinishedWrite(upload["UploadId"], upload["Initiated"].astimezone(UTC), key)

    def abort(self, writes: Iterable[UnfinishedWrite]) -> None:
        for write in writes:
            if write.key is None:
                continue
            with self._translated("abort", write.key):
                try:
                    self._client.abort_multipart_upload(**self._at(write.key), UploadId=write.id)
                except ClientError as error:
                    if _code(error) != "NoSuchUpload":
                        raise

    @property
    def _client(self) -> Any:
        return self._connection.client

    def _at(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._full(key)}

    def _transfer(self, threshold: int) -> TransferConfig:
        part = min(threshold, self._options.part_bytes)
        return TransferConfig(multipart_threshold=threshold, multipart_chunksize=part, max_concurrency=8)

    def _fetch(self, key: str) -> tuple[bytes, ObjectInfo, str | None]:
        data, answer = self._read("get", key)
        return data, _info(key, len(data), answer), answer["Metadata"].get(_WRITE_ID)

    def _read(self, operation: str, key: str, **arguments: str) -> tuple[bytes, dict[str, Any]]:
        at = self._at(key)
        with self._translated(operation, key):
            for attempt in range(self._attempts):
                try:
                    answer = self._client.get_object(**at, **arguments)
                except ClientError as error:
                    if _status(error) == 416:  # the range begins at or after the end
                        return b"", {}
                    raise
                try:
                    return answer["Body"].read(), answer
                except (ResponseStreamingError, IncompleteReadError, ReadTimeoutError):
                    # botocore's own retries end where the body begins.
                    if attempt == self._attempts - 1:
                        raise
                    REQUEST.pause(attempt)
        raise AssertionError("unreachable: attempts is at least 1")

    def _pages(self, prefix: str, arguments: dict[str, str]) -> Iterator[dict[str, Any]]:
        with self._translated("list", prefix):
            paginator = self._client.get_paginator("list_objects_v2")
            yield from paginator.paginate(Bucket=self._bucket, Prefix=self._prefix + prefix, **arguments)

    def _list(self, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        outer = len(self._prefix)
        arguments: dict[str, str] = {}
        if start_after.startswith(prefix):
            folder = prefix[: prefix.rfind("/") + 1]
            arguments["StartAfter"] = self._prefix + folder + _early_start(start_after[len(folder) :])
        elif start_after > prefix:
            return
        for page in self._pages(prefix, arguments):
            for found in page.get("Contents", ()):
                key = found["Key"][outer:]
                if key > start_after and is_key(key):  # a console makes "folder/" objects, which are none of ours
                    yield _info(key, found["Size"], found)

    def _put_if(self, operation: str, key: str, data: bytes, etag: str | None) -> ObjectInfo | None:
        settle = partial(self._settled, operation, key, data, etag)
        info = settle()
        return None if info is None else self._connection.conditions.kept(info, etag, settle, self.uri)

    def _settled(self, operation: str, key: str, data: bytes, etag: str | None) -> ObjectInfo | None:
        """Write on the condition until it is known what became of it."""
        at = self._at(key)
        condition = {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}
        write_id = uuid4().hex
        lost = False  # an earlier attempt may have landed, though its answer did not arrive
        with self._translated(operation, key):
            for attempt in range(self._attempts):
                try:
                    answer = self._client.put_object(**at, **condition, Body=data, Metadata={_WRITE_ID: write_id})
                    return _info(key, len(data), answer)
                except ClientError as error:
                    lost |= error.response.get("ResponseMetadata", {}).get("RetryAttempts", 0) > 0
                    status = _status(error)
                    if status == 409 and attempt < self._attempts - 1:
                        REQUEST.pause(attempt)
                        continue
                    if _is_refusal(error):
                        return self._landed(key, data, write_id)[0] if lost else None
                    if status < 500:
                        raise
                    failure: Exception = error
                except (NoConnectionError, HTTPClientError) as error:
                    failure = error
                landed, found = self._landed(key, data, write_id)
                if landed is not None or found != etag:
                    return landed
                raise failure
        raise AssertionError("unreachable: attempts is at least 1")

    def _delete(self, keys: Sequence[str]) -> None:
        full = {self._full(key): key for key in keys}
        began = time.monotonic()
        for attempt in range(self._attempts):
            try:
                with self._translated("delete", keys[0]):
                    failed = self._left_by_delete(full)
            except StoreUnavailable:
                if self._is_last_delete(attempt, began):
                    raise
                REQUEST.pause(attempt)
                continue
            if not failed:
                return
            full = {key: full[key] for key in failed}
            final = self._is_last_delete(attempt, began)
            for key, code in failed.items():
                if final or code not in _REFUSED_FOR_NOW:
                    raise _from_delete(
                        f"delete {full[key]!r} in {self.uri}", code, f"{len(failed)} of {len(keys)} keys"
                    )
            REQUEST.pause(attempt)

    def _left_by_delete(self, full: Iterable[str]) -> dict[str, str]:
        """Delete by one request; the keys that are still there, and the server's code for each."""
        answer = self._deletes.client.delete_objects(
            Bucket=self._bucket, Delete={"Objects": [{"Key": key} for key in full], "Quiet": True}
        )
        codes = {fault["Key"]: fault.get("Code", "") for fault in answer.get("Errors", ())}
        return {key: code for key, code in codes.items() if code != "NoSuchKey"}

    @contextmanager
    def _translated(self, operation: str, key: str) -> Generator[None]:
        # The messages of boto3 and of servers may repeat keys and signed requests: only codes are passed on, and "from
        # None" keeps the rest out of tracebacks.
        where = f"{operation} {key!r} in {self.uri}"
        try:
            yield
        except ClientError as error:
            raise self._from_answer(where, error) from None
        except Boto3Error as error:
            cause = error.__context__
            if isinstance(cause, ClientError):
                raise self._from_answer(where, cause) from None
            raise _from_failure(where, cause or error) from None
        except BotoCoreError as error:
            raise _from_failure(where, error) from None

    def _from_answer(self, where: str, error: ClientError) -> Exception:
        status, code = _status(error), _code(error)
        answer = f"{where}: the server answered {status} {code}"
        if code == "NoSuchBucket" or (status == 404 and code != "NoSuchKey" and self._no_bucket()):
            return StorageError(
                f"{answer}. The bucket {self._bucket!r} does not exist. Nothing was written; check the name, "
                "the region and the endpoint."
            )
        if status == 404:
            return ObjectNotFound(f"{where}: no such object. Nothing was read.")
        if status in (401, 403) or code in _DENIED_CODES:
            return AccessDenied(
                f"{answer}. The object is as it was; check which credentials are used and that their policy allows "
                "this (S3 also says 403 for an absent object where listing the bucket is not allowed)."
            )
        if code == "KeyTooLongError":
            return InvalidName(f"{answer}. Nothing was written; use a shorter key or prefix.")
        if status == 412:
            return PreconditionFailed(f"{answer}. The object is as it was; read it again and decide anew.")
        if status >= 500 or status in (409, 429) or code in ("RequestTimeout", "SlowDown"):
            return StoreUnavailable(
                f"{answer} to each of {self._attempts} attempts. A write may or may not have landed; run again."
            )
        return StorageError(f"{answer}. The object is as it was; check the region, the endpoint and the bucket.")

    def _no_bucket(self) -> bool:
        """Whether the bucket is missing; an answer to HEAD has no body, so it does not say which 404 it is."""
        try:
            self._client.head_bucket(Bucket=self._bucket)
        except ClientError as error:
            return _status(error) == 404
        except BotoCoreError:
            return False
        return False


class _Connection:
    """One boto3 client, made when first needed and shared by a store and its subfolders."""

    def __init__(
        self,
        region: str | None,
        endpoint_url: str | None,
        profile: str | None,
        options: S3Options,
        credentials: CredentialsSource | None = None,
    ) -> None:
        self._pickled = (region, endpoint_url, profile, options)
        self._credentials = credentials
        self.conditions = ConditionCheck(endpoint_url)
        self._made: tuple[int, Any] | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self._pickled

    @property
    def client(self) -> Any:
        made = self._made
        # A forked child must not talk over its parent's sockets. Two threads may both make a client; either will do.
        if made is None or made[0] != os.getpid():
            made = self._made = (os.getpid(), self._make())
        return made[1]

    def _make(self) -> Any:
        region, endpoint_url, profile, options = self._pickled
        # Servers other than AWS: not all know the newer checksums, and few have a DNS name per bucket.
        compatible: dict[str, Any] = {
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
            "s3": {"addressing_style": "path"},
        }
        config = Config(
            connect_timeout=options.connect_timeout,
            read_timeout=options.read_timeout,
            max_pool_connections=options.connections,
            retries={"mode": "standard", "total_max_attempts": options.attempts},
            **(compatible if endpoint_url else {}),
        )
        try:
            session = boto3.Session(profile_name=profile, botocore_session=self._botocore_session())
            region = region or session.region_name or ("us-east-1" if endpoint_url else None)
            return session.client("s3", region_name=region, endpoint_url=endpoint_url, config=config)
        except ProfileNotFound:
            raise InvalidInput(
                f"There is no AWS profile {profile!r}. Nothing was touched; name one of the profiles in ~/.aws/config."
            ) from None

    def _botocore_session(self) -> BotocoreSession:
        session = get_session()
        # Asked for once boto3 has told the session its profile.
        session.lazy_register_component("data_loader", lambda: _models(session.get_config_variable("data_path")))
        source = self._credentials
        if source is None:
            return session
        first = source()
        if first.expiration is None:
            session.set_credentials(first.access_key, first.secret_key, first.session_token)
            return session

        def fresh() -> dict[str, str | None]:
            keys = source()
            if keys.expiration is None:
                raise InvalidInput("The credentials callable gave an expiration before, now none. Nothing was written.")
            return {
                "access_key": keys.access_key,
                "secret_key": keys.secret_key,
                "token": keys.session_token,
                "expiry_time": keys.expiration.isoformat(),
            }

        # botocore has no public way to give a session refreshable credentials.
        session._credentials = RefreshableCredentials.create_from_metadata(fresh(), fresh, method="callable")  # pyright: ignore[reportAttributeAccessIssue]
        return session


class _Models(Loader):
    """What botocore knows of services, from its files."""

    @property
    def search_paths(self) -> list[str]:
        return [*super().search_paths]  # each session of boto3 appends a folder of its own, with nothing for clients


@cache
def _models(data_path: str | None) -> _Models:
    """One for all clients of a process: to read the files takes ten times as long as to make a client of them."""
    paths = (data_path or "").split(os.pathsep) if data_path else []
    return _Models([str(Path(os.path.expandvars(path)).expanduser()) for path in paths])


def _status(error: ClientError) -> int:
    return error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)


def _code(error: ClientError) -> str:
    return error.response.get("Error", {}).get("Code", "")


def _is_refusal(error: ClientError) -> bool:
    """Whether the condition of a write does not hold."""
    status = _status(error)
    return status == 412 or (status == 404 and _code(error) != "NoSuchBucket")


def _from_delete(where: str, code: str, among: str) -> StorageError:
    kind = AccessDenied if code == "AccessDenied" else StoreUnavailable
    return kind(
        f"{where}: {code}, as for {among}. They are as they were; the others are deleted. Check the permission to "
        "delete and run again."
    )


def _from_failure(where: str, error: BaseException) -> Exception:
    name = type(error).__name__
    if isinstance(error, (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError, TokenRetrievalError)):
        return AccessDenied(
            f"{where}: no usable credentials ({name}). Nothing was sent; set them in the environment, name a profile, "
            "or pass a credentials callable."
        )
    if isinstance(error, (NoConnectionError, HTTPClientError, ResponseStreamingError, IncompleteReadError)):
        return StoreUnavailable(
            f"{where}: no answer ({name}). A write may or may not have landed; check the "
            "network and the endpoint and run again."
        )
    return StorageError(f"{where}: the request could not be made ({name}). Nothing was sent; check the location.")


def _info(key: str, size: int, answer: dict[str, Any]) -> ObjectInfo:
    modified = answer.get("LastModified")
    if modified is None:  # the answer to a put has only the server's clock
        date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        modified = parsedate_to_datetime(date) if date else datetime.now(UTC)
    return ObjectInfo(key, size, quoted_etag(answer["ETag"]), modified.astimezone(UTC))


def _early_start(start_after: str) -> str:
    """A start at or before ``start_after`` from which no server leaves out a key that sorts after it.

    Some servers compare segment by segment, so nothing from the first character below ``/`` on is passed to them; and
    some pass over a whole folder of just that name, so the last character is not either.
    """
    begin = re.split(r"[\x20-\x2e]", start_after, maxsplit=1)[0]
    return begin if begin.endswith("/") else begin[:-1]
