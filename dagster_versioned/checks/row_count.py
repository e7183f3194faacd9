"""Are there about as many rows as there used to be?"""

from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import Literal

from dagster_versioned.checks.check import CheckedHeads, Verdict, VersionCheck, listed, named, table_text
from dagster_versioned.errors import InvalidInput
from dagster_versioned.tables.history import Version


@dataclass(frozen=True)
class RowCountDrift(VersionCheck):
    """Passes where the head's rows are near the median of the last versions that had other data.

    ``last`` is how many versions; ``max_drop`` and ``max_growth`` how far the count may be below and above their
    median, as shares of it (0.5: by half; ``None``: by any number). ``against="partitions"`` compares a partition with
    the newest versions of the others instead of with what it was itself. Nothing to compare with passes.
    """

    default_name = "row_count"
    description = "The head has about as many rows as the versions before it."

    last: int = 5
    max_drop: float | None = 0.5
    max_growth: float | None = 1.0
    against: Literal["versions", "partitions"] = "versions"

    def __post_init__(self) -> None:
        if self.last < 1 or any(limit is not None and limit < 0 for limit in (self.max_drop, self.max_growth)):
            raise InvalidInput(
                f"RowCountDrift compares with at least one version, within shares from 0 up: not last={self.last}, "
                f"max_drop={self.max_drop}, max_growth={self.max_growth}."
            )

    def judge(self, checked: CheckedHeads) -> Verdict:
        rows: list[tuple[object, ...]] = []
        faults: list[str] = []
        single: dict[str, float] = {}
        for head in checked.heads:
            nrow, counts = head.identity.nrow, self._earlier(checked, head)
            usual = median(counts) if counts else None
            drift = _drift(nrow, usual)
            shown = None if drift is None else f"{drift:+.1%}"
            rows.append((named(head), nrow, usual, shown, ", ".join(map(str, counts))))
            if drift is not None and self._is_too_far(drift):
                faults.append(f"{named(head)} has {nrow} rows, {shown} against the usual {usual:g}")
            if len(checked.heads) == 1:  # as numbers, which Dagster plots from one evaluation to the next
                single = {"rows": nrow, **({"median_rows": float(usual)} if usual is not None else {})}
        limits = f"at most {_share(self.max_drop)} fewer and {_share(self.max_growth)} more"
        metadata = {
            **single,
            "limits": limits,
            "row_counts": table_text(["version", "rows", "median", "drift", f"the last {self.last}"], rows),
        }
        if faults:
            return Verdict(False, f"{listed(faults)} ({limits} are allowed).", metadata)
        return Verdict(True, f"The rows of {len(rows)} heads are within the limits: {limits}.", metadata)

    def _earlier(self, checked: CheckedHeads, head: Version) -> list[int]:
        """The row counts to compare with, newest first."""
        if self.against == "partitions":
            earlier = checked.beside(head)
        else:  # what only says something else of the same rows is no further opinion
            earlier = (version for version in checked.before(head) if version.change == "full")
        return [version.identity.nrow for version in islice(earlier, self.last)]

    def _is_too_far(self, drift: float) -> bool:
        limit = self.max_drop if drift < 0 else self.max_growth
        return limit is not None and abs(drift) > limit


def _drift(nrow: int, usual: float | None) -> float | None:
    if usual is None:
        return None
    if usual == 0:
        return 0.0 if nrow == 0 else float("inf")
    return nrow / usual - 1


def _share(limit: float | None) -> str:
    return "any number" if limit is None else f"{limit:.0%}"
