"""Between which releases of what it stands on the package runs, and the sentence where another one is installed."""

import re

from dagster_versioned.errors import MissingExtra

BOUNDS = {
    "dagster": ((1, 11, 4), (1, 14)),
    "numpy": ((1, 26), (3,)),
    "pyarrow": ((19, 0, 1), (27,)),
    "pyspark": ((3, 5), (4, 4)),
}
"""The first release that is taken and the first that is not any more, as in pyproject.toml."""


def require_release(name: str, found: str) -> None:
    """Raise `MissingExtra` for a release that is not within the bounds; ``found`` is what it says of itself."""
    if "!" in found:  # a checkout of Dagster, which says 1!0+dev
        return
    oldest, below = BOUNDS[name]
    if not oldest <= release_of(found) < below:
        wanted = f"{name}>={_text(oldest)},<{_text(below)}"
        raise MissingExtra(
            f"{name} {found} is installed, and this package runs with {wanted}. Nothing was read or written. Install "
            f"such a release: `pip install '{wanted}'`."
        )


def release_of(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with: ``(4, 4, 0)`` of ``4.4.0.dev1``."""
    begins = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(number) for number in begins[0].split(".")) if begins else ()


def _text(release: tuple[int, ...]) -> str:
    return ".".join(map(str, release))
