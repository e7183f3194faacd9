"""The tags by which a file of a table says which part it is, and the order in which parts are read.

Delta's files are a set, so the order of rows is the tags' to tell.
"""

import re
from collections.abc import Iterable

from dagster_versioned.delta.actions import Add

PARTITION_TAG = "dagster_versioned/partition"
ORDINAL_TAG = "dagster_versioned/ordinal"
SHA_TAG = "dagster_versioned/sha256"
VECTOR_TAG = "dagster_versioned/vector"
"""The SHA-256 of the part's deletion vector."""

_ORDINAL = re.compile(r"\d{1,18}", re.ASCII)


def part_order(add: Add) -> tuple[str, int, str]:
    """A sort key: by partition, then ordinal, then, for files of other programs, by path."""
    return (add.tags or {}).get(PARTITION_TAG) or "", ordinal_of(add), add.key


def ordinal_of(add: Add) -> int:
    """The part's number in its version; 0 for files of other programs."""
    ordinal = (add.tags or {}).get(ORDINAL_TAG) or ""
    return int(ordinal) if _ORDINAL.fullmatch(ordinal) else 0


def next_ordinal(parts: Iterable[Add]) -> int:
    """The number of the first part that is added to these."""
    return 1 + max(map(ordinal_of, parts), default=-1)
