"""What pages of the documentation show, to be run by tests as it stands there."""

import re
from collections.abc import Mapping
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str, section: str, language: str, replaced: Mapping[str, str]) -> list[str]:
    """The blocks of code below a heading of a page, with the names of the page replaced by those of a test.

    Each name must occur in some block, so that a page that says something else is found out.
    """
    text = (DOCS / page).read_text("utf-8")
    (body,) = re.findall(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    found = re.findall(rf"^```{language}\n(.*?)^```", body, re.M | re.S)
    for name, value in replaced.items():
        assert any(name in block for block in found), f"{page}, {section}: {name!r} is not there"
        found = [block.replace(name, value) for block in found]
    return found
