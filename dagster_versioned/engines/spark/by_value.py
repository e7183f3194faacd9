"""Shipping this package's code to Spark's workers by value, so that executors need not have it installed."""

import dataclasses
import hashlib
import io
import sys
import threading
import types
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any, cast

import numpy as np

from dagster_versioned.process_state import PROCESS

_PACKAGE = __name__.partition(".")[0]

_SENTINELS: dict[str, Any] = {
    name: getattr(dataclasses, name) for name in ("_FIELD", "_FIELD_CLASSVAR", "_FIELD_INITVAR")
}
"""What `dataclasses` marks members with; the names are those that each says of itself."""

_CACHED = type(cache(len))


class Shipping:
    """How many are within `pickled_by_value`."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.depth = 0


def ship_by_value() -> None:
    """Have all that this process pickles for Spark from now on hold our code itself."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[_PACKAGE])
    reducers: dict[type, Callable[[Any], Any]] = cast("Any", cloudpickle.CloudPickler).dispatch_table
    reducers[_CACHED] = _reduced
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

    shipping = PROCESS.of(Shipping)
    with shipping.lock:
        shipping.depth += 1
        if shipping.depth == 1:
            ship_by_value()
    try:
        yield
    finally:
        with shipping.lock:
            shipping.depth -= 1
            if shipping.depth == 0:
                cloudpickle.unregister_pickle_by_value(sys.modules[_PACKAGE])


def self_contained(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function as one that holds our code itself wherever it is pickled: Connect does so when a column is used.

    It holds our classes and functions apart from what is particular to it. They are pickled once for all functions that
    need the same ones, and a worker loads them once for all of its tasks.
    """
    from pyspark import cloudpickle

    places: dict[Any, int] = {}
    file = io.BytesIO()

    class WithoutCode(cast("Any", cloudpickle.CloudPickler)):
        def persistent_id(self, each: Any) -> int | None:
            return places.setdefault(each, len(places)) if _is_code(each) else None

    with pickled_by_value():
        WithoutCode(file).dump(function)
        code, name = _pickled(tuple(places))
    state = file.getvalue()
    loaded: list[Callable[[Any], Any]] = []

    def run(argument: Any) -> Any:
        import io
        import pickle
        import sys
        import types

        if not loaded:
            if name not in sys.modules:
                module = types.ModuleType(name)
                module.__dict__["code"] = pickle.loads(code)
                sys.modules[name] = module
            unpickler: Any = pickle.Unpickler(io.BytesIO(state))
            unpickler.persistent_load = sys.modules[name].__dict__["code"].__getitem__
            loaded.append(unpickler.load())
        return loaded[0](argument)

    run.__annotations__.clear()  # Spark would take them for hints at what kind of function it is.
    return run


def _is_code(item: Any) -> bool:
    """Whether it is a class or function that a module of ours has under its name."""
    if not isinstance(item, (type, types.FunctionType, _CACHED)):
        return False
    module = sys.modules.get(item.__module__) if f"{item.__module__}".partition(".")[0] == _PACKAGE else None
    return module is not None and getattr(module, item.__name__, None) is item


@cache
def _pickled(code: tuple[Any, ...]) -> tuple[bytes, str]:
    """Our classes and functions by value, and the name of a module for them."""
    from pyspark import cloudpickle

    payload = cloudpickle.dumps(code)
    return payload, f"_dagster_versioned_{hashlib.sha256(payload).hexdigest()[:16]}"


def _reduced(cached: Any) -> Any:
    """A function with a cache, which is pickled by its name alone otherwise, and where it is not ours to ship.

    What was shipped is none of the module of its name, and goes by value from there on.
    """
    from pyspark import cloudpickle

    shipping = _PACKAGE in cast("Any", cloudpickle).list_registry_pickle_by_value()
    if cached.__module__.partition(".")[0] != _PACKAGE or (_is_code(cached) and not shipping):
        return cached.__qualname__
    return _cached, (cached.__wrapped__, cached.cache_parameters())


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Callable[..., Any]:
    from pyspark import cloudpickle

    reducers: dict[type, Callable[[Any], Any]] = cast("Any", cloudpickle.CloudPickler).dispatch_table
    reducers.setdefault(_CACHED, _reduced)
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
