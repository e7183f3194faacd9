"""Of the variable of a loop its name says what it is, and a class is a noun of the field."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "dagster_versioned"
PARTICIPLES = re.compile(
    "again|asked|checked|computing|ended|fetched|found|given|judged|kept|known|left|listed|loaded|looked|made|merging|"
    "named|nested|parking|reading|resolved|seen|settled|stored|taken|then|touched|wish|written",
    re.IGNORECASE,
)


def faults(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        targets: list[ast.AST] = [node.target] if isinstance(node, ast.For | ast.comprehension) else []
        bound = {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
        if isinstance(node, ast.Lambda):
            bound = {argument.arg for argument in node.args.args} - {"other"} if len(node.args.args) == 1 else set()
        if "one" in bound:
            yield "a variable `one`, of what it is not said"
        if isinstance(node, ast.ClassDef) and PARTICIPLES.fullmatch(node.name.lstrip("_")):
            yield f"a class {node.name}, which is no noun"


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("for one in versions: pass", 1),
        ("[one for key, one in cells.items()]", 1),
        ("sorted(cells, key=lambda one: one.name)", 1),
        ("class _Seen: pass", 1),
        ("for version in versions: pass", 0),
        ("class SeenVersions: pass", 0),
    ],
)
def test_they_are_seen(source: str, count: int) -> None:
    assert len(list(faults(source))) == count


def test_there_are_none() -> None:
    found = {
        str(path.relative_to(PACKAGE)): said
        for path in sorted(PACKAGE.rglob("*.py"))
        if (said := list(faults(path.read_text())))
    }
    assert not found
