"""The one interface between tables and frames."""

from typing import Any, Protocol

from dagster_versioned.engines.parts import Contents, RowOrder, WriteOptions, Written
from dagster_versioned.engines.scan import Scan
from dagster_versioned.engines.staging import Staging


class Engine(Protocol):
    """Turns frames of some family of types into parts, and parts into frames."""

    @property
    def default_row_order(self) -> RowOrder:
        """What ``WriteOptions.row_order=None`` means here."""
        ...

    def accepts(self, frame: object) -> bool:
        """Whether `write` takes this frame."""
        ...

    def contents(self, frame: Any, options: WriteOptions) -> Contents | None:
        """What the frame says, without writing it; ``None`` where that would consume the frame or compute it twice."""
        ...

    def write(self, frame: Any, staging: Staging, options: WriteOptions, contents: Contents | None = None) -> Written:
        """Write the frame as parts. On failure the staging may hold files, which its owner discards.

        ``contents``, where `contents` gave them for this very frame and these options, are not computed again.
        Raises `UnsupportedType`, `EmptyTable`, `InvalidInput`.
        """
        ...

    def read(self, scan: Scan, frame_type: type | None = None) -> Any:
        """The scan's rows as ``frame_type`` (``None``: the engine's own type). Raises `IntegrityError`."""
        ...
