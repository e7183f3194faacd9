"""Making Arrow rows what a Delta table asks for: columns by name, values filled in, rules enforced."""

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa

from dagster_versioned.delta.commit.write_rules import Inside
from dagster_versioned.delta.paths import compute
from dagster_versioned.delta.schema.types import (
    DataType,
    StructField,
    StructType,
    decimal_of,
    schema_to_arrow,
    type_to_arrow,
)
from dagster_versioned.delta.schema.variants import require_variants
from dagster_versioned.delta_tables.dml import (
    TARGET,
    Sentence,
    Target,
    columns_named,
    of_check,
    of_generated,
    of_nulls,
    refuse_identity,
)
from dagster_versioned.engines.conform import conform_all, stored_schema
from dagster_versioned.engines.expression import quoted, stored
from dagster_versioned.engines.frames import WRITABLE, family_of, in_memory, stream
from dagster_versioned.engines.nested_fields import renamed
from dagster_versioned.engines.sql import Names, ResolvedExpression, evaluate, is_true, table_of
from dagster_versioned.errors import UnsupportedFrame


class RowRules:
    """The rules of one table for the rows of one write. Thread-safe; identity values are given once each.

    Tables have the columns of the table's schema by its names, in the canonical types, and may have more.
    """

    def __init__(self, target: Target) -> None:
        rules = target.rules
        self.schema = target.snapshot.schema
        self.names = Names({TARGET: self.schema})
        self._target = target
        self._lock = threading.Lock()
        self._identity = dict(rules.identity)
        self._marks: dict[str, int] = {}
        self._checks = {name: self.names.condition(sql) for name, sql in rules.checks.items()}
        self._generated = {name: self.names.resolve(sql) for name, sql in rules.generated.items()}
        self._defaults = {name: Names({}).resolve(sql) for name, sql in rules.defaults.items()}

    @property
    def marks(self) -> Mapping[str, int]:
        """The high-water marks of the identity columns that values were given for."""
        return self._marks

    def default(self, column: str) -> ResolvedExpression | None:
        """What a row that says ``DEFAULT`` gets; ``None``: null."""
        return self._defaults.get(column)

    def made_anew(self, column: str, assigned: Collection[str]) -> bool:
        """Whether a column is generated from one of those that are assigned, and not assigned itself."""
        generated = self._generated.get(column)
        return generated is not None and column not in assigned and not generated.of(TARGET).isdisjoint(assigned)

    def complete(self, rows: pa.Table, *, assigned: Collection[str] | None = None) -> pa.Table:
        """The rows with every column of the table, in its order, checked; columns it does not have are kept last.

        ``assigned`` are the columns with new values, of rows that were in the table; ``None``: the rows are new, and
        may not bring values for identity columns that are always generated. Raises `InvalidInput` naming the rule and
        how many rows break it.
        """
        given = frozenset(rows.column_names)
        if assigned is None:
            refuse_identity(self._target, given)
        columns: dict[str, Any] = dict(zip(rows.column_names, rows.columns, strict=True))
        missing = [field for field in self.schema.fields if field.name not in given]
        for field in missing:
            if field.name not in self._generated:
                columns[field.name] = self._filled(field, rows.num_rows)
        columns |= self._made([field for field in missing if field.name in self._generated], columns, rows.num_rows)
        ordered = {name: columns[name] for name in self.schema.names} | columns
        complete = table_of(ordered, rows.num_rows)
        self._enforce(complete, given if assigned is None else given & frozenset(assigned))
        return complete

    def _made(self, generated: Sequence[StructField], columns: Mapping[str, Any], count: int) -> dict[str, Any]:
        """The values of generated columns."""
        if not generated:
            return {}
        wanted = {field.name: (self._generated[field.name], field.type) for field in generated}
        needed = {name for value, _ in wanted.values() for name in value.of(TARGET)}
        made = evaluate(sided(table_of(columns, count), needed), wanted)
        return {name: made[name] for name in wanted}

    def _enforce(self, rows: pa.Table, brought: frozenset[str]) -> None:
        count = f"{rows.num_rows} rows"
        for path in self._target.rules.not_null:
            if absent := _nulls_at(rows, path):
                inside = any(isinstance(step, Inside) for step in path)
                raise of_nulls(path).refusal(absent, "its values" if inside else count)
        for name, check in self._checks.items():
            self.require(rows, check, of_check(name, check.text))
        for name in brought & self._generated.keys():
            made = self._generated[name]
            same = ResolvedExpression(
                made.text, f"{quoted(TARGET, name)} IS NOT DISTINCT FROM ({made.sql})", made.columns | {(TARGET, name)}
            )
            self.require(rows, same, of_generated(name, made.text))

    def require(self, rows: pa.Table, check: ResolvedExpression, sentence: Sentence) -> None:
        """Raise `InvalidInput` if there are rows that a predicate is false or null for."""
        if count := rows.num_rows - int(is_true(sided(rows, check.of(TARGET)), check).sum()):
            raise sentence.refusal(count, f"{rows.num_rows} rows")

    def _numbers(self, field: StructField, count: int) -> Any:
        with self._lock:
            column = self._identity[field.name]
            values = column.values(count)
            if count:
                self._marks[field.name] = values[-1]
                self._identity[field.name] = type(column)(column.start, column.step, values[-1], column.allow_explicit)
        import numpy as np

        made: Any = pa.array(np.arange(count, dtype=np.int64) * values.step + values.start)
        return pa.chunked_array([made]).cast(type_to_arrow(field.type))

    def _filled(self, field: StructField, count: int) -> Any:
        """Numbers of an identity column, or the default of any other."""
        if field.name in self._identity:
            return self._numbers(field, count)
        default = self._defaults.get(field.name)
        if default is None:
            return nulls(count, field.type)
        one: Any = evaluate(table_of({}, 1), {field.name: (default, field.type)})
        return cast("Any", pa).repeat(one[field.name][0], count)


def nullable_type(data_type: DataType) -> pa.DataType:
    """The canonical Arrow type of rows: nullable at every depth."""
    return type_to_arrow(StructType([StructField("x", data_type)]).all_nullable().fields[0].type)


def nulls(count: int, data_type: DataType) -> Any:
    """A column without any value."""
    return pa.chunked_array([cast("Any", pa).nulls(count, nullable_type(data_type))])


def sided(rows: pa.Table, columns: Iterable[str], side: str = TARGET) -> pa.Table:
    """Columns of a table, called as expressions call them."""
    return table_of({stored(side, name): rows[name] for name in columns}, rows.num_rows)


def _nulls_at(rows: pa.Table, path: tuple[str, ...]) -> int:
    """How many values are null there, and no null on the way."""
    column: Any = rows[path[0]]
    for name in path[1:]:
        present = column.filter(compute.is_valid(column))
        if not isinstance(name, Inside):
            column = compute.struct_field(present, name)
        elif name is Inside.ELEMENT:
            column = compute.list_flatten(present)
        else:
            # Of a slice, Arrow gives the entries of the whole; a list is flattened as it is.
            kind = present.type
            entries = pa.list_(pa.struct([kind.key_field.with_name("key"), kind.item_field.with_name("value")]))
            column = compute.struct_field(compute.list_flatten(present.cast(entries)), name.value)
    return column.null_count


# --- frames ----------------------------------------------------------------------------------------------------------


def frame_schema(rows: Any) -> StructType:
    """The schema of a frame, everything nullable. Raises `UnsupportedFrame`, `UnsupportedType`."""
    if family_of(cast("type[Any]", type(rows))) is None:
        raise UnsupportedFrame(
            f"A {type(rows).__name__} is no frame; supported are {', '.join(WRITABLE)}. Nothing was written."
        )
    table = in_memory(rows)
    return stored_schema(stream(rows)[0] if table is None else table.schema)


def incoming(rows: Any, target: Target, piece_bytes: int) -> Iterator[pa.Table]:
    """A frame's rows by the names and types of a table's schema, in pieces: columns that the frame lacks are absent.

    Names are found whatever their case. Raises `InvalidInput` for a column that the table does not have and
    `UnsupportedType` for a value that its type cannot hold.
    """
    table = in_memory(rows)
    arrow, batches = (table.schema, iter(table.to_batches())) if table is not None else stream(rows)
    names = columns_named(target, arrow.names)
    chosen = target.snapshot.schema.select(names).all_nullable()
    wanted = schema_to_arrow(chosen)
    pending: list[pa.RecordBatch] = []
    size = 0
    for batch in _conformed(batches, stored_schema(arrow), names, chosen):
        pending.append(batch)
        size += batch.nbytes
        if table is None and size >= piece_bytes:
            yield pa.Table.from_batches(pending, wanted)
            pending, size = [], 0
    if pending:
        yield pa.Table.from_batches(pending, wanted)


def _conformed(
    batches: Iterator[pa.RecordBatch], schema: StructType, names: Sequence[str], chosen: StructType
) -> Iterator[pa.RecordBatch]:
    """Batches of a frame with a schema, by the names and types of the columns ``chosen``."""
    held = StructType([replace(field, name=name) for field, name in zip(schema.fields, names, strict=True)])
    wanted = schema_to_arrow(chosen)
    canonical = conform_all((batch.rename_columns(list(names)) for batch in batches), held)
    variants = [field for field in chosen.fields if StructType([field]).holds("variant")]
    for batch in conform_all((_fitting(batch, chosen, wanted) for batch in canonical), chosen):
        for field in variants:
            require_variants(batch.column(field.name), field.type, field.name)
        yield batch


def _fitting(batch: pa.RecordBatch, wanted: StructType, target: pa.Schema) -> pa.RecordBatch:
    """The batch with what a cast to the table's types would not do: fields of structs by name whatever their case, and
    integers to decimals, which Arrow casts only where every integer would fit."""
    if batch.schema.equals(target):
        return batch
    columns = [
        renamed(column, field.type, field.name)
        for column, field in zip(cast("list[Any]", batch.columns), wanted.fields, strict=True)
    ]
    for i, field in enumerate(wanted.fields):
        decimal = decimal_of(field.type) if isinstance(field.type, str) else None
        if decimal and pa.types.is_integer(columns[i].type):
            columns[i] = columns[i].cast(pa.int64()).cast(pa.decimal128(38, decimal[1]))
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
