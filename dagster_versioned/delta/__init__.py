"""The Delta protocol: logs, snapshots, transactions. `Table` is what users begin with."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dagster_versioned.delta.table import Table as Table

__all__ = ["Table"]


def __getattr__(name: str) -> object:
    # On first use: the modules of this package import each other, and must not wait for all of them.
    if name in __all__:
        return getattr(import_module("dagster_versioned.delta.table"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
