"""Standard SQL, as other engines take it, in the words of an engine that is here.

Names and texts are quoted as the engine quotes them, nulls are sorted as the other engine sorts them, a join with a
temporal table is spelled out, and functions of time get their names; everything else stays as it was written. What
belongs to the other engine alone is refused by name.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Final

from dagster_versioned.errors import InvalidInput
from dagster_versioned.odf.transform_query import VALID_FROM, VALID_TO

_RENAMED: Final = {
    ("datafusion", "spark"): {
        "concat": ("concat_ws('', ", ")"),  # a null is passed over
        "to_timestamp_seconds": ("timestamp_seconds(CAST(", " AS BIGINT))"),  # whole seconds, also of fractions
        "to_timestamp_millis": ("timestamp_millis(", ")"),
        "to_timestamp_micros": ("timestamp_micros(", ")"),
        "log": ("log10(", ")"),
    },
    ("datafusion", "duckdb"): {
        "to_timestamp": ("CAST(", " AS TIMESTAMPTZ)"),  # of a text; DuckDB's own takes seconds
        "to_timestamp_seconds": ("to_timestamp(trunc(", "))"),
        "to_timestamp_millis": ("epoch_ms(", ")"),
        "to_timestamp_micros": ("make_timestamp(", ")"),
    },
    ("risingwave", "spark"): {"concat": ("concat_ws('', ", ")"), "log": ("log10(", ")")},
    ("flink", "duckdb"): {"log": ("ln(", ")")},
}
"""Functions that an engine that is here calls otherwise, or which have another value there: what stands around their
arguments. Those of DataFusion were compared with DataFusion 55."""

_DIFFERENT: Final = {
    ("datafusion", "spark"): {"regexp_replace", "initcap"},  # the first match alone; what follows an apostrophe
    ("risingwave", "spark"): {"regexp_replace", "initcap"},
    ("flink", "spark"): {"greatest", "least"},  # null where any argument is
    ("flink", "duckdb"): {"greatest", "least", "concat", "regexp_replace"},
}
"""Functions that an engine that is here has, with another value."""

_SUNDAY_IS_ANOTHER: Final = {("datafusion", "spark"), ("risingwave", "spark"), ("flink", "duckdb")}
"""Where the day of the week counts from another number."""

_ONE_ARGUMENT: Final = {"to_timestamp", "to_timestamp_seconds", "to_timestamp_millis", "to_timestamp_micros", "log"}
"""Of these, more arguments mean something else (a format, a base)."""

_NULLS_LARGEST: Final = {"datafusion", "risingwave"}
"""Engines that sort nulls as if they were the greatest values; in Flink, as in Spark, they are the least."""

_WINDOWS: Final = {
    *("tumble", "hop", "session", "cumulate", "tumble_start", "tumble_end", "tumble_rowtime", "hop_start", "hop_end"),
    *("hop_rowtime", "session_start", "session_end", "session_rowtime"),
}
"""Functions of streaming engines that deal rows to windows of time."""

_ENDS: Final = {
    *("WHERE", "GROUP", "GROUP BY", "HAVING", "WINDOW", "QUALIFY", "ORDER", "ORDER BY", "LIMIT", "OFFSET", "FETCH"),
    *("UNION", "INTERSECT", "EXCEPT", "JOIN", "LEFT", "RIGHT", "FULL", "INNER", "CROSS", "NATURAL", ";"),
    *("ROWS", "RANGE", "GROUPS", ")", ","),
}
"""What ends a condition of a join, and a term that rows are sorted by."""


def in_words_of(engine: str, query: str, other: str, temporal_tables: frozenset[str] = frozenset()) -> str:
    """A query of the engine ``other`` as one of ``engine``, which has the same value where it is standard SQL.

    ``temporal_tables`` are the inputs that have versions. Raises `InvalidInput` for what is the other engine's own.
    """
    reading = _Reading(query, other.casefold(), engine)
    reading.quotes()
    reading.functions()
    reading.differences()
    reading.windows()
    reading.orders()
    reading.versions(temporal_tables)
    return reading.text


@dataclass(frozen=True, slots=True)
class _Edit:
    start: int
    end: int
    text: str


class _Reading:
    """The tokens of a query, and what takes their place."""

    def __init__(self, query: str, other: str, engine: str) -> None:
        self._query, self._other, self._engine = query, other, engine
        self._tokens = _tokens(query, other)
        # A name or a text in quotes is no word of SQL, whatever it is.
        self._words = [
            query[token.start : token.end + 1] if _is_quoted(token) else token.text.upper() for token in self._tokens
        ]
        self._edits: list[_Edit] = []

    @property
    def text(self) -> str:
        """The query with its edits."""
        text = self._query
        for edit in sorted(self._edits, key=lambda one: (one.start, one.end), reverse=True):
            text = text[: edit.start] + edit.text + text[edit.end :]
        return text

    def quotes(self) -> None:
        """Names and texts in the quotes, and with the escapes, of the engine."""
        for token in self._tokens:
            kind = token.token_type.name
            if kind == "IDENTIFIER":
                self._put(token, _name(token.text, self._engine))
            elif kind == "STRING":
                inner = self._query[token.start + 1 : token.end]
                if self._engine == "spark" and ("\\" in inner or "''" in inner):
                    self._put(token, "'" + token.text.replace("\\", "\\\\").replace("'", "\\'") + "'")

    def functions(self) -> None:
        renamed = _RENAMED.get((self._other, self._engine), {})
        for at, name in self._called():
            if (around := renamed.get(name)) is None:
                continue
            close = self._close(at + 1)
            if name in _ONE_ARGUMENT and "," in self._level(at + 2, close):
                raise self._differs(f"{name}() with several arguments")
            before, after = around
            self._edits.append(_Edit(self._tokens[at].start, self._tokens[at + 1].end + 1, before))
            self._put(self._tokens[close], after)

    def differences(self) -> None:
        """Refuse what the engine takes without a word, and for something else."""
        pair, words = (self._other, self._engine), self._words
        for at, name in self._called():
            if name in _DIFFERENT.get(pair, ()):
                raise self._differs(f"{name}()")
            if name in ("substr", "substring"):
                level = self._level(at + 2, self._close(at + 1))
                if any(one == "," and start in ("0", "-") for one, start in pairwise(level)):
                    raise self._differs(f"{name}() from before the beginning")
        for at, word in enumerate(words):
            is_part = words[max(at - 2, 0) : at] in (["EXTRACT", "("], ["DATE_PART", "("])
            if is_part and word.strip("'").upper() == "DOW" and pair in _SUNDAY_IS_ANOTHER:
                raise self._differs("the day of the week")
            if word == "/" and any(one.isdigit() for one in (*words[at - 1 : at], *words[at + 1 : at + 2])):
                raise self._differs("a division by a whole number, or of one,")
            if word == "[" and self._engine == "spark" and at and words[at - 1] != "ARRAY":
                raise self._differs("an item of a list by its number")

    def windows(self) -> None:
        for _, name in self._called():
            if name in _WINDOWS:
                raise self._refused(
                    f"{name}(), a window of a stream",
                    "group by what the rows of a window have in common, as date_trunc('day', …)",
                )
            if name == "match_recognize":
                raise self._refused("MATCH_RECOGNIZE", "write it with window functions")
        for at, word in enumerate(self._words):
            if word == "EMIT" and self._words[at + 1 : at + 2] == ["ON"]:
                raise self._refused("EMIT ON", "leave it out: rows that come late correct what was computed")

    def orders(self) -> None:
        """Say where nulls are sorted, where the two engines differ."""
        if self._other in _NULLS_LARGEST:
            ascending, descending = "LAST", "FIRST"
        elif (self._other, self._engine) == ("flink", "duckdb"):
            ascending, descending = "FIRST", "LAST"
        else:
            return
        for at, word in enumerate(self._words):
            if word != "ORDER BY":
                continue
            first = at + 1
            for end in self._ends(first):
                item = self._words[first:end]
                if "NULLS" not in item and item:
                    place = descending if item[-1] == "DESC" else ascending
                    self._after(self._tokens[end - 1], f" NULLS {place}")
                first = end + 1

    def versions(self, tables: frozenset[str]) -> None:
        """Joins with what was valid at a time, by the columns that a temporal table has here."""
        words = self._words
        starts = [at for at in range(len(words)) if words[at : at + 4] == ["FOR", "SYSTEM_TIME", "AS", "OF"]]
        everything = {("SELECT", "*"), (".", "*"), (",", "*")} & set(pairwise(words))
        if starts and everything:
            raise self._refused("a * beside FOR SYSTEM_TIME AS OF", "name the columns")
        for at in starts:
            table = self._tokens[at - 1].text
            if table not in tables:
                raise self._refused(
                    f"FOR SYSTEM_TIME AS OF of {table}, which is no temporal table",
                    "name it, and the key of its versions, in temporalTables",
                )
            time, named = self._tokens[at + 4 : at + 7], at + 7 + (words[at + 7 : at + 8] == ["AS"])
            if words[at + 5 : at + 6] != ["."] or words[named + 1 : named + 2] != ["ON"]:
                raise self._refused(
                    "FOR SYSTEM_TIME AS OF in a form that is not known",
                    "write JOIN table FOR SYSTEM_TIME AS OF other.time AS alias ON …",
                )
            on = named + 1
            self._cut(self._tokens[at].start, time[-1].end + 1)
            name = _name(self._tokens[named].text, self._engine)
            moment = ".".join(_name(token.text, self._engine) for token in (time[0], time[2]))
            valid = f"{name}.{VALID_FROM} <= {moment} AND ({name}.{VALID_TO} IS NULL OR {moment} < {name}.{VALID_TO})"
            *_, end = self._ends(on + 1)
            self._after(self._tokens[on], f" {valid} AND (")
            self._after(self._tokens[end - 1], ")")

    def _called(self) -> Iterator[tuple[int, str]]:
        """Where functions are called, and which."""
        for at, token in enumerate(self._tokens[:-1]):
            if self._words[at + 1] == "(" and not _is_quoted(token):
                yield at, token.text.casefold()

    def _close(self, opened: int) -> int:
        """The parenthesis that closes one."""
        depth = 0
        for at in range(opened, len(self._words)):
            depth += (self._words[at] == "(") - (self._words[at] == ")")
            if depth == 0:
                return at
        raise self._refused("a parenthesis that is not closed", "close it")

    def _level(self, start: int, end: int) -> list[str]:
        """The words between two places that are in no parentheses."""
        found: list[str] = []
        depth = 0
        for word in self._words[start:end]:
            depth += word == "("
            if depth == 0:
                found.append(word)
            depth -= word == ")"
        return found

    def _ends(self, start: int) -> Iterator[int]:
        """Where each of the terms ends that begin at a place; the last where its clause ends."""
        depth = 0
        for at in range(start, len(self._words)):
            word = self._words[at]
            is_function = word in ("LEFT", "RIGHT") and self._words[at + 1 : at + 2] == ["("]
            if depth == 0 and not is_function and word in _ENDS:
                yield at
                if word != ",":
                    return
            depth += (word == "(") - (word == ")")
        yield len(self._words)

    def _cut(self, start: int, end: int) -> None:
        within = [edit for edit in self._edits if start <= edit.start and edit.end <= end]
        self._edits = [*(edit for edit in self._edits if edit not in within), _Edit(start, end, "")]

    def _put(self, token: Any, text: str) -> None:
        self._edits.append(_Edit(token.start, token.end + 1, text))

    def _after(self, token: Any, text: str) -> None:
        self._edits.append(_Edit(token.end + 1, token.end + 1, text))

    def _refused(self, what: str, fix: str) -> InvalidInput:
        return self._error(f"{what}: that is in the SQL of {self._other!a:.50}, and not in the standard", fix)

    def _differs(self, what: str) -> InvalidInput:
        return self._error(
            f"{what}: it has another value in {self._engine} than in {self._other!a:.50}",
            f"write it as {self._engine} has it (1.0 for 1), and name {self._engine} as the engine",
        )

    def _error(self, reason: str, fix: str) -> InvalidInput:
        query = " ".join(self._query.split())
        return InvalidInput(
            f"The query {query!r:.300} has {reason}. Nothing was changed. To have {self._engine} run it, {fix}."
        )


def _is_quoted(token: Any) -> bool:
    return token.token_type.name in ("IDENTIFIER", "STRING")


def _name(name: str, engine: str) -> str:
    mark = "`" if engine == "spark" else '"'
    return mark + name.replace(mark, mark * 2) + mark


def _tokens(query: str, other: str) -> list[Any]:
    from sqlglot.dialects.dialect import Dialect
    from sqlglot.errors import SqlglotError
    from sqlglot.tokens import Tokenizer

    class Either(Tokenizer):
        IDENTIFIERS: ClassVar = ['"', "`"]

    class Standard(Dialect):
        Tokenizer = Either

    try:
        return list(Standard().tokenize(query))
    except SqlglotError as error:
        reason = str(error).splitlines()[0]
        raise InvalidInput(
            f"The query {' '.join(query.split())!r:.300} of the engine {other!a:.50} cannot be read: {reason}. Nothing "
            "was changed. Correct it."
        ) from None
