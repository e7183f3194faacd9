"""The server's end of a WebSocket of texts: each text whole, of a bounded size, and within a time."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractContextManager
from threading import Thread
from typing import Any, TypeVar

from dagster_versioned.errors import IntegrityError
from dagster_versioned.extras import requiring
from dagster_versioned.odf.sharing.guests import ArchiveRoom
from dagster_versioned.odf.sharing.smart.channel import ChannelClosed
from dagster_versioned.odf.sharing.smart.messages import MAX_MESSAGE_BYTES

with requiring("serve", "A server of datasets"):
    from starlette.websockets import WebSocket, WebSocketDisconnect
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
    from websockets.http11 import Request

_T = TypeVar("_T")

SILENCE_SECONDS = 60.0
"""How long a client may be silent within a message, and take to read one."""
QUESTION_BYTES = 1024**2
"""What who pulls may say at once: it names a block, or some files."""
_WAITING = 16
"""How many messages may wait to be read; neither end has more than two to say before it is answered."""


class TextProtocol(WebSocketsSansIOProtocol):
    """A WebSocket whose client has little room in the server's memory, in both directions."""

    _stalled: asyncio.TimerHandle | None = None

    def handle_connect(self, event: Request) -> None:
        self.conn.max_message_size = MAX_MESSAGE_BYTES if event.path == "/push" else QUESTION_BYTES
        super().handle_connect(event)

    def send_receive_event_to_app(self) -> None:
        if self.queue.qsize() < _WAITING:
            super().send_receive_event_to_app()
        else:
            self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(SILENCE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
        super().resume_writing()

    async def send(self, message: Any) -> None:
        """Send a message, and wait until all of it but a little was taken."""
        await super().send(message)
        await self.writable.wait()


class Conversation:
    """Texts to and from a client, for the thread that talks to it while the server's loop serves others."""

    origin = "The client"

    def __init__(self, opened: WebSocket, host: str, room: ArchiveRoom) -> None:
        self.host = host
        self.heard = time.monotonic()
        """When a text arrived last, or a file was asked for beside it."""
        self._opened = opened
        self._room = room
        self._loop = asyncio.get_running_loop()

    def send(self, text: str) -> None:
        """Return when it was read. Raises `ChannelClosed`."""
        try:
            waited_for(self._opened.send_text(text), self._loop)
        except WebSocketDisconnect as gone:
            raise ChannelClosed(gone.code, gone.reason) from None

    def receive(self, timeout: float | None = None) -> str:
        """The next text, which has the timeout for all of it.

        Raises `TimeoutError`, `ChannelClosed`, `IntegrityError`.
        """
        seconds = SILENCE_SECONDS if timeout is None else timeout
        event = waited_for(asyncio.wait_for(self._opened.receive(), seconds), self._loop)
        if event["type"] == "websocket.disconnect":
            raise ChannelClosed(event.get("code"), event.get("reason") or "")
        text = event.get("text")
        if text is None:
            raise IntegrityError(f"{self.origin} sent bytes, and the smart transfer protocol has texts.")
        self.heard = time.monotonic()
        return text

    def archive_room(self, size: int) -> AbstractContextManager[None]:
        """The memory for an archive of blocks, until it was sent. Raises `StoreUnavailable`."""
        return self._room.held(self.host, size)


def waited_for(answer: Coroutine[object, object, _T], loop: asyncio.AbstractEventLoop) -> _T:
    """What a coroutine of the loop returns, for another thread."""
    return asyncio.run_coroutine_threadsafe(answer, loop).result()


async def in_thread(do: Callable[[], _T]) -> _T:
    """What a thread of its own returns, however long it takes: who stops the server does not wait for it."""
    done: Future[_T] = Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            done.set_result(do())
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            done.set_exception(error)

    Thread(target=run, daemon=True).start()
    return await asyncio.wrap_future(done)
