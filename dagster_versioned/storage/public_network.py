"""Connections that reach nothing but the public network, whatever a name resolves to at the moment it is used."""
# urllib3 names the method that makes a connection's socket as if it were private, and documents it for subclasses.
# pyright: reportPrivateUsage=false

import socket
from collections.abc import Callable
from functools import partial
from ipaddress import IPv4Address, ip_address, ip_network
from typing import Any

from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager
from urllib3.connection import HTTPConnection, HTTPSConnection

from dagster_versioned.errors import StorageError

_NAT64 = ip_network("64:ff9b::/96")
_UNICAST = ip_network("2000::/3")
_OF_CLOUDS = {ip_address("168.63.129.16")}
"""Global by its number, but in Azure the platform's own services, to each machine from within."""
Check = Callable[[socket.socket, str], object]
"""Looks at a socket that was connected to a host, before a byte is sent; raises where it is not to be used."""


def is_public(address: str) -> bool:
    """Whether an address is of the public network: global, also where it is written into one of another kind.

    An IPv4 address may be inside of an IPv6 one: mapped, of 6to4, of Teredo, or of NAT64. Any other that is no global
    unicast (such as NAT64 of a site, 64:ff9b:1::/48) is not.
    """
    plain = ip_address(address.partition("%")[0])
    if isinstance(plain, IPv4Address):
        return _is_public_v4(plain)
    nat64 = IPv4Address(int(plain) & 0xFFFF_FFFF) if plain in _NAT64 else None
    inside = [
        address for address in (plain.ipv4_mapped, plain.sixtofour, *(plain.teredo or ()), nat64) if address is not None
    ]
    if inside:
        return all(map(_is_public_v4, inside))
    return plain.is_global and plain in _UNICAST


def _is_public_v4(address: IPv4Address) -> bool:
    return address.is_global and not address.is_multicast and address not in _OF_CLOUDS


def leads_outside(connected: socket.socket) -> bool:
    """Whether a socket leads to the public network, and not to this machine by an address that others know it by."""
    address = str(connected.getpeername()[0])
    return is_public(address) and not _is_here(connected)


def checked_pools(check: Check, **options: Any) -> PoolManager:
    """A `urllib3.PoolManager` whose connections ``check`` looks at; a request raises what it raises."""
    pools = PoolManager(**options)
    classes: Any = {"http": partial(_CheckedPool, check=check), "https": partial(_CheckedPoolOverTls, check=check)}
    pools.pool_classes_by_scheme = classes
    return pools


class CheckedConnection(HTTPConnection):
    """One whose socket ``check`` looks at."""

    def __init__(self, *arguments: Any, check: Check, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._check = check

    def _new_conn(self) -> socket.socket:
        made = super()._new_conn()
        self._check(made, self.host)
        return made


class CheckedConnectionOverTls(CheckedConnection, HTTPSConnection):
    """The same over TLS, looked at before the handshake."""


class _CheckedPool(HTTPConnectionPool):
    ConnectionCls = CheckedConnection  # pyright: ignore[reportAssignmentType] - as urllib3's own, by its protocol


class _CheckedPoolOverTls(HTTPSConnectionPool):
    ConnectionCls = CheckedConnectionOverTls  # pyright: ignore[reportAssignmentType] - likewise


def check_public(connected: socket.socket, host: str) -> socket.socket:
    """The socket, if it leads to the public network; else it is closed. Raises `StorageError`."""
    if leads_outside(connected):
        return connected
    address = connected.getpeername()[0]
    connected.close()
    raise StorageError(
        f"{host!a:.200} is {address}, an address of this machine or its network, and whoever named it may be a "
        "stranger. The connection was closed and nothing was read. If you mean that address, name it yourself; of a "
        "source, poll with a manifest of yours (--manifest FILE) or the dataset's key, or allow local addresses "
        "(--local-addresses)."
    )


def _is_here(connected: socket.socket) -> bool:
    """Whether both ends are this machine, be it by an address that others know it by."""
    return connected.getpeername()[0] == connected.getsockname()[0]
