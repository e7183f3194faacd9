"""Keys as Acero's joins and groupings can match them."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def join_key(column: Any) -> Any:
    """A key column as it is to be matched: Acero takes floats by their bits, so of zero and of NaN one each is kept."""
    if not pa.types.is_floating(column.type):
        return column
    nan, zero = pa.scalar(float("nan"), column.type), pa.scalar(0.0, column.type)
    return pc.call_function(
        "if_else", [pc.call_function("is_nan", [column]), nan, pc.call_function("add", [column, zero])]
    )


def join_keys(table: pa.Table, key: Sequence[str]) -> pa.Table:
    """The key columns as they are to be matched, called ``k0``, …"""
    columns: dict[str, Any] = {f"k{i}": join_key(table.column(name)) for i, name in enumerate(key)}
    return pa.table(columns)
