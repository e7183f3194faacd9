"""A trace as a tree of lines, as a picture, as a document, and as events of OpenLineage."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from dagster_versioned.__about__ import __version__
from dagster_versioned.features.rendering import Edge, GraphDrawing, Line, Node
from dagster_versioned.proof.lineage import VersionName
from dagster_versioned.proof.trace import Trace, TracedVersion

_SHORT = 8
_FINGERPRINT = len("1:") + 12
_MEMBERS = (
    *("partitions", "log_version", "timestamp", "change", "rows", "size_bytes", "code", "function"),
    *("author", "message", "run", "promoted_from", "checks", "gap"),
)
_PRODUCER = f"https://pypi.org/project/dagster-versioned/{__version__}/"
_SCHEMA = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
_VERSION_FACET = "https://openlineage.io/spec/facets/1-0-1/DatasetVersionDatasetFacet.json"


def tree_lines(trace: Trace, now: datetime | None = None) -> Iterator[str]:
    """A line for each version below the one that it leads from; one that was shown above is not followed again.

    A table whose rows were added to again and again is one line: the versions that they were added to, and below it
    what those were built from.
    """
    now = now or datetime.now(UTC)
    shown: set[VersionName] = set()
    pending: list[tuple[VersionName, str, str, str]] = [(trace.root, "", "", "")]
    while pending:
        name, before_text, connector, below = pending.pop()
        version = trace.versions[name]
        text = f"{before_text}{connector}{version_text(version, now)}"
        if name in shown and trace.edges[name]:
            yield f"{text} (see above)"
            continue
        yield text
        shown.add(name)
        children = [child for child in trace.edges[name] if child != version.before]
        if trace.direction == "up" and version.before is not None:
            onto, more = _earlier(trace, version, shown)
            children += [child for child in more if child not in children]
            yield f"{below}{'├─ ' if children else '└─ '}onto {onto}"
        lines = [("├─ ", "│  ")] * (len(children) - 1) + [("└─ ", "   ")]
        branches = [(child, below, to, below + under) for child, (to, under) in zip(children, lines, strict=False)]
        pending += reversed(branches)


def _earlier(trace: Trace, version: TracedVersion, shown: set[VersionName]) -> tuple[str, list[VersionName]]:
    """The versions that rows were added to, as text, and what those were built from."""
    count, more = 0, dict[VersionName, None]()
    while version.before is not None and version.before in trace.versions:
        version, count = trace.versions[version.before], count + 1
        shown.add(version.name)
        more |= dict.fromkeys(version.parents)
    oldest = f"{version.name.version[:_SHORT]}{_said(' (@{})', version.log_version)}"
    return f"version {oldest}" if count == 1 else f"{count:,} versions, from {oldest} on", list(more)


def version_text(version: TracedVersion, now: datetime) -> str:
    """A version on a line: name, age, change, rows, code, and what is amiss."""
    facts = [
        _said("@{}", version.log_version),
        "" if version.timestamp is None else _age(now - version.timestamp),
        version.change or "",
        _said("{:,} partitions", version.partitions),
        _said("{:,} row" if version.rows == 1 else "{:,} rows", version.rows),
        _said("code {}", version.code and version.code[:_FINGERPRINT]),
        _said("promoted from {}", version.promoted_from),
        _checks_text(version),
    ]
    known = ", ".join(filter(None, facts))
    gap = "" if version.gap is None else f"{'; ' if known else ''}{version.gap}"
    project = "" if version.name.project == "" else f"{version.name.project}."
    return f"{project}{version.name}  {known}{gap}"


def _said(text: str, value: object) -> str:
    """A text with a value in it; nothing where that is not known."""
    return "" if value is None else text.format(value)


def _checks_text(version: TracedVersion) -> str:
    failed = sorted(name for name, passed in version.checks.items() if not passed)
    if failed:
        return f"failed {', '.join(failed)}"
    return f"{len(version.checks)} checks passed" if version.checks else ""


def _age(age: Any) -> str:
    seconds = max(int(age.total_seconds()), 0)
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


def drawing_of(trace: Trace) -> GraphDrawing:
    """The picture of a trace: versions and what leads to which, always from what was there first."""
    places = {name: place for place, name in enumerate(trace.versions)}
    nodes = tuple(
        Node(
            Line(f"{name.project}.{name.table}", change="removed" if version.gap else None),
            tuple(Line(text) for text in _picture_lines(version)),
        )
        for name, version in trace.versions.items()
    )
    pairs = [(name, child) for name, children in trace.edges.items() for child in children]
    if trace.direction == "up":
        pairs = [(child, name) for name, child in pairs]
    edges = tuple(
        Edge(places[first], places[last], "", trace.versions[last].before == first, None) for first, last in pairs
    )
    return GraphDrawing(f"{trace.root.project}.{trace.root}", nodes, edges)


def _picture_lines(version: TracedVersion) -> Iterator[str]:
    name = version.name
    yield f"{name.version[:_SHORT]}{'' if name.partition is None else f' {name.partition}'}"
    if version.rows is not None:
        yield f"{version.rows:,} rows"
    if version.code is not None:
        yield f"code {version.code[:_FINGERPRINT]}"
    if version.gap is not None:
        yield version.gap


def document_of(trace: Trace) -> dict[str, Any]:
    """The trace as JSON: ``versions``, each with an ``id`` by which others name it."""
    ids = {name: number for number, name in enumerate(trace.versions)}
    return {
        "root": ids[trace.root],
        "direction": trace.direction,
        "versions": [
            {
                "id": ids[name],
                "project": name.project,
                "table": name.table,
                "partition": name.partition,
                "environment": name.environment,
                "version": name.version,
                "leads_to": [ids[child] for child in trace.edges[name]],
                "before": None if version.before is None else ids.get(version.before),
                **{member: getattr(version, member) for member in _MEMBERS},
            }
            for name, version in trace.versions.items()
        ],
    }


def open_lineage_events(trace: Trace) -> Iterator[dict[str, Any]]:
    """An event of OpenLineage for each version that was read, with the versions that it was built from as inputs.

    The run of a version is named by it, so that events that are sent again are the same.
    """
    for name, version in trace.versions.items():
        if version.timestamp is None:
            continue
        yield {
            "eventType": "COMPLETE",
            "eventTime": version.timestamp.isoformat(),
            "run": {"runId": str(uuid5(NAMESPACE_URL, f"{name.project}/{name.table}/{name.partition}/{name.version}"))},
            "job": {"namespace": f"dagster-versioned://{name.project}", "name": name.table},
            "inputs": [_dataset(parent) for parent in version.parents],
            "outputs": [_dataset(name)],
            "producer": _PRODUCER,
            "schemaURL": _SCHEMA,
        }


def _dataset(name: VersionName) -> dict[str, Any]:
    facet = {"_producer": _PRODUCER, "_schemaURL": _VERSION_FACET, "datasetVersion": name.version}
    return {"namespace": f"dagster-versioned://{name.project}", "name": name.table, "facets": {"version": facet}}
