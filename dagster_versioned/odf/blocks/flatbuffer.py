"""The events of a chain as FlatBuffers, byte for byte as the reference implementation writes them.

A table's layout is its dataclass: one slot a field, in order (a union takes two, type then value). It is written in two
passes over its fields: first what is of variable size, depth first, then the slots. What is read may come from
anybody: every offset is checked, and no more is decoded than the buffer has bytes, however often its parts are shared.

Source: seed 002 ("Metadata Block Hashing"), https://flatbuffers.dev/internals/.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum
from functools import cache
from typing import Annotated, Any, Final, TypeVar, cast, get_args, get_origin

from dagster_versioned.errors import ChainCorrupt, InvalidInput, UnsupportedFeature
from dagster_versioned.extras import requiring
from dagster_versioned.odf.blocks.events import Timestamp
from dagster_versioned.odf.blocks.marks import ShortEnum, Variants, Width, hints_of
from dagster_versioned.odf.identity.dataset_id import DatasetId
from dagster_versioned.odf.identity.multihash import Multihash

Table = TypeVar("Table")

_INTEGER: Final = {
    Width.UINT64: "Uint64",
    Width.INT64: "Int64",
    Width.UINT32: "Uint32",
    Width.INT32: "Int32",
    Width.INT16: "Int16",
}
_MAX_DEPTH: Final = 64
"""Tables inside tables: as many as FlatBuffers' own verifiers take. Types hold types, so bytes could nest for ever."""

_TIMESTAMP: Final = struct.Struct("<iHxxII")
_BYTE: Final = struct.Struct("B")
_UINT16: Final = struct.Struct("<H")
_INT32: Final = struct.Struct("<i")
_UINT32: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class _Number:
    """A number in its slot. ``None`` differs from 0 by the slot being empty, and a field that cannot be ``None`` is
    left out where it is 0. ``name`` is FlatBuffers' own for the type."""

    format: struct.Struct
    name: str
    of: Callable[[Any], Any]
    to: Callable[[Any], int]


@dataclass(frozen=True, slots=True)
class _Moment:
    """A timestamp in its slot."""


@dataclass(frozen=True, slots=True)
class _Bytes:
    """A vector of bytes, or a string where ``text``."""

    of: Callable[[bytes], Any]
    to: Callable[[Any], bytes]
    text: bool = False


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of its own."""

    type: type


@dataclass(frozen=True, slots=True)
class _Union:
    """One of several tables; the tag is the place in ``types``, from 1."""

    types: tuple[type, ...]


@dataclass(frozen=True, slots=True)
class _Vector:
    """A vector of strings or tables. FlatBuffers has no vector of unions that all languages share: each is wrapped in a
    table whose only field it is."""

    item: "_Bytes | _Table | _Union"


_Kind = _Number | _Moment | _Bytes | _Table | _Union | _Vector


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    slot: int
    kind: _Kind
    optional: bool


def encode_table(value: object, *, timestamp_align: int = 1) -> bytes:
    """A dataclass of `dagster_versioned.odf.blocks.events`, or one like them, as the root table of a buffer.

    Raises `InvalidInput` for a text that is not Unicode and for a number that does not fit.
    """
    with requiring("odf", "A metadata chain"):
        import flatbuffers  # pyright: ignore[reportMissingTypeStubs]
    builder = flatbuffers.Builder(1024)
    try:
        builder.Finish(_write_table(builder, value, timestamp_align, 0))
    except (UnicodeEncodeError, TypeError) as error:
        raise InvalidInput(f"{type(value).__name__} cannot be encoded: {error}. Nothing was written.") from None
    return bytes(builder.Output())


def decode_table(data: bytes, table: type[Table]) -> Table:
    """The value that `encode_table` gave.

    Raises `ChainCorrupt` where the bytes are no such table, and `UnsupportedFeature` for fields and variants that are
    not known; both name the field.
    """
    reader = _Reader(data)
    return cast(Table, reader.table(reader.offset(0, table.__name__), table, table.__name__))


@cache
def _layout(table: type) -> tuple[tuple[_Field, ...], int]:
    """The fields of a table, and how many slots they take."""
    found: list[_Field] = []
    slot = 0
    for field in fields(table):
        hint, optional = hints_of(table)[field.name]
        kind = _kind(hint)
        found.append(_Field(field.name, slot, kind, optional))
        slot += 2 if isinstance(kind, _Union) else 1
    return tuple(found), slot


@cache
def _uint16s(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}H")


def _kind(hint: Any) -> _Kind:
    if get_origin(hint) is Annotated:
        inner, mark = get_args(hint)
        if mark is Variants:
            return _Union(get_args(inner) or (inner,))
        return _Number(struct.Struct("<" + mark.value), _INTEGER[mark], int, int)
    if get_origin(hint) is tuple:
        item = _kind(get_args(hint)[0])
        assert isinstance(item, _Bytes | _Table | _Union)
        return _Vector(item)
    if hint in _KINDS:
        return _KINDS[hint]
    if issubclass(hint, Enum):
        members = list(hint)
        width = Width.INT16 if issubclass(hint, ShortEnum) else Width.INT32
        return _Number(struct.Struct("<" + width.value), _INTEGER[width], members.__getitem__, members.index)
    return _Table(hint)


_KINDS: Final[dict[Any, _Kind]] = {
    str: _Bytes(lambda data: data.decode(), lambda text: text.encode(), text=True),
    bytes: _Bytes(bytes, bytes),
    Multihash: _Bytes(Multihash.from_bytes, bytes),
    DatasetId: _Bytes(DatasetId.from_bytes, bytes),
    bool: _Number(struct.Struct("<?"), "Bool", bool, int),
    Timestamp: _Moment(),
}


def _write_table(builder: Any, value: object, align: int, depth: int) -> int:
    if depth >= _MAX_DEPTH:
        raise TypeError(f"it nests deeper than {_MAX_DEPTH} tables")
    layout, slots = _layout(type(value))
    offsets: list[int] = []
    for field in layout:
        part = getattr(value, field.name)
        offsets.append(0 if part is None else _write_part(builder, field.kind, part, align, depth))
    builder.StartObject(slots)
    for field, offset in zip(layout, offsets, strict=True):
        part = getattr(value, field.name)
        if part is None:
            continue
        match field.kind:
            case _Number() as number:
                prepend = getattr(builder, f"Prepend{number.name}Slot")
                prepend(field.slot, number.to(part), None if field.optional else 0)
            case _Moment():
                builder.PrependStructSlot(field.slot, _write_moment(builder, part, align), 0)
            case _Union(types):
                builder.PrependUint8Slot(field.slot, types.index(type(part)) + 1, 0)
                builder.PrependUOffsetTRelativeSlot(field.slot + 1, offset, 0)
            case _:
                builder.PrependUOffsetTRelativeSlot(field.slot, offset, 0)
    return int(builder.EndObject())


def _write_part(builder: Any, kind: _Kind, value: Any, align: int, depth: int) -> int:
    """Where the part was written, or 0 where it will be in its slot."""
    match kind:
        case _Number() | _Moment():
            return 0
        case _Bytes(_, to, text):
            return int(builder.CreateString(to(value)) if text else builder.CreateByteVector(to(value)))
        case _Table() | _Union():
            return _write_table(builder, value, align, depth + 1)
        case _Vector(item):
            items = [_write_item(builder, item, part, align, depth) for part in value]
            builder.StartVector(4, len(items), 4)
            for offset in reversed(items):
                builder.PrependUOffsetTRelative(offset)
            return int(builder.EndVector())


def _write_item(builder: Any, kind: _Bytes | _Table | _Union, value: Any, align: int, depth: int) -> int:
    offset = _write_part(builder, kind, value, align, depth)
    if not isinstance(kind, _Union):
        return offset
    builder.StartObject(2)
    builder.PrependUint8Slot(0, kind.types.index(type(value)) + 1, 0)
    builder.PrependUOffsetTRelativeSlot(1, offset, 0)
    return int(builder.EndObject())


def _write_moment(builder: Any, moment: Timestamp, align: int) -> int:
    builder.Prep(align, _TIMESTAMP.size)
    builder.head -= _TIMESTAMP.size
    parts = (moment.year, moment.ordinal, moment.seconds_from_midnight, moment.nanoseconds)
    _TIMESTAMP.pack_into(builder.Bytes, builder.head, *parts)
    return int(builder.Offset())


class _Reader:
    """Reads tables out of bytes that nobody vouches for."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = len(data)
        self._depth = 0

    def unpack(self, form: struct.Struct, at: int, path: str) -> tuple[Any, ...]:
        if not 0 <= at <= len(self._data) - form.size:
            raise ChainCorrupt(f"{path} is recorded at byte {at} of {len(self._data)}.")
        return form.unpack_from(self._data, at)

    def offset(self, at: int, path: str) -> int:
        """Where the offset at a place leads to."""
        (distance,) = self.unpack(_UINT32, at, path)
        if not distance:
            raise ChainCorrupt(f"{path} leads to itself.")
        return at + distance

    def table(self, at: int, table: type, path: str) -> Any:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ChainCorrupt(f"{path:.200} nests deeper than {_MAX_DEPTH} tables.")
        found = self._table(at, table, path)
        self._depth -= 1
        return found

    def _table(self, at: int, table: type, path: str) -> Any:
        layout, known = _layout(table)
        slots = self._slots(at, path)
        for slot, place in enumerate(slots[known:], known):
            if place:
                raise UnsupportedFeature(f"{path} has a field in slot {slot} that is not known; {known} slots are.")
        slots += [0] * (known - len(slots))
        values: dict[str, Any] = {}
        for field in layout:
            place = slots[field.slot]
            name = f"{path}.{field.name}"
            if isinstance(field.kind, _Union):
                values[field.name] = self._union(at, (place, slots[field.slot + 1]), field.kind, field.optional, name)
            elif place:
                values[field.name] = self._part(at + place, field.kind, name)
            elif field.optional:
                values[field.name] = None
            elif isinstance(field.kind, _Number):
                values[field.name] = self._number(field.kind, 0, name)
            else:
                raise ChainCorrupt(f"{name} is missing.")
        try:
            return table(**values)
        except InvalidInput as error:
            raise ChainCorrupt(f"{path} cannot be: {error}") from None

    def _slots(self, at: int, path: str) -> list[int]:
        """Where the table's fields are, from its own place; 0 for those that it does not have."""
        self._spend(_INT32.size, path)
        vtable = at - self.unpack(_INT32, at, path)[0]
        (size,) = self.unpack(_UINT16, vtable, path)
        if size < 4 or size % 2:
            raise ChainCorrupt(f"{path} has a list of fields of {size} bytes.")
        return list(self.unpack(_uint16s(size // 2), vtable, path)[2:])

    def _part(self, at: int, kind: _Kind, path: str) -> Any:
        match kind:
            case _Number() as number:
                return self._number(number, self.unpack(number.format, at, path)[0], path)
            case _Moment():
                parts = self.unpack(_TIMESTAMP, at, path)
                try:
                    return Timestamp(*parts)
                except InvalidInput as error:
                    raise ChainCorrupt(f"{path} cannot be: {error}") from None
            case _Bytes() as content:
                return self._content(self.offset(at, path), content, path)
            case _Table(table):
                return self.table(self.offset(at, path), table, path)
            case _Vector(item):
                return self._vector(self.offset(at, path), item, path)
            case _Union():
                raise AssertionError(path)  # of two slots: `_union`

    def _number(self, number: _Number, value: Any, path: str) -> Any:
        try:
            if value < 0 and number.of not in (int, bool):
                raise IndexError
            return number.of(value)
        except IndexError:
            raise UnsupportedFeature(f"{path} is the value {value}, which is not known.") from None

    def _content(self, at: int, content: _Bytes, path: str) -> Any:
        (size,) = self.unpack(_UINT32, at, path)
        start = at + _UINT32.size
        if size > len(self._data) - start:
            raise ChainCorrupt(f"{path} is recorded with {size} bytes, of which {len(self._data) - start} are there.")
        if content.text and self._data[start + size : start + size + 1] != b"\0":
            raise ChainCorrupt(f"{path} is a text without the zero that ends it.")
        self._spend(size, path)
        try:
            return content.of(self._data[start : start + size])
        except UnicodeDecodeError:
            raise ChainCorrupt(f"{path} is not UTF-8.") from None
        except InvalidInput as error:
            raise ChainCorrupt(f"{path} cannot be: {error}") from None

    def _vector(self, at: int, item: _Bytes | _Table | _Union, path: str) -> tuple[Any, ...]:
        (count,) = self.unpack(_UINT32, at, path)
        self._spend(count * _UINT32.size, path)
        values: list[Any] = []
        for index in range(count):
            place = at + _UINT32.size * (index + 1)
            name = f"{path}[{index}]"
            if isinstance(item, _Union):
                table = self.offset(place, name)
                slots = self._slots(table, name)
                if len(slots) > 2 and any(slots[2:]):
                    raise UnsupportedFeature(f"{name} has fields that are not known.")
                tag, value, *_ = [*slots, 0, 0]
                values.append(self._union(table, (tag, value), item, False, name))
            else:
                values.append(self._part(place, item, name))
        return tuple(values)

    def _union(self, at: int, places: tuple[int, int], union: _Union, optional: bool, path: str) -> Any:
        tag: int = self.unpack(_BYTE, at + places[0], path)[0] if places[0] else 0
        if tag == 0 and not places[1]:
            if optional:
                return None
            raise ChainCorrupt(f"{path} is missing.")
        if tag == 0 or not places[1]:
            raise ChainCorrupt(f"{path} has a type without a value, or a value without a type.")
        if tag > len(union.types):
            raise UnsupportedFeature(f"{path} is of kind {tag}, which is not known; {len(union.types)} kinds are.")
        return self.table(self.offset(at + places[1], path), union.types[tag - 1], path)

    def _spend(self, size: int, path: str) -> None:
        """Parts may share bytes, but legitimate ones do not: a small buffer cannot become a large value."""
        self._left -= size
        if self._left < 0:
            raise ChainCorrupt(f"{path} is one of more parts than {len(self._data)} bytes can hold.")
