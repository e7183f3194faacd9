"""The engine for Spark, classic and Connect. Importing it does not import pyspark."""

from typing import TYPE_CHECKING

from dagster_versioned.engines.spark.changes import read_changes
from dagster_versioned.engines.spark.delta_table import (
    add_constraint,
    delete_from,
    merge_delta,
    optimize_delta,
    update_delta,
    write_delta,
)
from dagster_versioned.engines.spark.engine import SparkEngine
from dagster_versioned.engines.spark.read import read_delta
from dagster_versioned.engines.spark.session import default_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "SparkEngine",
    "add_constraint",
    "default_session",
    "delete_from",
    "merge_delta",
    "optimize_delta",
    "read_changes",
    "read_delta",
    "register",
    "update_delta",
    "write_delta",
]


def register(session: "SparkSession") -> None:
    """Make ``spark.read.format("versioned")`` known to a session; see `data_source.register`."""
    from dagster_versioned.engines.spark.data_source import register as registered

    registered(session)
