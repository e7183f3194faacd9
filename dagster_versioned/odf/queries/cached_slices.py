"""Slices of derived histories as a cache: what a recorded run gives again, byte for byte, may be discarded and rebuilt.

Source: seed 002 ("Derivative Transformations", "Dataset Validation").
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from dagster_versioned.errors import IntegrityError, InvalidInput, ObjectNotFound
from dagster_versioned.odf.blocks.block import Block
from dagster_versioned.odf.blocks.events import DatasetKind, ExecuteTransform
from dagster_versioned.odf.event_table import EventTable
from dagster_versioned.odf.identity.dataset_id import DatasetId
from dagster_versioned.odf.queries.transform import rebuilt_slice
from dagster_versioned.odf.sharing.remote import RemoteDataset
from dagster_versioned.storage.temporary import TemporaryFolder
from dagster_versioned.tables.parts import SLICES
from dagster_versioned.tables.preconditions import require
from dagster_versioned.tables.table import VersionedTable

if TYPE_CHECKING:
    from dagster_versioned.engines.spark.session import SparkSession

Inputs = Callable[[DatasetId], RemoteDataset]
"""Finds the datasets that a run took its records from."""


@dataclass(frozen=True, slots=True)
class CachedSlice:
    """A slice that a run appended: the number of its block, its key, and how many bytes it has."""

    sequence_number: int
    key: str
    size: int


@dataclass(frozen=True, slots=True)
class DiscardReport:
    """The slices that were discarded, or (``apply=False``) would be; ``kept`` says of each key that stays, why."""

    slices: tuple[CachedSlice, ...]
    kept: Mapping[str, str]


def rebuild(table: VersionedTable, inputs: Inputs, session: "SparkSession") -> Iterator[CachedSlice]:
    """Make the slices again that a derived history lacks, the oldest first, by doing their runs again.

    Each is put in its place once its bytes have the hash of its block; what was rebuilt by then stays. Raises
    `InvalidInput` for a dataset that no query computes, and what `rebuilt_slice` does.
    """
    _check(table, "rebuilt")
    for block, found in _runs(table):
        if not _is_there(table, found):
            with TemporaryFolder() as folder:
                made = rebuilt_slice(RemoteDataset(table.store), block, inputs, session, folder)
                if isinstance(made, bytes):
                    table.store.put(found.key, made)
                else:
                    table.store.put_file(found.key, made)
            yield found


def discard(
    table: VersionedTable, inputs: Inputs, session: "SparkSession", *, before: datetime, apply: bool
) -> DiscardReport:
    """Delete the slices of a derived history of runs before a time; with ``apply=False`` only say which.

    Those of versions that are pinned, tagged, or what an environment began with stay. Every run of the others is done
    again first, and where one does not give its slice byte for byte, nothing is deleted: raises what `rebuilt_slice`
    does then, and `InvalidInput` for a dataset that no query computes. Until `rebuild`, the table cannot be read as a
    whole, nor can what takes from it be repeated.
    """
    _check(table, "discarded")
    protected, kept, found = _protected(table), dict[str, str](), list[CachedSlice]()
    for block, made in _cached_before(table, before):
        if made.key in protected:
            kept[made.key] = protected[made.key]
            continue
        with TemporaryFolder() as folder:
            rebuilt_slice(RemoteDataset(table.store), block, inputs, session, folder)
        found.append(made)
    if apply and found:
        protected = _protected(table)  # the runs may have taken long
        kept |= {made.key: protected[made.key] for made in found if made.key in protected}
        found = [made for made in found if made.key not in kept]
        table.store.delete([made.key for made in found])
    return DiscardReport(tuple(found), kept)


def _protected(table: VersionedTable) -> Mapping[str, str]:
    return table.operations.collector().protected()


def _check(table: VersionedTable, what: str) -> None:
    require("change slices", table.project)
    if EventTable(table).chain.seed.dataset_kind is not DatasetKind.DERIVATIVE:
        raise InvalidInput(
            f"{table.name} is no dataset that a query computes, so nothing of it can be made again. Nothing was "
            f"{what}. Pull it from a copy if something of it is lost."
        )


def _runs(table: VersionedTable) -> list[tuple[Block, CachedSlice]]:
    """The runs that appended data, the oldest first."""
    blocks = [block for _, block in EventTable(table).blocks() if isinstance(block.event, ExecuteTransform)]
    return [
        (block, CachedSlice(block.sequence_number, f"{SLICES}{data.physical_hash}", data.size))
        for block in reversed(blocks)
        if (data := block.new_data) is not None
    ]


def _cached_before(table: VersionedTable, moment: datetime) -> Iterator[tuple[Block, CachedSlice]]:
    for block, made in _runs(table):
        if block.system_time.to_datetime() < moment and _is_there(table, made):
            yield block, made


def _is_there(table: VersionedTable, found: CachedSlice) -> bool:
    """Whether a slice is there. Raises `IntegrityError` for a file of another size, which was altered."""
    try:
        size = table.store.head(found.key).size
    except ObjectNotFound:
        return False
    if size != found.size:
        raise IntegrityError(
            f"{found.key} of {table.name} has {size} bytes, not {found.size}: it was altered. Nothing of it was "
            "changed. Move it away, and rebuild it."
        )
    return True
