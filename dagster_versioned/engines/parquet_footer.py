"""Ends of Parquet files without the bounds of columns: of what is known once the last row is written.

A footer is in Apache Thrift's compact protocol. A struct there is its fields, each with its type and by how much its id
is above that of the field before, so a field that is left out changes nothing but the distance of the next one.
Source: Thrift's ``thrift-compact-protocol.md`` and Parquet's ``parquet.thrift``.
"""

from collections.abc import Collection
from typing import Any

Struct = dict[int, tuple[int, Any]]
"""The fields of a struct by their ids, in their order: type and value, integers as they are encoded."""

_ROW_GROUPS, _COLUMNS, _METADATA, _PATH, _STATISTICS = 4, 1, 3, 3, 12
_COLUMN_INDEX = (6, 7)
_BOUNDS = (1, 2, 5, 6, 7, 8)
"""In ``Statistics``: all but the counts of nulls and of distinct values."""

_MANY = 15
"""From this length on, a list has it in bytes of their own; up to it, so have distances of ids."""


def without_bounds(end: bytes, columns: Collection[str]) -> bytes:
    """The end of a Parquet file, its footer at least, with no bounds of these columns and no column index of theirs.

    ``columns`` are dotted paths of leaves, as the footer has them. The bytes of an index stay; nothing refers to them.
    """
    length = int.from_bytes(end[-8:-4], "little")
    footer = _Reader(end[-8 - length : -8]).struct()
    for group in _items(footer, _ROW_GROUPS):
        for chunk in _items(group, _COLUMNS):
            metadata: Struct = chunk[_METADATA][1]
            if b".".join(_items(metadata, _PATH)).decode() in columns:
                for field in _COLUMN_INDEX:
                    chunk.pop(field, None)
                if _STATISTICS in metadata:  # a chunk of NaN alone has none
                    statistics: Struct = metadata[_STATISTICS][1]
                    for field in _BOUNDS:
                        statistics.pop(field, None)
    made = bytearray()
    _put_struct(made, footer)
    return end[: -8 - length] + made + len(made).to_bytes(4, "little") + end[-4:]


def _items(struct: Struct, field: int) -> list[Any]:
    return struct[field][1][1]


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def struct(self) -> Struct:
        fields: Struct = {}
        number = 0
        while header := self._byte():
            number = number + (header >> 4) if header >> 4 else _signed(self._varint())
            fields[number] = header & 15, self._value(header & 15)
        return fields

    def _value(self, kind: int) -> Any:
        match kind:
            case 1 | 2:  # true and false, as a field
                return None
            case 3:
                return self._byte()
            case 4 | 5 | 6:
                return self._varint()
            case 7:
                return self._bytes(8)
            case 8:
                return self._bytes(self._varint())
            case 9 | 10:
                return self._list()
            case 12:
                return self.struct()
            case _:
                raise ValueError(f"A footer of Parquet has no value of Thrift's type {kind}.")

    def _list(self) -> tuple[int, list[Any]]:
        header = self._byte()
        count = self._varint() if header >> 4 == _MANY else header >> 4
        item = max(header & 15, 2)  # of booleans, which are bytes in a list, either type may be named
        return header & 15, [self._byte() if item == 2 else self._value(item) for _ in range(count)]

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _bytes(self, count: int) -> bytes:
        self._at += count
        return self._data[self._at - count : self._at]

    def _varint(self) -> int:
        value = shift = 0
        while (byte := self._byte()) & 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
        return value | byte << shift


def _put_struct(made: bytearray, struct: Struct) -> None:
    last = 0
    for number, (kind, value) in struct.items():
        if 0 < number - last <= _MANY:
            made.append((number - last) << 4 | kind)
        else:
            made.append(kind)
            _put_varint(made, number << 1 ^ number >> 31)
        last = number
        _put(made, kind, value)
    made.append(0)


def _put(made: bytearray, kind: int, value: Any) -> None:
    match kind:
        case 1 | 2:
            pass
        case 3:
            made.append(value)
        case 4 | 5 | 6:
            _put_varint(made, value)
        case 7:
            made += value
        case 8:
            _put_varint(made, len(value))
            made += value
        case 12:
            _put_struct(made, value)
        case _:  # a list or a set
            item, items = value
            made.append(min(len(items), _MANY) << 4 | item)
            if len(items) >= _MANY:
                _put_varint(made, len(items))
            for element in items:
                _put(made, 3 if item <= 2 else item, element)


def _put_varint(made: bytearray, value: int) -> None:
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)


def _signed(value: int) -> int:
    return value >> 1 ^ -(value & 1)
