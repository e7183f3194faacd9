"""Changes of rows in any Delta table from pyarrow, pandas and Polars, as commands ask for them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dagster_versioned.delta.actions import Add
from dagster_versioned.delta.files.file_actions import to_adds
from dagster_versioned.delta.schema.types import StructType
from dagster_versioned.delta_tables.arrow.assignments import Assignments
from dagster_versioned.delta_tables.arrow.merge import merge
from dagster_versioned.delta_tables.arrow.rules import frame_schema, incoming, sided
from dagster_versioned.delta_tables.arrow.write import (
    NO_ROWS,
    by_partitions,
    writing,
)
from dagster_versioned.delta_tables.data_files import FILE_BYTES
from dagster_versioned.delta_tables.dml import Change, Delete, FileChanges, Merge, Target, Update
from dagster_versioned.engines.sql import is_true
from dagster_versioned.errors import InvalidInput


class ArrowRowEngine:
    """`RowEngine` for pyarrow, pandas and Polars."""

    def schema_of(self, rows: Any) -> StructType:
        return frame_schema(rows)

    def write(self, target: Target, rows: Any, *, within: str | None = None, changes: bool = False) -> FileChanges:
        with writing(target) as write:
            condition = None if within is None else write.rules.names.resolve(within)
            for piece in incoming(rows, target.snapshot.schema, FILE_BYTES):
                complete = write.rules.complete(piece)
                if condition is not None and (count := write.rules.broken(complete, condition)):
                    raise InvalidInput(
                        f"{count} of {complete.num_rows} rows are not in what is replaced: {condition.text}. Nothing"
                        " was written. Filter the rows, or widen the condition."
                    )
                write.insert(complete, changes=changes)
            return write.finish({"numOutputRows": write.inserted})

    def change(self, target: Target, files: Sequence[Add], change: Change) -> FileChanges:
        match change:
            case Delete(where=where):
                return self._delete(target, files, where)
            case Update():
                return self._update(target, files, change)
            case Merge():
                with writing(target) as write:
                    return merge(write, files, change)

    def rewrite(self, target: Target, groups: Sequence[Sequence[Add]], order: Sequence[str] = ()) -> FileChanges:
        with writing(target) as write:
            for removes in write.each(lambda group: write.compact(group, order), groups):
                write.removes += removes
            return write.finish({})

    def violations(self, target: Target, check: str) -> int:
        with writing(target) as write:
            condition = write.rules.names.condition(check)

            def count(add: Add) -> int:
                file = write.look(add, condition.of("target"))
                return int((file.live & ~is_true(sided(file.rows, condition.of("target")), condition)).sum())

            return sum(write.each(count, to_adds(target.snapshot.files)))

    def _delete(self, target: Target, files: Sequence[Add], where: str | None) -> FileChanges:
        with writing(target) as write:
            whole, partial = by_partitions(target, files, where)
            touched = [write.all_of(add) for add in whole]
            if where is not None and partial:
                condition = write.rules.names.resolve(where)
                touched += [file for file in write.find(partial, condition) if len(file.delete)]
            write.settle(touched)
            return write.finish({"numDeletedRows": write.deleted, "numCopiedRows": write.copied})

    def _update(self, target: Target, files: Sequence[Add], change: Update) -> FileChanges:
        with writing(target) as write:
            assignments = Assignments.of_update(write.rules, change.set)
            condition = write.rules.names.resolve(change.where or "true")
            touched = [
                replace(file, delete=NO_ROWS, update=file.delete, renew=assignments.updated)
                for file in write.find(files, condition)
                if len(file.delete)
            ]
            write.settle(touched)
            return write.finish({"numUpdatedRows": write.updated, "numCopiedRows": write.copied})
