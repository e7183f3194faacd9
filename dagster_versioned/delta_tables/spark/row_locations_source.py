"""Located rows read through our own `ObjectStore`, by executors that cannot reach the files with Spark's reader."""

import base64
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from dagster_versioned.delta.files.deletion_vectors import deleted_rows
from dagster_versioned.delta.schema.types import StructField, StructType
from dagster_versioned.engines.arrow.scan import read_table
from dagster_versioned.engines.scan import Scan
from dagster_versioned.engines.spark.by_value import pickled_by_value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import types as spark_types

BATCH_ROWS = 1 << 16

Bases = Sequence[tuple[int | None, int | None]]
"""By file: the first row id, and the default commit version."""


def located_through_executors(
    session: "SparkSession", scan: Scan, bases: Bases, tracked: tuple[str, ...], schema: "spark_types.StructType"
) -> "DataFrame":
    """`located.rows_with_locations`, one task a file."""
    with pickled_by_value():
        session.dataSource.register(LocatedSource)
        described = base64.b64encode(cloudpickle.dumps((scan, bases, tracked))).decode()
        return session.read.format(LocatedSource.name()).schema(schema).option("scan", described).load()


class LocatedReader(DataSourceReader):
    """Reads one file a task."""

    def __init__(self, scan: Scan, bases: Bases, tracked: tuple[str, ...], names: Sequence[str]) -> None:
        self.scan, self.bases, self.tracked, self.names = scan, bases, tracked, list(names)

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(i) for i in range(len(self.scan.files))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        number: int = partition.value
        file = self.scan.files[number]
        whole = replace(file, deletion_vector=None)
        rows = read_table(replace(self.scan, files=(whole,)))
        count = rows.num_rows
        columns: list[Any] = [*rows.columns, pa.repeat(cast("Any", pa.scalar(number, pa.int32())), count)]
        places: Any = pa.array(np.arange(count, dtype=np.int64))
        columns.append(places)
        if self.tracked:
            schema = StructType([StructField(name, "long") for name in self.tracked])
            stored = read_table(replace(self.scan, files=(whole,), schema=schema, mapping="none"))
            base, default = self.bases[number]
            ids = None if base is None else pa.array(np.arange(count, dtype=np.int64) + base)
            columns.append(stored.column(0) if ids is None else _coalesced(stored.column(0), ids))
            versions = stored.column(1)
            columns.append(versions if default is None else _coalesced(versions, pa.repeat(default, count)))
        table = pa.table(columns, self.names)
        if file.deletion_vector is not None:
            stays = np.ones(count, np.bool_)
            stays[deleted_rows(self.scan.store, file.deletion_vector, count, file.key)] = False
            table = table.filter(pa.array(stays))
        yield from table.combine_chunks().to_batches(max_chunksize=BATCH_ROWS)


def _coalesced(column: Any, other: Any) -> Any:
    return cast("Any", pc).coalesce(column, pa.chunked_array([other]))


class LocatedSource(DataSource):
    """The files of a `Scan`, which the option ``scan`` holds, with the places of their rows."""

    @classmethod
    def name(cls) -> str:
        return "dagster_versioned_located"

    def reader(self, schema: "spark_types.StructType") -> DataSourceReader:
        scan, bases, tracked = cloudpickle.loads(base64.b64decode(self.options["scan"]))
        return LocatedReader(scan, bases, tracked, schema.names)
