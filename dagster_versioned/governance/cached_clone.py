"""Where a clone of a git remote is kept, if its user does not say."""

import hashlib
import os
from pathlib import Path
from typing import Literal

from dagster_versioned.governance.git_remote import remote_url


def cached_clone(kind: Literal["registries", "mirrors"], remote: str) -> Path:
    """A folder in the user's cache, for the clone of one remote, however a folder is spelled. Raises `InvalidInput`."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache, "dagster-versioned", kind, hashlib.sha256(str(remote_url(remote)).encode()).hexdigest()[:16])
