"""Comparing what was computed again with a version: the same rows, or which columns differ, or why nobody can say."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from dagster_versioned.errors import VersionedError
from dagster_versioned.identity.digest import BagDigest, SequenceDigest, fresh_key
from dagster_versioned.identity.version import Parent
from dagster_versioned.projects.project import Project
from dagster_versioned.proof.lineage import first_sentence
from dagster_versioned.proof.stand_in import NotPossible
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


def read_before(project: Project, table: str, version: Version) -> "pa.Table | NotPossible":
    """The rows of a version that is to be computed again, or why that is not possible. Raises `StorageError`."""
    opened = project.table(table)
    if version.gone is not None:
        return NotPossible(f"its rows are gone ({version.gone}), so there is nothing to compare with")
    if opened.state.is_history:
        return NotPossible("its events carry the time at which they were added: `odf verify --replay` is for them")
    return opened.read(f"@{version.log_version}", partition=version.partition, as_type=pa.Table)


def compare_with(
    stand_in: Project, table: str, version: Version, before: pa.Table, same_code: bool | None, takes_config: bool
) -> tuple[Reproduction, Mapping[str, pa.Table]]:
    """The outcome for a version of which a stand-in has what was made again; also the rows of both.

    Raises `NotPossible` where there is nothing to compare, and `StorageError`.
    """
    opened = stand_in.table(table)
    try:
        made = opened.version(partition=version.partition)
        again = opened.read(partition=version.partition, as_type=pa.Table)
    except VersionedError as error:
        raise NotPossible(f"what its function made cannot be read: {first_sentence(error)}") from error
    rows = {"before": before, "again": again}
    known: dict[str, Any] = {
        "table": table,
        "version": str(version.metadata_sha),
        "partition": version.partition,
        "rows": made.identity.nrow,
        "rows_before": version.identity.nrow,
        "same_code": same_code if version.identity.code_version == made.identity.code_version else False,
        "digest": made.digest,
    }
    return Reproduction(**known, **_difference(version, made, before, again, takes_config)), rows


def not_possible(table: str, version: Version, why: str) -> Reproduction:
    """The outcome for a version that cannot be computed again."""
    return Reproduction(table, str(version.metadata_sha), version.partition, "not possible", why)


def _difference(
    version: Version, made: Version, rows_before: pa.Table, rows_again: pa.Table, takes_config: bool
) -> dict[str, Any]:
    """The verdict on what was made again, and what is different."""
    before, again = version.identity, made.identity
    if others := _other_inputs(before.parents, again.parents):
        return {"verdict": "not possible", "text": f"it was built from other versions now: {', '.join(others)}"}
    if before.data_sha == again.data_sha and before.schema == again.schema:
        return {"verdict": "reproduced", "text": "the same bytes", "same_bytes": True}
    # What logs say of rows is not believed.
    is_ordered = str(version.digest).startswith(SequenceDigest.kind)
    if before.schema == again.schema and are_same_rows(rows_before, rows_again, is_ordered=is_ordered):
        return {"verdict": "reproduced", "text": "the same rows, in other files"}
    columns = differing_columns(rows_before, rows_again)
    counts = f"{again.nrow:,} rows instead of {before.nrow:,}; " if again.nrow != before.nrow else ""
    named = f"other values in {', '.join(columns)}" if columns else "the same values in other rows, or another order"
    config = "; it takes config, which is not recorded, so this is by its defaults" if takes_config else ""
    return {"verdict": "different", "text": f"{counts}{named}{config}", "columns": columns}


def are_same_rows(before: pa.Table, again: pa.Table, *, is_ordered: bool) -> bool:
    """Whether two tables have equal rows, in one order where that counts; by digests that were taken just now."""
    if before.schema.remove_metadata() != again.schema.remove_metadata() or before.num_rows != again.num_rows:
        return False
    key = fresh_key()

    def digest(rows: pa.Table) -> object:
        taken = SequenceDigest(rows.schema) if is_ordered else BagDigest(rows.schema, key)
        for batch in rows.to_batches():
            taken.update(batch)
        return taken.finish() if isinstance(taken, SequenceDigest) else taken.lanes

    return digest(before) == digest(again)


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
    """The inputs that are others. Versions are told apart by their SHAs: tables and projects may have been renamed."""

    def named(parents: Sequence[Parent]) -> dict[tuple[str, str | None], str]:
        return {(parent.version, parent.partition): parent.table for parent in parents}

    old, new = named(before), named(again)
    changed = [(*each, {**old, **new}[each]) for each in old.keys() ^ new.keys()]
    return sorted({table if partition is None else f"{table} [{partition}]" for _, partition, table in changed})


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
