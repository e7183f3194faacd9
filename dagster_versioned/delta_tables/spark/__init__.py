"""Any Delta table with Spark, classic and Connect, and no JAR. Importing it does not import pyspark."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dagster_versioned.delta_tables.spark.read import read_changes as read_changes
from dagster_versioned.delta_tables.spark.read import read_delta as read_delta
from dagster_versioned.moved import find_moved_function

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(session: "SparkSession") -> None:
    """Make ``spark.read.format("versioned")`` known to a session; see `data_source.register`."""
    from dagster_versioned.engines.spark.releases import require

    require((4, 0), "The format 'versioned'", "Read with `read_delta`, and write with `write_delta`.")
    from dagster_versioned.delta_tables.spark.data_source import register as registered

    registered(session)


def __getattr__(name: str) -> Callable[..., Any]:
    return find_moved_function(__name__, name)
