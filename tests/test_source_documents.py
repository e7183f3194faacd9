"""Every file and every test that the page of source documents names is there."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/reference/source-documents.md").read_text()
ROWS = [line.strip("|").split(" | ") for line in PAGE.splitlines() if re.match(r"\| (?!heading )", line)]
NAMED = re.compile(r"`([\w./]+\.py)::(test_\w+)`")
MODULE = re.compile(r"`((?!tests/)[a-z_]+/[\w./]+)`")
# Of these nothing can be tested: the document asks for nothing.
WITHOUT_TEST = {"Future Topics, Anonymization"}


@cache
def declared(path: Path) -> frozenset[str]:
    """The names of the tests of a file, those of its classes too."""
    found = ast.walk(ast.parse(path.read_text()))
    return frozenset(node.name for node in found if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"))


def missing() -> Iterator[str]:
    for heading, here, tests in ROWS:
        for name in MODULE.findall(here):
            if not (ROOT / "dagster_versioned" / name).exists():
                yield f"{heading.strip()}: there is no module {name}"
        for file, test in NAMED.findall(tests):
            path = ROOT / "tests" / file
            if not path.exists() or test not in declared(path):
                yield f"{heading.strip()}: there is no test {file}::{test}"


def test_what_the_page_names_is_there() -> None:
    assert len(ROWS) > 150, "the tables of the page are read"
    assert not list(missing())


def test_every_row_has_a_test_that_is_named_in_full() -> None:
    without = {heading.strip() for heading, _, tests in ROWS if not NAMED.findall(tests)}
    assert without == WITHOUT_TEST
    for heading, _, tests in ROWS:
        assert len(re.findall("`", tests)) == 2 * len(NAMED.findall(tests)), heading


def test_what_is_different_leads_to_the_page_with_the_reason() -> None:
    for heading, here, _ in ROWS:
        assert "different" not in here or re.search(r"\]\([\w./-]+\.md(#[\w-]+)?\)", here), heading
