"""Files that tell which rows a commit changed, made of the parts that come and go."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa

from dagster_versioned.delta.actions import Add
from dagster_versioned.delta.log.change_feed import CHANGE_TYPE, ChangeType
from dagster_versioned.delta.schema.types import StructType, schema_to_arrow
from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.engines.arrow.scan import stream_table
from dagster_versioned.engines.parts import Part, WriteOptions
from dagster_versioned.engines.scan import Scan
from dagster_versioned.engines.staging import Staging
from dagster_versioned.tables.parts import change_key
from dagster_versioned.tables.read import scan_of


def write_changes(
    staging: Staging,
    options: WriteOptions,
    removed: Sequence[Add],
    old: StructType,
    added: Sequence[Add],
    new: StructType,
    written: Mapping[str, Part],
) -> Mapping[str, Part]:
    """Stage the rows of parts that go, as a schema, and of those that come, as another; the files by key.

    Of a part that only gets another vector, these are the rows in which the two differ. Parts that were ``written``
    now, by key, have no final name yet. One part is in memory at a time. Raises `IntegrityError`.
    """
    settled = replace(options, row_order="significant", sort_rows=(), cluster_by=(), allow_empty=True)
    files: dict[str, Part] = {}
    for change, schema, parts, others in (("delete", old, removed, added), ("insert", new, added, removed)):
        scans = list(_differences(staging, schema, parts, others, written))
        if scans:
            rows = _changes(cast("ChangeType", change), schema, scans)
            files |= {change_key(part): part for part in ArrowEngine().write(rows, staging, settled).parts}
    return files


def _differences(
    staging: Staging, schema: StructType, parts: Sequence[Add], others: Sequence[Add], written: Mapping[str, Part]
) -> Iterator[Scan]:
    """What is to be read of parts: all of each, or, where the others have it too, the rows that they have not."""
    other_vectors = {add.key: add.deletion_vector for add in others}
    for add in parts:
        if add.key in written:
            yield from staging.scans([written[add.key]], schema)
            continue
        scan = scan_of(staging.store, schema, [add])
        if add.key not in other_vectors:
            yield scan
        elif (vector := other_vectors[add.key]) is not None:
            yield replace(scan, files=(replace(scan.files[0], kept=vector),))


def _changes(change: ChangeType, schema: StructType, scans: Sequence[Scan]) -> pa.RecordBatchReader:
    columns = schema_to_arrow(schema).append(pa.field(CHANGE_TYPE, pa.string()))

    def batches() -> Iterator[pa.RecordBatch]:
        for scan in scans:
            for batch in stream_table(scan):
                kinds: Any = pa.repeat(change, batch.num_rows)
                yield pa.RecordBatch.from_arrays([*batch.columns, kinds], schema=columns)

    return pa.RecordBatchReader.from_batches(columns, batches())
