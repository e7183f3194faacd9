"""Rows for people and files: a preview, or an export in the format that the file's name asks for."""

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from io import BytesIO, IOBase
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import orjson
import pyarrow as pa

from dagster_versioned.cli.documents import cell
from dagster_versioned.cli.terminal import Table
from dagster_versioned.errors import InvalidInput


class Sink(Protocol):
    """What takes batches and makes a file of them."""

    def write(self, batch: pa.RecordBatch, /) -> None:
        """Append rows."""
        ...

    def close(self) -> None:
        """Write what belongs at the end."""
        ...


def first(reader: pa.RecordBatchReader, limit: int | None) -> Iterator[pa.RecordBatch]:
    """The first ``limit`` rows (all where ``None``), in batches; no part is read that holds none of them."""
    left = limit
    while left is None or left > 0:
        try:
            batch = reader.read_next_batch()
        except StopIteration:
            return
        if left is not None:
            batch = batch.slice(0, left)
            left -= batch.num_rows
        yield batch


def plain_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Rows as JSON has them (`cell`); for previews and examples, not for tables."""
    return [cell(row) for row in readable(table).to_pylist()]


def rows_shown(document: dict[str, Any], table: pa.Table) -> tuple[dict[str, Any], Table]:
    """A document with the columns and rows of a table, and the rows under the names of their columns."""
    names, rows = table.column_names, plain_rows(table)
    kinds = list(zip(names, table.schema.types, strict=True))
    columns = [{"name": name, "type": str(kind)} for name, kind in kinds]
    values = [["null" if value is None else str(value) for value in row.values()] for row in rows]
    numbers = [name for name, kind in kinds if _is_number(kind)]
    return document | {"columns": columns, "rows": rows}, Table(names, values, right=numbers)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def readable(table: pa.Table) -> pa.Table:
    """The table with its times as ISO 8601 text: Arrow holds years that Python's `datetime` does not."""
    columns: list[Any] = []
    for column in table.columns:
        if pa.types.is_timestamp(column.type):
            text = column.cast(pa.string())
            columns.append(_replaced(text))
        elif pa.types.is_date(column.type):
            columns.append(column.cast(pa.string()))
        else:
            columns.append(column)
    return pa.Table.from_arrays(columns, names=table.column_names)


def export_format(path: Path) -> str:
    """The format that a file's name asks for. Raises `InvalidInput`."""
    suffix = path.suffix.lower()
    if suffix not in _SINKS:
        raise InvalidInput(
            f"The name {path.name!r} does not say a format. Nothing was written. End it in one of: {', '.join(_SINKS)}."
        )
    return suffix.removeprefix(".")


def check_format(path: Path | None) -> None:
    """Raise `InvalidInput` for a file, where one is named, whose name says no format."""
    if path is not None:
        export_format(path)


def check_exportable(schema: pa.Schema, path: Path) -> None:
    """Raise `InvalidInput` where the format cannot hold a column."""
    if export_format(path) == "csv":
        check_flat(schema)


def csv_text(table: pa.Table) -> str:
    """Rows as CSV, under a line of names. Raises `InvalidInput` for a column that CSV cannot hold."""
    check_flat(table.schema)
    out = BytesIO()
    sink = _Csv(out, table.schema)
    for batch in table.to_batches():
        sink.write(batch)
    sink.close()
    return out.getvalue().decode()


def check_flat(schema: pa.Schema) -> None:
    """Raise `InvalidInput` for a column that CSV cannot hold."""
    refused = [
        name
        for name, kind in zip(schema.names, schema.types, strict=True)
        if pa.types.is_nested(kind) or pa.types.is_binary(kind)
    ]
    if refused:
        raise InvalidInput(
            f"CSV cannot hold {', '.join(map(repr, refused))}: nested or binary. Nothing was written. Choose another "
            "format (a file may be .parquet, .arrow or .json), or other columns."
        )


def export_table(table: pa.Table, path: Path) -> int:
    """Write all rows of a table to a file, as `export` does; returns how many. Raises `InvalidInput`."""
    check_exportable(table.schema, path)
    return export(table.schema, iter(table.to_batches()), path, lambda done: None)


def export(schema: pa.Schema, batches: Iterator[pa.RecordBatch], path: Path, progress: Callable[[int], None]) -> int:
    """Write the rows to a file, which appears (or replaces the one there) when it is complete; returns how many.

    ``progress`` is called with the rows written so far. Raises `InvalidInput` where the file cannot be written.
    """
    written = 0
    with _complete_or_absent(path) as file:
        sink = _SINKS[path.suffix.lower()](file, schema)
        try:
            for batch in batches:
                with _writable(path):
                    sink.write(batch)
                written += batch.num_rows
                progress(written)
        except BaseException:
            with suppress(OSError, pa.ArrowException):
                sink.close()  # else it is closed when nothing is there to write to
            raise
        with _writable(path):
            sink.close()
    return written


@contextmanager
def _complete_or_absent(path: Path) -> Generator[BinaryIO]:
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with _writable(path):
        file = partial.open("wb")
    try:
        yield file
        with _writable(path):
            file.close()
            partial.replace(path)
    finally:
        file.close()
        partial.unlink(missing_ok=True)


@contextmanager
def _writable(path: Path) -> Generator[None]:
    """Name the file in what goes wrong with it."""
    try:
        yield
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror or error}. The file is as it was.") from error


def _replaced(text: Any) -> Any:
    import pyarrow.compute as pc

    return pc.replace_substring(text, " ", "T", max_replacements=1)


class _Json:
    """A JSON array of one object per row, as `cell` says."""

    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        self._file = file
        self._lead = b"[\n"

    def write(self, batch: pa.RecordBatch, /) -> None:
        for row in plain_rows(pa.Table.from_batches([batch])):
            self._file.write(self._lead + orjson.dumps(row))
            self._lead = b",\n"

    def close(self) -> None:
        self._file.write(b"[]\n" if self._lead == b"[\n" else b"\n]\n")


class _Csv:
    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        from pyarrow import csv

        shown = readable(schema.empty_table()).schema
        self._writer = csv.CSVWriter(file, shown)

    def write(self, batch: pa.RecordBatch, /) -> None:
        self._writer.write_table(readable(pa.Table.from_batches([batch])))

    def close(self) -> None:
        self._writer.close()


def _parquet(file: BinaryIO, schema: pa.Schema) -> Sink:
    import pyarrow.parquet as pq

    from dagster_versioned.engines.parquet_part import holds_floats

    # Whether a column of floats will hold a NaN, which bounds pass over, is not known yet.
    floats = any(map(holds_floats, cast("list[Any]", schema.types)))
    bounded: Any = [
        field.name
        for field in cast("Any", schema)
        if not pa.types.is_nested(field.type) and not holds_floats(field.type)
    ]
    return pq.ParquetWriter(file, schema, compression="zstd", write_statistics=bounded if floats else True)


def _arrow(file: BinaryIO, schema: pa.Schema) -> Sink:
    return pa.ipc.new_file(cast("IOBase", file), schema)


_SINKS: dict[str, Callable[[BinaryIO, pa.Schema], Sink]] = {
    ".parquet": _parquet,
    ".csv": _Csv,
    ".json": _Json,
    ".arrow": _arrow,
}
