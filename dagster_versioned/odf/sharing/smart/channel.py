"""The client's end of a WebSocket of texts: each text whole, of a bounded size, and within a time."""

import select
import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dagster_versioned.errors import AccessDenied, IntegrityError, ObjectNotFound, StorageError, StoreUnavailable
from dagster_versioned.extras import requiring
from dagster_versioned.odf.sharing.smart.messages import MAX_MESSAGE_BYTES, VERSION, VERSION_HEADER
from dagster_versioned.storage.http import HttpClient, shown_url

if TYPE_CHECKING:
    from websockets.http11 import Response
    from websockets.protocol import Event, Protocol

_READ_BYTES = 256 * 1024
_NORMAL = 1000


class ChannelClosed(Exception):
    """The other end closed the connection, with a code and a reason, or went away."""

    def __init__(self, code: int | None, reason: str) -> None:
        super().__init__(reason or "it hung up")
        self.code = code


class Channel:
    """Texts to and from ``origin``, over a socket on which the protocol's handshake is done."""

    def __init__(self, connected: socket.socket, protocol: "Protocol", origin: str, timeout: float) -> None:
        self.origin = origin
        self.timeout = timeout
        self._socket = connected
        self._protocol = protocol
        self._text: list[bytes] = []
        self._whole: list[str] = []
        self._end: ChannelClosed | None = None

    def send(self, text: str) -> None:
        """Raises `ChannelClosed`, and `InvalidInput` for what the other end would not read."""
        from websockets.exceptions import InvalidState

        try:
            self._protocol.send_text(text.encode())
            self._flush()
        except InvalidState:
            raise self._end or ChannelClosed(None, "") from None

    def receive(self, timeout: float | None = None) -> str:
        """The next text, which has the timeout for all of it.

        Raises `TimeoutError`, `ChannelClosed`, `IntegrityError`.
        """
        until = time.monotonic() + (self.timeout if timeout is None else timeout)
        while not self._whole:
            if self._end is not None:
                raise self._end
            self._read(until)
        return self._whole.pop(0)

    def close(self) -> None:
        """End it, in order."""
        from websockets.exceptions import InvalidState

        try:
            self._protocol.send_close(_NORMAL)
            self._flush()
            # What the other end still sends is read, or its own system takes from it what it has not read yet.
            until = time.monotonic() + 2
            while self._end is None:
                self._read(until)
                self._whole.clear()
        except (ChannelClosed, InvalidState, TimeoutError, IntegrityError):
            pass
        finally:
            self._socket.close()

    def _read(self, until: float) -> None:
        """Take in what arrives. Raises `TimeoutError` if nothing does, `IntegrityError` for what is no text."""
        data = self._bytes(until)
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        self.take(self._protocol.events_received())
        self._flush()
        if self._end is None and (not data or self._protocol.close_expected()):
            error = self._protocol.parser_exc
            is_large = error is not None and type(error).__name__ == "PayloadTooBig"
            self._end = ChannelClosed(None, f"it sent more than {MAX_MESSAGE_BYTES} bytes at once" if is_large else "")

    def take(self, events: "Sequence[Event]") -> None:
        """Note what frames hold. Raises `IntegrityError` for what is no text."""
        from websockets.frames import Close, Frame, Opcode

        for event in events:
            if not isinstance(event, Frame) or event.opcode in (Opcode.PING, Opcode.PONG):
                continue
            if event.opcode is Opcode.CLOSE:
                close = Close.parse(bytes(event.data))
                self._end = ChannelClosed(close.code, close.reason)
                continue
            self._text.append(bytes(event.data))
            if event.opcode is Opcode.BINARY:
                raise IntegrityError(f"{self.origin} sent bytes, and the smart transfer protocol has texts.")
            if event.fin:
                self._whole.append(self._joined())

    def _joined(self) -> str:
        try:
            return b"".join(self._text).decode()
        except UnicodeDecodeError:
            raise IntegrityError(f"{self.origin} sent a text that is not UTF-8. Nothing was changed.") from None
        finally:
            self._text.clear()

    def _bytes(self, until: float) -> bytes:
        # A TLS socket may have taken in more than it handed out, which `select` does not see.
        pending = getattr(self._socket, "pending", None)
        if pending is None or not pending():
            left = max(0.0, until - time.monotonic())
            if not select.select([self._socket], [], [], left)[0]:
                raise TimeoutError(f"{self.origin} sent nothing for too long")
        try:
            return self._socket.recv(_READ_BYTES)
        except TimeoutError:
            raise
        except OSError:
            return b""

    def _flush(self) -> None:
        try:
            for data in self._protocol.data_to_send():
                if data:
                    self._socket.sendall(data)
        except OSError:
            self._end = self._end or ChannelClosed(None, "")
            raise self._end from None


def connect(url: str, token: str | None, client: HttpClient, timeout: float) -> Channel:
    """A channel to the server at a URL (http, https), which is asked for version 1 of the protocol.

    No redirect is followed: the token is for this server alone. Raises `MissingExtra`, `AccessDenied`,
    `ObjectNotFound`, `StoreUnavailable`, `StorageError`.
    """
    with requiring("odf", "The smart transfer protocol"):
        from websockets.client import ClientProtocol
        from websockets.http11 import Response
        from websockets.uri import parse_uri

    shown = shown_url(url)
    protocol = ClientProtocol(parse_uri(f"ws{url.removeprefix('http')}"), max_size=MAX_MESSAGE_BYTES)
    connected = client.connect(url)
    try:
        request = protocol.connect()
        request.headers[VERSION_HEADER] = VERSION
        if token is not None:
            request.headers["Authorization"] = f"Bearer {token}"
        protocol.send_request(request)
        for data in protocol.data_to_send():
            connected.sendall(data)
        events = _answer_events(connected, protocol, timeout)
        answer = events[0]
        assert isinstance(answer, Response)  # the first event of a handshake
        if protocol.handshake_exc is not None:
            raise _no_channel(shown, answer)
        connected.settimeout(timeout)
        opened = Channel(connected, protocol, shown, timeout)
        opened.take(events[1:])
        return opened
    except OSError as error:
        connected.close()
        raise StoreUnavailable(
            f"{shown} did not answer as a WebSocket ({type(error).__name__}). Check the address, and run again later."
        ) from None
    except BaseException:
        connected.close()
        raise


def _answer_events(connected: socket.socket, protocol: "Protocol", timeout: float) -> "list[Event]":
    """What came first after a request of a handshake, within the time. Raises `OSError`."""
    until = time.monotonic() + timeout
    while True:
        connected.settimeout(max(0.001, until - time.monotonic()))
        if data := connected.recv(_READ_BYTES):
            protocol.receive_data(data)
        else:
            protocol.receive_eof()
        if events := protocol.events_received():
            return events
        if protocol.handshake_exc is not None:
            raise ConnectionError("no answer of HTTP")


def _no_channel(shown: str, answer: "Response") -> StorageError:
    body = (answer.body or b"")[:200].decode(errors="replace").strip()
    text = f"{shown}: HTTP {answer.status_code}, and no WebSocket{f' ({body!a})' if body else ''}."
    match answer.status_code:
        case 401 | 403:
            return AccessDenied(f"{text} The server refused. Give its token, or ask for one.")
        case 404 | 410:
            return ObjectNotFound(f"{text} No dataset is there. Check the address.")
        case 300 | 301 | 302 | 303 | 307 | 308:
            return StorageError(f"{text} It leads elsewhere, which is refused. Name the address that it leads to.")
        case status if status >= 500:
            return StoreUnavailable(f"{text} The server failed. Run again later.")
        case _:
            return StorageError(f"{text} Check that it is a smart server of version {VERSION}.")
