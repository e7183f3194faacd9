"""Any Delta table with pyarrow, pandas and Polars: what changes rows."""

from collections.abc import Callable
from typing import Any

from dagster_versioned.moved import MOVED_FUNCTIONS, find_moved_function

__all__ = list(MOVED_FUNCTIONS)  # pyright: ignore[reportUnsupportedDunderAll] - found by `__getattr__`


def __getattr__(name: str) -> Callable[..., Any]:
    return find_moved_function(__name__, name)
