"""The files that code reads from beside itself: ``Path(__file__).parent / "query.sql"``, evaluated from its text."""

import ast
import os
from collections.abc import Callable, Iterator, Sequence, Set
from pathlib import Path

from dagster_versioned.code.modules import SourceModule
from dagster_versioned.code.syntax import Import, Use, children

_SAME = frozenset({"Path", "PurePath", "str", "abspath", "realpath", "fspath", "normpath"})
_OF_PACKAGE = frozenset({"files", "get_data", "PackageLoader", "resource_filename", "resource_string"})
_SAME_METHODS = frozenset({"resolve", "absolute", "as_posix", "expanduser"})


class Paths:
    """Paths that begin with ``__file__``, through the names of the project's own modules."""

    def __init__(self, own_import: Callable[[SourceModule, Import], SourceModule | None]) -> None:
        self._own_import = own_import
        self._of_names: dict[tuple[str, str], Path | None] = {}

    def read_by(
        self, module: SourceModule, statements: Sequence[ast.AST], uses: Set[Use]
    ) -> Iterator[tuple[Path | None, str | None]]:
        """The files that statements name, and no problem; or no file, and the problem where only a folder is known."""
        if not self._may_read(module, uses):
            return
        for path in (path for statement in statements for path in self._read(module, statement)):
            if path.is_dir():
                unnamed = "under names that are not in the code; name them in code_files"
                yield None, f"reads files in {path.name}/ {unnamed}"
            elif path != Path(module.path):
                yield path, None

    def _may_read(self, module: SourceModule, uses: Set[Use]) -> bool:
        asked = {name for use in uses for name in (use.name, *use.attributes)}
        names = {use.name for use in uses if use.imported is None}
        return not asked.isdisjoint(_OF_PACKAGE) or any(self._of_name(module, name) for name in names)

    def _read(self, module: SourceModule, statement: ast.AST) -> Iterator[Path]:
        whole = self._of(module, statement.value) if isinstance(statement, ast.Assign) else None
        if whole is None or not whole.is_dir():  # a name for a folder; what is read in it is seen where it is read
            yield from self._found(module, statement)

    def _found(self, module: SourceModule, node: ast.AST) -> Iterator[Path]:
        path = self._of(module, node) if isinstance(node, ast.expr) else None
        if path is not None:
            yield path
            return
        for child in children(node):
            yield from self._found(module, child)

    def _of(self, module: SourceModule, node: ast.AST) -> Path | None:
        match node:
            case ast.Name(id=name):
                return self._of_name(module, name)
            case ast.BinOp(left=left, op=ast.Div(), right=ast.Constant(value=str(text))):
                return _joined(self._of(module, left), text)
            case ast.Attribute(value=inner, attr="parent"):
                path = self._of(module, inner)
                return None if path is None else path.parent
            case ast.Subscript(value=ast.Attribute(value=inner, attr="parents"), slice=ast.Constant(value=int(number))):
                return _ancestor(self._of(module, inner), number)
            case ast.Call(func=ast.Attribute(value=inner, attr=method), args=arguments) if (
                path := self._of(module, inner)
            ) is not None:
                return self._called(path, method, arguments)
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[first, *others]) if (
                name in _OF_PACKAGE
            ):
                folder, texts = self._of_package(module, first), _texts(others)
                return folder if folder is None or texts is None else folder.joinpath(*texts)
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[first, *others]):
                return self._made(self._of(module, first), name, others)
            case _:
                return None

    def _of_package(self, module: SourceModule, node: ast.expr) -> Path | None:
        """The folder of a package of the project's own, by its name."""
        match node:
            case ast.Name(id="__package__" | "__name__"):
                return Path(module.path).parent
            case ast.Constant(value=str(name)):
                return self._folder(module, name)
            case ast.Name(id=name):
                names = [
                    ".".join(filter(None, (module.absolute(each), each.attribute))) for each in module.imports(name)
                ]
                return self._folder(module, names[0]) if names else None
            case _:
                return None

    def _folder(self, module: SourceModule, name: str) -> Path | None:
        parent, _, last = name.rpartition(".")
        package = self._own_import(module, Import(name))
        if package is not None or not parent:
            return None if package is None else Path(package.path).parent
        return _joined(self._folder(module, parent), last)  # a folder without code

    def _called(self, path: Path, method: str, arguments: Sequence[ast.expr]) -> Path | None:
        texts = _texts(arguments)
        if method in _SAME_METHODS:
            return path
        if texts is None:
            return None
        if method == "joinpath":
            return path.joinpath(*texts)
        if method in ("with_name", "with_suffix", "with_stem") and len(texts) == 1:
            return getattr(path, method)(texts[0])
        return None

    def _made(self, path: Path | None, function: str, others: Sequence[ast.expr]) -> Path | None:
        texts = _texts(others)
        if path is None or texts is None:
            return None
        if function in _SAME or function == "join":
            return path.joinpath(*texts)
        if function == "file_relative_path":
            return path.parent.joinpath(*texts)
        return path.parent if function == "dirname" else None

    def _of_name(self, module: SourceModule, name: str) -> Path | None:
        if name == "__file__":
            return Path(os.path.abspath(module.path))  # noqa: PTH100 - without following links
        key = module.path, name
        if key not in self._of_names:
            self._of_names[key] = None  # of names in a circle
            self._of_names[key] = self._bound(module, name)
        return self._of_names[key]

    def _bound(self, module: SourceModule, name: str) -> Path | None:
        match module.bindings.get(name, ()):
            case [ast.Assign(targets=[ast.Name()], value=value) | ast.AnnAssign(value=ast.expr() as value)]:
                return self._of(module, value)
            case [ast.ImportFrom()]:
                (target,) = module.imports(name)
                origin = self._own_import(module, target)
                return None if origin is None or target.attribute is None else self._of_name(origin, target.attribute)
            case _:
                return None


def _ancestor(path: Path | None, number: int) -> Path | None:
    return None if path is None or not 0 <= number < len(path.parents) else path.parents[number]


def _joined(path: Path | None, text: str) -> Path | None:
    return None if path is None else path / text


def _texts(arguments: Sequence[ast.expr]) -> list[str] | None:
    found = [each.value for each in arguments if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return found if len(found) == len(arguments) else None
