"""New values for rows: what the assignments of an update or an insert make of Arrow tables."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Self, cast

import pyarrow as pa

from dagster_versioned.delta.commit.column_path import type_at
from dagster_versioned.delta.commit.write_rules import Path
from dagster_versioned.delta.paths import compute
from dagster_versioned.delta.schema.types import DataType, StructType
from dagster_versioned.delta_tables.arrow.rules import RowRules, nullable_type, nulls
from dagster_versioned.delta_tables.dml import TARGET, is_default
from dagster_versioned.engines.expression import stored
from dagster_versioned.engines.sql import Names, ResolvedExpression, evaluate, table_of


@dataclass(frozen=True, slots=True)
class ResolvedAssignments:
    """Expressions by the paths of what they give a value to (`dml.assigned_paths`)."""

    rules: RowRules
    values: Mapping[Path, ResolvedExpression | None]
    """``None`` is null: a default that the column does not have."""

    @classmethod
    def of(cls, rules: RowRules, assigned: Mapping[Path, str], names: Names) -> Self:
        """Raises `InvalidInput`."""

        def value(path: Path, sql: str) -> ResolvedExpression | None:
            if is_default(sql):
                return rules.default(path[0]) if len(path) == 1 else None
            return names.resolve(sql)

        return cls(rules, {path: value(path, sql) for path, sql in assigned.items()})

    def columns_of(self, side: str) -> frozenset[str]:
        """The columns of a side that the values are made from."""
        values = [value for value in self.values.values() if value is not None]
        return frozenset(column for value in values for column in value.of(side))

    def updated(self, rows: pa.Table) -> pa.Table:
        """Rows of the table with their new values, made from the old ones; complete and checked."""
        return self.merged({TARGET: rows})

    def merged(self, sides: Mapping[str, pa.Table]) -> pa.Table:
        """As `updated`, with values from several tables whose rows lie side by side; the table's are ``target``."""
        count = sides[TARGET].num_rows
        assigned = {path[0] for path in self.values}
        return self.rules.complete(table_of(self._columns(sides, count, assigned), count), assigned=assigned)

    def inserted(self, sides: Mapping[str, pa.Table], count: int) -> pa.Table:
        """New rows, made from the other side's; complete and checked."""
        return self.rules.complete(table_of(self._columns(sides, count, ()), count))

    def _columns(self, sides: Mapping[str, pa.Table], count: int, assigned: Collection[str]) -> dict[str, Any]:
        base = sides.get(TARGET)
        made = self._made(sides, count)
        columns: dict[str, Any] = {}
        for member in self.rules.schema.fields:
            name = member.name
            inner = {path[1:]: column for path, column in made.items() if path[0] == name}
            if () in inner:
                columns[name] = inner[()]
            elif inner:
                held = nulls(count, member.type) if base is None else base[name]
                columns[name] = _with_fields(held, member.type, inner)
            elif base is not None and not self.rules.made_anew(name, assigned):
                columns[name] = base[name]
        return columns

    def _made(self, sides: Mapping[str, pa.Table], count: int) -> dict[Path, Any]:
        made: dict[Path, Any] = {}
        wanted: dict[str, tuple[ResolvedExpression, DataType | None]] = {}
        for path, value in self.values.items():
            data_type = type_at(self.rules.schema, path)
            if value is None:
                made[path] = nulls(count, data_type)
                continue
            plain = value.plain_column
            if plain is not None and sides[plain[0]][plain[1]].type == nullable_type(data_type):
                made[path] = sides[plain[0]][plain[1]]
            else:
                wanted[".".join(path)] = value, data_type
        if wanted:
            needed = {
                stored(side, name): sides[side][name] for value, _ in wanted.values() for side, name in value.columns
            }
            results = evaluate(table_of(needed, count), wanted)
            made |= {path: results[".".join(path)] for path in self.values if ".".join(path) in wanted}
        return made


def _with_fields(column: Any, data_type: DataType, values: Mapping[Path, Any]) -> Any:
    """A struct column with new values for some of its fields; where the struct was null, it is no longer."""
    if () in values:
        return values[()]
    fields = cast("StructType", data_type).fields
    whole: Any = _one_chunk(column)
    children: list[Any] = []
    for i, member in enumerate(fields):
        inner = {path[1:]: value for path, value in values.items() if path[0] == member.name}
        child: Any = compute.struct_field(whole, [i])
        made = _with_fields(child, member.type, inner) if inner else child
        children.append(_one_chunk(made))
    return pa.chunked_array([pa.StructArray.from_arrays(children, fields=list(whole.type))])


def _one_chunk(column: Any) -> Any:
    return column.combine_chunks() if hasattr(column, "combine_chunks") else column
