"""A fingerprint changes with whatever a function reaches, and with nothing else."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import dagster_versioned
from support.code_project import FILES, fingerprints, write_project

SEEN = {
    "a constant": ("shop/rates.py", "RATE = 3", "RATE = 4", {"orders"}),
    "the function's body": ("shop/assets.py", "x < LIMIT", "x <= LIMIT", {"orders"}),
    "a constant of its module": ("shop/assets.py", "LIMIT = 10", "LIMIT = 11", {"orders"}),
    "a list that is changed after it was bound": ("shop/assets.py", 'append("c")', 'append("d")', {"report"}),
    "a helper of a helper": ("shop/cleaning.py", "max(row, FLOOR)", "min(row, FLOOR)", {"orders"}),
    "a constant of a helper of a helper": ("shop/cleaning.py", "FLOOR = 0", "FLOOR = 1", {"orders"}),
    "the constant of a default": ("shop/cleaning.py", "DIGITS = 2", "DIGITS = 3", {"report"}),
    "a method of a base class": ("shop/models.py", "self.amount * self.scale", "self.amount", {"orders"}),
    "an attribute of a base class": ("shop/models.py", "scale = 1", "scale = 2", {"orders"}),
    "a member of an enum": ("shop/models.py", 'OPEN = "open"', 'OPEN = "new"', {"steps"}),
    "what a registry holds": ("shop/steps.py", "2 * row", "3 * row", {"steps"}),
    "an argument of a decorator": ("shop/assets.py", "@retried(3)", "@retried(4)", {"tried"}),
    "a decorator": ("shop/retries.py", "range(times)", "range(times + 1)", {"tried"}),
    "what a function imports": ("shop/late.py", "BASE + row", "BASE - row", {"tried"}),
    "a constant of what a function imports": ("shop/late.py", "BASE = 1", "BASE = 2", {"tried"}),
    "an import that may be made": ("shop/fast.py", "sum(rows)", "sum(rows, 1)", {"tried"}),
    "the other import that may be made": ("shop/slow.py", "+ 0", "+ 1", {"tried"}),
    "a closure": ("shop/assets.py", "by_two = made(2)", "by_two = made(7)", {"by_two"}),
    "a function that is made in another": (
        "shop/assets.py",
        "row * factor * by",
        "row + factor * by",
        {"by_two", "partial"},
    ),
    "an argument of a partial": ("shop/assets.py", "by=5", "by=6", {"partial"}),
    "a file": ("shop/sql/report.sql", "SELECT 1", "SELECT 2", {"report"}),
    "a library's function under the same name": (
        "shop/assets.py",
        "import math\n",
        "import cmath as math\n",
        {"tried"},
    ),
    "the seed of a library": ("shop/cleaning.py", "random.seed(1)", "random.seed(2)", {"orders", "report"}),
    "one implementation of several": ("shop/assets.py", 'f"{value:,}"', 'f"{value:_}"', {"shown"}),
}

UNSEEN = {
    "a comment": ("shop/assets.py", "# of today", "# of yesterday"),
    "a docstring": ("shop/assets.py", '"""Rows as orders."""', '"""Orders."""'),
    "a docstring of a module": ("shop/cleaning.py", '"""How rows are cleaned."""\n', ""),
    "a docstring of a class": ("shop/models.py", '    """An order."""\n\n', ""),
    "moved lines": ("shop/assets.py", "LIMIT = 10", "\n\n\nLIMIT = 10"),
    "parentheses and a line break": ("shop/assets.py", "max(", "max("),
    "quotes": ("shop/assets.py", '["a", "b"]', "['a', 'b',]"),
    "the order of imports": ("shop/assets.py", "import math\nimport os\n", "import os\nimport math\n"),
    "another constant of a module": ("shop/rates.py", "OTHER = 4", "OTHER = 5"),
    "a function that nobody reaches": ("shop/cleaning.py", "    return rows\n", "    return list(rows)\n"),
    "an import that nobody uses": ("shop/assets.py", "import os\n", "import os\nimport json\n"),
    "an import for a type checker": ("shop/assets.py", "import Decimal", "import Context"),
    "an annotation": ("shop/cleaning.py", "def clean(rows):", "def clean(rows: list[int]) -> list[int]:"),
}


def changed(tmp_path: Path, name: str, old: str, new: str, files: Mapping[str, str] = FILES) -> set[str]:
    """The functions whose fingerprints differ after the change of a text in a file."""
    before, after = tmp_path / "before", tmp_path / "after"
    write_project(before, files)
    write_project(after, files)
    path = after / name
    text = path.read_text()
    path.write_text(text.replace(old, new))
    first, second = fingerprints(before), fingerprints(after)
    assert not [reason for each in (*first.values(), *second.values()) for reason in each.opaque]
    return {each for each in first if first[each].digest != second[each].digest}


@pytest.mark.parametrize("kind", SEEN)
def test_what_is_reached_is_seen(tmp_path: Path, kind: str) -> None:
    name, old, new, concerned = SEEN[kind]
    assert changed(tmp_path, name, old, new) == concerned


@pytest.mark.parametrize("kind", UNSEEN)
def test_what_means_nothing_is_not_seen(tmp_path: Path, kind: str) -> None:
    name, old, new = UNSEEN[kind]
    assert changed(tmp_path, name, old, new) == set()


def test_clock_and_environment_are_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_project(tmp_path, FILES)
    first = fingerprints(tmp_path)
    monkeypatch.setenv("SHOP_SECRET", "hunter2")
    assert {name: each.digest for name, each in fingerprints(tmp_path).items()} == {
        name: each.digest for name, each in first.items()
    }


PROGRAM = """
import sys
from dagster_versioned.code.fingerprint import CodeOptions, KnownCode, fingerprint_of

def main(function):
    found = fingerprint_of(function, CodeOptions(), KnownCode())
    print(found.digest, *found.opaque)
"""
IMPORTED = """
import sys
sys.path.insert(0, ".")
from ask import main
from shop.assets import orders
main(orders)
"""
SPAWNED = """
import multiprocessing, sys
sys.path.insert(0, ".")
from ask import main
from shop.assets import orders
if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=main, args=(orders,))
    process.start()
    process.join()
"""
RUNS = {
    "imported": ["-c", IMPORTED],
    "as a program": ["-m", "shop.assets"],
    "as a file": ["shop/assets.py"],
    "in a spawned child": ["-c", SPAWNED],
}


def test_one_fingerprint_however_it_is_loaded(tmp_path: Path) -> None:
    files = {
        **FILES,
        "ask.py": PROGRAM,
        "shop/assets.py": FILES["shop/assets.py"]
        + "\n\n        if __name__ == '__main__':\n            from ask import main\n\n            main(orders)\n",
    }
    write_project(tmp_path, files)
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(dagster_versioned.__file__).parents[1])]),
    }
    said = {
        name: subprocess.run([sys.executable, *given], cwd=tmp_path, env=env, capture_output=True, text=True)
        for name, given in RUNS.items()
    }
    assert {name: each.stderr for name, each in said.items() if each.returncode} == {}
    assert len({each.stdout for each in said.values()}) == 1, {name: each.stdout for name, each in said.items()}
    assert len(said["imported"].stdout.split()) == 1  # and no reason why it could not be followed
