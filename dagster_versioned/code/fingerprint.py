"""The fingerprint of a function: a digest of its code, and of everything of the project's own that it reaches.

What a name of a module stands for is the text of all statements that bind or change it, never its value, so that
neither clock nor environment nor secrets count. Values count where no text tells them: in closures, defaults and
partials. What cannot be followed makes the function *opaque*; nobody may say then that its code is what it was.
"""

import ast
import hashlib
import inspect
import logging
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any, Final, cast

from dagster_versioned.code.commit import CommitOfCode, commit_of
from dagster_versioned.code.file_paths import Paths
from dagster_versioned.code.modules import (
    BUILTINS,
    SourceModule,
    SourceModules,
    Stamp,
    UnreadableSource,
    said,
    stamp_of,
)  # fmt: skip
from dagster_versioned.code.ownership import Distributions, Ownership, normalized
from dagster_versioned.code.runtime import runtime_of
from dagster_versioned.code.syntax import DEFINITIONS, Import, Use, canonical_text, modules_asked_for, uses_of
from dagster_versioned.code.values import code_held, members_of, parts_of, plain_text

logger = logging.getLogger("dagster_versioned")

ALGORITHM: Final = 1
"""Changes whenever equal code gets another fingerprint."""

_EMPTY = CellType()
_WRAPPERS = (property, staticmethod, classmethod)
_ANY_MODULE = frozenset({"importlib.import_module", "sys.modules"})
_ANY_CODE = frozenset({"exec", "eval", "compile", "__import__"})
_WHOLE: Final = "*"
_LIBRARIES: Final = "<libraries>"


@dataclass(frozen=True)
class CodeOptions:
    """What else counts as the code of a function: ``also`` functions, classes and modules that it reaches unseen,
    ``files`` that it reads (patterns, below its module's folder), ``libraries`` by their release, and distributions or
    packages to ``follow`` as if they were the project's own.
    """

    also: Sequence[Any] = ()
    files: Sequence[str] = ()
    libraries: Sequence[str] = ()
    follow: Sequence[str] = ()


@dataclass(frozen=True)
class Fingerprint:
    """The code of a function, as it is loaded: ``digest`` (64 hex), and what it consists of.

    ``functions`` has a digest of each function and class alone, by module and name; constants are named, since a digest
    of a password gives it away. ``opaque`` says, as sentences, what could not be followed.
    """

    digest: str
    function: str
    functions: Mapping[str, str] = field(default_factory=dict[str, str])
    constants: Sequence[str] = ()
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    libraries: Mapping[str, str] = field(default_factory=dict[str, str])
    opaque: Sequence[str] = ()
    sources: Sequence[str] = ()

    def __str__(self) -> str:
        return f"{ALGORITHM}:{self.digest}" if self.digest else "unknown"


Key = tuple[str, str] | tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class _Target:
    """What a name stands for: a node, or, where that is a library's or plain data, its text."""

    text: str = ""
    key: Key | None = None


@dataclass(eq=False)
class _Node:
    """One piece of code: the statements of a name, a function that was made in another, or a value with parts."""

    name: str
    kind: str
    text: str = ""
    targets: list[tuple[str, _Target]] = field(default_factory=list[tuple[str, _Target]])
    opaque: list[str] = field(default_factory=list[str])
    source: str | None = None
    kept: object = None

    @cached_property
    def digest(self) -> bytes:
        return hashlib.sha256(_encoded(self.text)).digest()

    @cached_property
    def own_digest(self) -> bytes:
        """Of all of it but the nodes that it leads to."""
        members = [each for label, target in self.targets for each in (label, target.text, str(target.key is None))]
        return hashlib.sha256(self.digest + _encoded(*members)).digest()

    @cached_property
    def keys(self) -> list[Key]:
        return _keys_of(target for _, target in self.targets)


def _keys_of(targets: Iterable[_Target]) -> list[Key]:
    return [target.key for target in targets if target.key is not None]


@dataclass(frozen=True, slots=True)
class _Watch:
    """What a name was bound to when its node was made."""

    namespace: Mapping[str, Any]
    name: str
    value: object

    def is_as_it_was(self) -> bool:
        return self.namespace.get(self.name) is self.value


class CodeGraph:
    """The code that functions of one distribution reach, each piece of it read once."""

    def __init__(self, modules: SourceModules, ownership: Ownership) -> None:
        self._modules = modules
        self._ownership = ownership
        self._paths = Paths(self._own_import)
        self._nodes: dict[Key, _Node] = {}
        self._pending: list[Callable[[], None]] = []
        self._watches: dict[tuple[int, str], _Watch] = {}
        self._by_name: dict[str, SourceModule | None] = {}
        self._files: dict[Path, Stamp | None] = {}
        self._loaded: list[SourceModule] | None = None
        self._scanned: set[str] = set()
        self._users_of: dict[str, list[SourceModule]] = {}

    @property
    def is_current(self) -> bool:
        """Whether files and names are what they were when they were read."""
        return (
            all(watch.is_as_it_was() for watch in self._watches.values())
            and all(module is None or self._modules.is_known(name, module) for name, module in self._by_name.items())
            and all(stamp == stamp_of(str(path)) for path, stamp in self._files.items())
            and (self._loaded is None or not self._newly_loaded())
        )

    def reach(self, roots: Sequence[object]) -> tuple[str, list[_Node]]:
        """The digest of all that these values reach, and its nodes, in the order in which they are found."""
        targets = [self._value(root) for root in roots]
        while self._pending:
            self._pending.pop()()
        first = _keys_of(targets)
        nodes = self._nodes_from(first)
        numbers = {key: number for number, key in enumerate(nodes)}
        whole = hashlib.sha256(_encoded(f"{ALGORITHM}", *(target.text for target in targets)))
        for keys in (first, *(node.keys for node in nodes.values())):
            whole.update(f"{[numbers[key] for key in keys]}".encode())
        for node in nodes.values():
            whole.update(node.own_digest)
        return whole.hexdigest(), list(nodes.values())

    def _nodes_from(self, keys: Sequence[Key]) -> dict[Key, _Node]:
        """The nodes of keys, and those that they lead to, in the order in which they are found."""
        found: dict[Key, _Node] = {}
        stack = [*reversed(keys)]
        while stack:
            key = stack.pop()
            if key not in found:
                found[key] = self._nodes[key]
                stack += reversed(found[key].keys)
        return found

    def _node(self, key: Key, name: str, kind: str, fill: Callable[[_Node], None]) -> _Target:
        """A node by its key, which is read later where it is new: code is as deep as it likes."""
        if key not in self._nodes:
            node = self._nodes[key] = _Node(name, kind)
            self._pending.append(lambda: self._filled(node, fill))
        return _Target(key=key)

    def _filled(self, node: _Node, fill: Callable[[_Node], None]) -> None:
        try:
            fill(node)
        except UnreadableSource as error:
            node.opaque.append(str(error))
        except Exception as error:  # the node is kept, so it has to say itself that it is not whole
            logger.debug("The code of %s could not be followed", node.name, exc_info=True)
            node.opaque.append(f"the code of {node.name} could not be followed ({type(error).__name__})")

    # Names

    def _own(self, name: str) -> SourceModule | None:
        """A module of the project's own; ``None`` for a library's, or one that is not there."""
        if name not in self._by_name:
            path = self._modules.path_of(name)
            is_own = path is not None and self._ownership.owns(name, path)
            self._by_name[name] = self._modules.named(name, path) if path is not None and is_own else None
        return self._by_name[name]

    def _own_import(self, module: SourceModule, target: Import) -> SourceModule | None:
        return self._own(module.absolute(target))

    def _use(self, module: SourceModule, use: Use, cells: Mapping[str, object] | None = None) -> list[_Target]:
        if use.imported is not None:
            return self._imported(module, use.imported, use.attributes)
        if cells and use.name in cells:
            return [self._value(cells[use.name])]
        return self._named(module, use.name, use.attributes)

    def _named(
        self, module: SourceModule, name: str, attributes: tuple[str, ...], seen: frozenset[str] = frozenset()
    ) -> list[_Target]:
        """What a name of a module stands for."""
        place = f"{module.path}\0{name}"
        if place in seen:
            return []
        seen |= {place}
        stars = [target for star in module.stars for target in self._starred(module, star, name, attributes, seen)]
        if name in module.bindings:
            imported = [self._imported(module, target, attributes, seen) for target in module.imports(name)]
            targets = [target for each in imported for target in each] + stars
            if module.is_import_alone(name):
                return targets
            return [*targets, self._statements(module, name), *self._asked(module, name, attributes)]
        if stars:
            return stars
        namespace: Mapping[str, Any] = {} if module.loaded is None else vars(module.loaded)
        if name in namespace and not name.startswith("__"):
            self._watch(namespace, name)
            return [self._value(namespace[name])]
        if name in BUILTINS:
            return [self._whole(module)] if name == "globals" else [_Target(f"builtins.{name}")]
        return [self._statements(module, "__getattr__")] if "__getattr__" in module.bindings else []

    def _starred(
        self, module: SourceModule, star: Import, name: str, attributes: tuple[str, ...], seen: frozenset[str]
    ) -> list[_Target]:
        """What a name is where all names of a module are imported."""
        origin = self._own_import(module, star)
        if origin is not None:
            public = origin.literals.get("__all__")
            if isinstance(public, list | tuple) and name not in public:
                return []
            return self._named(origin, name, attributes, seen)
        of_library = said(sys.modules.get(module.absolute(star)), name)
        return [] if of_library is None else [_Target(f"{module.absolute(star)}.{name}")]

    def _asked(self, module: SourceModule, name: str, attributes: tuple[str, ...]) -> list[_Target]:
        """What is no part of a definition's text, and is asked of it: its docstring, and the subclasses of a class."""
        targets: list[_Target] = []
        if "__doc__" in attributes:
            definitions = [each for each in module.bindings[name] if isinstance(each, DEFINITIONS)]
            targets += [_Target(f"doc {ast.get_docstring(each)}") for each in definitions]
        value = said(module.loaded, name)
        if "__subclasses__" in attributes and isinstance(value, type):
            targets += self._subclasses(value)
        return targets

    def _subclasses(self, value: type) -> list[_Target]:
        return [
            target for each in type.__subclasses__(value) for target in (self._value(each), *self._subclasses(each))
        ]

    def _imported(
        self, module: SourceModule, target: Import, attributes: tuple[str, ...], seen: frozenset[str] = frozenset()
    ) -> list[_Target]:
        """What an import gives, with the attributes that are asked of it."""
        name = module.absolute(target)
        return self._of_module(name, attributes if target.attribute is None else (target.attribute, *attributes), seen)

    def _of_module(self, name: str, attributes: tuple[str, ...], seen: frozenset[str] = frozenset()) -> list[_Target]:
        """What attributes of a module stand for; of a library's that is their name."""
        module = self._own(name)
        if not attributes:
            return [_Target(name) if module is None else self._whole(module)]
        first, *others = attributes
        inner = f"{name}.{first}"
        if module is not None:
            if first not in module.bindings and self._own(inner) is not None:
                return self._of_module(inner, tuple(others), seen)
            return self._named(module, first, tuple(others), seen)
        if self._modules.path_of(name) is None and self._modules.path_of(inner) is not None:
            return self._of_module(inner, tuple(others), seen)  # of a folder without code of its own
        return [_Target(".".join((name, *attributes)))]

    def _whole(self, module: SourceModule) -> _Target:
        """A module as a value: any name of it may be asked for."""

        def fill(node: _Node) -> None:
            for name in sorted(module.bindings):
                node.targets += [(name, target) for target in self._named(module, name, ())]
            origins = [self._own_import(module, star) for star in module.stars]
            node.targets += [("*", self._whole(each)) for each in origins if each is not None]

        return self._node((module.path, _WHOLE), module.name, "module", fill)

    def _statements(self, module: SourceModule, name: str) -> _Target:
        def fill(node: _Node) -> None:
            node.source = module.path
            statements = module.statements(name)
            others = [each.name for each in statements if isinstance(each, DEFINITIONS) and each.name != name]
            self._read(node, module, [each for each in statements if getattr(each, "name", name) == name], {})
            for other in others:
                node.targets.append(("changed in", self._statements(module, other)))
                node.targets += [("changed by", target) for target in self._calls(module, other)]
            self._check(node, module, name)
            for each in self._with_packages(module):
                if each.import_effects:
                    node.targets.append(("", self._import_effects(each)))
            node.targets += [("changed by", target) for target in self._changes(module, name)]

        return self._node((module.path, name), f"{module.name}:{name}", _kind(module.bindings[name]), fill)

    def _with_packages(self, module: SourceModule) -> list[SourceModule]:
        """A module, and those that are imported before it because it is in them."""
        parts = module.name.split(".")
        packages = [self._own(".".join(parts[:number])) for number in range(1, len(parts))]
        return [module, *(each for each in packages if each is not None and each is not module)]

    def _newly_loaded(self) -> list[SourceModule]:
        """The project's own modules that were loaded since this was asked last, each once."""
        names = [name for name in list(sys.modules) if name not in self._scanned]
        self._scanned.update(names)
        found: dict[str, SourceModule] = {}
        for name in names:
            path = said(sys.modules.get(name), "__file__")
            if isinstance(path, str) and self._ownership.seems_to_own(name, path):
                with suppress(UnreadableSource):  # which says so where it is reached
                    module = self._own(name)
                    found |= {} if module is None else {module.path: module}
        return sorted(found.values(), key=lambda each: each.name)

    def _users(self, module: SourceModule) -> list[SourceModule]:
        """A module, and those that import it or one of these, by the words of their imports: no other one is parsed."""
        if self._loaded is None:
            self._loaded = self._newly_loaded()
        if module.path not in self._users_of:
            found, pending = {module.path}, [module]
            while pending:
                *packages, name = pending.pop().name.split(".")
                naming = [self._naming[name], *(self._importing[each] for each in packages)]
                new = {each.path: each for users in naming for each in users if each.path not in found}
                found |= new.keys()
                pending += new.values()
            self._users_of[module.path] = [each for each in self._loaded if each.path in found]
        return self._users_of[module.path]

    @cached_property
    def _naming(self) -> Mapping[str, Sequence[SourceModule]]:
        """The loaded modules by the words of their imports."""
        return _by_word((each.import_words[0], each) for each in self._loaded or ())

    @cached_property
    def _importing(self) -> Mapping[str, Sequence[SourceModule]]:
        """The loaded modules by what they import, of which attributes may be modules."""
        return _by_word((each.import_words[1], each) for each in self._loaded or ())

    def _changes(self, module: SourceModule, name: str) -> list[_Target]:
        """What other modules do to a name when they are imported: they fill registries, set options."""
        others = [each for each in self._users(module) if each.path != module.path and name in each.changing_words]
        return [self._change(other, module, name) for other in others if self._statements_on(other, module, name)]

    def _statements_on(self, other: SourceModule, module: SourceModule, name: str) -> list[ast.stmt]:
        """The statements of another module that change, or call, a name of a module."""
        with suppress(UnreadableSource):  # which says so itself where it is reached
            found = [each for each, of in other.changes if self._means(other, of, module, name)]
            return list({id(each): each for each in found}.values())
        return []

    def _means(self, other: SourceModule, node: ast.AST, module: SourceModule, name: str) -> bool:
        """Whether an expression of another module is made of a name of a module."""
        return any(target.key == (module.path, name) for use in uses_of(node) for target in self._use(other, use))

    def _calls(self, module: SourceModule, name: str) -> list[_Target]:
        """Where modules call a function when they are imported, or decorate with it."""
        return [
            self._call(each, calls, module, name)
            for each in self._users(module)
            if name in each.source and (calls := self._calls_in(each, module, name))
        ]

    def _calls_in(self, other: SourceModule, module: SourceModule, name: str) -> list[ast.expr]:
        with suppress(UnreadableSource):
            functions = [(each, each.func if isinstance(each, ast.Call) else each) for each in other.calls]
            return [each for each, function in functions if self._means(other, function, module, name)]
        return []

    def _call(self, other: SourceModule, calls: Sequence[ast.expr], module: SourceModule, name: str) -> _Target:
        def fill(node: _Node) -> None:
            node.source = other.path
            self._read(node, other, calls, {})

        return self._node((other.path, f"{module.path} {name}()"), f"{other.name}:<{name}()>", "constant", fill)

    def _change(self, other: SourceModule, module: SourceModule, name: str) -> _Target:
        def fill(node: _Node) -> None:
            node.source = other.path
            self._read(node, other, self._statements_on(other, module, name), {})

        return self._node((other.path, f"{module.path} {name}"), f"{other.name}:<{name}>", "effect", fill)

    def _import_effects(self, module: SourceModule) -> _Target:
        """What a module does to libraries when it is imported, as the seed of their random numbers."""

        def fill(node: _Node) -> None:
            statements = [each for each in module.import_effects if not self._is_of_dagster(module, each)]
            self._read(node, module, statements, {})

        return self._node((module.path, _LIBRARIES), f"{module.name}:{_LIBRARIES}", "effect", fill)

    def _read(
        self, node: _Node, module: SourceModule, statements: Sequence[ast.AST], cells: Mapping[str, object]
    ) -> None:
        """Put the text of statements into a node, and what their names stand for."""
        uses: set[Use] = set()
        for statement in statements:
            unseen = self._decorators_of_dagster(module, statement)
            node.text += canonical_text(statement, without_decorators=unseen)
            uses.update(uses_of(statement, without_decorators=unseen))
        for use in sorted(uses, key=repr):
            found = self._use(module, use, cells)
            label = ".".join((use.name, *use.attributes))
            node.targets += [(label, target) for target in found if target.key != (module.path, node.name)]
            if use.name in _ANY_CODE and found == [_Target(f"builtins.{use.name}")]:
                node.opaque.append(f"{node.name} calls {use.name}, which may run any code")
            if any(target.text in _ANY_MODULE for target in found):
                self._read_modules(node, module, statements)
        self._read_files(node, module, statements, uses)

    def _read_files(
        self, node: _Node, module: SourceModule, statements: Sequence[ast.AST], uses: AbstractSet[Use]
    ) -> None:
        """Put the files that statements read into a node."""
        for path, problem in self._paths.read_by(module, statements, uses):
            if problem is not None:
                node.opaque.append(f"{node.name} {problem}")
            elif path is not None:
                self._files[path] = stamp_of(str(path))
                node.targets.append(("file", _Target(f"file {digest_of_file(path)}")))

    def _read_modules(self, node: _Node, module: SourceModule, statements: Sequence[ast.AST]) -> None:
        """Put what statements ask for by the names of modules into a node."""
        for asked in sorted(modules_asked_for(statements), key=str):
            if asked is None or asked.startswith("."):
                node.opaque.append(f"{node.name} asks for a module whose name is not in the code")
            else:
                node.targets += [("module", target) for target in self._of_module(asked or module.name, ())]

    def _decorators_of_dagster(self, module: SourceModule, statement: ast.AST) -> list[ast.expr]:
        """What says how an asset is run, and not what it computes."""
        return [each for each in getattr(statement, "decorator_list", ()) if self._is_of_dagster(module, each)]

    def _is_of_dagster(self, module: SourceModule, node: ast.AST) -> bool:
        while isinstance(node, ast.Call | ast.Expr):
            node = node.func if isinstance(node, ast.Call) else node.value
        targets = [target for use in uses_of(node) for target in self._use(module, use)]
        return bool(targets) and all(target.text.startswith(("dagster", "logging", "warnings")) for target in targets)

    # Loaded code

    def _check(self, node: _Node, module: SourceModule, name: str) -> None:
        """See that what is loaded is what the source says now."""
        if module.loaded is None:
            return
        if self._modules.is_changed(module):
            node.opaque.append(f"the file of {module.name} was changed after it was loaded; load it again")
        namespace = vars(module.loaded)
        if name not in namespace:
            return
        value = namespace[name]
        self._watch(namespace, name)
        if name in module.literals and not _is_equal(value, module.literals[name]):
            node.opaque.append(f"{node.name} is not what its source says: it was set from elsewhere, or edited since")
        if type(value) is FunctionType:
            self._check_function(node, module, value)
            if hasattr(value, "registry"):  # of several implementations, wherever they are
                node.targets.append(("registry", self._value(value)))
            return
        if issubclass(type(value), type):
            self._check_class(node, module, value)
        held = code_held(value, lambda kind: self._own(kind.__module__) is not None)
        node.targets += [(label, self._value(member)) for label, member in held]

    def _check_class(self, node: _Node, module: SourceModule, value: type) -> None:
        members: list[Any] = list(vars(value).values())
        for member in members:
            inner = parts_of(member) if type(member) in _WRAPPERS else [("", member)]
            if inner and type(inner[0][1]) is FunctionType:
                self._check_code(node, module, inner[0][1].__code__)
        if '"__subclasses__"' in node.text:
            node.targets += [("subclass", target) for target in self._subclasses(value)]

    def _check_function(self, node: _Node, module: SourceModule, function: FunctionType) -> None:
        inner: Any = inspect.unwrap(function)
        if not isinstance(inner, FunctionType):
            return
        if inner.__code__.co_filename == module.path:
            self._check_code(node, module, inner.__code__)
        if inner is function and (function.__module__, function.__qualname__) != (
            getattr(module.loaded, "__name__", None),
            node.name.partition(":")[2],
        ):
            node.targets.append(("value", self._value(function)))  # another one was put in its place

    def _check_code(self, node: _Node, module: SourceModule, code: CodeType) -> None:
        if code.co_filename != module.path or not module.is_compiled_as_it_is:
            return
        if not any(is_same_code(code, each) for each in module.compiled(code.co_qualname)):
            node.opaque.append(f"{module.name}:{code.co_qualname} was edited after it was loaded")

    def _watch(self, namespace: Mapping[str, Any], name: str) -> None:
        self._watches[id(namespace), name] = _Watch(namespace, name, namespace[name])

    # Values

    def _value(self, value: Any) -> _Target:
        """What a value is: a piece of code, plain data, or a library's."""
        text = plain_text(value)
        if text is not None:
            return _Target(text)
        kind = cast("type[Any]", type(value))
        if kind is FunctionType:
            return self._function(value)
        if issubclass(kind, type):
            return self._class(value)
        if issubclass(kind, ModuleType):
            return self._of_module(value.__name__, ())[0]
        if kind is BuiltinFunctionType:
            return _Target(f"{value.__module__}.{value.__qualname__}")
        if issubclass(kind, logging.Logger):
            return _Target("logging.Logger")
        parts = parts_of(value)
        if parts is None and (wrapped := inspect.getattr_static(value, "__wrapped__", None)) is not None:
            is_own = self._own(kind.__module__) is not None
            parts = [("class", kind), *(members_of(value) if is_own else {"wrapped": wrapped}).items()]

        def fill(node: _Node) -> None:
            node.kept, node.text = value, type(value).__name__  # kept, so that no other object has its id
            if parts is None:
                node.opaque.append(f"the content of a value of type {kind.__module__}.{kind.__qualname__} is not known")
            node.targets += [(label, self._value(part)) for label, part in parts or ()]

        return self._node(("value", "", id(value)), type(value).__name__, "value", fill)

    def _class(self, value: type) -> _Target:
        module = self._own(value.__module__)
        name = value.__qualname__.partition(".")[0]
        if module is None:
            return _Target(f"{value.__module__}.{value.__qualname__}")
        if name in module.bindings and "<locals>" not in value.__qualname__:
            return self._statements(module, name)

        def fill(node: _Node) -> None:
            node.kept = value
            node.opaque.append(f"the class {value.__qualname__} was made in a function")

        return self._node(("class", "", id(value)), value.__qualname__, "class", fill)

    def _function(self, function: FunctionType) -> _Target:
        code = function.__code__
        qualname = code.co_qualname  # functools.wraps gives the function another one, and another module
        name = self._modules.of_function(str(function.__globals__.get("__name__")), code.co_filename)
        module = None if name is None else self._own(name)
        if name is not None and module is None:
            return self._wrapper(f"{name}.{qualname}", function)
        outermost = qualname.partition(".")[0]
        is_named = module is not None and "<locals>" not in qualname and "<lambda>" not in qualname
        if module is not None and is_named and outermost in module.bindings and code.co_filename == module.path:
            target = self._statements(module, outermost)
            node = self._nodes[module.path, outermost]
            self._pending.append(lambda: self._check_code(node, module, code))
            return target

        def fill(node: _Node) -> None:
            node.kept = function
            self._read_function(node, module, function)

        return self._node(("function", code.co_filename, id(function)), f"{name}:{qualname}", "function", fill)

    def _wrapper(self, name: str, function: FunctionType) -> _Target:
        """A library's function, which may have been made of one of the project's own."""
        held = [cell.cell_contents for cell in function.__closure__ or () if cell != _EMPTY]
        held += [getattr(function, "__wrapped__", None), *getattr(function, "registry", {}).values()]
        inner = [each for each in held if isinstance(each, FunctionType | type)]
        if not inner:
            return _Target(name)

        def fill(node: _Node) -> None:
            node.kept, node.text = function, name
            node.targets += [("inner", self._value(each)) for each in inner]

        return self._node(("wrapper", name, id(function)), name, "value", fill)

    def _read_function(self, node: _Node, module: SourceModule | None, function: FunctionType) -> None:
        """A function that was made in another one, with what it holds on to."""
        code = function.__code__
        tree = None if module is None or code.co_filename != module.path else _tree_of(module, code)
        if module is None or tree is None:
            node.opaque.append(f"the source of {node.name} is not known")
            return
        node.source = module.path
        if self._modules.is_changed(module):
            node.opaque.append(f"the file of {module.name} was changed after it was loaded; load it again")
        self._check_code(node, module, code)
        self._read(node, module, [tree], _cells_of(function, node))
        for label, value in (("defaults", function.__defaults__), ("keywords", function.__kwdefaults__)):
            if value:
                node.targets.append((label, self._value(value)))


def _cells_of(function: FunctionType, node: _Node) -> Mapping[str, object]:
    """What a function holds on to by names; what it will, makes its node opaque."""
    cells: dict[str, object] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            cells[name] = cell.cell_contents
        except ValueError:  # not bound yet
            node.opaque.append(f"{node.name} holds on to {name!r}, which has no value yet")
    return cells


def fingerprint_of(function: Callable[..., Any], options: CodeOptions, known: "KnownCode") -> Fingerprint:
    """The fingerprint of a function as it is loaded now.

    Never raises: what goes wrong makes it opaque. Nothing is imported or called.
    """
    name = f"{getattr(function, '__module__', '?')}:{getattr(function, '__qualname__', '?')}"
    try:
        return _taken(function, name, options, known)
    except Exception as error:  # whatever the code of others is like, it has to load
        logger.debug("The code of %s could not be followed", name, exc_info=True)
        reason = f"the code of {name} could not be followed ({type(error).__name__})"
        return Fingerprint("", name, opaque=[reason])


class KnownCode:
    """The code that a process has read."""

    def __init__(self) -> None:
        self.modules = SourceModules()
        self.distributions = Distributions()
        self._graphs: dict[tuple[Any, tuple[str, ...]], CodeGraph] = {}
        self._commits: dict[tuple[tuple[str, Stamp | None], ...], CommitOfCode | None] = {}

    @cached_property
    def runtime(self) -> dict[str, Any]:
        """What the process runs on, as `runtime_of` says it."""
        return runtime_of(self.distributions)

    def commit(self, sources: Sequence[str]) -> CommitOfCode | None:
        """The commit that source files are of, as it was when it was first asked for of these files."""
        key = tuple((source, stamp_of(source)) for source in sources)
        if key not in self._commits:
            self._commits[key] = commit_of(sources)
        return self._commits[key]

    def graph(self, path: str, follow: Sequence[str]) -> CodeGraph:
        """What is known for functions of a file; read anew where anything of it has changed."""
        key = self.distributions.of(path), tuple(sorted(follow))
        graph = self._graphs.get(key)
        if graph is None or not graph.is_current:
            graph = self._graphs[key] = CodeGraph(self.modules, Ownership(self.distributions, path, follow))
        return graph


def _taken(function: Any, name: str, options: CodeOptions, known: KnownCode) -> Fingerprint:
    known.modules.note()
    path = _written_in(function)
    digest, nodes = known.graph(path, options.follow).reach([function, *options.also])
    opaque = list(chain.from_iterable(node.opaque for node in nodes))
    files = _files_below(Path(path).parent, options.files, opaque)
    libraries = _releases(options.libraries, known.distributions, opaque)
    if members := [f"{label}\0{text}" for label, text in (*sorted(files.items()), *sorted(libraries.items()))]:
        digest = hashlib.sha256("\0\0".join([digest, *members]).encode()).hexdigest()
    return Fingerprint(
        digest,
        name,
        {node.name: node.digest.hex() for node in nodes if node.kind in ("function", "class")},
        sorted(node.name for node in nodes if node.kind == "constant"),
        files,
        libraries,
        list(dict.fromkeys(opaque)),
        sorted({node.source for node in nodes if node.source is not None}),
    )


def _files_below(folder: Path, patterns: Sequence[str], opaque: list[str]) -> dict[str, str]:
    """The digests of the files that patterns name; what names none goes to ``opaque``."""
    files: dict[str, str] = {}
    for pattern in patterns:
        found = sorted(each for each in folder.glob(pattern) if each.is_file())
        files |= {each.relative_to(folder).as_posix(): digest_of_file(each) for each in found}
        if not found:
            opaque.append(f"no file is named {pattern!r} below {folder.name}/")
    return files


def _releases(libraries: Sequence[str], distributions: Distributions, opaque: list[str]) -> dict[str, str]:
    """The releases of libraries; what is not installed goes to ``opaque``."""
    installed = distributions.installed() if libraries else {}
    releases = {library: installed.get(normalized(library), "") for library in libraries}
    opaque += [f"the library {library!r} is not installed" for library, release in releases.items() if not release]
    return releases


def _written_in(function: Any) -> str:
    """The file of a function, or of the one that it was made of."""
    for _ in range(100):  # what is made of itself has no end
        if isinstance(function, FunctionType):
            break
        inner = next(
            (getattr(function, name) for name in ("__wrapped__", "__func__", "func") if hasattr(function, name)), None
        )
        function = type(function).__call__ if inner is None else inner
    module = sys.modules.get(getattr(inspect.unwrap(function), "__module__", ""))
    return getattr(module, "__file__", None) or function.__code__.co_filename


def is_same_code(loaded: CodeType, compiled: CodeType) -> bool:
    """Whether two pieces of bytecode do the same, wherever they stand in their file."""
    names = ("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_flags", "co_argcount")
    if any(getattr(loaded, name) != getattr(compiled, name) for name in names):
        return False
    return len(loaded.co_consts) == len(compiled.co_consts) and all(
        is_same_code(ours, theirs)
        if isinstance(ours, CodeType) and isinstance(theirs, CodeType)
        else type(ours) is type(theirs) and repr(ours) == repr(theirs)
        for ours, theirs in zip(loaded.co_consts, compiled.co_consts, strict=True)
    )


def digest_of_file(path: Path) -> str:
    """The SHA-256 of a file (64 hex); of one that is not there, what says so."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return "is not there"


def _by_word(modules: Iterable[tuple[Iterable[str], SourceModule]]) -> Mapping[str, Sequence[SourceModule]]:
    found: defaultdict[str, list[SourceModule]] = defaultdict(list)
    for words, module in modules:
        for word in words:
            found[word].append(module)
    return found


def _kind(statements: Sequence[ast.stmt]) -> str:
    for statement in statements:
        match statement:
            case ast.ClassDef():
                return "class"
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                return "function"
            case _:
                continue
    is_import = all(isinstance(statement, ast.Import | ast.ImportFrom) for statement in statements)
    return "import" if statements and is_import else "constant"


def _encoded(*texts: str) -> bytes:
    return "".join(f"{len(text)}:{text}" for text in texts).encode("utf-8", "surrogatepass")


def _tree_of(module: SourceModule, code: CodeType) -> ast.AST | None:
    """The syntax of a function: by its line, and of several lambdas on a line by their columns."""
    here = module.functions.get(code.co_firstlineno, ())
    found = [node for node in here if getattr(node, "name", "<lambda>") == code.co_name]
    if len(found) > 1:
        places = [place for place in code.co_positions() if None not in place and place[2:] != (0, 0)]  # of expressions
        found = sorted((node for node in found if all(_covers(node, place) for place in places)), key=_extent)
    return next(iter(found), None)


def _extent(node: Any) -> tuple[int, int]:
    return node.end_lineno or 0, (node.end_col_offset or 0) - node.col_offset


def _covers(node: Any, place: tuple[int | None, int | None, int | None, int | None]) -> bool:
    start, end, first, last = place
    return (node.lineno, node.col_offset) <= (start or 0, first or 0) and (end or 0, last or 0) <= (
        node.end_lineno,
        node.end_col_offset,
    )


def _is_equal(value: object, literal: object) -> bool:
    """Whether a value is what a literal says; of containers, which code may fill, that is not asked."""
    if isinstance(literal, dict | list | set | bytearray):
        return True
    return type(value) is type(literal) and repr(value) == repr(literal)
