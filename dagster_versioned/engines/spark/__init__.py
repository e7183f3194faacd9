"""The engine for Spark, classic and Connect. Importing it does not import pyspark."""

from dagster_versioned.engines.spark.engine import SparkEngine
from dagster_versioned.engines.spark.session import default_session

__all__ = ["SparkEngine", "default_session"]
