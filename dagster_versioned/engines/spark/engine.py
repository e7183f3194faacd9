"""`SparkEngine`: frames of Spark to parts, and parts to frames of Spark."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from dagster_versioned.delta.schema.types import StructType, schema_to_arrow
from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.engines.parts import RowOrder, RowsSummary, StagedParts, WriteOptions
from dagster_versioned.engines.scan import Check, Scan
from dagster_versioned.engines.spark.catalyst import spark_errors
from dagster_versioned.engines.spark.executors import run_by_executors, runs_here
from dagster_versioned.engines.spark.numbered_tasks import in_tasks
from dagster_versioned.engines.spark.part_rows import SUMS_SCHEMA, sums_from, sums_of_part
from dagster_versioned.engines.spark.read import read
from dagster_versioned.engines.spark.session import default_session, kept
from dagster_versioned.engines.spark.types import spark_schema, stored_schema
from dagster_versioned.engines.spark.write import write
from dagster_versioned.engines.staging import Staging
from dagster_versioned.engines.upsert import RowMatch, Upsert
from dagster_versioned.errors import InvalidInput
from dagster_versioned.identity.digest import BagDigest, Sums

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class SparkEngine:
    """Writes and reads ``pyspark.sql.DataFrame``, classic and Connect.

    Reads on ``session``, else on the active one, else on an embedded one (`default_session`). ``check`` and
    ``s3_scheme`` are those of `read`.
    """

    def __init__(
        self, session: "SparkSession | None" = None, *, check: Check = "size", s3_scheme: str | None = None
    ) -> None:
        self._session = session
        self._check: Check = check
        self._s3_scheme = s3_scheme

    @property
    def default_row_order(self) -> RowOrder:
        return "ignored"

    @property
    def refreshes(self) -> bool:
        return False

    def accepts(self, frame: object) -> bool:
        return any(
            base.__module__.startswith("pyspark.sql") and base.__name__ == "DataFrame" for base in type(frame).__mro__
        )

    def contents(self, frame: Any, options: WriteOptions) -> RowsSummary | None:
        """``None``: a Spark frame is a plan, and asking what it says would compute it twice."""
        return None

    def write(
        self, frame: Any, staging: Staging, options: WriteOptions, contents: RowsSummary | None = None
    ) -> StagedParts:
        return write(frame, staging, options, options.resolved_row_order(self.default_row_order))

    def schema(self, frame: Any, options: WriteOptions) -> StructType:
        """The schema under which the frame would be stored; nothing is computed."""
        return stored_schema(frame.schema, sort_columns=options.sort_columns, columns=options.columns)

    def typed(self, frame: "DataFrame", known: Callable[[], StructType | None]) -> "DataFrame":
        """See `Engine.typed`; of whole columns, as ``lit(None)`` makes them."""
        untyped = [field.name for field in frame.schema.fields if field.dataType.typeName() == "void"]
        if not untyped or (schema := known()) is None:
            return frame
        from pyspark.sql import functions as sf

        types = {field.name: field.dataType for field in spark_schema(schema).fields}
        return frame.withColumns({name: sf.lit(None).cast(types[name]) for name in untyped if name in types})

    def pinned(self, frame: Any) -> "AbstractContextManager[DataFrame]":
        """See `kept`."""
        return kept(frame)

    def widened(self, frame: Any, schema: StructType) -> "DataFrame":
        """The columns of the schema in its types, members of structs by their names: a plan, and no job."""
        from dagster_versioned.engines.spark.assignment import Assignment, quoted

        held = {field.name: field.dataType for field in frame.schema.fields}
        wider = Assignment(exact=True)
        return frame.select(
            *(
                wider.of(quoted(field.name), held[field.name], field.dataType, field.name).alias(field.name)
                for field in spark_schema(schema).fields
            )
        )

    def measure(self, frame: Any, schema: StructType) -> RowsSummary:
        """What the rows say, computed by the frame's session."""
        from dagster_versioned.engines.spark.upsert import measure

        return measure(frame, schema)

    def sums(self, frame: Any, schema: StructType, key: bytes) -> Sums:
        """As of any engine, computed by the frame's session."""
        from dagster_versioned.engines.spark.upsert import tallied_together

        return tallied_together(frame, schema, key)[0].lanes

    def sums_of_scan(self, scan: Scan, key: bytes, frame: Any) -> Sums:
        """As of any engine: by the executors of the frame's session, each part by a task, or here where they are."""
        session = frame.sparkSession
        if runs_here(session) or not scan.files:
            return ArrowEngine().sums_of_scan(scan, key)
        with run_by_executors(session):
            found = in_tasks(session, len(scan.files), partial(sums_of_part, scan, key), SUMS_SCHEMA).collect()
        bag = BagDigest(schema_to_arrow(scan.schema), key)
        for row in found:
            bag.merge(*sums_from(bytes(row[0])))
        return bag.lanes

    def violations(self, frame: Any, check: str) -> int:
        """In how many rows the condition is false or null: a job."""
        from pyspark.sql import functions as sf

        from dagster_versioned.engines.sql_translation import parse_expression

        parse_expression(check)  # one that reaches nothing but the row
        try:
            return frame.where(~sf.coalesce(sf.expr(check), sf.lit(False))).count()
        except spark_errors() as error:
            raise InvalidInput(
                f"The condition {check!r} cannot be evaluated over the frame: {str(error).splitlines()[0]:.300} "
                "Nothing was written. Correct it, or the frame's columns."
            ) from error

    def merge(self, frame: Any, base: Scan, matching: RowMatch, staging: Staging, options: WriteOptions) -> Upsert:
        """See `merge_frames`; three jobs over keys, one that writes the files that change."""
        from dagster_versioned.engines.spark.upsert import merge_frames

        def read_here(scan: Scan) -> "DataFrame":
            return read(scan, frame.sparkSession, check=self._check, s3_scheme=self._s3_scheme)

        def write_here(rows: "DataFrame") -> StagedParts:
            settled = replace(options, allow_empty=True, columns=tuple(rows.columns))
            return write(rows, staging, settled, "ignored")

        return merge_frames(
            frame,
            base,
            matching,
            read_here,
            write_here,
            vectors=options.deletion_vectors,
            writes_feed=options.change_feed,
        )

    def refresh(self, frame: Any, base: Scan, staging: Staging, options: WriteOptions) -> Upsert | None:
        """Never: Spark frames are written whole."""
        return None

    def read(self, scan: Scan, frame_type: type | None = None) -> Any:
        """A frame pinned to the scan's files; see `dagster_versioned.engines.spark.read.read`."""
        return read(scan, self._session or default_session(), check=self._check, s3_scheme=self._s3_scheme)
