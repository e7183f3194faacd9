"""A folder behind an HTTP server, as static files are served: a store that is read by name and never written."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn, Self
from urllib.parse import quote, urlsplit

from dagster_versioned.errors import AccessDenied, IntegrityError, InvalidInput, StorageError
from dagster_versioned.storage.http import HttpClient, check_url, last_modified
from dagster_versioned.storage.keys import check_key
from dagster_versioned.storage.object_store import Durability, ObjectInfo, UnfinishedWrite

WHOLE_BYTES = 64 * 1024**2
"""The most that is read of an object that is asked for whole; larger ones are read through `HttpStore.chunks`."""


class HttpStore:
    """Objects below a URL; nothing that the server says is trusted beyond the bytes that were asked for.

    Cannot list (static servers have no listing that programs share), and refuses every write with `AccessDenied`.
    """

    def __init__(self, url: str, *, client: HttpClient | None = None, headers: Mapping[str, str] | None = None) -> None:
        """``headers`` go with each request, and to no other server that it is led to.

        Raises `InvalidInput` for a URL that is not http or https, or that holds a password or a query."""
        parts = urlsplit(check_url(url))
        if parts.query or parts.fragment:
            raise InvalidInput(f"The URL of a folder at {parts.hostname} holds a query. Nothing was fetched. Drop it.")
        self._url = url.rstrip("/")
        self._client = client or HttpClient()
        self._headers = dict(headers or {})

    def __repr__(self) -> str:
        return f"HttpStore({self.uri!r})"

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_headers": {}}  # they may hold a credential

    @property
    def uri(self) -> str:
        return self._url

    def subfolder(self, path: str) -> Self:
        return type(self)(self.url(path), client=self._client, headers=self._headers)

    def url(self, key: str) -> str:
        return f"{self._url}/{quote(check_key(key))}"

    def local_path(self, key: str) -> Path | None:
        return None

    def get(self, key: str) -> bytes:
        return self.get_with_info(key)[0]

    def get_with_info(self, key: str) -> tuple[bytes, ObjectInfo]:
        """As the protocol says; raises `IntegrityError` for an object that is larger than `WHOLE_BYTES`."""
        data = self.get_range(key, 0, WHOLE_BYTES + 1)
        if len(data) > WHOLE_BYTES:
            raise IntegrityError(
                f"get {key!r} in {self.uri}: more than {WHOLE_BYTES} bytes, of which none were kept. Check the source."
            )
        return data, ObjectInfo(key, len(data), "", datetime.now(UTC))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        read = bytearray()
        for chunk in self.chunks(key, start):
            read += chunk
            if len(read) >= length:
                break
        return bytes(read[:length])

    def chunks(self, key: str, start: int = 0) -> Iterator[bytes]:
        """The object's bytes from ``start``, in pieces, in one pass. Raises `ObjectNotFound`."""
        return self._client.chunks(self.url(key), self._headers, start=start)

    def head(self, key: str) -> ObjectInfo:
        with self._client.open(self.url(key), self._headers, method="HEAD") as answer:
            size = answer.headers.get("Content-Length")
            if size is None or not size.isdigit():
                raise StorageError(f"head {key!r} in {self.uri}: the server does not say how large it is.")
            modified = last_modified(answer.headers)
            etag = answer.headers.get("ETag") or f"{modified}-{size}"
            return ObjectInfo(key, int(size), etag, modified or datetime.fromtimestamp(0, UTC))

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        raise StorageError(f"list {prefix!r} in {self.uri}: a folder behind HTTP cannot be listed. Name what to read.")

    def folders(self, prefix: str = "") -> Iterator[str]:
        raise StorageError(f"list {prefix!r} in {self.uri}: a folder behind HTTP cannot be listed. Name what to read.")

    def put(self, key: str, data: bytes, *, durability: Durability = "now") -> ObjectInfo:
        self._refuse("put", key)

    def put_file(self, key: str, path: Path) -> ObjectInfo:
        self._refuse("put_file", key)

    def put_chunks(self, key: str, chunks: Iterable[bytes]) -> ObjectInfo:
        self._refuse("put_chunks", key)

    def put_if_absent(self, key: str, data: bytes) -> ObjectInfo:
        self._refuse("put_if_absent", key)

    def put_if_match(self, key: str, data: bytes, etag: str | None, *, durability: Durability = "now") -> ObjectInfo:
        self._refuse("put_if_match", key)

    def copy(self, source: str, target: str) -> ObjectInfo:
        self._refuse("copy", target)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._refuse("delete", key)

    def unfinished(self) -> Iterator[UnfinishedWrite]:
        return iter(())

    def abort(self, writes: Iterable[UnfinishedWrite]) -> None:
        for write in writes:
            self._refuse("abort", write.key or write.id)

    def _refuse(self, operation: str, key: str) -> NoReturn:
        raise AccessDenied(
            f"{operation} {key!r} in {self.uri}: what is served over HTTP is read only. Nothing was written. Write to "
            "the folder or bucket that is served."
        )
