"""Bytes per row, from the values alone: where a row group ends must not depend on how the rows arrived.

`pa.RecordBatch.nbytes` will not do: it counts validity bitmaps that may be left out and bytes hidden under nulls.
"""

from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

OFFSET_BYTES = 4


def row_sizes(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """About how many bytes each row takes in memory, at least one a row (int64, one per row)."""
    sizes = np.zeros(batch.num_rows, np.int64)
    for i in range(batch.num_columns):
        sizes += _sizes(batch.column(i))
    return sizes


def total_size(batch: pa.RecordBatch) -> int:
    """The sum of `row_sizes`, which for text and columns of fixed size needs no size of each row."""
    return sum(_total(batch.column(i)) for i in range(batch.num_columns))


def _total(array: Any) -> int:
    fixed = fixed_size(array.type)
    if fixed is not None:
        return fixed * len(array)
    if isinstance(array, pa.StringArray | pa.BinaryArray):
        return OFFSET_BYTES * len(array) + int(pc.sum(pc.binary_length(array), min_count=0).as_py())
    return int(np.sum(_sizes(array)))


def _sizes(array: Any) -> NDArray[np.int64] | int:
    """One size per slot, or one for all. Null slots of variable size count nothing but their offset."""
    fixed = fixed_size(array.type)
    if fixed is not None:
        return fixed
    if isinstance(array, pa.StringArray | pa.BinaryArray):
        return OFFSET_BYTES + _numpy(pc.binary_length(array))
    if isinstance(array, pa.StructArray):
        inner: Any = sum(_sizes(array.field(i)) for i in range(array.type.num_fields))
        return np.where(_valid(array), inner, 0)
    items: list[Any] = [array.keys, array.items] if pa.types.is_map(array.type) else [array.values]
    offsets = array.offsets.to_numpy()
    inner = sum(_span(values, offsets) for values in items)
    return OFFSET_BYTES + np.where(_valid(array), inner, 0)


def _span(values: Any, offsets: NDArray[np.int32]) -> NDArray[np.int64]:
    """The bytes between each offset and the next."""
    first, last = int(offsets[0]), int(offsets[-1])
    ends = np.zeros(last - first + 1, np.int64)
    np.cumsum(np.broadcast_to(_sizes(values.slice(first, last - first)), last - first), out=ends[1:])
    return np.diff(ends[offsets - first])


def fixed_size(data_type: Any) -> int | None:
    if pa.types.is_struct(data_type):
        inner = [fixed_size(data_type.field(i).type) for i in range(data_type.num_fields)]
        return None if None in inner else sum(cast("list[int]", inner))
    if pa.types.is_primitive(data_type) or pa.types.is_decimal(data_type):
        return max(1, data_type.bit_width // 8)
    return None


def _numpy(lengths: Any) -> NDArray[np.int64]:
    return pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)


def _valid(array: Any) -> NDArray[np.bool_]:
    return array.is_valid().to_numpy(zero_copy_only=False)
