"""A Python data source that streams parts through our own `ObjectStore`: stores that Spark cannot reach, with no JAR.

Spark gives such a source no column pruning; the schema passed to ``.schema()`` is what it reads. Filters are pushed
only to a class that overrides ``pushFilters``, and such a class fails every query while
``spark.sql.python.filterPushdown.enabled`` is false (the default): so there are two classes, and the session decides.
"""

import base64
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from dagster_versioned.delta.schema.column_mapping import physical_name
from dagster_versioned.engines.arrow.scan import stream_table
from dagster_versioned.engines.part_ranges import positions, ranges
from dagster_versioned.engines.scan import Scan, ScanFile
from dagster_versioned.engines.spark.by_value import pickled_by_value
from dagster_versioned.engines.spark.types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import types as spark_types

DELETED_BATCH_ROWS = 1 << 20

_EXACT = (int, str, date, Decimal)
"""Types whose Parquet statistics order as Spark does. Not floats: statistics pass over NaN, Spark's largest number."""


def read_through_executors(scan: Scan, session: "SparkSession") -> "DataFrame":
    """The scan's rows, fetched by the session's executors, one task a part; every part's SHA-256 is checked there."""
    pushes = session.conf.get("spark.sql.python.filterPushdown.enabled", "false") == "true"
    source = FilteredPartsSource if pushes else PartsSource
    with pickled_by_value():
        session.dataSource.register(source)
        described = base64.b64encode(cloudpickle.dumps(scan)).decode()
        reader = session.read.format(source.name()).schema(spark_schema(scan.selected))
        return reader.option("scan", described).load()


class PartsReader(DataSourceReader):
    """Reads one part a task; batches are in the canonical Arrow schema, which is the one Spark derives."""

    def __init__(self, scan: Scan) -> None:
        self.scan = scan

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(i) for i in range(len(self.scan.files))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batches = stream_table(replace(self.scan, files=(self.scan.files[partition.value],)))
        if not self.scan.selected.holds("variant"):
            yield from batches
            return
        from pyspark.sql.pandas.types import to_arrow_schema

        # Spark knows a variant by a mark in Arrow's schema.
        marked = to_arrow_schema(spark_schema(self.scan.selected))
        for batch in batches:
            yield batch.cast(marked)


class PartsSource(DataSource):
    """The parts of a `Scan`, which the option ``scan`` holds; the schema asked for names the columns to read."""

    @classmethod
    def name(cls) -> str:
        return "dagster_versioned_parts"

    def reader(self, schema: "spark_types.StructType") -> DataSourceReader:
        return PartsReader(self._scan())

    def _scan(self) -> Scan:
        return cloudpickle.loads(base64.b64decode(self.options["scan"]))


def deleted_through_executors(scan: Scan, marked: Sequence[int], session: "SparkSession") -> "DataFrame":
    """`deletions.deleted_frame`, read by the session's executors, one task a deletion vector."""
    with pickled_by_value():
        session.dataSource.register(DeletedRowsSource)
        described = base64.b64encode(cloudpickle.dumps((scan, tuple(marked)))).decode()
        return session.read.format(DeletedRowsSource.name()).option("scan", described).load()


class DeletedRowsReader(DataSourceReader):
    """Reads one deletion vector a task."""

    def __init__(self, scan: Scan, marked: Sequence[int]) -> None:
        self.scan = scan
        self.marked = marked

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(i) for i in self.marked]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        index: int = partition.value
        rows = positions(self.scan, index)
        schema = pa.schema([("_deleted_of", pa.int32()), ("_deleted_row", pa.int64())])
        for start in range(0, len(rows), DELETED_BATCH_ROWS):
            batch = pa.array(rows[start : start + DELETED_BATCH_ROWS])
            of = pa.array(np.full(len(batch), index, np.int32))
            yield pa.RecordBatch.from_arrays([of, batch], schema=schema)


class DeletedRowsSource(DataSource):
    """The deleted rows of the files that the option ``scan`` marks."""

    @classmethod
    def name(cls) -> str:
        return "dagster_versioned_deleted_rows"

    def schema(self) -> str:
        return "_deleted_of int, _deleted_row long"

    def reader(self, schema: "spark_types.StructType") -> DataSourceReader:
        return DeletedRowsReader(*cloudpickle.loads(base64.b64decode(self.options["scan"])))


class FilteringReader(PartsReader):
    """Passes over the parts whose Parquet footer shows that no row can match; Spark checks every row again."""

    def __init__(self, scan: Scan) -> None:
        super().__init__(scan)
        self.filters: list[Any] = []

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802 - PySpark calls it so
        self.filters = list(filters)
        yield from filters

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        index: int = partition.value
        if may_match(self.scan, self.scan.files[index], self.filters):
            yield from super().read(partition)


class FilteredPartsSource(PartsSource):
    """`PartsSource` for sessions that push filters."""

    @classmethod
    def name(cls) -> str:
        return "dagster_versioned_parts_filtered"

    def reader(self, schema: "spark_types.StructType") -> DataSourceReader:
        return FilteringReader(self._scan())


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
    match kind:
        case "EqualTo":
            return statistics.min <= value <= statistics.max
        case "LessThan":
            return statistics.min < value
        case "LessThanOrEqual":
            return statistics.min <= value
        case "GreaterThan":
            return statistics.max > value
        case "GreaterThanOrEqual":
            return statistics.max >= value
        case _:
            return True
