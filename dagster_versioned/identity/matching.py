"""Which rows of a frame are rows of a table: each row there stands for one of equal ones."""

import numpy as np
from numpy.typing import NDArray

from dagster_versioned.identity import compiled
from dagster_versioned.identity.compiled import Lanes


def match_rows(new: Lanes, old: Lanes, taken: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which rows of a frame a table has, by both hashes of each row (`row_lanes` under a `fresh_key`).

    ``taken`` says which rows of the table stand for none, and is true afterwards for those that stand for one, too: for
    each row of the frame one that says the same, as long as there are any. Time and memory grow with the rows of both:
    less where they come in one order.
    """
    if (known := compiled.match_rows(new, old, taken)) is not None:
        return known
    return match_sorted(new, old, taken)


def match_sorted(new: Lanes, old: Lanes, taken: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """`match_rows` by numpy."""
    free = np.flatnonzero(~taken)
    first, second = (np.concatenate([had[free], has]) for had, has in zip(old, new, strict=True))
    # Stable, so that rows of the table come before equal ones of the frame, each in their order.
    order = np.lexsort((second, first))
    first, second = first[order], second[order]
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
    group, starts = np.cumsum(begins) - 1, np.flatnonzero(begins)
    is_new = order >= len(free)
    of_new = np.bincount(group, is_new, len(starts)).astype(np.int64)
    of_old = np.diff(np.append(starts, len(order))) - of_new
    rank = np.arange(len(order)) - starts[group] - np.where(is_new, of_old[group], 0)
    paired = rank < np.minimum(of_new, of_old)[group]
    taken[free[order[paired & ~is_new]]] = True
    known = np.zeros(len(new[0]), np.bool_)
    known[order[paired & is_new] - len(free)] = True
    return known
