"""The one interface between tables and frames."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from dagster_versioned.delta.schema.types import StructType
from dagster_versioned.engines.parts import RowOrder, RowsSummary, StagedParts, WriteOptions
from dagster_versioned.engines.scan import Scan
from dagster_versioned.engines.staging import Staging
from dagster_versioned.engines.upsert import RowMatch, Upsert
from dagster_versioned.identity.digest import Sums


class Engine(Protocol):
    """Turns frames of some family of types into parts, and parts into frames."""

    @property
    def default_row_order(self) -> RowOrder:
        """What ``WriteOptions.row_order=None`` means here."""
        ...

    @property
    def refreshes(self) -> bool:
        """Whether `refresh` finds anything; where not, frames are written whole without being pinned for it."""
        ...

    def accepts(self, frame: object) -> bool:
        """Whether `write` takes this frame."""
        ...

    def contents(self, frame: Any, options: WriteOptions) -> RowsSummary | None:
        """What the frame says, without writing it; ``None`` where that would consume the frame or compute it twice."""
        ...

    def write(
        self, frame: Any, staging: Staging, options: WriteOptions, contents: RowsSummary | None = None
    ) -> StagedParts:
        """Write the frame as parts. On failure the staging may hold files, which its owner discards.

        ``contents``, where `contents` gave them for this very frame and these options, are not computed again.
        Raises `UnsupportedType`, `EmptyTable`, `InvalidInput`.
        """
        ...

    def schema(self, frame: Any, options: WriteOptions) -> StructType:
        """The schema under which the frame would be stored. Raises `UnsupportedType`, `EmptyTable`."""
        ...

    def typed(self, frame: Any, known: Callable[[], StructType | None]) -> Any:
        """The frame, with the types of a known schema for columns that have none, because they are all null.

        ``known`` is asked only where there are such columns.
        """
        ...

    def pinned(self, frame: Any) -> AbstractContextManager[Any]:
        """The frame as one that can be used several times, until the block ends, and is the same every time."""
        ...

    def widened(self, frame: Any, schema: StructType) -> Any:
        """The columns of a pinned frame that the schema has, in its types, which are as wide or wider."""
        ...

    def measure(self, frame: Any, schema: StructType) -> RowsSummary:
        """What the rows of a pinned frame say without an order; its columns are those of ``schema`` by name."""
        ...

    def sums(self, frame: Any, schema: StructType, key: bytes) -> Sums:
        """`BagDigest.lanes` of the rows of a pinned frame under a key; its columns are those of ``schema`` by name."""
        ...

    def sums_of_scan(self, scan: Scan, key: bytes, frame: Any) -> Sums:
        """The same of the rows of a scan, computed where the frame is. Raises `IntegrityError`."""
        ...

    def violations(self, frame: Any, check: str) -> int:
        """In how many rows of a pinned frame a condition, in Spark's SQL, is false or null. Raises `InvalidInput`."""
        ...

    def merge(self, frame: Any, base: Scan, matching: RowMatch, staging: Staging, options: WriteOptions) -> Upsert:
        """Put the rows of a pinned frame among those of ``base``, in the place of those that match.

        Files in which no row changes are not replaced; with ``options.deletion_vectors``, nor are those that lose no
        more than half of their rows. The frame's columns are those of the scan, by name. Raises
        `InvalidInput` for a key that is null, or that several rows of the frame, or of the table, have.
        """
        ...

    def refresh(self, frame: Any, base: Scan, staging: Staging, options: WriteOptions) -> Upsert | None:
        """Put the rows of a pinned frame in the place of those of ``base``, without what both have; ``None`` where it
        is better written whole (`engines.refresh`).

        Files from which some rows go lose them by deletion vectors. The frame's columns are those of the scan, by name
        and type. Raises `IntegrityError`.
        """
        ...

    def read(self, scan: Scan, frame_type: type | None = None) -> Any:
        """The scan's rows as ``frame_type`` (``None``: the engine's own type). Raises `IntegrityError`."""
        ...
