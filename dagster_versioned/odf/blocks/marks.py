"""How annotations say what of a block a value takes. `odf.blocks.flatbuffer` reads them."""

from enum import Enum
from typing import Annotated


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
