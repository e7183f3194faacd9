"""Changes of rows in any Delta table with Spark, as commands ask for them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dagster_versioned.delta.actions import Add
from dagster_versioned.delta.commit.transaction import now_ms
from dagster_versioned.delta.files.file_actions import to_adds
from dagster_versioned.delta.schema.types import StructType
from dagster_versioned.delta_tables.dml import (
    Change,
    FileChanges,
    Target,
    columns_named,
    conditions_of,
    refuse_identity,
)
from dagster_versioned.delta_tables.spark import task as delta_task
from dagster_versioned.delta_tables.spark.change import changed
from dagster_versioned.delta_tables.spark.row_locations import FILE, ROW
from dagster_versioned.delta_tables.spark.rules import CompletedRows, Values, completed, default_of
from dagster_versioned.delta_tables.spark.write import (
    SparkWrites,
    cardinality,
    copied_columns,
    require_all,
    row_counts,
)
from dagster_versioned.engines.spark.assignment import Assignment, quoted
from dagster_versioned.engines.spark.refused_expressions import translate_spark_errors
from dagster_versioned.engines.spark.releases import from_arrow
from dagster_versioned.engines.spark.types import spark_schema, stored_schema


class SparkRowEngine(SparkWrites):
    """`RowEngine` for frames of Spark, classic and Connect; SQL is Spark's own, in the session's settings."""

    def schema_of(self, rows: Any) -> StructType:
        return stored_schema(rows.schema, variants=True)

    def write(self, target: Target, rows: Any, *, within: str | None = None, changes: bool = False) -> FileChanges:
        from pyspark.sql import functions as sf

        with translate_spark_errors([] if within is None else [within]):
            columns = columns_named(target, rows.columns)
            refuse_identity(target, columns)
            wanted = spark_schema(target.snapshot.schema)
            held = [member.dataType for member in rows.schema.fields]
            exactly = Assignment(exact=True)
            values = {
                name: exactly.of(sf.col(f"_c{place}"), held[place], wanted[name].dataType, name)
                for place, name in enumerate(columns)
            }
            given = dict.fromkeys(columns, True)
            for name in target.snapshot.schema.names:
                if name not in values and name not in target.rules.generated and name not in target.rules.identity:
                    values[name], given[name] = default_of(target, name), True
            numbered = rows.toDF(*(f"_c{i}" for i in range(len(held))))
            controls = {delta_task.OPERATION: sf.lit(delta_task.INSERT).cast("tinyint")}
            made = completed(numbered, target, Values(values, given), controls, within)
            outcome = self.run(target, made, change_feed=changes)
            return FileChanges(
                tuple(outcome.adds),
                (),
                tuple(outcome.cdcs),
                {"numOutputRows": outcome.rows.get(delta_task.INSERT, 0)},
                outcome.marks,
            )

    def change(self, target: Target, files: Sequence[Add], change: Change) -> FileChanges:
        with translate_spark_errors(conditions_of(change)):
            return changed(self, target, files, change)

    def rewrite(self, target: Target, groups: Sequence[Sequence[Add]], order: Sequence[str] = ()) -> FileChanges:
        from pyspark.sql import functions as sf

        files = [add for group in groups for add in group]
        of = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
        with translate_spark_errors():
            located = self.located(target, files, ids=True)
            table = pa.table({"_file": pa.array(range(len(files)), pa.int32()), "_group": pa.array(of, pa.int32())})
            grouped = located.join(sf.broadcast(from_arrow(self._session, table)), sf.col(FILE) == sf.col("_file"))
            keys = [quoted(name) for name in order] or [sf.col(FILE), sf.col(ROW)]
            dealt = grouped.repartition(len(groups), "_group").sortWithinPartitions("_group", *keys)
            moved = dealt.select(*copied_columns(target), sf.col("_group").alias(delta_task.GROUP))
            outcome = self.run(target, CompletedRows(moved, ()), data_change=False)
            expected = sum(row_counts(target, files)) - sum(map(cardinality, files))
            require_all(outcome.rows.get(delta_task.COPY, 0), expected, target)
        now = now_ms()
        return FileChanges(tuple(outcome.adds), tuple(add.removed(now, data_change=False) for add in files))

    def violations(self, target: Target, check: str) -> int:
        from pyspark.sql import functions as sf

        with translate_spark_errors([check]):
            rows = self.located(target, to_adds(target.snapshot.files))
            return rows.where(~sf.coalesce(sf.expr(check), sf.lit(False))).count()
