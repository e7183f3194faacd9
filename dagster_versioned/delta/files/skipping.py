"""Which files can hold a row that a predicate is true of, from partition values and statistics alone.

Protocol: *Per-file Statistics*. Per file, a predicate may be true of some row, false of some, null of some; the three
are computed for all files at once, and whatever is not known counts as "may". So a file is passed over only where its
statistics say that no row can match, and statistics are used for nothing else: they are the writer's word.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, cast

import orjson
import pyarrow as pa
import pyarrow.json as pa_json
import pyarrow.parquet as pq

from dagster_versioned.delta.files.arrow_memory import arrow_reader
from dagster_versioned.delta.files.partition_values import typed_columns
from dagster_versioned.delta.files.predicate import (
    And,
    Comparison,
    Constant,
    In,
    IsNull,
    Not,
    Opaque,
    Operator,
    Or,
    Path,
    Predicate,
    StartsWith,
    Value,
    paths_of,
)
from dagster_versioned.delta.files.statistics import WHOLE_OFFSETS, are_objects, nested_type
from dagster_versioned.delta.paths import compute
from dagster_versioned.delta.schema.column_mapping import ColumnMapping, physical_name
from dagster_versioned.delta.schema.types import DataType, StructType, decimal_of, type_to_arrow

Mask = Any
"""A boolean array, one entry a file, never null."""

PARSED_ROWS = 20_000
"""Statistics are parsed in pieces of so many files, which bounds the memory that their text takes."""

_MILLISECOND = timedelta(milliseconds=1) - timedelta(microseconds=1)
"""Timestamps in statistics are cut to milliseconds, upper bounds downwards, too."""

_MINUTE = timedelta(minutes=1)
"""Delta Spark 3.2 and 3.3 write the offset of a bound's zone without its seconds, so the bound may be off by less."""
_OFFSET = r":\d\d(\.\d+)?[+-]\d\d(:?\d\d)?$"
_BROKEN_HOURS = r"[+-]\d\d:?(0[1-9]|[1-9]\d)$"


def candidates(
    files: pa.Table,
    predicate: Predicate,
    schema: StructType,
    mapping: ColumnMapping,
    partition_columns: Sequence[str],
) -> pa.Table:
    """The files (schema `files.FILES`) that may hold a row of which the predicate is true, in their order.

    Partition values are judged first, and statistics are parsed for what they leave. Raises `LogCorrupt` for a
    partition value that is not of its type; statistics that cannot be read say nothing.
    """
    asked = paths_of(predicate)
    in_partitions = [name for name in partition_columns if (name,) in asked]
    bounds = _partition_bounds(files, schema, in_partitions, mapping)
    files = _kept(files, _judge(predicate, bounds, files.num_rows).true)
    rest = {path: leaf for path in asked if path[0] not in in_partitions and (leaf := _leaf(schema, path, mapping))}
    if not rest or not files.num_rows or files["stats"].null_count == files.num_rows:
        return files
    bounds = _partition_bounds(files, schema, in_partitions, mapping) | _stored_bounds(files, rest)
    return _kept(files, _judge(predicate, bounds, files.num_rows).true)


def certain(
    files: pa.Table,
    predicate: Predicate,
    schema: StructType,
    mapping: ColumnMapping,
    partition_columns: Sequence[str],
) -> pa.Table:
    """The files of which every row matches by its partition values; those are exact, where statistics are not."""
    in_partitions = [name for name in partition_columns if (name,) in paths_of(predicate)]
    judged = _judge(predicate, _partition_bounds(files, schema, in_partitions, mapping), files.num_rows)
    return _kept(files, compute.invert(compute.or_(judged.false, judged.null)))


def row_groups(
    metadata: pq.FileMetaData, predicate: Predicate, schema: StructType, mapping: ColumnMapping
) -> list[int]:
    """The row groups of a Parquet file that may hold a row of which the predicate is true, by the file's footer.

    All of them where columns are found by id. A column that the footer does not tell for sure says nothing.
    """
    count = metadata.num_row_groups
    if mapping == "id" or count < 2:
        return list(range(count))
    top = set(metadata.schema.to_arrow_schema().names)
    places = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    bounds: dict[Path, Bounds] = {}
    for path in paths_of(predicate):
        leaf = _leaf(schema, path, mapping)
        if leaf is None or any("." in name for name in leaf.path):
            continue
        place = ".".join(leaf.path)
        if places.count(place) == 1 and (len(leaf.path) == 1 or place not in top):
            bounds[path] = _footer_bounds(metadata, places.index(place), leaf)
    return [i for i, may in enumerate(_judge(predicate, bounds, count).true.to_pylist()) if may]


def _kept(files: pa.Table, mask: Mask) -> pa.Table:
    return files if compute.all(mask).as_py() else files.filter(mask)


# --- three-valued logic over files -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is known of one column, an entry a file; a bound that is not known is null.

    ``low`` and ``high`` are of type int64, double or string. ``may_null``: some row may be null; ``may_value``: some
    may not be. ``beyond``: values above ``high`` may be there, although none below ``low``: NaN, Spark's largest
    number, which some writers' bounds leave out.
    """

    low: Any
    high: Any
    may_null: Mask
    may_value: Mask
    beyond: bool = False


@dataclass(frozen=True, slots=True)
class _Judgement:
    """Whether the predicate may be true, false and null of a row, an entry a file."""

    true: Mask
    false: Mask
    null: Mask


def _judge(predicate: Predicate, bounds: Mapping[Path, Bounds], count: int) -> _Judgement:
    def constant(true: bool, false: bool, null: bool) -> _Judgement:
        return _Judgement(*(pa.repeat(pa.scalar(value), count) for value in (true, false, null)))

    def judge(node: Predicate) -> _Judgement:
        match node:
            case Constant(value=value):
                return constant(value is True, value is False, value is None)
            case Opaque():
                return constant(True, True, True)
            case Not(child=child):
                judged = judge(child)
                return _Judgement(judged.false, judged.true, judged.null)
            case And(children=children):
                return _all([judge(child) for child in children] or [constant(True, False, False)])
            case Or(children=children):
                flipped = [judge(Not(child)) for child in children]
                judged = _all(flipped or [constant(True, False, False)])
                return _Judgement(judged.false, judged.true, judged.null)
            case _:
                known = bounds.get(node.path)
                return constant(True, True, True) if known is None else _of_column(node, known)

    return judge(predicate)


def _all(judged: Sequence[_Judgement]) -> _Judgement:
    first, *others = judged
    true, false, null = first.true, first.false, first.null
    for other in others:
        null = compute.or_(compute.and_(null, compute.or_(other.true, other.null)), compute.and_(other.null, true))
        true = compute.and_(true, other.true)
        false = compute.or_(false, other.false)
    return _Judgement(true, false, null)


def _of_column(node: Comparison | IsNull | StartsWith | In, bounds: Bounds) -> _Judgement:
    match node:
        case IsNull():
            return _Judgement(bounds.may_null, bounds.may_value, _nowhere(bounds))
        case Comparison():
            low, high, exact = _within_type(node.low, node.high, bounds.low.type)
            true, false = _compared(node.operator, bounds, _scalar(low), _scalar(high), exact)
        case StartsWith():
            true, false = _prefixed(node, bounds)
        case In():
            true, false = _listed(node, bounds)
    # Of a null, none of them is true or false.
    return _Judgement(compute.and_(true, bounds.may_value), compute.and_(false, bounds.may_value), bounds.may_null)


def _compared(operator: Operator, bounds: Bounds, low: Any, high: Any, exact: bool) -> tuple[Mask, Mask]:
    """Whether a value in the bounds may stand so to one between ``low`` and ``high``, and whether it may not."""

    def below(strictly: bool) -> Mask:
        return _may(compute.less(bounds.low, high) if strictly and exact else compute.less_equal(bounds.low, high))

    def above(strictly: bool) -> Mask:
        if bounds.beyond:
            return _everywhere(bounds)
        test = compute.greater if strictly and exact else compute.greater_equal
        return _may(test(bounds.high, low))

    match operator:
        case "<":
            return below(True), above(False)
        case "<=":
            return below(False), above(True)
        case ">":
            return above(True), below(False)
        case ">=":
            return above(False), below(True)
        case "=":
            reached = compute.and_(below(False), _may(compute.greater_equal(bounds.high, low)))
            if not exact or bounds.beyond:
                return reached, _everywhere(bounds)
            only = compute.and_(compute.equal(bounds.low, low), compute.equal(bounds.high, low))
            return reached, compute.invert(compute.fill_null(only, False))


def _prefixed(node: StartsWith, bounds: Bounds) -> tuple[Mask, Mask]:
    if not node.prefix:
        return _everywhere(bounds), _everywhere(bounds) if not node.sufficient else _nowhere(bounds)
    start = compute.utf8_slice_codeunits(bounds.low, 0, len(node.prefix))
    true = compute.and_(
        _may(compute.less_equal(start, node.prefix)), _may(compute.greater_equal(bounds.high, node.prefix))
    )
    if not node.sufficient:
        return true, _everywhere(bounds)
    both = (compute.starts_with(bound, node.prefix) for bound in (bounds.low, bounds.high))
    return true, compute.invert(compute.fill_null(compute.and_(*both), False))


def _within_type(low: Value, high: Value, compared: pa.DataType) -> tuple[Value, Value, bool]:
    """A value's limits in the type of the bounds, and whether they are one: Arrow compares no fraction with an integer
    that a float does not hold."""
    if not pa.types.is_integer(compared) or not (isinstance(low, float) or isinstance(high, float)):
        return low, high, low == high
    first, last = -(1 << 63), (1 << 63) - 1
    down = max(math.floor(low), first) if isinstance(low, int | float) and math.isfinite(low) else first
    up = min(math.ceil(high), last) if isinstance(high, int | float) and math.isfinite(high) else last
    return min(down, last), max(up, first), down == low == high == up


def _listed(node: In, bounds: Bounds) -> tuple[Mask, Mask]:
    given: list[Any] = [_scalar(value).as_py() for value in node.values]
    if pa.types.is_integer(bounds.low.type) and any(isinstance(value, float) for value in given):
        # What is no integer is no value of the column.
        given = [int(value) for value in given if float(value).is_integer() and -(1 << 63) <= value < 1 << 63]
    low, values = bounds.low, cast("Any", pa.array(given, bounds.low.type))
    if pa.types.is_floating(low.type):  # Arrow looks for the bits of a number, and -0.0 has others than 0.0
        low, values = compute.add(low, 0.0), compute.add(values, 0.0)
    extremes: Any = compute.min_max(values)
    true, _ = _compared("=", bounds, extremes["min"], extremes["max"], False)
    # Where a file has one value, which its partition has, it is known whether it is among them.
    single = compute.fill_null(compute.equal(low, bounds.high), False)
    among = compute.is_in(low, values)
    true = compute.and_(true, compute.or_(compute.invert(single), among))
    sure = compute.and_(single, among)
    return true, _everywhere(bounds) if bounds.beyond else compute.invert(sure)


def _scalar(value: Value) -> Any:
    match value:
        case bool():
            return pa.scalar(int(value), pa.int64())
        case datetime():
            return pa.scalar(value, type_to_arrow("timestamp" if value.tzinfo else "timestamp_ntz")).cast(pa.int64())
        case date():
            return pa.scalar(value, pa.date32()).cast(pa.int32()).cast(pa.int64())
        case _:
            return pa.scalar(value)


def _may(mask: Any) -> Mask:
    return compute.fill_null(mask, True)


def _everywhere(bounds: Bounds) -> Mask:
    return pa.repeat(pa.scalar(True), len(bounds.may_null))


def _nowhere(bounds: Bounds) -> Mask:
    return pa.repeat(pa.scalar(False), len(bounds.may_null))


# --- bounds ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A column with bounds: its path in the statistics, its type, and the type that its bounds are compared in."""

    path: Path
    primitive: str
    compared: pa.DataType

    @property
    def parsed(self) -> pa.DataType:
        """The type that a bound has in the statistics' JSON."""
        if self.primitive in ("date", "timestamp", "timestamp_ntz"):
            return pa.string()
        return pa.bool_() if self.primitive == "boolean" else self.compared


def _compared_type(primitive: str) -> pa.DataType | None:
    match primitive:
        case "byte" | "short" | "integer" | "long" | "boolean" | "date" | "timestamp" | "timestamp_ntz":
            return pa.int64()
        case "float" | "double":
            return pa.float64()
        case "string":
            return pa.string()
        case _:
            return pa.float64() if decimal_of(primitive) else None


def _leaf(schema: StructType, path: Path, mapping: ColumnMapping) -> _Leaf | None:
    """The leaf column of a path; ``None`` where it has no bounds, as structs, arrays, maps and binaries have none."""
    data_type: DataType = schema
    stored: list[str] = []
    for name in path:
        assert isinstance(data_type, StructType)  # as the predicate was found in this schema
        field = data_type.field(name)
        stored.append(physical_name(field, mapping))
        data_type = field.type
    compared = _compared_type(data_type) if isinstance(data_type, str) else None
    return None if compared is None else _Leaf(tuple(stored), cast("str", data_type), compared)


def _partition_bounds(
    files: pa.Table, schema: StructType, columns: Sequence[str], mapping: ColumnMapping
) -> dict[Path, Bounds]:
    """The bounds of partition columns, which are the values themselves."""
    found: dict[Path, Bounds] = {}
    typed = typed_columns(files, schema, columns, mapping)
    for name in columns:
        leaf = _leaf(schema, (name,), mapping)
        column: Any = typed[name].combine_chunks()
        values: Any
        nulls = compute.is_null(column)
        if leaf is None:
            values = pa.nulls(len(column), pa.string())
        elif pa.types.is_floating(leaf.compared):
            values = column.cast(pa.float64())
            values = compute.if_else(compute.is_nan(values), pa.scalar(None, pa.float64()), values)
        else:
            values = _as_number(column) if leaf.compared == pa.int64() else column
        found[(name,)] = Bounds(values, values, nulls, compute.invert(nulls))
    return found


def _as_number(column: Any) -> Any:
    """Days, instants and booleans as the numbers that they are."""
    return (column.cast(pa.int32()) if pa.types.is_date32(column.type) else column).cast(pa.int64())


def _stored_bounds(files: pa.Table, leaves: Mapping[Path, _Leaf]) -> dict[Path, Bounds]:
    """The bounds that the statistics give."""
    parsed = [_parsed(piece, list(leaves.values())) for piece in _pieces(files["stats"])]
    found: dict[Path, Bounds] = {}
    for i, (path, leaf) in enumerate(leaves.items()):
        columns = [pa.chunked_array([piece[i][k] for piece in parsed]).combine_chunks() for k in range(4)]
        low, high, nulls, rows = cast("list[Any]", columns)
        # The two counts that say something whether bounds are tight or wide: none, and all of the file's rows.
        may_null = _may(compute.not_equal(nulls, 0))
        may_value = _may(compute.not_equal(nulls, rows))
        beyond = leaf.primitive in ("float", "double")
        found[path] = Bounds(low, high, may_null, may_value, beyond)
    return found


def _pieces(stats: Any) -> list[Any]:
    texts = compute.fill_null(stats, "").combine_chunks()
    return [texts.slice(start, PARSED_ROWS) for start in range(0, len(texts), PARSED_ROWS)]


def _footer_bounds(metadata: pq.FileMetaData, column: int, leaf: _Leaf) -> Bounds:
    """The bounds that a footer gives, an entry a row group."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    chunks: list[Any] = [group.column(column).statistics for group in groups]
    limits = [(chunk.min, chunk.max) if chunk is not None and chunk.has_min_max else (None, None) for chunk in chunks]
    low, high = (pa.array([_footer_value(limit[i], leaf) for limit in limits], leaf.compared) for i in range(2))
    nulls = [chunk.null_count if chunk is not None and chunk.has_null_count else None for chunk in chunks]
    may_null = pa.array([null != 0 for null in nulls])
    may_value = pa.array([null != group.num_rows for null, group in zip(nulls, groups, strict=True)])
    return Bounds(low, high, may_null, may_value, leaf.primitive in ("float", "double"))


def _footer_value(value: Any, leaf: _Leaf) -> int | float | str | None:
    """A bound of a footer in the type that it is compared in; ``None`` for what is not of the column's type."""
    match leaf.primitive, value:
        case "boolean", bool():
            return int(value)
        case "byte" | "short" | "integer" | "long", int():
            return value
        case "string", str():
            return value
        case "date", date() if not isinstance(value, datetime):
            return _scalar(value).as_py()
        case (("timestamp" | "timestamp_ntz"), date()):
            # Of a column that was widened, a day; and what has no zone in the file is taken for UTC.
            moment = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)
            return _scalar(moment).as_py()
        case _ if leaf.compared == pa.float64() and isinstance(value, int | float | Decimal):
            return float(value) if math.isfinite(value) else None
        case _:
            return None


_MEMBERS = ("minValues", "maxValues", "nullCount")


def _parsed(texts: Any, leaves: Sequence[_Leaf]) -> list[tuple[Any, Any, Any, Any]]:
    """Lower bounds, upper bounds, null counts and row counts of each leaf; what is not known, or not legible, is null.

    All at once where every text is as it should be, one by one where one is not.
    """
    lines = compute.if_else(compute.equal(texts, ""), "{}", texts)
    try:
        table = _read_json(lines, leaves) if are_objects(lines) else None
    except (pa.ArrowException, UnicodeDecodeError):
        table = None
    if table is None or table.num_rows != len(texts):
        return _parsed_singly(texts.to_pylist(), leaves)
    rows: Any = table["numRecords"].combine_chunks()
    try:
        return [
            (
                _bound(_member(table, "minValues", leaf.path), leaf, upper=False),
                _bound(_member(table, "maxValues", leaf.path), leaf, upper=True),
                _member(table, "nullCount", leaf.path),
                rows,
            )
            for leaf in leaves
        ]
    except pa.ArrowException:
        return _parsed_singly(texts.to_pylist(), leaves)


def _read_json(lines: Any, leaves: Sequence[_Leaf]) -> pa.Table:
    whole = compute.binary_join(pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines), "\n")[0]
    data = whole.as_buffer()
    source: Any = arrow_reader(data)
    return pa_json.read_json(
        source,
        read_options=pa_json.ReadOptions(use_threads=False, block_size=data.size + 1),
        parse_options=pa_json.ParseOptions(_stats_schema(leaves), unexpected_field_behavior="ignore"),
    )


def _stats_schema(leaves: Sequence[_Leaf]) -> pa.Schema:
    bounds = nested_type({leaf.path: leaf.parsed for leaf in leaves})
    counts = nested_type({leaf.path: pa.int64() for leaf in leaves})
    members = zip(_MEMBERS, (bounds, bounds, counts), strict=True)
    return pa.schema([pa.field("numRecords", pa.int64()), *(pa.field(name, kind) for name, kind in members)])


def _member(table: pa.Table, member: str, path: Path) -> Any:
    return compute.struct_field(table[member].combine_chunks(), list(path))


def _bound(column: Any, leaf: _Leaf, *, upper: bool) -> Any:
    """A column of parsed bounds in the type that they are compared in. Raises `pyarrow.ArrowInvalid`."""
    match leaf.primitive:
        case "boolean":
            return column.cast(pa.int64())
        case "date":
            return column.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())
        case "timestamp" | "timestamp_ntz":
            instants = column.cast(type_to_arrow(leaf.primitive))
            slack = compute.if_else(_may_be_cut(column, instants), _MINUTE, timedelta())
            wide = (
                compute.add(instants, compute.add(slack, _MILLISECOND)) if upper else compute.subtract(instants, slack)
            )
            return wide.cast(pa.int64())
        case "float":  # written as the shortest text of a single, which is another number as a double
            return _finite(column.cast(pa.float32()).cast(pa.float64()))
        case _:
            return _finite(column) if pa.types.is_floating(column.type) else column


def _may_be_cut(texts: Any, instants: Any) -> Any:
    """Whether the offset of a time may lack seconds: such offsets ended in 1972, and most of them had minutes."""
    old = compute.less(instants, pa.scalar(WHOLE_OFFSETS, instants.type))
    minutes, offset = (compute.match_substring_regex(texts, pattern) for pattern in (_BROKEN_HOURS, _OFFSET))
    return compute.or_(minutes, compute.and_(offset, old))


def _finite(column: Any) -> Any:
    return compute.if_else(compute.is_finite(column), column, pa.scalar(None, pa.float64()))


def _parsed_singly(texts: Sequence[str], leaves: Sequence[_Leaf]) -> list[tuple[Any, Any, Any, Any]]:
    trees = [_tree(text) for text in texts]
    rows = pa.array([_count(tree.get("numRecords")) for tree in trees], pa.int64())
    found: list[tuple[Any, Any, Any, Any]] = []
    for leaf in leaves:
        low, high, nulls = ([_at(tree.get(member), leaf.path) for tree in trees] for member in _MEMBERS)
        lows = pa.array([_single(value, leaf, upper=False) for value in low], leaf.compared)
        highs = pa.array([_single(value, leaf, upper=True) for value in high], leaf.compared)
        found.append((lows, highs, pa.array([_count(value) for value in nulls], pa.int64()), rows))
    return found


def _tree(text: str) -> dict[str, Any]:
    try:
        tree: object = orjson.loads(text) if text else {}
    except orjson.JSONDecodeError:
        return {}
    return cast("dict[str, Any]", tree) if isinstance(tree, dict) else {}


def _at(tree: object, path: Path) -> object:
    for name in path:
        tree = cast("dict[str, object]", tree).get(name) if isinstance(tree, dict) else None
    return tree


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 2**63 else None


def _single(value: object, leaf: _Leaf, *, upper: bool) -> int | float | str | None:
    """`_bound` of one value; ``None`` for what is none of its type."""
    try:
        if leaf.parsed == pa.int64():
            return value if type(value) is int and -(2**63) <= value < 2**63 else None
        if leaf.parsed == pa.float64():
            number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
            return number if math.isfinite(number) and leaf.primitive != "float" else _single_float(number)
        kind = bool if leaf.primitive == "boolean" else str
        if not isinstance(value, kind):
            return None
        if leaf.primitive == "string":
            return cast("str", value)
        return _bound(pa.array([value], leaf.parsed), leaf, upper=upper)[0].as_py()
    except (pa.ArrowException, OverflowError):
        return None


def _single_float(number: float) -> float | None:
    return _finite(pa.array([number]).cast(pa.float32(), safe=False).cast(pa.float64()))[0].as_py()
