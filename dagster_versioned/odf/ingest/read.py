"""A source's file into rows, by the step that its block names: every value is one of its column's type, or an error
says where it is not."""

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Self, cast

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv as arrow_csv
from pyarrow import json as arrow_json

from dagster_versioned.errors import InvalidInput
from dagster_versioned.odf.blocks.arrow_schema import fields_of
from dagster_versioned.odf.blocks.events import (
    ReadStep,
    ReadStepCsv,
    ReadStepEsriShapefile,
    ReadStepGeoJson,
    ReadStepJson,
    ReadStepNdGeoJson,
    ReadStepNdJson,
    ReadStepParquet,
)
from dagster_versioned.odf.ingest.columns import read_schema
from dagster_versioned.odf.ingest.fetch import MAX_BYTES, SourceFile
from dagster_versioned.odf.ingest.texts import TextFormats, rows_in_utc, typed_rows

_BLOCK_BYTES = 8 * 1024**2
_LINE_BYTES = 64 * 1024**2
"""The longest line that is read."""
_MOST_NESTED = 100
"""How deep objects and lists nest at most where their types are not declared: what finds them takes the cube of it."""


def read(file: SourceFile, step: ReadStep, *, max_bytes: int = MAX_BYTES) -> pa.Table:
    """All rows of a file, of at most ``max_bytes`` where it is packed.

    Raises `InvalidInput` for what does not parse, and for formats that are not read here.
    """
    match step:
        case ReadStepCsv():
            return read_csv(file, step)
        case ReadStepJson():
            return read_json(file, step)
        case ReadStepNdJson():
            return read_nd_json(file, step)
        case ReadStepParquet():
            return read_parquet(file, step, max_bytes=max_bytes)
        case ReadStepGeoJson() | ReadStepNdGeoJson() | ReadStepEsriShapefile():
            kind = type(step).__name__.removeprefix("ReadStep")
            raise InvalidInput(
                f"{file.name} is to be read as {kind}, which is recorded but not read here: geometries have no type in "
                "these tables. Nothing was added. Convert it to Parquet or CSV before it is fetched."
            )


def read_parquet(file: SourceFile, step: ReadStepParquet, *, max_bytes: int) -> pa.Table:
    """The rows of a Parquet file, its columns and types as they are, or cast to the declared ones without loss.

    Timestamps without a zone are UTC. Raises `InvalidInput` with the file and the column, and for rows of more than
    ``max_bytes`` in memory, which a small file can hold.
    """
    batches: list[pa.RecordBatch] = []
    size = 0
    try:
        with pq.ParquetFile(file.path) as opened:
            for batch in opened.iter_batches():
                size += batch.nbytes
                if size > max_bytes:
                    raise file.error(f"its rows have more than {max_bytes} bytes")
                batches.append(batch)
            table = pa.Table.from_batches(batches, schema=opened.schema_arrow)
    except (pa.ArrowException, OSError) as error:
        raise file.error(f"it cannot be read as Parquet ({error})") from None
    schema = read_schema(step)
    if schema is None:
        return rows_in_utc(table)
    file.require_columns(table.column_names, schema)
    return typed_rows(file, table, schema, TextFormats(), lambda row: f"row {row + 1}")


# --- CSV -------------------------------------------------------------------------------------------------------------


def read_csv(file: SourceFile, step: ReadStepCsv) -> pa.Table:
    """The rows of a CSV file, of the declared columns in the declared order.

    Without a declared schema every column is text, or what it looks like with ``infer_schema``; without a header and
    a schema they are called ``_c0``, ``_c1`` and so on. An empty unquoted value, or ``null_value``, is null. Raises
    `InvalidInput` with file, line and column.
    """
    dialect = _Dialect.of(step)
    rows = _CsvRows(file, dialect, has_header=bool(step.header))
    names = _column_names(file, step, rows)
    if not names:
        raise file.error("there are no columns")
    schema = read_schema(step)
    if schema is not None and step.header:
        names = _as_declared(names, schema.names)
        file.require_columns(names, schema, place=f"line {rows.first_line}")
    table = _csv_table(file, step, dialect, names, rows, inferred=schema is None and bool(step.infer_schema))
    if schema is None:
        return rows_in_utc(table)
    return typed_rows(file, table, schema, TextFormats(step.date_format, step.timestamp_format), rows.place)


@dataclass(frozen=True, slots=True)
class _Dialect:
    """The letters of a CSV file, and how they are written.

    ``escape`` is never a quote: that is how quotes are doubled, as they are read by default.
    """

    encoding: str
    separator: str
    quote: str
    escape: str | None

    @classmethod
    def of(cls, step: ReadStepCsv) -> Self:
        """That of a step. Raises `InvalidInput` for letters that are none, or stand for two things."""
        separator, quote, escape = step.separator or ",", step.quote or '"', step.escape or None
        for name, value in (("separator", separator), ("quote", quote), ("escape", escape)):
            if value is not None:
                _check_letter(name, value, separator)
        return cls(step.encoding or "utf8", separator, quote, escape if escape != quote else None)


def _check_letter(name: str, value: str, separator: str) -> None:
    if len(value) != 1 or not value.isascii():
        raise InvalidInput(
            f"The {name} of a CSV source is {value!a:.50}, and it must be one character of ASCII. Nothing was read."
        )
    if value in ("\r", "\n") or (name != "separator" and value == separator):
        raise InvalidInput(
            f"The {name} of a CSV source is {value!a}, which separates its values or its lines. Nothing was "
            "read. Give it a character of its own."
        )


class _CsvRows:
    """The rows as Python's own reader sees them, to say where things are; only read to the end where one is wrong."""

    def __init__(self, file: SourceFile, dialect: _Dialect, *, has_header: bool) -> None:
        self._file = file
        self._dialect = dialect
        self._has_header = has_header
        self.first_line, self.first_end, self.first = next(iter(self), (1, 0, list[str]()))

    def __iter__(self) -> Iterator[tuple[int, int, list[str]]]:
        """The lines that each row begins and ends on, and its values; empty lines are passed over."""
        dialect, found = self._dialect, None
        encoding = dialect.encoding
        try:
            with self._file.path.open(encoding=_without_mark(encoding), newline="") as text:
                found = csv.reader(
                    text,
                    delimiter=dialect.separator,
                    quotechar=dialect.quote,
                    escapechar=dialect.escape,
                    strict=True,
                )
                before = 0
                for row in found:
                    if row:
                        yield before + 1, found.line_num, row
                    before = found.line_num
        except UnicodeDecodeError:
            raise self._file.not_text(encoding) from None
        except (LookupError, ValueError):
            raise self._file.error(f"the encoding {encoding!a:.50} is not known") from None
        except csv.Error as error:
            line = found.line_num if found else 1
            raise self._file.error(f"it cannot be read as CSV ({error})", place=f"line {line}") from None

    def place(self, row: int) -> str:
        """The line that a row of data begins on."""
        wanted = row + self._has_header
        return next((f"line {line}" for index, (line, _, _) in enumerate(self) if index == wanted), "")

    def require_width(self, names: list[str]) -> None:
        """Raise `InvalidInput` for the first row that has not one value for each column."""
        for line, _, row in self:
            if len(row) != len(names):
                column = names[len(row)] if len(row) < len(names) else f"number {len(names) + 1}"
                raise self._file.error(
                    f"{len(row)} values where there are {len(names)} columns", place=f"line {line}", column=column
                )


def _without_mark(encoding: str) -> str:
    """The encoding's name, so that a byte order mark is passed over, as it is by Arrow."""
    return "utf-8-sig" if encoding.lower() in ("utf8", "utf-8") else encoding


def _column_names(file: SourceFile, step: ReadStepCsv, rows: _CsvRows) -> list[str]:
    if step.header:
        if len(set(rows.first)) < len(rows.first):
            twice = next(name for name in rows.first if rows.first.count(name) > 1)
            raise file.error("the column is there twice", place=f"line {rows.first_line}", column=twice)
        return rows.first
    if (schema := read_schema(step)) is not None:
        return schema.names
    return [f"_c{index}" for index in range(len(rows.first))]


def _as_declared(names: list[str], declared: list[str]) -> list[str]:
    """The names of a header, as they are declared where only case, blanks, ``_`` and ``-`` differ."""
    missing = [name for name in declared if name not in names]
    squeezed = Counter(map(_squeezed, missing))
    known = {_squeezed(name): name for name in missing if squeezed[_squeezed(name)] == 1}
    return [name if name in declared else known.get(_squeezed(name), name) for name in names]


def _squeezed(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).casefold()


def _csv_table(
    file: SourceFile, step: ReadStepCsv, dialect: _Dialect, names: list[str], rows: _CsvRows, *, inferred: bool
) -> pa.Table:
    if not rows.first:
        return pa.table({name: pa.array([], pa.string()) for name in names})
    try:
        table = arrow_csv.read_csv(
            file.path,
            read_options=arrow_csv.ReadOptions(
                column_names=names,
                skip_rows=rows.first_end if step.header else 0,
                encoding=dialect.encoding,
                block_size=_BLOCK_BYTES,
            ),
            parse_options=arrow_csv.ParseOptions(
                delimiter=dialect.separator,
                quote_char=dialect.quote,
                escape_char=dialect.escape or False,
                newlines_in_values=True,
            ),
            convert_options=arrow_csv.ConvertOptions(
                column_types={} if inferred else dict.fromkeys(names, pa.string()),
                null_values=[step.null_value or ""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except pa.ArrowInvalid as error:
        rows.require_width(names)
        raise file.error(f"it cannot be read as CSV: {error}") from None
    if not dialect.escape and _count_of(file, dialect.quote.encode()) % 2:
        rows.require_width(names)  # a quote that is never closed may have swallowed rows: the strict reader knows
    return table


def _count_of(file: SourceFile, byte: bytes) -> int:
    with file.path.open("rb") as data:
        return sum(chunk.count(byte) for chunk in iter(lambda: data.read(_BLOCK_BYTES), b""))


# --- JSON ------------------------------------------------------------------------------------------------------------


def read_nd_json(file: SourceFile, step: ReadStepNdJson) -> pa.Table:
    """The rows of a file with one JSON object a line, of the declared columns in the declared order.

    Without a declared schema, columns and types are what the file looks like. A member that is not there is null.
    Raises `InvalidInput` with file, line and column.
    """
    data = _in_utf8(file, step.encoding)
    lines = [(number, line) for number, line in enumerate(data.split(b"\n"), 1) if line.strip()]

    def place(row: int) -> str:
        return f"line {lines[row][0]}"

    return _json_table(file, [line for _, line in lines], read_schema(step), _formats(step), place)


def read_json(file: SourceFile, step: ReadStepJson) -> pa.Table:
    """The rows of a JSON array of objects, at ``sub_path`` (names with dots between), as `read_nd_json` has them.

    In errors an object is named by its place in the array, from 1.
    """
    found = _document(file, _in_utf8(file, step.encoding))
    for name in step.sub_path.split(".") if step.sub_path else ():
        if not isinstance(found, dict) or name not in found:
            raise file.error(f"there is nothing at {step.sub_path!r}: no member {name!r}")
        found = cast("dict[str, Any]", found)[name]
    if not isinstance(found, list):
        where = f"at {step.sub_path!r}" if step.sub_path else "in it"
        raise file.error(f"there is no array of objects {where}, but a {type(cast(object, found)).__name__}")
    lines = [json.dumps(row).encode() for row in cast("list[Any]", found)]
    return _json_table(file, lines, read_schema(step), _formats(step), lambda row: f"element {row + 1}")


def _depth(row: bytes) -> int:
    """How deep brackets nest, those in texts among them."""
    depth = deepest = 0
    for byte in row:
        depth += (byte in b"[{") - (byte in b"]}")
        deepest = max(deepest, depth)
    return deepest


def _formats(step: ReadStepJson | ReadStepNdJson) -> TextFormats:
    return TextFormats(step.date_format, step.timestamp_format)


def _in_utf8(file: SourceFile, encoding: str | None) -> bytes:
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


def _json_table(
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
        _require_shallow(file, rows, place)
    # Dates, times and decimals are texts in JSON; Arrow reads the rest.
    fields = [] if schema is None else fields_of(schema)
    read = pa.schema([pa.field(f.name, f.type if _is_plain(f.type) else pa.string()) for f in fields])
    try:
        table = _parsed_json(rows, read)
    except pa.ArrowInvalid as error:
        row = _first_bad(rows, read)
        what, column = _fault(rows[row], read)
        raise file.error(what or str(error), place=place(row), column=column) from None
    return rows_in_utc(table) if schema is None else typed_rows(file, table, schema, formats, place)


def _require_shallow(file: SourceFile, rows: Sequence[bytes], place: Callable[[int], str]) -> None:
    for index, row in enumerate(rows):
        if row.count(b"[") + row.count(b"{") > _MOST_NESTED and _depth(row) > _MOST_NESTED:
            raise file.error(f"it nests deeper than {_MOST_NESTED}", place=place(index))


def _is_plain(kind: pa.DataType) -> bool:
    return not (pa.types.is_temporal(kind) or pa.types.is_decimal(kind))


def _parsed_json(rows: Sequence[bytes], schema: pa.Schema) -> pa.Table:
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
            _parsed_json(rows[first:middle], schema)
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
            _parsed_json([json.dumps({name: value}).encode()], pa.schema({name: kinds[name]}))
        except pa.ArrowInvalid:
            wanted = "text in quotes" if pa.types.is_string(kinds[name]) else kinds[name]
            return f"{json.dumps(value, ensure_ascii=False):.100} is no {wanted}", name
    return None, None
