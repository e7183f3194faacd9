"""How long whoever failed, or lost a race, waits before it tries again."""

import random
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Backoff:
    """Pauses that double from ``first`` to ``longest`` seconds, each of a random part of that, so that rivals part."""

    first: float
    longest: float

    def pause(self, attempt: int) -> None:
        """Wait after attempt 0, 1, …"""
        time.sleep(random.uniform(0, min(self.longest, self.first * 2 ** min(attempt, 16))))


RACE = Backoff(0.002, 0.25)
"""After a lost race for the next version of an object: the winner is done."""
RACES = 1000
"""Races that are lost before somebody gives up."""

REQUEST = Backoff(0.05, 5.0)
"""After a request that a store did not answer, or refused for now."""
DOWNLOAD = Backoff(0.2, 8.0)
"""After a request to somebody else's server, which is asked less often."""
