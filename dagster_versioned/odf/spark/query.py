"""Queries of SQL transforms on Spark: analysed on Spark's own plan before anything runs, and refused if their result
could differ from one run to the next.

They are analysed, and run, in a session of their own: it sees the inputs and nothing else that the user's session has
(temporary views, functions, variables), and what settings mean for values is pinned in it, so that a query means the
same wherever it is replayed. Source: seed 002 ("Query": deterministic, pure, stream/batch agnostic).
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

from dagster_versioned.engines.spark.catalyst import (
    Json,
    Plan,
    analysed,
    children,
    frame_of,
    has_plans,
    nodes_of,
    parsed,
    spark_errors,
)
from dagster_versioned.errors import InvalidInput, UnsupportedFeature
from dagster_versioned.odf.transform_query import QueryKind, TransformQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.caseSensitive": "false",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    "spark.sql.groupByOrdinal": "true",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.sql.mapKeyDedupPolicy": "EXCEPTION",
    "spark.sql.orderByOrdinal": "true",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.parser.quotedRegexColumnNames": "false",
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.variable.substitute": "false",
}
"""What decides what a query means: as in a new Spark, and nothing of the environment or of files."""

_MEANING = re.compile(
    r"spark\.sql\.(ansi|charAsVarchar|chunkBase64String|collation|columnNameOfCorruptRecord|function|groupByAliases|icu|"
    r"legacy|parser|preserveCharVarcharTypeInfo|readSideCharPadding|window)\b"
)
"""What else decides it, and is as in a new Spark unless it was set as Spark was started."""

_ONE_TASK = {
    # Without exchanges, and with one way to join, rows come in the order of the inputs.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.join.preferSortMergeJoin": "true",
    # It takes away the order of what is joined.
    "spark.sql.optimizer.excludedRules": "org.apache.spark.sql.catalyst.optimizer.EliminateSorts",
    "spark.sql.shuffle.partitions": "1",
}

_MAP_NODES = {"Project", "Filter", "SubqueryAlias", "View", "Generate"}
_NODES = _MAP_NODES | {
    *("Aggregate", "Join", "LateralJoin", "Union", "Intersect", "Except", "Distinct", "Deduplicate", "Window", "Sort"),
    *("GlobalLimit", "LocalLimit", "Offset", "Expand", "Pivot", "Unpivot", "OneRowRelation", "LocalRelation", "Range"),
    *("WithCTE", "CTERelationDef", "CTERelationRef", "ResolvedHint", "ResolvedInlineTable"),
}
"""Nodes of a plan that compute rows from rows, reach nothing else, and do not deal rows to tasks."""

_UNSTABLE = {
    *("CurrentTimestamp", "CurrentTimestampLike", "CurrentDate", "CurrentTime", "Now", "LocalTimestamp"),
    *("CurrentBatchTimestamp", "CurrentTimeZone", "CurrentUser", "SessionUser", "CurrentCatalog", "CurrentDatabase"),
    *("CurrentPath", "KllSketchAggBigint", "KllSketchAggFloat", "KllSketchAggDouble"),
    *("SparkVersion", "SparkPartitionID", "MonotonicallyIncreasingID", "InputFileName", "InputFileBlockStart"),
    *("InputFileBlockLength", "Rand", "Randn", "Randstr", "Uniform", "Uuid", "Shuffle", "CallMethodViaReflection"),
    *("VariableReference", "AesEncrypt", "TryReflect"),
}
"""Expressions of Spark's own whose value is not made of their arguments alone."""

_EARLY = {"version", "aes_encrypt", "current_path", "from_protobuf", "to_protobuf"}
"""Functions of which the value may be all that a plan has."""

_BY_CODE = {"PythonUDF", "PythonUDAF", "PythonUDTF", "ScalaUDF", "ScalaUDAF", "ApplyFunctionExpression"}
"""Expressions that run code which no plan shows."""

_FROM_FILES = {"FromProtobuf", "ToProtobuf"}
"""Expressions that read a file, of which no chain says anything."""

_PARSED = {"ParseToTimestamp", "ParseToDate"}
"""Functions that cast, as a plan shows only when it is optimised."""

_IN_ANY_ORDER = {
    *("Count", "CountIf", "Min", "Max", "BoolAnd", "BoolOr", "BitAndAgg", "BitOrAgg", "BitXorAgg", "Sum", "Average"),
    *("HyperLogLogPlusPlus", "RegrCount", "Every", "Some"),
}
"""Aggregates that say the same of rows in any order; but of floats, sums differ, and which zero is the least."""

_OTHERS = "org.apache.spark.sql.catalyst.expressions."
_SPECIAL = re.compile(r"\s*(epoch|now|today|tomorrow|yesterday)\b", re.IGNORECASE)
_TIMES = {"DATE", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ", "TIMESTAMPLTZ", "TIMESTAMPNTZ", "TIMESTAMPTZ"}


@dataclass(frozen=True)
class AnalysedQuery:
    """A query that may run: its plan, over the views as they were when it was analysed.

    ``in_order``: its values depend on the order of rows (floats that are summed, a limit, a rank among equals), so it
    is to run in one task, over rows in a known order.
    """

    plan: Plan
    kind: QueryKind
    in_order: bool

    def frame(self, session: "SparkSession") -> "DataFrame":
        """The result."""
        return frame_of(session, self.plan)


def query_session(session: "SparkSession") -> "SparkSession":
    """A session for the queries of one transform. Raises `UnsupportedFeature` for one of Spark Connect."""
    if not has_plans(session):
        raise UnsupportedFeature(
            "SQL transforms are analysed on Spark's plan, which the client of Spark Connect does not have. Nothing was "
            "written. Run them with a classic session."
        )
    own = session.newSession()
    for name in filter(_MEANING.match, (row["key"] for row in own.sql("SET").collect())):
        own.conf.unset(name)
    for name, value in _SETTINGS.items():
        own.conf.set(name, value)
    return own


def in_one_task(session: "SparkSession") -> None:
    """Run what the session runs from here on in one task, as far as its inputs are of one partition."""
    for name, value in _ONE_TASK.items():
        session.conf.set(name, value)


def analyse(session: "SparkSession", query: TransformQuery) -> AnalysedQuery:
    """Analyse a query over the views of a `query_session`, which are its inputs and have their names.

    Views of its steps are added to the session. Raises `InvalidInput`, which names the expression, for what is no
    query of Spark's, for tables that are no inputs, and for whatever could have another value in another run: random
    numbers, the present time, user or session, functions in Python or Java.
    """
    whole, in_order = False, False
    plan: Any = None
    views = {name.casefold() for name in query.inputs}
    for step in query.steps:
        plan = _analysed(session, step.query)
        found = _PlanReading(step.query, views, query.inputs)
        found.read(nodes_of(plan))
        if not plan.deterministic():
            raise refused(step.query, "it has an expression that is not deterministic", "Leave it out.")
        whole, in_order = whole or found.whole, in_order or found.in_order
        if step.alias is not None:
            frame_of(session, plan).createOrReplaceTempView(f"`{step.alias}`")
            views.add(step.alias.casefold())
    is_map = not whole and not query.temporal_tables and _reads(plan, query.inputs) == 1
    return AnalysedQuery(plan, QueryKind.MAP if is_map else QueryKind.WHOLE, in_order)


def _analysed(session: "SparkSession", text: str) -> Any:
    try:
        plan = parsed(session, text)
        # These would run as they are analysed.
        if plan.nodeName() in ("CompoundBody", "SingleStatement") or "ExecuteImmediate" in plan.nodeName():
            raise refused(text, "it is a script", "Write a query: SELECT …")
        _refuse_computed_early(text)
        return analysed(session, plan)
    except spark_errors() as error:
        sentence = re.split(r"\n\n==|JVM stacktrace|\n\tat ", str(error), maxsplit=1)[0]
        message = " ".join(sentence.split())
        raise refused(
            text,
            f"Spark cannot analyse it: {message:.600}",
            "Correct it; it sees nothing but its inputs, with their event time and data.",
        ) from error


class _PlanReading:
    """What the plan of one step says, below which the inputs are not looked into."""

    def __init__(self, text: str, views: set[str], named: Sequence[str]) -> None:
        self._text, self._views, self._named = text, views, named
        self.whole = False
        # Which of several texts that are equal stands for them depends on their order.
        self.in_order = any(token.text.upper() == "COLLATE" for token in _tokens(text))

    def read(self, nodes: Sequence[Json]) -> None:
        """Look at the nodes of a plan, in pre-order."""
        at = 0
        while at < len(nodes):
            node = nodes[at]
            kind = _kind(node)
            if kind not in _NODES or (kind == "View" and not self._is_known(node)):
                raise refused(
                    self._text,
                    f"{_table(node) or _words(kind)} is none of its inputs ({', '.join(self._named):.300}), nor "
                    "computed from them alone",
                    "Name every table that it reads among the inputs.",
                )
            self.whole |= kind not in _MAP_NODES and not kind.startswith(("WithCTE", "CTERelation"))
            self.in_order |= kind in ("Window", "GlobalLimit", "LocalLimit", "Offset", "Deduplicate")
            for member in node.values():
                self._member(member)
            at = _after(nodes, at) if kind == "View" else at + 1

    def _is_known(self, view: Json) -> bool:
        """Whether a view is one of an input or a step, and none of a catalog, which may have the name as well."""
        name = view["desc"]["identifier"]
        return bool(view["isTempView"]) and "database" not in name and name["table"].casefold() in self._views

    def _member(self, member: Any) -> None:
        """A member of a node: an expression is a list of its parts in pre-order."""
        if not isinstance(member, list):
            return
        parts = cast("list[Any]", member)
        if parts and isinstance(parts[0], dict) and "num-children" in parts[0]:
            if ".plans.logical." in parts[0]["class"]:
                self.read(parts)
            else:
                self._expression(parts)
        else:
            for part in parts:
                self._member(part)

    def _expression(self, parts: Sequence[Json]) -> None:
        for at, part in enumerate(parts):
            kind = _kind(part)
            self._require_stable(part, kind)
            is_cast = kind == "Cast" and _is_time(part.get("dataType"))
            if is_cast or (kind in _PARSED and part["num-children"] == 1):
                self._cast(parts, at)
            if kind == "AggregateExpression":
                self._aggregate(parts, at)
            if "plan" in part:  # of a subquery
                self.whole = True
                self.read(part["plan"])

    def _require_stable(self, part: Json, kind: str) -> None:
        """Raise `InvalidInput` for an expression that may have another value in another run."""
        if kind in _BY_CODE:
            raise self._unstable(str(part.get("name") or part.get("udfName") or kind), "runs code of its own")
        if kind in _UNSTABLE:
            raise self._unstable(_words(kind) + "()", "has another value in another run")
        if kind in _FROM_FILES:
            raise self._unstable(_words(kind) + "()", "reads a file")
        if not part["class"].startswith(_OTHERS):
            raise self._unstable(_words(kind) + "()", "is not known to have one value in every run")

    def _aggregate(self, parts: Sequence[Json], at: int) -> None:
        function = parts[at + 1]
        kind = _kind(function)
        types = {str(part.get("dataType")) for part in parts[at + 1 : _after(parts, at)]}
        floats = kind in ("Sum", "Average", "Min", "Max") and any("float" in name or "double" in name for name in types)
        exact = kind != "Average" or any(name.startswith("decimal") for name in types)
        self.in_order |= kind not in _IN_ANY_ORDER or floats or not exact

    def _cast(self, parts: Sequence[Json], at: int) -> None:
        """Texts such as 'now' become the present time where they are cast to one."""
        below = parts[at + 1 : _after(parts, at)]
        if any(_kind(part).endswith(("Reference", "Subquery")) for part in below):
            return
        (value, *more) = below
        text = value.get("value")
        if more or (_kind(value) == "Literal" and isinstance(text, str) and _SPECIAL.match(text)):
            kind = parts[at].get("dataType", "date")
            raise self._unstable(f"cast({text or _words(_kind(value))!r} AS {kind})", "may be a time")

    def _unstable(self, expression: str, why: str) -> InvalidInput:
        return refused(self._text, f"{expression} {why}", "Compute with the columns of the inputs alone.")


def _refuse_computed_early(text: str) -> None:
    """Refuse what no plan shows, for Spark computes it before there is one.

    That are literals such as ``timestamp'now'``, and functions that stand in ``VALUES``.
    """
    for token, following in pairwise(_tokens(text)):
        is_text = following.token_type.name.endswith("STRING")
        # Spark takes escapes such as '\u006f' for what they stand for, and no other time needs any.
        escaped = "\\" in text[following.start : following.end + 1]
        if token.text.upper() in _TIMES and is_text and (escaped or _SPECIAL.match(following.text)):
            raise refused(
                text,
                f"{token.text}'{following.text}' is or may be the present time, which has another value in another run",
                "Compute with the columns of the inputs alone.",
            )
        if token.text.casefold() in _EARLY and following.text == "(":
            raise refused(
                text,
                f"{token.text.casefold()}() has another value in another run",
                "Compute with the columns of the inputs alone.",
            )


def _tokens(text: str) -> list[Any]:
    from sqlglot.dialects.spark import Spark
    from sqlglot.errors import SqlglotError

    try:
        return list(Spark().tokenize(text))
    except SqlglotError as error:
        raise refused(text, f"it cannot be read: {error}", "Write it in plain SQL of Spark.") from error


def input_of(plan: Any, inputs: Collection[str]) -> str | None:
    """The input of which a node of a plan is the view, as ``inputs`` has its name."""
    if plan.nodeName() != "View":
        return None
    name = plan.desc().identifier().table().casefold()
    return next((known for known in inputs if known.casefold() == name), None)


def _reads(plan: Any, inputs: Collection[str]) -> int:
    """How often a plan reads inputs."""
    return 1 if input_of(plan, inputs) else sum(_reads(child, inputs) for child in children(plan))


def is_map(plan: Any, inputs: Collection[str]) -> bool:
    """Whether each row of a plan, which has no subqueries, is made of one row of the one input that it reads."""
    if input_of(plan, inputs):
        return True
    below = children(plan)
    return plan.nodeName() in _MAP_NODES and len(below) == 1 and is_map(below[0], inputs)


def _kind(part: Json) -> str:
    return str(part["class"]).rpartition(".")[2].rstrip("$")


def _after(parts: Sequence[Json], at: int) -> int:
    """The index after the last descendant of a part of a pre-order list."""
    left = 1
    while left:
        left += parts[at]["num-children"] - 1
        at += 1
    return at


def _is_time(data_type: object) -> bool:
    return str(data_type).startswith(("date", "timestamp"))


def _table(node: Json) -> str:
    if "desc" in node:
        named = node["desc"]["identifier"]
        return f"View {'.'.join(named[part] for part in ('database', 'table') if part in named):.200}"
    for name in ("identifier", "tableMeta", "catalogTable", "name"):
        if node.get(name):
            return f"{_kind(node)} {node[name]!s:.200}"
    return ""


def _words(kind: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind).lower()


def refused(text: str, reason: str, fix: str) -> InvalidInput:
    """The error for a query that may not run."""
    return InvalidInput(f"The query {' '.join(text.split())!r:.300} is refused: {reason}. Nothing was run. {fix}")
