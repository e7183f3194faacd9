"""Digests of rows: are these the same data, whatever files hold them?

Two kinds, specified byte by byte in docs/reference/digest.md:

- ``bag-xxh64x2``: the order of rows does not matter, duplicates count. Every row has two 64-bit hashes (lanes), XXH64
  with seed 0 and with seed 1, and the digest is the two sums modulo 2^64 and the number of rows.
- ``seq-sha256``: the order matters. Every node of the schema has three running SHA-256: which values are there, how
  long they are, what they are.

Both are functions of the values alone: how rows are batched, offsets of slices, bytes under a null and the choice
between Arrow types for the same values (dictionaries, views, large or fixed-size lists) change nothing. Neither kind
distinguishes types of the same values by more than `type_text` does; schemas are compared beside the digest.

Who supplies rows can make different ones with one ``bag-xxh64x2``. So where such digests agree, rows are compared under
a `fresh_key`, which is drawn once they are there and told nobody: with SipHash in the place of XXH64.
"""

import hashlib
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, Self, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dagster_versioned.errors import InvalidInput, UnsupportedType
from dagster_versioned.identity import compiled, siphash
from dagster_versioned.identity.arrow_views import is_list, is_view, nbytes
from dagster_versioned.identity.canonical import canonical_names
from dagster_versioned.identity.xxh64 import Words, WordsHash, hash_ragged, hash_single_words, hash_words

DigestKind = Literal["bag-xxh64x2", "seq-sha256"]

BLOCK_ROWS = 16384
"""Rows digested at a time: a column of words is 128 KiB, so that the handful in use stay in the second-level cache."""

BLOCK_BYTES = 8 * 1024 * 1024
"""Blocks of wide rows are shorter, so that memory stays bounded."""

_LENGTH: dict[str, int] = {"bag-xxh64x2": 32, "seq-sha256": 64}
_MODULO = 1 << 64


@dataclass(frozen=True, slots=True)
class RowsDigest:
    """A finished digest; ``value`` is 32 (bag) or 64 (sequence) hex characters. Raises `InvalidInput` otherwise."""

    kind: DigestKind
    value: str
    nrow: int

    def __post_init__(self) -> None:
        length = _LENGTH.get(self.kind)
        if length is None or not re.fullmatch(f"[0-9a-f]{{{length}}}", self.value) or self.nrow < 0:
            raise InvalidInput(f"{self.text!r:.150} is not the digest of rows.")

    @property
    def text(self) -> str:
        """``kind:value:nrow``, as facts record it."""
        return f"{self.kind}:{self.value}:{self.nrow}"

    @property
    def lanes(self) -> tuple[int, int, int]:
        """The two sums and the number of rows of a bag, for `BagDigest.merge`. Raises `InvalidInput` for a sequence."""
        if self.kind != "bag-xxh64x2":
            raise InvalidInput(f"The digest {self.text} is of rows in an order, which no other rows can be added to.")
        return int(self.value[:16], 16), int(self.value[16:], 16), self.nrow

    @classmethod
    def parse(cls, text: str) -> Self:
        """The digest whose `text` this is. Raises `InvalidInput`."""
        kind, _, rest = text.partition(":")
        value, _, nrow = rest.partition(":")
        if not re.fullmatch(r"0|[1-9][0-9]{0,18}", nrow):
            raise InvalidInput(f"{text!r:.150} is not the digest of rows: it must be kind:hex:number of rows.")
        return cls(cast("DigestKind", kind), value, int(nrow))


def digest_kind(text: str) -> DigestKind:
    """The kind of the digest whose `RowsDigest.text` this is. Raises `InvalidInput` for one that there is not."""
    kind = text.partition(":")[0]
    return cast("DigestKind", kind) if kind in _LENGTH else RowsDigest.parse(text).kind


Sums = tuple[int, int, int]
"""The two sums of hashes modulo 2^64, and the number of rows."""


def fresh_key() -> bytes:
    """A key for one comparison of rows that are all there by now: of `BagDigest` or `row_lanes`. It is not kept."""
    return secrets.token_bytes(2 * siphash.KEY_BYTES)


@dataclass(slots=True)
class BagDigest:
    """A running ``bag-xxh64x2`` of rows with this schema; under a ``key``, sums that are never recorded.

    Neither the order of rows nor their batching matters, so parts may be digested anywhere and merged. Without a key it
    distinguishes data that differs by accident, and is no protection against someone who looks for a collision; under a
    `fresh_key`, equal `lanes` are equal rows. Raises `UnsupportedType` for a column that has no canonical bytes.
    """

    kind: ClassVar[DigestKind] = "bag-xxh64x2"
    schema: pa.Schema
    key: bytes | None = field(default=None, repr=False)
    lanes: Sums = field(default=(0, 0, 0), init=False)
    """All that `merge` needs."""
    _signature: "_Signature" = field(init=False)

    def __post_init__(self) -> None:
        self._signature = _Signature(self.schema)
        if compiled.LIBRARY.functions is None:
            _keep_scratch()

    def update(self, batch: pa.RecordBatch) -> None:
        """Add rows. Raises `InvalidInput` if their columns are not those of the schema."""
        self._signature.check(batch)
        if (sums := compiled.bag_lanes(batch, self.key)) is not None:
            self.merge(*sums, batch.num_rows)
            return
        for block in _blocks(batch):
            first, second = _record_lanes(_arrays(block), _lane_hash(self.key))
            self.merge(int(first.sum()), int(second.sum()), block.num_rows)

    def merge(self, lane0: int, lane1: int, nrow: int) -> None:
        """Add the rows of another running digest, given by its `lanes`; negative ones take rows away."""
        self.lanes = ((self.lanes[0] + lane0) % _MODULO, (self.lanes[1] + lane1) % _MODULO, self.lanes[2] + nrow)

    def finish(self) -> RowsDigest:
        """The digest of the rows so far; not under a key, which makes other sums each time."""
        assert self.key is None
        return RowsDigest(self.kind, f"{self.lanes[0]:016x}{self.lanes[1]:016x}", self.lanes[2])


class SequenceDigest:
    """A running ``seq-sha256`` of rows with this schema, in their order; batching does not matter.

    Raises `UnsupportedType` for a column that has no canonical bytes.
    """

    kind: ClassVar[DigestKind] = "seq-sha256"

    def __init__(self, schema: pa.Schema) -> None:
        self._signature = _Signature(schema)
        self._columns = [_NodeHash(member.type) for member in _fields(schema)]
        self._nrow = 0

    def update(self, batch: pa.RecordBatch) -> None:
        """Append rows. Raises `InvalidInput` if their columns are not those of the schema."""
        self._signature.check(batch)
        for block in _blocks(batch):
            for column, values in zip(self._columns, _arrays(block), strict=True):
                column.update(values)
        self._nrow += batch.num_rows

    def finish(self) -> RowsDigest:
        """The digest of the rows so far; more may follow."""
        total = hashlib.sha256(_u64le(self._nrow) + _u64le(len(self._columns)))
        for column, name_and_type in zip(self._columns, self._signature.columns, strict=True):
            head = canonical_names(name_and_type)
            nodes = b"".join(column.digests())
            total.update(hashlib.sha256(_u64le(len(head)) + head + nodes).digest())
        return RowsDigest(self.kind, total.hexdigest(), self._nrow)


def row_lanes(batch: pa.RecordBatch, key: bytes | None = None) -> tuple[Words, Words]:
    """The two hashes of every row, in row order: what `BagDigest` sums, under a key or not.

    Under a `fresh_key`, rows with equal hashes are equal. Raises `UnsupportedType`.
    """
    _Signature(batch.schema)
    if (lanes := compiled.row_lanes(batch, key)) is not None:
        return lanes
    _keep_scratch()
    blocks = [_record_lanes(_arrays(block), _lane_hash(key)) for block in _blocks(batch)]
    if not blocks:
        return np.empty(0, np.uint64), np.empty(0, np.uint64)
    return np.concatenate([block[0] for block in blocks]), np.concatenate([block[1] for block in blocks])


# --- types -----------------------------------------------------------------------------------------------------------

_TEXT_OF: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.uint8(): "short",
    pa.int32(): "integer",
    pa.uint16(): "integer",
    pa.int64(): "long",
    pa.uint32(): "long",
    pa.float16(): "float",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.date64(): "date",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
}


def type_text(arrow: Any, path: str = "") -> Any:
    """The type as the digest records it, a JSON value: Arrow types for the same stored values have the same.

    Delta's names; ``time``; ``["array", item]``, ``["map", key, value]``, ``["struct", [name, type], …]``. Raises
    `UnsupportedType`.
    """
    types = pa.types
    if (text := _TEXT_OF.get(arrow)) is not None:
        return text
    if types.is_timestamp(arrow):
        return "timestamp_ntz" if arrow.tz is None else "timestamp"
    if types.is_time(arrow):
        return "time"
    if types.is_decimal(arrow) and arrow.precision <= 38:
        return f"decimal({arrow.precision},{arrow.scale})"
    if types.is_fixed_size_binary(arrow) or is_view(arrow, "string", "binary"):
        return "string" if is_view(arrow, "string") else "binary"
    if types.is_dictionary(arrow) or types.is_run_end_encoded(arrow):
        return type_text(arrow.value_type, path)
    if types.is_map(arrow):
        return ["map", type_text(arrow.key_type, f"{path}.key"), type_text(arrow.item_type, f"{path}.value")]
    if is_list(arrow):
        return ["array", type_text(arrow.value_type, f"{path}.element")]
    if types.is_struct(arrow) and arrow.num_fields:
        return [
            "struct",
            *([member.name, type_text(member.type, f"{path}.{member.name}")] for member in _fields(arrow)),
        ]
    raise UnsupportedType(
        f"Column {path.removeprefix('.')!r} has the type {arrow}, which has no canonical bytes to digest. "
        "Nothing was written. Cast it to a supported type, or drop it."
    )


def _fields(parent: Any) -> list[Any]:
    """The fields of a schema or a struct type."""
    return list(parent)


class _Signature:
    """Names and types of the columns; batches are compared with it, at no cost while they repeat one schema."""

    def __init__(self, schema: pa.Schema) -> None:
        if not len(schema):
            raise UnsupportedType("Rows without a column have no digest. Nothing was written.")
        self.columns = _columns(schema)
        self._seen = schema

    def check(self, batch: pa.RecordBatch) -> None:
        if batch.schema.equals(self._seen):
            return
        if _columns(batch.schema) != self.columns:
            raise InvalidInput(
                f"A batch has the columns {_columns(batch.schema)}, but the digest is of {self.columns}. "
                "Nothing was added to the digest."
            )
        self._seen = batch.schema


def _columns(schema: pa.Schema) -> list[Any]:
    return [[member.name, type_text(member.type, f".{member.name}")] for member in _fields(schema)]


# --- canonical values of Arrow arrays --------------------------------------------------------------------------------

# Stubs know an array by the type of its scalars, which is what is taken apart here.
Array = Any
Valid = npt.NDArray[np.bool_] | None
"""Which values are not null; ``None`` where all are."""

_TICKS: dict[str, tuple[int, int]] = {"s": (1_000_000, 1), "ms": (1000, 1), "us": (1, 1), "ns": (1, 1000)}
"""By what a time of a unit is multiplied and divided to be microseconds."""


def _blocks(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    rows = max(1, min(BLOCK_ROWS, BLOCK_BYTES * batch.num_rows // max(1, nbytes(batch))))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _arrays(batch: pa.RecordBatch) -> list[Array]:
    return cast("list[Array]", batch.columns)


def _plain(array: Array) -> Array:
    """The same values without dictionary, runs or views."""
    types, arrow = pa.types, array.type
    if types.is_dictionary(arrow):
        return _plain(array.dictionary_decode())
    if types.is_run_end_encoded(arrow):
        return _plain(cast("Any", pc).run_end_decode(array))
    if is_view(arrow, "string", "binary"):
        return array.cast(pa.large_binary())
    return array


def _valid(array: Array) -> Valid:
    if not array.null_count:
        return None
    start, end = array.offset, array.offset + len(array)
    packed = np.frombuffer(array.buffers()[0], np.uint8)[start // 8 : (end + 7) // 8]
    bits = np.unpackbits(packed, bitorder="little")
    return bits[start % 8 : start % 8 + len(array)].view(np.bool_)


def _fixed(array: Array, dtype: str | type[np.generic], per_value: int = 1) -> npt.NDArray[Any]:
    """The values' buffer as numbers, ``per_value`` of them each, for the rows of this slice."""
    if not len(array):
        return np.empty(0, dtype)
    values = np.frombuffer(array.buffers()[1], dtype)
    return values[array.offset * per_value : (array.offset + len(array)) * per_value]


def _words(array: Array) -> Words | None:
    """Values of 8 canonical bytes as words, or ``None`` for types that have other lengths."""
    types, arrow = pa.types, array.type
    if types.is_floating(arrow):
        # Adding 0.0 turns -0.0 into 0.0 and makes the copy that the NaN is written to.
        with np.errstate(invalid="ignore"):  # signalling NaN
            numbers = _fixed(array, f"<f{arrow.bit_width // 8}").astype(np.float64) + 0.0
        numbers[np.isnan(numbers)] = np.nan
        return numbers.view(np.uint64)
    if types.is_boolean(arrow):
        start, end = array.offset, array.offset + len(array)
        packed = _fixed_bytes(array)[start // 8 : (end + 7) // 8]
        return np.unpackbits(packed, bitorder="little")[start % 8 : start % 8 + len(array)].astype(np.uint64)
    if types.is_integer(arrow):
        kind = "u" if types.is_unsigned_integer(arrow) else "i"
        return _fixed(array, f"<{kind}{arrow.bit_width // 8}").astype(np.int64).view(np.uint64)
    if types.is_date32(arrow):
        return _fixed(array, "<i4").astype(np.int64).view(np.uint64)
    if types.is_date64(arrow):
        return (_fixed(array, "<i8") // 86_400_000).view(np.uint64)
    if types.is_time(arrow) or types.is_timestamp(arrow):
        times, divisor = _TICKS[arrow.unit]
        ticks = _fixed(array, f"<i{arrow.bit_width // 8}").astype(np.int64)
        ticks *= times
        return (ticks // divisor if divisor > 1 else ticks).view(np.uint64)
    return None


def _fixed_bytes(array: Array) -> npt.NDArray[np.uint8]:
    buffer = array.buffers()[1] if len(array) else None
    return np.empty(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)


def _decimals(array: Array) -> tuple[Words, Words]:
    """Low and high word of the unscaled 128-bit integers."""
    width = array.type.bit_width
    if width <= 64:
        small = _fixed(array, f"<i{width // 8}").astype(np.int64)
        return small.view(np.uint64), (small >> 63).view(np.uint64)
    per_value = width // 64
    words = _fixed(array, "<u8", per_value)
    # Of 256 bits, the upper 128 repeat the sign: the precision is at most 38.
    return words[::per_value].copy(), words[1::per_value].copy()


@dataclass(frozen=True, slots=True)
class _RaggedValues:
    """Values of any length: ``starts`` to ``starts + lengths`` of what holds them, under a null too."""

    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]

    @classmethod
    def of(cls, array: Array) -> Self:
        types, arrow, count = pa.types, array.type, len(array)
        if types.is_fixed_size_binary(arrow) or types.is_fixed_size_list(arrow):
            size = arrow.byte_width if types.is_fixed_size_binary(arrow) else arrow.list_size
            starts = np.arange(array.offset, array.offset + count, dtype=np.int64) * size
            lengths = np.full(count, size, np.int64)
        elif is_view(arrow, "list", "large_list"):
            dtype = "<i4" if is_view(arrow, "list") else "<i8"
            starts = _fixed(array, dtype).astype(np.int64)
            sizes = np.frombuffer(array.buffers()[2], dtype) if count else np.empty(0, dtype)
            lengths = sizes[array.offset : array.offset + count].astype(np.int64)
        else:
            large = types.is_large_string(arrow) or types.is_large_binary(arrow) or types.is_large_list(arrow)
            offsets = np.zeros(1, np.int64)
            if count:
                every = np.frombuffer(array.buffers()[1], "<i8" if large else "<i4")
                offsets = every[array.offset : array.offset + count + 1].astype(np.int64)
            starts, lengths = offsets[:-1], np.diff(offsets)
        return cls(starts, lengths)

    def items(self, values: Array) -> Array:
        """The items of all rows, one row after the other, out of the array that holds them."""
        if not self.lengths.any():
            return values.slice(0, 0)
        ends = self.starts + self.lengths
        if (self.starts[1:] == ends[:-1]).all():
            return values.slice(int(self.starts[0]), int(ends[-1] - self.starts[0]))
        before = np.cumsum(self.lengths) - self.lengths
        index = np.repeat(self.starts - before, self.lengths)
        index += np.arange(index.size)
        return values.take(pa.array(index))


def _values(array: Array) -> Array:
    """All items that a list array refers to; a map's as structs of key and value."""
    if pa.types.is_map(array.type):
        return pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"])
    return array.values


def _bytes(array: Array) -> npt.NDArray[np.uint8]:
    """What the `_RaggedValues` of a string, binary or fixed-size binary array refers to."""
    buffer = array.buffers()[-1] if len(array) else None
    return np.empty(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)


# --- bag-xxh64x2 -----------------------------------------------------------------------------------------------------

SCRATCH_BYTES = 8 * 1024 * 1024


def _keep_scratch() -> None:
    """Let glibc keep the memory of a block's arrays for the next block, instead of faulting it in anew each time.

    It gives the top of the heap back beyond twice the largest mapped block it has seen freed, at first 256 KiB. This
    one is never touched, and takes the digest of 3 million rows from 115,000 page faults to none (0.25 s of 1.3 s).
    """
    np.empty(SCRATCH_BYTES, np.uint8)


_Lanes = tuple[Words, Words]
_LANES = (0, 1)


class _RunningHash(Protocol):
    def add(self, words: Words) -> None: ...
    def finish(self) -> Words: ...


class _LaneHash(Protocol):
    """The hash function of each of the two lanes."""

    def running(self, count: int, lane: int) -> _RunningHash: ...
    def single_words(self, words: Words) -> _Lanes: ...
    def words(self, columns: list[Words], lane: int) -> Words: ...
    def ragged(self, data: npt.NDArray[np.uint8], ragged: _RaggedValues, lanes: tuple[int, ...]) -> list[Words]: ...


class _Xxh64:
    """XXH64, of which a lane's number is the seed."""

    def running(self, count: int, lane: int) -> WordsHash:
        return WordsHash(count, lane)

    def single_words(self, words: Words) -> _Lanes:
        return hash_single_words(words)

    def words(self, columns: list[Words], lane: int) -> Words:
        return hash_words(columns, lane)

    def ragged(self, data: npt.NDArray[np.uint8], ragged: _RaggedValues, lanes: tuple[int, ...]) -> list[Words]:
        return hash_ragged(data, ragged.starts, ragged.lengths, lanes)


class _SipHash:
    """SipHash-2-4, each lane under a half of the key."""

    def __init__(self, key: bytes) -> None:
        self._keys = key[: siphash.KEY_BYTES], key[siphash.KEY_BYTES :]

    def running(self, count: int, lane: int) -> siphash.WordsHash:
        return siphash.WordsHash(count, self._keys[lane])

    def single_words(self, words: Words) -> _Lanes:
        return self.words([words], 0), self.words([words], 1)

    def words(self, columns: list[Words], lane: int) -> Words:
        return siphash.hash_words(columns, self._keys[lane])

    def ragged(self, data: npt.NDArray[np.uint8], ragged: _RaggedValues, lanes: tuple[int, ...]) -> list[Words]:
        return [siphash.hash_ragged(data, ragged.starts, ragged.lengths, self._keys[lane]) for lane in lanes]


def _lane_hash(key: bytes | None) -> _LaneHash:
    return _Xxh64() if key is None else _SipHash(key)


def _record_lanes(columns: list[Array], how: _LaneHash) -> _Lanes:
    """The hashes of rows, or of structs: validity bits, then the lanes of each column."""
    columns = [_plain(column) for column in columns]
    valid = [_valid(column) for column in columns]
    words = _validity_words(valid, len(columns[0]))
    hashes = [how.running(len(words) + len(columns), lane) for lane in _LANES]
    for total in hashes:
        for word in words:
            total.add(word)
    for column, of_column in zip(columns, valid, strict=True):
        for total, lane in zip(hashes, _lanes(column, of_column, how), strict=True):
            total.add(lane)
    return hashes[0].finish(), hashes[1].finish()


def _validity_words(valid: list[Valid], count: int) -> list[Words]:
    """Bit i of word i // 64 says that column i has a value; one row for all where no column has a null."""
    words: list[Words] = []
    for start in range(0, len(valid), 64):
        group = valid[start : start + 64]
        word = np.array([sum(1 << bit for bit, of_column in enumerate(group) if of_column is None)], np.uint64)
        for bit, of_column in enumerate(group):
            if of_column is not None:
                word = word | (of_column.astype(np.uint64) << np.uint64(bit))
        words.append(word)
    return words


def _lanes(array: Array, valid: Valid, how: _LaneHash) -> _Lanes:
    """The two hashes of each value; 0 for a null."""
    lanes = _value_lanes(array, how)
    if valid is not None:
        for lane in lanes:
            lane *= valid
    return lanes


def _value_lanes(array: Array, how: _LaneHash) -> _Lanes:
    types, arrow = pa.types, array.type
    if (words := _words(array)) is not None:
        return how.single_words(words)
    if types.is_decimal(arrow):
        halves = [*_decimals(array)]
        return how.words(halves, 0), how.words(halves, 1)
    if types.is_struct(arrow):
        return _record_lanes([array.field(index) for index in range(arrow.num_fields)], how)
    ragged = _RaggedValues.of(array)
    if types.is_map(arrow):
        return _map_lanes(ragged, _values(array), how)
    if is_list(arrow):
        return _list_lanes(ragged, _values(array), how)
    first, second = how.ragged(_bytes(array), ragged, _LANES)
    return first, second


def _list_lanes(ragged: _RaggedValues, values: Array, how: _LaneHash) -> _Lanes:
    """The hashes of the length, the validity bits of the items (whole words of them) and the items' lanes."""
    items = _plain(ragged.items(values))
    valid = _valid(items)
    lengths = ragged.lengths
    validity_words = (lengths + 63) // 64
    sizes = 1 + validity_words + lengths
    starts = np.cumsum(sizes) - sizes
    within = np.arange(len(items)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    header = np.zeros(int(sizes.sum()), np.uint64)
    header[starts] = lengths.view(np.uint64)
    bits = np.ones(len(items), np.uint64) if valid is None else valid.astype(np.uint64)
    bits <<= (within & 63).view(np.uint64)
    every_64th = np.flatnonzero(within & 63 == 0)
    first_item = np.repeat(starts + 1, lengths) + within
    if every_64th.size:
        header[(np.repeat(starts + 1, lengths) + within // 64)[every_64th]] = np.bitwise_or.reduceat(bits, every_64th)
    position = first_item + np.repeat(validity_words, lengths)
    hashed: list[Words] = []
    texts = _RaggedValues(starts * 8, sizes * 8)
    for number, lane in enumerate(_lanes(items, valid, how)):
        header[position] = lane
        hashed += how.ragged(header.view(np.uint8), texts, (number,))
    return hashed[0], hashed[1]


def _map_lanes(ragged: _RaggedValues, values: Array, how: _LaneHash) -> _Lanes:
    """The hashes of the number of entries and the sum of their lanes, an entry being a struct of key and value."""
    entries = ragged.items(values)
    ends = np.cumsum(ragged.lengths)
    hashed: list[Words] = []
    for number, lane in enumerate(_lanes(entries, None, how)):
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(lane, dtype=np.uint64)])
        hashed.append(how.words([ragged.lengths.view(np.uint64), sums[ends] - sums[ends - ragged.lengths]], number))
    return hashed[0], hashed[1]


# --- SHA-256 of rows -------------------------------------------------------------------------------------------------

_WIDEST = {"byte": "long", "short": "long", "integer": "long", "float": "double"}


def row_shas(batch: pa.RecordBatch) -> "pa.Array[Any]":
    """The SHA-256 of every row, with the names and types of its columns, in 64 hexadecimal digits.

    Nobody can make two rows with one. Types that a value may be widened between are one. Raises `UnsupportedType`.
    """
    names = [[name, _widest(text)] for name, text in _Signature(batch.schema).columns]
    head = _binary(hashlib.sha256(canonical_names(names)).digest())
    sha256 = hashlib.sha256
    records = (_joined([head, *map(_encoded, _arrays(block))]) for block in _blocks(batch))
    return pa.array([sha256(record).hexdigest() for block in records for record in block.to_pylist()], pa.string())


def _widest(text: Any) -> Any:
    """The `type_text` of all types whose values have equal canonical bytes where they are equal."""
    if isinstance(text, str):
        return re.sub(r"^decimal\(\d+", "decimal(38", _WIDEST.get(text, text))
    if text[0] == "struct":
        return ["struct", *([name, _widest(kind)] for name, kind in text[1:])]
    return [text[0], *map(_widest, text[1:])]


def _encoded(array: Array) -> Array:
    """Each value in bytes of which no two values of a type have the same, and none the first of another's."""
    array = _plain(array)
    valid, types, arrow = _valid(array), pa.types, array.type
    if (words := _words(array)) is not None:
        parts = [_rows_of_bytes(words)]
    elif types.is_decimal(arrow):
        parts = [_rows_of_bytes(np.column_stack(_decimals(array)))]
    elif types.is_struct(arrow):
        parts = [_encoded(array.field(index)) for index in range(arrow.num_fields)]
    elif types.is_map(arrow) or is_list(arrow):
        ragged = _RaggedValues.of(array)
        items = _encoded(ragged.items(_values(array)))
        if types.is_map(arrow):  # whose entries have no order
            rows = pa.array(np.repeat(np.arange(len(array)), ragged.lengths))
            entries: Any = pa.table([rows, items], ["row", "entry"])
            items = items.take(pc.sort_indices(entries, [("row", "ascending"), ("entry", "ascending")]))
        bounds = _bounds(_RaggedValues.of(items).lengths)[_bounds(ragged.lengths)]
        parts = [_rows_of_bytes(ragged.lengths), _large_binary(bounds, _bytes(items))]
    else:
        parts = [_rows_of_bytes(_RaggedValues.of(array).lengths), array.cast(pa.large_binary())]
    found = _joined([_binary(b"\1"), *parts])
    return found if valid is None else cast("Any", pc).if_else(pa.array(valid), found, _binary(b"\0"))


def _joined(parts: list[Any]) -> Array:
    return cast("Any", pc).binary_join_element_wise(*parts, _binary(b""))


def _binary(value: bytes) -> Any:
    return pa.scalar(value, pa.large_binary())


def _rows_of_bytes(numbers: npt.NDArray[Any]) -> Array:
    """The bytes of each row of an array of numbers."""
    width = numbers[:1].nbytes or numbers.itemsize
    return _large_binary(_bounds(np.full(len(numbers), width)), numbers)


def _bounds(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _large_binary(bounds: Any, data: Any) -> Array:
    return pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])


# --- seq-sha256 ------------------------------------------------------------------------------------------------------


class _NodeHash:
    """The three running SHA-256 of one node of a type (validity, lengths, values), and those of its children."""

    def __init__(self, arrow: Any) -> None:
        self._validity, self._lengths, self._values = hashlib.sha256(), hashlib.sha256(), hashlib.sha256()
        self._children = [_NodeHash(child) for child in _child_types(arrow)]

    def digests(self) -> Iterator[bytes]:
        """This node's, then its children's: 96 bytes a node, depth first."""
        yield self._validity.digest() + self._lengths.digest() + self._values.digest()
        for child in self._children:
            yield from child.digests()

    def update(self, array: Array) -> None:
        """Append values; what is under a null is nothing, at any depth."""
        array = _plain(array)
        valid = _valid(array)
        if valid is None:
            self._validity.update(b"\x01" * len(array))
        else:
            self._validity.update(valid.view(np.uint8).data)
            array = array.drop_null()
        if len(array):
            self._update_values(array)

    def _update_values(self, array: Array) -> None:
        types, arrow = pa.types, array.type
        if (words := _words(array)) is not None:
            self._values.update(words.view(np.uint8).data)
        elif types.is_decimal(arrow):
            self._values.update(np.column_stack(_decimals(array)).data)
        elif types.is_struct(arrow):
            for index, child in enumerate(self._children):
                child.update(array.field(index))
        else:
            ragged = _RaggedValues.of(array)
            self._lengths.update(ragged.lengths.view(np.uint8).data)
            if types.is_map(arrow) or is_list(arrow):
                items = ragged.items(_values(array))
                parts = [items.field(0), items.field(1)] if types.is_map(arrow) else [items]
                for child, part in zip(self._children, parts, strict=True):
                    child.update(part)
            else:
                start, end = int(ragged.starts[0]), int(ragged.starts[-1] + ragged.lengths[-1])
                self._values.update(_bytes(array)[start:end].data)


def _child_types(arrow: Any) -> list[Any]:
    types = pa.types
    if types.is_dictionary(arrow) or types.is_run_end_encoded(arrow):
        return _child_types(arrow.value_type)
    if types.is_struct(arrow):
        return [member.type for member in _fields(arrow)]
    if types.is_map(arrow):
        return [arrow.key_type, arrow.item_type]
    return [arrow.value_type] if is_list(arrow) else []


def _u64le(number: int) -> bytes:
    return number.to_bytes(8, "little")
