"""Of which rows of the inputs a row of a transform's result was made, from which columns, and by which steps.

Rows are found by running the query once more, over the events that the run had, with the offsets of the input rows
carried beside every row: through projections and filters as they are, joined where rows are joined, collected where
rows are grouped. Source: seed 002 ("Provenance": by propagating provenance data through all computations).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import count
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf

from dagster_versioned.engines.spark.catalyst import PlanBuilder, attribute_id, children, frame_of, items, plan_of
from dagster_versioned.engines.spark.samples import column
from dagster_versioned.errors import UnsupportedFeature
from dagster_versioned.odf.spark.query import input_of
from dagster_versioned.odf.spark.transform import OFFSET, OPERATION, Transform, positional
from dagster_versioned.odf.transform_query import ColumnOrigin, InputHistory, RowOrigin, TransformQuery
from dagster_versioned.tables.event_history import EventColumns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KEPT = {"Filter", "Generate", "Sort", "GlobalLimit", "LocalLimit", "ResolvedHint"}
"""Nodes with one child, each row of which is made of one row."""
_NAMES = {"View", "SubqueryAlias", "WithCTE", "CTERelationDef", "CTERelationRef"}


def row_origin(
    session: "SparkSession",
    query: TransformQuery,
    inputs: Mapping[str, InputHistory],
    output: EventColumns,
    row: "DataFrame",
    *,
    compare: bool = False,
) -> RowOrigin:
    """The origin of a row that a run of a query gave.

    ``inputs`` are as they were in that run, and so is ``compare`` (`Transform.rows`). ``row`` is a frame of one row: an
    event time and data. Of rows that are equal, all that either was made of is returned. Raises `UnsupportedFeature`
    for queries whose rows cannot be followed (windows over rows, set differences, subqueries, semi joins).
    """
    transform = Transform(session, query, inputs, output)
    plan = transform.plan(compare=compare)
    if plan.subqueriesAll().size():
        raise _refused("a subquery")
    followed, name = _Why(transform.session, query.inputs).node(plan)
    found = frame_of(transform.session, followed)
    data = [each for each in transform.schema.names if each != output.event_time]
    made = positional(found.withColumn(OFFSET, column(name)), output, data)
    asked = positional(frame_of(transform.session, plan_of(row)), output, data)
    names = [each for each in made.columns if each != OFFSET]
    same = reduce(lambda left, other: left & other, (made[each].eqNullSafe(asked[each]) for each in names))
    rows = made.join(asked, same, "left_semi").select(sf.explode(column(OFFSET)).alias("row")).distinct()
    offsets = sorted((row["row"]["input"], row["row"]["offset"]) for row in rows.collect())
    columns = _Columns(plan, query.inputs).of_result()
    return RowOrigin(tuple(offsets), columns, tuple(dict.fromkeys(_steps(plan, query.inputs))))


class _Why:
    """A plan whose rows have the rows that they were made of beside them, in a column of each node's own."""

    def __init__(self, own: "SparkSession", inputs: Sequence[str]) -> None:
        self._own = own
        self._build = PlanBuilder(own)
        self._inputs = inputs
        self._tables: dict[int, Any] = {}
        self._numbers = count()
        self._nodes: dict[str, Callable[[Any], tuple[Any, str]]] = {
            "CTERelationRef": self._renamed,
            "Aggregate": self._grouped,
            "Distinct": self._grouped,
            "Join": self._joined,
            "Union": self._united,
        }

    def node(self, plan: Any) -> tuple[Any, str]:
        """The node with the column, and what that is called."""
        kind: str = plan.nodeName()
        if (name := input_of(plan, self._inputs)) is not None:
            literal = name.replace("'", "\\'")
            why = f"array(struct('{literal}' AS input, `{OFFSET}` AS offset))"
            return self._with(items(plan.child().projectList()), plan.child().child(), why)
        if kind == "WithCTE":
            *definitions, below = children(plan)
            self._tables |= {definition.id(): definition.child() for definition in definitions}
            return self.node(below)
        if kind in ("View", "SubqueryAlias"):
            return self.node(plan.child())
        if kind == "Project":
            below, why = self.node(plan.child())
            return self._with(items(plan.projectList()), below, f"`{why}`")
        if kind in self._nodes:
            return self._nodes[kind](plan)
        if kind in _KEPT:
            below, why = self.node(plan.child())
            return self._build.above(plan, [below]), why
        raise _refused(kind)

    def _with(self, columns: Sequence[Any], below: Any, why: str) -> tuple[Any, str]:
        name, added = self._added(why)
        return self._build.project([*columns, added], below), name

    def _grouped(self, plan: Any) -> tuple[Any, str]:
        below, why = self.node(plan.child())
        name, added = self._added(f"flatten(collect_list(`{why}`))")
        if plan.nodeName() == "Aggregate":
            return self._build.with_columns(plan, [*items(plan.aggregateExpressions()), added], below), name
        columns = items(plan.child().output())
        return self._build.aggregate(columns, [*columns, added], below), name

    def _joined(self, plan: Any) -> tuple[Any, str]:
        if (kind := plan.joinType().sql()) == "LEFT SEMI":
            # There is no telling rows of the right that were met from others.
            raise _refused("a semi join")
        (left, one), (right, other) = map(self.node, children(plan))
        joined = self._build.above(plan, [left, right])
        if kind == "LEFT ANTI":
            return joined, one
        # The side that an outer join has no row of, has none to tell of.
        sides = [f"coalesce(`{a}`, slice(`{b}`, 1, 0))" for a, b in ((one, other), (other, one))]
        return self._with(items(plan.output()), joined, f"concat({', '.join(sides)})")

    def _united(self, plan: Any) -> tuple[Any, str]:
        common = f"\N{SECTION SIGN}why{next(self._numbers)}"
        parts: list[Any] = []
        for child in children(plan):
            below, why = self.node(child)
            same = self._build.expression(f"`{why}` AS `{common}`")
            parts.append(self._build.project([*items(child.output()), same], below))
        return self._build.above(plan, parts), common

    def _renamed(self, reference: Any) -> tuple[Any, str]:
        """The definition of a common table expression, under the identities that a reference to it gives columns."""
        definition = self._tables[reference.cteId()]
        below, why = self.node(definition)
        pairs = zip(items(definition.output()), items(reference.output()), strict=True)
        aliases = [
            self._build.alias(pair, other.name(), other.exprId()) if pair.exprId().id() != other.exprId().id() else pair
            for pair, other in pairs
        ]
        renamed, name = self._with(aliases, below, f"`{why}`")
        # Resolved now: Spark gives a relation that is there twice other identities only below what is resolved.
        return plan_of(frame_of(self._own, renamed)), name

    def _added(self, why: str) -> tuple[str, Any]:
        name = f"\N{SECTION SIGN}why{next(self._numbers)}"
        return name, self._build.expression(f"{why} AS `{name}`")


class _Columns:
    """The attributes of a plan by what they are computed from."""

    def __init__(self, plan: Any, inputs: Sequence[str]) -> None:
        self._inputs = inputs
        self._plan = plan
        self._leaves: dict[int, tuple[str, str]] = {}
        self._computed: dict[int, list[Any]] = {}
        """Expressions, one for each branch of a union."""
        self._tables: dict[int, Any] = {}
        self._enter(plan)

    def of_result(self) -> tuple[ColumnOrigin, ...]:
        """The origin of each column of the result."""
        origins: list[ColumnOrigin] = []
        for attribute in items(self._plan.output()):
            sources, expression = self._of(attribute)
            origins.append(ColumnOrigin(attribute.name(), tuple(sorted(sources)), expression))
        return tuple(origins)

    def _of(self, attribute: Any) -> tuple[set[tuple[str, str]], str | None]:
        key: int = attribute.exprId().id()
        found = {self._leaves[key]} if key in self._leaves else set[tuple[str, str]]()
        text: str | None = None
        for expression in self._computed.get(key, []):
            below = [self._of(item) for item in items(expression.references().toSeq())]
            found = found.union(*(sources for sources, _ in below))
            if expression.nodeName() != "AttributeReference":
                text = expression.sql()
            else:
                text = text or next((step for _, step in below if step), None)
        return found, text

    def _enter(self, plan: Any) -> None:
        if (name := input_of(plan, self._inputs)) is not None:
            hidden = (OFFSET, OPERATION)
            output = [item for item in items(plan.child().output()) if item.name() not in hidden]
            self._leaves |= {attribute.exprId().id(): (name, attribute.name()) for attribute in output}
            return
        for child in children(plan):
            self._enter(child)
        for attribute, expression in self._made_by(plan):
            if attribute.exprId().id() != attribute_id(expression):
                self._computed.setdefault(attribute.exprId().id(), []).append(expression)

    def _made_by(self, plan: Any) -> Iterator[tuple[Any, Any]]:
        """What a node computes: attributes, and of what expressions."""
        match plan.nodeName():
            case "Project":
                yield from _aliased(plan.projectList())
            case "Aggregate":
                yield from _aliased(plan.aggregateExpressions())
            case "Generate":
                yield from ((item, plan.generator()) for item in items(plan.generatorOutput()))
            case "Union":
                first, *others = (items(child.output()) for child in children(plan))
                for other in others:
                    yield from zip(first, other, strict=True)
            case "CTERelationDef":
                self._tables[plan.id()] = plan
            case "CTERelationRef":
                yield from zip(items(plan.output()), items(self._tables[plan.cteId()].output()), strict=True)
            case _:
                pass


def _aliased(expressions: Any) -> Iterator[tuple[Any, Any]]:
    return ((item, item.child()) for item in items(expressions) if item.nodeName() == "Alias")


def _steps(plan: Any, inputs: Sequence[str]) -> list[str]:
    """What a plan does, in words, from its leaves up."""
    if (name := input_of(plan, inputs)) is not None:
        return [f"read {name}"]
    steps = [step for child in children(plan) for step in _steps(child, inputs)]
    return steps if plan.nodeName() in _NAMES else [*steps, _step(plan)]


def _step(plan: Any) -> str:
    match plan.nodeName():
        case "Filter":
            return f"keep rows where {plan.condition().sql()}"
        case "Join":
            condition = plan.condition()
            on = f" on {condition.get().sql()}" if condition.isDefined() else ""
            return f"{plan.joinType().sql().lower()} join{on}"
        case "Aggregate":
            by = _sql(plan.groupingExpressions())
            return f"group by {by}" if by else "group all"
        case "Project":
            return f"select {_sql(plan.projectList())}"
        case "Generate":
            return f"generate {plan.generator().sql()}"
        case kind:
            return kind.lower()


def _sql(expressions: Any) -> str:
    return ", ".join(expression.sql() for expression in items(expressions))


def _refused(kind: str) -> UnsupportedFeature:
    return UnsupportedFeature(
        f"Rows cannot be followed through {kind}, of which the query makes use; nothing was explained. Followed are "
        "rows of projections, filters, joins, groups and unions."
    )
