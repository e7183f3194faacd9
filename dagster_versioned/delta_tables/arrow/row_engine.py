"""Changes of rows in any Delta table from pyarrow, pandas and Polars, as commands ask for them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dagster_versioned.delta.actions import Add
from dagster_versioned.delta.files.file_actions import to_adds
from dagster_versioned.delta.schema.types import StructType
from dagster_versioned.delta_tables.arrow.assignments import ResolvedAssignments
from dagster_versioned.delta_tables.arrow.merge import merge
from dagster_versioned.delta_tables.arrow.rules import frame_schema, incoming, sided
from dagster_versioned.delta_tables.arrow.write import NO_ROWS, writing
from dagster_versioned.delta_tables.data_files import FILE_BYTES
from dagster_versioned.delta_tables.dml import (
    TARGET,
    Change,
    Delete,
    FileChanges,
    Merge,
    Target,
    Update,
    assigned_paths,
    files_by_partitions,
    of_replaced,
    row_metrics,
)
from dagster_versioned.engines.sql import is_true


class ArrowRowEngine:
    """`RowEngine` for pyarrow, pandas and Polars."""

    def schema_of(self, rows: Any) -> StructType:
        return frame_schema(rows)

    def write(self, target: Target, rows: Any, *, within: str | None = None, changes: bool = False) -> FileChanges:
        with writing(target) as write:
            condition = None if within is None else write.rules.names.resolve(within)
            for piece in incoming(rows, target, FILE_BYTES):
                complete = write.rules.complete(piece)
                if condition is not None:
                    write.rules.require(complete, condition, of_replaced(condition.text))
                write.insert(complete, changes=changes)
            return write.finish({"numOutputRows": write.inserted})

    def change(self, target: Target, files: Sequence[Add], change: Change) -> FileChanges:
        with writing(target) as write:
            source = 0
            match change:
                case Delete(where=where):
                    whole, partial = files_by_partitions(target, files, where)
                    touched = [write.all_of(add) for add in whole]
                    if where is not None and partial:
                        touched += write.find(partial, write.rules.names.resolve(where))
                    write.settle(touched)
                case Update(set=given, where=where):
                    names = write.rules.names
                    assignments = ResolvedAssignments.of(write.rules, assigned_paths(target, given), names)
                    found = write.find(files, names.resolve(where or "true"))
                    write.settle(
                        [replace(file, delete=NO_ROWS, update=file.delete, renew=assignments.updated) for file in found]
                    )
                case Merge():
                    source = merge(write, files, change)
            return write.finish(
                row_metrics(
                    change,
                    updated=write.updated,
                    deleted=write.deleted,
                    copied=write.copied,
                    inserted=write.inserted,
                    source=source,
                )
            )

    def rewrite(self, target: Target, groups: Sequence[Sequence[Add]], order: Sequence[str] = ()) -> FileChanges:
        with writing(target) as write:
            for removes in write.each(lambda group: write.compact(group, order), groups):
                write.removes += removes
            return write.finish({})

    def violations(self, target: Target, check: str) -> int:
        with writing(target) as write:
            condition = write.rules.names.condition(check)

            def count(add: Add) -> int:
                file = write.look(add, condition.of(TARGET))
                return int((file.live & ~is_true(sided(file.rows, condition.of(TARGET)), condition)).sum())

            return sum(write.each(count, to_adds(target.snapshot.files)))
