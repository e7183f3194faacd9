"""Shipping this package's code to Spark's workers by value, so that executors need not have it installed."""

import dataclasses
import sys
import threading
import types
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any, cast

import numpy as np

_PACKAGE = __name__.partition(".")[0]

_SENTINELS: dict[str, Any] = {
    name: getattr(dataclasses, name) for name in ("_FIELD", "_FIELD_CLASSVAR", "_FIELD_INITVAR")
}
"""What `dataclasses` marks members with; the names are those that each says of itself."""

_lock = threading.Lock()
_depth = 0


def ship_by_value() -> None:
    """Have all that this process pickles for Spark from now on hold our code itself."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[_PACKAGE])
    reducers: dict[type, Callable[[Any], Any]] = cast("Any", cloudpickle.CloudPickler).dispatch_table
    reducers[type(cache(len))] = _reduced
    # What PySpark 3.5 bundles pickles these by value, and `fields`, which compares them by identity, then finds none:
    # `asdict` and `replace` do nothing, and frozen classes with slots arrive without their state.
    reducers[type(_SENTINELS["_FIELD"])] = _sentinel_reduced
    # numpy 2 and numpy 1 have other names for what is inside them, so nothing of it may be in a pickle.
    reducers[types.GenericAlias] = _alias_reduced
    for code in ("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f4", "f8"):
        reducers[np.dtype(code).type] = _number_reduced


@contextmanager
def pickled_by_value() -> Generator[None]:
    """Within it, what Spark pickles holds our code itself instead of its module's name. Nests, also across threads."""
    from pyspark import cloudpickle

    global _depth
    with _lock:
        _depth += 1
        if _depth == 1:
            ship_by_value()
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                cloudpickle.unregister_pickle_by_value(sys.modules[_PACKAGE])


def self_contained(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function as one that holds our code itself wherever it is pickled: Connect does so when a column is used."""
    from pyspark import cloudpickle

    with pickled_by_value():
        payload = cloudpickle.dumps(function)
    loaded: list[Callable[[Any], Any]] = []

    def run(argument: Any) -> Any:
        from pyspark import cloudpickle

        if not loaded:
            loaded.append(cloudpickle.loads(payload))
        return loaded[0](argument)

    run.__annotations__.clear()  # Spark would take them for hints at what kind of function it is.
    return run


def _reduced(cached: Any) -> Any:
    """A function with a cache, which is pickled by its name alone otherwise, and where it is not ours to ship."""
    from pyspark import cloudpickle

    is_ours = cached.__module__.partition(".")[0] == _PACKAGE
    if not is_ours or _PACKAGE not in cast("Any", cloudpickle).list_registry_pickle_by_value():
        return cached.__qualname__
    return _cached, (cached.__wrapped__, cached.cache_parameters())


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Callable[..., Any]:
    return lru_cache(**parameters)(function)


def _alias_reduced(alias: Any) -> Any:
    """The type of an annotation; of an array without that of its items, which may be numpy's ``bool`` or ``bool_``."""
    if alias.__origin__ is np.ndarray:
        return getattr, (np, "ndarray")
    return alias.__reduce__()


def _number_reduced(number: Any) -> Any:
    return type(number), (number.item(),)


def _sentinel_reduced(sentinel: Any) -> Any:
    return getattr, (dataclasses, sentinel.name)
