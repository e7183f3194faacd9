"""`SparkEngine`: frames of Spark to parts, and parts to frames of Spark."""

from typing import TYPE_CHECKING, Any

from dagster_versioned.engines.parts import Contents, RowOrder, WriteOptions, Written
from dagster_versioned.engines.scan import Check, Scan
from dagster_versioned.engines.spark.read import read
from dagster_versioned.engines.spark.session import default_session
from dagster_versioned.engines.spark.write import write
from dagster_versioned.engines.staging import Staging

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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

    def accepts(self, frame: object) -> bool:
        return any(
            base.__module__.startswith("pyspark.sql") and base.__name__ == "DataFrame" for base in type(frame).__mro__
        )

    def contents(self, frame: Any, options: WriteOptions) -> Contents | None:
        """``None``: a Spark frame is a plan, and asking what it says would compute it twice."""
        return None

    def write(self, frame: Any, staging: Staging, options: WriteOptions, contents: Contents | None = None) -> Written:
        return write(frame, staging, options, options.resolved_row_order(self.default_row_order))

    def read(self, scan: Scan, frame_type: type | None = None) -> Any:
        """A frame pinned to the scan's files; see `dagster_versioned.engines.spark.read.read`."""
        return read(scan, self._session or default_session(), check=self._check, s3_scheme=self._s3_scheme)
