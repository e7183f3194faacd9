"""Errors of this package that were raised in Spark's tasks."""

import re

import dagster_versioned.errors as errors
from dagster_versioned.errors import VersionedError


def own_error(error: Exception) -> VersionedError | None:
    """What this package's code raised in a task, out of the traceback that is all Spark passes on."""
    found = re.search(r"^(?:dagster_versioned\.errors\.)(\w+): (.*)$", str(error), re.MULTILINE)
    kind = getattr(errors, found[1], None) if found else None
    return kind(found[2]) if found and isinstance(kind, type) and issubclass(kind, VersionedError) else None
