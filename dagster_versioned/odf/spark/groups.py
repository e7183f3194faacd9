"""Groups of a query that new events are of: only these are computed again, and compared with what was recorded of them.

That holds for a query that groups the rows of one input, each of them made of one row, and says by which values; what
is new of such an input, or was taken back, is of a group itself. Any other query is computed whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Self, cast

from pyspark.sql import functions as sf

from dagster_versioned.engines.spark.catalyst import PlanBuilder, attribute_id, frame_of, items, plan_of
from dagster_versioned.engines.spark.samples import column
from dagster_versioned.odf.spark.query import is_map

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_NAMES = ("SubqueryAlias", "View")
_KEY, _NEW = "\N{SECTION SIGN}key", "\N{SECTION SIGN}new"


@dataclass(frozen=True)
class Groups:
    """Where a plan groups: the node, those above it from the root down, and the columns of the result with its keys."""

    node: Any
    above: tuple[Any, ...]
    columns: tuple[str, ...]

    @classmethod
    def of(cls, plan: Any, inputs: Sequence[str]) -> Self | None:
        """The groups of a plan, if they can be read off its result, and nothing else of its inputs is asked for."""
        if plan.subqueriesAll().size():
            return None
        above: list[Any] = []
        while plan.nodeName() != "Aggregate":
            if plan.nodeName() not in ("Project", "Filter", *_NAMES):
                return None
            above += [plan] if plan.nodeName() not in _NAMES else []
            plan = plan.child()
        keys = items(plan.groupingExpressions())
        if not keys or not is_map(plan.child(), inputs):
            return None
        columns = [_column_of(key, plan, above) for key in keys]
        return None if None in columns else cls(plan, tuple(above), tuple(cast("list[str]", columns)))

    def keys(self, session: "SparkSession") -> "DataFrame":
        """The keys of the rows that the plan groups, each once."""
        frame = self._keyed(session)
        return frame.select(*(column(f"{_KEY}{i}").alias(f"{_NEW}{i}") for i in range(len(self.columns)))).distinct()

    def only(self, session: "SparkSession", keys: "DataFrame", times: Sequence[str]) -> Any:
        """The plan over the rows of these groups; keys in the columns ``times`` are compared to the millisecond.

        Where the keys are a broadcast, the rows stay in their order.
        """
        same = [self._same(column(f"{_KEY}{i}"), i, times) for i in range(len(self.columns))]
        rows = self._keyed(session).join(keys, reduce(_and, same), "left_semi")
        build = PlanBuilder(session)
        plan = build.above(self.node, [plan_of(rows)])
        for node in reversed(self.above):
            plan = build.above(node, [plan])
        return plan

    def held(self, held: "DataFrame", keys: "DataFrame", names: Mapping[str, str], times: Sequence[str]) -> "DataFrame":
        """The rows of these groups, of a frame that calls the result's columns ``names``."""
        same = [self._same(column(names[name]), i, times) for i, name in enumerate(self.columns)]
        return held.join(keys, reduce(_and, same), "left_semi")

    def _same(self, key: "Column", place: int, times: Sequence[str]) -> "Column":
        new = column(f"{_NEW}{place}")
        if self.columns[place] in times:
            return sf.date_trunc("MILLISECOND", key).eqNullSafe(sf.date_trunc("MILLISECOND", new))
        return key.eqNullSafe(new)

    def _keyed(self, session: "SparkSession") -> "DataFrame":
        """The rows that the plan groups, with their keys."""
        build = PlanBuilder(session)
        keys = items(self.node.groupingExpressions())
        named = [build.alias(key, f"{_KEY}{i}") for i, key in enumerate(keys)]
        below = self.node.child()
        return frame_of(session, build.project([*items(below.output()), *named], below))


def _column_of(key: Any, node: Any, above: Sequence[Any]) -> str | None:
    """The column of the result that is a key, and nothing else."""
    ids = {
        one.exprId().id()
        for one in items(node.aggregateExpressions())
        if (one.child() if one.nodeName() == "Alias" else one).semanticEquals(key)
    }
    for plan in reversed(above):
        if plan.nodeName() == "Project":
            ids = {
                one.exprId().id()
                for one in items(plan.projectList())
                if attribute_id(one.child() if one.nodeName() == "Alias" else one) in ids
            }
    root = above[0] if above else node
    return next((one.name() for one in items(root.output()) if one.exprId().id() in ids), None)


def _and(one: "Column", other: "Column") -> "Column":
    return one & other
