"""A query over rows in memory, by DuckDB: it sees its inputs, and neither files nor the network, nor this process."""

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import orjson
import pyarrow as pa

from dagster_versioned.engines.sql import arrow_reader, arrow_rows, database, register
from dagster_versioned.errors import InvalidInput
from dagster_versioned.odf.transform_query import TransformQuery

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_ROWS_OF_ARGUMENTS = {"generate_series", "json_each", "json_tree", "range", "repeat", "repeat_row", "unnest"}
"""Functions in the place of a table whose rows are made of their arguments; others show what DuckDB knows of itself."""

_OF_THIS_PROCESS = {
    *("current_connection_id", "current_query_id", "current_setting", "current_transaction_id", "get_block_size"),
    *("getenv", "getvariable", "txid_current", "version", "write_log"),
}
"""Functions whose values are those of the process that runs them."""


def query_rows(inputs: Mapping[str, pa.Table], query: TransformQuery, limit: int | None = None) -> pa.Table:
    """What a query makes of rows, by what it calls them; at most ``limit`` rows of it.

    Raises `InvalidInput` for what is not one SELECT, asks for anything but the rows, or is refused by DuckDB.
    """
    import duckdb

    with database() as connection:
        for name, rows in inputs.items():
            register(connection, name, rows)
        seen = set(inputs)
        result = pa.table({})
        for step in query.steps:
            try:
                statements = connection.extract_statements(step.query)
                if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
                    raise _refused(step.query, "it is not one SELECT")
                _check_reach(connection, step.query, seen)
                executed = connection.execute(statements[0])
                if step.alias is None and limit is not None:
                    # Rows are computed as they are asked for, so a result without end ends here.
                    result = _first(arrow_reader(executed), limit)
                else:
                    result = arrow_rows(executed)
            except duckdb.Error as error:
                raise _refused(step.query, str(error).splitlines()[0]) from None
            if step.alias is not None:
                register(connection, step.alias, result)
                seen.add(step.alias)
    return result


def _check_reach(connection: "DuckDBPyConnection", query: str, seen: Collection[str]) -> None:
    """Raise `InvalidInput` for a query that names anything but the tables that it sees, as DuckDB's parser reads it."""
    answer = cast("Any", connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchone())
    parsed = orjson.loads(answer[0])
    if parsed["error"]:
        raise _refused(query, parsed["error_message"])
    nodes = list(_nodes(parsed["statements"]))
    named = {entry["key"] for node in nodes for entry in node.get("cte_map", {}).get("map", ())}
    known = {name.casefold() for name in (*seen, *named, *(node["cte_name"] for node in nodes if "cte_name" in node))}
    tables = ", ".join(sorted(seen)) or "none"
    for node in nodes:
        match node.get("type"):
            case "TABLE_FUNCTION" if (name := node["function"]["function_name"]).casefold() not in _ROWS_OF_ARGUMENTS:
                raise _refused(query, f"{name}(…) is no table that it sees ({tables:.200})")
            case "FUNCTION" if (name := node["function_name"]).casefold() in _OF_THIS_PROCESS:
                raise _refused(query, f"{name}(…) has a value of this process, not of the rows")
            case "BASE_TABLE" if node["schema_name"] or node["table_name"].casefold() not in known:
                name = ".".join(filter(None, (node["catalog_name"], node["schema_name"], node["table_name"])))
                raise _refused(query, f"{name!r:.100} is no table that it sees ({tables:.200})")
            case "SHOW_REF":
                raise _refused(query, "SHOW, DESCRIBE and SUMMARIZE are no tables")
            case _:
                pass


def _nodes(tree: list[Any]) -> Iterator[dict[str, Any]]:
    """The objects of a parsed query; not by recursion, which would end before DuckDB's."""
    left = tree
    while left:
        node = left.pop()
        if isinstance(node, dict):
            members = cast("dict[str, Any]", node)
            yield members
            left.extend(members.values())
        elif isinstance(node, list):
            left.extend(cast("list[Any]", node))


def _first(reader: pa.RecordBatchReader, limit: int) -> pa.Table:
    batches: list[pa.RecordBatch] = []
    left = limit
    while left > 0 and (batch := next(reader, None)) is not None:
        batches.append(batch.slice(0, left))
        left -= batches[-1].num_rows
    return pa.Table.from_batches(batches, reader.schema)


def _refused(query: str, reason: str) -> InvalidInput:
    return InvalidInput(f"The query {' '.join(query.split())!r:.300} is refused: {reason}. Nothing was written.")
