"""The C functions of `bag_lanes.c`, where the package was built with a C compiler; numpy does the same elsewhere.

The library travels to Spark's executors as bytes, since they have no files of this package. Where it cannot be loaded
(another processor, another C library, a temporary folder that runs nothing) it is done without.
"""

import ctypes
import hashlib
import os
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_versioned.identity.arrow_views import is_view

FILE = Path(__file__).with_name("bag_lanes.so") if "__file__" in globals() else None
"""What `hatch_build.py` makes of `bag_lanes.c`; ``None`` in code that came without its file."""

Lanes = tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]
"""Both hashes of each row."""

_DONE, _UNSUPPORTED = 0, 1


class Library:
    """The loaded library; pickled with its bytes."""

    def __init__(self, code: bytes | None = None) -> None:
        self._code = code
        self._loaded: list[ctypes.CDLL | None] = []

    def __reduce__(self) -> tuple[type[Self], tuple[bytes | None]]:
        code = self._code
        if code is None and FILE is not None and FILE.exists():
            code = FILE.read_bytes()
        return type(self), (code,)

    @property
    def functions(self) -> ctypes.CDLL | None:
        """The functions, or ``None`` where there are none for this machine; loaded once a process."""
        if not self._loaded:
            self._loaded.append(self._load())
        return self._loaded[0]

    def _load(self) -> ctypes.CDLL | None:
        try:
            if self._code is None:
                return None if FILE is None or not FILE.exists() else _declared(ctypes.CDLL(str(FILE)))
            return _loaded_once(self._code)
        except (OSError, AttributeError):
            return None


def _loaded_once(code: bytes) -> ctypes.CDLL:
    """The library of these bytes, the same one for all tasks of a process, each of which brings a module of its own."""
    name = f"_dagster_versioned_{hashlib.sha256(code).hexdigest()[:16]}"
    if (kept := sys.modules.get(name)) is not None:
        return kept.loaded
    handle, path = tempfile.mkstemp(suffix=".so")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(code)
        library = _declared(ctypes.CDLL(path))
    finally:
        Path(path).unlink()
    sys.modules[name] = module = ModuleType(name)
    module.__dict__["loaded"] = library
    return library


LIBRARY = Library()


def bag_lanes(batch: pa.RecordBatch, key: bytes | None = None) -> tuple[int, int] | None:
    """The sums of both lanes over the rows, modulo 2^64; ``None`` where they are for numpy to compute."""
    if (functions := LIBRARY.functions) is None:
        return None
    sums = (ctypes.c_uint64 * 2)()
    return (sums[0], sums[1]) if _call(functions.sums_of_rows, batch, key, sums) else None


def row_lanes(batch: pa.RecordBatch, key: bytes | None = None) -> Lanes | None:
    """Both hashes of every row, in row order; ``None`` where they are for numpy to compute."""
    if (functions := LIBRARY.functions) is None:
        return None
    lanes = np.empty((2, batch.num_rows), np.uint64)
    done = _call(functions.lanes_of_rows, batch, key, lanes[0].ctypes.data, lanes[1].ctypes.data)
    return (lanes[0], lanes[1]) if done else None


def match_rows(new: Lanes, old: Lanes, taken: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_] | None:
    """See `identity.matching.match_rows`; ``None`` where that is for numpy to do."""
    if (functions := LIBRARY.functions) is None:
        return None
    known = np.zeros(len(new[0]), np.bool_)
    counts = [ctypes.c_int64(len(side[0])) for side in (new, old)]
    hashes = [[np.ascontiguousarray(lane, np.uint64) for lane in side] for side in (new, old)]
    places = [[lane.ctypes.data for lane in side] for side in hashes]
    ended = functions.match_rows(*places[0], counts[0], *places[1], counts[1], known.ctypes.data, taken.ctypes.data)
    if ended not in (_DONE, _UNSUPPORTED):
        raise MemoryError("There is not enough memory to compare rows.")
    return known if ended == _DONE else None


def _call(function: Any, batch: pa.RecordBatch, key: bytes | None, *results: Any) -> bool:
    # Views are not for the library; pyarrow 19 ends in a segmentation fault where it hands over those of nulls alone.
    if any(_holds_view(each) for each in cast("list[Any]", batch.schema.types)):
        return False
    # Both capsules release what they point to when they go, after the call.
    schema, array = cast("tuple[object, object]", batch.__arrow_c_array__())
    words = None if key is None else (ctypes.c_uint64 * 4).from_buffer_copy(key)
    ended = function(_pointer(schema, b"arrow_schema"), _pointer(array, b"arrow_array"), words, *results)
    if ended not in (_DONE, _UNSUPPORTED):
        raise MemoryError("There is not enough memory for the digest of a batch.")
    return ended == _DONE


@cache
def _holds_view(arrow: Any) -> bool:
    """Whether values at any depth are views, also those of a dictionary."""
    inner = [arrow.field(i).type for i in range(arrow.num_fields)]
    if pa.types.is_dictionary(arrow):
        inner.append(arrow.value_type)
    return is_view(arrow, "string", "binary", "list", "large_list") or any(map(_holds_view, inner))


def _pointer(capsule: object, name: bytes) -> int:
    kind = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    return kind(("PyCapsule_GetPointer", ctypes.pythonapi))(capsule, name)


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    library.sums_of_rows.argtypes = [ctypes.c_void_p] * 4
    library.lanes_of_rows.argtypes = [ctypes.c_void_p] * 5
    side = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    library.match_rows.argtypes = [*side, *side, ctypes.c_void_p, ctypes.c_void_p]
    return library
