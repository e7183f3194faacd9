"""What Spark's tasks are made of reaches executors that do not have this package."""

import fnmatch
import subprocess
import sys

import pytest
from pyspark import cloudpickle

from dagster_versioned.delta_tables.spark import (
    data_source,
    data_source_filters,
    data_source_tasks,
    data_source_write,
    log_plan,
    log_tail,
    planned_rows,
    row_locations_source,
)
from dagster_versioned.delta_tables.spark import task as delta_task
from dagster_versioned.engines.spark import source, worker
from dagster_versioned.engines.spark.by_value import pickled_by_value
from dagster_versioned.engines.sql_functions import rewritings
from dagster_versioned.features.spark import content_versions

SHIPPED = [
    worker.Task,
    worker.tallied,
    worker.with_lanes,
    source.PartsSource,
    source.FilteredPartsSource,
    source.DeletedRowsSource,
    delta_task.DeltaTask,
    row_locations_source.LocatedSource,
    planned_rows._rows,
    log_plan._reader,
    data_source.VersionedSource,
    data_source_tasks.TableReader,
    data_source_filters.FilteringTableReader,
    data_source_write.TableWriter,
    log_tail.LogTail,
    content_versions.versions_of,
    content_versions.digests_of,
]


LOADED = """
import sys
sys.modules["dagster_versioned"] = None  # as where it is not installed
from pyspark import cloudpickle
cloudpickle.loads(sys.stdin.buffer.read())
"""


@pytest.mark.parametrize("shipped", SHIPPED, ids=lambda each: f"{each.__module__}.{each.__qualname__}")
def test_what_is_shipped_is_loaded_where_this_package_is_not(shipped):
    # Not in this process: what is loaded becomes part of the classes that it came from.
    with pickled_by_value():
        payload = cloudpickle.dumps(shipped)
    done = subprocess.run([sys.executable, "-c", LOADED], input=payload, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-1000:]


def test_functions_with_a_cache_are_pickled_by_their_names_elsewhere():
    with pickled_by_value():
        pass
    for cached in (rewritings, fnmatch._compile_pattern):
        assert cloudpickle.loads(cloudpickle.dumps(cached)) is cached
