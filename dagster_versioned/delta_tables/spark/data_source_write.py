"""``frame.write.format("versioned")``: rows become files in Spark's tasks, and one commit when all tasks are done.

A stream (``writeStream``) does the same for each batch, under the identifier of its query and the number of the batch:
a batch that a restarted query repeats is committed once. Protocol: *Transaction Identifiers*.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from dagster_versioned.delta.actions import Add
from dagster_versioned.delta.commit.write_rules import WriteRules, require_enforceable
from dagster_versioned.delta.files.file_actions import FILES, TOMBSTONES, no_rows
from dagster_versioned.delta.log.snapshot import load_snapshot
from dagster_versioned.delta.schema.types import StructType
from dagster_versioned.delta_tables.arrow.row_engine import ArrowRowEngine
from dagster_versioned.delta_tables.commands.plan import new_table
from dagster_versioned.delta_tables.dml import FileChanges, Target
from dagster_versioned.engines.spark.types import stored_schema
from dagster_versioned.errors import CommitConflict, InvalidInput, StorageError, TableNotFound, VersionedError
from dagster_versioned.storage import open_store

if TYPE_CHECKING:
    from pyspark.sql import types as spark_types

_OPTIONS = ("path", "profile", "partitionBy", "txnAppId", "txnVersion", "userMetadata")
_OF_STREAMS = ("checkpointLocation",)
_QUERY = "sql.streaming.queryId"
"""The property of a task by which Spark says which query it is of; the same for every start from one checkpoint."""


@dataclass(frozen=True)
class WriteJob:
    """What the format writes: ``path``, and of the options ``partitionBy`` (names with commas between them, for a table
    that is created), ``profile``, ``userMetadata`` (a remark for the table's history), and ``txnAppId`` with
    ``txnVersion``: where the table has this version of the application, or a later one, nothing is written. A stream
    writes as the application ``txnAppId``, by default its query, and its versions are the numbers of its batches.

    Mode ``append`` adds rows and creates the table where there is none, ``overwrite`` replaces every row. Columns are
    found by name whatever their case. Expressions of the table (constraints, defaults, generated columns) are evaluated
    by DuckDB in the tasks. Everything else, and tables with identity columns, are for `delta_tables.write.write_delta`.
    """

    uri: str
    profile: str | None
    mode: Literal["append", "overwrite"]
    partition_by: tuple[str, ...] | None
    schema_json: str
    """The schema of the frame."""
    app_id: str | None = None
    version: int | None = None
    user_metadata: str | None = None

    @classmethod
    def of(
        cls, options: Mapping[str, str], schema: "spark_types.StructType", *, overwrite: bool, stream: bool = False
    ) -> "WriteJob":
        """Raises `InvalidInput`, `UnsupportedType`."""
        known = {name.lower() for name in (*_OPTIONS, *(_OF_STREAMS if stream else ()))}
        if unknown := sorted(set(map(str.lower, options)) - known):
            raise InvalidInput(
                f"The format has no option {unknown[0]!r} for writing (it has: {', '.join(_OPTIONS)}). Nothing was"
                " written. For more, use dagster_versioned.delta_tables.write.write_delta."
            )
        if not options.get("path"):
            raise InvalidInput("The format was given no path: pass the table's folder to save(). Nothing was written.")
        given = options.get("partitionBy")
        return cls(
            options["path"],
            options.get("profile"),
            "overwrite" if overwrite else "append",
            None if given is None else tuple(name.strip() for name in given.split(",")),
            stored_schema(schema, variants=True).json(),
            options.get("txnAppId"),
            _version(options, stream=stream),
            options.get("userMetadata"),
        )

    def target(self) -> Target:
        """The table as it is now, or as it will be created; without its files."""
        from dagster_versioned.delta.schema.types import parse_schema

        store = open_store(self.uri, profile=self.profile)
        try:
            read = load_snapshot(store)
            snapshot = replace(read, files=no_rows(FILES), tombstones=no_rows(TOMBSTONES))
        except TableNotFound:
            snapshot = new_table(parse_schema(self.schema_json), self.partition_by or (), (), {}).left
        require_enforceable(snapshot.protocol, snapshot.schema)
        rules = WriteRules.of_snapshot(snapshot)
        if rules.identity:
            raise InvalidInput(
                f"The table {store.uri} has identity columns ({', '.join(rules.identity)}), whose numbers the tasks of"
                " this format cannot share. Nothing was written. Use dagster_versioned.delta_tables.write.write_delta."
            )
        return Target(store, snapshot, rules, str(uuid4()))

    def commit(self, adds: Sequence[Mapping[str, Any]], planned: str, abort: Callable[[], None]) -> None:
        """Commit files that tasks wrote for a table with these rules (`terms`), or ``abort``, also where the table has
        these rows. Raises as `write_delta`.
        """
        from dagster_versioned.delta.schema.types import parse_schema
        from dagster_versioned.delta_tables.commands.command import Provenance
        from dagster_versioned.delta_tables.commands.writing import write_rows

        engine = _StagedRows(parse_schema(self.schema_json), [Add(**add) for add in adds], planned)
        store = open_store(self.uri, profile=self.profile)
        try:
            applied = write_rows(
                engine,  # pyright: ignore[reportArgumentType] - it has what a write calls, and no more
                store,
                None,
                mode=self.mode,
                partition_by=self.partition_by,
                provenance=Provenance.of(self.app_id, self.version, self.user_metadata),
            )
        except StorageError:
            raise  # It may have landed, so the files may be the table's.
        except VersionedError:
            abort()
            raise
        if applied.skipped:
            abort()


def _version(options: Mapping[str, str], *, stream: bool) -> int | None:
    version = options.get("txnVersion")
    if version is None:
        return None
    if stream or not version.isdecimal():
        wrong = "for frames: a stream numbers its batches" if stream else "no number of 0 or more"
        raise InvalidInput(f"txnVersion is {version!r:.50}, which is {wrong}. Nothing was written.")
    return int(version)


class _StagedRows:
    """As much of a `RowEngine` as `write` asks of it, for rows that are in files already."""

    def __init__(self, schema: StructType, adds: list[Add], planned: str) -> None:
        self._schema = schema
        self._adds = adds
        self._planned = planned

    def schema_of(self, rows: Any) -> StructType:
        return self._schema

    def write(self, target: Target, rows: Any, *, within: str | None = None, changes: bool = False) -> FileChanges:
        if terms(target) != self._planned:
            raise CommitConflict(
                f"The schema or the properties of {target.store.uri} were changed while its rows were written. Nothing"
                " was committed. Write again."
            )
        from dagster_versioned.delta.files.statistics import num_records

        rows_written = sum(num_records(add.stats) or 0 for add in self._adds)
        return FileChanges(tuple(self._adds), metrics={"numOutputRows": rows_written})


def terms(target: Target) -> str:
    """What files depend on."""
    snapshot = target.snapshot
    return repr((snapshot.schema.json(), snapshot.partition_columns, sorted(snapshot.metadata.configuration.items())))


def table_writer(
    options: Mapping[str, str], schema: "spark_types.StructType", *, overwrite: bool
) -> DataSourceArrowWriter:
    """The writer of one job. Raises `InvalidInput` and what opening the table raises."""
    from dagster_versioned.delta_tables.commands.command import Provenance

    job = WriteJob.of(options, schema, overwrite=overwrite)
    Provenance.of(job.app_id, job.version, job.user_metadata)  # refused before a task runs
    return TableWriter(job, job.target())


class TableWriter(DataSourceArrowWriter):
    """Writes the rows of each task to files of the table, and commits them together."""

    def __init__(self, job: WriteJob, target: Target) -> None:
        self.job = asdict(job)
        self.planned = terms(target)
        self.write_id = target.write_id
        self.target: Target | None = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        assert self.target is not None
        return written_by_task(self.target, iterator)

    def commit(self, messages: "list[WriterCommitMessage | None]") -> None:
        # Of the package itself, as all that a commit runs: this method may be a copy that travelled.
        from dagster_versioned.delta_tables.spark import data_source_write as here

        here.WriteJob(**self.job).commit(here.adds_of(messages), self.planned, lambda: self.abort(messages))

    def abort(self, messages: "list[WriterCommitMessage | None]") -> None:
        from dagster_versioned.storage import open_store

        store = open_store(self.job["uri"], profile=self.job["profile"])
        store.delete([info.key for info in store.list() if self.write_id in info.key])


def adds_of(messages: "Iterable[WriterCommitMessage | None]") -> list[dict[str, Any]]:
    """The files that tasks wrote, as their messages have them."""
    return [add for message in messages if message for add in getattr(message, "adds", ())]


def written_by_task(target: Target, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
    """Write the rows of one task; the message has what its files are, and what they were written for."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    name = f"{context.partitionId():05d}-{context.taskAttemptId()}-{target.write_id}"
    message: Any = WriterCommitMessage()
    # Built-in types only: the message is read by another process than the one that this code came from.
    message.adds = []
    message.planned = terms(target)
    message.query = context.getLocalProperty(_QUERY)
    first = next((batch for batch in iterator if batch.num_rows), None)
    if first is not None:
        rows = pa.RecordBatchReader.from_batches(first.schema, _chain(first, iterator))
        written = ArrowRowEngine().write(replace(target, write_id=name), rows)
        message.adds = [asdict(add) for add in written.adds]
    return message


def _chain(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest
