"""A dataset over HTTP: by name, as any server of static files would have it, and by the smart transfer protocol."""

import re
import shutil
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from io import BytesIO
from threading import BoundedSemaphore
from typing import IO

from dagster_versioned.errors import InvalidInput, ObjectNotFound, VersionedError
from dagster_versioned.extras import requiring
from dagster_versioned.odf.sharing.remote import CHECKPOINTS, REFERENCES, SIGNED, RemoteDataset
from dagster_versioned.odf.sharing.smart.channel import Channel, Closed
from dagster_versioned.odf.sharing.smart.messages import MAX_MESSAGE_BYTES, VERSION, VERSION_HEADER
from dagster_versioned.odf.sharing.smart.pull_server import answer_pull
from dagster_versioned.odf.sharing.smart.push_server import Pushes, Receiver, answer_push
from dagster_versioned.storage.http import CHUNK_BYTES
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.storage.transfer import PIECE_BYTES
from dagster_versioned.tables.chain_head import BLOCKS
from dagster_versioned.tables.parts import SLICES

_SERVED = re.compile(
    rf"{REFERENCES}[a-z0-9-]{{1,63}}(?:{re.escape(SIGNED)})?|(?:{BLOCKS}|{SLICES}|{CHECKPOINTS})[A-Za-z0-9]{{1,200}}"
)
_UPLOAD = re.compile(rf"/push/([A-Za-z0-9_-]{{1,100}})/((?:{SLICES}|{CHECKPOINTS})[A-Za-z0-9]{{1,200}})")
_HOST = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
_SILENCE_SECONDS = 60.0
"""How long a client may be silent within a request, and within a message."""
CONVERSATIONS = {"/pull": 64, "/push": 8}
"""How many clients may converse at once: each has the blocks that it sends, or is sent, in the server's memory."""


def server(
    store: ObjectStore,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    url: str | None = None,
    receiver: Receiver | None = None,
) -> ThreadingHTTPServer:
    """A server of a dataset's folder, not started yet: ``serve_forever()``, ``shutdown()``.

    Nothing but references, blocks, slices and checkpoints is served: no log, no listing, nothing that is staged.
    ``url`` is where clients of the smart protocol find it, where that is not the host that they asked; ``receiver``
    takes what they push. Raises `InvalidInput` for an address at which nothing can listen, and `MissingExtra`.
    """
    with requiring("odf", "A server of datasets"):
        import_module("websockets.server")  # it is missing here rather than at the first request
    room = {path: BoundedSemaphore(most) for path, most in CONVERSATIONS.items()}
    members = {"store": store, "url": url, "receiver": receiver, "pushes": Pushes(), "room": room}
    handler = type("DatasetRequest", (_Request,), members)
    try:
        return ThreadingHTTPServer((host, port), handler)
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
    timeout = _SILENCE_SECONDS

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that the base class gives it
        # Who knows where a file is to be sent may send it.
        super().log_message("%s", re.sub(r"/push/[^/ ]+", "/push/…", format % args))

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
            for start in range(0, info.size, PIECE_BYTES):
                shutil.copyfileobj(self._piece(key, start), self.wfile)

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

    def _piece(self, key: str, start: int) -> IO[bytes]:
        return BytesIO(self.store.get_range(key, start, PIECE_BYTES))

    def _admit(self) -> None:
        """Converse with a client that there is room for."""
        self.close_connection = True
        room = self.room[self.path]
        is_free = room.acquire(blocking=False)
        try:
            self._converse(is_free=is_free)
        finally:
            if is_free:
                room.release()

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

        protocol = Protocol(Side.SERVER, max_size=MAX_MESSAGE_BYTES)
        channel = Channel(self.connection, protocol, "The client", _SILENCE_SECONDS)
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
