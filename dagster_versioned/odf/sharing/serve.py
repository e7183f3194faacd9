"""A dataset over HTTP: by name, as any server of static files would have it, and by the smart transfer protocol."""

import math
import re
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from ipaddress import ip_address
from threading import BoundedSemaphore, Lock
from typing import Any
from urllib.parse import urlsplit

from dagster_versioned.errors import InvalidInput, ObjectNotFound, VersionedError
from dagster_versioned.extras import requiring
from dagster_versioned.odf.sharing.remote import CHECKPOINTS, REFERENCES, SIGNED, RemoteDataset
from dagster_versioned.odf.sharing.smart.channel import Channel, Closed
from dagster_versioned.odf.sharing.smart.messages import MAX_MESSAGE_BYTES, VERSION, VERSION_HEADER
from dagster_versioned.odf.sharing.smart.pull_server import answer_pull
from dagster_versioned.odf.sharing.smart.push_server import Pushes, Receiver, answer_push
from dagster_versioned.storage.http import CHUNK_BYTES
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.chain_head import BLOCKS
from dagster_versioned.tables.parts import SLICES

_SERVED = re.compile(
    rf"{REFERENCES}[a-z0-9-]{{1,63}}(?:{re.escape(SIGNED)})?|(?:{BLOCKS}|{SLICES}|{CHECKPOINTS})[A-Za-z0-9]{{1,200}}"
)
_UPLOAD = re.compile(rf"/push/([A-Za-z0-9_-]{{1,100}})/((?:{SLICES}|{CHECKPOINTS})[A-Za-z0-9]{{1,200}})")
_HOST = re.compile(r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
_SENT_BYTES = 512 * 1024
_SILENCE_SECONDS = 60.0
"""How long a client may be silent within a request, and within a message."""
CONVERSATIONS = {"/pull": 64, "/push": 8}
"""How many clients may converse at once: each has the blocks that it sends, or is sent, in the server's memory."""
_QUESTION_BYTES = 1024**2
"""What who pulls may say at once: it names a block, or some files."""


@dataclass(frozen=True)
class Limits:
    """What strangers may take of a server.

    ``connections`` are in all, ``of_a_peer`` from one address (all, where a proxy stands before it). A request's head
    has ``head_seconds`` to arrive, its body or answer a second more for each ``bytes_a_second``. A conversation that
    was silent for ``silent_seconds`` gives way where there is no room for another one.
    """

    connections: int = 256
    of_a_peer: int = 160
    head_seconds: float = 20.0
    bytes_a_second: int = 16 * 1024
    silent_seconds: float = 30.0


class DatasetServer(ThreadingHTTPServer):
    """One whose connections are counted, and each is over in a time."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, at: tuple[str, int], handler: type[BaseHTTPRequestHandler], limits: Limits) -> None:
        self.limits = limits
        self._until: dict[socket.socket, tuple[str, float]] = {}  # by connection: its peer, and when it is cut off
        self._lock = Lock()
        super().__init__(at, handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        connected, peer = super().get_request()
        until = time.monotonic() + self.limits.head_seconds
        with self._lock:
            self._until[connected] = str(peer[0]), until
        return connected, peer

    def verify_request(self, request: Any, client_address: Any) -> bool:
        with self._lock:
            from_it = sum(peer == str(client_address[0]) for peer, _ in self._until.values())
            return len(self._until) <= self.limits.connections and from_it <= self.limits.of_a_peer

    def give(self, connected: socket.socket, seconds: float) -> None:
        """Let a connection last so much longer than its head may, from now."""
        with self._lock:
            if connected in self._until:
                until = time.monotonic() + self.limits.head_seconds + seconds
                self._until[connected] = self._until[connected][0], until

    def service_actions(self) -> None:
        """Cut off what has lasted too long; called twice a second."""
        with self._lock:
            for connected, (_, until) in self._until.items():
                if until < time.monotonic():
                    with suppress(OSError):
                        connected.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._until.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # a client that went away, or was cut off, is no error
            super().handle_error(request, client_address)


def server(
    store: ObjectStore,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    url: str | None = None,
    receiver: Receiver | None = None,
    limits: Limits | None = None,
) -> DatasetServer:
    """A server of a dataset's folder, not started yet: ``serve_forever()``, ``shutdown()``.

    Nothing but references, blocks, slices and checkpoints is served: no log, no listing, nothing that is staged.
    ``url`` is where clients of the smart protocol find it, where that is not the host that they asked; ``receiver``
    takes what they push. A request for a host that is no address, nor this machine by its name, ``host`` or that of
    ``url``, is refused: a page in a browser may have made a name of its own lead here. Raises `InvalidInput` for an
    address at which nothing can listen, and `MissingExtra`.
    """
    with requiring("odf", "A server of datasets"):
        import_module("websockets.server")  # it is missing here rather than at the first request
    room = {path: BoundedSemaphore(most) for path, most in CONVERSATIONS.items()}
    limits = limits or Limits()
    if url is not None:
        limits = replace(limits, of_a_peer=limits.connections)
    names = {"localhost", host.lower(), socket.gethostname().lower(), urlsplit(url or "").hostname or "localhost"}
    members = {
        "store": store,
        "url": url,
        "receiver": receiver,
        "pushes": Pushes(),
        "room": room,
        "names": names,
        "channels": {path: dict[Channel, str]() for path in room},
    }
    handler = type("DatasetRequest", (_Request,), members)
    try:
        return DatasetServer((host, port), handler, limits)
    except OSError as error:
        raise InvalidInput(
            f"Nothing can listen at {host}:{port} ({error.strerror or error}). Nothing is served. Give another address "
            "or port."
        ) from None


class _Request(BaseHTTPRequestHandler):
    store: ObjectStore  # set on a subclass per server
    url: str | None
    receiver: Receiver | None
    pushes: Pushes
    room: Mapping[str, BoundedSemaphore]
    names: Set[str]
    channels: Mapping[str, dict[Channel, str]]  # with the address of each one
    server: DatasetServer  # pyright: ignore[reportIncompatibleVariableOverride] - the base class knows less of it
    timeout = _SILENCE_SECONDS

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that the base class gives it
        # Who knows where a file is to be sent may send it.
        super().log_message("%s", re.sub(r"/push/[^/ ]+", "/push/…", format % args))

    def parse_request(self) -> bool:
        """Take a head that has arrived, unless it is for another host."""
        if not super().parse_request():
            return False
        named = _HOST.fullmatch(self.headers.get("Host", "localhost"))
        if named is None or not (named[1].lower() in self.names or _is_address(named[1])):
            self.send_error(421, explain="It is not called so. Ask for it by its address, or start it with --url.")
            return False
        self.server.give(self.connection, 0)
        return True

    def do_GET(self) -> None:
        if self.path in ("/pull", "/push"):
            self._admit()
        else:
            self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        key = self.path.lstrip("/")
        if not _SERVED.fullmatch(key):
            self.send_error(404)
            return
        try:
            info = self.store.head(key)
        except ObjectNotFound:
            self.send_error(404)
            return
        except VersionedError:
            self.send_error(503)
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(info.size))
        # A head changes, all else is named by its hash.
        lasts = "no-cache" if key.startswith(REFERENCES) else "public, max-age=31536000, immutable"
        self.send_header("Cache-Control", lasts)
        self.end_headers()
        if with_body:
            self._heard()
            self.server.give(self.connection, info.size / self.server.limits.bytes_a_second)
            self._send(key, info.size)
            self._heard()

    def _send(self, key: str, size: int) -> None:
        """A file, of which so little is in memory that many may wait for slow clients."""
        if (path := self.store.local_path(key)) is not None:
            with path.open("rb") as file:
                self.connection.sendfile(file)
            return
        for start in range(0, size, _SENT_BYTES):
            self.wfile.write(self.store.get_range(key, start, _SENT_BYTES))

    def _heard(self) -> None:
        """A client that fetches files is not silent in its conversation."""
        for channel, peer in [one for channels in self.channels.values() for one in list(channels.items())]:
            if peer == self.client_address[0]:
                channel.heard = time.monotonic()

    def do_PUT(self) -> None:
        """Take a file of a push that is under way, at the URL that was made for it."""
        self.close_connection = True
        found = _UPLOAD.fullmatch(self.path)
        push = self.pushes.get(found[1]) if found is not None else None
        file = push.files.get(found[2]) if push is not None and found is not None else None
        if push is None or file is None:
            self.send_error(404)
            return
        if self.headers.get("Content-Length") != str(file.size) or "Transfer-Encoding" in self.headers:
            self.send_error(400, explain=f"The file has {file.size} bytes, and so is to have what is sent.")
            return
        self.server.give(self.connection, file.size / self.server.limits.bytes_a_second)
        try:
            push.receive(file, self._body(file.size))
        except VersionedError:
            self.send_error(422, explain="It is not what its hash says. Nothing of it was kept.")
        except OSError:
            self.send_error(408)
        else:
            self.send_response(201)
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _body(self, size: int) -> Iterator[bytes]:
        while size > 0 and (data := self.rfile.read(min(size, CHUNK_BYTES))):
            size -= len(data)
            yield data

    def _admit(self) -> None:
        """Converse with a client that there is room for."""
        self.close_connection = True
        room = self.room[self.path]
        is_free = room.acquire(blocking=False) or (self._make_room() and room.acquire(timeout=5))
        try:
            self._converse(is_free=is_free)
        finally:
            if is_free:
                room.release()

    def _make_room(self) -> bool:
        """Hang up on the conversation that has been silent for longest, if that is too long."""
        channels = sorted(self.channels[self.path], key=lambda channel: channel.heard)
        if not channels or time.monotonic() - channels[0].heard < self.server.limits.silent_seconds:
            return False
        channels[0].hang_up()
        return True

    def _converse(self, *, is_free: bool) -> None:
        """Go over to the smart protocol, if the client knows the same version of it."""
        from websockets.datastructures import Headers
        from websockets.http11 import Request
        from websockets.server import ServerProtocol

        # A page in a browser names where it is from: none of them is to reach a server in its reader's network.
        handshake = ServerProtocol(origins=[None])
        receiver = self.receiver if self.path == "/push" else None
        if self.path == "/push" and receiver is None:
            response = handshake.reject(403, "Nothing is pushed to this server.\n")
        elif receiver is not None and not receiver.admits(self.headers.get("Authorization")):
            response = handshake.reject(401, "The token is missing or wrong.\n")
            response.headers["WWW-Authenticate"] = "Bearer"
        elif not is_free:
            response = handshake.reject(503, "Too many clients converse with this server. Come again later.\n")
        elif self.headers.get(VERSION_HEADER) == VERSION:
            response = handshake.accept(Request(self.path, Headers(self.headers.items())))
        else:
            response = handshake.reject(400, f"Incompatible client version: {VERSION_HEADER} is to be {VERSION}.\n")
        handshake.send_response(response)
        for data in handshake.data_to_send():
            self.wfile.write(data)
        self.log_request(response.status_code)
        if response.status_code == 101:
            self._transfer(receiver)

    def _transfer(self, receiver: Receiver | None) -> None:
        """The conversation, from its first message to its end."""
        from websockets.protocol import Protocol, Side

        protocol = Protocol(Side.SERVER, max_size=_QUESTION_BYTES if receiver is None else MAX_MESSAGE_BYTES)
        channel = Channel(self.connection, protocol, "The client", _SILENCE_SECONDS)
        self.server.give(self.connection, math.inf)  # its messages have times of their own
        self.channels[self.path][channel] = self.client_address[0]
        sentence = None
        try:
            if receiver is not None:
                answer_push(channel, receiver, self._base(), self.pushes)
            else:
                answer_pull(channel, RemoteDataset(self.store), self._base())
        except Closed:
            pass
        except TimeoutError:
            sentence = "Nothing was sent for too long. Connect again: what was copied is kept."
        except VersionedError as error:
            sentence = str(error).replace(self.store.uri, "the dataset")
        finally:
            del self.channels[self.path][channel]
            channel.close(sentence)

    def _base(self) -> str:
        """Where files are found: where the client found this server, unless it stands behind another one."""
        if self.url is not None:
            return self.url.rstrip("/")
        host = self.headers.get("Host", "")
        if not _HOST.fullmatch(host):
            name, port, *_ = self.connection.getsockname()
            host = f"{name}:{port}"
        return f"http://{host}"


def _is_address(host: str) -> bool:
    try:
        return bool(ip_address(host.strip("[]")))
    except ValueError:
        return False
