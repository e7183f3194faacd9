"""Random single edits of source: those that may change what it computes, and those without meaning."""

import ast
import copy
import io
import itertools
import json
import random
import re
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
IMPORTS = (ast.Import, ast.ImportFrom)
COMPOUND = (*DEFINITIONS, ast.If, ast.For, ast.While, ast.With, ast.Try, ast.Match, ast.AsyncFor, ast.AsyncWith)

OPERATORS: Mapping[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.BitXor: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


@dataclass(frozen=True)
class Edit:
    """A file of a project with another text."""

    file: str
    kind: str
    is_meaningless: bool
    line: int
    change: str
    text: str


@dataclass(frozen=True)
class _Place:
    """A node, what it is in, and the f-string around it, whose parts have no place of their own."""

    node: ast.AST
    parent: ast.AST
    field: str
    index: int | None
    around: ast.AST | None
    where: str


@dataclass(frozen=True)
class _Change:
    """Another text between two bytes of a file."""

    kind: str
    start: int
    end: int
    text: str
    is_meaningless: bool = False


class Source:
    """A module, and the edits that can be made of it."""

    def __init__(self, file: str, text: str, rng: random.Random) -> None:
        self.file, self.text = file, text
        self._data = text.encode()
        self._rng = rng
        self._tree = ast.parse(text)
        self._lines = [0]
        for line in self._data.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self._places = list(self._walk(self._tree, None, "the module"))
        self._names = sorted({name for each in self._tree.body for name in _bound(each)})
        self._attributes = sorted({each.attr for each in ast.walk(self._tree) if isinstance(each, ast.Attribute)})

    def changes(self) -> Iterator[_Change]:
        """All edits, as they come."""
        for place in self._places:
            with suppress(ValueError):  # an f-string that has no spelling in this release
                yield from self._of_place(place)
        for block, of in self._blocks():
            yield from self._of_block(block, "methods" if isinstance(of, ast.ClassDef) else "definitions")
        yield from self._without_meaning()

    def edit(self, change: _Change) -> Edit | None:
        """A change as an edit; none where the file would be no Python, or not what its kind says."""
        text = (self._data[: change.start] + change.text.encode() + self._data[change.end :]).decode()
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            return None
        is_same = ast.dump(tree) == ast.dump(self._tree)
        if is_same is not (change.kind in FORMATTING) or text == self.text:
            return None
        old = self._data[change.start : change.end].decode()
        shown = f"{_short(old)} → {_short(change.text)}"
        return Edit(self.file, change.kind, change.is_meaningless, self._line(change.start), shown, text)

    def _line(self, offset: int) -> int:
        return self._data[:offset].count(b"\n") + 1

    def lines(self, change: _Change) -> range:
        """The lines that a change is on."""
        return range(self._line(change.start), self._line(change.end) + 1)

    def _walk(self, node: ast.AST, around: ast.AST | None, where: str) -> Iterator[_Place]:
        for name, value in ast.iter_fields(node):
            inner = _where(node, name, where)
            for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if isinstance(child, ast.AST):
                    yield _Place(child, node, name, index, around, inner)
                    yield from self._walk(child, around or (child if isinstance(child, ast.JoinedStr) else None), inner)

    def _span(self, node: Any) -> tuple[int, int]:
        return self._lines[node.lineno - 1] + node.col_offset, self._lines[node.end_lineno - 1] + node.end_col_offset

    def _segment(self, node: Any) -> str:
        start, end = self._span(node)
        return self._data[start:end].decode()

    # What may matter

    def _of_place(self, place: _Place) -> Iterator[_Change]:  # noqa: C901 - a case for each kind
        node = place.node
        if isinstance(node, ast.expr):
            for kind, other in self._expressions(place):
                yield self._exchanged(f"{kind} in {place.where}", place, other)
            if place.field == "decorator_list":
                start, end = self._span(node)
                yield _Change("a decorator less", self._data.rindex(b"@", 0, start), end, "")
            if place.field == "bases":
                yield self._exchanged("a base class less", place, ast.Name("object"))
            if place.field == "test" or (place.field in ("ifs", "guard")):
                yield self._exchanged("a condition negated", place, ast.UnaryOp(ast.Not(), node))
            if place.field in ("defaults", "kw_defaults"):
                yield self._exchanged("a default that is another", place, ast.Constant(None))
            if place.field == "annotation" or place.field == "returns":
                yield self._exchanged("an annotation", place, ast.Name("float"))
        elif isinstance(node, ast.alias) and isinstance(place.parent, ast.ImportFrom) and node.name != "*":
            other = self._rng.choice([each.name for each in place.parent.names])
            if other != node.name:
                yield _Change("an import", *self._span(node), f"{other} as {node.asname or node.name}")
        elif isinstance(node, ast.ExceptHandler) and node.type is not None:
            yield _Change("an exception that is caught", *self._span(node.type), "ZeroDivisionError")
        elif isinstance(node, ast.stmt) and not _is_docstring(place):
            yield from self._statement(node)

    def _exchanged(self, kind: str, place: _Place, other: ast.expr) -> _Change:
        if place.around is None:
            text = ast.unparse(other)
            bare = isinstance(other, ast.Constant | ast.Name | ast.Attribute | ast.List | ast.Dict | ast.Call)
            return _Change(kind, *self._span(place.node), text if bare else f"({text})")
        held: Any = getattr(place.parent, place.field)
        if place.index is None:
            setattr(place.parent, place.field, other)
        else:
            held[place.index] = other
        try:
            return _Change(kind, *self._span(place.around), ast.unparse(place.around))
        finally:
            if place.index is None:
                setattr(place.parent, place.field, held)
            else:
                held[place.index] = place.node

    def _expressions(self, place: _Place) -> Iterator[tuple[str, ast.expr]]:  # noqa: C901 - a case for each kind
        node = place.node
        match node:
            case ast.Constant() if not isinstance(place.parent, ast.Expr):
                yield from _constants(node)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                yield "an operator", ast.BinOp(left, OPERATORS[type(op)](), right)
            case ast.BoolOp(op=op, values=values):
                yield "and, or", ast.BoolOp(OPERATORS[type(op)](), values)
            case ast.Compare(left=left, ops=[first, *ops], comparators=others):
                yield "a comparison", ast.Compare(left, [OPERATORS[type(first)](), *ops], others)
            case ast.UnaryOp(operand=operand):
                yield "a sign or not less", operand
            case ast.IfExp(test=test, body=body, orelse=other):
                yield "the branches of an expression", ast.IfExp(test, other, body)
            case ast.Lambda(args=arguments):
                yield "the body of a lambda", ast.Lambda(arguments, ast.Constant(None))
            case ast.ListComp(elt=element, generators=generators):
                yield "a comprehension", ast.SetComp(element, generators)
            case ast.Yield(value=ast.expr()):
                yield "what is yielded", ast.Yield(ast.Constant(None))
            case ast.Name(id=name, ctx=ast.Load()) if others := [each for each in self._names if each != name]:
                yield "a name", ast.Name(self._rng.choice(others))
            case ast.Attribute(value=value, attr=name, ctx=ast.Load()):
                yield "an attribute's name", ast.Attribute(value, self._rng.choice(self._attributes))
            case ast.Call():
                yield from self._calls(node)
            case (
                ast.List(elts=[_, *_] as elements, ctx=ast.Load()) | ast.Tuple(elts=[_, *_] as elements, ctx=ast.Load())
            ):
                yield "an element less", type(node)(self._less(elements), ast.Load())
                if len(elements) > 1:
                    yield "elements in another order", type(node)(self._moved(elements), ast.Load())
            case ast.Dict(keys=[_, *_] as keys, values=values):
                number = self._rng.randrange(len(keys))
                yield (
                    "a key less",
                    ast.Dict(keys[:number] + keys[number + 1 :], values[:number] + values[number + 1 :]),
                )
            case _:
                pass

    def _calls(self, node: ast.Call) -> Iterator[tuple[str, ast.expr]]:
        if node.args:
            yield "an argument less", ast.Call(node.func, self._less(node.args), node.keywords)
        if len(node.args) > 1:
            yield "arguments in another order", ast.Call(node.func, self._moved(node.args), node.keywords)
        if node.keywords:
            yield "a keyword less", ast.Call(node.func, node.args, self._less(node.keywords))

    def _less(self, values: Sequence[Any]) -> list[Any]:
        number = self._rng.randrange(len(values))
        return [*values[:number], *values[number + 1 :]]

    def _moved(self, values: Sequence[Any]) -> list[Any]:
        return [*values[1:], values[0]]

    def _statement(self, node: ast.stmt) -> Iterator[_Change]:
        start, end = self._span(node)
        decorators = getattr(node, "decorator_list", [])
        if decorators:
            start = self._data.rindex(b"@", 0, self._span(decorators[0])[0])
        yield _Change("a statement less", start, end, "pass")
        match node:
            case ast.Return(value=ast.expr() as value):
                yield _Change("nothing returned", *self._span(value), "None")
            case ast.AugAssign(target=target, op=op, value=value) if type(op) in OPERATORS:
                other = ast.AugAssign(target, OPERATORS[type(op)](), value)
                yield _Change("an operator of an assignment", start, end, ast.unparse(other))
            case ast.FunctionDef(args=ast.arguments(args=[first, second, *_])):
                text = self._data[self._span(first)[1] : self._span(second)[0]].decode()
                swapped = self._segment(second) + text + self._segment(first)
                yield _Change("parameters swapped", self._span(first)[0], self._span(second)[1], swapped)
            case ast.If(body=body, orelse=[_, *_] as other) if not isinstance(other[0], ast.If):
                yield _Change("the first branch as the second", *self._extent(body), self._block(other))
            case _:
                pass

    def _block(self, statements: Sequence[ast.stmt]) -> str:
        start, end = self._extent(statements)
        return self._data[start:end].decode()

    def _extent(self, statements: Sequence[ast.stmt]) -> tuple[int, int]:
        first = statements[0]
        decorators = getattr(first, "decorator_list", [])
        start = self._span(first)[0]
        if decorators:
            start = self._data.rindex(b"@", 0, self._span(decorators[0])[0])
        return start, self._span(statements[-1])[1]

    def _blocks(self) -> Iterator[tuple[list[ast.stmt], ast.AST]]:
        for node in ast.walk(self._tree):
            for name in ("body", "orelse", "finalbody"):
                block = getattr(node, name, None)
                if isinstance(block, list) and block:
                    yield block, node

    def _of_block(self, block: Sequence[ast.stmt], definitions: str) -> Iterator[_Change]:
        for first, second in itertools.pairwise(block):
            (start, middle), (follow, end) = self._extent([first]), self._extent([second])
            swapped = self._block([second]) + self._data[middle:follow].decode() + self._block([first])
            if isinstance(first, IMPORTS) and isinstance(second, IMPORTS):
                yield _Change("the order of imports", start, end, swapped, is_meaningless=True)
            elif isinstance(first, DEFINITIONS) and isinstance(second, DEFINITIONS):
                is_plain = not first.decorator_list and not second.decorator_list
                kind = f"the order of {definitions}" if is_plain else f"the order of decorated {definitions}"
                yield _Change(kind, start, end, swapped, is_meaningless=is_plain)
            elif not _is_text(first):
                yield _Change("statements swapped", start, end, swapped)
        for each in block:
            if not isinstance(each, (*COMPOUND, *IMPORTS)) and not _is_text(each):
                start, end = self._extent([each])
                yield _Change("a statement twice", end, end, f"; {self._data[start:end].decode()}")

    # What means nothing

    def _without_meaning(self) -> Iterator[_Change]:
        yield from self._comments()
        yield from self._docstrings()
        for place in self._places:
            yield from self._spelling(place)
        end = len(self._data)
        whole = [
            ("a file written anew", ast.unparse(self._tree) + "\n"),
            ("line ends", self.text.replace("\n", "\r\n")),
        ]
        for kind, text in whole:
            yield _Change(kind, 0, end, text, is_meaningless=True)
        for text in UNUSED:
            yield _Change("what nobody uses", end, end, f"\n\n{text}\n", is_meaningless=True)

    def _comments(self) -> Iterator[_Change]:
        lines = list(tokenize.generate_tokens(io.StringIO(self.text).readline))
        for token in lines:
            if token.type == tokenize.NEWLINE and token.string:
                line, column = token.start
                offset = self._lines[line - 1] + len(token.line[:column].encode())
                if token.line.count("\n") <= 1:
                    yield _Change("a comment at the end of a line", offset, offset, "  # as was said", True)
        for block, _ in self._blocks():
            for statement in block:
                start = self._extent([statement])[0]
                first = self._data.rfind(b"\n", 0, start) + 1
                indent = self._data[first:start].decode()
                if not indent.strip():
                    yield _Change("a comment", first, first, f"{indent}# what comes now\n", True)
                    yield _Change("blank lines", first, first, "\n" * self._rng.randint(1, 40), True)

    def _docstrings(self) -> Iterator[_Change]:
        for node in ast.walk(self._tree):
            if isinstance(node, (*DEFINITIONS, ast.Module)) and node.body:
                first = node.body[0]
                start, end = self._span(first)
                if _is_text(first):
                    yield _Change("a docstring changed", start, end, '"""Another text."""', True)
                    if len(node.body) > 1:
                        yield _Change("a docstring less", start, end, "", True)
                elif not isinstance(node, ast.Module):
                    start = self._extent([first])[0]
                    indent = self._data[self._data.rfind(b"\n", 0, start) + 1 : start].decode()
                    if not indent.strip():
                        yield _Change("a docstring more", start, start, f'"""A new text."""\n{indent}', True)

    def _spelling(self, place: _Place) -> Iterator[_Change]:  # noqa: C901 - a case for each kind
        node = place.node
        if place.around is not None:
            return
        if isinstance(node, ast.expr) and place.field in ("value", "left", "right", "test", "elt", "iter", "args"):
            yield _Change("parentheses", *self._span(node), f"({self._segment(node)})", True)
            yield _Change("parentheses", *self._span(node), f"(\n\n{self._segment(node)}\n)", True)
        match node:
            case ast.Constant(value=bool()):
                pass
            case ast.Constant(value=int(number)) if number >= 0:
                yield _Change("the spelling of a literal", *self._span(node), hex(number), True)
            case ast.Constant(value=str(text)) if not _is_docstring(place):
                yield _Change("the spelling of a literal", *self._span(node), json.dumps(text), True)
                yield _Change("the spelling of a literal", *self._span(node), f'"" {text!r}', True)
            case ast.Import() | ast.ImportFrom() if len(node.names) > 1:
                other: Any = copy.copy(node)
                other.names = self._moved(node.names)
                yield _Change("the order of imported names", *self._span(node), ast.unparse(other), True)
            case ast.FunctionDef(args=ast.arguments(args=[_, *_] as arguments), decorator_list=[]):
                for each in arguments:
                    if each.annotation is None and each.arg not in ("self", "cls"):
                        yield _Change("an annotation more", *self._span(each), f"{each.arg}: object", True)
            case ast.Assign() | ast.Return() | ast.If() | ast.For() | ast.AugAssign() if node.col_offset == 0 or (
                not isinstance(node, ast.If | ast.For)
            ):
                yield _Change("the formatting of a statement", *self._span(node), ast.unparse(node), True)
            case _:
                pass


FORMATTING = frozenset(
    {
        *("a comment", "a comment at the end of a line", "blank lines", "line ends", "parentheses"),
        *("the spelling of a literal", "the formatting of a statement", "a file written anew"),
    }
)
UNUSED = (
    "import json as _unused_json",
    "_UNUSED_CONSTANT = 1",
    "def _unused_function():\n    return 1",
    "class _Unused:\n    unused = 1",
)


def _where(node: ast.AST, field: str, where: str) -> str:
    match node:
        case ast.ClassDef() if field == "body":
            return "a class"
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda() if field == "body":
            return "a function"
        case ast.arguments() if field in ("defaults", "kw_defaults"):
            return "a default"
        case _ if field == "decorator_list":
            return "a decorator"
        case ast.pattern() | ast.match_case() if field in ("pattern", "value", "keys", "cls"):
            return "a pattern"
        case ast.JoinedStr() | ast.FormattedValue():
            return "an f-string"
        case _:
            return where


def _constants(node: ast.Constant) -> Iterator[tuple[str, ast.expr]]:
    match node.value:
        case bool(value):
            yield "a truth value", ast.Constant(not value)
        case int(number) | float(number):
            yield "a number", ast.Constant(number + 1)
        case str(text):
            yield "a text", ast.Constant(f"{text}_")
        case bytes(text):
            yield "bytes", ast.Constant(text + b"_")
        case None:
            yield "none", ast.Constant(0)
        case _:
            pass


def _bound(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, DEFINITIONS):
        yield statement.name
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.alias) and node.name != "*":
            yield (node.asname or node.name).partition(".")[0]


def _is_text(statement: ast.AST) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _is_docstring(place: _Place) -> bool:
    return _is_text(place.node) or (isinstance(place.parent, ast.Expr) and _is_text(place.parent))


def _short(text: str) -> str:
    shown = repr(" ".join(text.split()))
    return shown if len(shown) <= 80 else f"{shown[:50]} … {shown[-25:]}"


def edit_of_text(file: str, text: str, rng: random.Random) -> Edit | None:
    """An edit of a number or a word of a file that is no Python; none where it has neither."""
    words = list(re.finditer(r"\w+", text))
    if not words:
        return None
    word = rng.choice(words)
    other = str(int(word[0]) + 1) if word[0].isascii() and word[0].isdigit() else f"{word[0]}_"
    edited = text[: word.start()] + other + text[word.end() :]
    line = text[: word.start()].count("\n") + 1
    return Edit(file, "a file beside the code", False, line, f"{word[0]!r} → {other!r}", edited)


class Edits:
    """Random edits of the files of a project, of each kind as often as of any other.

    ``ran`` and ``called`` are lines by file: what ran at all, and what did in calls. Half of the edits are where calls
    are, and most of the others where something ran.
    """

    def __init__(
        self,
        files: Mapping[str, str],
        ran: Mapping[str, AbstractSet[int]],
        called: Mapping[str, AbstractSet[int]],
        seed: int,
    ) -> None:
        self._rng = random.Random(seed)
        self._texts = {name: text for name, text in files.items() if not name.endswith(".py")}
        self._made: set[tuple[str, str]] = set()
        self._places: dict[tuple[bool, str], dict[str, list[tuple[Source, _Change]]]] = {}
        for name, text in sorted(files.items()):
            if name.endswith(".py"):
                source = Source(name, text, self._rng)
                for change in source.changes():
                    for place in ("anywhere", *_places_of(source.lines(change), ran.get(name), called.get(name))):
                        kinds = self._places.setdefault((change.is_meaningless, place), {})
                        kinds.setdefault(change.kind, []).append((source, change))

    def draw(self, *, is_meaningless: bool) -> Edit:
        """An edit that was not made before."""
        for _ in range(10_000):
            edit = self._candidate(is_meaningless)
            if edit is not None and (edit.file, edit.text) not in self._made:
                self._made.add((edit.file, edit.text))
                return edit
        raise LookupError("All edits of this project were made.")

    def _candidate(self, is_meaningless: bool) -> Edit | None:
        (place,) = self._rng.choices(("called", "ran", "anywhere"), (5, 4, 1))
        kinds = self._places.get((is_meaningless, place)) or self._places[is_meaningless, "anywhere"]
        number = self._rng.randrange(len(kinds) + bool(self._texts and not is_meaningless))
        if number == len(kinds):
            name = self._rng.choice(sorted(self._texts))
            return edit_of_text(name, self._texts[name], self._rng)
        source, change = self._rng.choice(kinds[sorted(kinds)[number]])
        return source.edit(change)


def _places_of(lines: range, ran: AbstractSet[int] | None, called: AbstractSet[int] | None) -> list[str]:
    names = ("ran", ran), ("called", called)
    return [name for name, seen in names if seen is not None and not seen.isdisjoint(lines)]
