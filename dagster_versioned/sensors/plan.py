"""What becomes of each stale cell now: which of them run, which wait and for what, and as which runs.

Pure, as `find` is, whose findings it takes: heads change rarely, and what runs meanwhile changes all the time.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from dagster_versioned.tables.staleness import StaleCell, cell_text

Cell = tuple[str, str | None]
"""A unit (assets that run together) or an upstream by name, and a partition of it."""

Standing = Literal["ready", "waiting", "running", "tried", "unchecked", "absent", "held", "unreadable"]
"""What becomes of a stale cell now: it runs; it waits for an upstream; a run of it, or its promotion, is under way, or
a draft of it is judged; a run for this very state has ended, so that something must change first; a blocking check has
not passed for a version that it would read; an upstream does not exist; it is held; it cannot be read."""

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
    tried: Callable[[Cell, StaleCell], str | None],
    unchecked: Callable[[Cell], str | None] = lambda _: None,
) -> dict[Cell, Decision]:
    """What becomes of each stale cell.

    ``findings`` come upstream first. A cell waits for its direct upstreams alone: were it to wait for all that is
    above it, a source that changes faster than a long chain runs would keep the end of the chain from ever running.
    What nobody is going to run (it is held, was tried, or waits for a check) is not waited for. ``running`` says which
    run, draft or promotion, ``tried`` which run, ``unchecked`` which check.
    """
    decisions: dict[Cell, Decision] = {}
    busy: dict[Cell, str | None] = {}

    def run_of(cell: Cell) -> str | None:
        if cell not in busy:
            busy[cell] = running(cell)
        return busy[cell]

    def is_about_to_change(cell: Cell) -> bool:
        if cell in decisions and decisions[cell].standing in ABOUT_TO_CHANGE:
            return True
        return run_of(cell) is not None

    for cell, finding in findings:
        decision = _hindrance(finding, run_of(cell))
        if decision is None:
            above = next((one for one in upstreams(cell) if one != cell and is_about_to_change(one)), None)
            if above is not None:
                decision = Decision("waiting", cell_text(*above))
            elif (run := tried(cell, finding)) is not None:
                decision = Decision("tried", run)
            elif (why := unchecked(cell)) is not None:
                decision = Decision("unchecked", why)
        decisions[cell] = decision or Decision("ready")
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
