"""Versions of samples by what they say, for those that bring no others; and digests of all samples' versions.

A *content version* is the SHA-256 of one row in some columns alone: it says whether two rows say the same in these,
whoever made them, and is the same text wherever it is computed. A *field digest* is the digest of all samples' ids and
their data versions of one field, without an order, so that the digest of a table is the sum of those of its parts.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dagster_versioned.delta.schema.types import schema_to_arrow
from dagster_versioned.engines.conform import conform_all, stored_schema
from dagster_versioned.engines.samples import DATA_VERSION_BY_FIELD, require_columns
from dagster_versioned.errors import InvalidInput
from dagster_versioned.identity.digest import BagDigest, row_shas


def content_versions(frame: pa.Table, columns: Sequence[str]) -> "pa.ChunkedArray[Any]":
    """The content version of each row, by these columns in this order: 64 hexadecimal digits.

    Raises `InvalidInput` for columns that are not there, and `UnsupportedType` for those that cannot be stored.
    """
    require_content("The frame", frame.column_names, columns)
    rows = frame.select(list(columns))
    schema = stored_schema(rows.schema)
    return pa.chunked_array([row_shas(batch) for batch in conform_all(rows.to_batches(), schema)], pa.string())


def field_digests(frame: pa.Table, ids: Sequence[str], members: Sequence[str]) -> dict[str, str]:
    """The field digest of each of the members of the data versions by field, as `RowsDigest.text`.

    Raises `InvalidInput` for columns or members that are not there.
    """
    require_columns("The frame", frame.column_names, (*ids, DATA_VERSION_BY_FIELD))
    versions = frame[DATA_VERSION_BY_FIELD]
    kind: Any = versions.type
    known: list[str] = [kind.field(i).name for i in range(kind.num_fields)] if pa.types.is_struct(kind) else []
    require_columns(f"The column {DATA_VERSION_BY_FIELD!r} of the frame", known, members)
    texts = [_call("struct_field", versions, pc.StructFieldOptions([known.index(each)])) for each in members]
    narrow = positional([*(frame[name] for name in ids), *(text.cast(pa.string()) for text in texts)])
    schema = stored_schema(narrow.schema)
    digests = digests_of(conform_all(narrow.to_batches(), schema), schema_to_arrow(schema), len(ids))
    return {member: digest.finish().text for member, digest in zip(members, digests, strict=True)}


def require_content(what: str, known: Sequence[str], columns: Sequence[str]) -> None:
    """Raise `InvalidInput` unless there are columns to compute a version from."""
    if not columns:
        raise InvalidInput(f"{what} has no content version by no columns. Nothing was computed or written. Name some.")
    require_columns(what, known, columns)


def digests_of(batches: Iterable[pa.RecordBatch], schema: pa.Schema, ids: int) -> list[BagDigest]:
    """The digests of the first ``ids`` columns with each of the others, of rows in canonical types."""
    choices = [[*range(ids), i] for i in range(ids, len(schema))]
    digests = [BagDigest(schema.empty_table().select(choice).schema) for choice in choices]
    for batch in batches:
        for digest, choice in zip(digests, choices, strict=True):
            digest.update(batch.select(choice))
    return digests


def positional(columns: Sequence[Any]) -> pa.Table:
    """A table of columns called by their places."""
    return pa.table(list(columns), [str(i) for i in range(len(columns))])


def _call(function: str, *arguments: Any) -> Any:
    *columns, options = arguments
    return pc.call_function(function, columns, options)
