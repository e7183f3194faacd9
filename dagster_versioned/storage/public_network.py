"""Connections that reach nothing but the public network, whatever a name resolves to at the moment it is used."""
# urllib3 names the method that makes a connection's socket as if it were private, and documents it for subclasses.
# pyright: reportPrivateUsage=false

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager
from urllib3.connection import HTTPConnection, HTTPSConnection

from dagster_versioned.errors import StorageError

_NAT64 = ip_network("64:ff9b::/96")
_OF_CLOUDS = {ip_address("168.63.129.16")}
"""Global by its number, but in Azure the platform's own services, to each machine from within."""


def is_public(address: str) -> bool:
    """Whether an address is of the public network: global, also where it is written into one of another kind.

    An IPv4 address may be inside of an IPv6 one: mapped, of 6to4, of Teredo, or of NAT64.
    """
    plain = ip_address(address.partition("%")[0])
    return all(_is_global(one) for one in (plain, *_inside(plain)) if not _is_mapped(one))


def _is_global(one: IPv4Address | IPv6Address) -> bool:
    of_a_site = isinstance(one, IPv6Address) and one.is_site_local
    return one.is_global and not one.is_multicast and not of_a_site and one not in _OF_CLOUDS


def _is_mapped(one: IPv4Address | IPv6Address) -> bool:
    return isinstance(one, IPv6Address) and one.ipv4_mapped is not None  # what is inside decides


def _inside(one: IPv4Address | IPv6Address) -> list[IPv4Address]:
    if isinstance(one, IPv4Address):
        return []
    nat64 = IPv4Address(int(one) & 0xFFFF_FFFF) if one in _NAT64 else None
    return [found for found in (one.ipv4_mapped, one.sixtofour, *(one.teredo or ()), nat64) if found is not None]


def public_pools(**options: Any) -> PoolManager:
    """A `urllib3.PoolManager` that closes a connection to an address that is not public before a byte is sent.

    The request raises `StorageError` then.
    """
    pools = PoolManager(**options)
    classes: dict[str, type[HTTPConnectionPool | HTTPSConnectionPool]] = {
        "http": _PublicPool,
        "https": _PublicPoolOverTls,
    }
    pools.pool_classes_by_scheme = classes
    return pools


class _PublicConnection(HTTPConnection):
    def _new_conn(self) -> socket.socket:
        return check_public(super()._new_conn(), self.host)


class _PublicConnectionOverTls(HTTPSConnection):
    def _new_conn(self) -> socket.socket:
        return check_public(super()._new_conn(), self.host)


class _PublicPool(HTTPConnectionPool):
    ConnectionCls = _PublicConnection  # pyright: ignore[reportAssignmentType] - as urllib3's own, by its protocol


class _PublicPoolOverTls(HTTPSConnectionPool):
    ConnectionCls = _PublicConnectionOverTls  # pyright: ignore[reportAssignmentType] - likewise


def check_public(connected: socket.socket, host: str) -> socket.socket:
    """The socket, if it leads to the public network; else it is closed. Raises `StorageError`."""
    address = str(connected.getpeername()[0])
    if is_public(address) and not _is_here(connected):
        return connected
    connected.close()
    raise StorageError(
        f"{host!a:.200} is {address}, an address of this machine or its network, and whoever named it may be a "
        "stranger. The connection was closed and nothing was read. If you mean that address, poll with a manifest of "
        "yours (--manifest FILE) or the dataset's key, or allow local addresses (--local-addresses)."
    )


def _is_here(connected: socket.socket) -> bool:
    """Whether both ends are this machine, be it by an address that others know it by."""
    return connected.getpeername()[0] == connected.getsockname()[0]
