"""The steps of `delta_model`, done to a real table by an engine."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from dagster_versioned.delta.log.cleanup import cleanup_log
from dagster_versioned.delta.table import Table
from dagster_versioned.delta_tables import dml
from dagster_versioned.delta_tables.commands.command import Applied
from dagster_versioned.delta_tables.read import read_delta
from dagster_versioned.delta_tables.write import (
    create_delta,
    delete_from,
    merge_delta,
    optimize_delta,
    update_delta,
    write_delta,
)
from support import delta_model as model
from support.delta_model import Row, Step

ARROW = {"long": pa.int64(), "string": pa.string()}


def create(uri: str, columns: Mapping[str, str], *, partitioned: bool, properties: Mapping[str, str]) -> None:
    schema = pa.schema([(name, ARROW[kind]) for name, kind in columns.items()])
    create_delta(uri, schema, partition_by=["p"] if partitioned else [], properties=properties)


def frame(rows: tuple[Row, ...], columns: Mapping[str, str]) -> pa.Table:
    """Rows as a table with the columns that any of them has, or that the table has where there is none."""
    names = list(dict.fromkeys(name for row in rows for name in row)) or list(columns)
    kinds = {name: columns.get(name) or model.type_of(rows, name) for name in names}
    return pa.table({name: pa.array([row.get(name) for row in rows], ARROW[kind]) for name, kind in kinds.items()})


def rows_of(uri: str, version: int | None = None) -> list[Row]:
    return read_delta(uri, version).to_pylist()


class ArrowSteps:
    """Steps by the Arrow engine."""

    def apply(self, uri: str, step: Step, columns: Mapping[str, str]) -> int:
        """Do a step to the table, which has ``columns``; the version after it."""
        done = self._done(uri, step, columns)
        return done.version if isinstance(done, Applied) else done

    def _done(self, uri: str, step: Step, columns: Mapping[str, str]) -> Any:
        match step:
            case model.Append(rows=rows, evolve=evolve):
                return self.write(uri, frame(rows, columns), "append", schema_mode="merge" if evolve else None)
            case model.Overwrite(rows=rows, where=where, dynamic=dynamic):
                given: dict[str, Any] = {} if where is None else {"where": where.sql()}
                return self.write(uri, frame(rows, columns), "overwrite", dynamic=dynamic, **given)
            case model.Delete(where=where):
                return self.delete(uri, None if where is None else where.sql())
            case model.Update(set=assignments, where=where):
                return self.update(uri, sql(assignments), None if where is None else where.sql())
            case model.Merge(rows=rows, clauses=clauses):
                return self.merge(uri, frame(rows, columns), [clause_of(clause) for clause in clauses])
            case model.Optimize(order_by=order_by):
                return self.optimize(uri, order_by)
            case _:
                return self._of_table(Table(uri), step)

    def _of_table(self, table: Table, step: Step) -> int:
        match step:
            case model.Restore(version=version):
                return table.restore(version)
            case model.AddColumn(name=name, type=kind):
                return table.add_columns({name: kind})
            case model.RenameColumn(name=name, to=to):
                return table.rename_column(name, to)
            case model.DropColumn(name=name):
                return table.drop_column(name)
            case model.SetProperty(key=key, value=value):
                return table.set_properties({key: value})
            case model.Checkpoint():
                return table.checkpoint()
            case _:
                return self._tidied(table, step)

    def _tidied(self, table: Table, step: Step) -> int:
        snapshot = table.snapshot()
        if isinstance(step, model.Cleanup):
            cleanup_log(table.store, snapshot, datetime.now(UTC) + timedelta(days=365))
        else:
            table.vacuum(timedelta(0), dry_run=False, force=True)
        return snapshot.version

    def write(self, uri: str, rows: pa.Table, mode: Any, **given: Any) -> Applied:
        return write_delta(uri, rows, mode, **given)

    def delete(self, uri: str, where: str | None) -> Applied:
        return delete_from(uri, where)

    def update(self, uri: str, assignments: Mapping[str, str], where: str | None) -> Applied:
        return update_delta(uri, assignments, where)

    def merge(self, uri: str, rows: pa.Table, clauses: list[dml.Clause]) -> Applied:
        return merge_delta(uri, rows, "target.k = source.k", clauses)

    def optimize(self, uri: str, order_by: tuple[str, ...]) -> Applied:
        return optimize_delta(uri, order_by=order_by)

    def rows(self, uri: str, version: int) -> list[Row]:
        return rows_of(uri, version)


class SparkSteps(ArrowSteps):
    """Steps by Spark."""

    def __init__(self, session: Any) -> None:
        self.session = session

    def write(self, uri: str, rows: pa.Table, mode: Any, **given: Any) -> Applied:
        return write_delta(uri, self.session.createDataFrame(rows), mode, **given)

    def delete(self, uri: str, where: str | None) -> Applied:
        return delete_from(uri, where, session=self.session)

    def update(self, uri: str, assignments: Mapping[str, str], where: str | None) -> Applied:
        return update_delta(uri, assignments, where, session=self.session)

    def merge(self, uri: str, rows: pa.Table, clauses: list[dml.Clause]) -> Applied:
        source = self.session.createDataFrame(rows)
        return merge_delta(uri, source, "target.k = source.k", clauses)

    def optimize(self, uri: str, order_by: tuple[str, ...]) -> Applied:
        return optimize_delta(uri, order_by=order_by, session=self.session)

    def rows(self, uri: str, version: int) -> list[Row]:
        from dagster_versioned.delta_tables import spark

        return [row.asDict() for row in spark.read_delta(self.session, uri, version).collect()]


def sql(assignments: Mapping[str, model.Expression]) -> dict[str, str]:
    return {name: expression.sql() for name, expression in assignments.items()}


def clause_of(clause: model.Clause) -> dml.Clause:
    then: Any = clause.then if isinstance(clause.then, str) else sql(clause.then)
    condition = None if clause.condition is None else clause.condition.sql()
    match clause.kind:
        case "matched":
            return dml.WhenMatched(then, condition)
        case "not matched":
            return dml.WhenNotMatched(then, condition)
        case "not matched by source":
            return dml.WhenNotMatchedBySource(then, condition)
