"""Names that resolve as a test says, and a part of this machine that is taken for the public network."""

import socket
from collections.abc import Callable
from typing import Any

import pytest

from dagster_versioned.storage import public_network

OUTSIDE, INSIDE = "127.0.0.1", "127.0.0.2"
"""The first stands for the public network, as far as addresses are judged; the second is this machine."""


def outside_is_public(monkeypatch: pytest.MonkeyPatch) -> None:
    real = public_network.is_public

    def is_public(address: str) -> bool:
        return address == OUTSIDE or real(address)

    def is_here(connected: socket.socket) -> bool:
        return False

    monkeypatch.setattr(public_network, "is_public", is_public)
    monkeypatch.setattr(public_network, "_is_here", is_here)


def resolving(monkeypatch: pytest.MonkeyPatch, **names: Callable[[int], list[str]]) -> None:
    """Resolve ``NAME.example`` to what is said of the n-th question, which is asked of no server of names."""
    real, asked = socket.getaddrinfo, dict.fromkeys(names, 0)

    def resolve(host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
        name = str(host).removesuffix(".example")
        if name not in names:
            return real(host, port, *arguments, **options)
        asked[name] += 1
        found = names[name](asked[name])
        return [one for address in found for one in real(address, port, 0, socket.SOCK_STREAM)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
