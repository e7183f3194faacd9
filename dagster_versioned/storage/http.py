"""GETs over http and https that are led nowhere else: redirects are followed by hand, bodies are read in pieces."""

import random
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urljoin, urlsplit

from dagster_versioned.errors import AccessDenied, InvalidInput, ObjectNotFound, StorageError, StoreUnavailable

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse, PoolManager

CHUNK_BYTES = 1024**2
_REDIRECTS = {301, 302, 303, 307, 308}
_TRANSIENT = {408, 425, 429, 500, 502, 503, 504}
_MOST_REDIRECTS = 5
# What a server at another address may see of a request: nothing that a caller could have put a secret into.
_HARMLESS = {"range", "if-none-match", "if-modified-since", "if-range"}


def check_url(url: str) -> str:
    """Return ``url`` if it is http or https and holds no password. Raises `InvalidInput`, without repeating one."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise InvalidInput("A URL cannot be read. Nothing was fetched. Use http://host/path.") from None
    if not usable:
        raise InvalidInput(f"The URL {shown_url(url)!a:.200} is not http or https. Nothing was fetched.")
    if "@" in parts.netloc:
        raise InvalidInput(
            f"The URL of {parts.hostname} holds a user or a password. Nothing was fetched. Give it as a header."
        )
    return url


def last_modified(headers: Mapping[str, str]) -> datetime | None:
    """When a server says that a body last changed, in UTC."""
    try:
        when = parsedate_to_datetime(headers.get("Last-Modified", ""))
    except (ValueError, TypeError):
        return None
    return when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)


def shown_url(url: str) -> str:
    """The URL without what may be a secret: user, password, query and fragment."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


class HttpClient:
    """Keeps connections; each call is tried ``attempts`` times, and waits ``timeout`` seconds at most for a byte.

    A redirect to anything but http and https, or from https to http, is refused. Thread-safe and picklable.
    """

    def __init__(self, *, attempts: int = 4, timeout: float = 30.0) -> None:
        self.attempts = attempts
        self._timeout = timeout
        self._made: PoolManager | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_made": None}

    @contextmanager
    def open(
        self, url: str, headers: Mapping[str, str] | None = None, *, method: Literal["GET", "HEAD"] = "GET"
    ) -> "Generator[BaseHTTPResponse]":
        """The answer at the end of all redirects, its body unread; of a status below 400, or 416.

        Raises `ObjectNotFound` (404, 410), `AccessDenied` (401, 403), `StoreUnavailable`, `StorageError` for a
        redirect that is refused, and `InvalidInput`.
        """
        answer = self._retried(url, lambda: self._follow(method, check_url(url), dict(headers or {})))
        try:
            if answer.status >= 400 and answer.status != 416:
                raise _failure(url, answer.status)
            yield answer
        finally:
            # What is left of the body may be endless: the connection goes rather than that it is read.
            answer.close()
            answer.release_conn()

    def chunks(self, url: str, headers: Mapping[str, str] | None = None, *, start: int = 0) -> Iterator[bytes]:
        """The body from byte ``start``, in pieces; a connection that breaks is taken up where it broke.

        The server need not know ranges: what was seen already is then read again and dropped. Whether the pieces are
        of one and the same object is the caller's to check, by a hash.
        """
        from urllib3.exceptions import HTTPError

        position, failures = start, 0
        while True:
            ranged = {**(headers or {}), "Range": f"bytes={position}-"} if position else headers
            try:
                with self.open(url, ranged) as answer:
                    if answer.status == 416:
                        return
                    for chunk in _from(answer, position):
                        position += len(chunk)
                        failures = 0
                        yield chunk
                    return
            except (HTTPError, OSError) as error:
                failures += 1
                if failures >= self.attempts:
                    raise StoreUnavailable(
                        f"{shown_url(url)} broke off after {position} bytes, {failures} times in a row "
                        f"({type(error).__name__}). Run again later."
                    ) from None
                _pause(failures)

    def download(
        self, url: str, target: Path, headers: Mapping[str, str] | None = None, *, max_bytes: int
    ) -> "tuple[int, Mapping[str, str]]":
        """Write one answer's body to a file, and return its status and headers; at 304 nothing is written.

        Raises what `open` does, and `StorageError` for a body of more than ``max_bytes``. An answer that breaks off is
        asked for anew, so that headers and body belong together.
        """
        from urllib3.exceptions import HTTPError

        for attempt in range(1, self.attempts + 1):
            try:
                with self.open(url, headers) as answer, target.open("wb") as file:
                    size = 0
                    for chunk in answer.stream(CHUNK_BYTES, decode_content=False):
                        size += len(chunk)
                        if size > max_bytes:
                            raise StorageError(f"{shown_url(url)} has more than {max_bytes} bytes. Nothing was kept.")
                        file.write(chunk)
                    return answer.status, answer.headers
            except HTTPError as error:
                if attempt == self.attempts:
                    raise StoreUnavailable(
                        f"{shown_url(url)} broke off {attempt} times ({type(error).__name__}). Run again later."
                    ) from None
                _pause(attempt)
        raise AssertionError("unreachable: attempts is at least 1")

    @property
    def _pool(self) -> "PoolManager":
        if self._made is None:
            from urllib3 import PoolManager, Timeout

            self._made = PoolManager(
                maxsize=16, retries=False, timeout=Timeout(connect=min(10.0, self._timeout), read=self._timeout)
            )
        return self._made

    def _follow(self, method: str, url: str, headers: dict[str, str]) -> "BaseHTTPResponse":
        first = url
        for _ in range(_MOST_REDIRECTS + 1):
            # Encoded bytes would not be those that were hashed.
            asked = {"Accept-Encoding": "identity", **headers}
            answer = self._pool.request(
                method, url, headers=asked, preload_content=False, redirect=False, decode_content=False
            )
            to = answer.headers.get("Location")
            if answer.status not in _REDIRECTS or to is None:
                return answer
            answer.close()
            answer.release_conn()
            target = urljoin(url, to)
            before, after = urlsplit(url), urlsplit(target)
            if after.scheme not in ("http", "https") or (before.scheme, after.scheme) == ("https", "http"):
                raise StorageError(
                    f"{shown_url(first)} leads from {before.scheme} to {shown_url(target)!a:.200}, which is refused. "
                    "Nothing was read. Ask who publishes it."
                )
            if (before.scheme, before.netloc) != (after.scheme, after.netloc):
                headers = {name: value for name, value in headers.items() if name.lower() in _HARMLESS}
            url = check_url(target)
        raise StorageError(f"{shown_url(first)} leads on more than {_MOST_REDIRECTS} times. Nothing was read.")

    def _retried(self, url: str, request: "Callable[[], BaseHTTPResponse]") -> "BaseHTTPResponse":
        from urllib3.exceptions import HTTPError

        for attempt in range(1, self.attempts + 1):
            last = attempt == self.attempts
            try:
                answer = request()
            except (HTTPError, OSError) as error:
                if last:
                    raise StoreUnavailable(
                        f"{shown_url(url)} did not answer ({type(error).__name__}), {attempt} times. Check the "
                        "address, and run again later."
                    ) from None
            else:
                if answer.status not in _TRANSIENT or last:
                    return answer
                answer.close()
                answer.release_conn()
            _pause(attempt)
        raise AssertionError("unreachable: attempts is at least 1")


def _from(answer: "BaseHTTPResponse", position: int) -> Iterator[bytes]:
    """The body's pieces from a position of the object on, whether or not the server heeded the range."""
    at = _range_start(answer.headers.get("Content-Range")) if answer.status == 206 else 0
    if at > position:
        raise StorageError(f"{answer.url!a:.200} answered with bytes from {at}, not from {position}. Run again.")
    for chunk in answer.stream(CHUNK_BYTES, decode_content=False):
        if at + len(chunk) > position:
            yield chunk[max(0, position - at) :]
        at += len(chunk)


def _range_start(content_range: str | None) -> int:
    unit, _, span = (content_range or "").partition(" ")
    first = span.partition("-")[0]
    if unit != "bytes" or not (first.isascii() and first.isdigit()):
        raise StorageError(f"A server answered with the range {content_range!a:.50}, which cannot be read.")
    return int(first)


def _failure(url: str, status: int) -> StorageError:
    said = f"{shown_url(url)}: HTTP {status}."
    if status in (404, 410):
        return ObjectNotFound(f"{said} Nothing is there. Check the address.")
    if status in (401, 403):
        return AccessDenied(f"{said} The server refused. Check who may read it.")
    return StoreUnavailable(f"{said} The server failed. Run again later.")


def _pause(attempt: int) -> None:
    time.sleep(min(8.0, 0.1 * 2**attempt) * random.uniform(0.5, 1))
