"""The modules of a project: their sources, what their names are bound to, where they are, and whose they are."""

import ast
import builtins
import copy
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any
from zipimport import zipimporter

from dagster_versioned.code.syntax import DEFINITIONS, Function, Import, children, imports_of, root_name, walk

BUILTINS = frozenset(vars(builtins))

_LEAVING = (ast.Break, ast.Continue, ast.Raise, ast.Assert)
_MUTATORS = frozenset(
    {
        *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "remove"),
        *("setdefault", "update"),
    }
)

_CHANGE = re.compile(
    rf"\b(?:global|del)\b|\.\s*(?:{'|'.join(sorted(_MUTATORS))})\b"
    r"|(?:\.\s*\w+|\])(?:[^\n=(]*|\s*,[^=]*)=(?!=)"  # of an attribute or item, as one of several targets too
    r"|\bfor\b(?:(?!\bin\b)[^\n])*[\].]|\bas\b[^\n:]*[\].]"
)
_OUTERMOST = re.compile(r"^(?!def |class |async |[@#\s]).*(?:\n(?:[ \t)\]}].*)?)*", re.MULTILINE)
_WORD = re.compile(r"[^\W\d]\w*")
_IMPORT = re.compile(r"\bimport\b(?:[^(\n]*\((?:[^)#]|#.*)*)?.*")
_RELATIVE = re.compile(r"\bfrom\s*\.")

Stamp = tuple[int, int]
"""When a file was changed last, in nanoseconds, and its bytes."""


class UnreadableSource(Exception):
    """A module whose source is not there, or is no Python of this release; the text says why, as part of a sentence."""


@dataclass(eq=False)
class SourceModule:
    """A module whose source is known; ``loaded`` is what Python has made of it, if it has.

    ``loaded_as`` is the name that it has in the process: a program is loaded as ``__main__``.
    """

    name: str
    path: str
    source: str
    is_package: bool
    loaded_as: str
    loaded: ModuleType | None = None

    @cached_property
    def tree(self) -> ast.Module:
        """Raises `UnreadableSource`."""
        try:
            return ast.parse(self.source, self.path)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise UnreadableSource(f"the source of {self.name} cannot be parsed ({error})") from error

    @cached_property
    def bindings(self) -> Mapping[str, Sequence[ast.stmt]]:
        """Each name of the module, and the statements that bind it or change what it is bound to, in their order."""
        found: dict[str, list[ast.stmt]] = {}
        changed: list[tuple[ast.stmt, frozenset[str]]] = []
        lines = self.source.splitlines()
        for statement in self.tree.body:
            if isinstance(statement, DEFINITIONS) and not _may_change("\n".join(_lines_of(statement, lines))):
                bound, touched = frozenset({statement.name}), frozenset[str]()
            else:
                bound, touched = _names(statement)
            for name in bound:
                found.setdefault(name, []).append(statement)
            changed.append((statement, touched - bound))
        order = {id(statement): number for number, statement in enumerate(self.tree.body)}
        for statement, names in changed:
            for name in names & found.keys():
                found[name].append(statement)
        return {name: sorted(statements, key=lambda each: order[id(each)]) for name, statements in found.items()}

    @property
    def stars(self) -> Sequence[Import]:
        """The modules all of whose names it imports."""
        return self._imports.get("*", ())

    @cached_property
    def import_effects(self) -> Sequence[ast.stmt]:
        """Those that bind nothing here, but call or change what the module has imported: `np.random.seed(1)`."""
        found = [(each, _effect_of(each)) for each in _flat(self.tree.body)]
        return [each for each, of in found if of is not None and self._may_import(root_name(of))]

    @cached_property
    def changes(self) -> Sequence[tuple[ast.stmt, ast.expr]]:
        """Statements that may change what the module has imported, and what that is."""
        found = [(each, of) for each in _flat(self.tree.body) for of in _changed_by(each)]
        return [(each, of) for each, of in found if self._may_import(root_name(of))]

    @cached_property
    def calls(self) -> Sequence[ast.expr]:
        """What is called when it is imported, with what it is given, and what decorates."""
        found: list[ast.expr] = []
        for statement in _flat(self.tree.body):
            found += [each for each in _expressions(statement) if isinstance(each, ast.Call)]
            found += getattr(statement, "decorator_list", [])
        return found

    def compiled(self, qualname: str) -> Sequence[CodeType]:
        """What Python makes of a function of this qualified name, as the source is now; one for each definition."""
        outermost = qualname.partition(".")[0]
        if outermost not in self._compiled:
            statements = self.bindings.get(outermost)
            # Without a name it is of a lambda. Imports make other bytecode of calls of what they bind.
            body = self.tree.body if statements is None else [*self._import_statements, *statements]
            found: dict[str, list[CodeType]] = {}
            pending = [compile(ast.Module(body, []), self.path, "exec", dont_inherit=True)]
            while pending:
                inner = [each for each in pending.pop().co_consts if isinstance(each, CodeType)]
                for code in inner:
                    found.setdefault(code.co_qualname, []).append(code)
                pending += inner
            self._compiled[outermost] = found
        return self._compiled[outermost].get(qualname, ())

    @cached_property
    def _compiled(self) -> dict[str, dict[str, list[CodeType]]]:
        return {}

    @cached_property
    def _import_statements(self) -> list[ast.stmt]:
        return [each for each in _flat(self.tree.body) if isinstance(each, ast.Import | ast.ImportFrom)]

    @cached_property
    def functions(self) -> Mapping[int, Sequence[Function | ast.Lambda]]:
        """Functions and lambdas by the line on which they begin, decorators included."""
        found: dict[int, list[Function | ast.Lambda]] = {}
        for node in walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                line = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                found.setdefault(line, []).append(node)
            elif isinstance(node, ast.Lambda):
                found.setdefault(node.lineno, []).append(node)
        return found

    @property
    def is_compiled_as_it_is(self) -> bool:
        """Whether Python's own loaders loaded it: others, as pytest's, load something else than the source says."""
        spec = said(self.loaded, "__spec__")
        return "@py_builtins" not in vars(self.loaded) and (
            spec is None or type(spec.loader) in (SourceFileLoader, zipimporter)
        )

    def absolute(self, target: Import) -> str:
        """The full name of the module of an import."""
        if not target.level:
            return target.module
        package = self.name.split(".") if self.is_package else self.name.split(".")[:-1]
        base = package[: len(package) - target.level + 1]
        return ".".join([*base, *filter(None, [target.module])])

    @cached_property
    def _imports(self) -> Mapping[str, Sequence[Import]]:
        found: dict[str, list[Import]] = {}
        for statement in _flat(self.tree.body):
            if isinstance(statement, ast.Import | ast.ImportFrom):
                for name, target in imports_of(statement):
                    found.setdefault(name, []).append(target)
        return found

    def imports(self, name: str) -> Sequence[Import]:
        """What the imports of the module bind a name to."""
        return self._imports.get(name, ()) if name in self.bindings else ()

    def _may_import(self, name: str | None) -> bool:
        """Whether an import binds a name, as one of all names may."""
        return name is not None and bool(self.imports(name) if name in self.bindings else self.stars)

    @cached_property
    def changing_words(self) -> frozenset[str]:
        """The words of what may call or change something when it is imported, without parsing it."""
        statements = [each for each in _OUTERMOST.findall(self.source) if not _is_plain_import(each)]
        return frozenset(word for statement in statements for word in _WORD.findall(statement))

    @cached_property
    def import_words(self) -> tuple[frozenset[str], frozenset[str]]:
        """The words of its imports, without parsing it, and those of them that say what is imported.

        Where an import is relative, the packages that the module is in are among the first.
        """
        source = self.source.replace("\\\n", " ")
        found = list(_IMPORT.finditer(source))
        begun = [source[source.rfind("\n", 0, start) + 1 : start] for start in map(re.Match[str].start, found)]
        imported = frozenset[str]().union(*(_WORD.findall(each[0]) for each in found))
        packages = self.name.split(".") if any(map(_RELATIVE.search, begun)) else []
        return imported.union(packages, *map(_WORD.findall, begun)), imported

    def is_import_alone(self, name: str) -> bool:
        """Whether a name is nothing but one import."""
        statements = self.bindings.get(name, ())
        return len(statements) == 1 and isinstance(statements[0], ast.Import | ast.ImportFrom)

    def statements(self, name: str) -> list[ast.stmt]:
        """The statements of a name; of compound ones what concerns it, and the conditions."""
        return [_sliced(statement, name) for statement in self.bindings.get(name, ())]

    @cached_property
    def literals(self) -> Mapping[str, object]:
        """The names that one statement binds to a literal, and the literal."""
        found: dict[str, object] = {}
        for name, statements in () if self.stars else self.bindings.items():  # a star may bind any of them again
            match statements:
                case [ast.Assign(targets=[ast.Name()], value=value) | ast.AnnAssign(value=ast.expr() as value)]:
                    with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                        found[name] = ast.literal_eval(value)
                case _:
                    pass
        return found


def _flat(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements, and those in compound ones that no function or class is."""
    for statement in statements:
        yield statement
        if not isinstance(statement, DEFINITIONS):
            for block in _blocks(statement):
                yield from _flat(block)


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        if block := getattr(statement, name, None):
            yield block
    for name in ("handlers", "cases"):
        for part in getattr(statement, name, None) or ():
            yield part.body


def _is_left_out(statement: ast.stmt) -> bool:
    """Whether a block never runs where assets do: for type checkers, or where the module is the program."""
    match statement:
        case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
            return True
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__"), ops=[ast.Eq()])):
            return True
        case _:
            return False


def _names(statement: ast.stmt) -> tuple[frozenset[str], frozenset[str]]:
    """The names that a statement of a module binds, and those whose values it may change."""
    bound: set[str] = set()
    touched: set[str | None] = set()
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return frozenset({name}), frozenset(_changed_in(statement))
        case ast.Import() | ast.ImportFrom():
            return frozenset(name for name, _ in imports_of(statement) if name != "*"), frozenset()
        case ast.Expr(value=ast.Call(args=arguments, keywords=keywords) as value):
            touched = {root_name(each) for each in (value, *arguments, *(each.value for each in keywords))}
        case _ if _is_left_out(statement):
            return _names_of(getattr(statement, "orelse", []))
        case _:
            for block in _blocks(statement):
                inner = _names_of(block)
                bound, touched = bound | inner[0], touched | inner[1]
    for node in _expressions(statement):
        name = _bound(node)
        if name is None:
            touched.add(_changed(node))
        else:
            bound.add(name)
    return frozenset(bound), frozenset(each for each in touched if each is not None)


def _bound(node: ast.AST) -> str | None:
    """The name that an expression binds by itself."""
    if isinstance(node, ast.Name):
        return node.id if isinstance(node.ctx, ast.Store) else None
    return node.name if isinstance(node, ast.MatchAs | ast.MatchStar | ast.ExceptHandler) else None


def _changed(node: ast.AST) -> str | None:
    """The name whose value an expression changes by itself: with an item or attribute that it binds, or a method."""
    match node:
        case ast.Attribute(ctx=ast.Store() | ast.Del()) | ast.Subscript(ctx=ast.Store() | ast.Del()):
            return root_name(node)
        case ast.Name(id=name, ctx=ast.Del()):
            return name
        case ast.Call(func=ast.Attribute(value=inner, attr=method)) if method in _MUTATORS:
            return root_name(inner)
        case _:
            return None


def _names_of(block: Iterable[ast.stmt]) -> tuple[frozenset[str], frozenset[str]]:
    bound, touched = frozenset[str](), frozenset[str]()
    for statement in block:
        of_one, by_one = _names(statement)
        bound, touched = bound | of_one, touched | by_one
    return bound, touched


def _expressions(statement: ast.stmt) -> Iterator[ast.AST]:
    """The expressions of a statement, without those of its blocks and of functions in it."""
    pending = [child for child in children(statement) if not isinstance(child, ast.stmt)]
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, ast.Lambda):
            pending += [child for child in children(node) if not isinstance(child, ast.stmt)]


def _lines_of(statement: ast.stmt, lines: Sequence[str]) -> Sequence[str]:
    return lines[statement.lineno - 1 : statement.end_lineno]


def _is_plain_import(text: str) -> bool:
    """Whether a statement imports names as they are."""
    return text.startswith(("from ", "import ")) and " as " not in text


def _may_change(text: str) -> bool:
    """Whether a function or class may change names of its module, without a walk over its tree."""
    return _CHANGE.search(text) is not None


def _changed_in(definition: ast.AST) -> set[str]:
    """The names of its module that a function or class binds, or whose values it fills, where it is called."""
    found: set[str | None] = set()
    own: set[str | None] = {None}
    bound: set[str] = set()
    for node in walk(definition):
        match node:
            case ast.Global(names=names):
                bound.update(names)
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                own.add(name)
            case _:
                found.add(_changed(node))
    return bound | {name for name in found - own if name is not None}


def _effect_of(statement: ast.stmt) -> ast.expr | None:
    """What a bare call calls, or what an attribute or an item is bound, or deleted, of."""
    match statement:
        case ast.Expr(value=ast.Call(func=target)):
            return _held_by(target)
        case (
            ast.Assign(targets=[ast.Attribute() | ast.Subscript() as target])
            | ast.AugAssign(target=ast.Attribute() | ast.Subscript() as target)
            | ast.Delete(targets=[ast.Attribute() | ast.Subscript() as target])
        ):
            return _held_by(target)
        case _:
            return None


def _changed_by(statement: ast.stmt) -> Iterator[ast.expr]:
    """What a statement changes, or calls alone, or hands to what it calls alone, and so may change."""
    match statement:
        case ast.Expr(value=ast.Call(func=target, args=arguments, keywords=keywords)):
            yield from map(_held_by, (target, *arguments, *(each.value for each in keywords)))
        case ast.AugAssign(target=ast.Name() as target):
            yield target
        case _:
            pass
    for node in _expressions(statement):
        if isinstance(node, ast.expr) and _changed(node) is not None:
            yield _held_by(node)


def _held_by(node: ast.expr) -> ast.expr:
    """What an item is of, or what a call calls."""
    while isinstance(node, ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node


def _sliced(statement: ast.stmt, name: str) -> ast.stmt:
    """A compound statement with those parts alone that concern a name; another one as it is."""
    if isinstance(statement, DEFINITIONS) or not any(_blocks(statement)):
        return statement
    shown = copy.copy(statement)
    for field_ in ("body", "orelse", "finalbody"):
        if block := getattr(statement, field_, None):
            setattr(shown, field_, _concerning(block, name, whole=isinstance(shown, ast.Try) and field_ == "body"))
    for field_ in ("handlers", "cases"):
        if parts := getattr(statement, field_, None):
            copies = [copy.copy(part) for part in parts]
            for part in copies:
                part.body = _concerning(part.body, name)
            setattr(shown, field_, copies)
    return shown


def _concerning(block: Iterable[ast.stmt], name: str, *, whole: bool = False) -> list[ast.stmt]:
    """What concerns a name, or leaves the block; ``whole``: whatever runs in it, since any of that may raise."""
    return [
        _sliced(each, name)
        for each in block
        if (whole and not isinstance(each, DEFINITIONS))
        or any(name in names for names in _names(each))
        or any(isinstance(inner, _LEAVING) for inner in _flat([each]))
    ]


class SourceModules:
    """The modules of a process, by the files that they are of; each is parsed once, until its file changes."""

    def __init__(self) -> None:
        self._stamps: dict[str, tuple[Any, Stamp | None]] = {}
        self._known: dict[str, tuple[Stamp | None, SourceModule]] = {}
        self._noted: set[str] = set()

    def note(self) -> None:
        """Remember how the files of the modules that are loaded are now, so that a change of them is seen later."""
        names = set(sys.modules).difference(self._noted)
        self._noted.update(names)
        for name in names:
            if name.partition(".")[0] not in sys.stdlib_module_names:
                self._note(name)

    def is_changed(self, module: SourceModule) -> bool:
        """Whether the file of a loaded module is another one than when that was first seen."""
        if module.loaded is None:
            return False
        _, stamp = self._note(module.loaded_as)
        return stamp != stamp_of(module.path)

    def _note(self, name: str) -> tuple[Any, Stamp | None]:
        loaded = sys.modules.get(name)
        spec, path = said(loaded, "__spec__"), said(loaded, "__file__")
        known = self._stamps.get(name)
        if known is None or known[0] is not (spec or loaded):
            known = self._stamps[name] = (spec or loaded, stamp_of(path) if isinstance(path, str) else None)
        return known

    def of_function(self, module_name: str, path: str) -> str | None:
        """The name of the loaded module that a function is of, by what it says and by the file of its code."""
        if module_name in sys.modules:
            return module_name
        loaded = ((name, said(each, "__file__")) for name, each in list(sys.modules.items()))
        return next((name for name, file in loaded if file == path), None)

    def path_of(self, name: str) -> str | None:
        """The file of a module, loaded or not; ``None`` where there is none, or it is a folder without code."""
        loaded = sys.modules.get(name)
        path = said(loaded, "__file__") if loaded is not None else getattr(find_spec(name), "origin", None)
        return path if isinstance(path, str) and path not in ("built-in", "frozen") else None

    def is_known(self, name: str, module: SourceModule) -> bool:
        """Whether a module, its file included, is what it was when it was read."""
        return module.loaded is sys.modules.get(name) and self._known[name] == (stamp_of(module.path), module)

    def named(self, name: str, path: str) -> SourceModule:
        """A module of a file, loaded or not. Nothing is imported. Raises `UnreadableSource`."""
        loaded, stamp = sys.modules.get(name), stamp_of(path)
        known = self._known.get(name)
        if known is None or known[0] != stamp or known[1].path != path or known[1].loaded is not loaded:
            spec = said(loaded, "__spec__") or find_spec(name)
            is_package = (
                said(loaded, "__path__") is not None or getattr(spec, "submodule_search_locations", None) is not None
            )
            full: str = name if spec is None else spec.name  # of a program it is another one than __main__
            module = SourceModule(full, path, _source(full, path, spec), is_package, name, loaded)
            known = self._known[name] = (stamp, module)
        return known[1]


def said(module: object, name: str) -> Any:
    """What a module says of itself; ``None`` where it says nothing. One that loads when it is asked is not asked."""
    try:
        return object.__getattribute__(module, name)
    except Exception:  # noqa: BLE001 - of what stands in for a module
        return None


def stamp_of(path: str) -> Stamp | None:
    """How a file is now; ``None`` where there is none, as for one in an archive."""
    try:
        status = os.stat(path)  # noqa: PTH116 - asked of every file for each fingerprint
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def find_spec(name: str) -> Any:
    """Where a module is, without importing what it is in; ``None`` where it is not found."""
    path: Sequence[str] | None = None
    spec: Any = None
    parts = name.split(".")
    for number in range(1, len(parts) + 1):
        parent = ".".join(parts[:number])
        loaded = sys.modules.get(parent)
        spec = said(loaded, "__spec__")
        spec = spec or PathFinder.find_spec(parent, path)
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or ())
    return spec


def _source(name: str, path: str, spec: Any) -> str:
    loader: Any = getattr(spec, "loader", None)
    try:
        source = loader.get_source(name) if hasattr(loader, "get_source") else Path(path).read_text("utf-8")
    except (OSError, ImportError, ValueError, SyntaxError) as error:
        raise UnreadableSource(f"the source of {name} cannot be read ({error})") from error
    if source is None:
        raise UnreadableSource(f"{name} has no Python source")
    return source
