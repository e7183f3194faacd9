"""Pictures of a report, as SVG without a script, a font or an address: lineage of exact versions, and the timeline."""

from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from dagster_versioned.proof.html import Html, element
from dagster_versioned.proof.lineage import VersionName
from dagster_versioned.proof.trace import Trace, TracedVersion
from dagster_versioned.tables.history import Version

SHOWN = 60
"""Versions that a picture of lineage has; of more, those nearest to the one that it is of."""

_WIDTH, _HEIGHT, _ACROSS, _DOWN = 216, 76, 56, 18
_LINE = 15
_LETTERS = 29
_BAR, _GAP, _TALL = 14, 4, 96


def lineage_picture(trace: Trace) -> Html:
    """The versions of a trace as boxes, oldest at the left, and lines from each to what was built from it."""
    names = list(trace.versions)[:SHOWN]
    shown = frozenset(names)
    leads = {name: [other for other in trace.edges[name] if other in shown] for name in names}
    columns = _columns(leads)
    if trace.direction == "up":
        columns.reverse()
    places = {name: (x, y) for x, column in enumerate(columns) for y, name in enumerate(column)}
    width = len(columns) * (_WIDTH + _ACROSS) - _ACROSS
    height = max(map(len, columns)) * (_HEIGHT + _DOWN)
    lines = [_way(trace, places, name, other) for name, others in leads.items() for other in others]
    boxes = [_box(trace.versions[name], *places[name], is_root=name == trace.root) for name in names]
    return element(
        "svg",
        element("title", f"What {trace.root} was built from"),
        *lines,
        *boxes,
        viewBox=f"-2 -2 {width + 4} {height + 4}",
        width=width + 4,
        height=height + 4,
        role="img",
        class_="lineage",
    )


def _way(trace: Trace, places: Mapping[VersionName, tuple[int, int]], name: VersionName, other: VersionName) -> Html:
    """The line from what was there first."""
    first, last = (other, name) if trace.direction == "up" else (name, other)
    return _line(places[first], places[last], "before" if trace.versions[name].before == other else "built")


def _columns(leads: Mapping[VersionName, Sequence[VersionName]]) -> list[list[VersionName]]:
    """By the longest way from the version that the trace is of; within, beside what leads there."""
    depths = _depths(leads)
    by_depth: dict[int, list[VersionName]] = {}
    for name in leads:
        by_depth.setdefault(depths[name], []).append(name)
    found = [by_depth[depth] for depth in sorted(by_depth)]
    for nearer, further in pairwise(found):
        rank = {name: number for number, name in enumerate(nearer)}
        above = {name: [rank[each] for each in nearer if name in leads[each]] for name in further}
        further.sort(key=lambda name: sum(above[name]) / len(above[name]) if above[name] else 0)
    return found


def _depths(leads: Mapping[VersionName, Sequence[VersionName]]) -> Mapping[VersionName, int]:
    try:
        order = list(TopologicalSorter(leads).static_order())[::-1]
    except CycleError:  # which no hash can be, and an altered log can claim
        order = list(leads)
    depth = dict.fromkeys(order, 0)
    for name in order:
        for other in leads[name]:
            depth[other] = max(depth[other], depth[name] + 1) if depth[name] < len(order) else depth[other]
    return depth


def _line(first: tuple[int, int], last: tuple[int, int], kind: str) -> Html:
    """From the right of a box to the left of another; below those that are between the two."""
    (x1, y1), (x2, y2) = (_corner(*first), _corner(*last))
    x1, y1, y2 = x1 + _WIDTH, y1 + _HEIGHT / 2, y2 + _HEIGHT / 2
    bend = _ACROSS / 2
    if x2 - x1 <= _ACROSS:
        way = f"M{x1:g} {y1:g}C{x1 + bend:g} {y1:g} {x2 - bend:g} {y2:g} {x2:g} {y2:g}"
    else:
        low = y1 + (_HEIGHT + _DOWN) / 2
        down = f"C{x1 + bend:g} {y1:g} {x1 + bend:g} {low:g} {x1 + _ACROSS:g} {low:g}"
        up = f"C{x2 - bend:g} {low:g} {x2 - bend:g} {y2:g} {x2:g} {y2:g}"
        way = f"M{x1:g} {y1:g}{down}H{x2 - _ACROSS:g}{up}"
    return element("path", d=way, class_=kind)


def _corner(column: int, row: int) -> tuple[float, float]:
    return column * (_WIDTH + _ACROSS), row * (_HEIGHT + _DOWN)


def _box(version: TracedVersion, column: int, row: int, *, is_root: bool) -> Html:
    x, y = _corner(column, row)
    kind = "gap" if version.gap else "root" if is_root else "version"
    texts = [
        element("text", _cut(text), x=x + 10, y=y + 19 + number * _LINE, class_="name" if number == 0 else None)
        for number, text in enumerate(_texts(version))
    ]
    whole = element("title", "; ".join(_texts(version)))
    box = element("rect", x=x, y=y, width=_WIDTH, height=_HEIGHT, rx=6, class_=kind)
    return element("g", whole, box, *texts)


def _texts(version: TracedVersion) -> list[str]:
    name = version.name
    where = "" if name.partition is None else f" {name.partition}"
    in_ = "" if name.environment is None else f" in {name.environment}"
    counted = "" if version.rows is None else f"{version.rows:,} {'row' if version.rows == 1 else 'rows'}"
    when = "" if version.timestamp is None else f"{version.timestamp:%Y-%m-%d %H:%M}"
    code = "" if version.code is None else f"code {version.code[:14]}"
    facts = ", ".join(filter(None, (counted, when)))
    return [f"{name.table}", f"{name.version[:8]}{where}{in_}", *filter(None, (facts, version.gap or code))]


def _cut(text: str) -> str:
    return text if len(text) <= _LETTERS else f"{text[: _LETTERS - 1]}…"


def timeline_picture(versions: Sequence[Version], shown: Version) -> Html:
    """A bar for the rows of each version, oldest first; the one that a report is of stands out."""
    most = max((rows for version in versions if (rows := rows_of(version)) is not None), default=0) or 1
    return element(
        "svg",
        element("title", f"Rows of {len(versions)} versions"),
        *_bars(versions, shown, most),
        element("line", x1=0, y1=_TALL, x2=len(versions) * (_BAR + _GAP), y2=_TALL, class_="axis"),
        viewBox=f"0 0 {len(versions) * (_BAR + _GAP)} {_TALL + 2}",
        width=len(versions) * (_BAR + _GAP),
        height=_TALL + 2,
        role="img",
        class_="timeline",
    )


def _bars(versions: Sequence[Version], shown: Version, most: int) -> Iterator[Html]:
    for number, version in enumerate(versions):
        rows = rows_of(version)
        tall = max(2.0, (rows or 0) / most * (_TALL - 6))
        kind = "root" if version == shown else "gap" if version.gone or rows is None else version.change
        text = f"@{version.log_version}: {'no rows known' if rows is None else f'{rows:,} rows'}"
        yield element(
            "rect",
            element("title", text),
            x=number * (_BAR + _GAP),
            y=_TALL - tall,
            width=_BAR,
            height=tall,
            class_=kind,
        )


def rows_of(version: Version) -> int | None:
    """How many rows a version has, as its log says."""
    return None if version.raw is None else version.raw["identity"]["nrow"]
