"""Rounds that alternate between us and our peers in one process, so that what slows the machine slows all."""

import resource
import statistics
import time
from collections.abc import Callable, Mapping


def alternate(contestants: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each, printed with all rounds; one more round goes first and is dropped (cold caches, JIT)."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
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
