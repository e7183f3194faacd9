"""Python data sources (PySpark 4.0 and newer) whose tasks read through our own `ObjectStore`.

Spark gives such a source no column pruning; the schema passed to ``.schema()`` is what it reads. Filters are pushed
only to a class that overrides ``pushFilters``, and such a class fails every query while
``spark.sql.python.filterPushdown.enabled`` is false (the default): so there are two classes, and the session decides.
"""

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from dagster_versioned.delta.schema.column_mapping import physical_name
from dagster_versioned.engines.part_ranges import ranges
from dagster_versioned.engines.scan import Scan, ScanFile
from dagster_versioned.engines.spark.by_value import pickled_by_value
from dagster_versioned.engines.spark.part_rows import rows_of_part

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import types as spark_types

ReadTask = Callable[[int], Iterator[pa.RecordBatch]]
"""What a task does that has this number."""

_EXACT = (int, str, date, Decimal)
"""Types whose Parquet statistics order as Spark does. Not floats: statistics pass over NaN, Spark's largest number."""


def loaded(
    session: "SparkSession", source: type[DataSource], work: Any, schema: "spark_types.StructType | str"
) -> "DataFrame":
    """What a source of this module reads; ``work`` is what its `_work` has."""
    with pickled_by_value():
        session.dataSource.register(source)
        described = base64.b64encode(cloudpickle.dumps(work)).decode()
        return session.read.format(source.name()).schema(schema).option("work", described).load()


class TasksReader(DataSourceReader):
    """Calls the function in each of the tasks."""

    def __init__(self, call: ReadTask, count: int) -> None:
        self.call, self.count = call, count

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(i) for i in range(self.count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self.call(partition.value)


class NumberedTasks(DataSource):
    """What `numbered_tasks.in_tasks` asks for."""

    @classmethod
    def name(cls) -> str:
        return "dagster_versioned_tasks"

    def reader(self, schema: "spark_types.StructType") -> DataSourceReader:
        return TasksReader(*self._work())

    def _work(self) -> Any:
        return cloudpickle.loads(base64.b64decode(self.options["work"]))


class FilteringReader(DataSourceReader):
    """Passes over the parts whose Parquet footer shows that no row can match; Spark checks every row again."""

    def __init__(self, scan: Scan) -> None:
        self.scan = scan
        self.filters: list[Any] = []

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802 - PySpark calls it so
        self.filters = list(filters)
        yield from filters

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(i) for i in range(len(self.scan.files))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        index: int = partition.value
        if may_match(self.scan, self.scan.files[index], self.filters):
            yield from rows_of_part(self.scan, index)


class FilteredPartsSource(NumberedTasks):
    """The parts of a `Scan`, for sessions that push filters."""

    @classmethod
    def name(cls) -> str:
        return "dagster_versioned_parts_filtered"

    def reader(self, schema: "spark_types.StructType") -> DataSourceReader:
        return FilteringReader(self._work())


def may_match(scan: Scan, file: ScanFile, filters: Sequence[Any]) -> bool:
    """Whether the file's footer leaves it possible that a row passes all filters, deleted rows included."""
    judged = [f for f in filters if len(f.attribute) == 1 and f.attribute[0] not in file.partition_values]
    if not judged or scan.mapping == "id":
        return True
    metadata = pq.read_metadata(ranges(scan.store, file))
    names = {field.name: physical_name(field, scan.mapping) for field in scan.schema.fields}
    return any(
        all(_group_may_match(metadata.row_group(i), f, names[f.attribute[0]]) for f in judged)
        for i in range(metadata.num_row_groups)
    )


def _group_may_match(group: Any, condition: Any, name: str) -> bool:
    columns = (group.column(i) for i in range(group.num_columns))
    statistics = next((c.statistics for c in columns if c.path_in_schema == name), None)
    if statistics is None:
        return True
    kind = type(condition).__name__
    if kind == "IsNotNull":
        return not (statistics.has_null_count and statistics.null_count == group.num_rows)
    value = getattr(condition, "value", None)
    if not statistics.has_min_max or type(statistics.min) not in _EXACT or type(value) is not type(statistics.min):
        return True
    is_possible = _POSSIBLE.get(kind)
    return is_possible is None or is_possible(statistics.min, statistics.max, value)


_POSSIBLE: dict[str, Callable[[Any, Any, Any], bool]] = {
    "EqualTo": lambda least, greatest, value: least <= value <= greatest,
    "LessThan": lambda least, _, value: least < value,
    "LessThanOrEqual": lambda least, _, value: least <= value,
    "GreaterThan": lambda _, greatest, value: greatest > value,
    "GreaterThanOrEqual": lambda _, greatest, value: greatest >= value,
}
"""By filter, whether a value between two bounds may pass it."""
