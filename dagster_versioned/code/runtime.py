"""What code runs on: the release of Python, the platform, and every distribution that is installed."""

import platform
import sys
from typing import Any

from dagster_versioned.code.ownership import Distributions


def runtime_of(distributions: Distributions) -> dict[str, Any]:
    """That of this process. Distributions are known by their folders' names; nothing of them is read."""
    return {
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "platform": f"{platform.system()} {platform.machine()}".lower(),
        "distributions": distributions.installed(),
    }
