"""Per-file statistics: row count, bounds and null counts of the first leaf columns. Protocol: *Per-file Statistics*.

A statistics dict has the members ``numRecords``, ``minValues``, ``maxValues`` and ``nullCount``, the last three shaped
like the data (structs nest). Bounds may be wide, never wrong: what cannot be bounded for sure is left out, which a
reader takes as "unknown". Values are what JSON has, and `Decimal` for numbers that must be exact.
"""

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from dagster_versioned.delta.files.arrow_memory import arrow_reader
from dagster_versioned.delta.paths import compute
from dagster_versioned.delta.schema.types import ArrayType, DataType, MapType, StructType
from dagster_versioned.errors import InvalidInput, LogCorrupt

if TYPE_CHECKING:
    from dagster_versioned.storage.object_store import ObjectStore

INDEXED_COLUMNS = 32
"""The protocol's reference collects statistics for this many leaf columns; ``delta.dataSkippingNumIndexedCols``."""

PREFIX = 32
"""Characters kept of a string bound."""

WHOLE_OFFSETS = datetime(1973, 1, 1)
"""From then on no zone is off from UTC by parts of a minute, which writers cut off."""

_FEW_BRACKETS = 1_000
_MORE = r"[\x00-\x1f]|\} *[^ ,}\]]"
"""What follows the end of an object inside of another is none of it, and no string holds a control character."""

_LAST_CHARACTER = "\U0010ffff"
_PER_MILLISECOND = {"milliseconds": 1, "microseconds": 1000}
_EPOCH = datetime(1970, 1, 1)
_EPOCH_DAY = date(1970, 1, 1)

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A leaf of the schema outside arrays and maps, and the position of its column in the Parquet file."""

    path: Path
    primitive: str
    column: int


def from_parquet_metadata(
    metadata: pq.FileMetaData,
    schema: StructType,
    nan_columns: Collection[str] | None = None,
    indexed_columns: int = INDEXED_COLUMNS,
) -> dict[str, Any]:
    """The statistics of a Parquet file from its footer.

    ``schema`` is that of the file, so without partition columns. Parquet bounds leave NaN out, which is above every
    number to some readers, below to others and beside them to the rest, so a float column has bounds only where it is
    known to hold no NaN: ``nan_columns`` are the dotted paths of those that do, ``None`` means "not known". Strings
    are cut to 32 characters and timestamps to milliseconds, lower bounds downwards and upper bounds upwards; binary
    columns, arrays and maps have no bounds, and a struct of which no field has any has empty ones.
    Raises `InvalidInput` where the file's columns are not the schema's.
    """
    count, leaves = _leaves(schema)
    if count != metadata.num_columns:
        raise InvalidInput(
            f"The file has {metadata.num_columns} leaf columns, its schema {count}. Nothing was written."
        )
    chosen = [leaf for position, leaf in leaves if position < indexed_columns]
    for leaf in chosen:
        name = metadata.schema.column(leaf.column).path
        if name != ".".join(leaf.path):
            raise InvalidInput(f"The file has the column {name!r} where its schema has {'.'.join(leaf.path)!r}.")
    groups = [_row_group(metadata, group, chosen, nan_columns) for group in range(metadata.num_row_groups)]
    found = merge(groups)
    for leaf in chosen:
        _reach_bounds(found, leaf.path)
    return found


def read_footer(store: "ObjectStore", key: str, size: int) -> pq.FileMetaData:
    """What the footer of a Parquet file says, in two requests: it ends with the length of its footer."""
    tail = store.get_range(key, max(size - 8, 0), 8)
    length = int.from_bytes(tail[:4], "little") + 8
    footer: Any = arrow_reader(store.get_range(key, max(size - length, 0), length))
    return pq.read_metadata(footer)


def of_column(metadata: pq.FileMetaData, path: Path, primitive: str, column: int | None) -> dict[str, Any]:
    """The statistics of one leaf column of a file, called ``path``; ``None``: the file lacks it, so it is all null."""
    if column is None or not metadata.num_rows:
        found: dict[str, Any] = {"numRecords": metadata.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
        _nest(found["nullCount"], path, metadata.num_rows)
        return found
    leaf = _Leaf(path, primitive, column)
    return merge(_row_group(metadata, group, [leaf], None) for group in range(metadata.num_row_groups))


def with_column(known: Mapping[str, Any], found: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """A file's statistics with those of one more column, as `of_column` finds them."""
    together: dict[str, Any] = {**known, "numRecords": found["numRecords"]}
    for member in ("minValues", "maxValues", "nullCount"):
        own = [(at, value) for at, value in _flat(together.get(member) or {}) if at != path]
        together[member] = {}
        for at, value in (*own, *_flat(found[member])):
            _nest(together[member], at, value)
    _reach_bounds(together, path)
    return together


def null_count(known: Mapping[str, Any], path: Path) -> int | None:
    """How many nulls a column has by a file's statistics; ``None`` where they do not say."""
    value: Any = known.get("nullCount")
    for part in path:
        value = cast("dict[str, Any]", value).get(part) if isinstance(value, dict) else None
    return value if isinstance(value, int) else None


def merge(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The statistics of several files taken together, as wide as their union; what one of them lacks is left out."""
    given = list(parts)
    rows = [int(part["numRecords"]) for part in given]
    nulls = [dict(_flat(part.get("nullCount", {}))) for part in given]
    lows, highs = ([dict(_flat(part.get(member, {}))) for part in given] for member in ("minValues", "maxValues"))
    return {
        "numRecords": sum(rows),
        "minValues": _merge_bounds(lows, rows, nulls, min),
        "maxValues": _merge_bounds(highs, rows, nulls, max),
        "nullCount": _merge_counts(nulls),
    }


def _merge_counts(nulls: Sequence[Mapping[Path, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for path in dict.fromkeys(chain.from_iterable(nulls)):
        if all(path in null for null in nulls):
            _nest(merged, path, sum(null[path] for null in nulls))
    return merged


def _merge_bounds(
    bounds: Sequence[Mapping[Path, Any]],
    rows: Sequence[int],
    nulls: Sequence[Mapping[Path, Any]],
    choose: Callable[[Iterable[Any]], Any],
) -> dict[str, Any]:
    """The bounds of several files taken together, of those columns that each of them bounds or has no value of."""
    merged: dict[str, Any] = {}
    for path in dict.fromkeys(chain.from_iterable(bounds)):
        values = [bound[path] for bound in bounds if path in bound]
        if {} in values:
            _reach(merged, (*path, ""))
            continue
        # A file in which the column is null throughout, or which has no rows, bounds nothing.
        files = zip(bounds, rows, nulls, strict=True)
        is_known = all(path in bound or not count or null.get(path) == count for bound, count, null in files)
        if is_known and _comparable(values):
            _nest(merged, path, choose(values))
    return merged


def to_json(statistics: Mapping[str, Any]) -> str:
    """The text of ``add.stats``: compact, decimals as exact numbers."""

    def text(value: object) -> str:
        if isinstance(value, Mapping):
            entries = cast("Mapping[str, object]", value).items()
            return (
                "{" + ",".join(f"{json.dumps(key, ensure_ascii=False)}:{text(entry)}" for key, entry in entries) + "}"
            )
        if isinstance(value, Decimal):
            return f"{value:f}"
        return json.dumps(value, ensure_ascii=False, allow_nan=False)

    return text(statistics)


def parse(text: str) -> dict[str, Any]:
    """Parse ``add.stats``; numbers with a fraction or an exponent come as `Decimal`. Raises `LogCorrupt`."""
    try:
        value = json.loads(text, parse_float=Decimal)
    except (ValueError, RecursionError, InvalidOperation) as error:  # the last for an exponent beyond any number
        raise LogCorrupt(f"The statistics {text!r:.100} are not JSON: {error}.") from error
    if not isinstance(value, dict):
        raise LogCorrupt(f"The statistics {text!r:.100} are not a JSON object.")
    return cast("dict[str, Any]", value)


def nested_type(leaves: Mapping[Path, pa.DataType]) -> pa.DataType:
    """The type of a struct with these leaves, by their paths."""
    if () in leaves:
        return leaves[()]
    names = dict.fromkeys(path[0] for path in leaves)
    return pa.struct(
        [(name, nested_type({path[1:]: kind for path, kind in leaves.items() if path[0] == name})) for name in names]
    )


def are_objects(texts: Any) -> bool:
    """Whether pyarrow's JSON reader can be given a column of texts, one a line: each is one JSON object, or an error.

    It takes any number of values in a line for rows, and ends the process for a value that is ``null`` and for one that
    nests deeper than its stack is. What is doubtful counts as none.
    """
    if not len(texts):
        return True
    whole = compute.and_(compute.starts_with(texts, "{"), compute.ends_with(texts, "}"))
    if not compute.all(whole).as_py() or compute.any(compute.match_substring_regex(texts, _MORE)).as_py():
        return False
    long = texts.filter(compute.greater(compute.binary_length(texts), _FEW_BRACKETS))
    brackets = compute.add(compute.count_substring(long, "{"), compute.count_substring(long, "["))
    return not compute.any(compute.greater(brackets, _FEW_BRACKETS)).as_py()


# --- one file --------------------------------------------------------------------------------------------------------


def _leaves(schema: StructType) -> tuple[int, list[tuple[int, _Leaf]]]:
    """How many columns the file has, and its indexable leaves with their position among Delta's leaf columns."""
    found: list[tuple[int, _Leaf]] = []
    column = position = 0

    def walk(data_type: DataType, path: Path, nested: bool) -> None:
        nonlocal column, position
        match data_type:
            case StructType(fields=fields):
                for member in fields:
                    walk(member.type, (*path, member.name), nested)
            case ArrayType(element_type=element):
                position += not nested
                walk(element, path, True)
            case MapType(key_type=key, value_type=value):
                position += not nested
                walk(key, path, True)
                walk(value, path, True)
            case _:
                if not nested:
                    found.append((position, _Leaf(path, data_type, column)))
                    position += 1
                column += 1

    walk(schema, (), False)
    return column, found


def _row_group(
    metadata: pq.FileMetaData, group: int, leaves: Sequence[_Leaf], nan_columns: Collection[str] | None
) -> dict[str, Any]:
    row_group = metadata.row_group(group)
    result: dict[str, Any] = {"numRecords": row_group.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    for leaf in leaves:
        chunk = cast("Any", row_group.column(leaf.column).statistics)
        if chunk is None:
            continue
        if chunk.has_null_count:
            _nest(result["nullCount"], leaf.path, chunk.null_count)
        may_hold_nan = leaf.primitive in ("float", "double") and (
            nan_columns is None or ".".join(leaf.path) in nan_columns
        )
        if may_hold_nan or not chunk.has_min_max:
            continue
        low, high = _bounds(leaf, chunk, metadata.schema.column(leaf.column))
        if low is not None:
            _nest(result["minValues"], leaf.path, low)
        if high is not None:
            _nest(result["maxValues"], leaf.path, high)
    return result


def _bounds(leaf: _Leaf, chunk: Any, column: pq.ColumnSchema) -> tuple[Any, ...]:
    match leaf.primitive:
        case "byte" | "short" | "integer" | "long":
            return chunk.min_raw, chunk.max_raw
        case "boolean":
            return chunk.min, chunk.max
        case "float" | "double":
            return tuple(value if math.isfinite(value) else None for value in (chunk.min, chunk.max))
        case "string":
            return _string_bounds(chunk.min_raw, chunk.max_raw)
        case "date":
            return _day(chunk.min_raw), _day(chunk.max_raw)
        case "timestamp" | "timestamp_ntz":
            return _instants(leaf, chunk, column)
        case primitive if primitive.startswith("decimal"):
            return chunk.min, chunk.max
        case _:
            return None, None


def _instants(leaf: _Leaf, chunk: Any, column: pq.ColumnSchema) -> tuple[str | None, str | None]:
    per_millisecond = _PER_MILLISECOND.get(json.loads(column.logical_type.to_json()).get("timeUnit"))
    if per_millisecond is None:
        return None, None
    zone = "Z" if leaf.primitive == "timestamp" else ""
    low, high = chunk.min_raw // per_millisecond, -(-chunk.max_raw // per_millisecond)
    # Beyond the last millisecond of all is none to round up to.
    return _instant(low * 1000, zone), _instant(high * 1000, zone) or _instant(chunk.max_raw, zone)


def _string_bounds(low: bytes, high: bytes) -> tuple[str | None, str | None]:
    try:
        return low.decode()[:PREFIX], upper_bound(high.decode())
    except UnicodeDecodeError:
        return None, None


def upper_bound(text: str) -> str:
    """A string of about 32 characters that no string with this beginning exceeds, in UTF-8 byte order."""
    end = PREFIX
    if len(text) <= end:
        return text
    while end < len(text) and text[end] == _LAST_CHARACTER:
        end += 1
    return text if end == len(text) else text[:end] + _LAST_CHARACTER


def _day(days: int) -> str | None:
    try:
        return (_EPOCH_DAY + timedelta(days=days)).isoformat()
    except OverflowError:
        return None


def _instant(microseconds: int, zone: str) -> str | None:
    try:
        instant = _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return None
    return instant.isoformat(timespec="microseconds" if instant.microsecond % 1000 else "milliseconds") + zone


def known(text: str | None) -> dict[str, Any]:
    """What a file's ``stats`` say; nothing where there are none, or where they are none."""
    try:
        return {} if text is None else parse(text)
    except LogCorrupt:
        return {}


def num_records(text: str | None) -> int | None:
    """How many rows a file's ``stats`` say it has, with those that are deleted; ``None`` where they do not."""
    try:
        found: Any = orjson.loads(text or "{}")  # no exact numbers, but the quicker parser: a plan asks of each file
    except orjson.JSONDecodeError:  # or what Python's own parser takes, such as NaN
        found = known(text)
    count = cast("dict[str, Any]", found).get("numRecords") if isinstance(found, dict) else None
    return count if type(count) is int and 0 <= count < 2**63 else None


def ranges(text: str | None) -> dict[Path, tuple[float, float]]:
    """The least and the greatest number of each column of which a file's ``stats`` say both; of nulls alone, none."""
    try:
        found: Any = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        return {}
    stated = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    low, high, nulls = (dict(_flat(stated.get(name) or {})) for name in ("minValues", "maxValues", "nullCount"))
    none = {path: (math.inf, -math.inf) for path, count in nulls.items() if count == stated.get("numRecords")}
    numbers = {path for path, value in low.items() if isinstance(value, int | float)}
    return none | {path: (low[path], high[path]) for path in numbers if isinstance(high.get(path), int | float)}


# --- nested members --------------------------------------------------------------------------------------------------


def _flat(value: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    for name, member in value.items():
        if isinstance(member, Mapping) and member:
            yield from _flat(cast("Mapping[str, Any]", member), (*path, name))
        else:
            yield (*path, name), {} if isinstance(member, Mapping) else member


def _reach(target: dict[str, Any], path: Path) -> dict[str, Any]:
    for name in path[:-1]:
        target = target.setdefault(name, {})
    return target


def _reach_bounds(statistics: Mapping[str, Any], path: Path) -> None:
    """Have the structs around a column in its bounds, be they empty: `deltalake` takes none for bounds of null."""
    for member in ("minValues", "maxValues"):
        _reach(statistics[member], path)


def _nest(target: dict[str, Any], path: Path, value: object) -> None:
    _reach(target, path)[path[-1]] = value


def _comparable(values: Sequence[object]) -> bool:
    kinds = {"number" if isinstance(value, int | float | Decimal) else type(value).__name__ for value in values}
    return len(kinds) == 1
