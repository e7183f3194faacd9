"""Queries that somebody asks once, over histories of events: nothing of them is recorded, and nothing is written."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from dagster_versioned.delta.log.history import require_limit
from dagster_versioned.errors import InvalidInput
from dagster_versioned.odf.transform_query import QueryStep, TransformQuery

if TYPE_CHECKING:
    from sqlglot.expressions import Query

Engine = Literal["duckdb", "spark"]

_QUOTES: dict[Engine, str] = {"duckdb": '"', "spark": "`"}
_BEGINNINGS = {"SELECT", "WITH", "FROM", "VALUES", "("}


def query(
    sql: str, rows_of: Callable[[str], pa.Table], *, engine: Engine = "duckdb", limit: int | None = None
) -> pa.Table:
    """What a query gives, at most ``limit`` rows; ``rows_of`` has the rows of each table that it names.

    It runs as a transform's would: it sees these rows and nothing else, neither files nor tables of a catalog, and by
    Spark nothing that has another value in another run. Raises `InvalidInput`, and what ``rows_of`` does.
    """
    require_limit(limit)
    names = _tables(sql, engine)
    found = TransformQuery(names or ("nothing",), (QueryStep(sql),))
    inputs = {name: rows_of(name) for name in names}
    if engine == "spark":
        from dagster_versioned.odf.spark.query_rows import query_rows
    else:
        from dagster_versioned.odf.arrow.query_rows import query_rows
    answer = query_rows(inputs, found, limit)
    if twice := [name for name in answer.column_names if answer.column_names.count(name) > 1]:
        raise _refused(sql, f"its result has two columns {twice[0]!r}", "Call one something else: … AS name.")
    return answer


def _tables(sql: str, engine: Engine) -> tuple[str, ...]:
    """The tables that a query names, each once; its own (`WITH`) are none. Raises `InvalidInput`."""
    from sqlglot import exp
    from sqlglot.errors import SqlglotError
    from sqlglot.optimizer.scope import traverse_scope

    try:
        sources = [source for scope in traverse_scope(_tree(sql, engine)) for source in scope.sources.values()]
    except (SqlglotError, RecursionError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise _refused(sql, f"it cannot be read: {reason}", f"Write it in the SQL of {engine}.") from None
    found: dict[str, str] = {}
    for table in sources:
        if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier):
            continue
        if table.db:
            name = ".".join(part.name for part in table.parts)
            quoted = f"{_QUOTES[engine]}{name}{_QUOTES[engine]}"
            raise _refused(sql, f"{name} is in three parts or two", f"Quote the name of a dataset: {quoted}.")
        found.setdefault(table.name.casefold(), table.name)
    return tuple(found.values())


def _tree(sql: str, engine: Engine) -> "Query":
    """The one SELECT of a text. Raises `InvalidInput`, and what sqlglot does."""
    import sqlglot
    from sqlglot import exp

    # What begins otherwise is no query, and sqlglot would log that it cannot read it.
    first = next(iter(sqlglot.tokenize(sql, dialect=engine)), None)
    trees = sqlglot.parse(sql, dialect=engine) if first is not None and first.text.upper() in _BEGINNINGS else []
    tree = trees[0] if len(trees) == 1 else None
    if not isinstance(tree, exp.Query) or tree.find(exp.Delete, exp.Insert, exp.Update) is not None:
        raise _refused(sql, "it is not one SELECT", "Write a query: SELECT …")
    return tree


def _refused(sql: str, reason: str, fix: str) -> InvalidInput:
    return InvalidInput(f"The query {' '.join(sql.split())!r:.300} is refused: {reason}. Nothing was read. {fix}")
