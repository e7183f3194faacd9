"""The engine for pyarrow, pandas and Polars."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa

from dagster_versioned.delta.schema.clustering import require_clusterable
from dagster_versioned.delta.schema.types import StructType, schema_to_arrow
from dagster_versioned.engines.arrow.refresh import refresh_table
from dagster_versioned.engines.arrow.scan import read_table, stream_table
from dagster_versioned.engines.arrow.upsert import merge_tables
from dagster_versioned.engines.conform import conform_all, refuse_no_rows, stored_schema
from dagster_versioned.engines.expression import stored
from dagster_versioned.engines.frames import READABLE, family_of, in_memory, stream, to_frame, to_table, unreadable
from dagster_versioned.engines.parquet_part import BatchQueue, PartWriter, partitioned_parts
from dagster_versioned.engines.parts import (
    ROW_GROUP_ROWS,
    Part,
    RowOrder,
    RowsSummarizer,
    RowsSummary,
    StagedParts,
    WriteOptions,
)
from dagster_versioned.engines.row_order import canonical_order, order_rows
from dagster_versioned.engines.row_size import total_size
from dagster_versioned.engines.scan import Scan, ScanFile
from dagster_versioned.engines.sql import Names, is_true, table_of
from dagster_versioned.engines.staging import Staging
from dagster_versioned.engines.upsert import RowMatch, Upsert
from dagster_versioned.identity.digest import BagDigest, Sums

BATCH_ROWS = ROW_GROUP_ROWS
"""Frames in memory are cut like row groups, so that most row groups are one slice and nothing is copied to join it."""

_SUMMED_AT_ONCE = 2
_WORTH_A_THREAD = 256 * 1024
"""Bytes of a batch from which on another thread digests it; fewer are through before a thread has begun."""


class ArrowEngine:
    """Writes and reads pyarrow tables and record batch readers, pandas frames, Polars eager and lazy frames."""

    @property
    def default_row_order(self) -> RowOrder:
        return "significant"

    @property
    def refreshes(self) -> bool:
        return True

    def accepts(self, frame: object) -> bool:
        return family_of(type(frame)) is not None

    def contents(self, frame: Any, options: WriteOptions) -> RowsSummary | None:
        """What the frame says; ``None`` for record batch readers and lazy frames."""
        table = in_memory(frame)
        if table is None:
            return None
        schema, batches = self._rows(table, options)
        tally = RowsSummarizer(schema, self._row_order(options))
        for batch in batches:
            tally.update(batch)
        refuse_no_rows(tally.nrow, allow_empty=options.allow_empty)
        return tally.finish()

    def write(
        self, frame: Any, staging: Staging, options: WriteOptions, contents: RowsSummary | None = None
    ) -> StagedParts:
        """Write the frame in one pass; memory is bounded for readers and lazy frames that are not to be sorted.

        Values are checked as they pass: one that cannot be stored ends the write when it is met, with nothing but
        staged files left behind. An empty version has no parts.
        """
        schema, batches = self._rows(frame, options)
        if options.partition_columns:
            rows = _table(batches, schema)
            contents = contents or self.measure(rows, schema)
            refuse_no_rows(contents.nrow, allow_empty=options.allow_empty)
            return StagedParts(contents, tuple(partitioned_parts(rows, schema, staging.directory(), options)))
        writer = PartWriter(schema, staging.directory(), options)
        try:
            if contents is None:
                tally = RowsSummarizer(schema, self._row_order(options))
                contents, parts = _write_and_tally(batches, writer, tally, options)
            else:
                for batch in batches:
                    writer.write(batch)
                parts = writer.close()
            refuse_no_rows(contents.nrow, allow_empty=options.allow_empty)
            return StagedParts(contents, tuple(parts))
        except BaseException:
            writer.abort()
            raise

    def schema(self, frame: Any, options: WriteOptions) -> StructType:
        """The schema under which the frame would be stored."""
        return stored_schema(stream(frame)[0], sort_columns=options.sort_columns, columns=options.columns)

    def typed(self, frame: Any, known: Callable[[], StructType | None]) -> Any:
        """See `Engine.typed`; what stays untyped is refused by who writes it.

        pandas guesses the types of a frame without rows, so such a frame takes all types, and without columns these
        too.
        """
        table, family = in_memory(frame), family_of(cast("type[Any]", type(frame)))
        guessed = family == "pandas.DataFrame" and table is not None and not table.num_rows
        frame = frame if table is None else table
        schema, batches = stream(frame)
        if not (guessed or _is_untyped(schema.types)) or (given := known()) is None:
            return frame
        target = schema_to_arrow(given)
        if guessed:
            return _without_rows(schema, target)
        filled = _schema(schema, target)
        if table is not None:
            return table.cast(filled)
        return pa.RecordBatchReader.from_batches(filled, (batch.cast(filled) for batch in batches))

    @contextmanager
    def pinned(self, frame: Any) -> Generator[pa.Table]:
        """The frame as a table in memory."""
        yield to_table(frame)

    def widened(self, frame: Any, schema: StructType) -> pa.Table:
        """The columns of the schema in its types."""
        batches = frame.to_batches() if isinstance(frame, pa.Table) else iter(frame)
        return _table(conform_all(batches, schema), schema)

    def measure(self, frame: Any, schema: StructType) -> RowsSummary:
        """What the rows say, computed here."""
        tally = RowsSummarizer(schema, "ignored")
        for batch in conform_all(frame.to_batches(max_chunksize=BATCH_ROWS), schema):
            tally.update(batch)
        return tally.finish()

    def sums(self, frame: Any, schema: StructType, key: bytes) -> Sums:
        """As of any engine."""
        return _sums(conform_all(stream(frame, BATCH_ROWS)[1], schema), schema, key)

    def sums_of_scan(self, scan: Scan, key: bytes, frame: Any = None) -> Sums:
        """As of any engine; two parts are in memory."""
        bag = BagDigest(schema_to_arrow(scan.schema), key)

        def of_file(file: ScanFile) -> Sums:
            return _sums(stream_table(replace(scan, files=(file,))), scan.schema, key)

        with ThreadPoolExecutor(_SUMMED_AT_ONCE, thread_name_prefix="sums") as pool:
            for sums in pool.map(of_file, scan.files):
                bag.merge(*sums)
        return bag.lanes

    def violations(self, frame: Any, check: str) -> int:
        """In how many rows the condition is false or null, evaluated by DuckDB."""
        schema = stored_schema(frame.schema)
        condition = Names({"rows": schema}).resolve(check)
        rows = _table(conform_all(frame.to_batches(), schema), schema)
        needed = {stored(side, name): rows[name] for side, name in condition.columns}
        return rows.num_rows - int(is_true(table_of(needed, rows.num_rows), condition).sum())

    def merge(self, frame: Any, base: Scan, matching: RowMatch, staging: Staging, options: WriteOptions) -> Upsert:
        """See `merge_tables`; holds the frame, the table's keys, and the files whose rows change in memory."""
        incoming = _table(conform_all(frame.to_batches(), base.schema), base.schema)
        if matching.gone is not None:
            units = base.schema.select(matching.on)
            matching = replace(matching, gone=_table(conform_all(matching.gone.to_batches(), units), units))

        def write(rows: pa.Table) -> StagedParts:
            settled = replace(options, allow_empty=True, columns=tuple(rows.column_names))
            given = matching.given if rows is incoming else None
            known = given if given is not None and given.schema == base.schema else None
            return self.write(rows, staging, settled, known)

        def measure(rows: pa.Table) -> RowsSummary:
            return self.measure(rows, base.schema)

        return merge_tables(
            incoming, base, matching, write, measure, vectors=options.deletion_vectors, writes_feed=options.change_feed
        )

    def refresh(self, frame: Any, base: Scan, staging: Staging, options: WriteOptions) -> Upsert | None:
        """See `refresh_table`; holds the frame, hashes of its rows and the table's, and two parts."""
        incoming = _table(conform_all(frame.to_batches(max_chunksize=BATCH_ROWS), base.schema), base.schema)

        def write(rows: pa.Table) -> StagedParts:
            return self.write(rows, staging, replace(options, columns=tuple(rows.column_names)))

        def sums_of(written: StagedParts, key: bytes) -> Sums:
            bag = BagDigest(schema_to_arrow(base.schema), key)
            for scan in staging.scans(written.parts, base.schema):
                bag.merge(*self.sums_of_scan(scan, key))
            return bag.lanes

        return refresh_table(incoming, base, write, sums_of, writes_feed=options.change_feed)

    def read(self, scan: Scan, frame_type: type | None = None) -> Any:
        """The scan's rows; every part's SHA-256 is checked over its bytes before a row of it is returned.

        A record batch reader checks part by part as it goes. Raises `IntegrityError`, naming the part.
        """
        family = family_of(frame_type or pa.Table)
        if family not in READABLE:
            raise unreadable(frame_type, READABLE)
        if family == "pyarrow.RecordBatchReader":
            return stream_table(scan)
        return to_frame(read_table(scan), frame_type or pa.Table)

    def _row_order(self, options: WriteOptions) -> RowOrder:
        return options.resolved_row_order(self.default_row_order)

    def _rows(self, frame: Any, options: WriteOptions) -> tuple[StructType, Iterator[pa.RecordBatch]]:
        """The stored schema, and the rows in that schema, in the order in which they are stored."""
        table = in_memory(frame)
        arrow_schema, incoming = stream(frame if table is None else table, BATCH_ROWS)
        schema = stored_schema(arrow_schema, sort_columns=options.sort_columns, columns=options.columns)
        batches = conform_all(incoming, schema)
        require_clusterable(schema, options.cluster_by)
        if keys := options.sort_rows or options.cluster_by:
            batches = _batches(order_rows(_table(batches, schema), keys))
        elif table is not None and self._row_order(options) == "ignored":
            table = _table(batches, schema)
            # Beyond one part, ordering would cost more than the writing, for bytes that the digest spares anyway.
            size = sum(map(total_size, table.to_batches()))
            one_part = options.single_part or size <= options.target_part_bytes
            batches = _batches(canonical_order(table) if one_part else table)
        return schema, batches


def _sums(batches: Iterable[pa.RecordBatch], schema: StructType, key: bytes) -> Sums:
    bag = BagDigest(schema_to_arrow(schema), key)
    for batch in batches:
        bag.update(batch)
    return bag.lanes


def _write_and_tally(
    batches: Iterator[pa.RecordBatch], writer: PartWriter, tally: RowsSummarizer, options: WriteOptions
) -> tuple[RowsSummary, list[Part]]:
    """Write while another thread digests; what waits for it is at most as large as a row group."""
    waiting = BatchQueue(options.row_group_bytes)
    with ThreadPoolExecutor(1, thread_name_prefix="digest") as thread:
        for batch in batches:
            if not waiting and batch.nbytes < _WORTH_A_THREAD:
                tally.update(batch)
                writer.write(batch)
                continue
            digested = thread.submit(tally.update, batch)
            writer.write(batch)
            waiting.add(digested, batch.nbytes)
        parts = writer.close()
        waiting.wait()
    return tally.finish(), parts


def _table(batches: Iterator[pa.RecordBatch], schema: StructType) -> pa.Table:
    return pa.Table.from_batches(batches, schema_to_arrow(schema))


def _batches(table: pa.Table) -> Iterator[pa.RecordBatch]:
    return iter(table.to_batches(max_chunksize=BATCH_ROWS))


def _without_rows(schema: pa.Schema, known: pa.Schema) -> pa.Table:
    own, theirs = cast("list[Any]", list(schema)), cast("list[Any]", list(known))
    by_name = {field.name: field for field in theirs}
    return pa.schema([by_name.get(field.name, field) for field in own] or theirs).empty_table()


def _schema(schema: pa.Schema, target: pa.Schema) -> pa.Schema:
    fields = cast("list[Any]", list(schema))
    return pa.schema(
        [
            field.with_type(_filled(field.type, target.field(field.name).type)) if field.name in target.names else field
            for field in fields
        ]
    )


def _filled(data_type: Any, known: Any) -> Any:
    """The type with that of the known one wherever it says nothing but null; itself where the two are of two kinds."""
    types = pa.types
    if types.is_null(data_type):
        return known
    if (types.is_list(data_type) or types.is_large_list(data_type)) and types.is_list(known):
        item = data_type.value_field
        kind = pa.large_list if types.is_large_list(data_type) else pa.list_
        return kind(item.with_type(_filled(item.type, known.value_type)))
    if types.is_struct(data_type) and types.is_struct(known):
        return pa.struct(list(_filled_members(data_type, known)))
    if types.is_map(data_type) and types.is_map(known):
        return pa.map_(_filled(data_type.key_type, known.key_type), _filled(data_type.item_type, known.item_type))
    return data_type


def _filled_members(data_type: Any, known: Any) -> Iterator[Any]:
    for place in range(data_type.num_fields):
        member = data_type.field(place)
        at = known.get_field_index(member.name)
        yield member.with_type(_filled(member.type, known.field(at).type)) if at >= 0 else member


def _is_untyped(data_types: Sequence[Any]) -> bool:
    return any(
        pa.types.is_null(type_) or _is_untyped([type_.field(i).type for i in range(type_.num_fields)])
        for type_ in data_types
    )
