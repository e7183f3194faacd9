"""Pictures of a graph of features, and of what changed between two: as text, and for Mermaid.

Names of columns, conditions and code versions are the user's own: whatever is in them is shown, and none is obeyed.
"""

import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from dagster_versioned.features.definitions import INITIAL_CODE_VERSION, Feature, FeatureDep, Lineage
from dagster_versioned.features.graph import FeatureGraph
from dagster_versioned.features.graph_diff import Change, FeatureChange, FieldChange, graph_diff

Format = Literal["text", "mermaid"]
Direction = Literal["TB", "LR"]

_UNWRAPPED = 100_000

_FILLS = {"added": "#d2f4d9", "removed": "#fbd5d5", "changed": "#fdf0c4"}
_LINES = {"added": "#1a7f37", "removed": "#c62828", "changed": "#9a6700"}
_STYLES = {"added": "green", "removed": "red", "changed": "yellow"}


@dataclass(frozen=True, slots=True)
class Line:
    """Something to show of a feature; ``more`` is shown where there is room."""

    text: str
    more: str = ""
    change: Change | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """A feature: what it depends on, which edges show too, and what else is shown of it."""

    title: Line
    lines: tuple[Line, ...] = ()
    deps: tuple[Line, ...] = ()


@dataclass(frozen=True, slots=True)
class Edge:
    """A dependency: of the second feature on the first, both by their places among the nodes."""

    upstream: int
    feature: int
    label: str
    is_optional: bool
    change: Change | None


@dataclass(frozen=True, slots=True)
class GraphDrawing:
    """What a picture shows, in whatever format: one graph, or the comparison of two."""

    title: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    is_comparison: bool = False


def draw(graph: FeatureGraph) -> GraphDrawing:
    """Features with their fields and versions."""
    nodes: list[Node] = []
    for feature in graph:
        versions = graph.versions(feature.key)
        lines: list[Line] = []
        for field in sorted(feature.fields, key=lambda each: each.key):
            code = "" if field.code_version == INITIAL_CODE_VERSION else f"code {field.code_version}"
            parents = ", ".join(ref.text for ref in graph.parents(feature.key, field.key))
            columns = ", ".join(field.columns)
            more = [code, f"from {parents}" if parents else "", f"of {columns}" if columns else ""]
            lines.append(Line(f"{field.key} {versions.fields[field.key]}", "; ".join(filter(None, more))))
        of = "" if feature.project is None else f"; of {feature.project}"
        title = Line(f"{feature.key} {versions.feature}", f"by {', '.join(feature.id_columns)}{of}")
        deps = tuple(Line(f"from {dep.feature}", _dependency_text(dep)) for dep in feature.deps)
        nodes.append(Node(title, tuple(lines), deps))
    title = f"project version {graph.project_version}, features: {len(nodes)}"
    return GraphDrawing(title, tuple(nodes), _edges(graph, graph))


def draw_diff(before: FeatureGraph, after: FeatureGraph) -> GraphDrawing:
    """All features of two graphs, with what changed in those that did."""
    diff = graph_diff(before, after)
    changes = {change.key: change for change in diff.features}
    nodes: list[Node] = []
    for feature in _both(before, after):
        change = changes.get(feature.key)
        if change is None:
            nodes.append(Node(Line(f"{feature.key} {after.versions(feature.key).feature}")))
        else:
            title = Line(f"{feature.key} {_versions(change)}", change.change, change.change)
            nodes.append(Node(title, tuple(_changed_lines(change))))
    versions = _from_to(diff.before, diff.after)
    title = f"project version {versions}, features changed: {len(changes)}, unchanged: {diff.unchanged}"
    return GraphDrawing(title, tuple(nodes), _edges(before, after), is_comparison=True)


def render(drawing: GraphDrawing, how: Format, direction: Direction = "TB") -> str:
    """The picture as a text of a format."""
    if how == "mermaid":
        return "".join(f"{line}\n" for line in _mermaid(drawing, direction))
    stream = io.StringIO()
    Console(file=stream, width=_UNWRAPPED, color_system=None, legacy_windows=False).print(tree(drawing))
    return stream.getvalue()


def tree(drawing: GraphDrawing) -> Tree:
    """The picture for a terminal: features one below the other, of a comparison those that changed."""
    found = Tree(_text(Line(drawing.title)))
    for node in drawing.nodes:
        if drawing.is_comparison and node.title.change is None:
            continue
        branch = found.add(_text(node.title))
        for line in (*node.deps, *node.lines):
            branch.add(_text(line))
    return found


# --- what is shown ----------------------------------------------------------------------------------------------------


def _dependency_text(dep: FeatureDep) -> str:
    """What of a dependency is not as by default."""
    parts = [
        "optional" if dep.optional else "",
        dep.lineage.kind if dep.lineage != Lineage() else "",
        f"on {', '.join(dep.lineage.on)}" if dep.lineage.on else "",
        f"where {dep.filter}" if dep.filter else "",
        *(f"{name} as {other}" for name, other in dep.rename.items()),
        "" if dep.select is None else f"only {', '.join(dep.select) or 'ids'}",
    ]
    return "; ".join(filter(None, parts))


def _changed_lines(change: FeatureChange) -> Iterator[Line]:
    for each in change.definition:
        kind: Change = "added" if each.before is None else "removed" if each.after is None else "changed"
        values = [_json(value) for value in (each.before, each.after) if value not in (None, True)]
        yield Line(" ".join([each.name, " -> ".join(values)]).strip(), kind, kind)
    for field in change.fields:
        yield Line(f"{field.key} {_versions(field)}", "; ".join(_reasons(field)) or field.change, field.change)


def _reasons(field: FieldChange) -> Iterator[str]:
    if field.code:
        yield f"code {_from_to(*field.code)}"
    if field.columns:
        yield f"of columns {_from_to(*(', '.join(names) or 'none' for names in field.columns))}"
    if field.deps_added:
        yield f"now from {', '.join(field.deps_added)}"
    if field.deps_removed:
        yield f"no more from {', '.join(field.deps_removed)}"
    if field.upstream:
        yield f"with {', '.join(field.upstream)}"


def _versions(change: FeatureChange | FieldChange) -> str:
    return _from_to(*(version for version in (change.before, change.after) if version is not None))


def _from_to(*values: str) -> str:
    return " -> ".join(dict.fromkeys(values))


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _both(before: FeatureGraph, after: FeatureGraph) -> list[Feature]:
    return [*after, *(feature for feature in before if feature.key not in after)]


def _edges(before: FeatureGraph, after: FeatureGraph) -> tuple[Edge, ...]:
    """The dependencies of both graphs, those of the later one first."""
    places = {feature.key: place for place, feature in enumerate(_both(before, after))}
    was, now = ({(dep.feature, f.key): dep for f in graph for dep in f.deps} for graph in (before, after))
    edges: list[Edge] = []
    for pair in dict.fromkeys([*now, *was]):
        dep = now.get(pair) or was[pair]
        change: Change | None = "removed" if pair not in now else "added" if pair not in was else None
        label = "" if dep.lineage == Lineage() else dep.lineage.kind
        edges.append(Edge(places[pair[0]], places[pair[1]], label, dep.optional, change))
    return tuple(edges)


# --- as text ---------------------------------------------------------------------------------------------------------


def _text(line: Line) -> Text:
    text = Text(_printable(line.text), style=_STYLES.get(line.change or "", ""))
    return text.append(f"  {_printable(line.more)}", style="dim") if line.more else text


def _printable(text: str) -> str:
    """The text with all escaped that a terminal would obey, or that would end the line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


# --- for Mermaid -----------------------------------------------------------------------------------------------------


def _mermaid(drawing: GraphDrawing, direction: Direction) -> Iterator[str]:
    yield f"flowchart {direction}"
    for place, node in enumerate(drawing.nodes):
        label = "<br/>".join([f"<b>{_entities(node.title.text)}</b>", *map(_entities, _short(node))])
        yield f'  n{place}["{label}"]{f":::{node.title.change}" if node.title.change else ""}'
    for edge in drawing.edges:
        label = f'|"{_entities(edge.label)}"|' if edge.label else ""
        yield f"  n{edge.upstream} {'-.->' if edge.is_optional else '-->'}{label} n{edge.feature}"
    for place, edge in enumerate(drawing.edges):
        if edge.change:
            yield f"  linkStyle {place} stroke:{_LINES[edge.change]}"
    for change in sorted({node.title.change for node in drawing.nodes if node.title.change}):
        yield f"  classDef {change} fill:{_FILLS[change]},stroke:{_LINES[change]},color:#000"


def _short(node: Node) -> Iterable[str]:
    """What a picture has room for: the fields, and in a comparison what changed in them."""
    for line in node.lines:
        yield f"{line.text} {line.change}" if line.change in ("added", "removed") else line.text


def _entities(text: str) -> str:
    """The text with every character as a numeric entity that could mean something in Mermaid, HTML or Markdown."""
    plain = _printable(text)
    return "".join(c if c.isalnum() or c in " -./:,()" else "_" if c == "_" else f"#{ord(c)};" for c in plain)
