"""The table of guarantees in the documentation names tests that there are."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_the_table_of_guarantees_names_exists():
    page = (ROOT / "docs" / "how-to" / "sensors.md").read_text()
    named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", page)
    assert len(named) > 30
    for file, test in named:
        path = ROOT / "tests" / (file if "/" in file else f"sensors/{file}")
        assert f"def {test}(" in path.read_text(), f"{file}::{test}"
