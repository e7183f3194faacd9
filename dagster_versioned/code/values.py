"""Values that a function holds on to, where they are plain data, as text that is equal for equal ones."""

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import functools
import inspect
import pathlib
import re
import types
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, cast

from dagster_versioned.code.syntax import literal_text

_BY_REPR = frozenset({
    dt.date, dt.datetime, dt.time, dt.timedelta, dt.timezone, decimal.Decimal, fractions.Fraction, uuid.UUID, range,
    pathlib.PurePath, pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.PosixPath, pathlib.WindowsPath,
})  # fmt: skip
_CONTAINERS: tuple[Any, ...] = (dict, list, tuple, set, frozenset, deque)
_PARTS: dict[type, dict[str, str]] = {
    functools.partial: {"function": "func", "args": "args", "keywords": "keywords"},
    types.MethodType: {"function": "__func__", "self": "__self__"},
    staticmethod: {"function": "__func__"},
    classmethod: {"function": "__func__"},
    property: {"get": "fget", "set": "fset", "delete": "fdel"},
}
_MOST = 10_000  # more members than that are data


def plain_text(value: object) -> str | None:
    """The text of a value without parts; ``None`` for one that is no plain data, or has parts."""
    kind = type(value)
    if value is None or value is ... or kind in (bool, int, float, complex, str, bytes):
        return literal_text(value)
    if kind is re.Pattern:
        pattern: Any = value
        return f"re.Pattern {literal_text(pattern.pattern)} {int(pattern.flags)}"
    if kind in _BY_REPR:
        return f"{kind.__name__} {value!r}"
    return None


def parts_of(value: object) -> list[tuple[str, object]] | None:
    """The parts of a container by names that say where each is; ``None`` for what is none.

    Sets are put in the order of their texts, so that neither hash seeds nor the order of insertion count.
    """
    kind: Any = type(value)  # what an object says of itself, and its own methods, may run any code
    held: Any = value
    base = _base(kind)
    if base is not None:
        of = [] if kind is base else [("class", kind)]
        return None if base.__len__(held) > _MOST else [*of, *_contained(base, kind, held)]
    if kind is types.MappingProxyType:
        return parts_of({**held})
    if issubclass(kind, enum.Enum):
        return [("class", kind), ("name", held._name_)]
    if kind in _PARTS:
        return [(label, getattr(held, name)) for label, name in _PARTS[kind].items()]
    if "__dataclass_fields__" not in vars(kind):
        return None
    return [("class", kind), *((each.name, _member(held, each.name)) for each in dataclasses.fields(kind))]


def _contained(base: Any, kind: type, held: Any) -> Iterator[tuple[str, object]]:
    """What is in a container, which is one of Python's own, or made of one."""
    if base is dict:
        pairs = list(dict[object, object].items(held))
        if kind is collections.defaultdict:
            yield "missing", held.default_factory
        yield from ((f"key {number}", key) for number, (key, _) in enumerate(pairs))
        yield from ((f"{number}", member) for number, (_, member) in enumerate(pairs))
        return
    members: list[object] = list(base.__iter__(held))
    if base in (set, frozenset):
        yield from (("", member) for member in sorted(members, key=_name_of))
    else:
        yield from ((str(number), member) for number, member in enumerate(members))


def code_held(value: object, is_own: Callable[[type], bool]) -> Iterator[tuple[str, object]]:
    """The functions and classes in containers, and in what classes and objects of the project's own hold, and where."""
    pending, seen = deque(_held(value, is_own)), {id(value)}
    while pending and len(seen) < _MOST:
        label, each = pending.popleft()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if type(each) is types.FunctionType or issubclass(type(each), type):
            yield label, each
        else:
            pending += [(f"{label}.{inner}", part) for inner, part in _held(each, is_own)]


def _held(value: Any, is_own: Callable[[type], bool]) -> list[tuple[str, object]]:
    kind = cast("type[Any]", type(value))
    if _base(kind) is not None or kind in _PARTS:
        return parts_of(value) or []
    if issubclass(kind, type):  # its functions are in its text
        return [(name, each) for name, each in members_of(value).items() if _base(type(each)) is not None]
    held = _member(value, "__dict__") if is_own(kind) else None
    return list(cast("dict[str, object]", held).items()) if type(held) is dict else []


def members_of(value: object) -> dict[str, object]:
    """What an object, or a class, holds by names."""
    return dict(vars(value))


def _base(kind: type) -> Any:
    """The container of Python's own that a class is, or is made of."""
    return next((each for each in _CONTAINERS if issubclass(kind, each)), None)


def _member(value: Any, name: str) -> object:
    """A member of an object, without what its class does when it is asked for."""
    found: Any = inspect.getattr_static(value, name, None)
    return found.__get__(value) if type(found) in (types.MemberDescriptorType, types.GetSetDescriptorType) else found


def _name_of(value: object) -> str:
    parts = None if plain_text(value) else parts_of(value)
    if parts is not None:
        return " ".join(f"{label} {_name_of(each)}" for label, each in parts)
    return plain_text(value) or str(getattr(value, "__qualname__", type(value).__qualname__))
