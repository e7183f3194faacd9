"""A dataset over HTTP: by name, as any server of static files would have it, and by the smart transfer protocol."""

import asyncio
import math
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from ipaddress import ip_address
from urllib.parse import urlsplit

import orjson

from dagster_versioned.errors import InvalidInput, ObjectNotFound, VersionedError
from dagster_versioned.extras import requiring
from dagster_versioned.odf.sharing.guests import ArchiveRoom, Door, Limits, Peer
from dagster_versioned.odf.sharing.remote import CHECKPOINTS, REFERENCES, SIGNED, RemoteDataset
from dagster_versioned.odf.sharing.smart.channel import ChannelClosed
from dagster_versioned.odf.sharing.smart.conversation import Conversation, TextProtocol, in_thread, waited_for
from dagster_versioned.odf.sharing.smart.messages import VERSION, VERSION_HEADER
from dagster_versioned.odf.sharing.smart.pull_server import answer_pull
from dagster_versioned.odf.sharing.smart.push_server import Pushes, Receiver, answer_push
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.chain_head import BLOCKS
from dagster_versioned.tables.parts import SLICES

with requiring("serve", "A server of datasets"):
    import uvicorn
    from starlette.applications import Starlette
    from starlette.background import BackgroundTask
    from starlette.concurrency import run_in_threadpool
    from starlette.middleware import Middleware
    from starlette.requests import HTTPConnection, Request
    from starlette.responses import PlainTextResponse, Response, StreamingResponse
    from starlette.routing import Route, WebSocketRoute
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
    from starlette.websockets import WebSocket, WebSocketDisconnect

_SERVED = re.compile(
    rf"{REFERENCES}[a-z0-9-]{{1,63}}(?:{re.escape(SIGNED)})?|(?:{BLOCKS}|{SLICES}|{CHECKPOINTS})[A-Za-z0-9]{{1,200}}"
)
_HOST = re.compile(r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
_SENT_BYTES, _READ_BYTES = 512 * 1024, 64 * 1024
"""The pieces of a file of a bucket, and of a folder."""
_REASON_BYTES = 123
"""What a WebSocket's close has room for."""
_BYTES = "application/octet-stream"
_FULL = "Too many clients converse with this server. Come again later."
CONVERSATIONS = {"/pull": 64, "/push": 8}
"""How many clients may converse at once: each has a thread, and the blocks that it is sent in the server's memory."""


class DatasetServer:
    """A server that listens already, and answers once it runs: ``serve_forever()``, ``shutdown()``."""

    def __init__(self, door: Door, app: Starlette) -> None:
        self._door = door
        self._claim = threading.Lock()
        """Who has it first serves and closes the door in the end, or closes it unserved."""
        self.config = uvicorn.Config(
            app,
            loop="asyncio",
            http="h11",
            ws=TextProtocol,
            ws_ping_interval=None,
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(self.config)

    @property
    def server_address(self) -> Peer:
        return self._door.getsockname()[:2]

    def serve_forever(self) -> None:
        """Answer until `shutdown`, or until a signal comes, which is raised once connections are closed."""
        if not self._claim.acquire(blocking=False):
            return
        try:
            self._server.run(sockets=[self._door])
        finally:
            self._door.close()

    def shutdown(self) -> None:
        """Have it end, soon; from any thread."""
        self._server.should_exit = True

    def __enter__(self) -> "DatasetServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        if self._claim.acquire(blocking=False):
            self._door.close()


def server(
    store: ObjectStore,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    url: str | None = None,
    receiver: Receiver | None = None,
    limits: Limits | None = None,
    log: Callable[[str], object] = lambda line: sys.stderr.write(f"{line}\n"),
) -> DatasetServer:
    """A server of a dataset's folder, not started yet: ``serve_forever()``, ``shutdown()``.

    Nothing but references, blocks, slices and checkpoints is served: no log, no listing, nothing that is staged.
    ``url`` is where clients of the smart protocol find it, where that is not the host that they asked; ``receiver``
    takes what they push. A request for a host that is no address, nor this machine by its name, ``host`` or that of
    ``url``, is refused: a page in a browser may have made a name of its own lead here. Raises `InvalidInput` for an
    address at which nothing can listen.
    """
    limits = limits or Limits()
    if url is not None:
        limits = replace(limits, of_a_peer=limits.connections, archive_bytes_of_a_peer=limits.archive_bytes)
    try:
        door = Door.at(host, port, limits)
    except OSError as error:
        raise InvalidInput(
            f"Nothing can listen at {host}:{port} ({error.strerror or error}). Nothing is served. Give another address "
            "or port."
        ) from None
    names = {"localhost", host.lower(), socket.gethostname().lower(), urlsplit(url or "").hostname or "localhost"}
    served = _ServedDataset(store, door, url, receiver, ArchiveRoom(limits))
    app = Starlette(
        routes=[
            *(WebSocketRoute(path, served.converse) for path in served.room),
            *(Route(path, _ask_for_upgrade) for path in served.room),
            Route("/push/{secret}/{key:path}", served.take, methods=["PUT"]),
            Route("/{key:path}", served.file),
        ],
        middleware=[Middleware(_Entrance, door=door, names=names, log=log)],
    )
    return DatasetServer(door, app)


@dataclass(frozen=True)
class _Entrance:
    """Each request is noted, has its time, and is for this server."""

    app: ASGIApp
    door: Door
    names: set[str]
    log: Callable[[str], object]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def noted(message: Message) -> None:
            if "status" in message or message["type"] == "websocket.accept":
                self._note(scope, message.get("status", 101))
            await send(message)

        self.door.give(scope["client"], 0)
        named = _HOST.fullmatch(HTTPConnection(scope).headers.get("host", "localhost"))
        if named is not None and (named[1].lower() in self.names or _is_address(named[1])):
            await self.app(scope, receive, noted)
            return
        refusal = _refusal(421, "It is not called so. Ask for it by its address, or start it with --url.")
        if scope["type"] == "websocket":
            await WebSocket(scope, receive, noted).send_denial_response(refusal)
        else:
            await refusal(scope, receive, noted)

    def _note(self, scope: Scope, status: int) -> None:
        # Who knows where a file is to be sent may send it.
        path = re.sub(r"/push/[^/ ]+", "/push/…", scope["raw_path"].decode(errors="replace"))
        line = f'"{scope.get("method", "GET")} {path} HTTP/{scope["http_version"]}" {status}'
        self.log(f"{scope['client'][0]} - - [{datetime.now():%d/%b/%Y %H:%M:%S}] {line}")


@dataclass(frozen=True)
class _ServedDataset:
    """A dataset's folder, and who converses about it."""

    store: ObjectStore
    door: Door
    url: str | None
    receiver: Receiver | None
    archives: ArchiveRoom
    pushes: Pushes = field(default_factory=Pushes)
    room: dict[str, asyncio.Semaphore] = field(
        default_factory=lambda: {path: asyncio.Semaphore(most) for path, most in CONVERSATIONS.items()}
    )
    under_way: dict[Peer, tuple[str, Conversation]] = field(default_factory=dict[Peer, tuple[str, Conversation]])
    """The conversations, with their paths, by connection."""

    async def file(self, request: Request) -> Response:
        """Send what is called so, of which so little is in memory that many may wait for slow clients."""
        key, peer = request.path_params["key"], _peer(request)
        if not _SERVED.fullmatch(key):
            return _refusal(404, "Nothing is called so.")
        try:
            size = (await run_in_threadpool(self.store.head, key)).size
        except ObjectNotFound:
            return _refusal(404, "Nothing is called so.")
        except VersionedError:
            return _refusal(503, "It cannot be read now.")
        # A head changes, all else is named by its hash.
        lasts = "no-cache" if key.startswith(REFERENCES) else "public, max-age=31536000, immutable"
        headers = {"Content-Length": str(size), "Cache-Control": lasts}
        if request.method == "HEAD":
            return Response(headers=headers, media_type=_BYTES)
        self._hear(peer)
        self.door.give(peer, size / self.door.limits.bytes_a_second)
        heard = BackgroundTask(self._hear, peer)
        return StreamingResponse(self._pieces(key, size), headers=headers, media_type=_BYTES, background=heard)

    def _pieces(self, key: str, size: int) -> Iterator[bytes]:
        if (path := self.store.local_path(key)) is not None:
            with path.open("rb") as file:
                while data := file.read(_READ_BYTES):
                    yield data
            return
        for start in range(0, size, _SENT_BYTES):
            yield self.store.get_range(key, start, _SENT_BYTES)

    def _hear(self, peer: Peer) -> None:
        """A client that fetches files is not silent in its conversation."""
        for _, conversation in list(self.under_way.values()):
            if conversation.host == peer[0]:
                conversation.heard = time.monotonic()

    async def take(self, request: Request) -> Response:
        """Take a file of a push that is under way, at the URL that was made for it."""
        push = self.pushes.get(request.path_params["secret"])
        file = push.files.get(request.path_params["key"]) if push is not None else None
        if push is None or file is None:
            return _refusal(404, "Nothing is taken here.")
        if request.headers.get("Content-Length") != str(file.size) or "Transfer-Encoding" in request.headers:
            return _refusal(400, f"The file has {file.size} bytes, and so is to have what is sent.")
        self.door.give(_peer(request), file.size / self.door.limits.bytes_a_second)
        loop, arriving = asyncio.get_running_loop(), request.stream()

        async def next_piece() -> bytes:
            async for data in arriving:
                if data:
                    return data
            return b""

        try:
            body = iter(lambda: waited_for(next_piece(), loop), b"")
            await in_thread(partial(push.receive, file, body))
        except VersionedError:
            return _refusal(422, "It is not what its hash says. Nothing of it was kept.")
        return Response(status_code=201)

    async def converse(self, opened: WebSocket) -> None:
        """Go over to the smart protocol, if there is room and the client may, and knows the same version of it."""
        path, peer = opened.url.path, _peer(opened)
        receiver = self.receiver if path == "/push" else None
        refusal = self._refuse(opened, path) or await self._make_room(path)
        if refusal is not None:
            await opened.send_denial_response(refusal)
            return
        conversation = Conversation(opened, peer[0], self.archives)
        self.under_way[peer] = path, conversation
        try:
            await opened.accept()
            self.door.give(peer, math.inf)  # its messages have times of their own
            base = (self.url or f"http://{opened.headers['Host']}").rstrip("/")
            sentence = await in_thread(partial(self._talk, conversation, receiver, base))
            with suppress(WebSocketDisconnect):
                await _hang_up(opened, sentence)
        finally:
            del self.under_way[peer]
            self.room[path].release()

    def _refuse(self, opened: WebSocket, path: str) -> Response | None:
        if path == "/push" and self.receiver is None:
            return _refusal(403, "Nothing is pushed to this server.")
        if (
            path == "/push"
            and self.receiver is not None
            and not self.receiver.admits(opened.headers.get("Authorization"))
        ):
            return _refusal(401, "The token is missing or wrong.", **{"WWW-Authenticate": "Bearer"})
        # A page in a browser names where it is from: none of them is to reach a server in its reader's network.
        if "Origin" in opened.headers:
            return _refusal(403, "No page of a browser converses with this server.")
        if opened.headers.get(VERSION_HEADER) != VERSION:
            return _refusal(400, f"Incompatible client version: {VERSION_HEADER} is to be {VERSION}.")
        return None

    async def _make_room(self, path: str) -> Response | None:
        """Hang up on the conversation that has been silent for longest, if that is too long and there is no room."""
        room = self.room[path]
        if room.locked():
            silent = sorted(
                (conversation.heard, peer) for peer, (at, conversation) in self.under_way.items() if at == path
            )
            if not silent or time.monotonic() - silent[0][0] < self.door.limits.silent_seconds:
                return _refusal(503, _FULL)
            self.door.cut_off(silent[0][1])
        try:
            await asyncio.wait_for(room.acquire(), 5)
        except TimeoutError:
            return _refusal(503, _FULL)
        return None

    def _talk(self, conversation: Conversation, receiver: Receiver | None, base: str) -> str | None:
        """Converse from the first message to the last; what the client is told of what went wrong."""
        try:
            if receiver is not None:
                answer_push(conversation, receiver, base, self.pushes)
            else:
                answer_pull(conversation, RemoteDataset(self.store), base)
        except ChannelClosed:
            pass
        except TimeoutError:
            return "Nothing was sent for too long. Connect again: what was copied is kept."
        except VersionedError as error:
            return str(error).replace(self.store.uri, "the dataset")
        return None


async def _hang_up(opened: WebSocket, sentence: str | None) -> None:
    """End a conversation, in order, or because of what the sentence says; all of it is sent as a text before.

    As a string, which no message of the protocol is: kamu takes any object, also a refusal, for a push's good end.
    """
    if sentence is None:
        await opened.close()
        return
    await opened.send_text(orjson.dumps(sentence).decode())
    await opened.close(1011, sentence.encode()[:_REASON_BYTES].decode(errors="ignore"))


async def _ask_for_upgrade(request: Request) -> Response:
    return _refusal(426, "Here is a WebSocket.", Upgrade="websocket")


def _refusal(status: int, sentence: str, **headers: str) -> Response:
    return PlainTextResponse(f"{sentence}\n", status, {"Connection": "close", **headers})


def _peer(connection: HTTPConnection) -> Peer:
    assert connection.client is not None  # a socket of TCP
    return connection.client.host, connection.client.port


def _is_address(host: str) -> bool:
    try:
        return bool(ip_address(host.strip("[]")))
    except ValueError:
        return False
