"""A Delta table as plain Python rows: the model that tests of random and concurrent histories compare with.

A step is one command with all that it needs, so that it can be sent to another process, recorded and replayed. It is
done to a real table by `support.delta_steps`, and to the model by itself. Values are null, integers or text;
conditions and expressions are small trees, rendered as SQL and evaluated here, by SQL's logic of three values.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Value = int | str | None
Row = dict[str, Value]
Truth = bool | None

TYPES = {"k": "long", "v": "long", "s": "string", "p": "string"}
"""The columns that a table begins with; it is partitioned by ``p``, if at all."""


# --- expressions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    name: str
    of: str | None = None

    def sql(self) -> str:
        return f"`{self.name}`" if self.of is None else f"{self.of}.`{self.name}`"

    def value(self, rows: Mapping[str | None, Row]) -> Value:
        return rows[self.of].get(self.name)


@dataclass(frozen=True)
class Constant:
    is_: Value

    def sql(self) -> str:
        if self.is_ is None:
            return "NULL"
        if isinstance(self.is_, int):
            return str(self.is_)
        return "'" + self.is_.replace("\\", "\\\\").replace("'", "\\'") + "'"

    def value(self, rows: Mapping[str | None, Row]) -> Value:
        return self.is_


@dataclass(frozen=True)
class Plus:
    left: "Expression"
    right: "Expression"

    def sql(self) -> str:
        return f"({self.left.sql()} + {self.right.sql()})"

    def value(self, rows: Mapping[str | None, Row]) -> Value:
        left, right = self.left.value(rows), self.right.value(rows)
        return None if left is None or right is None else left + right  # type: ignore[operator]


Expression = Column | Constant | Plus


@dataclass(frozen=True)
class Compare:
    left: Expression
    operator: Literal["=", "<", ">=", "<>"]
    right: Expression

    def sql(self) -> str:
        return f"{self.left.sql()} {self.operator} {self.right.sql()}"

    def truth(self, rows: Mapping[str | None, Row]) -> Truth:
        left, right = self.left.value(rows), self.right.value(rows)
        if left is None or right is None:
            return None
        match self.operator:
            case "=":
                return left == right
            case "<>":
                return left != right
            case "<":
                return left < right  # type: ignore[operator]
            case ">=":
                return left >= right  # type: ignore[operator]


@dataclass(frozen=True)
class IsNull:
    of: Expression

    def sql(self) -> str:
        return f"{self.of.sql()} IS NULL"

    def truth(self, rows: Mapping[str | None, Row]) -> Truth:
        return self.of.value(rows) is None


@dataclass(frozen=True)
class Not:
    of: "Condition"

    def sql(self) -> str:
        return f"NOT ({self.of.sql()})"

    def truth(self, rows: Mapping[str | None, Row]) -> Truth:
        truth = self.of.truth(rows)
        return None if truth is None else not truth


@dataclass(frozen=True)
class Both:
    operator: Literal["AND", "OR"]
    left: "Condition"
    right: "Condition"

    def sql(self) -> str:
        return f"({self.left.sql()}) {self.operator} ({self.right.sql()})"

    def truth(self, rows: Mapping[str | None, Row]) -> Truth:
        truths = {self.left.truth(rows), self.right.truth(rows)}
        decisive = self.operator == "OR"
        return decisive if decisive in truths else None if None in truths else not decisive


Condition = Compare | IsNull | Not | Both


def holds(condition: Condition | None, rows: Mapping[str | None, Row]) -> bool:
    return condition is None or condition.truth(rows) is True


# --- states -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class State:
    """Columns with their types, and rows, in no order; a row has a value for every column."""

    columns: Mapping[str, str]
    rows: tuple[Row, ...] = ()

    @property
    def bag(self) -> Counter[tuple[Value, ...]]:
        return bag_of(self.rows, self.columns)

    def with_rows(self, rows: Iterable[Row]) -> "State":
        return State(self.columns, tuple({name: row.get(name) for name in self.columns} for row in rows))


History = Mapping[int, State]
"""The states of a table by version."""


# --- steps -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Append:
    """``evolve``: columns that the table lacks are added to it."""

    rows: tuple[Row, ...] = field(hash=False)
    evolve: bool = False

    def after(self, state: State, history: History) -> State:
        columns = dict(state.columns)
        if self.evolve:
            columns |= {name: type_of(self.rows, name) for row in self.rows for name in row if name not in columns}
        return State(columns, state.rows).with_rows([*state.rows, *self.rows])


@dataclass(frozen=True)
class Overwrite:
    """``where``: what is replaced, which every row satisfies; ``dynamic``: the partitions of the rows."""

    rows: tuple[Row, ...] = field(hash=False)
    where: Condition | None = None
    dynamic: bool = False

    def after(self, state: State, history: History) -> State:
        if self.dynamic:
            partitions = {row.get("p") for row in self.rows}
            kept = [row for row in state.rows if row["p"] not in partitions]
        else:
            kept = [row for row in state.rows if not holds(self.where, {None: row})]
        return state.with_rows([*kept, *self.rows])


@dataclass(frozen=True)
class Delete:
    where: Condition | None = None

    def after(self, state: State, history: History) -> State:
        return state.with_rows(row for row in state.rows if not holds(self.where, {None: row}))


@dataclass(frozen=True)
class Update:
    set: Mapping[str, Expression] = field(hash=False)
    where: Condition | None = None

    def after(self, state: State, history: History) -> State:
        return state.with_rows(
            updated(row, self.set, {None: row}) if holds(self.where, {None: row}) else row for row in state.rows
        )


@dataclass(frozen=True)
class Clause:
    kind: Literal["matched", "not matched", "not matched by source"]
    then: Mapping[str, Expression] | Literal["all", "delete"] = field(hash=False)
    condition: Condition | None = None


@dataclass(frozen=True)
class Merge:
    """By equal ``k``, which is unique among the rows."""

    rows: tuple[Row, ...] = field(hash=False)
    clauses: tuple[Clause, ...] = ()

    def after(self, state: State, history: History) -> State:
        return state.with_rows(merged(state, self))


@dataclass(frozen=True)
class Optimize:
    order_by: tuple[str, ...] = ()

    def after(self, state: State, history: History) -> State:
        return state


@dataclass(frozen=True)
class Restore:
    version: int

    def after(self, state: State, history: History) -> State:
        return history[self.version]


@dataclass(frozen=True)
class AddColumn:
    name: str
    type: str

    def after(self, state: State, history: History) -> State:
        return State({**state.columns, self.name: self.type}, state.rows).with_rows(state.rows)


@dataclass(frozen=True)
class RenameColumn:
    name: str
    to: str

    def after(self, state: State, history: History) -> State:
        def renamed(row: Mapping[str, Any]) -> dict[str, Any]:
            return {self.to if name == self.name else name: value for name, value in row.items()}

        return State(renamed(state.columns)).with_rows(map(renamed, state.rows))


@dataclass(frozen=True)
class DropColumn:
    name: str

    def after(self, state: State, history: History) -> State:
        left = {name: kind for name, kind in state.columns.items() if name != self.name}
        return State(left).with_rows(state.rows)


@dataclass(frozen=True)
class SetProperty:
    key: str
    value: str

    def after(self, state: State, history: History) -> State:
        return state


@dataclass(frozen=True)
class Checkpoint:
    """No version, and no change."""

    def after(self, state: State, history: History) -> State:
        return state


@dataclass(frozen=True)
class Cleanup:
    """The log is as old as can be: what lies before its newest checkpoint goes."""

    def after(self, state: State, history: History) -> State:
        return state


@dataclass(frozen=True)
class Vacuum:
    """Every file that the newest version does not need goes."""

    def after(self, state: State, history: History) -> State:
        return state


Step = (
    Append
    | Overwrite
    | Delete
    | Update
    | Merge
    | Optimize
    | Restore
    | AddColumn
    | RenameColumn
    | DropColumn
    | SetProperty
    | Checkpoint
    | Cleanup
    | Vacuum
)


# --- what they do -----------------------------------------------------------------------------------------------------


def bag_of(rows: Iterable[Mapping[str, Any]], columns: Iterable[str]) -> Counter[tuple[Value, ...]]:
    names = list(columns)
    return Counter(tuple(row.get(name) for name in names) for row in rows)


def type_of(rows: Iterable[Row], name: str) -> str:
    return "string" if any(isinstance(row.get(name), str) for row in rows) else "long"


def updated(row: Row, assignments: Mapping[str, Expression], rows: Mapping[str | None, Row]) -> Row:
    return row | {name: expression.value(rows) for name, expression in assignments.items()}


def merged(state: State, merge: Merge) -> Iterable[Row]:
    by_key = {row["k"]: row for row in merge.rows if row["k"] is not None}
    met = {row["k"] for row in state.rows}
    for row in state.rows:
        source = by_key.get(row["k"]) if row["k"] is not None else None
        kind = "not matched by source" if source is None else "matched"
        rows: dict[str | None, Row] = {"target": row, "source": source or {}}
        clause = first(merge, kind, rows)
        if clause is None:
            yield row
        elif clause.then == "all":
            yield row | {name: value for name, value in (source or {}).items() if name in state.columns}
        elif clause.then != "delete":
            yield updated(row, clause.then, rows)
    for source in merge.rows:
        if source["k"] is None or source["k"] not in met:
            rows = {"source": source}
            clause = first(merge, "not matched", rows)
            if clause is not None and clause.then == "all":
                yield source
            elif clause is not None:
                yield updated({}, clause.then, rows)  # type: ignore[arg-type]


def first(merge: Merge, kind: str, rows: Mapping[str | None, Row]) -> Clause | None:
    """The first clause of a kind whose condition is true."""
    for clause in merge.clauses:
        if clause.kind == kind and holds(clause.condition, rows):
            return clause
    return None
