"""What Spark's tasks are made of reaches executors that do not have this package."""

import io
import pickle

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


class _Names(pickle._Unpickler):
    """Keeps what is asked for by its name."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self.found: set[str] = set()

    def find_class(self, module_name: str, global_name: str) -> object:
        self.found.add(f"{module_name}.{global_name}")
        return super().find_class(module_name, global_name)


@pytest.mark.parametrize("shipped", SHIPPED, ids=lambda each: f"{each.__module__}.{each.__qualname__}")
def test_what_is_shipped_names_nothing_of_this_package(shipped):
    with pickled_by_value():
        unpickler = _Names(cloudpickle.dumps(shipped))
    unpickler.load()
    assert sorted(name for name in unpickler.found if name.startswith("dagster_versioned")) == []
