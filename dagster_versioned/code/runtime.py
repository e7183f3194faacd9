"""What code runs on: the release of Python, the platform, and every distribution that is installed."""

import hashlib
import platform
import sys
from typing import Any

import orjson

from dagster_versioned.code.ownership import Distributions


def runtime_of(distributions: Distributions) -> tuple[str, dict[str, Any]]:
    """That of this process: the SHA-256 of all that is known of it (64 hex), and that.

    Distributions are known by their folders' names; nothing of them is read.
    """
    members: dict[str, Any] = {
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "platform": f"{platform.system()} {platform.machine()}".lower(),
        "distributions": distributions.installed(),
    }
    return hashlib.sha256(orjson.dumps(members, option=orjson.OPT_SORT_KEYS)).hexdigest(), members
