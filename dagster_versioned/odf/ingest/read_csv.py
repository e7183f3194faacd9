"""CSV into Arrow: every row has every column, and every value is one of its column's type, or an error says where."""

import csv
import re
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
from pyarrow import csv as arrow_csv

from dagster_versioned.errors import InvalidInput
from dagster_versioned.odf.blocks.events import ReadStepCsv
from dagster_versioned.odf.ingest.columns import read_schema
from dagster_versioned.odf.ingest.source_file import SourceFile
from dagster_versioned.odf.ingest.texts import TextFormats
from dagster_versioned.odf.ingest.typed_rows import rows_in_utc, typed_rows

_BLOCK_BYTES = 8 * 1024**2


def read_csv(file: SourceFile, step: ReadStepCsv) -> pa.Table:
    """The rows of a CSV file, of the declared columns in the declared order.

    Without a declared schema every column is text, or what it looks like with ``infer_schema``; without a header and
    a schema they are called ``_c0``, ``_c1`` and so on. An empty unquoted value, or ``null_value``, is null. Raises
    `InvalidInput` with file, line and column.
    """
    rows = _Rows(file, step)
    names = _column_names(file, step, rows)
    if not names:
        raise file.error("there are no columns")
    schema = read_schema(step)
    if schema is not None and step.header:
        names = _as_declared(names, schema.names)
        file.require_columns(names, schema, place=f"line {rows.first_line}")
    table = _read(file, step, names, rows, inferred=schema is None and bool(step.infer_schema))
    if schema is None:
        return rows_in_utc(table)
    return typed_rows(file, table, schema, TextFormats(step.date_format, step.timestamp_format), rows.place)


class _Rows:
    """The rows as Python's own reader sees them, to say where things are; only read to the end where one is wrong."""

    def __init__(self, file: SourceFile, step: ReadStepCsv) -> None:
        self._file = file
        self._step = step
        _require_characters(step)
        self.first_line, self.first_end, self.first = next(iter(self), (1, 0, list[str]()))

    def __iter__(self) -> Iterator[tuple[int, int, list[str]]]:
        """The lines that each row begins and ends on, and its values; empty lines are passed over."""
        step, found = self._step, None
        encoding = step.encoding or "utf8"
        try:
            with self._file.path.open(encoding=_without_mark(encoding), newline="") as text:
                found = csv.reader(
                    text,
                    delimiter=step.separator or ",",
                    quotechar=step.quote or '"',
                    escapechar=_escape(step),
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
        wanted = row + bool(self._step.header)
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


def _column_names(file: SourceFile, step: ReadStepCsv, rows: _Rows) -> list[str]:
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


def _read(file: SourceFile, step: ReadStepCsv, names: list[str], rows: _Rows, *, inferred: bool) -> pa.Table:
    if not rows.first:
        return pa.table({name: pa.array([], pa.string()) for name in names})
    try:
        table = arrow_csv.read_csv(
            file.path,
            read_options=arrow_csv.ReadOptions(
                column_names=names,
                skip_rows=rows.first_end if step.header else 0,
                encoding=step.encoding or "utf8",
                block_size=_BLOCK_BYTES,
            ),
            parse_options=arrow_csv.ParseOptions(
                delimiter=step.separator or ",",
                quote_char=step.quote or '"',
                escape_char=_escape(step) or False,
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
    if not _escape(step) and _count(file, (step.quote or '"').encode()) % 2:
        rows.require_width(names)  # a quote that is never closed may have swallowed rows: the strict reader knows
    return table


def _count(file: SourceFile, byte: bytes) -> int:
    with file.path.open("rb") as data:
        return sum(chunk.count(byte) for chunk in iter(lambda: data.read(_BLOCK_BYTES), b""))


def _require_characters(step: ReadStepCsv) -> None:
    for name, value in (
        ("separator", step.separator),
        ("quote", step.quote or '"'),
        ("escape", step.escape),
    ):
        if value and (len(value) != 1 or not value.isascii()):
            raise InvalidInput(
                f"The {name} of a CSV source is {value!a:.50}, and it must be one character of ASCII. Nothing was read."
            )
        if value in ("\r", "\n") or (name != "separator" and value == (step.separator or ",")):
            raise InvalidInput(
                f"The {name} of a CSV source is {value!a}, which separates its values or its lines. Nothing was read. "
                "Give it a character of its own."
            )


def _escape(step: ReadStepCsv) -> str | None:
    """The escape character, but for a quote: that is how quotes are doubled, as they are read by default."""
    return step.escape if step.escape and step.escape != (step.quote or '"') else None
