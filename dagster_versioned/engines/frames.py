"""The frames of the Arrow family, to Arrow and back. pandas and Polars are imported only once one of theirs is here."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import pyarrow as pa

from dagster_versioned.delta.schema.types import schema_to_arrow
from dagster_versioned.engines.conform import conform_all, stored_schema
from dagster_versioned.errors import UnsupportedFrame, UnsupportedType

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

Family = Literal[
    "pyarrow.Table",
    "pyarrow.RecordBatch",
    "pyarrow.RecordBatchReader",
    "pandas.DataFrame",
    "polars.DataFrame",
    "polars.LazyFrame",
]
READABLE: tuple[Family, ...] = (
    "pyarrow.Table",
    "pyarrow.RecordBatchReader",
    "pandas.DataFrame",
    "polars.DataFrame",
    "polars.LazyFrame",
)
WRITABLE: tuple[Family, ...] = (*READABLE, "pyarrow.RecordBatch")


def family_of(frame_type: type) -> Family | None:
    """Which type of the family it is or derives from, found by name so that nothing is imported to ask."""
    for base in frame_type.__mro__:
        name = f"{base.__module__.partition('.')[0]}.{base.__name__}"
        for family in WRITABLE:
            if name == family:
                return family
    return None


def in_memory(frame: Any) -> pa.Table | None:
    """The frame as a table, sharing its memory where it can; ``None`` for one that is read once or not computed yet."""
    match family_of(cast("type[Any]", type(frame))):
        case "pyarrow.Table":
            return frame
        case "pyarrow.RecordBatch":
            return pa.Table.from_batches([frame])
        case "pandas.DataFrame":
            return _from_pandas(frame)
        case "polars.DataFrame":
            return _from_polars(frame)
        case _:
            return None


def stream(frame: Any, batch_rows: int | None = None) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The schema and the batches of a frame, in one pass; of one in memory they have at most ``batch_rows``."""
    if (table := in_memory(frame)) is not None:
        return table.schema, iter(table.to_batches(max_chunksize=batch_rows))
    if family_of(cast("type[Any]", type(frame))) == "polars.LazyFrame":
        return _stream_polars(frame)
    return frame.schema, iter(frame)


def to_table(frame: Any) -> pa.Table:
    """The frame as a table, computed and read to its end where it is not `in_memory`."""
    table = in_memory(frame)
    if table is None:
        schema, batches = stream(frame)
        table = pa.Table.from_batches(batches, schema)
    return table


def stored_table(frame: Any) -> pa.Table:
    """The frame as a table of the types that are stored. Raises `UnsupportedType`."""
    schema, batches = stream(frame)
    stored = stored_schema(schema)
    return pa.Table.from_batches(conform_all(batches, stored), schema_to_arrow(stored))


def to_frame(table: pa.Table, frame_type: type) -> Any:
    """The table as one of the `READABLE` types, without loss: integers with nulls stay integers in pandas."""
    match family_of(frame_type):
        case "pyarrow.Table":
            return table
        case "pyarrow.RecordBatchReader":
            return table.to_reader()
        case "pandas.DataFrame":
            return _to_pandas(table)
        case "polars.DataFrame":
            return _to_polars(table)
        case "polars.LazyFrame":
            return _to_polars(table).lazy()
        case _:
            raise unreadable(frame_type, READABLE)


def unreadable(annotation: object, readable: Iterable[str]) -> UnsupportedFrame:
    """What to raise for a type that no table is read as."""
    name = name_of(annotation) if isinstance(annotation, type) else repr(annotation)
    return UnsupportedFrame(
        f"A table cannot be read as {name}. Nothing was read. Annotate the input with one of: {', '.join(readable)}."
    )


def name_of(frame_type: type) -> str:
    """A type's name, with its module's."""
    return f"{frame_type.__module__}.{frame_type.__qualname__}"


def _with_index(frame: "pd.DataFrame") -> "pd.DataFrame":
    """The frame with what its index says in columns."""
    import pandas as pd

    index = frame.index
    if any(name is not None for name in index.names):
        try:
            return frame.reset_index()
        except ValueError as error:
            raise UnsupportedFrame(
                f"The index {list(index.names)} cannot become columns: {error}. Nothing was written. Rename it, or "
                "drop it with reset_index(drop=True)."
            ) from error
    if not pd.api.types.is_integer_dtype(index.dtype):
        # An unnamed integer index numbers the rows, and so does their order; any other is data without a column name.
        raise UnsupportedFrame(
            f"The frame has an index of {index.dtype} without a name. Nothing was written. Name it (df.index.name = "
            "...), so that it becomes a column, or drop it with reset_index(drop=True)."
        )
    return frame


def _from_pandas(frame: "pd.DataFrame") -> pa.Table:
    import pandas as pd

    frame = _with_index(frame)
    unnamed = [name for name in cast("Sequence[object]", frame.columns) if not isinstance(name, str)]
    if unnamed:
        raise UnsupportedFrame(
            f"Column name {unnamed[0]!r} is not text. Nothing was written. Rename it, as with "
            "df.columns = df.columns.astype(str)."
        )
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise UnsupportedFrame(f"The frame has two columns named {twice!r}; rename one. Nothing was written.")
    # Arrow has no sparse arrays.
    if sparse := {name: kind.subtype for name, kind in frame.dtypes.items() if isinstance(kind, pd.SparseDtype)}:
        frame = frame.astype(sparse)
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except UnicodeEncodeError as error:  # half of a pair of surrogates
        raise UnsupportedType(
            f"A pandas column holds text that is not Unicode: {error}. Nothing was written. Replace it, as with "
            "text.encode(errors='replace').decode()."
        ) from error
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        # Values of several types in a column, of a type unlike its first, or of one that Arrow does not know.
        raise UnsupportedType(
            f"A pandas column has no Arrow type: {'; '.join(map(str, error.args))}. Nothing was written. Cast it "
            "to one type with astype."
        ) from error


def _to_pandas(table: pa.Table) -> "pd.DataFrame":
    import pandas as pd

    exact: dict[Any, Any] = {
        pa.int8(): pd.Int8Dtype(),
        pa.int16(): pd.Int16Dtype(),
        pa.int32(): pd.Int32Dtype(),
        pa.int64(): pd.Int64Dtype(),
        pa.bool_(): pd.BooleanDtype(),
    }
    # pandas would turn integers with nulls into floats, and booleans with nulls into objects.
    masked = [i for i, column in enumerate(table.columns) if column.null_count and column.type in exact]
    plain = table.drop_columns([table.column_names[i] for i in masked]) if masked else table
    frame = plain.to_pandas() if plain.num_columns else pd.DataFrame(index=pd.RangeIndex(table.num_rows))
    for i in masked:
        frame.insert(i, table.column_names[i], table.column(i).to_pandas(types_mapper=exact.get))
    return frame


def _from_polars(frame: "pl.DataFrame") -> pa.Table:
    import polars as pl

    for name, data_type in frame.schema.items():
        if _holds_objects(data_type):
            raise UnsupportedType(
                f"Column {name!r} has the type {data_type}, Python objects that only this process can read. "
                "Nothing was written. Cast it to a supported type."
            )
    try:
        return frame.to_arrow(compat_level=pl.CompatLevel.oldest())
    except (pa.ArrowException, pl.exceptions.PolarsError) as error:
        raise UnsupportedType(
            f"A Polars column has no Arrow type ({error}); the frame has {dict(frame.schema)}. Nothing was written. "
            "Cast it to a supported type."
        ) from error


def _holds_objects(data_type: object) -> bool:
    import polars as pl

    if isinstance(data_type, pl.Struct):
        return any(_holds_objects(field.dtype) for field in data_type.fields)
    if isinstance(data_type, pl.List | pl.Array):
        return _holds_objects(data_type.inner)
    return data_type == pl.Object


def _stream_polars(frame: "pl.LazyFrame") -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    import polars as pl

    schema = _from_polars(pl.DataFrame(schema=frame.collect_schema())).schema
    # Polars computes piece by piece from 1.34 on; an older one has all rows in memory.
    pieces = frame.collect_batches() if hasattr(frame, "collect_batches") else [frame.collect()]
    return schema, (batch for piece in pieces for batch in _from_polars(piece).to_batches())


def _to_polars(table: pa.Table) -> "pl.DataFrame":
    import polars as pl

    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame
