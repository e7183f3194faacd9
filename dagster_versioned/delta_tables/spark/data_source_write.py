"""``frame.write.format("versioned")``: rows become files in Spark's tasks, and one commit when all tasks are done."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from dagster_versioned.delta.actions import Add, Metadata
from dagster_versioned.delta.commit.protocol_upgrade import protocol_with
from dagster_versioned.delta.commit.transaction import now_ms
from dagster_versioned.delta.commit.write_rules import WriteRules
from dagster_versioned.delta.files.file_actions import FILES, TOMBSTONES, no_rows
from dagster_versioned.delta.log.snapshot import Snapshot, load_snapshot
from dagster_versioned.delta.schema.types import StructType
from dagster_versioned.delta_tables.arrow.row_engine import ArrowRowEngine
from dagster_versioned.delta_tables.commands import FIRST_PROTOCOL
from dagster_versioned.delta_tables.dml import FileChanges, Target
from dagster_versioned.engines.spark.types import stored_schema
from dagster_versioned.errors import CommitConflict, InvalidInput, TableNotFound
from dagster_versioned.storage import open_store

if TYPE_CHECKING:
    from pyspark.sql import types as spark_types

_OPTIONS = ("path", "profile", "partitionBy")


@dataclass(frozen=True)
class WriteJob:
    """What the format writes: ``path``, and of the options ``partitionBy`` (names with commas between them, for a table
    that is created) and ``profile``.

    Mode ``append`` adds rows and creates the table where there is none, ``overwrite`` replaces every row. Columns are
    found by name whatever their case. Expressions of the table (constraints, defaults, generated columns) are evaluated
    by DuckDB in the tasks. Everything else, and tables with identity columns, are for `delta_tables.spark.write_delta`.
    """

    uri: str
    profile: str | None
    mode: Literal["append", "overwrite"]
    partition_by: tuple[str, ...] | None
    schema_json: str
    """The schema of the frame."""

    @classmethod
    def of(cls, options: Mapping[str, str], schema: "spark_types.StructType", *, overwrite: bool) -> "WriteJob":
        """Raises `InvalidInput`, `UnsupportedType`."""
        if unknown := sorted(set(map(str.lower, options)) - {name.lower() for name in _OPTIONS}):
            raise InvalidInput(
                f"The format has no option {unknown[0]!r} for writing (it has: {', '.join(_OPTIONS)}). Nothing was"
                " written. For more, use dagster_versioned.delta_tables.spark.write_delta."
            )
        if not options.get("path"):
            raise InvalidInput("The format was given no path: pass the table's folder to save(). Nothing was written.")
        given = options.get("partitionBy")
        return cls(
            options["path"],
            options.get("profile"),
            "overwrite" if overwrite else "append",
            None if given is None else tuple(name.strip() for name in given.split(",")),
            stored_schema(schema).json(),
        )

    def target(self) -> Target:
        """The table as it is now, or as it will be created; without its files."""
        from dagster_versioned.delta.schema.types import parse_schema

        store = open_store(self.uri, profile=self.profile)
        try:
            read = load_snapshot(store)
            snapshot = replace(read, files=no_rows(FILES), tombstones=no_rows(TOMBSTONES))
        except TableNotFound:
            snapshot = _new_table(parse_schema(self.schema_json), self.partition_by or ())
        rules = WriteRules.of_snapshot(snapshot)
        if rules.identity:
            raise InvalidInput(
                f"The table {store.uri} has identity columns ({', '.join(rules.identity)}), whose numbers the tasks of"
                " this format cannot share. Nothing was written. Use dagster_versioned.delta_tables.spark.write_delta."
            )
        return Target(store, snapshot, rules, str(uuid4()))

    def commit(self, adds: Sequence[Mapping[str, Any]], planned: str) -> None:
        """Commit files that tasks wrote for a table with these rules (`_terms`). Raises as `commands.write`."""
        from dagster_versioned.delta.schema.types import parse_schema
        from dagster_versioned.delta_tables import commands

        engine = _Given(parse_schema(self.schema_json), [Add(**add) for add in adds], planned)
        store = open_store(self.uri, profile=self.profile)
        commands.write(engine, store, None, mode=self.mode, partition_by=self.partition_by)  # pyright: ignore


class _Given:
    """A `RowEngine` whose rows are in files already."""

    def __init__(self, schema: StructType, adds: list[Add], planned: str) -> None:
        self._schema = schema
        self._adds = adds
        self._planned = planned

    def schema_of(self, rows: Any) -> StructType:
        return self._schema

    def write(self, target: Target, rows: Any, *, within: str | None = None, changes: bool = False) -> FileChanges:
        if _terms(target) != self._planned:
            raise CommitConflict(
                f"The schema or the properties of {target.store.uri} were changed while its rows were written. Nothing"
                " was committed. Write again."
            )
        from dagster_versioned.delta.files.statistics import num_records

        rows_written = sum(num_records(add.stats) or 0 for add in self._adds)
        return FileChanges(tuple(self._adds), metrics={"numOutputRows": rows_written})


def _terms(target: Target) -> str:
    """What files depend on."""
    snapshot = target.snapshot
    return repr((snapshot.schema.json(), snapshot.partition_columns, sorted(snapshot.metadata.configuration.items())))


def _new_table(schema: StructType, partition_by: Sequence[str]) -> Snapshot:
    """What `commands.write` makes of a table without properties."""
    known = {name.casefold(): name for name in schema.names}
    if unknown := [name for name in partition_by if name.casefold() not in known]:
        raise InvalidInput(f"There is no column {unknown[0]!r} among {', '.join(schema.names)}. Nothing was written.")
    partitions = tuple(known[name.casefold()] for name in partition_by)
    metadata = Metadata(str(uuid4()), schema.json(), partitions, {}, created_time=now_ms())
    protocol = protocol_with(FIRST_PROTOCOL, {}, schema)
    return Snapshot(-1, protocol, metadata, schema, {}, {}, no_rows(FILES), no_rows(TOMBSTONES), now_ms(), None)


def table_writer(
    options: Mapping[str, str], schema: "spark_types.StructType", *, overwrite: bool
) -> DataSourceArrowWriter:
    """The writer of one job. Raises `InvalidInput` and what opening the table raises."""
    job = WriteJob.of(options, schema, overwrite=overwrite)
    return TableWriter(job, job.target())


class TableWriter(DataSourceArrowWriter):
    """Writes the rows of each task to files of the table, and commits them together."""

    def __init__(self, job: WriteJob, target: Target) -> None:
        self.job = asdict(job)
        self.planned = _terms(target)
        self.write_id = target.write_id
        self.target: Target | None = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from pyspark import TaskContext

        context, target = TaskContext.get(), self.target
        assert context is not None
        assert target is not None
        name = f"{context.partitionId():05d}-{context.taskAttemptId()}-{target.write_id}"
        message: Any = WriterCommitMessage()
        # Built-in types only: the message is read by another process than the one that this code came from.
        message.adds = []
        first = next((batch for batch in iterator if batch.num_rows), None)
        if first is not None:
            rows = pa.RecordBatchReader.from_batches(first.schema, _chain(first, iterator))
            written = ArrowRowEngine().write(replace(target, write_id=name), rows)
            message.adds = [asdict(add) for add in written.adds]
        return message

    def commit(self, messages: "list[WriterCommitMessage | None]") -> None:
        # Of the package itself, as all that a commit runs: this method may be a copy that travelled.
        from dagster_versioned import errors
        from dagster_versioned.delta_tables.spark import data_source_write as here

        adds: list[Any] = [add for message in messages if message for add in getattr(message, "adds", ())]
        try:
            here.WriteJob(**self.job).commit(adds, self.planned)
        except errors.StorageError:
            raise  # It may have landed, so the files may be the table's.
        except errors.VersionedError:
            self.abort(messages)
            raise

    def abort(self, messages: "list[WriterCommitMessage | None]") -> None:
        from dagster_versioned.storage import open_store

        store = open_store(self.job["uri"], profile=self.job["profile"])
        store.delete([info.key for info in store.list() if self.write_id in info.key])


def _chain(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest
