"""Canonical JSON: one text for one value, so that equal values have equal hashes."""

import json
import math
from collections.abc import Collection, Iterator
from typing import Any, cast

import orjson
import rfc8785

from dagster_versioned.errors import InvalidMetadata

MAX_SAFE_INTEGER = 2**53 - 1
"""The largest integer that every JSON reader keeps exact (RFC 8785, Appendix D)."""

MAX_DEPTH = 100
"""Deeper than metadata is; a bound, so that a value that contains itself is refused instead of exhausting the stack."""


def canonical_json(value: Any) -> bytes:
    """The RFC 8785 text of a JSON value, in UTF-8.

    Takes ``None``, booleans, integers, floats, strings, lists, tuples and dictionaries with string keys. Whatever
    encoder and parser the value has been through, the text is the same. Raises `InvalidMetadata`, naming the key path,
    for everything else, and for numbers that do not survive the round trip: integers beyond 2^53 - 1, NaN and
    infinities, and whole floats from 2^53 to 1e21, whose canonical text is that of an integer beyond 2^53.
    """
    if _is_plain(value):
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    _check(value, ())
    return rfc8785.dumps(value)


def canonical_names(value: list[Any]) -> bytes:
    """As `canonical_json`, of strings in lists in lists alone: executors say it without the RFC's encoder."""
    _check(value, ())
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _is_plain(value: object) -> bool:
    """Whether any encoder of JSON that sorts keys writes the RFC's text: there are no floats, which it formats in its
    own way, and no text beyond ASCII, which it sorts in its own way. Of all other values `_check` says what they are.
    """
    texts: list[object] = []
    level = [value]
    for _ in range(MAX_DEPTH):
        below: list[object] = []
        for node in level:
            kind = type(node)
            if kind is dict:
                members = cast("dict[object, object]", node)
                texts.extend(members)
                below.extend(members.values())
            elif kind is list or kind is tuple:
                below.extend(cast("Collection[object]", node))
            elif kind is str:
                texts.append(node)
            elif not (node is None or kind is bool or (kind is int and abs(cast("int", node)) <= MAX_SAFE_INTEGER)):
                return False
        if not below:
            return set(map(type, texts)) <= {str} and "".join(cast("list[str]", texts)).isascii()
        level = below
    return False


def _check(value: object, path: tuple[str | int, ...]) -> None:
    match value:
        case None | bool():
            return
        case str():
            _check_text(value, path)
        case int() | float():
            _check_number(value, path)
        case list() | tuple() | dict():
            if len(path) >= MAX_DEPTH:
                raise _refused(path, f"values nested deeper than {MAX_DEPTH} levels", "Make it flatter.")
            for key, item in _members(cast("Collection[object]", value), path):
                _check(item, (*path, key))
        case _:
            raise _refused(
                path,
                f"{value!r:.100} of type {type(value).__name__}, which JSON does not have",
                "Convert it to a string, number, boolean, list or dictionary.",
            )


def _members(value: Collection[object], path: tuple[str | int, ...]) -> Iterator[tuple[str | int, object]]:
    if not isinstance(value, dict):
        yield from enumerate(value)
        return
    for key, item in cast("dict[object, object]", value).items():
        if not isinstance(key, str):
            raise _refused(path, f"the key {key!r:.100}, which is not a string", "Use a string as the key.")
        _check_text(key, path)
        yield key, item


def _check_number(number: float, path: tuple[str | int, ...]) -> None:
    if isinstance(number, int):
        if abs(number) > MAX_SAFE_INTEGER:
            shown = str(number) if number.bit_length() < 100 else f"of {number.bit_length()} bits"
            raise _refused(path, f"the integer {shown}, beyond 2^53 - 1", "Give it as a string.")
    elif not math.isfinite(number):
        raise _refused(path, f"the number {number}, which JSON does not have", "Give it as a string, or as null.")
    elif MAX_SAFE_INTEGER < abs(number) < 1e21:
        what = f"the number {number!r}, whose canonical text is an integer beyond 2^53 - 1"
        raise _refused(path, what, "Give it as a string.")


def _check_text(text: str, path: tuple[str | int, ...]) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _refused(
            path, f"the text {text!a:.100}, which is not Unicode (a lone surrogate)", "Correct it."
        ) from None


def _refused(path: tuple[str | int, ...], what: str, fix: str) -> InvalidMetadata:
    where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path[:10]).removeprefix(".")
    where = where.encode("ascii", "backslashreplace").decode()
    return InvalidMetadata(
        f"The metadata has no canonical JSON form: {where or 'it'} holds {what}. {fix} Nothing was written."
    )
