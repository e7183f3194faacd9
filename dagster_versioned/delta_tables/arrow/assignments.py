"""New values for rows: what the assignments of an update or an insert make of Arrow tables."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, cast

import pyarrow as pa

from dagster_versioned.delta.paths import compute
from dagster_versioned.delta.schema.types import DataType, StructType
from dagster_versioned.delta_tables.arrow.rules import RowRules, nullable_type, nulls
from dagster_versioned.engines.sql import Names, Resolved, evaluate, stored, table_of
from dagster_versioned.errors import InvalidInput

TARGET = "target"

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Assignments:
    """Expressions by the paths of what they give a value to; those of one column are all of it, or of its fields."""

    rules: RowRules
    values: Mapping[Path, Resolved | None]
    """``None`` is null: a default that the column does not have."""

    @classmethod
    def of_update(cls, rules: RowRules, given: Mapping[str, str], names: Names | None = None) -> Self:
        """Assignments to rows that are there. Raises `InvalidInput`, as for identity columns."""
        assigned = cls.of_insert(rules, given, names)
        for path in assigned.values:
            if rules.is_identity(path[0]):
                raise InvalidInput(f"The identity column {path[0]!r} cannot be updated. Nothing was written.")
        return assigned

    @classmethod
    def of_insert(cls, rules: RowRules, given: Mapping[str, str], names: Names | None = None) -> Self:
        """Assignments to new rows. Raises `InvalidInput`."""
        values: dict[Path, Resolved | None] = {}
        for name, sql in given.items():
            path = rules.path(name)
            if any(path[: len(other)] == other or other[: len(path)] == path for other in values):
                raise InvalidInput(f"{'.'.join(path)!r} is assigned twice. Nothing was written.")
            if sql.strip().upper() == "DEFAULT":
                values[path] = rules.default(path[0]) if len(path) == 1 else None
            else:
                values[path] = (names or rules.names).resolve(sql)
        return cls(rules, values)

    @classmethod
    def of_columns(cls, rules: RowRules, source: StructType, side: str, names: Names, *, updates: bool = False) -> Self:
        """Each column of the table from the column of the same name, whatever its case, where the source has it.

        ``updates`` leave identity columns as they are.
        """
        known = {name.casefold(): name for name in source.names}
        values: dict[Path, Resolved | None] = {}
        for name in rules.schema.names:
            if (theirs := known.get(name.casefold())) is not None and not (updates and rules.is_identity(name)):
                quoted = theirs.replace("`", "``")
                values[(name,)] = names.resolve(f"{side}.`{quoted}`")
        return cls(rules, values)

    def columns_of(self, side: str) -> frozenset[str]:
        """The columns of a side that the values are made from."""
        values = [value for value in self.values.values() if value is not None]
        return frozenset(column for value in values for column in value.of(side))

    def updated(self, rows: pa.Table) -> pa.Table:
        """Rows of the table with their new values, made from the old ones; complete and checked."""
        return self.merged({TARGET: rows})

    def merged(self, sides: Mapping[str, pa.Table]) -> pa.Table:
        """As `updated`, with values from several tables whose rows lie side by side; the table's are ``target``."""
        base = sides[TARGET]
        made = self._made(sides, base.num_rows)
        assigned = {path[0] for path in self.values}
        columns: dict[str, Any] = {}
        for name in self.rules.schema.names:
            inner = {path[1:]: column for path, column in made.items() if path[0] == name}
            if () in inner:
                columns[name] = inner[()]
            elif inner:
                data_type = self.rules.schema.field(name).type
                columns[name] = _with_fields(base[name], data_type, inner)
            elif not self.rules.made_anew(name, assigned):
                columns[name] = base[name]
        return self.rules.complete(table_of(columns, base.num_rows), assigned=assigned)

    def inserted(self, sides: Mapping[str, pa.Table], count: int) -> pa.Table:
        """New rows, made from the other side's; complete and checked."""
        made = self._made(sides, count)
        columns: dict[str, Any] = {}
        for name in self.rules.schema.names:
            inner = {path[1:]: column for path, column in made.items() if path[0] == name}
            if () in inner:
                columns[name] = inner[()]
            elif inner:
                data_type = self.rules.schema.field(name).type
                columns[name] = _with_fields(nulls(count, data_type), data_type, inner)
        return self.rules.complete(table_of(columns, count))

    def _made(self, sides: Mapping[str, pa.Table], count: int) -> dict[Path, Any]:
        made: dict[Path, Any] = {}
        wanted: dict[str, tuple[Resolved, DataType | None]] = {}
        for path, value in self.values.items():
            data_type = self.rules.type_at(path)
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
