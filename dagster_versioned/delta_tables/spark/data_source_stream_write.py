"""``frame.writeStream.format("versioned")``: each batch is one commit, and none is committed twice.

Spark numbers the batches of a query and repeats the last one when the query is started again from its checkpoint, since
it does not know whether that was committed. The table does: the commit has the query and the number of the batch.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from dagster_versioned.delta_tables.dml import Target
from dagster_versioned.delta_tables.spark.data_source_write import WriteJob, written_by_task

if TYPE_CHECKING:
    from pyspark.sql import types as spark_types


def stream_writer(
    options: Mapping[str, str], schema: "spark_types.StructType", *, overwrite: bool
) -> DataSourceStreamArrowWriter:
    """The writer of a query's batches. Raises `InvalidInput` and what opening the table raises."""
    job = WriteJob.of(options, schema, overwrite=overwrite, stream=True)
    return StreamWriter(job, job.target())


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the rows of each task to files of the table, and commits those of a batch together.

    The instance that commits is not the one that wrote, so all that it needs is in the messages of the tasks.
    """

    def __init__(self, job: WriteJob, target: Target) -> None:
        self.job = asdict(job)
        self.target: Target | None = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        assert self.target is not None
        return written_by_task(self.target, iterator)

    def commit(self, messages: "list[WriterCommitMessage | None]", batchId: int) -> None:  # noqa: N803 - PySpark's name
        from dagster_versioned import errors
        from dagster_versioned.delta_tables.spark import data_source_write as here

        given: list[Any] = [message for message in messages if message is not None]
        adds = here.adds_of(given)
        if not adds and self.job["mode"] == "append":
            return  # a batch without rows needs no commit
        job = here.WriteJob(**self.job)
        job = replace(job, app_id=job.app_id or (given[0].query if given else None), version=batchId)
        if job.app_id is None:
            raise errors.InvalidInput(
                "Spark does not say which query the batch is of, by which it is known again after a restart. Nothing"
                " was committed. Name the application in the option txnAppId."
            )
        planned = given[0].planned if given else here.terms(job.target())  # no task wrote: nothing replaces all
        job.commit(adds, planned, lambda: self.abort(messages, batchId))

    def abort(self, messages: "list[WriterCommitMessage | None]", batchId: int) -> None:  # noqa: N803
        """Delete the files of the tasks that ended; what others left is for vacuum."""
        from dagster_versioned.delta.paths import decode_path
        from dagster_versioned.delta_tables.spark.data_source_write import adds_of
        from dagster_versioned.storage import open_store

        store = open_store(self.job["uri"], profile=self.job["profile"])
        store.delete([decode_path(add["path"]) for add in adds_of(messages)])
