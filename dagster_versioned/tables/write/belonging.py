"""Whether a write is to the table that it takes this one for: of the same asset, of the same partitions, still there.

What would mix two of them under one name is refused, with the way out.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dagster_versioned.errors import CommitConflict, InvalidInput, InvalidName
from dagster_versioned.tables.partitioning import Partitioning, difference, shown
from dagster_versioned.tables.parts import has_untagged_parts
from dagster_versioned.tables.state import TableState
from dagster_versioned.tables.table_record import TableRecord, asset_key_of


@dataclass(frozen=True)
class WriteTarget:
    """What a write takes its table for.

    ``partitioning`` is what its partitions are, where that is known. ``log_version`` is where the log ended when the
    write began, -1 without a log, ``None`` where that does not matter.
    """

    asset_key: tuple[str, ...]
    partitions: Sequence[str | None]
    appends_events: bool = False
    partitioning: Partitioning | None = None
    log_version: int | None = None

    @property
    def name(self) -> str:
        """The table as the command line takes it."""
        return "/".join(self.asset_key)


def record_after(taken: WriteTarget, state: TableState | None) -> TableRecord:
    """The record of the table once the write is committed.

    Raises `InvalidInput`, `InvalidName` and `CommitConflict` where it would be another table's.
    """
    given = taken.partitioning if taken.partitions != [None] else None
    if state is None:
        return TableRecord(given)
    record = TableRecord.of(state.snapshot)
    _check_is_the_same(taken, record, state)
    _check_asset(taken, record, state)
    _check_partitions(taken, record, state)
    return record.with_partitioning(given)


def _check_is_the_same(taken: WriteTarget, record: TableRecord, state: TableState) -> None:
    if taken.log_version is not None and max(taken.log_version, 0) < record.since:
        operation = state.history.record(record.since).operation
        raise CommitConflict(
            f"{taken.name} became another table (log version {record.since}: {operation}) after this write began. "
            f"Nothing was written. See `dagster-versioned history {taken.name}`; if the rows belong to it as it is, "
            "write them again."
        )


def _check_asset(taken: WriteTarget, record: TableRecord, state: TableState) -> None:
    if record.dropped is None and taken.appends_events != state.is_history:
        now, before = ("events", "rows") if taken.appends_events else ("rows", "a history of events")
        raise InvalidInput(
            f"This write is of {now}, but the table was written as {before}. Nothing was written. Give the asset "
            "another key, or the options that it had."
        )
    asset_key = asset_key_of(state)
    if asset_key is not None and asset_key != taken.asset_key:
        raise InvalidName(
            f"The asset key {list(taken.asset_key)} maps to a table that already belongs to the asset "
            f"{list(asset_key)}. Nothing was written. Rename one of the two assets."
        )


def _check_partitions(taken: WriteTarget, record: TableRecord, state: TableState) -> None:
    keys = [key for key in taken.partitions if key is not None]
    heads = state.history.heads
    had = record.partitioning is not None or state.history.is_partitioned
    if bool(keys) != had and (heads or had):
        now, before = ("partitions", "a whole table") if keys else ("a whole table", "partitions")
        raise InvalidInput(
            f"This write is of {now}, but {taken.name} was written as {before}. Nothing was written. Restore its "
            f"partitions definition, give the asset another key, or turn the rows that are there into {now}: "
            f"`dagster-versioned repartition {taken.name}`."
        )
    if not keys:
        return
    if has_untagged_parts(state.snapshot):
        raise CommitConflict(
            "Another program added files to the table that belong to no partition, so partition "
            f"{keys[0]!r} cannot be replaced safely. Nothing was written. Look at history(); a revert() of a "
            "partition takes these files away."
        )
    if how := _overlap(record.partitioning, taken.partitioning, keys, heads):
        raise InvalidInput(
            f"Partition {shown(keys)} of {taken.name} would overlap others, so that rows would be in the table twice: "
            f"{how}. Nothing was written. Restore the partitions definition of the table, turn the rows that are there "
            f"into partitions of the new one (`dagster-versioned repartition {taken.name}`), or begin anew "
            f"(`dagster-versioned drop {taken.name}`)."
        )


def _overlap(
    known: Partitioning | None, given: Partitioning | None, keys: Sequence[str], heads: Iterable[str | None]
) -> str | None:
    """How partitions of these keys are not the table's; ``None`` where they are, as far as that is known."""
    if given is not None:
        return difference(known, given, heads, "this write")
    strange = known.unknown_keys(keys) if known is not None else []
    return f"its partitions are {known}, and {shown(strange)} is none of them" if strange else None
