"""What stands for parts with erased rows: the rest of their rows in the same order, written and compared before
anything is destroyed."""

from collections.abc import Mapping, Set
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dagster_versioned.delta.actions import Add
from dagster_versioned.delta.files import statistics
from dagster_versioned.delta.files.deletion_vectors import deleted_rows, named_by_content, with_vector
from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.engines.arrow.scan import read_table
from dagster_versioned.engines.part_order import SHA_TAG, VECTOR_TAG, ordinal_of
from dagster_versioned.engines.parts import RowsSummarizer, RowsSummary, WriteOptions
from dagster_versioned.engines.staging import Staging
from dagster_versioned.errors import IntegrityError
from dagster_versioned.identity.digest import RowsDigest, SequenceDigest
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.erased_parts import Identity
from dagster_versioned.tables.erasure.find import FoundRows
from dagster_versioned.tables.parts import part_key, vector_sha_of
from dagster_versioned.tables.read import scan_of
from dagster_versioned.tables.write.table_actions import add_of

_WHOLE = 1 << 62
"""No part is as large, so that what stands for one part is one."""


Change = tuple[RowsSummary, RowsSummary]
"""What rows of a part said, and what of them is left in what stands for it."""

Changes = Mapping[tuple[Identity, Identity | None], Change]
"""By parts and what stands for them; nothing does for those of which no row is left."""


def substitutes(
    staging: Staging, found: FoundRows, options: WriteOptions, timestamp: int, current: Set[Identity]
) -> tuple[Mapping[Identity, Add | None], Changes]:
    """Put what stands for a part, with each set of deleted rows that a version has, and say what that is.

    It was read back, and its rows are those of the part but for the erased ones. Raises `IntegrityError` where they are
    not, or the part cannot be read: nothing refers to what was put then. Of ``current`` ones the changes are told, too.
    """
    part, store = found.part, staging.store
    if found.gone.all() and current.isdisjoint(part.variants):
        return dict.fromkeys(part.variants), {}
    rows = read_table(scan_of(store, part.schemas[0], [part.add]))
    nulled = _with_nulls(rows, found)
    left = nulled.filter(pa.array(~found.gone))
    written = _written(staging, found, left, options, timestamp) if left.num_rows else None
    made: dict[Identity, Add | None] = {}
    changes: dict[tuple[Identity, Identity | None], Change] = {}
    for identity, before in part.variants.items():
        deleted = _deleted(store, before, len(found.gone))
        add = None if written is None else _with_deleted(store, written, deleted, found.gone)
        made[identity] = add
        if identity in current:
            live = found.found.copy()
            live[deleted] = False
            key = identity, None if add is None else add.identity
            changes[key] = _change(found, rows.filter(pa.array(live)), nulled.filter(pa.array(live)))
    return made, changes


def _change(found: FoundRows, before: pa.Table, after: pa.Table) -> Change:
    left = after if found.nulled else after.slice(0, 0)
    engine, schema = ArrowEngine(), found.part.schemas[0]
    return engine.measure(before, schema), engine.measure(left, schema)


def _written(staging: Staging, found: FoundRows, rows: pa.Table, options: WriteOptions, timestamp: int) -> Add:
    part, store = found.part, staging.store
    schema = part.schemas[0]
    settled = replace(
        options,
        row_order="significant",
        sort_rows=(),
        cluster_by=(),
        sort_columns=False,
        columns=tuple(schema.names),
        partition=part.partition,
        partition_columns=tuple(part.add.partition_values),
        first_ordinal=ordinal_of(part.add),
        target_part_bytes=_WHOLE,
    )
    staged = ArrowEngine().write(rows, staging, settled)
    (made,) = staged.parts
    staging.promote(made, part_key(made))
    add = add_of(made, part.partition, timestamp)
    kept = {name: text for name, text in (part.add.tags or {}).items() if name not in (SHA_TAG, VECTOR_TAG)}
    add = replace(
        add,
        tags={**kept, **(add.tags or {})},
        clustering_provider=part.add.clustering_provider,
        # The record never changes, so it has nothing of rows that may be erased later.
        stats=statistics.to_json({"numRecords": statistics.num_records(add.stats) or 0}),
    )
    # Of rows that have a folder of their own, what was written is said without their order.
    said = staged.contents.digest if staged.contents.digest.kind == SequenceDigest.kind else _digest(found, rows)
    again = _digest(found, read_table(scan_of(store, schema, [add])))
    if add.partition_values != part.add.partition_values or again != said:
        raise IntegrityError(
            f"What would stand for the part {part.add.key} of {store.uri} does not have its other rows, as it was read"
            " back. Nothing was erased. Run verify on the table, and report this."
        )
    return add


def _with_nulls(rows: pa.Table, found: FoundRows) -> pa.Table:
    """The rows, of which those that were found lose what they have in the nulled columns."""
    changed: Any = rows  # the published stubs know neither masks nor nulls among places
    places = cast("Any", pa.array)(np.arange(len(found.found)), mask=found.found)
    for name in found.nulled:
        at = changed.schema.get_field_index(name)
        changed = changed.set_column(at, changed.schema.field(at), changed[name].take(places))  # null, for no place
    return changed


def _digest(found: FoundRows, rows: pa.Table) -> RowsDigest:
    tally = RowsSummarizer(found.part.schemas[0], "significant")
    for batch in rows.to_batches():
        tally.update(batch)
    return tally.finish().digest


def _deleted(store: ObjectStore, add: Add, count: int) -> NDArray[np.int64]:
    """The positions of the rows, of so many, that a version has deleted from a part."""
    if add.deletion_vector is None:
        return np.zeros(0, np.int64)
    return deleted_rows(store, add.deletion_vector, count, add.key, vector_sha_of(add))


def _with_deleted(store: ObjectStore, written: Add, deleted: NDArray[np.int64], gone: NDArray[np.bool_]) -> Add:
    """What stands for a part without the rows that a version has deleted from it, counted anew."""
    staying = deleted[~gone[deleted]]
    if not len(staying):
        return written
    named = named_by_content({written.key: staying - np.cumsum(gone)[staying]})
    for key, data in named.files.items():
        store.put(key, data)
    vector, sha = named.vectors[written.key]
    marked = with_vector(written, vector, statistics.num_records(written.stats) or 0)
    return replace(marked, tags={**(written.tags or {}), VECTOR_TAG: sha})
