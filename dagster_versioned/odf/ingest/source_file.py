"""A fetched file, and errors that say where in it something is wrong."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from dagster_versioned.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class SourceFile:
    """Bytes at ``path``, called ``name`` (a URL or a path) in errors."""

    name: str
    path: Path

    def error(self, what: str, *, place: str = "", column: str | None = None) -> InvalidInput:
        """An error that names the file, and the place in it (``line 3``) and the column where they are known."""
        where = ", ".join(filter(None, [self.name, place, column and f"column {column!r}"]))
        return InvalidInput(f"{where}: {what}. Nothing of this file was added. Correct it, or the source.")

    def not_text(self, encoding: str) -> InvalidInput:
        """The error for bytes that are no text in an encoding."""
        data = self.path.read_bytes()
        try:
            data.decode(encoding)
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            return self.error(f"not text in {encoding} ({error.reason})", place=f"line {line}")
        return self.error(f"not text in {encoding}")

    def require_columns(self, found: Sequence[str], declared: pa.Schema, *, place: str = "") -> None:
        """Raise `InvalidInput` unless the file has exactly the declared columns, in any order."""
        for name in found:
            if name not in declared.names:
                known = ", ".join(map(repr, declared.names[:20]))
                raise self.error(f"the column is not declared; declared are {known}", place=place, column=name)
            if found.count(name) > 1:
                raise self.error("the column is there twice", place=place, column=name)
        for name in declared.names:
            if name not in found:
                raise self.error("the column is declared and not there", place=place, column=name)
