"""arrow0-sha3-256: the hash of records rather than of the file that holds them. Source: seed 002 ("Data Hashing"),
https://github.com/kamu-data/arrow-digest.

It is a function of the values: batches, offsets of slices, chunks, views and bytes under a null do not show. It is no
equality key: a null is the byte 0, so ``int8 [0]`` and ``int8 [null]`` have the same digest. Whoever must know that
data are the same compares the null counts, too.

A leaf of a struct is null where the struct is. (The reference implementation takes a null in a struct for its bytes, if
some other struct of the same batch is null: there, batches do show, and there only the two differ.)
"""

import hashlib
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dagster_versioned.errors import UnsupportedType
from dagster_versioned.odf.identity.multihash import HashAlgorithm, Multihash

# The stubs have kernels and arrays for each type, and no name for those of a type that is a value.
kernels: Any = pc
Array = Any
Type = pa.DataType
Bytes = npt.NDArray[np.uint8]

_ROWS: Final = 32_768
"""Rows that are encoded at a time: their bytes stay in the cache between being made and being hashed."""

_LARGE: Final = pa.large_binary()
_TIME_UNITS: Final = ("s", "ms", "us", "ns")

_types: Any = pa.types
_BINARY = (_types.is_binary, _types.is_large_binary, _types.is_binary_view, _types.is_fixed_size_binary)
_TEXT = (_types.is_string, _types.is_large_string, _types.is_string_view)
_LIST = (
    *(_types.is_list, _types.is_large_list, _types.is_fixed_size_list),
    *(_types.is_list_view, _types.is_large_list_view),
)


class Arrow0:
    """The digest of records, batch after batch.

    The constructor raises `UnsupportedType` for a type that arrow0 does not define (dictionary, map, union, duration,
    interval, extension types, structs inside lists); it names the column.
    """

    def __init__(self, schema: "pa.Schema") -> None:
        self._schema = schema
        self._hash = hashlib.sha3_256()
        self._columns: list[ArrayDigest] = []
        for index, name in enumerate(schema.names):
            self._add_field(schema.field(index), 0, name)

    def update(self, batch: "pa.RecordBatch | pa.Table") -> None:
        """Hash more records, of the schema's columns in the schema's order."""
        if not batch.schema.equals(self._schema):
            batch = batch.cast(self._schema)
        for part in batch.to_batches() if isinstance(batch, pa.Table) else [batch]:
            for start in range(0, part.num_rows, _ROWS):
                rows: Any = part.slice(start, _ROWS)
                leaves = [leaf for column in rows.columns for leaf in _leaves(column)]
                for digest, leaf in zip(self._columns, leaves, strict=True):
                    digest.update(leaf)

    def digest(self) -> Multihash:
        """The hash of the records so far."""
        whole = self._hash.copy()
        for column in self._columns:
            whole.update(column.digest())
        return Multihash(HashAlgorithm.ARROW0_SHA3_256, whole.digest())

    def _add_field(self, field: Any, level: int, path: str) -> None:
        name = field.name.encode()
        self._hash.update(struct.pack("<Q", len(name)) + name + struct.pack("<Q", level))
        type_: Any = field.type
        if pa.types.is_struct(field.type):
            for child in type_:
                self._add_field(child, level + 1, f"{path}.{child.name}")
        else:
            try:
                self._columns.append(ArrayDigest(type_))
            except UnsupportedType as error:
                raise UnsupportedType(f"The column {path!r:.200} cannot be hashed: {error}") from None


class ArrayDigest:
    """The digest of one column, array after array. The constructor raises `UnsupportedType`."""

    def __init__(self, type_: Type) -> None:
        self._hash = hashlib.sha3_256(_type_seed(type_))

    def update(self, array: Array) -> None:
        """Hash more values, of the column's type."""
        width = _width(array.type)
        if width and not array.null_count:
            self._hash.update(_fixed(array, width).data)
        else:
            self._hash.update(_bytes_of(_encoded(array)).data)

    def digest(self) -> bytes:
        """The 32 bytes of the hash of the values so far."""
        return self._hash.digest()


def _is_any(kinds: Sequence[Callable[[Type], bool]], type_: Type) -> bool:
    return any(is_kind(type_) for is_kind in kinds)


def _type_seed(type_: Type) -> bytes:  # noqa: C901 - one case a type
    types = pa.types
    bits = 8 * _width(type_)
    if types.is_null(type_):
        return struct.pack("<H", 0)
    if types.is_integer(type_):
        return struct.pack("<HBQ", 1, types.is_signed_integer(type_), bits)
    if types.is_floating(type_):
        return struct.pack("<HQ", 2, bits)
    if _is_any(_BINARY, type_):
        return struct.pack("<H", 3)
    if _is_any(_TEXT, type_):
        return struct.pack("<H", 4)
    if types.is_boolean(type_):
        return struct.pack("<H", 5)
    if types.is_decimal(type_):
        decimal: Any = type_
        return struct.pack("<HQQq", 6, bits, decimal.precision, decimal.scale)
    if types.is_date(type_):
        return struct.pack("<HQH", 7, bits, types.is_date64(type_))
    if isinstance(type_, pa.Time32Type | pa.Time64Type):
        return struct.pack("<HQH", 8, bits, _TIME_UNITS.index(type_.unit))
    if types.is_timestamp(type_):
        moment: Any = type_
        zone = (moment.tz or "").encode()
        unit = struct.pack("<HH", 9, _TIME_UNITS.index(moment.unit))
        return unit + (struct.pack("<Q", len(zone)) + zone if zone else b"\0")
    if _is_any(_LIST, type_):
        return struct.pack("<H", 11) + _type_seed(cast("pa.ListType[Any]", type_).value_type)
    raise UnsupportedType(f"arrow0 does not define {type_}.")


def _width(type_: Type) -> int:
    """Bytes of each value where all have as many, else 0."""
    types = pa.types
    numeric = types.is_integer(type_) or types.is_floating(type_) or types.is_decimal(type_)
    if numeric or types.is_date(type_) or types.is_time(type_) or types.is_timestamp(type_):
        return type_.bit_width // 8
    return 0


def _leaves(array: Array) -> list[Array]:
    if not pa.types.is_struct(array.type):
        return [array]
    return [leaf for child in array.flatten() for leaf in _leaves(child)]


def _fixed(array: Array, width: int) -> Bytes:
    """The bytes of the values, those under nulls among them."""
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(0, np.uint8)
    return np.frombuffer(buffer, np.uint8)[array.offset * width : (array.offset + len(array)) * width]


def _encoded(array: Array) -> Array:
    """Each value as what is hashed of it: large binaries without nulls."""
    type_ = array.type
    if width := _width(type_):
        return _rows(_fixed(array, width), width, array)
    if pa.types.is_null(type_):
        return _rows(np.zeros(len(array), np.uint8), 1, array)
    if pa.types.is_boolean(type_):
        return _rows(np.asarray(kernels.fill_null(kernels.cast(array, pa.uint8()), 0)) + np.uint8(1), 1, array)
    if _is_any(_LIST, type_):
        counts, contents = _list_contents(array)
    else:
        contents = kernels.cast(
            kernels.cast(array, pa.binary()) if pa.types.is_fixed_size_binary(type_) else array, _LARGE
        )
        counts = kernels.binary_length(contents)
    lengths = np.asarray(kernels.fill_null(counts, 0)).astype("<u8").view(np.uint8)
    return kernels.binary_join_element_wise(
        _rows(lengths, 8, array), contents, pa.scalar(b"", _LARGE), null_handling="replace", null_replacement=""
    )


def _list_contents(array: Array) -> tuple[Array, Array]:
    """How many items each list has, and what is hashed of them."""
    counts = kernels.if_else(kernels.is_valid(array), kernels.list_value_length(array), 0)
    ends = np.zeros(len(array) + 1, np.int64)
    np.cumsum(np.asarray(counts), out=ends[1:])
    items = _encoded(array.flatten())  # without those that a null hides
    buffers = [_validity(array), pa.py_buffer(_ends(items)[ends].data), items.buffers()[2]]
    return counts, pa.LargeBinaryArray.from_buffers(_LARGE, len(array), buffers)


def _rows(values: Bytes, width: int, like: Array) -> Array:
    """Bytes cut into values of the same width; where the other array has a null, the single byte 0."""
    ends = np.arange(len(like) + 1, dtype=np.int64) * width
    buffers = [_validity(like), pa.py_buffer(ends.data), pa.py_buffer(np.ascontiguousarray(values).data)]
    rows: Array = pa.LargeBinaryArray.from_buffers(_LARGE, len(like), buffers)
    return kernels.fill_null(rows, pa.scalar(b"\0", _LARGE)) if rows.null_count else rows


def _validity(array: Array) -> "pa.Buffer | None":
    """The bitmap of values that are there, from the array's first value on."""
    if pa.types.is_null(array.type):
        return pa.py_buffer(bytes((len(array) + 7) // 8))
    return kernels.is_valid(array).buffers()[1] if array.null_count else None


def _ends(encoded: Array) -> npt.NDArray[np.int64]:
    """Where the values begin in their bytes, and where the last one ends."""
    offsets = encoded.buffers()[1]
    if offsets is None or not offsets.size:
        return np.zeros(1, np.int64)
    return np.frombuffer(offsets, np.int64)[encoded.offset : encoded.offset + len(encoded) + 1]


def _bytes_of(encoded: Array) -> Bytes:
    """The values one after the other."""
    content, ends = encoded.buffers()[2], _ends(encoded)
    return np.frombuffer(content, np.uint8)[ends[0] : ends[-1]] if content else np.zeros(0, np.uint8)
