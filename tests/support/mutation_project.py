"""A sample project of all the ways in which code reaches code, and what its functions are called with."""

from collections.abc import Mapping

from support import code_project

MODULES = ("shop.assets", "shop.steps", "bakery.assets", "bakery.toppings", "bakery.steps")

FILES: Mapping[str, str] = code_project.FILES | {
    "bakery/__init__.py": '''
        """A bakery."""

        from bakery.settings import *

        VERSION = 3
    ''',
    "bakery/settings.py": """
        import os
        import sys

        __all__ = ["OVENS", "SIZES", "TABLE", "WEIGHTS", "describe"]

        OVENS = 4
        SIZES = {"small": 1, "large": 3}
        SIZES["huge"] = 9
        SIZES.update(tiny=0)
        WEIGHTS = [10, 20, 30]
        WEIGHTS[1] += 5
        WEIGHTS.append(OVENS * 10)
        LOW, (MIDDLE, *HIGH) = 1, [2, 3, 4]
        FIRST = SECOND = MIDDLE + len(HIGH)

        if sys.version_info >= (3, 8):
            BASE = 100 + LOW
        else:
            BASE = 200

        try:
            import no_such_module_of_bakeries as fast
        except ImportError:
            fast = None
            FALLBACK = 7
        else:
            FALLBACK = 8
        finally:
            TRIED = 1

        TABLE = {}
        for number in range(3):
            if number == 2:
                continue
            TABLE[number] = number * BASE

        while len(WEIGHTS) < 6:
            WEIGHTS.append(len(WEIGHTS))

        match os.sep:
            case "/":
                ROOT = "slash"
            case _:
                ROOT = "other"

        if (length := len(TABLE)) > 1:
            LENGTH = length + 1

        FROZEN = frozenset({1, 2})
        SQUARES = [x**2 for x in range(OVENS)]
        LOOKUP = {name: size * 2 for name, size in SIZES.items() if size}
        KEY = lambda value: (-value, value % 3)

        TOTAL = 0


        def add(amount):
            global TOTAL
            TOTAL += amount


        add(5)
        add(FIRST)


        def describe(value):
            return f"{value:>6.2f}|{ROOT!r}|{FALLBACK + TRIED}"


        def hidden(value):
            return value - 1
    """,
    "bakery/units.py": """
        from bakery import settings as s
        from bakery.deep import grams
        from bakery.deep.inner import Scale as Balance


        def weigh(rows):
            return [grams(row) + s.WEIGHTS[row % len(s.WEIGHTS)] for row in rows]


        def balanced(rows):
            return Balance(2).of(rows)


        def sizes():
            return sorted(s.SIZES.items(), key=lambda pair: (-pair[1], pair[0]))
    """,
    "bakery/deep/__init__.py": "from .inner import grams\n",
    "bakery/deep/inner.py": """
        from .. import settings
        from ..settings import LOOKUP

        UNIT = 1000


        def grams(value, unit=UNIT, *, factor=2):
            return value * unit // factor + LOOKUP.get("large", 0)


        class Scale:
            step = 5

            def __init__(self, start):
                self.start = start

            def of(self, rows):
                return [self.start + self.step * row for row in rows if row > settings.LOW]
    """,
    "bakery/shapes.py": '''
        import abc
        import collections
        import dataclasses
        import enum
        import functools
        from typing import Any, ClassVar, NamedTuple

        from bakery.settings import OVENS


        class Positive:
            """A number that is not negative."""

            def __set_name__(self, owner, name):
                self.name = "_" + name

            def __get__(self, instance, owner=None):
                return getattr(instance, self.name, 1)

            def __set__(self, instance, value):
                setattr(instance, self.name, max(value, 0))


        class Named:
            prefix = "n"

            def label(self):
                return self.prefix + str(self.weight)


        class Loaf(Named):
            weight = Positive()
            prefix = "loaf"

            def __init__(self, weight):
                self.weight = weight

            def label(self):
                return super().label() + "!"

            @property
            def half(self):
                return self.weight / 2

            @half.setter
            def half(self, value):
                self.weight = value * 2

            @classmethod
            def large(cls, times=3):
                return cls(cls.base() * times)

            @staticmethod
            def base():
                return OVENS + 6

            @functools.cached_property
            def price(self):
                return self.weight * RATES[self.prefix]

            def __add__(self, other):
                return Loaf(self.weight + other.weight)

            def __getattr__(self, name):
                if name.startswith("is_"):
                    return name[3:] in self.prefix
                raise AttributeError(name)


        RATES = collections.defaultdict(lambda: 2, loaf=3)


        @dataclasses.dataclass(order=True)
        class Order:
            amount: int
            extra: int = 4
            notes: list = dataclasses.field(default_factory=lambda: ["new"])
            rank: int = dataclasses.field(default=1, compare=False)
            seen: ClassVar[int] = 0

            def __post_init__(self):
                self.total = self.amount + self.extra
                type(self).seen += 1


        class Point(NamedTuple):
            x: int
            y: int = 2

            def norm(self):
                return abs(self.x) + abs(self.y)


        class Color(enum.Enum):
            RED = 1
            BLUE = enum.auto()
            GREEN = "green"

            def paint(self, text):
                return f"{self.name.lower()}:{text}"


        class Right(enum.IntFlag):
            READ = 4
            WRITE = 2
            BOTH = READ | WRITE


        class Shape(abc.ABC):
            kinds = []

            def __init_subclass__(cls, factor=1, **given):
                super().__init_subclass__(**given)
                cls.factor = factor
                Shape.kinds.append(cls)

            @abc.abstractmethod
            def area(self, size):
                raise NotImplementedError


        class Square(Shape, factor=2):
            def area(self, size):
                return size * size * self.factor


        class Disc(Shape):
            pi = 3

            def area(self, size):
                return self.pi * size**2 * self.factor


        class Counting(type):
            made = 0

            def __call__(cls, *args):
                cls.made += 1
                return super().__call__(*args)


        class Bun(metaclass=Counting):
            def __init__(self, size=1):
                self.size = size

            def __call__(self, times):
                return [self.size] * times

            def __iter__(self):
                yield from range(self.size)

            def __enter__(self):
                self.size += 1
                return self

            def __exit__(self, *given):
                self.size = 0
                return given[0] is ValueError


        def priced(factor):
            def decorate(cls):
                cls.factor = factor
                cls.cost = lambda self: self.size * factor
                return cls

            return decorate


        @priced(7)
        class Cake:
            size = 2

            class Layer:
                height = 3

            def height(self):
                return self.Layer.height * self.size


        @functools.total_ordering
        class Crumb:
            __slots__ = ("size",)

            def __init__(self, size):
                self.size = size

            def __eq__(self, other):
                return self.size == other.size

            def __lt__(self, other):
                return self.size < other.size
    ''',
    "bakery/wrapping.py": """
        import contextlib
        import functools

        from bakery.settings import OVENS

        CALLS = []


        def doubled(function):
            def inner(*args, **kwargs):
                return [function(*args, **kwargs)] * 2

            return inner


        def scaled(by, *, plus=1):
            def decorate(function):
                @functools.wraps(function)
                def inner(rows):
                    return [by * row + plus for row in function(rows)]

                return inner

            return decorate


        class Remembered:
            def __init__(self, function, size=2):
                functools.update_wrapper(self, function)
                self.function = function
                self.size = size

            def __call__(self, rows):
                return self.function(rows)[: self.size]


        @contextlib.contextmanager
        def heated(degrees=OVENS):
            log = [degrees]
            try:
                yield log
            except ZeroDivisionError:
                log.append("burnt")
            finally:
                log.append(degrees + 1)


        @functools.lru_cache(maxsize=8)
        def slow(value):
            return value * 11


        @functools.singledispatch
        def show(value):
            return ["any", value]


        @show.register
        def _(value: int):
            return ["int", value + 1]


        @show.register(str)
        def show_text(value):
            return ["text", value.upper()]


        class Shown:
            @functools.singledispatchmethod
            def of(self, value):
                return "other"

            @of.register
            def _(self, value: list):
                return len(value) + 1

            tenth = functools.partialmethod(lambda self, a, b: a * 10 + b, 4)
    """,
    "bakery/toppings.py": """
        from bakery import registry, wrapping
        from bakery.registry import ORDER, RECIPES, labelled, recipe
        from bakery.shapes import Loaf

        registry.LIMITS["top"] = 12
        RECIPES["plain"] = lambda rows: [row + 1 for row in rows]
        registry.ORDER.append("sugar")
        registry.configure(sweet=3)


        @recipe("sugar", weight=2)
        def sugar(rows):
            return [row * SWEET for row in rows]


        @recipe("salt")
        def salt(rows):
            return rows[::-1]


        SWEET = 5


        @wrapping.show.register
        def _(value: float):
            return ["float", round(value, 1)]


        def sliced(self, times):
            return [self.weight // times] * times


        Loaf.sliced = sliced
        for tool in ("knife", "fork"):
            setattr(Loaf, tool, "bread")


        @labelled("pepper", 2)
        def pepper(rows):
            return rows


        ORDER += ["late"]
        LAST = ORDER.append("last")
        LABEL = labelled("alone")(pepper)
        [ORDER.append(number) for number in range(2)]
    """,
    "bakery/registry.py": """
        RECIPES = {}
        LIMITS = {"low": 1}
        ORDER = []
        OPTIONS = {}
        LABELS = []


        def labelled(label, times=1):
            LABELS.append(label * times)
            return lambda function: function


        def recipe(name, weight=1):
            def decorate(function):
                RECIPES[name] = function
                ORDER.append(name * weight)
                return function

            return decorate


        def configure(**given):
            OPTIONS.update(given)


        class Steps:
            def __init__(self):
                self.known = {}

            def step(self, name):
                def decorate(function):
                    self.known[name] = function
                    return function

                return decorate

            def run(self, rows):
                for name in sorted(self.known):
                    rows = self.known[name](rows)
                return rows


        STEPS = Steps()
    """,
    "bakery/steps.py": """
        from bakery.registry import STEPS


        @STEPS.step("a")
        def more(rows):
            return [row + 3 for row in rows]


        @STEPS.step("b")
        def fewer(rows):
            return rows[1:]
    """,
    "bakery/lazy.py": """
        import importlib

        _NAMES = {"flour": 5, "water": 6}


        def __getattr__(name):
            if name in _NAMES:
                return _NAMES[name] * FACTOR
            raise AttributeError(name)


        FACTOR = 2


        def by_text():
            return importlib.import_module("bakery.hidden").secret()


        def by_itself(name):
            import sys

            return getattr(sys.modules[__name__], name)


        def by_globals():
            return globals()["FACTOR"] + 1


        def other():
            from bakery import circle

            return circle.around(3)
    """,
    "bakery/hidden.py": "def secret():\n    return [SECRET, 2]\n\n\nSECRET = 17\n",
    "bakery/circle.py": """
        import bakery.lazy as lazy


        def around(times):
            return [lazy.FACTOR] * times
    """,
    "bakery/starred.py": "from bakery.settings import *\nfrom bakery.settings import hidden as shown_again\n",
    "bakery/queries/first.sql": "SELECT a, b FROM loaves WHERE size > 10 AND kind = 'rye'\n",
    "bakery/queries/second.sql": "SELECT count(*) FROM orders\n-- of 2024\n",
    "bakery/queries/prices.json": '{"rye": 3, "oat": 4}\n',
    "bakery/queries/menu.txt": "bread 1\ncake 2\n",
    "bakery/files.py": """
        import json
        import os
        import pkgutil
        from importlib import resources
        from pathlib import Path

        FOLDER = Path(__file__).resolve().parent / "queries"
        PRICES = json.loads((FOLDER / "prices.json").read_text())


        def first():
            return (FOLDER / "first.sql").read_text()


        def second():
            with open(os.path.join(os.path.dirname(__file__), "queries", "second.sql")) as file:
                return file.read().splitlines()


        def menu():
            text = pkgutil.get_data("bakery", "queries/menu.txt").decode()
            again = (resources.files("bakery") / "queries" / "menu.txt").read_text()
            return [line.split() for line in text.splitlines()], len(again)
    """,
    "bakery/assets.py": '''
        """The assets of a bakery."""

        from __future__ import annotations

        import asyncio
        import functools
        import itertools
        import operator

        import bakery
        import bakery.shapes as sh
        from bakery import files, lazy, registry, settings, starred, units, wrapping
        from bakery.settings import BASE, KEY, SQUARES, TOTAL
        from bakery.shapes import Color, Loaf, Order, Point, Right
        from bakery.wrapping import Remembered, doubled, heated, scaled, show

        COUNT = 2
        adder = functools.partial(operator.add, 10)
        PIPELINE = [adder, lambda value: value * 3, abs]
        compose = lambda *functions: functools.reduce(lambda f, g: lambda x: g(f(x)), functions)


        def constants(rows):
            """All constants."""
            first = [settings.OVENS, settings.LENGTH, BASE, TOTAL, settings.FIRST]
            return first + SQUARES + sorted(rows, key=KEY), settings.TABLE, bakery.SIZES, bakery.VERSION


        def two_away(rows):
            return units.weigh(rows), units.balanced(rows), units.sizes()


        def stars(rows):
            from bakery import describe

            return [starred.describe(row) for row in rows], describe(starred.OVENS), starred.shown_again(4)


        def classes(rows):
            loaf = Loaf(rows[0]) + Loaf.large()
            loaf.half = loaf.half + 1
            return loaf.label(), loaf.weight, loaf.price, loaf.is_loaf, loaf.sliced(2), loaf.knife, loaf.fork


        def data(rows):
            orders = sorted(Order(row, rank=row + 1) for row in rows)
            points = [Point(row).norm() for row in rows]
            return [(order.total, order.rank, order.notes) for order in orders], points, Order(1) < Order(1, 5)


        def enums(rows):
            colors = [Color(1), Color.BLUE, Color["GREEN"]]
            return [each.paint(each.value) for each in colors], int(Right.BOTH), Right.READ in Right.BOTH


        def shapes(rows):
            areas = [[kind().area(row) for row in rows] for kind in sh.Shape.kinds]
            with sh.Bun(3) as bun:
                pass
            cake = sh.Cake()
            return areas, bun.size, list(sh.Bun(2)), sh.Bun()(2), cake.cost(), cake.height(), sh.Crumb(1) >= sh.Crumb(2)


        @scaled(3, plus=2)
        def decorated(rows):
            return [row - 1 for row in rows]


        @doubled
        @scaled(2)
        def stacked(rows):
            return rows


        @Remembered
        def remembered(rows):
            return [row + COUNT for row in rows]


        def managed(rows):
            with heated() as log:
                log.append(10 // rows[0])
            return log, wrapping.slow(rows[-1])


        def dispatched(rows):
            shown = wrapping.Shown()
            return show(rows[0]), show("a"), show(2.55), show(None), shown.of(rows), shown.of(1), shown.tenth(2)


        def counter(start, step=2):
            total = start

            def more(times=1):
                nonlocal total
                total += step * times
                return total

            return more


        by_three = counter(3, step=3)
        composed = compose(*PIPELINE)


        def closures(rows):
            more = counter(rows[0])
            more()
            return more(4), [function(rows[0]) for function in PIPELINE], compose(adder, adder)(1)


        def generated(rows):
            seen = set()
            for row in rows:
                if row in seen or row < 0:
                    continue
                seen.add(row)
                yield row
            yield from itertools.accumulate(rows, operator.mul)


        async def later(value):
            await asyncio.sleep(0)
            return value + COUNT


        async def several(rows):
            for row in rows:
                yield await later(row)


        async def awaited(rows):
            found = [value async for value in several(rows) if value > 2]
            return found + await asyncio.gather(later(1), later(2))


        def matched(rows):
            found = []
            for each in [*rows, {"kind": "rye", "size": 3}, (1, 2, 3), "text", Point(1, 5), None]:
                match each:
                    case 0 | 1:
                        found.append("few")
                    case int(number) if number > 3:
                        found.append(number)
                    case {"kind": kind, **rest}:
                        found.append([kind, rest])
                    case Point(x=1, y=other):
                        found.append(other)
                    case (first, *others):
                        found.append([first, others])
                    case str():
                        found.append(each.title())
                    case _:
                        found.append(None)
            return found


        def flow(rows):
            total, index = 0, 0
            while index < len(rows):
                row = rows[index]
                index += 1
                if row == 4:
                    break
                try:
                    total += 12 // row
                except ZeroDivisionError:
                    total -= 1
                else:
                    total += 1
                finally:
                    total *= 2
            else:
                total += 100
            assert total > -100, "too few"
            return total if total % 2 == 0 else -total


        def comprehended(rows):
            table = {row: [other for other in rows if other <= row] for row in rows if not row % 2}
            unique = {len(each) for each in table.values()}
            return table, unique, sum(row * 2 for row in rows), [y for x in rows if (y := x + COUNT) > 3]


        def arguments(rows, first=1, /, *others, last=COUNT, **named):
            def inner(a, b=3, *more, c=4, **rest):
                return a - b + c + len(more) + len(rest)

            return inner(*rows[:3], c=last), inner(1, **{"c": 5, "d": 6}), first, others, named


        def recursive(rows):
            def even(number):
                return number == 0 or odd(number - 1)

            def odd(number):
                return number != 0 and even(number - 1)

            return [even(abs(row)) for row in rows]


        def registered(rows):
            found = [registry.RECIPES[name](rows) for name in sorted(registry.RECIPES)]
            lists = registry.LIMITS, registry.ORDER, registry.OPTIONS, registry.LABELS
            return found, lists, registry.STEPS.run(rows)


        def lazily(rows):
            return lazy.flour, lazy.water, lazy.by_text(), lazy.by_itself("FACTOR"), lazy.by_globals(), lazy.other()


        def from_files(rows):
            return files.first(), files.second(), files.PRICES, files.menu()


        def texts(rows):
            name = "rye"
            query = f"SELECT {name!s:>5} FROM {', '.join(str(row) for row in rows)}" + "%05d" % rows[0]
            return query, "{:,}".format(1000 * rows[0]), b"ab" + bytes([65]), name[::-1], "a" in name


        class Worker:
            rate = 2
            steps = [1, 2]

            def __init__(self, rate=None):
                self.rate = rate or Worker.rate

            def run(self, rows):
                return self._scaled(rows), self.steps

            def _scaled(self, rows):
                return [row * self.rate for row in rows]


        worker = Worker(3)


        def working(rows):
            return worker.run(rows), Worker().run(rows)


        def bound(rows):
            return list(map(worker._scaled, [rows])), max(rows, key=worker.steps.count)
    ''',
}

ADAPTER = '''
ROWS = [([3, 1, 2, 4, 0],), ([0, -5, 7],), ([1],)]
NAMES = """constants two_away stars classes data enums shapes decorated stacked remembered managed dispatched closures
generated awaited matched flow comprehended arguments recursive registered lazily from_files texts working bound"""
CASES = [(f"bakery.assets:{name}", ROWS) for name in NAMES.split()]
CASES += [("bakery.assets:by_three", [(), (2,)]), ("bakery.assets:composed", [(1,), (-40,)])]
CASES += [(f"shop.assets:{name}", ROWS) for name in ("orders", "report", "steps", "tried", "by_two", "partial")]
CASES += [("shop.assets:shown", [("a",), (10_000,), (None,)])]
'''
"""The functions of the sample, as the observer takes them."""
