"""What becomes of each stale cell now: which of them run, which wait and for what, and as which runs.

Pure, as `find` is, whose findings it takes: heads change rarely, and what runs meanwhile changes all the time.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from dagster_versioned.projects.staleness import StaleCell, cell_text

Cell = tuple[str, str | None]
"""A unit (assets that run together) or an upstream by name, and a partition of it."""

Standing = Literal[
    "ready", "waiting", "running", "tried", "made", "behind", "unchecked", "absent", "held", "unreadable"
]
"""What becomes of a stale cell now: it runs; it waits for an upstream; a run of it, or its promotion, is under way, or
a draft of it is judged; a run for this very state has failed, or was successful and left it as it is, so that something
must change first; a value that it reads is not current and is not about to be; a blocking check has not passed for a
version that it would read; an upstream does not exist; it is held; it cannot be read."""

ABOUT_TO_CHANGE: frozenset[Standing] = frozenset({"ready", "waiting", "running"})


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of a stale cell now, and because of what: an upstream cell, a run, who holds it."""

    standing: Standing
    because: str = ""


def plan(
    findings: Iterable[tuple[Cell, StaleCell]],
    upstreams: Callable[[Cell], Iterable[Cell]],
    running: Callable[[Cell], str | None],
    tried: Callable[[Cell, StaleCell], Decision | None],
    unchecked: Callable[[Cell], str | None] | None = None,
    values: Callable[[Cell], Iterable[Cell]] = lambda _: (),
) -> dict[Cell, Decision]:
    """What becomes of each stale cell.

    ``findings`` come upstream first. A cell waits for its direct upstreams alone: were it to wait for all that is
    above it, a source that changes faster than a long chain runs would keep the end of the chain from ever running.
    What nobody is going to run (it is held, was tried, or waits for a check) is not waited for, unless it makes
    ``values``: what is built from an old one is not found stale later on. ``running`` says which
    run, draft or promotion, ``tried`` which run, ``unchecked`` which check.
    """
    decisions: dict[Cell, Decision] = {}
    run_of = cache(running)

    def is_about_to_change(cell: Cell) -> bool:
        return (cell in decisions and decisions[cell].standing in ABOUT_TO_CHANGE) or run_of(cell) is not None

    def is_left_old(cell: Cell) -> bool:
        return cell in decisions and decisions[cell].standing != "made"

    def hindrance(cell: Cell, finding: StaleCell) -> Decision | None:
        above = next(
            (upstream for upstream in upstreams(cell) if upstream != cell and is_about_to_change(upstream)), None
        )
        if above is not None:
            return Decision("waiting", cell_text(*above))
        if (value := next(filter(is_left_old, values(cell)), None)) is not None:
            return Decision("behind", f"{cell_text(*value)}: {decisions[value].because}")
        if (ended := tried(cell, finding)) is not None:
            return ended
        why = None if unchecked is None else unchecked(cell)
        return None if why is None else Decision("unchecked", why)

    for cell, finding in findings:
        decisions[cell] = _hindrance(finding, run_of(cell)) or hindrance(cell, finding) or Decision("ready")
    return decisions


def _hindrance(finding: StaleCell, run: str | None) -> Decision | None:
    """What keeps a cell from running, whatever its upstreams are about to do."""
    if finding.held is not None:
        by = f" by {finding.held.by}" if finding.held.by else ""
        return Decision("held", f"held{by}: {finding.held.why}")
    if run is not None:
        return Decision("running", run)
    if finding.unreadable is not None:
        return Decision("unreadable", finding.unreadable)
    return Decision("absent", finding.absent) if finding.absent else None


def runs_of(cells: Sequence[str], order: Mapping[str, int], longest: int) -> list[list[str]]:
    """Partitions as contiguous ranges of at most ``longest``, by their place in the order of all partitions."""
    ranges: list[list[str]] = []
    for key in sorted(cells, key=order.__getitem__):
        if ranges and len(ranges[-1]) < longest and order[key] == order[ranges[-1][-1]] + 1:
            ranges[-1].append(key)
        else:
            ranges.append([key])
    return ranges
