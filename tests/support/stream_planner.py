"""A stream of the format ``versioned`` as Spark drives it, in this process: what plans is asked in Spark's order, with
offsets as texts, and what tasks get is pickled for them."""

import json
import pickle
from collections.abc import Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from dagster_versioned.delta_tables.spark.data_source import VersionedSource


class StreamPlanner:
    """A query that was started, with these options; ``start`` is the offset that its checkpoint ends with."""

    def __init__(self, start: str | None = None, **options: Any) -> None:
        self.options = {name: str(value) for name, value in options.items()}
        self.planner: Any = self._reader()
        self.start = json.dumps(self.planner.initialOffset()) if start is None else start
        self._in_tasks: Any = None

    def latest(self, *, unlimited: bool = False) -> str:
        """The end of the next batch, which is its start where there is nothing new."""
        limit: ReadLimit = ReadAllAvailable() if unlimited else self.planner.getDefaultReadLimit()
        return json.dumps(self.planner.latestOffset(json.loads(self.start), limit))

    def plan(self, end: str) -> Sequence[InputPartition]:
        return self.planner.partitions(json.loads(self.start), json.loads(end))

    def batch(self, end: str) -> list[dict[str, Any]]:
        """The rows of the tasks up to ``end``, each of which reads with what another process made."""
        if self._in_tasks is None:
            self._in_tasks = pickle.loads(pickle.dumps(self._reader()))
        tasks = pickle.loads(pickle.dumps(list(self.plan(end))))
        return [row for task in tasks for batch in self._in_tasks.read(task) for row in batch.to_pylist()]

    def _reader(self) -> DataSourceStreamReader:
        source = VersionedSource(self.options)
        return source.streamReader(source.schema())
