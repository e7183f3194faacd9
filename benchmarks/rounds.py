"""Rounds that alternate between us and our peers in one process, so that what slows the machine slows all."""

import os
import resource
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

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


def cpu_seconds() -> float:
    """User and system time of this process and of all below it that are there (the JVM and its workers), so far."""
    ticks = 0
    for pid in descendants(os.getpid()):
        with suppress(OSError):  # it has ended since
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))  # its own, and of children that ended
    return ticks / os.sysconf("SC_CLK_TCK")


def alternate(contestants: Mapping[str, Callable[[], object]], rounds: int, *, quick: bool = False) -> dict[str, float]:
    """Median seconds of each, printed with those of the CPU and with all rounds, `numbered`.

    Each second round is run backwards, so that nobody always finds what the one before has warmed.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    busy: dict[str, list[float]] = {name: [] for name in contestants}
    for number in numbered(rounds, quick=quick):
        for name, run in list(contestants.items())[:: -1 if number % 2 else 1]:
            before, start = cpu_seconds(), time.perf_counter()
            run()
            taken = time.perf_counter() - start
            if number:
                seconds[name].append(taken)
                busy[name].append(cpu_seconds() - before)
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    for name, taken in seconds.items():
        rounds_taken = " ".join(f"{s:.3f}" for s in taken)
        print(f"{name:<28} {medians[name]:7.3f} s, CPU {statistics.median(busy[name]):7.3f} s   of {rounds_taken}")
    return medians


def ratio(name: str, ours: float, peer: float) -> str:
    """The line that says how we compare: below 1 is better than the peer."""
    return f"RATIO {name} {ours / peer:.3f}"


def print_ratios(*ratios: str) -> None:
    """Peak memory of this process, and then, as the last lines, the ratios."""
    print(f"peak RSS of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
    print("\n".join(ratios))


@contextmanager
def peak_memory(pids: Callable[[], list[int]]) -> Iterator[Callable[[], str]]:
    """The most memory that processes had together within the block, sampled ten times a second."""
    most, ended = 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not ended.wait(0.1):
            most = max(most, sum(map(_resident, pids())))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield lambda: f"{most / 2**30:.1f} GiB"
    finally:
        ended.set()
        thread.join()


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def descendants(pid: int) -> list[int]:
    """A process and those that it started."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended since
            for child in task.read_text().split():
                found += descendants(int(child))
    return found
