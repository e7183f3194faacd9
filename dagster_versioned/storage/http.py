"""Requests over http and https that are led nowhere else: redirects are followed by hand, bodies pass in pieces."""

import re
import socket
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from dagster_versioned.errors import AccessDenied, InvalidInput, ObjectNotFound, StorageError, StoreUnavailable
from dagster_versioned.storage.backoff import DOWNLOAD

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse, PoolManager

CHUNK_BYTES = 1024**2
_REDIRECTS = {301, 302, 303, 307, 308}
_TRANSIENT = {408, 425, 429, 500, 502, 503, 504}
_MOST_REDIRECTS = 5
# What a server at another address may see of a request: nothing that a caller could have put a secret into.
_HARMLESS = {"range", "if-none-match", "if-modified-since", "if-range"}
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


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


def check_lead(url: str, target: str, first: str | None = None) -> str:
    """Return the URL that the server at another one leads to, by a redirect or a document of its own.

    ``first`` is where the way began, for messages. Raises `InvalidInput` for what is no URL, and `StorageError` for one
    that is not http or https, for http where that server has https, and for an address of this machine or its network
    where that server has none.
    """
    first = first or url
    try:
        before, after = urlsplit(url), urlsplit(target)
    except ValueError:
        return check_url(target)
    if after.scheme not in ("http", "https") or (before.scheme, after.scheme) == ("https", "http"):
        raise StorageError(
            f"{shown_url(first)} leads from {before.scheme} to {shown_url(target)!a:.200}, which is refused. "
            "Nothing was read. Ask who publishes it."
        )
    if before.hostname != after.hostname and _is_inside(after.hostname) and not _is_inside(before.hostname):
        raise StorageError(
            f"{shown_url(first)} leads to {shown_url(target)!a:.200}, an address of this machine or its "
            "network, which is refused to who is not there. Nothing was read. Ask who publishes it, or name "
            "that address yourself."
        )
    return check_url(target)


class HttpClient:
    """Keeps connections; each call is tried ``attempts`` times, and waits ``timeout`` seconds at most for a byte.

    A redirect to anything but http and https, from https to http, or from elsewhere to an address of this machine or
    its network, is refused. The proxies of the environment (``http_proxy``, ``https_proxy``, ``all_proxy``,
    ``no_proxy``) are used, but not for this machine. Thread-safe and picklable.
    """

    def __init__(self, *, attempts: int = 4, timeout: float = 30.0, public_only: bool = False) -> None:
        """With ``public_only``, an address that is not of the public network is refused, redirected to or not.

        It is the connected socket that is looked at, so that a name which resolves twice does not pass; and what would
        be reached through a proxy of the environment is refused, since only the proxy knows which address it has.
        """
        self.attempts = attempts
        self._timeout = timeout
        self._public_only = public_only
        self._made: dict[str | None, PoolManager] = {}  # by the proxy's URL

    def public(self) -> "HttpClient":
        """The same client, for addresses of the public network alone."""
        return HttpClient(attempts=self.attempts, timeout=self._timeout, public_only=True)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_made": {}}

    @contextmanager
    def open(
        self, url: str, headers: Mapping[str, str] | None = None, *, method: Literal["GET", "HEAD"] = "GET"
    ) -> "Generator[BaseHTTPResponse]":
        """The answer at the end of all redirects, its body unread; of a status below 400, or 416.

        Raises `ObjectNotFound` (404, 410), `AccessDenied` (401, 403), `StoreUnavailable`, `StorageError` for a
        redirect that is refused, and `InvalidInput`.
        """
        _check_headers(headers or {})
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
                DOWNLOAD.pause(failures)

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
                DOWNLOAD.pause(attempt)
        raise AssertionError("unreachable: attempts is at least 1")

    def put(
        self, url: str, body: Callable[[], Iterator[bytes]], size: int, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send ``size`` bytes, which ``body`` gives anew for each attempt; a redirect is refused.

        Raises `AccessDenied`, `StoreUnavailable`, `StorageError`, and what ``body`` raises.
        """
        _check_headers(headers or {})
        sent = {**(headers or {}), "Content-Type": "application/octet-stream", "Content-Length": str(size)}

        def request() -> "BaseHTTPResponse":
            return self._pool(url).request(
                "PUT", check_url(url), body=body(), headers=sent, preload_content=False, redirect=False
            )

        answer = self._retried(url, request)
        answer.close()
        answer.release_conn()
        if answer.status >= 400:
            raise _failure(url, answer.status)
        if answer.status >= 300:
            raise StorageError(
                f"{shown_url(url)} leads what is sent to it elsewhere (HTTP {answer.status}), which is refused. It was "
                "not sent there. Ask who serves it."
            )

    def connect(self, url: str) -> socket.socket:
        """A socket to the server of a URL, for another protocol than HTTP: through TLS for https, and through a proxy.

        Raises `StoreUnavailable`, and `InvalidInput`.
        """
        from urllib3 import make_headers
        from urllib3.connection import HTTPConnection, HTTPSConnection
        from urllib3.exceptions import HTTPError

        parts, proxy = urlsplit(check_url(url)), _proxy_of(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        at, at_port = (parts, port) if proxy is None else (urlsplit(proxy), urlsplit(proxy).port or 80)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        made = kind(at.hostname or "", at_port, timeout=self._timeout)
        if proxy is not None:
            name = f"{unquote(at.username)}:{unquote(at.password or '')}" if at.username else None
            given = make_headers(proxy_basic_auth=name)
            made.set_tunnel(
                parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80), given, at.scheme
            )
        try:
            made.connect()
        except (HTTPError, OSError) as error:
            made.close()
            raise StoreUnavailable(
                f"{shown_url(url)} did not answer ({type(error).__name__}). Check the address, and run again later."
            ) from None
        assert made.sock is not None
        return made.sock

    def _pool(self, url: str) -> "PoolManager":
        proxy = _proxy_of(url)
        if self._public_only and proxy is not None:
            raise StorageError(
                f"{shown_url(url)!a:.200} would be reached through the proxy of the environment, which does not show "
                "whether that is an address of its network, and whoever named it may be a stranger. Nothing was sent. "
                "Name the host in no_proxy, poll with a manifest of yours (--manifest FILE) or the dataset's key, or "
                "allow local addresses (--local-addresses)."
            )
        if proxy not in self._made:
            from urllib3 import PoolManager, ProxyManager, Timeout, make_headers

            timeout = Timeout(connect=min(10.0, self._timeout), read=self._timeout)
            if self._public_only:
                from dagster_versioned.storage.public_network import public_pools

                self._made[proxy] = public_pools(maxsize=16, retries=False, timeout=timeout)
            elif proxy is None:
                self._made[proxy] = PoolManager(maxsize=16, retries=False, timeout=timeout)
            else:
                parts = urlsplit(proxy)
                name = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else None
                self._made[proxy] = ProxyManager(
                    parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl(),
                    proxy_headers=make_headers(proxy_basic_auth=name),
                    maxsize=16,
                    retries=False,
                    timeout=timeout,
                )
        return self._made[proxy]

    def _follow(self, method: str, url: str, headers: dict[str, str]) -> "BaseHTTPResponse":
        first = url
        for _ in range(_MOST_REDIRECTS + 1):
            # Encoded bytes would not be those that were hashed.
            asked = {"Accept-Encoding": "identity", **headers}
            answer = self._pool(url).request(
                method, url, headers=asked, preload_content=False, redirect=False, decode_content=False
            )
            to = answer.headers.get("Location")
            if answer.status not in _REDIRECTS or to is None:
                return answer
            answer.close()
            answer.release_conn()
            target = check_lead(url, urljoin(url, to), first)
            if urlsplit(url)[:2] != urlsplit(target)[:2]:
                headers = {name: value for name, value in headers.items() if name.lower() in _HARMLESS}
            url = target
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
            DOWNLOAD.pause(attempt)
        raise AssertionError("unreachable: attempts is at least 1")


def _check_headers(headers: Mapping[str, str]) -> None:
    """Raise `InvalidInput` for a header that cannot be sent, without repeating its value."""
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise InvalidInput(
                f"The header {name!a:.100} has characters that no header may have, such as the end of a line. Nothing "
                "was fetched. Correct it; its value may be a secret, and is not repeated here."
            )


def _proxy_of(url: str) -> str | None:
    """The proxy that the environment names for a URL. Raises `InvalidInput`, without repeating a password."""
    parts = urlsplit(url)
    proxies = getproxies_environment()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or _is_loopback(parts.hostname) or proxy_bypass(parts.netloc):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if urlsplit(proxy).scheme not in ("http", "https"):
        raise InvalidInput(
            f"The environment names the proxy {shown_url(proxy)!a:.100}, and one over http or https is needed. Nothing "
            f"was fetched. Set {parts.scheme}_proxy, or name {parts.hostname} in no_proxy."
        )
    return proxy


def _is_loopback(host: str | None) -> bool:
    try:
        return host == "localhost" or ip_address(host or "").is_loopback
    except ValueError:
        return False


def _is_inside(host: str | None) -> bool:
    """Whether a host is this machine or in its network, as far as names tell here."""
    try:
        found = {str(one[4][0]).partition("%")[0] for one in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return False
    return any(not ip_address(one).is_global for one in found)


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
    answer = f"{shown_url(url)}: HTTP {status}."
    if status in (404, 410):
        return ObjectNotFound(f"{answer} Nothing is there. Check the address.")
    if status in (401, 403):
        return AccessDenied(f"{answer} The server refused. Check who may read it.")
    return StoreUnavailable(f"{answer} The server failed. Run again later.")
