"""Arrow's views, of which pyarrow 14 and 15 do not know all; executors of Spark may have these."""

from typing import Any, Literal

import pyarrow as pa


def is_view(arrow: Any, *kinds: Literal["string", "binary", "list", "large_list"]) -> bool:
    """Whether a type is a view of one of these kinds."""
    return any(check(arrow) for kind in kinds if (check := getattr(pa.types, f"is_{kind}_view", None)) is not None)


def is_list(arrow: Any) -> bool:
    """Whether a type is of lists, in whatever form Arrow has them."""
    types = pa.types
    plain = types.is_list(arrow) or types.is_large_list(arrow) or types.is_fixed_size_list(arrow)
    return plain or is_view(arrow, "list", "large_list")


def nbytes(batch: pa.RecordBatch) -> int:
    """The bytes of a batch; of all its buffers where this pyarrow cannot count those of a slice."""
    try:
        return batch.nbytes
    except pa.ArrowTypeError:  # views, up to 23
        return batch.get_total_buffer_size()
