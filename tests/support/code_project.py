"""A small project of several modules, whose code a test changes and loads anew."""

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from types import ModuleType

from dagster_versioned.code.fingerprint import CodeOptions, Fingerprint, KnownCode, fingerprint_of

FILES: Mapping[str, str] = {
    "shop/__init__.py": "",
    "shop/assets.py": '''
        """The assets of a shop."""

        import functools
        import math
        import os
        import time
        from pathlib import Path
        from typing import TYPE_CHECKING

        import shop.rates as r
        from shop import cleaning
        from shop.cleaning import clean as tidy, unused
        from shop.models import Order, Status
        from shop.registry import STEPS
        from shop.retries import retried

        if TYPE_CHECKING:
            from decimal import Decimal

        try:
            from shop.fast import total
        except ImportError:
            from shop.slow import total

        STARTED = time.time()
        SECRET = os.environ.get("SHOP_SECRET", "none")
        HERE = Path(__file__).parent
        LIMIT = 10
        COLUMNS = ["a", "b"]
        COLUMNS.append("c")


        def orders(rows: list[int]) -> list[int]:
            """Rows as orders."""
            kept = [x for x in tidy(rows) if x < LIMIT]  # of today
            return [Order(x).total() * r.RATE for x in kept]


        def report(orders):
            query = (HERE / "sql" / "report.sql").read_text()
            return [query, *COLUMNS, cleaning.rounded(sum(orders))]


        def steps(rows):
            for step in STEPS:
                rows = STEPS[step](rows)
            return rows, Status.OPEN.value


        @retried(3)
        def tried(rows):
            from shop.late import late

            return late(rows) + total(rows) + math.floor(STARTED)


        def made(factor, extra=None):
            def scaled(rows, by=factor + 1):
                return [row * factor * by for row in rows]

            return scaled


        by_two = made(2)
        partial = functools.partial(made(3), by=5)


        @functools.singledispatch
        def shown(value):
            return str(value)


        @shown.register
        def _(value: int):
            return f"{value:,}"
    ''',
    "shop/cleaning.py": '''
        """How rows are cleaned."""

        import random

        random.seed(1)

        DIGITS = 2


        def clean(rows):
            return [_positive(row) for row in rows]


        def _positive(row):
            return max(row, FLOOR)


        FLOOR = 0


        def rounded(value, digits=DIGITS):
            return round(value, digits)


        def unused(rows):
            return rows
    ''',
    "shop/rates.py": "RATE = 3\nOTHER = 4\n",
    "shop/models.py": '''
        import enum


        class Base:
            scale = 1

            def total(self):
                return self.amount * self.scale


        class Order(Base):
            """An order."""

            def __init__(self, amount):
                self.amount = amount


        class Status(enum.Enum):
            OPEN = "open"
            CLOSED = "closed"
    ''',
    "shop/registry.py": """
        STEPS = {}


        def step(function):
            STEPS[function.__name__] = function
            return function
    """,
    "shop/steps.py": """
        from shop.registry import step


        @step
        def doubled(rows):
            return [2 * row for row in rows]
    """,
    "shop/retries.py": """
        import functools


        def retried(times):
            def decorator(function):
                @functools.wraps(function)
                def tried(*args):
                    for _ in range(times):
                        return function(*args)

                return tried

            return decorator
    """,
    "shop/fast.py": "def total(rows):\n    return sum(rows)\n",
    "shop/slow.py": "def total(rows):\n    return sum(rows) + 0\n",
    "shop/late.py": "def late(rows):\n    return [BASE + row for row in rows]\n\n\nBASE = 1\n",
    "shop/sql/report.sql": "SELECT 1\n",
}

KNOWN = KnownCode()
"""As in any process: what modules say that stay as they are is read once."""

ROOTS = ("orders", "report", "steps", "tried", "by_two", "partial", "shown")


def write_project(folder: Path, files: Mapping[str, str]) -> None:
    """Write the files of a project below a folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text).lstrip("\n"))


@contextmanager
def loaded(folder: Path, *modules: str) -> Iterator[ModuleType]:
    """The first of these modules, in a process that forgets all of them afterwards."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        first, *_ = [importlib.import_module(name) for name in modules]
        yield first
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(folder)):
                del sys.modules[name]


def fingerprints(
    folder: Path, options: CodeOptions | None = None, *modules: str, names: tuple[str, ...] = ROOTS
) -> dict[str, Fingerprint]:
    """The fingerprints of the functions of a project in a folder."""
    with loaded(folder, *(modules or ("shop.assets", "shop.steps"))) as module:
        return {name: fingerprint_of(getattr(module, name), options or CodeOptions(), KNOWN) for name in names}
