"""Shipping this package's code to Spark's workers by value, so that executors need not have it installed."""

import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

_PACKAGE = sys.modules[__name__.partition(".")[0]]

_lock = threading.Lock()
_depth = 0


@contextmanager
def pickled_by_value() -> Generator[None]:
    """Within it, what Spark pickles holds our code itself instead of its module's name. Nests, also across threads."""
    from pyspark import cloudpickle

    global _depth
    with _lock:
        _depth += 1
        if _depth == 1:
            cloudpickle.register_pickle_by_value(_PACKAGE)
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                cloudpickle.unregister_pickle_by_value(_PACKAGE)


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
