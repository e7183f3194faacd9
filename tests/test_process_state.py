"""No module changes after its import: what a process remembers is in `PROCESS`, and listed in the architecture."""

import ast
import pickle
import re
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

import dagster_versioned
from dagster_versioned.process_state import ProcessState

PACKAGE = Path(dagster_versioned.__file__).parent
ARCHITECTURE = PACKAGE.parent / "docs/explanation/architecture.md"

EXCEPTED = {
    "__init__.py: globals()[name]": "a public name that was imported stays, as a name of any module does",
    "__init__.py: list(_HOME)": "Python asks for a list of names",
    "delta_tables/arrow/__init__.py: list(MOVED_FUNCTIONS)": "Python asks for a list of names",
}
"""What may change, and why. Nor is a function with `@cache` looked at: what it keeps follows from its arguments and can
be forgotten at any time. Other constants may be of a type that can change, such as dictionaries and the commands that
decorators add at import: that no function changes them is what is looked for."""

CHANGES = {
    *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "move_to_end", "remove", "reset", "sort"),
    *("update", "__setitem__"),
}
CHANGES_AND_TELLS = {"pop", "popitem", "popleft", "set", "setdefault"}
STATE = re.compile(
    r"dict|list|set|deque|count|local|Counter|defaultdict|OrderedDict|Event|Weak\w+|\w*(Lock|Semaphore|ContextVar)"
)

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def root_of(node: ast.AST) -> str | None:
    """The name that ``name.member[key]`` begins with."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    if isinstance(node, ast.Call) and not node.args:  # globals()
        node = node.func
    return node.id if isinstance(node, ast.Name) else None


def outside_functions(tree: ast.AST) -> list[ast.AST]:
    """What a module or function consists of, without what is in the functions within."""
    found = list(ast.iter_child_nodes(tree))
    for node in found:
        if not isinstance(node, Function):
            found += ast.iter_child_nodes(node)
    return found


def state(tree: ast.AST, shared: frozenset[str] = frozenset()) -> Iterator[ast.AST]:
    """What a module, or a function within that sees these names of modules, changes or binds to be changed."""
    nodes, is_module = outside_functions(tree), isinstance(tree, ast.Module)
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    stored |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    shared = shared | stored | {"globals"} if is_module else shared - stored
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and f"{node.module}".startswith(PACKAGE.name):
            shared |= {each.asname or each.name for each in node.names}
        elif isinstance(node, ast.ClassDef) and is_module:
            shared |= {node.name}
    for node in nodes:
        if isinstance(node, Function):
            yield from state(node, shared)
        elif is_module and isinstance(node, ast.Assign | ast.AnnAssign):
            # Of a class, an empty collection is a default, which pydantic and dataclasses copy.
            if is_for_changes(node.value, may_be_empty=node not in tree.body):
                yield cast("ast.expr", node.value)
        elif not is_module and is_change(node, shared):
            yield node


def is_change(node: ast.AST, shared: frozenset[str]) -> bool:
    match node:
        case ast.Global():
            return True
        case ast.Attribute(ctx=ast.Store() | ast.Del()) | ast.Subscript(ctx=ast.Store() | ast.Del()):
            return root_of(node) in shared
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=target, attr=verb))):
            return verb in CHANGES and root_of(target) in shared
        case ast.Call(func=ast.Attribute(value=target, attr=verb)):
            return verb in CHANGES_AND_TELLS and root_of(target) in shared
        case _:
            return False


def is_for_changes(value: ast.AST | None, *, may_be_empty: bool) -> bool:
    """Whether a value is made to be changed: a lock, a weak mapping, a collection of nothing."""
    match value:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return STATE.fullmatch(name) is not None
        case ast.Dict(keys=[]) | ast.List(elts=[]):
            return not may_be_empty
        case _:
            return False


def state_of(text: str) -> list[str]:
    """The state of a module, as it is written there."""
    return [ast.unparse(node) for node in state(ast.parse(text))]


MODULES = {path.relative_to(PACKAGE).as_posix(): path.read_text("utf-8") for path in sorted(PACKAGE.rglob("*.py"))}


def test_no_module_has_state():
    found = {f"{module}: {state}" for module, text in MODULES.items() for state in state_of(text)}
    assert found == set(EXCEPTED)


@pytest.mark.parametrize(
    "text",
    [
        "def count():\n    global calls\n    calls = 1",
        "seen = {'a': 1}\ndef see(name):\n    seen[name] = 1",
        "seen = {'a': 1}\ndef see(name):\n    return seen.setdefault(name, 1)",
        "names = ['a']\nclass Names:\n    def add(self, name):\n        names.append(name)",
        "from dagster_versioned.bounds import BOUNDS\ndef drop(name):\n    del BOUNDS[name]",
        "class Names:\n    known = None\ndef know(names):\n    Names.known = names",
        "def remember(name):\n    globals()[name] = 1",
        "seen = {}",
        "class Names:\n    locks = WeakValueDictionary()",
        "lock = threading.Lock()",
        "given: ContextVar[str] = ContextVar('given')",
    ],
)
def test_that_would_be_state(text):
    assert state_of(text)


@pytest.mark.parametrize(
    "text",
    [
        "SECONDS = {'s': 1, 'm': 60}\ndef seconds(unit):\n    return SECONDS[unit]",
        "seen = {'a': 1}\ndef see():\n    seen = {}\n    seen['a'] = 2\n    return seen",
        "def see(self, seen):\n    seen.add(1)\n    self.seen = seen",
        "FIELDS = SCHEMA.append(FIELD)",
        "@cache\ndef fields(table):\n    return {}",
    ],
)
def test_that_is_none(text):
    assert state_of(text) == []


class Seen(list[str]):
    """What a test has seen."""


class Owner:
    pass


def test_of_a_class_there_is_one_object_and_one_for_each_owner():
    state, owner, other = ProcessState(), Owner(), Owner()
    assert state.of(Seen) is state.of(Seen)
    assert state.of(Seen, owner) is state.of(Seen, owner)
    assert len({id(state.of(Seen)), id(state.of(Seen, owner)), id(state.of(Seen, other))}) == 3


def test_it_lives_as_long_as_its_owner():
    state, owner = ProcessState(), Owner()
    seen = weakref.ref(state.of(Seen, owner))
    del owner
    assert seen() is None


def test_a_class_is_forgotten_for_all():
    state, owner = ProcessState(), Owner()
    state.of(Seen).append("a")
    state.of(Seen, owner).append("b")
    state.forget(Seen)
    assert state.of(Seen) == state.of(Seen, owner) == []


def test_another_process_begins_with_nothing():
    state = ProcessState()
    state.of(Seen).append("a")
    assert pickle.loads(pickle.dumps(state)).of(Seen) == []


def test_what_is_remembered_is_listed_in_the_architecture():
    names = {name for text in MODULES.values() for name in re.findall(r"PROCESS\.of\((\w+)", text)}
    classes = {(name, module) for module, text in MODULES.items() for name in re.findall(r"^class (\w+)", text, re.M)}
    listed = re.findall(r"^\| `(\w+)` \| `([\w/]+\.py)` \|", ARCHITECTURE.read_text("utf-8"), re.M)
    assert sorted(listed) == sorted((name, module) for name, module in classes if name in names)
