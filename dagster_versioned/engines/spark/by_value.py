"""Shipping this package's code to Spark's workers by value, so that executors need not have it installed."""

import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager

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
