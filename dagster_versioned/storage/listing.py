"""Listings of servers that compare keys otherwise than by their UTF-8 bytes."""

from collections.abc import Iterator

from dagster_versioned.storage.object_store import ObjectInfo


def in_byte_order(listing: Iterator[ObjectInfo], prefix: str) -> Iterator[ObjectInfo]:
    """Order a listing of a server that compares segment by segment, and so lists ``a/b`` before ``a-b``.

    Keys of one folder directly below ``prefix`` are held back until no key can come that sorts before one of them.
    """
    held: list[ObjectInfo] = []
    folder = ""
    for info in listing:
        name = info.key[len(prefix) :]
        if held and not (name < folder or name.startswith(folder)):
            yield from sorted(held, key=_key)
            held.clear()
        if not held and "/" not in name:
            yield info
            continue
        if not held:
            folder = name[: name.index("/") + 1]
        held.append(info)
    yield from sorted(held, key=_key)


def _key(info: ObjectInfo) -> str:
    return info.key
