"""Queries that name an engine which is not here, run by one that is, where somebody says that their SQL is standard.

What ran is what is recorded: the engine and its version in the chain are those that ran, so whoever verifies runs the
same. Source: seed 002 ("Engine Deprecation").
"""

from dataclasses import replace
from importlib.metadata import version
from typing import Final

from dagster_versioned.errors import InvalidInput
from dagster_versioned.odf.blocks.events import (
    AddPushSource,
    MetadataEvent,
    SetPollingSource,
    SetTransform,
    TransformSql,
)
from dagster_versioned.odf.manifest import DatasetSnapshot
from dagster_versioned.odf.standard_sql import in_words_of

ENGINES: Final = {"spark": "pyspark", "duckdb": "duckdb"}
"""The engines that are here, and the packages that they are in."""


def run_by(snapshot: DatasetSnapshot, engine: str | None) -> DatasetSnapshot:
    """The dataset of a manifest, with each query of an engine that is not here as one of ``engine``, and its version.

    Such a query is put in the words of the engine (`in_words_of`). Queries of Spark and DuckDB stay as they are;
    without an ``engine`` all do. Raises `InvalidInput` for an engine that is not here, for what is not standard SQL,
    and for DuckDB where a dataset is computed from others, which Spark alone does.
    """
    if engine is None:
        return snapshot
    if engine not in ENGINES:
        raise InvalidInput(
            f"The engine {engine!a:.50} is not here; {' and '.join(ENGINES)} are. Nothing was changed. Name one of "
            "these."
        )
    return replace(snapshot, metadata=tuple(_run_by(event, engine) for event in snapshot.metadata))


def _run_by(event: MetadataEvent, engine: str) -> MetadataEvent:
    match event:
        case SetPollingSource(preprocess=TransformSql() as query) | AddPushSource(preprocess=TransformSql() as query):
            return replace(event, preprocess=_named(query, engine))
        case SetTransform(transform=query) if query.engine.casefold() != "spark":
            if engine != "spark":
                raise InvalidInput(
                    f"A dataset that is computed from others is computed by spark, not by {engine}. Nothing was "
                    "changed. Name spark."
                )
            return replace(event, transform=_named(query, engine))
        case _:
            return event


def _named(sql: TransformSql, engine: str) -> TransformSql:
    if sql.engine.casefold() in ENGINES:
        return sql
    temporal = frozenset(table.name for table in sql.temporal_tables or ())
    steps = tuple(replace(one, query=in_words_of(engine, one.query, sql.engine, temporal)) for one in sql.queries or ())
    return replace(
        sql,
        engine=engine,
        version=version(ENGINES[engine]),
        query=None if sql.query is None else in_words_of(engine, sql.query, sql.engine, temporal),
        queries=None if sql.queries is None else steps,
    )
