"""SQL expressions over Arrow tables: text in Spark's dialect, evaluated by DuckDB.

An expression computes one value a row and reaches nothing but that row: statements, subqueries, aggregates, windows
and what differs from call to call are refused, and the database is locked out of files and the network. What is known
to have one value in both dialects, or is rewritten to Spark's (in ANSI mode), is evaluated; all else is refused.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dagster_versioned.delta.schema.types import DataType, StructType, type_to_arrow
from dagster_versioned.engines.expression import INTEGERS, Columns, ResolvedExpression, in_quotes
from dagster_versioned.engines.nested_fields import renamed
from dagster_versioned.errors import InvalidExpression, InvalidInput
from dagster_versioned.process_state import PROCESS

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_LOCKED = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
}

# --- names -----------------------------------------------------------------------------------------------------------


class Names(Columns):
    """The columns that expressions may use, and the expressions as DuckDB evaluates them."""

    def __init__(self, sides: Mapping[str, StructType], now: datetime | None = None) -> None:
        super().__init__(sides, now or datetime.now(UTC))

    def resolve(self, text: str) -> ResolvedExpression:
        """Parse, check and translate one expression. Raises `InvalidInput` naming the expression and the reason."""
        from dagster_versioned.engines.sql_translation import Translation, parse_expression

        return Translation(text, self, self.described).of(parse_expression(text))

    def condition(self, text: str) -> ResolvedExpression:
        """`resolve`, for a text whose value is true, false or null. Raises `InvalidInput` for any other as well."""
        import duckdb

        resolved = self.resolve(text)
        try:
            held = self.described(resolved.sql)
        except duckdb.Error as error:
            raise _unevaluated(repr(text), error) from error
        if held != "BOOLEAN":
            raise _no_condition(text, held)
        return resolved

    def equalities(self, text: str, one: str, other: str) -> list[tuple[str, str]]:
        """The columns of two sides that must be equal where ``text`` is true, as far as that is plain to see."""
        from dagster_versioned.engines.sql_translation import Translation, equated, parse_expression

        found: list[tuple[str, str]] = []
        for operands in equated(parse_expression(text)):
            plain = [Translation(text, self, self.described).of(operand).plain_column for operand in operands]
            columns = dict(column for column in plain if column is not None)
            if columns.keys() == {one, other}:
                found.append((columns[one], columns[other]))
        return found

    def described(self, sql: str) -> str:
        """DuckDB's type of what is in its dialect. Raises its errors."""
        source = " FROM nothing" if self.rows.schema.names else ""  # DuckDB knows no table without columns
        with database() as cursor:
            if source:
                cursor.register("nothing", self.rows)
            return str(cursor.execute(f"DESCRIBE SELECT {sql}{source}").fetchall()[0][1])


# --- evaluation ------------------------------------------------------------------------------------------------------


def table_of(columns: Mapping[str, Any], count: int) -> pa.Table:
    """A table of columns that are called as expressions call them; of ``count`` rows even where there is none."""
    return pa.Table.from_pydict(dict(columns) or {"": pa.nulls(count, pa.bool_())})


def evaluate(rows: pa.Table, expressions: Mapping[str, tuple[ResolvedExpression, DataType | None]]) -> pa.Table:
    """One column an expression, cast to a type where one is given, in the order of the rows.

    The cast is Spark's store assignment: fractions are cut off for integers, decimals rounded, and what does not fit
    is an error; floats are not made decimals. ``rows`` has the columns that the expressions need, called as `stored`
    says. Raises `InvalidInput`.
    """
    import duckdb

    with database() as cursor:
        cursor.register("given", rows)
        columns: dict[str, Any] = {}
        texts: list[str] = []
        for position, (expression, wanted) in enumerate(expressions.values()):
            texts.append(f"{_assigned(cursor, expression, wanted)} AS c{position}")
        try:
            result = arrow_rows(cursor.execute(f"SELECT {', '.join(texts)} FROM given"))
        except duckdb.Error as error:
            given = " or ".join(dict.fromkeys(repr(expression.text) for expression, _ in expressions.values()))
            raise _unevaluated(given, error) from error
    for position, (name, (expression, wanted)) in enumerate(expressions.items()):
        column = result.column(position)
        if wanted is not None:
            try:
                column = renamed(column, wanted, name).cast(type_to_arrow(wanted))
            except pa.ArrowException as error:
                raise _unevaluated(repr(expression.text), error) from error
        columns[name] = column
    return table_of(columns, rows.num_rows)


def is_true(rows: pa.Table, condition: ResolvedExpression) -> NDArray[np.bool_]:
    """For each row whether the condition is true: not false and not null. Raises `InvalidInput`."""
    column = evaluate(rows, {"truth": (condition, None)}).column(0)
    if pa.types.is_boolean(column.type):
        return column.combine_chunks().fill_null(False).to_numpy(zero_copy_only=False)
    if column.null_count < len(column):  # DuckDB takes numbers and texts for true and false, where Spark does not
        raise _no_condition(condition.text, str(column.type))
    return np.zeros(len(column), np.bool_)


def has_values_of(rows: pa.Table, others: pa.Table) -> NDArray[np.bool_]:
    """For each row whether another one has the same in all its columns, in their order; null is the same as nothing.

    Both have the same types, but for the width of integers; nothing is cast else. Raises `InvalidInput`, whose message
    has no value.
    """
    import duckdb

    for name, own, other in zip(rows.column_names, rows.schema.types, others.schema.types, strict=True):
        if own != other and not (pa.types.is_integer(own) and pa.types.is_integer(other)):
            raise InvalidInput(f"{name!r} is {own} here and {other} elsewhere, which are not compared.")
    found = np.zeros(rows.num_rows, np.bool_)
    names = [f"c{number}" for number in range(rows.num_columns)]
    try:
        places = select_rows(
            f"SELECT place FROM given SEMI JOIN others USING ({', '.join(names)})",
            given=rows.rename_columns(names).append_column("place", pa.array(np.arange(rows.num_rows))),
            others=others.rename_columns(names),
        )
    except (duckdb.Error, pa.ArrowException):
        types = ", ".join(map(str, rows.schema.types))
        raise InvalidInput(f"{', '.join(map(repr, rows.column_names))} ({types}) cannot be compared.") from None
    found[places["place"].to_numpy()] = True
    return found


def pairs(target: pa.Table, source: pa.Table, condition: ResolvedExpression, columns: Mapping[str, str]) -> pa.Table:
    """The inner join of two tables where the condition is true; ``columns`` are what to return, by their names there.

    Every column of both tables has another name. In no particular order. Raises `InvalidInput`.
    """
    import duckdb

    chosen = ", ".join(f'"{column}" AS "{name}"' for name, column in columns.items())
    with database() as cursor:
        register(cursor, "target", target)
        register(cursor, "source", source)
        try:
            # The order of pairs says nothing, and keeping one would cost.
            return arrow_rows(cursor.execute(f"SELECT {chosen} FROM target JOIN source ON ({condition.sql})"))
        except duckdb.Error as error:
            raise _unevaluated(repr(condition.text), error) from error


def _assigned(cursor: "DuckDBPyConnection", expression: ResolvedExpression, wanted: DataType | None) -> str:
    import duckdb

    sql = f"({expression.sql})"
    if not isinstance(wanted, str) or wanted in ("void", "variant"):
        return sql
    try:
        held = str(cursor.execute(f"DESCRIBE SELECT {sql} FROM given").fetchall()[0][1])
    except duckdb.Error as error:
        raise _unevaluated(repr(expression.text), error) from error
    if wanted in INTEGERS.values() and (held in ("FLOAT", "DOUBLE") or held.startswith("DECIMAL")):
        sql = f"trunc({sql})"
    if wanted.startswith("decimal") and held in ("FLOAT", "DOUBLE"):
        raise InvalidInput(
            f"The values of {expression.text!r:.300} are {held}, and go into a {wanted}, where Spark and DuckDB may "
            "round to other digits. Nothing was written. Bring decimals, or change the column with Spark."
        )
    return f"CAST({sql} AS {_DUCKDB.get(wanted) or wanted.upper()})"


_DUCKDB = {
    "string": "VARCHAR",
    "long": "BIGINT",
    "integer": "INTEGER",
    "short": "SMALLINT",
    "byte": "TINYINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
    "binary": "BLOB",
    "date": "DATE",
    "timestamp": "TIMESTAMPTZ",
    "timestamp_ntz": "TIMESTAMP",
}


def _no_condition(text: str, held: str) -> InvalidInput:
    return InvalidExpression(
        f"{text!r:.300} is no condition: its value is {held}, and not true or false. Nothing was written."
    )


def _unevaluated(given: str, error: Exception) -> InvalidInput:
    reason = str(error).partition("\n")[0]
    return InvalidExpression(f"{given:.300} cannot be evaluated: {reason}. Nothing was written.")


class Database:
    """A database in memory that sees neither files nor the network, in UTC."""

    def __init__(self) -> None:
        import duckdb

        self.connection = connection = duckdb.connect(":memory:", config=cast("Any", _LOCKED))
        connection.execute("SET GLOBAL TimeZone = 'UTC'")  # of every cursor, which is a session of its own
        # A join would hand the bounds of one side to the other as Python's values, which has not every year that Arrow
        # has.
        connection.execute("SET disabled_optimizers = 'join_filter_pushdown'")
        connection.execute("SET lock_configuration = true")


def database() -> "DuckDBPyConnection":
    """A connection of its own to a database in memory: registered tables are seen by it alone, and threads do not wait
    for each other."""
    return PROCESS.of(Database).connection.cursor()


def register(connection: "DuckDBPyConnection", name: str, rows: pa.Table) -> None:
    """Have a connection see rows as a table.

    DuckDB hands filters on to Arrow, to which NaN is above no number, and which looks up the bits of zeros. It keeps
    those of computed columns, so here all are that hold floats.
    """
    floats = [field.name for field in cast("list[pa.Field[Any]]", list(rows.schema)) if _holds_floats(field.type)]
    if not floats:
        connection.register(name, rows)
        return
    given = f"{name}, as Arrow has it"
    connection.register(given, rows)
    columns = map(in_quotes, floats)
    computed = ", ".join(f"CASE WHEN {column} IS NOT NULL THEN {column} END AS {column}" for column in columns)
    query = f"SELECT * REPLACE ({computed}) FROM {in_quotes(given)}"
    connection.execute(f"CREATE OR REPLACE TEMP VIEW {in_quotes(name)} AS {query}")


def _holds_floats(data_type: Any) -> bool:
    """Whether it is a type of floats, or a struct of such; no filter of what is in lists and maps is handed on."""
    if pa.types.is_struct(data_type):
        return any(_holds_floats(data_type.field(i).type) for i in range(data_type.num_fields))
    return pa.types.is_floating(data_type)


def arrow_rows(result: "DuckDBPyConnection") -> pa.Table:
    """The rows of what a connection executed last."""
    # DuckDB has the first name from 1.5 on; there it warns of the second, by which older ones know it.
    return result.to_arrow_table() if hasattr(result, "to_arrow_table") else result.fetch_arrow_table()


def select_rows(query: str, **tables: pa.Table) -> pa.Table:
    """The rows of a query over tables, by their names in it."""
    with database() as connection:
        for name, rows in tables.items():
            register(connection, name, rows)
        return arrow_rows(connection.execute(query))


def arrow_reader(result: "DuckDBPyConnection") -> pa.RecordBatchReader:
    """The rows of what a connection executed last, in batches that are computed as they are read."""
    return result.to_arrow_reader() if hasattr(result, "to_arrow_reader") else result.fetch_record_batch()
