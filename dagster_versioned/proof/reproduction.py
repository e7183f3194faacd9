"""Comparing what was computed again with a version: the same rows, or which columns differ, or why nobody can say."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from dagster_versioned.identity.version import Parent
from dagster_versioned.tables.history import Version

Verdict = Literal["reproduced", "different", "not possible"]


@dataclass(frozen=True)
class Reproduction:
    """What came of computing a version again, as a ``verdict`` and a sentence (``text``).

    ``columns`` are those whose values differ, ``same_bytes`` says that the files are the same too, ``digest`` is that
    of the rows that were computed, ``same_code`` says whether the code that ran is the recorded one (``None``: nobody
    knows).
    """

    table: str
    version: str
    partition: str | None
    verdict: Verdict
    text: str
    columns: Sequence[str] = ()
    rows: int | None = None
    rows_before: int | None = None
    same_bytes: bool = False
    digest: str | None = None
    same_code: bool | None = None


def compare(
    version: Version, made: Version, rows: Mapping[str, pa.Table], same_code: bool | None, table: str
) -> Reproduction:
    """The outcome for a version, and what was made in its place; ``rows`` are those of ``"before"`` and ``"again"``."""
    before, again = version.identity, made.identity
    if before.code_version != again.code_version:
        same_code = False
    known: dict[str, Any] = {
        "table": table,
        "version": str(version.metadata_sha),
        "partition": version.partition,
        "rows": again.nrow,
        "rows_before": before.nrow,
        "same_code": same_code,
        "digest": made.digest,
    }
    others = _other_inputs(before.parents, again.parents)
    if others:
        return Reproduction(
            **known, verdict="not possible", text=f"it was built from other versions now: {', '.join(others)}"
        )
    if before.schema == again.schema and version.digest == made.digest:
        same_bytes = before.data_sha == again.data_sha
        how = "the same bytes" if same_bytes else "the same rows, in other files"
        return Reproduction(**known, verdict="reproduced", text=how, same_bytes=same_bytes)
    columns = differing_columns(rows["before"], rows["again"])
    counts = f"{again.nrow:,} rows instead of {before.nrow:,}; " if again.nrow != before.nrow else ""
    named = f"other values in {', '.join(columns)}" if columns else "the same values in other rows, or another order"
    return Reproduction(**known, verdict="different", text=f"{counts}{named}", columns=columns)


def differing_columns(before: pa.Table, again: pa.Table) -> list[str]:
    """The columns that one of two tables lacks, or in which it has other values, however the rows are ordered."""
    names = list(dict.fromkeys((*before.column_names, *again.column_names)))
    return [name for name in names if not _is_same(before, again, name)]


def _is_same(before: pa.Table, again: pa.Table, name: str) -> bool:
    if name not in before.column_names or name not in again.column_names:
        return False
    old, new = before[name], again[name]
    if old.type != new.type or len(old) != len(new):
        return False
    # As texts, so that NaN is itself and nested values can be counted.
    return old.equals(new) or _counted(old) == _counted(new)


def _counted(column: Any) -> Counter[str]:
    values: list[Any] = column.to_pylist()
    return Counter(repr(value) for value in values)


def _other_inputs(before: Sequence[Parent], again: Sequence[Parent]) -> list[str]:
    def named(parents: Sequence[Parent]) -> dict[tuple[str, str | None], str]:
        return {(parent.table, parent.partition): parent.version for parent in parents}

    old, new = named(before), named(again)
    return [
        f"{table}{'' if partition is None else f' [{partition}]'}"
        for table, partition in sorted(old.keys() | new.keys(), key=str)
        if old.get((table, partition)) != new.get((table, partition))
    ]


REASONS: Sequence[tuple[str, str]] = (
    ("date", "a clock"),
    ("timestamp", "a clock"),
    ("double", "a random number, or floats that are summed in another order"),
    ("float", "a random number, or floats that are summed in another order"),
    ("string", "a random id, or texts that are joined in another order"),
)
"""What most often makes values of a type differ between two runs at once."""


def likely_reason(columns: Sequence[str], rows: pa.Table) -> str:
    """Why an asset is never the same, by the columns that differ: a guess."""
    if not columns:
        return "rows in another order"
    types: dict[str, Any] = dict(zip(rows.schema.names, rows.schema.types, strict=True))
    kinds = [str(types[name]) for name in columns if name in types]
    found = [reason for start, reason in REASONS if any(kind.startswith(start) for kind in kinds)]
    return found[0] if found else "a random number, a clock or a service"
