"""The engine for Spark, classic and Connect. Importing it does not import pyspark, and starts no JVM."""

from typing import TYPE_CHECKING

from dagster_versioned.engines.spark.session import default_session

if TYPE_CHECKING:
    from dagster_versioned.engines.spark.engine import SparkEngine

__all__ = ["SparkEngine", "default_session"]


def __getattr__(name: str) -> object:
    if name != "SparkEngine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dagster_versioned.engines.spark.engine import SparkEngine

    return SparkEngine
