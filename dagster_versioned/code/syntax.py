"""Syntax trees as text that is the same for equal code in every release of Python, and the names that code uses.

Positions, comments, docstrings, parentheses and how literals are spelt are no part of it, nor is the order of imports.
"""

import ast
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import dropwhile
from typing import Any, cast

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
IMPORTS = (ast.Import, ast.ImportFrom)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_UNSEEN_FIELDS = frozenset({"ctx", "kind", "type_comment", "type_ignores", "simple"})
_NO_NODES = _UNSEEN_FIELDS | {"arg", "attr", "conversion", "id", "is_async", "level", "module"}
_KINDS = [each for each in vars(ast).values() if isinstance(each, type) and issubclass(each, ast.AST)]
_CHILDREN = {each: tuple(name for name in each._fields if name not in _NO_NODES) for each in _KINDS}
_SEEN = {each: tuple(name for name in each._fields if name not in _UNSEEN_FIELDS) for each in _KINDS}


@dataclass(frozen=True, slots=True)
class Import:
    """What an import statement binds a name to: a module, or a name in one; ``level`` counts the dots before it.

    ``import a.b`` binds ``a``; ``attribute`` is ``*`` for all names of a module.
    """

    module: str
    attribute: str | None = None
    level: int = 0


@dataclass(frozen=True, slots=True)
class Use:
    """A name that code takes from outside, with the attributes that it asks of it; where it imports it, what that is,
    and how many other imports may bind the name ``before``.
    """

    name: str
    attributes: tuple[str, ...] = ()
    before: int = 0
    imported: Import | None = None


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes that a node consists of; `ast.iter_child_nodes` takes three times as long."""
    found: list[ast.AST] = []
    for name in _CHILDREN[type(node)]:
        value: Any = getattr(node, name, None)
        if type(value) is list:
            found += [each for each in cast("list[object]", value) if isinstance(each, ast.AST)]
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all below it, in no order."""
    pending = [node]
    while pending:
        node = pending.pop()
        yield node
        pending += children(node)


def canonical_text(node: ast.AST, *, without_decorators: Sequence[ast.expr] = ()) -> str:
    """The text of a piece of code, without docstrings, imports and these decorators.

    Annotations of the parameters of a function that nothing decorates are left out, since nothing reads them. Of an
    import that a function makes after it has begun, it says where that is.
    """
    parts: list[str] = []
    _write(node, parts, frozenset(map(id, without_decorators)), is_inner=False)
    return "".join(parts)


def _write(value: object, parts: list[str], unseen: frozenset[int], *, is_inner: bool) -> None:
    match value:
        case str():
            parts.append(json.dumps(value))
        case ast.Constant():
            parts.append(literal_text(value.value))
        case ast.JoinedStr():
            parts.append("(JoinedStr")
            for piece in _joined(value.values):
                _write(piece, parts, unseen, is_inner=is_inner)
            parts.append(")")
        case ast.AST():
            parts.append(f"({type(value).__name__}")
            is_inner = is_inner or isinstance(value, DEFINITIONS)
            for name, member in _fields(value, unseen):
                parts.append(f" {name}=")
                _write(member, parts, unseen, is_inner=is_inner)
            parts.append(")")
        case list():
            _write_list(cast("list[object]", value), parts, unseen, is_inner=is_inner)
        case _:
            parts.append(literal_text(value))


def _write_list(members: Sequence[object], parts: list[str], unseen: frozenset[int], *, is_inner: bool) -> None:
    """Statements, or what an expression has several of. Of imports in a function it is said which names they bind here;
    what these stand for counts where they are used.
    """
    imported: list[str] = []
    parts.append("[")
    for member in members:
        if isinstance(member, IMPORTS):
            imported += [name for name, _ in imports_of(member)] if is_inner else ()
            continue
        if imported:
            parts.append(f"(Import {' '.join(sorted(imported))}),")
            imported = []
        _write(member, parts, unseen, is_inner=is_inner)
        parts.append(",")
    if imported:
        parts.append(f"(Import {' '.join(sorted(imported))}),")
    parts.append("]")


def _fields(node: ast.AST, unseen: frozenset[int]) -> Iterator[tuple[str, object]]:
    """What a node consists of, by name; what is empty or means nothing is left out."""
    for name in _SEEN[type(node)]:
        value: Any = getattr(node, name, None)
        if name == "body" and isinstance(value, list):
            value = _without_first_imports(node)
        elif name == "decorator_list":
            value = [each for each in value if id(each) not in unseen]
        elif name == "args" and isinstance(value, ast.arguments) and not has_annotations(node):
            value = _unannotated(value)
        elif name == "returns" and not has_annotations(node):
            continue
        if value is not None and value != []:
            yield name, value


def has_annotations(node: ast.AST) -> bool:
    """Whether the annotations of a function may be read, by what decorates it; a lambda has none."""
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and bool(node.decorator_list)


def _unannotated(arguments: ast.arguments) -> ast.arguments:
    def bare(each: ast.arg | None) -> ast.arg | None:
        return None if each is None else ast.arg(arg=each.arg)

    return ast.arguments(
        posonlyargs=[ast.arg(arg=each.arg) for each in arguments.posonlyargs],
        args=[ast.arg(arg=each.arg) for each in arguments.args],
        vararg=bare(arguments.vararg),
        kwonlyargs=[ast.arg(arg=each.arg) for each in arguments.kwonlyargs],
        kw_defaults=arguments.kw_defaults,
        kwarg=bare(arguments.kwarg),
        defaults=arguments.defaults,
    )


def without_docstring(node: ast.AST) -> list[ast.stmt]:
    """The statements in a block; of a module, class or function without its docstring."""
    body: list[ast.stmt] = getattr(node, "body", [])
    if not isinstance(node, (ast.Module, *DEFINITIONS)) or not body or not is_text(body[0]):
        return body
    return body[1:]


def _without_first_imports(node: ast.AST) -> list[ast.stmt]:
    """The same, and without the imports with which a function or class begins."""
    body = without_docstring(node)
    return list(dropwhile(lambda each: isinstance(each, IMPORTS), body)) if isinstance(node, DEFINITIONS) else body


def is_text(statement: ast.stmt) -> bool:
    """Whether a statement is a text alone, as a docstring is."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _joined(values: Iterable[ast.expr]) -> Iterator[ast.expr]:
    """The pieces of an f-string, whose texts releases of Python cut differently."""
    text = ""
    for value in values:
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            text += value.value
            continue
        if text:
            yield ast.Constant(text)
        text = ""
        yield value
    if text:
        yield ast.Constant(text)


def literal_text(value: object) -> str:
    """A literal; `repr` of texts and of long numbers is not the same in every release."""
    match value:
        case str():
            return json.dumps(value)
        case bool() | None:
            return repr(value)
        case bytes():
            return f"b'{value.hex()}'"
        case int():
            return hex(value)
        case float():
            return value.hex()
        case complex():
            return f"{value.real.hex()}+{value.imag.hex()}j"
        case _:
            return type(value).__name__  # an ellipsis


class _Scope:
    """The names that a function has of its own, and what it imports under some of them."""

    def __init__(self, arguments: ast.arguments | None, body: Iterable[ast.AST]) -> None:
        self.outside: set[str] = set()
        self.bound: set[str] = set()
        self.imports: dict[str, list[Import]] = {}
        if arguments is not None:
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            self.bound |= {each.arg for each in (*every, arguments.vararg, arguments.kwarg) if each is not None}
        for node in body:
            self._bind(node)
        self.bound -= self.outside

    def _bind(self, node: ast.AST) -> None:
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                self.bound.add(name)
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                self.outside.update(names)
            case ast.Import() | ast.ImportFrom():
                for name, target in imports_of(node):
                    self.bound.add(name)
                    self.imports.setdefault(name, []).append(target)
            case (
                ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
                | ast.MatchMapping(rest=str(name))
            ):
                self.bound.add(name)
            case _:
                pass
        if isinstance(node, DEFINITIONS):
            self.bound.add(node.name)
        else:
            self._bind_below(node)

    def _bind_below(self, node: ast.AST) -> None:
        if isinstance(node, _COMPREHENSIONS):
            for each in walk(node):  # which binds in the function that it is in
                if isinstance(each, ast.NamedExpr):
                    self.bound.add(each.target.id)
        elif not isinstance(node, ast.Lambda):
            for child in children(node):
                self._bind(child)


def imports_of(statement: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, Import]]:
    """The names that an import statement binds, and to what."""
    for alias in statement.names:
        if isinstance(statement, ast.ImportFrom):
            yield alias.asname or alias.name, Import(statement.module or "", alias.name, statement.level)
        elif alias.asname:
            yield alias.asname, Import(alias.name)
        else:
            yield alias.name.partition(".")[0], Import(alias.name.partition(".")[0])


def uses_of(node: ast.AST, *, without_decorators: Sequence[ast.expr] = ()) -> list[Use]:
    """The names that a piece of code takes from outside, in their order. Annotations count as in `canonical_text`."""
    found: set[Use] = set()
    _Reader(found, frozenset(map(id, without_decorators))).read(node, ())
    return sorted(found, key=repr)


class _Reader:
    def __init__(self, found: set[Use], unseen: frozenset[int]) -> None:
        self._found = found
        self._unseen = unseen

    def read(self, node: object, scopes: tuple[_Scope, ...]) -> None:
        match node:
            case ast.Name(id=name):
                self._use(name, (), scopes)
            case ast.Attribute():
                self._read_attribute(node, scopes)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._read_function(node, scopes)
            case ast.Lambda(args=arguments, body=body):
                self._read_defaults(arguments, scopes)
                self.read(body, (*scopes, _Scope(arguments, [body])))
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                self.read(node.generators[0].iter, scopes)  # which is evaluated outside
                inner = (*scopes, _Scope(None, [generator.target for generator in node.generators]))
                for child in children(node):
                    self.read(child, inner)
            case ast.Import() | ast.ImportFrom():
                pass  # what is imported counts where it is used
            case ast.AST():
                for name, value in _fields(node, self._unseen):
                    self._read_field(name, value, scopes)
            case _:
                pass

    def _read_field(self, name: str, value: object, scopes: tuple[_Scope, ...]) -> None:
        self._read_member(value, scopes)
        if name in ("annotation", "returns") and isinstance(value, ast.AST):
            for each in walk(value):  # which may be quoted
                if isinstance(each, ast.Constant) and isinstance(each.value, str):
                    with suppress(SyntaxError, ValueError):
                        self.read(ast.parse(each.value, mode="eval").body, scopes)

    def _read_member(self, value: object, scopes: tuple[_Scope, ...]) -> None:
        if isinstance(value, list):
            for each in cast("list[object]", value):
                self.read(each, scopes)
        else:
            self.read(value, scopes)

    def _read_function(self, node: Function, scopes: tuple[_Scope, ...]) -> None:
        for name, value in _fields(node, self._unseen):
            self._read_field(name, value, (*scopes, _Scope(node.args, node.body)) if name == "body" else scopes)

    def _read_defaults(self, arguments: ast.arguments, scopes: tuple[_Scope, ...]) -> None:
        self._read_member([*arguments.defaults, *arguments.kw_defaults], scopes)

    def _read_attribute(self, node: ast.Attribute, scopes: tuple[_Scope, ...]) -> None:
        names: list[str] = []
        root: ast.expr = node
        while isinstance(root, ast.Attribute):
            names.append(root.attr)
            root = root.value
        if isinstance(root, ast.Name):
            self._use(root.id, tuple(reversed(names)), scopes)
        else:
            self.read(root, scopes)

    def _use(self, name: str, attributes: tuple[str, ...], scopes: tuple[_Scope, ...]) -> None:
        for scope in reversed(scopes):
            if name in scope.bound:
                self._found |= {Use(name, attributes, *each) for each in enumerate(scope.imports.get(name, ()))}
                return
            if name in scope.outside:
                break
        self._found.add(Use(name, attributes))


def modules_asked_for(nodes: Iterable[ast.AST]) -> set[str | None]:
    """The modules that code asks for by texts, in ``import_module("a.b")`` and ``sys.modules["a.b"]``.

    An empty name stands for its own, ``None`` for one that is not known.
    """
    found: set[str | None] = set()
    for node in (each for root in nodes for each in walk(root)):
        match node:
            case ast.Call(func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"), args=[name, *more]):
                found.add(None if more else _module_name(name))
            case ast.Subscript(value=ast.Name(id="modules") | ast.Attribute(attr="modules"), slice=name):
                found.add(_module_name(name))
            case _:
                pass
    return found


def _module_name(node: ast.expr) -> str | None:
    match node:
        case ast.Constant(value=str(name)):
            return name
        case ast.Name(id="__name__"):
            return ""
        case _:
            return None


def root_name(node: ast.AST) -> str | None:
    """The name that an expression of attributes, items and calls begins with."""
    while True:
        match node:
            case ast.Attribute(value=inner) | ast.Subscript(value=inner) | ast.Starred(value=inner):
                node = inner
            case ast.Call(func=inner):
                node = inner
            case ast.Name(id=name):
                return name
            case _:
                return None
