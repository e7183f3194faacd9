"""What work an action does, counted instead of timed, so that a busy machine changes nothing."""

import cProfile
import pstats
from collections import Counter
from collections.abc import Callable
from typing import Any


def function_calls(action: Callable[[], Any]) -> Counter[str]:
    """How often every function is called in this thread, by name; those of C libraries by their wrappers' names."""
    profile = cProfile.Profile()
    profile.runcall(action)
    calls: Counter[str] = Counter()
    statistics: Any = pstats.Stats(profile)
    for (_, _, name), (_, count, *_) in statistics.stats.items():
        calls[name] += count
    return calls
