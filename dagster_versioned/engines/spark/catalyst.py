"""Spark's own plans: all that this package takes of Spark beside its public interface.

A plan, its nodes and their expressions are objects of the JVM. Classic PySpark reaches them, the client of Spark
Connect does not. What they are relied on for is written down in ``tests/test_upstream_characterization.py``.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from dagster_versioned.engines.spark.releases import release

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Json: TypeAlias = Mapping[str, Any]
Plan: TypeAlias = Any
"""A node of a logical plan, with those below it."""
Expression: TypeAlias = Any


def java_errors() -> tuple[type[Exception], ...]:
    """What a call into the JVM raises that PySpark has no error of its own for; none where Py4J is not loaded."""
    protocol = sys.modules.get("py4j.protocol")  # the client of Spark Connect has none
    return () if protocol is None else (protocol.Py4JError,)


def spark_errors() -> tuple[type[Exception], ...]:
    """What PySpark raises for what Spark refuses; Py4J's error stays where it knows no better, in 3.5 most of all."""
    errors, protocol = sys.modules.get("pyspark.errors"), sys.modules.get("py4j.protocol")
    found = () if errors is None else (errors.PySparkException,)
    return found if protocol is None else (*found, protocol.Py4JJavaError)


def is_classic(frame_type: type) -> bool:
    """Whether frames of this type are of classic PySpark, beside a JVM; those of Spark Connect are not."""
    if release() < (4, 0):  # where classic frames are of the class that annotations name
        from pyspark.sql.utils import is_remote

        return frame_type.__module__ == "pyspark.sql.dataframe" and not is_remote()
    return frame_type.__module__.startswith("pyspark.sql.classic")


def has_plans(session: "SparkSession") -> bool:
    """Whether the plans of a session can be reached."""
    return hasattr(session, "_jsparkSession")


def running_tasks(session: "SparkSession", tag: str) -> int:
    """How many tasks run of the jobs with a tag, and how many of the jobs; a job that failed may have tasks still."""
    tagged: list[int] = list(cast("Any", session.sparkContext)._jsc.sc().statusTracker().getJobIdsForTag(tag))
    tracker = session.sparkContext.statusTracker()
    jobs = [job for number in tagged if (job := tracker.getJobInfo(number)) is not None]
    stages = [tracker.getStageInfo(number) for job in jobs for number in cast("Any", job.stageIds)]
    running = sum(job.status == "RUNNING" for job in jobs)
    return running + sum(stage.numActiveTasks for stage in stages if stage is not None)


# --- whole plans -----------------------------------------------------------------------------------------------------


def plan_of(frame: "DataFrame") -> Plan:
    """The analysed plan of a frame."""
    return cast("Any", frame)._jdf.queryExecution().analyzed()


def frame_of(session: "SparkSession", plan: Plan) -> "DataFrame":
    """A frame of an analysed plan, of whatever session, in this one."""
    jvm, inner = cast("Any", session)._jvm, cast("Any", session)._jsparkSession
    if release() < (4, 0):  # before there was another kind of either
        from pyspark.sql import DataFrame

        return DataFrame(jvm.org.apache.spark.sql.Dataset.ofRows(inner, plan), session)
    from pyspark.sql.classic.dataframe import DataFrame

    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(inner, plan), session)


def metadata_column(frame: "DataFrame") -> "Column":
    """What Spark knows of the file of each row, whatever the frame's own columns are called."""
    if release() >= (4, 0):
        return frame.metadataColumn("_metadata")
    from pyspark.sql import Column
    from pyspark.sql import functions as sf

    if not is_classic(type(frame)):
        return sf.col("_metadata")  # which a column of this name would hide: 3.5's client cannot say it otherwise
    return Column(cast("Any", frame)._jdf.metadataColumn("_metadata"))


def optimized_text(frame: "DataFrame") -> str:
    """The optimized plan of a frame, a line a node; it is the one that runs, so it is not made in vain."""
    return str(cast("Any", frame)._jdf.queryExecution().optimizedPlan().toString())


def parsed(session: "SparkSession", text: str) -> Plan:
    """The plan of a statement as it is written. Raises one of `spark_errors` for what is none."""
    return cast("Any", session)._jsparkSession.sessionState().sqlParser().parsePlan(text)


def analysed(session: "SparkSession", plan: Plan) -> Plan:
    """The analysed plan of a parsed one; a command in it does not run. Raises PySpark's own error."""
    jvm, inner = cast("Any", session)._jvm, cast("Any", session)._jsparkSession
    skip = jvm.org.apache.spark.sql.execution.CommandExecutionMode.SKIP()
    found = inner.sessionState().executePlan(plan, skip)
    found.assertAnalyzed()
    return found.analyzed()


# --- nodes -----------------------------------------------------------------------------------------------------------


def nodes_of(plan: Plan) -> Sequence[Json]:
    """The nodes of a plan and of all in it, from its root down, each with its ``class`` and ``num-children``."""
    return json.loads(plan.toJSON())


def items(sequence: Any) -> list[Any]:
    """The items of a sequence of Scala's."""
    return [sequence.apply(at) for at in range(sequence.size())]


def children(plan: Plan) -> list[Plan]:
    """The nodes right below a node."""
    return items(plan.children())


def attribute_id(expression: Expression) -> int | None:
    """The id of the attribute that an expression is; ``None`` if it is more than that."""
    return expression.exprId().id() if expression.nodeName() == "AttributeReference" else None


class PlanBuilder:
    """Makes nodes and expressions in the JVM of a session."""

    def __init__(self, session: "SparkSession") -> None:
        self._jvm: Any = cast("Any", session)._jvm
        self._parser: Any = cast("Any", session)._jsparkSession.sessionState().sqlParser()
        self._none: Any = self._jvm.scala.Option.empty()

    def sequence(self, items: Sequence[Any]) -> Any:
        """A sequence of Scala's."""
        return self._jvm.PythonUtils.toSeq(list(items))

    def expression(self, text: str) -> Expression:
        """The expression of a text in SQL, not resolved."""
        return self._parser.parseExpression(text)

    def alias(self, of: Expression, name: str, expression_id: Any = None) -> Expression:
        """An expression under a name, and under an id of its own unless one is given."""
        expressions = self._jvm.org.apache.spark.sql.catalyst.expressions
        known = expression_id or expressions.NamedExpression.newExprId()
        return expressions.Alias(of, name, known, self.sequence([]), self._none, self.sequence([]))

    def project(self, columns: Sequence[Expression], below: Plan) -> Plan:
        """A node that computes columns of the rows below."""
        return self._jvm.org.apache.spark.sql.catalyst.plans.logical.Project(self.sequence(columns), below)

    def aggregate(self, keys: Sequence[Expression], columns: Sequence[Expression], below: Plan) -> Plan:
        """A node that computes columns of each group of the rows below."""
        logical = self._jvm.org.apache.spark.sql.catalyst.plans.logical
        hint = [] if release() < (4, 0) else [self._none]  # which 4.0 added
        return logical.Aggregate(self.sequence(keys), self.sequence(columns), below, *hint)

    def with_columns(self, aggregate: Plan, columns: Sequence[Expression], below: Plan) -> Plan:
        """An aggregate over another node, with other columns and the keys that it has."""
        hint = [] if release() < (4, 0) else [aggregate.hint()]
        return aggregate.copy(aggregate.groupingExpressions(), self.sequence(columns), below, *hint)

    def above(self, node: Plan, children: Sequence[Plan]) -> Plan:
        """A node over others than it has."""
        return node.withNewChildren(self.sequence(children))
