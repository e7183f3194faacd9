"""Statistics as structs in checkpoints (``stats_parsed``), from and to their text in the log (``stats``).

Protocol: *Checkpoints* (``delta.checkpoint.writeStatsAsStruct``). What a text says that has no place in the struct, or
is not of its type, is left out: a statistic that is not there means "not known".
"""

import json
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, TypeAlias, cast

import pyarrow as pa
import pyarrow.json as pa_json

from dagster_versioned.delta.files.arrow_memory import arrow_reader
from dagster_versioned.delta.files.statistics import WHOLE_OFFSETS, are_objects, nested_type, parse
from dagster_versioned.delta.paths import Column, compute
from dagster_versioned.delta.schema.types import DataType, StructType, type_to_arrow
from dagster_versioned.errors import LogCorrupt

Array: TypeAlias = "pa.Array[Any]"
Path = tuple[str, ...]

_PIECE = 20_000
"""Texts parsed at once."""

_ORDERED = ("byte", "short", "integer", "long", "float", "double", "date", "timestamp", "timestamp_ntz", "string")


def statistics_type(schema: StructType, leaves: Sequence[Path], *, tight_bounds: bool) -> pa.StructType:
    """The type of ``stats_parsed`` in a table: ``leaves`` are the columns with statistics, by physical names as
    ``schema`` has them; ``tight_bounds`` asks for that member, which deletion vectors need."""
    types = {leaf: _leaf_type(schema, leaf) for leaf in leaves}
    bounds = {leaf: type_to_arrow(kind) for leaf, kind in types.items() if _is_ordered(kind)}
    members: list[tuple[str, pa.DataType]] = [("numRecords", pa.int64())]
    if bounds:
        members += [("minValues", nested_type(bounds)), ("maxValues", nested_type(bounds))]
    if types:
        members.append(("nullCount", nested_type(dict.fromkeys(types, pa.int64()))))
    if tight_bounds:
        members.append(("tightBounds", pa.bool_()))
    return pa.struct(members)


def _leaf_type(schema: StructType, path: Path) -> DataType:
    inner = schema.field(path[0]).type
    return _leaf_type(inner, path[1:]) if len(path) > 1 and isinstance(inner, StructType) else inner


def _is_ordered(data_type: DataType) -> bool:
    return isinstance(data_type, str) and (data_type in _ORDERED or data_type.startswith("decimal"))


# --- texts to structs ------------------------------------------------------------------------------------------------


def to_struct(texts: Array, wanted: pa.StructType) -> Array:
    """The statistics as structs; null where there is no text, or none that is a JSON object."""
    pieces = [_piece(texts.slice(start, _PIECE), wanted) for start in range(0, len(texts), _PIECE)]
    return cast("Any", pa.concat_arrays(pieces)) if pieces else pa.array([], wanted)


def _piece(texts: Array, wanted: pa.StructType) -> Array:
    try:
        return _columnar(texts, wanted)
    except (pa.ArrowException, ValueError):  # something is not as it should be: what, is found row by row
        rows = [_tree(text, wanted) for text in cast("list[str | None]", texts.to_pylist())]
        return pa.array(rows, wanted)


def _columnar(texts: Array, wanted: pa.StructType) -> Array:
    """All texts at once. Raises `pyarrow.ArrowException` for a value that is not of its type."""
    absent = compute.is_null(texts)
    lines = compute.fill_null(texts, "{}")
    if not are_objects(lines):
        raise ValueError("a text that is not one object")
    whole = "\n".join(cast("list[str]", lines.to_pylist())).encode() + b"\n"
    source: Any = arrow_reader(whole)
    table = pa_json.read_json(
        source,
        read_options=pa_json.ReadOptions(block_size=max(len(whole), 1)),
        parse_options=pa_json.ParseOptions(
            explicit_schema=pa.schema(list(cast("Any", _as_read(wanted)))), unexpected_field_behavior="ignore"
        ),
    )
    if table.num_rows != len(texts):
        raise ValueError("a text that is no JSON object")
    members = [_cast(_whole(table[member.name]), member.type) for member in cast("Any", wanted)]
    return pa.StructArray.from_arrays(members, fields=list(cast("Any", wanted)), mask=absent)


def _as_read(kind: pa.DataType) -> pa.DataType:
    """The type as which JSON's reader takes it in: times are text."""
    if pa.types.is_struct(kind):
        return pa.struct([(member.name, _as_read(member.type)) for member in cast("Any", kind)])
    return pa.string() if pa.types.is_temporal(kind) else kind


def _cast(read: Any, wanted: Any) -> Any:
    if not pa.types.is_struct(wanted):
        return read if read.type == wanted else compute.cast(read, wanted)
    members = [_cast(read.field(member.name), member.type) for member in cast("Any", wanted)]
    return pa.StructArray.from_arrays(members, fields=list(wanted), mask=compute.is_null(read))


def _tree(text: str | None, wanted: Any) -> dict[str, Any] | None:
    try:
        value = None if text is None else parse(text)
    except LogCorrupt:
        return None
    return None if value is None else _value(value, wanted)


def _value(value: object, wanted: Any) -> Any:
    """A parsed value as its type has it; ``None`` where it is not of the type."""
    if pa.types.is_struct(wanted):
        if not isinstance(value, dict):
            return None
        held = cast("dict[str, Any]", value)
        members = cast("Any", wanted)
        return {member.name: _value(held.get(member.name), member.type) for member in members}
    try:
        if pa.types.is_temporal(wanted) and isinstance(value, str):
            return _time(value, wanted)
        if not _fits(value, wanted):
            return None
        number: Any = float(cast("Any", value)) if pa.types.is_floating(wanted) else value
        return pa.scalar(number, wanted).as_py()
    except (pa.ArrowException, ValueError, OverflowError):
        return None


def _time(text: str, wanted: pa.DataType) -> date | datetime | None:
    return compute.cast(pa.array([text]), wanted)[0].as_py()


def _fits(value: object, wanted: pa.DataType) -> bool:
    if isinstance(value, bool):
        return pa.types.is_boolean(wanted)
    if isinstance(value, int | Decimal):
        whole = isinstance(value, int) or value == value.to_integral_value()
        return (pa.types.is_integer(wanted) and whole) or pa.types.is_floating(wanted) or pa.types.is_decimal(wanted)
    return isinstance(value, str) and pa.types.is_string(wanted)


# --- structs to texts ------------------------------------------------------------------------------------------------


def to_text(structs: Column) -> Array:
    """The statistics as texts; null where the struct is."""
    return _text(_whole(structs))


def _whole(column: Any) -> Any:
    chunks = cast("list[Any]", column.chunks)
    return pa.concat_arrays(chunks) if chunks else cast("Any", pa.array([], column.type))


def _text(array: Any) -> Any:
    kind = array.type
    if pa.types.is_struct(kind):
        return _object(array)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _quoted(array)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
        return compute.cast(array, pa.string())
    if pa.types.is_floating(kind):
        exact = compute.cast(array, pa.float64())
        return compute.cast(compute.if_else(compute.is_finite(exact), exact, None), pa.string())
    if pa.types.is_date(kind):
        return _between('"', compute.cast(array, pa.string()), '"')
    if pa.types.is_timestamp(kind):
        return _between('"', _times(array), '"')
    return pa.nulls(len(array), pa.string())


def _times(array: Any) -> Any:
    cut = compute.cast(compute.floor_temporal(array, unit="millisecond"), pa.timestamp("ms"))
    text = compute.strftime(cut, format="%Y-%m-%dT%H:%M:%S", locale="C")
    if not array.type.tz and array.type.unit != "ns":
        return text
    # Without a zone at nanoseconds: Spark's oldest way to store an instant. What is old may come of a text whose offset
    # was cut, so it is not called exact.
    old = compute.less(cut, pa.scalar(WHOLE_OFFSETS, cut.type))
    return compute.binary_join_element_wise(text, compute.if_else(old, "+00:00", "Z"), "")


def _object(array: Any) -> Any:
    # Not by `pyarrow.StructArray.field`, which forgets the nulls of the struct; and the joining does not skip
    # nulls, since it then drops rows in which all are null (pyarrow 26).
    members = [
        compute.fill_null(
            _between(f",{json.dumps(member.name, ensure_ascii=False)}:", _text(compute.struct_field(array, i)), ""), ""
        )
        for i, member in enumerate(array.type)
    ]
    empty = pa.array([""] * len(array), pa.string())
    body = compute.utf8_slice_codeunits(compute.binary_join_element_wise(empty, *members, ""), 1)
    return compute.if_else(compute.is_valid(array), _between("{", body, "}"), pa.scalar(None, pa.string()))


def _between(before: str, texts: Any, after: str) -> Any:
    return compute.binary_join_element_wise(pa.scalar(before), texts, pa.scalar(after), "")


def _quoted(texts: Any) -> Any:
    if compute.any(compute.match_substring_regex(texts, r"[\x00-\x1f]")).as_py():
        return pa.array(
            [None if text is None else json.dumps(text, ensure_ascii=False) for text in texts.to_pylist()], pa.string()
        )
    plain = compute.cast(texts, pa.string())
    escaped = compute.replace_substring(plain, pattern="\\", replacement="\\\\")
    return _between('"', compute.replace_substring(escaped, pattern='"', replacement='\\"'), '"')
