"""What a function reaches in ways that are easily overlooked, and edits of it."""

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dagster_versioned.code.fingerprint import CodeOptions, KnownCode, fingerprint_of
from support.code_project import fingerprints, loaded, write_project

REGISTRY = """
    OPTIONS = {}
    STEPS = []
    COUNTS = [7]
    LABELS = []


    def option(key, value):
        OPTIONS[key] = value


    def labelled(label):
        LABELS.append(label)
        return lambda function: function


    def options():
        return OPTIONS


    class Registry:
        def __init__(self):
            self.steps = {}

        def step(self, name):
            def decorator(function):
                self.steps[name] = (1, function)
                return function

            return decorator


    REGISTRY = Registry()


    class Plugin:
        found = []

        def __init_subclass__(cls):
            Plugin.found.append(cls)


    class Node:
        def below(self):
            return [each.weight for each in Node.__subclasses__()]
"""

PLUGINS = """
    from pkg import registry
    from pkg.registry import COUNTS, REGISTRY, Node, Plugin, labelled, option
    from pkg.registry import COUNTS as ALIAS

    option("rate", 3)
    registry.OPTIONS["more"] = 40
    if True:
        registry.STEPS.append(500)


    @REGISTRY.step("first")
    def first(rows):
        return rows + 6


    class Gain(Plugin):
        gain = 7


    class Leaf(Node):
        weight = 80


    @labelled("nine")
    def ninth(rows):
        return rows


    TENTH = labelled("ten")
    COUNTS += [11]
    ALIAS += [10]
    TWELFTH = COUNTS.append(12)
    [COUNTS.append(each) for each in (13,)]


    def fill(counts):
        counts.append(14)


    fill(COUNTS)
    for name in ("fifteen",):
        setattr(Node, name, 15)
"""

CASES: Mapping[str, tuple[str, str, str]] = {
    # what changes, the module of the root and what it is beside, and the edit of it
    "a call that fills a registry": ("from pkg.registry import OPTIONS as x", '"rate", 3', '"rate", 4'),
    "an item that another module sets": ("from pkg.registry import OPTIONS as x", "= 40", "= 41"),
    "a statement in a block of another module": ("from pkg.registry import STEPS as x", "500", "501"),
    "a decorator that fills a registry": ("from pkg.registry import LABELS as x", '"nine"', '"9"'),
    "a decorator less that fills a registry": ("from pkg.registry import LABELS as x", '@labelled("nine")', ""),
    "a call that is bound and fills a registry": ("from pkg.registry import LABELS as x", '"ten"', '"10"'),
    "a list to which another module adds": ("from pkg.registry import COUNTS as x", "[11]", "[110]"),
    "a list to which it adds under another name": ("from pkg.registry import COUNTS as x", "[10]", "[100]"),
    "a call of a method that is bound": ("from pkg.registry import COUNTS as x", "append(12)", "append(120)"),
    "a comprehension of another module": ("from pkg.registry import COUNTS as x", "(13,)", "(130,)"),
    "a function that another module gives a list": ("from pkg.registry import COUNTS as x", "(14)", "(140)"),
    "an attribute that another module sets in a loop": ("from pkg.registry import Node as x", ", 15)", ", 150)"),
    "a decorator of its own module": (
        "x = []\ndef y(z):\n    x.append(z)\n    return lambda f: f\n@y(1)\ndef g():\n    pass",
        "@y(1)",
        "@y(2)",
    ),
    "what a module exports": (
        "from pkg.first import *\nfrom pkg.some import *\nx = lambda: y",
        "['z']",
        "['z', 'y']",
    ),
    "a function that an object holds": ("from pkg.registry import REGISTRY as x", "+ 6", "- 6"),
    "a class that a class holds": ("from pkg.registry import Plugin as x", "gain = 7", "gain = 8"),
    "a subclass that is asked for": ("from pkg.registry import Node as x", "weight = 80", "weight = 81"),
    "a subclass that is asked of a name": (
        "from pkg.registry import Plugin\nx = lambda: Plugin.__subclasses__()",
        "gain = 7",
        "gain = 8",
    ),
    "a function that fills an item of several": (
        "x = [0]\ndef y():\n    x[0], z = 5, 6\ny()",
        "5",
        "50",
    ),
    "a function that fills an attribute of several": (
        "x = lambda: x.y\ndef y():\n    x.y, (\n        a, b\n    ) = 5, (6, 7)\ny()",
        "5",
        "50",
    ),
    "a function that fills an item in a loop": (
        "x = [0]\ndef y():\n    for x[0] in (5,): pass\ny()",
        "5",
        "50",
    ),
    "a function that fills a name": (
        "x = {}\ndef fill():\n    x['k'] = 5\nfill()",
        "= 5",
        "= 6",
    ),
    "a comprehension that fills a name": ("x = []\n[x.append(y) for y in (1, 2)]", "(1, 2)", "(1, 3)"),
    "the end of a loop": (
        "x = []\nfor y in range(5):\n    if y > 3:\n        break\n    x.append(y)",
        "y > 3",
        "y > 2",
    ),
    "what may raise before a name is bound": (
        "try:\n    int('3')\n    x = 1\nexcept ValueError:\n    x = 2",
        "'3'",
        "'c'",
    ),
    "a pattern that binds a name": ("match {'a': 1}:\n    case {'a': x}:\n        pass", "{'a': 1}", "{'a': 2}"),
    "the last of two stars": ("from pkg.first import *\nfrom pkg.last import *", "", ""),
    "a star after a binding": ("x = str(1)\nfrom pkg.last import *", "", ""),
    "a block that runs where the module is imported": (
        "x = 1\nif __name__ != '__main__':\n    x = 2",
        "x = 2",
        "x = 3",
    ),
    "an iterable of the name of its elements": ("y = [1]\nx = lambda: [y for y in y]", "y = [1]", "y = [2]"),
    "a docstring that is read": ('def y():\n    """Select 1."""\nx = lambda: y.__doc__', "Select 1", "Select 2"),
    "a class in a quoted annotation": ("class C:\n    k = 1\nclass x:\n    y: 'list[C]'", "k = 1", "k = 2"),
    "a module by its name": (
        "import importlib\nx = lambda: importlib.import_module('pkg.last').x",
        "",
        "",
    ),
    "the module itself": ("import sys\nx = lambda: getattr(sys.modules[__name__], 'y')\ny = 1", "y = 1", "y = 2"),
    "what a module of its package does to libraries": ("x = 1", "random.seed(1)", "random.seed(2)"),
    "imports of one name": (
        """def x(y):
    if y:
        from pkg.first import x
    else:
        from pkg.last import x
    return x""",
        "first import x\n    else:\n        from pkg.last",
        "last import x\n    else:\n        from pkg.first",
    ),
    "the block of a function in which it imports": (
        """def x(y):
    from pkg.first import x as z
    if y:
        y = 1
        from pkg.last import x as z
    return z""",
        "        from pkg.last",
        "    from pkg.last",
    ),
    "an import that is made too late": (
        "def x():\n    from pkg.first import x as y\n    return y",
        "    from pkg.first import x as y\n    return y",
        "    return y\n    from pkg.first import x as y",
    ),
    "one lambda of several on a line": ("x = [lambda y: y + 1, lambda y: y + 2][1]", "y + 2", "y + 3"),
    "the class of a tuple in a closure": (
        """from typing import NamedTuple
class P(NamedTuple):
    a: int
    def y(self):
        return 1
def m(p):
    return lambda: p.y()
x = m(P(1))""",
        "return 1",
        "return 2",
    ),
    "what a dictionary makes where a key is missing": (
        "from collections import defaultdict\ndef m(p):\n    return lambda: p[0]\nx = m(defaultdict(lambda: 1))",
        "lambda: 1",
        "lambda: 2",
    ),
    "the class of a decorator": (
        """from functools import update_wrapper
class D:
    def __init__(self, f):
        update_wrapper(self, f)
    def __call__(self):
        return 1
def m(p):
    return lambda: p()
x = m(D(lambda: 2))""",
        "return 1",
        "return 3",
    ),
    "a file by its package": (
        "from importlib import resources\nx = lambda: (resources.files('pkg') / 'query.sql').read_text()",
        "",
        "",
    ),
    "a file by a function of Dagster": (
        "import dagster\nx = lambda: open(dagster.file_relative_path(__file__, 'query.sql')).read()",
        "",
        "",
    ),
    "a file by a library's function": ("import pkgutil\nx = lambda: pkgutil.get_data('pkg', 'query.sql')", "", ""),
}


@pytest.mark.parametrize("kind", CASES)
def test_what_is_reached_is_seen(tmp_path: Path, kind: str) -> None:
    text, old, new = CASES[kind]
    digests: list[str] = []
    for number, edited in enumerate((False, True)):
        files = {
            "pkg/__init__.py": "import random\nrandom.seed(1)\n",
            "pkg/registry.py": REGISTRY,
            "pkg/plugins.py": PLUGINS,
            "pkg/first.py": "x = int('1')\ny = int('3')\n",
            "pkg/some.py": "__all__ = ['z']\nz = 1\ny = int('4')\n",
            "pkg/last.py": f"x = int('{2 + edited * (not old)}')\n",
            "pkg/query.sql": f"SELECT {edited * (not old)}\n",
            "pkg/assets.py": f"{text}\n\n\ndef root():\n    return x\n",
        }
        if old and edited:
            assert any(old in each for each in files.values())
            files = {name: each.replace(old, new) for name, each in files.items()}
        write_project(tmp_path / str(number), files)
        found = fingerprints(tmp_path / str(number), None, "pkg.assets", "pkg.plugins", names=("root",))["root"]
        assert found.opaque == []
        digests.append(found.digest)
    assert digests[0] != digests[1]


@pytest.mark.parametrize(
    "filling",
    [
        "import pkg.registry\npkg.registry.STEPS.append(1)",
        "import pkg.registry as other\nother.STEPS.append(1)",
        "import pkg.first\npkg.registry.STEPS.append(1)",
        "import pkg\npkg.registry.STEPS.append(1)",
        "from pkg import registry as other\nother.STEPS.append(1)",
        "from . import registry\nregistry.STEPS.append(1)",
        "from . import kept\nkept.STEPS.append(1)",
        "from .first import STEPS as other\nother.append(1)",
        "from .registry import *\nSTEPS.append(1)",
        "from .registry import (  # of ) all\n    OTHER, STEPS,\n)\nSTEPS.append(1)",
        "from .registry \\\n    import STEPS\nSTEPS.append(1)",
        "from .registry import STEPS as other\nother.append(1)",
        "import pkg as p\np.kept.STEPS.append(1)",
    ],
)
def test_what_fills_a_registry_is_seen_however_it_is_imported(tmp_path: Path, filling: str) -> None:
    files = {
        "pkg/__init__.py": "from pkg import registry as kept\n",
        "pkg/first.py": "from pkg.registry import STEPS\n",
        "pkg/plugins.py": filling + "\n",
    }
    assert digests_of_two_fillings(tmp_path, files, "pkg.plugins") == 2


def test_what_fills_a_registry_by_its_package_is_seen_where_the_package_imports_nothing(tmp_path: Path) -> None:
    files = {"pkg/__init__.py": "", "plugins.py": "import pkg\npkg.registry.STEPS.append(1)\n"}
    assert digests_of_two_fillings(tmp_path, files, "plugins") == 2


def digests_of_two_fillings(folder: Path, files: Mapping[str, str], plugins: str) -> int:
    """How many digests a function has that reads a registry to which plugins add a one, and then a two."""
    own = {
        "pkg/registry.py": "STEPS = []\nOTHER = 1\n",
        "pkg/assets.py": "from pkg.registry import STEPS\n\n\ndef root():\n    return STEPS\n",
    }
    digests: set[str] = set()
    for number in (1, 2):
        added = {name: text.replace("(1)", f"({number})") for name, text in files.items()}
        write_project(folder / str(number), {**own, **added})
        found = fingerprints(folder / str(number), None, "pkg.assets", plugins, names=("root",))["root"]
        assert found.opaque == []
        digests.add(found.digest)
    return len(digests)


def test_no_module_is_parsed_that_imports_nothing_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a fingerprint takes as long, and as much memory, as all that a process has loaded."""
    parsed: list[str] = []
    parse = ast.parse

    def noted(source: str, path: str = "", *args: Any, **kwargs: Any) -> ast.AST:
        parsed.append(Path(path).name)
        return parse(source, path, *args, **kwargs)

    monkeypatch.setattr(ast, "parse", noted)
    others = [f"other{number}" for number in range(20)]
    files = {f"{name}.py": "import math\nx = [1]\nx.append(y := 2)\nroot = print(x)\n" for name in others}
    write_project(tmp_path, {**files, "one/root.py": "x = [1]\ny = 2\ndef root():\n    return x, y\n"})
    fingerprints(tmp_path, None, "one.root", *others, names=("root",))
    assert "root.py" in parsed
    assert not [name for name in parsed if name.startswith("other")]


def test_a_line_break_after_a_lambda_in_a_lambda_is_not_seen(tmp_path: Path) -> None:
    digests: set[str] = set()
    for number, end in enumerate((", 2)", ",\n2\n)")):
        write_project(tmp_path / str(number), {"one/root.py": f"made = lambda a: (lambda: a{end}\nroot, _ = made(1)\n"})
        digests.add(fingerprints(tmp_path / str(number), None, "one.root", names=("root",))["root"].digest)
    assert len(digests) == 1


EVIL = """
    import dataclasses

    CALLED = []


    def called(*_):
        CALLED.append(1)
        raise RuntimeError("hunter2")


    class Evil:
        __getattr__ = __getattribute__ = __eq__ = __hash__ = __repr__ = __bool__ = __len__ = __iter__ = called


    class Proxy:
        __class__ = __dict__ = property(called)


    class Mapping(dict):
        items = __iter__ = __len__ = called


    @dataclasses.dataclass
    class Data:
        x: int = 1
        __getattribute__ = called


    HELD = [Evil(), Proxy(), Mapping(a=1), Data()]


    def circular():
        return circular


    circular.__wrapped__ = circular
    large = dict.fromkeys(range(1_000_000))


    def made(*values):
        return lambda: values


    root = lambda: (HELD, large)
    others = [made(each) for each in (*HELD, large)]
    others.append(circular)
"""


def test_no_code_of_the_project_is_called(tmp_path: Path) -> None:
    write_project(tmp_path, {"evil.py": EVIL})
    with loaded(tmp_path, "evil") as module:
        known = KnownCode()
        found = [fingerprint_of(each, CodeOptions(), known) for each in (module.root, *module.others)]
        assert module.CALLED == []
    assert [bool(each.opaque) for each in found] == [False, True, True, False, False, True, True]
    assert "hunter2" not in str(found)


def test_what_went_wrong_is_said_again(tmp_path: Path) -> None:
    chain = {f"far/m{number}.py": f"from far.m{number + 1} import x\n" for number in range(1000)}
    write_project(tmp_path, {**chain, "far/root.py": "def root():\n    from far.m0 import x\n    return x\n"})
    with loaded(tmp_path, "far.root") as module:
        known = KnownCode()
        for _ in range(2):
            opaque = fingerprint_of(module.root, CodeOptions(), known).opaque
            assert opaque == ["the code of far.root:root could not be followed (RecursionError)"]


def test_a_change_behind_ten_thousand_modules_is_seen(tmp_path: Path) -> None:
    step = "def x():\n    from long.m{} import x\n    return x()\n"
    chain = {f"long/m{number}.py": step.format(number + 1) for number in range(9_999)}
    write_project(tmp_path, {**chain, "long/m9999.py": "def x():\n    return 1\n"})
    with loaded(tmp_path, "long.m0") as module:
        known = KnownCode()
        first = fingerprint_of(module.x, CodeOptions(), known)
        write_project(tmp_path, {"long/m9999.py": "def x():\n    return 12\n"})
        second = fingerprint_of(module.x, CodeOptions(), known)
    assert (first.opaque, second.opaque) == ([], [])
    assert len(second.functions) == 10_000
    assert [name for name in second.functions if first.functions[name] != second.functions[name]] == ["long.m9999:x"]
    assert first.digest != second.digest


def test_a_file_that_changes_in_the_life_of_a_process_is_seen(tmp_path: Path) -> None:
    text = "from pathlib import Path\n\n\ndef root():\n    return (Path(__file__).parent / 'x.sql').read_text()\n"
    write_project(tmp_path, {"queries/root.py": text, "queries/x.sql": "SELECT 1"})
    with loaded(tmp_path, "queries.root") as module:
        known = KnownCode()
        first = fingerprint_of(module.root, CodeOptions(), known)
        write_project(tmp_path, {"queries/x.sql": "SELECT 10"})
        assert fingerprint_of(module.root, CodeOptions(), known).digest != first.digest
