"""Which columns of which tables each column of a Spark frame comes from, as far as the frame's plan says.

The plan is Spark's analyzed one, as JSON: one call into the JVM, whatever the size of the plan. Every attribute in it
has an id (``exprId``); a column comes from the attributes that its expression refers to, and these from theirs, down to
a source, which `as_source` has marked by an alias. What decides which rows there are (a filter, the condition of a
join, the keys of a group) is no origin of a column's values.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from dagster_versioned.engines.spark.catalyst import Json, java_errors, nodes_of, plan_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MARK = "__dv__"
"""Prefix of the alias of a frame that is a source; Spark keeps the names of columns computed from it as they were."""

_EXPRESSIONS = {"Project": "projectList", "Aggregate": "aggregateExpressions", "Window": "windowExpressions"}
"""Members that hold what a node computes."""


class Attribute(NamedTuple):
    """An attribute of the plan: its id, and its name there."""

    id: int
    name: str


class Origin(NamedTuple):
    """A column of a source."""

    source: str
    column: str


def as_source(frame: "DataFrame", source: str) -> "DataFrame":
    """The frame, known as ``source`` to the lineage of what is made of it."""
    return frame.alias(f"{MARK}{source}")


def column_lineage(frame: "DataFrame") -> dict[str, list[Origin]]:
    """The origins of each column that has any, sorted.

    Columns are left out that are made in Python (``mapInArrow``, ``applyInPandas``) or of no source. Empty for a frame
    of Spark Connect, whose client does not have the plan, and where the plan says something unknown: what is shown is
    right, and may be less than all there is.
    """
    try:
        tree, _ = _node(nodes_of(plan_of(frame)), 0)
        return _Lineage(tree).of_columns()
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError, *java_errors()):
        return {}


@dataclass(frozen=True)
class _Node:
    """A node of the plan with its children; ``kind`` is its class without the package."""

    kind: str
    members: Json
    children: "tuple[_Node, ...]" = field(repr=False)


def _node(nodes: Sequence[Json], at: int) -> tuple[_Node, int]:
    """The node at an index of a pre-order list, and the index after its last descendant."""
    raw = nodes[at]
    children: list[_Node] = []
    at += 1
    for _ in range(raw["num-children"]):
        child, at = _node(nodes, at)
        children.append(child)
    return _Node(raw["class"].rpartition(".")[2], raw, tuple(children)), at


class _Lineage:
    """The attributes of a plan by what they are computed from."""

    def __init__(self, plan: _Node) -> None:
        self._plan = plan
        self._computed_from: dict[int, set[int]] = {}
        self._origins: dict[int, set[Origin]] = {}
        self._tables: dict[int, _Node] = {}
        """Definitions of common table expressions by their id."""
        self._enter(plan)

    def of_columns(self) -> dict[str, list[Origin]]:
        columns = {attribute.name: sorted(self._origins_of(attribute.id)) for attribute in self._output(self._plan)}
        return {name: origins for name, origins in columns.items() if origins}

    def _origins_of(self, attribute: int) -> set[Origin]:
        seen: set[int] = set()
        waiting, origins = [attribute], set[Origin]()
        while waiting:
            one = waiting.pop()
            if one not in seen:
                seen.add(one)
                origins |= self._origins.get(one, set())
                waiting += self._computed_from.get(one, ())
        return origins

    def _enter(self, node: _Node) -> None:
        """Learn what the node and everything below it computes; definitions come before what refers to them."""
        for child in node.children:
            self._enter(child)
        match node.kind:
            case "SubqueryAlias" if node.members["identifier"]["name"].startswith(MARK):
                source = node.members["identifier"]["name"].removeprefix(MARK)
                self._origins |= {attribute.id: {Origin(source, attribute.name)} for attribute in self._output(node)}
            case "Generate":
                for attribute in _attributes(node.members["generatorOutput"]):
                    self._derive(attribute.id, self._references(node.members["generator"]))
            case "Union":
                first, *others = (self._output(child) for child in node.children)
                for other in others:
                    self._derive_all(first, other)
            case "CTERelationDef":
                self._tables[node.members["id"]] = node
            case "CTERelationRef":
                self._derive_all(self._output(node), self._output(self._tables[node.members["cteId"]]))
            case _:
                self._expressions(node.members.get(_EXPRESSIONS.get(node.kind, ""), ()))

    def _expressions(self, expressions: Sequence[Sequence[Json]]) -> None:
        for expression in expressions:
            if expression[0]["class"].endswith(".Alias"):
                self._derive(expression[0]["exprId"]["id"], self._references(expression[1:]))

    def _references(self, expression: Sequence[Json]) -> Iterator[int]:
        for part in expression:
            if part["class"].endswith(".AttributeReference"):
                yield part["exprId"]["id"]
            elif "plan" in part:  # a subquery: what it returns
                plan, _ = _node(part["plan"], 0)
                self._enter(plan)
                yield from (attribute.id for attribute in self._output(plan))

    def _derive_all(self, attributes: Sequence[Attribute], sources: Sequence[Attribute]) -> None:
        """By position."""
        for attribute, source in zip(attributes, sources, strict=True):
            self._derive(attribute.id, [source.id])

    def _derive(self, attribute: int, sources: Iterator[int] | Sequence[int]) -> None:
        self._computed_from.setdefault(attribute, set()).update(sources)

    def _output(self, node: _Node) -> list[Attribute]:
        """What the node hands on, in order."""
        match node.kind:
            case _ if "output" in node.members:
                return _attributes(node.members["output"])
            case "Project" | "Aggregate":
                return _attributes(node.members[_EXPRESSIONS[node.kind]])
            case "Window":
                return [*self._output(node.children[0]), *_attributes(node.members["windowExpressions"])]
            case "Generate":
                unrequired = set(node.members["unrequiredChildIndex"])
                below = enumerate(self._output(node.children[0]))
                kept = [attribute for i, attribute in below if i not in unrequired]
                return [*kept, *_attributes(node.members["generatorOutput"])]
            case "Join":
                kind = node.members["joinType"].get("object", "")
                left, right = node.children
                only_left = kind.endswith(("LeftSemi$", "LeftAnti$"))
                return self._output(left) if only_left else [*self._output(left), *self._output(right)]
            case "WithCTE":
                return self._output(node.children[-1])
            case _ if len(node.children) == 1 or node.kind in ("Union", "Intersect", "Except"):
                return self._output(node.children[0])
            case _:
                raise ValueError(f"what {node.kind} hands on is not known")


def _attributes(expressions: Sequence[Sequence[Json]]) -> list[Attribute]:
    return [Attribute(expression[0]["exprId"]["id"], expression[0]["name"]) for expression in expressions]
