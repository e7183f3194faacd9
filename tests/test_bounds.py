"""A release that the package does not run with is named, with those that it does, wherever it is met first."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from dagster_versioned.bounds import BOUNDS, release_of, require_release
from dagster_versioned.errors import MissingExtra

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))["project"]

FOUND_AS = "import {library}; {library}.__version__ = {version!r}; import dagster_versioned; {use}"

USES = {
    "dagster": "dagster_versioned.build_version_sensor",
    "numpy": "dagster_versioned.Project",
    "pyarrow": "dagster_versioned.Project",
    "pyspark": "from dagster_versioned.engines.spark import default_session; default_session()",
}


def test_they_are_those_that_pip_is_given() -> None:
    requirements = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["spark"]]
    given = {}
    for requirement in requirements:
        if (bounds := re.fullmatch(r"([\w-]+)>=([\d.]+),<([\d.]+)", requirement)) and bounds[1] in BOUNDS:
            given[bounds[1]] = (release_of(bounds[2]), release_of(bounds[3]))
    assert given == BOUNDS


@pytest.mark.parametrize("library", BOUNDS)
def test_the_first_and_the_last_release_are_taken(library: str) -> None:
    oldest, below = (".".join(map(str, release)) for release in BOUNDS[library])
    require_release(library, oldest)
    require_release(library, f"{oldest}.99.dev0+local")
    with pytest.raises(MissingExtra):
        require_release(library, below)


def test_a_checkout_of_dagster_is_taken_for_new_enough() -> None:
    require_release("dagster", "1!0+dev")


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("library", "version"),
    [
        ("dagster", "1.10.21"),
        ("dagster", "1.14.0"),
        ("numpy", "3.0.0"),  # older ones than its own floor pyarrow refuses before we are asked
        ("pyarrow", "17.0.0"),
        ("pyarrow", "27.0.0"),
        ("pyspark", "3.4.4"),
        ("pyspark", "4.4.0"),
    ],
)
def test_another_one_is_named_at_first_use(library: str, version: str) -> None:
    program = FOUND_AS.format(library=library, version=version, use=USES[library])
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    last = ended.stderr.strip().splitlines()[-1]
    assert re.match(
        rf"dagster_versioned\.errors\.MissingExtra: {library} {re.escape(version)} is installed, and this package runs "
        rf"with {library}>=[\d.]+,<[\d.]+\. Nothing was read or written\. Install such a release: `pip install '",
        last,
    ), ended.stderr
