"""What strangers may take of a server: connections, time, and bytes of its memory."""

import asyncio
import math
import socket
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Condition
from typing import Any

from dagster_versioned.errors import StoreUnavailable

Peer = tuple[str, int]
"""The address and port of a connection's other end."""


@dataclass(frozen=True)
class Limits:
    """What strangers may take of a server.

    ``connections`` are in all, ``of_a_peer`` from one address (all, where a proxy stands before it). A request's head
    has ``head_seconds`` to arrive, its body or answer a second more for each ``bytes_a_second``. Archives of blocks
    have ``archive_bytes`` of memory in all, ``archive_bytes_of_a_peer`` for one address, until they are read. A
    conversation that was silent for ``silent_seconds`` gives way where there is no room for another one.
    """

    connections: int = 256
    of_a_peer: int = 160
    head_seconds: float = 20.0
    bytes_a_second: int = 16 * 1024
    archive_bytes: int = 128 * 1024**2
    archive_bytes_of_a_peer: int = 64 * 1024**2
    silent_seconds: float = 30.0


class Door(socket.socket):
    """A listening socket whose connections are counted, and each is over in a time; for one event loop of asyncio."""

    @classmethod
    def at(cls, host: str, port: int, limits: Limits) -> "Door":
        """Raises `OSError` for an address at which nothing can listen."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        door = cls(fileno=socket.create_server((host, port), family=family, backlog=128).detach())
        door.limits = limits
        door._inside = {}
        return door

    limits: Limits
    _inside: dict[Peer, tuple[socket.socket, asyncio.TimerHandle | None]]

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection that there is room for; others are closed."""
        while True:
            connected, address = super().accept()
            peer: Peer = address[:2]
            for left in [peer for peer, (held, _) in self._inside.items() if held.fileno() < 0]:
                self._forget(left)
            from_it = sum(host == peer[0] for host, _ in self._inside)
            if len(self._inside) < self.limits.connections and from_it < self.limits.of_a_peer:
                self._inside[peer] = connected, None
                self.give(peer, 0)
                return connected, address
            connected.close()

    def give(self, peer: Peer, seconds: float) -> None:
        """Let a connection last so much longer than its head may, from now."""
        if peer in self._inside:
            connected = self._forget(peer)
            is_endless = math.isinf(seconds)
            loop = asyncio.get_running_loop()
            timer = None if is_endless else loop.call_later(self.limits.head_seconds + seconds, self.cut_off, peer)
            self._inside[peer] = connected, timer

    def cut_off(self, peer: Peer) -> None:
        if peer in self._inside:
            with suppress(OSError):
                self._inside[peer][0].shutdown(socket.SHUT_RDWR)

    def _forget(self, peer: Peer) -> socket.socket:
        connected, timer = self._inside.pop(peer)
        if timer is not None:
            timer.cancel()
        return connected


class ArchiveRoom:
    """The memory that archives have until they are read, in all and by address. Thread-safe."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._held = Counter[str]()
        self._changed = Condition()

    @contextmanager
    def held(self, host: str, size: int) -> Generator[None]:
        """So many bytes for an address; one archive always fits. Raises `StoreUnavailable` where none get free."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._has_room(host, size), self._limits.silent_seconds):
                raise StoreUnavailable("Too many blocks are being sent. Nothing was sent. Come again later.")
            self._held[host] += size
        try:
            yield
        finally:
            with self._changed:
                self._held[host] -= size
                self._held = +self._held
                self._changed.notify_all()

    def _has_room(self, host: str, size: int) -> bool:
        own, total = self._held[host], self._held.total()
        return (not own or own + size <= self._limits.archive_bytes_of_a_peer) and (
            not total or total + size <= self._limits.archive_bytes
        )
