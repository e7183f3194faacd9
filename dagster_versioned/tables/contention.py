"""How long, and how often, whoever lost a race tries again."""

import random
import time

MAX_ATTEMPTS = 1000
_FIRST_PAUSE = 0.002
_LONGEST_PAUSE = 0.25


def pause(attempt: int) -> None:
    """Wait after attempt 0, 1, …: longer each time, and at random, so that rivals do not meet again."""
    time.sleep(random.uniform(0, min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(attempt, 10))))
