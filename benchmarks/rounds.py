"""Rounds that alternate between us and our peers in one process, so that what slows the machine slows all."""

import resource
import statistics
import time
from collections.abc import Callable, Iterator, Mapping

QUICK_SECONDS = 42
"""From the start of a ``--quick`` run to the end of its last round, so that it ends in less than 50 seconds."""

_BEGUN = time.monotonic()


def numbered(rounds: int, *, quick: bool) -> Iterator[int]:
    """Numbers of rounds: 0, to be dropped (cold caches, JIT), then 1 to ``rounds``.

    A quick run, after round 1, begins none that would end too late if it took as long as the longest so far.
    """
    longest = 0.0
    for number in range(rounds + 1):
        start = time.monotonic()
        if quick and number > 1 and start + longest > _BEGUN + QUICK_SECONDS:
            return
        yield number
        longest = max(longest, time.monotonic() - start) if number else 0.0


def alternate(contestants: Mapping[str, Callable[[], object]], rounds: int, *, quick: bool = False) -> dict[str, float]:
    """Median seconds of each, printed with all rounds, `numbered`."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in numbered(rounds, quick=quick):
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            if number:
                seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    for name, taken in seconds.items():
        print(f"{name:<28} {medians[name]:7.3f} s   of {' '.join(f'{s:.3f}' for s in taken)}")
    return medians


def ratio(name: str, ours: float, peer: float) -> str:
    """The line that says how we compare: below 1 is better than the peer."""
    return f"RATIO {name} {ours / peer:.3f}"


def print_ratios(*ratios: str) -> None:
    """Peak memory of this process, and then, as the last lines, the ratios."""
    print(f"peak RSS of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
    print("\n".join(ratios))
