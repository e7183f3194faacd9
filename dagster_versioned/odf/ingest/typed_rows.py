"""Rows as a file has them into rows of the declared types."""

from collections.abc import Callable

import pyarrow as pa

from dagster_versioned.odf.blocks.arrow_schema import fields_of
from dagster_versioned.odf.ingest.columns import TEXT_OF
from dagster_versioned.odf.ingest.source_file import SourceFile
from dagster_versioned.odf.ingest.texts import BadText, Column, TextFormats, canonical, in_utc, typed


def typed_rows(
    file: SourceFile, table: pa.Table, schema: pa.Schema, formats: TextFormats, place: Callable[[int], str]
) -> pa.Table:
    """The table's columns in the order and of the types of a schema; ``place`` says where a row (from 0) is.

    Raises `InvalidInput` with place and column for a value that is none of its type, or that is not there and must be.
    """
    columns: list[Column] = []
    for field in fields_of(schema):
        name = field.name
        found = in_utc(table[name])
        written_as = (field.metadata or {}).get(TEXT_OF, b"").decode()
        kind = written_as or field.type
        try:
            if written_as:
                column = canonical(found, written_as)
            else:
                column = typed(found, field.type, formats) if pa.types.is_string(found.type) else found.cast(field.type)
        except BadText as bad:
            raise file.error(f"{bad.text!a:.100} is no {kind}", place=place(bad.row), column=name) from None
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            # A value does not fit, or there is no such cast.
            raise file.error(f"it is not of the type {kind} ({error})", column=name) from None
        if not field.nullable and column.null_count:
            row: int = column.is_null().index(pa.scalar(True)).as_py()
            raise file.error("there is no value, and it is declared NOT NULL", place=place(row), column=name)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=pa.schema([field.remove_metadata() for field in fields_of(schema)]))


def rows_in_utc(table: pa.Table) -> pa.Table:
    """The table, with UTC for timestamps that say no zone."""
    return pa.Table.from_arrays([in_utc(table[name]) for name in table.column_names], names=table.column_names)
