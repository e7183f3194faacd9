"""Hypothesis strategies for columns of any type the digests take, and Arrow arrays with dirt under their nulls.

A kind is the JSON that docs/reference/digest.md gives a type. Values are Python's, structs are dictionaries, maps are
lists of pairs.
"""

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

_INT = {"byte": (pa.int8(), 8), "short": (pa.int16(), 16), "integer": (pa.int32(), 32), "long": (pa.int64(), 64)}

ARROW: dict[str, pa.DataType] = {
    **{kind: arrow for kind, (arrow, _) in _INT.items()},
    "boolean": pa.bool_(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "string": pa.string(),
    "binary": pa.binary(),
    "decimal(5,2)": pa.decimal128(5, 2),
    "decimal(38,10)": pa.decimal128(38, 10),
}


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    return st.integers(-most, most).map(lambda unscaled: Decimal(f"{unscaled}E-{scale}"))


_VALUES: dict[str, st.SearchStrategy[Any]] = {
    **{kind: st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) for kind, (_, bits) in _INT.items()},
    "boolean": st.booleans(),
    "float": st.floats(width=32),
    "double": st.floats(),
    "date": st.dates(date(1, 1, 1), date(9999, 12, 31)),
    "time": st.times(),
    "timestamp": st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC)),
    "timestamp_ntz": st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)),
    "string": st.text(max_size=50),
    "binary": st.binary(max_size=50),
    "decimal(5,2)": _decimals(5, 2),
    "decimal(38,10)": _decimals(38, 10),
}

leaf_kinds: st.SearchStrategy[Any] = st.sampled_from(sorted(ARROW))

kinds: st.SearchStrategy[Any] = st.recursive(
    leaf_kinds,
    lambda inner: st.one_of(
        inner.map(lambda item: ["array", item]),
        st.tuples(leaf_kinds, inner).map(lambda pair: ["map", *pair]),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda fields: ["struct", *([f"f{index}", kind] for index, kind in enumerate(fields))]
        ),
    ),
    max_leaves=4,
)


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a kind that are not null themselves."""
    if isinstance(kind, str):
        return _VALUES[kind]
    if kind[0] == "array":
        return st.lists(nullable(kind[1]), max_size=4)
    if kind[0] == "map":
        return st.lists(st.tuples(values(kind[1]), nullable(kind[2])), max_size=3)
    return st.fixed_dictionaries({name: nullable(field) for name, field in kind[1:]})


def nullable(kind: Any) -> st.SearchStrategy[Any]:
    return st.none() | values(kind)


def arrow_type(kind: Any) -> pa.DataType:
    if isinstance(kind, str):
        return ARROW[kind]
    if kind[0] == "array":
        return pa.list_(arrow_type(kind[1]))
    if kind[0] == "map":
        return pa.map_(arrow_type(kind[1]), arrow_type(kind[2]))
    return pa.struct([(name, arrow_type(field)) for name, field in kind[1:]])


@st.composite
def tables(
    draw: st.DrawFn, max_columns: int = 4, max_rows: int = 12
) -> tuple[list[tuple[str, Any]], list[tuple[Any, ...]]]:
    """Columns (name and kind), and rows."""
    drawn = draw(st.lists(kinds, min_size=1, max_size=max_columns))
    columns = [(f"c{index}", kind) for index, kind in enumerate(drawn)]
    rows = draw(st.lists(st.tuples(*(nullable(kind) for kind in drawn)), max_size=max_rows))
    return columns, rows


def batch_of(columns: list[tuple[str, Any]], rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([row[index] for row in rows], arrow_type(kind)) for index, (_, kind) in enumerate(columns)],
        names=[name for name, _ in columns],
    )


def dirty(kind: Any, items: list[Any], garbage: Callable[[Any], Any]) -> Any:
    """The array of these values with ``garbage(kind)`` in every slot under a null, at every depth."""
    present = [item is not None for item in items]
    filled = [garbage(kind) if item is None else item for item in items]
    bits = pa.py_buffer(np.packbits(np.array(present, bool), bitorder="little").tobytes())
    bitmap = bits if items else None
    arrow = arrow_type(kind)
    if isinstance(kind, str):
        clean = pa.array(filled, arrow)
        return pa.Array.from_buffers(arrow, len(items), [bitmap, *clean.buffers()[1:]])
    if kind[0] == "struct":
        children = [dirty(field, [item[name] for item in filled], garbage) for name, field in kind[1:]]
        return pa.Array.from_buffers(arrow, len(items), [bitmap], children=children)
    ends = np.cumsum([0, *(len(item) for item in filled)]).astype(np.int32)
    flat = [item for one in filled for item in one]
    if kind[0] == "array":
        child = dirty(kind[1], flat, garbage)
    else:
        # Keys have no nulls; an older pyarrow takes any that have a bitmap for keys that do.
        keys = pa.array([key for key, _ in flat], arrow.key_type)
        child = pa.StructArray.from_arrays(
            [keys, dirty(kind[2], [item for _, item in flat], garbage)], fields=[arrow.key_field, arrow.item_field]
        )
    return pa.Array.from_buffers(arrow, len(items), [bitmap, pa.py_buffer(ends.tobytes())], children=[child])
