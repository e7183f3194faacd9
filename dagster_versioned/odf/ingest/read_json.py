"""JSON into Arrow: objects with declared members only, and values of their types, or an error says where."""

import json
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any, cast

import orjson
import pyarrow as pa
from pyarrow import json as arrow_json

from dagster_versioned.odf.blocks.arrow_schema import fields_of
from dagster_versioned.odf.blocks.events import ReadStepJson, ReadStepNdJson
from dagster_versioned.odf.ingest.columns import read_schema
from dagster_versioned.odf.ingest.source_file import SourceFile
from dagster_versioned.odf.ingest.texts import TextFormats
from dagster_versioned.odf.ingest.typed_rows import rows_in_utc, typed_rows

_LINE_BYTES = 64 * 1024**2
"""The longest line that is read."""
_MOST_NESTED = 100
"""How deep objects and lists nest at most where their types are not declared: what finds them takes the cube of it."""


def read_nd_json(file: SourceFile, step: ReadStepNdJson) -> pa.Table:
    """The rows of a file with one JSON object a line, of the declared columns in the declared order.

    Without a declared schema, columns and types are what the file looks like. A member that is not there is null.
    Raises `InvalidInput` with file, line and column.
    """
    data = _text(file, step.encoding)
    lines = [(number, line) for number, line in enumerate(data.split(b"\n"), 1) if line.strip()]

    def place(row: int) -> str:
        return f"line {lines[row][0]}"

    return _table(file, [line for _, line in lines], read_schema(step), _formats(step), place)


def read_json(file: SourceFile, step: ReadStepJson) -> pa.Table:
    """The rows of a JSON array of objects, at ``sub_path`` (names with dots between), as `read_nd_json` has them.

    In errors an object is named by its place in the array, from 1.
    """
    found = _document(file, _text(file, step.encoding))
    for name in step.sub_path.split(".") if step.sub_path else ():
        if not isinstance(found, dict) or name not in found:
            raise file.error(f"there is nothing at {step.sub_path!r}: no member {name!r}")
        found = cast("dict[str, Any]", found)[name]
    if not isinstance(found, list):
        where = f"at {step.sub_path!r}" if step.sub_path else "in it"
        raise file.error(f"there is no array of objects {where}, but a {type(cast(object, found)).__name__}")
    lines = [json.dumps(row).encode() for row in cast("list[Any]", found)]
    return _table(file, lines, read_schema(step), _formats(step), lambda row: f"element {row + 1}")


def _depth(row: bytes) -> int:
    """How deep brackets nest, those in texts among them."""
    depth = deepest = 0
    for byte in row:
        depth += (byte in b"[{") - (byte in b"]}")
        deepest = max(deepest, depth)
    return deepest


def _formats(step: ReadStepJson | ReadStepNdJson) -> TextFormats:
    return TextFormats(step.date_format, step.timestamp_format)


def _text(file: SourceFile, encoding: str | None) -> bytes:
    """The file in UTF-8."""
    data = file.path.read_bytes()
    try:
        return data.decode(encoding or "utf-8-sig").encode()
    except UnicodeDecodeError:
        raise file.not_text(encoding or "utf8") from None
    except (LookupError, ValueError):
        raise file.error(f"the encoding {encoding!a:.50} is not known") from None


def _document(file: SourceFile, data: bytes) -> Any:
    try:
        orjson.loads(data)  # which says best what is wrong, and of members of the same name lets the last one win
    except orjson.JSONDecodeError as error:
        what = f"not JSON ({error.msg}, at character {error.colno} of the line)"
        raise file.error(what, place=f"line {error.lineno}") from None

    def unique(members: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(members)
        if len(found) < len(members):
            names = [name for name, _ in members]
            raise file.error("it is there twice in one object", column=max(names, key=names.count))
        return found

    try:
        return json.loads(data, object_pairs_hook=unique)
    except RecursionError:
        raise file.error("it nests too deep") from None


def _table(
    file: SourceFile,
    rows: Sequence[bytes],
    schema: pa.Schema | None,
    formats: TextFormats,
    place: Callable[[int], str],
) -> pa.Table:
    if not rows:
        if schema is None:
            raise file.error("there are no rows, and no schema is declared")
        return schema.empty_table()
    if schema is None:
        for index, row in enumerate(rows):
            if row.count(b"[") + row.count(b"{") > _MOST_NESTED and _depth(row) > _MOST_NESTED:
                raise file.error(f"it nests deeper than {_MOST_NESTED}", place=place(index))
    # Dates, times and decimals are texts in JSON; Arrow reads the rest.
    fields = [] if schema is None else fields_of(schema)
    read = pa.schema([pa.field(f.name, f.type if _is_plain(f.type) else pa.string()) for f in fields])
    try:
        table = _parsed(rows, read)
    except pa.ArrowInvalid as error:
        row = _first_bad(rows, read)
        what, column = _fault(rows[row], read)
        raise file.error(what or str(error), place=place(row), column=column) from None
    return rows_in_utc(table) if schema is None else typed_rows(file, table, schema, formats, place)


def _is_plain(kind: pa.DataType) -> bool:
    return not (pa.types.is_temporal(kind) or pa.types.is_decimal(kind))


def _parsed(rows: Sequence[bytes], schema: pa.Schema) -> pa.Table:
    """Rows of exactly a schema's columns, or of any where it has none."""
    table = arrow_json.read_json(
        BytesIO(b"\n".join(rows)),
        read_options=arrow_json.ReadOptions(block_size=_LINE_BYTES),
        parse_options=arrow_json.ParseOptions(
            explicit_schema=schema if schema.names else None,
            unexpected_field_behavior="error" if schema.names else "infer",
        ),
    )
    if table.num_rows != len(rows):
        raise pa.ArrowInvalid("more than one object in a line")
    return table


def _first_bad(rows: Sequence[bytes], schema: pa.Schema) -> int:
    """The least number of rows that cannot be read together, less one; what is before it can."""
    good, bad = 0, len(rows)
    while bad - good > 1:
        middle = (good + bad) // 2
        # With types given, rows are read alone; inferred ones depend on those before.
        first = good if schema.names else 0
        try:
            _parsed(rows[first:middle], schema)
        except pa.ArrowInvalid:
            bad = middle
        else:
            good = middle
    return good


def _fault(row: bytes, schema: pa.Schema) -> tuple[str | None, str | None]:
    """What is wrong with a row, and in which column, as far as the row alone shows it."""
    try:
        members = orjson.loads(row)
    except orjson.JSONDecodeError as error:
        return f"not JSON ({error.msg}, at character {error.colno})", None
    if not isinstance(members, dict):
        return f"not an object, but {row[:40]!r}", None
    kinds = {field.name: field.type for field in fields_of(schema)}
    for name, value in cast("dict[str, Any]", members).items() if kinds else ():
        if name not in schema.names:
            return f"the column is not declared; declared are {', '.join(map(repr, schema.names[:20]))}", name
        try:
            _parsed([json.dumps({name: value}).encode()], pa.schema({name: kinds[name]}))
        except pa.ArrowInvalid:
            wanted = "text in quotes" if pa.types.is_string(kinds[name]) else kinds[name]
            return f"{json.dumps(value, ensure_ascii=False):.100} is no {wanted}", name
    return None, None
