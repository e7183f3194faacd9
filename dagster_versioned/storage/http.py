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
from urllib.parse import SplitResult, unquote, urljoin, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from dagster_versioned.errors import AccessDenied, InvalidInput, ObjectNotFound, StorageError, StoreUnavailable
from dagster_versioned.storage.backoff import DOWNLOAD

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse, PoolManager

    from dagster_versioned.storage.public_network import Check

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
    where that server has another one. What a name resolves to here is no promise: the client looks at the socket too.
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
    is_elsewhere = before.hostname != after.hostname and not _is_inside(before.hostname)
    if is_elsewhere and not all(_public(after.hostname)):
        raise StorageError(
            f"{shown_url(first)} leads to {shown_url(target)!a:.200}, an address of this machine or its "
            "network, which is refused to who is not there. Nothing was read. Ask who publishes it, or name "
            "that address yourself."
        )
    return check_url(target)


class HttpClient:
    """Keeps connections; each call is tried ``attempts`` times, and waits ``timeout`` seconds at most for a byte.

    A redirect to anything but http and https, from https to http, or from elsewhere to an address of this machine or
    its network, is refused; so is such a URL that a server named (``named_by``). It is the connected socket that is
    looked at, so that a name which resolves twice, or to several addresses, does not pass. The proxies of the
    environment (``http_proxy``, ``https_proxy``, ``all_proxy``, ``no_proxy``) are used, but not for this machine; where
    one leads, only names tell. Thread-safe and picklable.
    """

    def __init__(self, *, attempts: int = 4, timeout: float = 30.0, public_only: bool = False) -> None:
        """With ``public_only``, an address that is not of the public network is refused, redirected to or not.

        What would be reached through a proxy of the environment is refused then, since only the proxy knows which
        address it has.
        """
        self.attempts = attempts
        self._timeout = timeout
        self._public_only = public_only
        self._made: dict[tuple[str | None, bool], PoolManager] = {}  # by the proxy's URL, and whether led there
        self._elsewhere: set[str] = set()  # hosts that were seen at an address of the public network

    def public(self) -> "HttpClient":
        """The same client, for addresses of the public network alone."""
        return HttpClient(attempts=self.attempts, timeout=self._timeout, public_only=True)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_made": {}}

    @contextmanager
    def open(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        *,
        method: Literal["GET", "HEAD"] = "GET",
        named_by: str | None = None,
    ) -> "Generator[BaseHTTPResponse]":
        """The answer at the end of all redirects, its body unread; of a status below 400, or 416.

        ``named_by`` is the server that named the URL, as a redirect would. Raises `ObjectNotFound` (404, 410),
        `AccessDenied` (401, 403), `StoreUnavailable`, `InvalidInput`, `StorageError` for a redirect that is refused.
        """
        _check_headers(headers or {})
        answer = self._retried(url, lambda: self._follow(method, url, dict(headers or {}), named_by))
        try:
            if answer.status >= 400 and answer.status != 416:
                raise _failure(url, answer.status)
            yield answer
        finally:
            # What is left of the body may be endless: the connection goes rather than that it is read.
            _drop(answer)

    def chunks(
        self, url: str, headers: Mapping[str, str] | None = None, *, start: int = 0, named_by: str | None = None
    ) -> Iterator[bytes]:
        """The body from byte ``start``, in pieces; a connection that breaks is taken up where it broke.

        The server need not know ranges: what was seen already is then read again and dropped. Whether the pieces are
        of one and the same object is the caller's to check, by a hash.
        """
        from urllib3.exceptions import HTTPError

        position, failures = start, 0
        while True:
            ranged = {**(headers or {}), "Range": f"bytes={position}-"} if position else headers
            try:
                with self.open(url, ranged, named_by=named_by) as answer:
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
        self,
        url: str,
        body: Callable[[], Iterator[bytes]],
        size: int,
        headers: Mapping[str, str] | None = None,
        *,
        named_by: str | None = None,
    ) -> None:
        """Send ``size`` bytes, which ``body`` gives anew for each attempt; a redirect is refused.

        Raises `AccessDenied`, `StoreUnavailable`, `StorageError`, and what ``body`` raises.
        """
        _check_headers(headers or {})
        sent = {**(headers or {}), "Content-Type": "application/octet-stream", "Content-Length": str(size)}

        def request() -> "BaseHTTPResponse":
            return self._pool(url, is_led=self._is_led(url, named_by)).request(
                "PUT", url, body=body(), headers=sent, preload_content=False, redirect=False
            )

        answer = self._retried(url, request)
        _drop(answer)
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
        from urllib3.exceptions import HTTPError

        from dagster_versioned.storage.public_network import CheckedConnection, CheckedConnectionOverTls

        parts, proxy = urlsplit(check_url(url)), self._proxy(url)
        port = _port(parts)
        at, at_port = (parts, port) if proxy is None else (urlsplit(proxy), urlsplit(proxy).port or 80)
        kind = CheckedConnectionOverTls if parts.scheme == "https" else CheckedConnection
        check = self._check(is_led=self._public_only)
        made = kind(at.hostname or "", at_port, timeout=self._timeout, check=check)
        if proxy is not None:
            made.set_tunnel(parts.hostname or "", port, _login(at), at.scheme)
        try:
            made.connect()
        except (HTTPError, OSError) as error:
            made.close()
            raise StoreUnavailable(
                f"{shown_url(url)} did not answer ({type(error).__name__}). Check the address, and run again later."
            ) from None
        assert made.sock is not None
        return made.sock

    def _proxy(self, url: str) -> str | None:
        proxy = _proxy_of(url)
        if self._public_only and proxy is not None:
            raise StorageError(
                f"{shown_url(url)!a:.200} would be reached through the proxy of the environment, which does not show "
                "whether that is an address of its network, and whoever named it may be a stranger. Nothing was sent. "
                "Name the host in no_proxy, poll with a manifest of yours (--manifest FILE) or the dataset's key, or "
                "allow local addresses (--local-addresses)."
            )
        return proxy

    def _check(self, *, is_led: bool) -> "Check":
        """What is done with a connected socket: who was led there goes to the public network alone."""
        from dagster_versioned.storage.public_network import check_public, leads_outside

        def note(connected: socket.socket, host: str) -> None:
            if leads_outside(connected):
                self._elsewhere.add(host)

        return check_public if is_led else note

    def _is_led(self, url: str, named_by: str | None) -> bool:
        """Whether a URL is to be of the public network. Raises what `check_lead` does, and `check_url`."""
        if named_by is None:
            check_url(url)
            return self._public_only
        check_lead(named_by, url)
        return self._public_only or self._is_elsewhere(named_by)

    def _is_elsewhere(self, url: str) -> bool:
        host = urlsplit(url).hostname
        return host in self._elsewhere or not _is_inside(host)

    def _pool(self, url: str, *, is_led: bool) -> "PoolManager":
        made = self._proxy(url), is_led
        proxy = made[0]
        if made not in self._made:
            from urllib3 import ProxyManager, Timeout

            timeout = Timeout(connect=min(10.0, self._timeout), read=self._timeout)
            if proxy is None:
                from dagster_versioned.storage.public_network import checked_pools

                check = self._check(is_led=is_led)
                self._made[made] = checked_pools(check, maxsize=16, retries=False, timeout=timeout)
            else:
                parts = urlsplit(proxy)
                self._made[made] = ProxyManager(
                    parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl(),
                    proxy_headers=_login(parts),
                    maxsize=16,
                    retries=False,
                    timeout=timeout,
                )
        return self._made[made]

    def _follow(self, method: str, url: str, headers: dict[str, str], named_by: str | None) -> "BaseHTTPResponse":
        first, is_led = named_by or url, self._is_led(url, named_by)
        for _ in range(_MOST_REDIRECTS + 1):
            # Encoded bytes would not be those that were hashed.
            asked = {"Accept-Encoding": "identity", **headers}
            answer = self._pool(url, is_led=is_led).request(
                method, url, headers=asked, preload_content=False, redirect=False, decode_content=False
            )
            to = answer.headers.get("Location")
            if answer.status not in _REDIRECTS or to is None:
                return answer
            _drop(answer)
            target = check_lead(url, urljoin(url, to), first)
            is_led = is_led or self._is_elsewhere(url)
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
                _drop(answer)
            DOWNLOAD.pause(attempt)
        raise AssertionError("unreachable: attempts is at least 1")


def _drop(answer: "BaseHTTPResponse") -> None:
    answer.close()
    answer.release_conn()


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


def _login(proxy: SplitResult) -> Mapping[str, str]:
    """The headers for the user and the password that the URL of a proxy holds, if any."""
    from urllib3 import make_headers

    name = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}" if proxy.username else None
    return make_headers(proxy_basic_auth=name)


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
    """Whether a host is this machine or in its network, and nowhere else, as far as names tell here."""
    found = _public(host)
    return bool(found) and not any(found)


def _public(host: str | None) -> list[bool]:
    """Whether each address of a host is of the public network."""
    from dagster_versioned.storage.public_network import is_public

    try:
        return [is_public(str(answer[4][0])) for answer in socket.getaddrinfo(host, None)]
    except (OSError, UnicodeError):
        return []


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
