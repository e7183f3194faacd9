"""Values that a function holds on to, where they are plain data, as text that is equal for equal ones."""

import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import functools
import pathlib
import re
import types
import uuid
from typing import Any

from dagster_versioned.code.syntax import literal_text

_BY_REPR = (
    dt.date, dt.time, dt.timedelta, dt.timezone, decimal.Decimal, fractions.Fraction, uuid.UUID, pathlib.PurePath, range,
)  # fmt: skip


def plain_text(value: object) -> str | None:
    """The text of a value without parts; ``None`` for one that is no plain data, or has parts."""
    kind = type(value)
    if value is None or value is ... or kind in (bool, int, float, complex, str, bytes):
        return literal_text(value)
    if isinstance(value, enum.Enum):
        return None
    if isinstance(value, re.Pattern):
        pattern: Any = value.pattern
        return f"re.Pattern {literal_text(pattern)} {int(value.flags)}"
    if isinstance(value, _BY_REPR):
        return f"{kind.__name__} {value!r}"
    return None


def parts_of(value: object) -> list[tuple[str, object]] | None:
    """The parts of a container by names that say where each is; ``None`` for what is none.

    Sets are put in the order of their texts, so that neither hash seeds nor the order of insertion count.
    """
    match value:
        case dict() | types.MappingProxyType():
            pairs: list[tuple[object, object]] = list(value.items())
            keys = [(f"key {number}", key) for number, (key, _) in enumerate(pairs)]
            return [*keys, *((f"{number}", member) for number, (_, member) in enumerate(pairs))]
        case set() | frozenset():
            members: list[object] = list(value)
            return [("", member) for member in sorted(members, key=_name_of)]
        case tuple() | list():
            listed: list[object] = list(value)
            return [(str(number), member) for number, member in enumerate(listed)]
        case enum.Enum():
            return [("class", type(value)), ("name", value.name)]
        case functools.partial():
            return [("function", value.func), ("args", value.args), ("keywords", value.keywords)]
        case types.MethodType():
            return [("function", value.__func__), ("self", value.__self__)]
        case staticmethod() | classmethod():
            return [("function", value.__func__)]
        case property():
            return [("get", value.fget), ("set", value.fset), ("delete", value.fdel)]
        case _:
            if not dataclasses.is_dataclass(value) or isinstance(value, type):
                return None
            members = [(field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)]
            return [("class", type(value)), *members]


def _name_of(value: object) -> str:
    return plain_text(value) or str(getattr(value, "__qualname__", type(value).__qualname__))
