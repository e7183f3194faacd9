"""How annotations say what of a block a value takes. `odf.blocks.flatbuffer` reads them."""

from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints


class Width(Enum):
    """How many bytes of a block an ``int`` takes; the value is its code in `struct`."""

    UINT64 = "Q"
    INT64 = "q"
    UINT32 = "I"
    INT32 = "i"
    INT16 = "h"


class Variants:
    """Marks a union of tables: a value is encoded with its class's place in the union."""


class ShortEnum(Enum):
    """An enumeration of which a block stores two bytes, not four."""


Uint64 = Annotated[int, Width.UINT64]
Uint32 = Annotated[int, Width.UINT32]
Int32 = Annotated[int, Width.INT32]


@cache
def hints_of(table: type) -> dict[str, tuple[Any, bool]]:
    """The types of a table's fields without ``None``, and whether they may be ``None``."""
    return {name: _optional(hint) for name, hint in get_type_hints(table, include_extras=True).items()}


def _optional(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) not in (Union, UnionType):
        return hint, False
    members = [member for member in get_args(hint) if member is not NoneType]
    return members[0], len(members) < len(get_args(hint))
