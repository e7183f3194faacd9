"""What becomes of the files of a table as a frame takes the place of its rows, and most of these stay the same."""

import math
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from dagster_versioned.engines.upsert import MOST_DELETED

FEWEST_BYTES = 64 * 1024
"""Of the files of a table; one that has fewer is written anew, which costs no more than finding out what changed."""

MOST_CHANGED = 0.15
"""Of the rows, from where readers and later writes are better off with a table that is written anew."""

_MOST_STORED = 0.5
_FULL_ROWS = 1_000_000
_PARTS_OF_FULL = 8
_MOST_ALIKE = 4


@dataclass(frozen=True, slots=True)
class FileRows:
    """The rows of a file: all that it holds, those that were deleted from it before, and those that go now."""

    stored: int
    deleted: int
    going: int

    @property
    def left(self) -> int:
        """How many are read of it afterwards."""
        return self.stored - self.deleted - self.going


def are_worth_it(sizes: Iterable[int]) -> bool:
    """Whether files of so many bytes are compared with a frame at all."""
    return sum(sizes) >= FEWEST_BYTES


def files_to_rewrite(files: Sequence[FileRows], inserted: int) -> Set[int] | None:
    """The numbers of the files whose rows are written anew, beside those that come; ``None``: all are.

    A file stays without the rows that go, unless it would lose more than half of its rows. Small files, of which each
    night makes one, are put together as soon as four are of one size, so that there are few of them, and each row is
    written a few times at most. Nothing of this depends on the machine.
    """
    had, have = (sum(each) for each in zip(*((file.left + file.going, file.left) for file in files), strict=True))
    if max(inserted, had - have) > MOST_CHANGED * max(had, have + inserted):
        return None
    small = min(_FULL_ROWS, max(had, 1)) / _PARTS_OF_FULL
    rewritten = {
        i for i, file in enumerate(files) if file.going and file.deleted + file.going > MOST_DELETED * file.stored
    }
    stored = inserted + sum(files[i].left for i in rewritten)
    while stored and stored < small:
        alike = {
            i
            for i, file in enumerate(files)
            if i not in rewritten and file.stored < small and _size(file.left) == _size(stored)
        }
        if len(alike) + 1 < _MOST_ALIKE:
            break
        rewritten |= alike
        stored += sum(files[i].left for i in alike)
    return None if stored > _MOST_STORED * (have + inserted) else rewritten


def _size(rows: int) -> int:
    return int(math.log(max(rows, 1), _MOST_ALIKE))
