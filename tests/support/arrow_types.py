"""Types that the oldest supported pyarrow does not have yet."""

import pyarrow as pa


def newer(*types: tuple[str, *tuple[int, ...]]) -> list[pa.DataType]:
    """Those of the types that this pyarrow has: the name of what makes each, and what it is given."""
    return [getattr(pa, name)(*given) for name, *given in types if hasattr(pa, name)]
