"""Slices: files of events, and what a block says of one. Source: seed 002 ("Data Slice", "Common Data Schema").

A slice is written in one pass: as it is, its records are hashed and counted, and the latest event time is found.
"""

import hashlib
import pickle
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_versioned.delta.schema.types import StructType, schema_to_arrow
from dagster_versioned.engines.conform import conform, stored_schema
from dagster_versioned.engines.parquet_part import PartWriter
from dagster_versioned.engines.parts import Part, RowsSummary, WriteOptions
from dagster_versioned.engines.staging import Staging
from dagster_versioned.errors import InvalidInput, StorageError, UnsupportedType
from dagster_versioned.identity.digest import BagDigest
from dagster_versioned.odf.blocks.arrow_schema import fields_of
from dagster_versioned.odf.blocks.events import DataSlice, OffsetInterval
from dagster_versioned.odf.event_slice import SliceFile
from dagster_versioned.odf.event_sql import REFUSED, EventSchema, Operation
from dagster_versioned.odf.identity.arrow0 import Arrow0
from dagster_versioned.odf.identity.multihash import HashAlgorithm, Multihash
from dagster_versioned.odf.slice_records import missing_value, with_nulls
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.event_history import EventColumns
from dagster_versioned.tables.parts import SLICES

MILLISECONDS = pa.timestamp("ms", tz="UTC")
_CHUNK = 8 * 1024 * 1024


class RowsRefused(Exception):
    """There are rows among the events whose operation is `REFUSED`."""


@dataclass(frozen=True)
class Slice(SliceFile):
    """A slice that was written: what a block says of it, and the latest event time in it."""

    data: DataSlice
    latest: datetime


def slice_schema(schema: EventSchema, chain: pa.Schema | None) -> pa.Schema:
    """The types in which a slice has the columns: the chain's, where it has them already.

    Else times are in milliseconds, and all else is as the table has it. A chain of others may have its offsets or its
    operations as other integers, or times to another precision.
    """
    stored = schema_to_arrow(schema.stored)
    times = schema.columns.names[2:] if schema.time == "timestamp" else schema.columns.names[2:3]
    known = {} if chain is None else {field.name: field.type for field in fields_of(with_nulls(chain))}
    given = dict.fromkeys(times, MILLISECONDS) | known
    fields = cast("list[pa.Field[Any]]", list(stored))
    return pa.schema([field.with_type(given.get(field.name, field.type)) for field in fields])


def table_columns(slices: pa.Schema, columns: EventColumns) -> StructType:
    """The columns in which a table holds slices with these.

    The offset and the operation are ``long`` and ``integer`` whatever integers a slice has, since neither is ever
    larger: ``uint64`` and ``uint8`` are what the specification asks for. Raises `UnsupportedType`.
    """
    given = {columns.offset: pa.int64(), columns.operation_type: pa.int32()}
    found = dict(zip(slices.names, cast("list[Any]", slices.types), strict=True))
    found |= {name: kind for name, kind in given.items() if name in found and pa.types.is_integer(found[name])}
    return stored_schema(pa.schema(list(found.items())))


@dataclass(frozen=True)
class SliceTask:
    """Writes events, in their order, as a slice: here, or as the one task of a Spark job.

    It gets batches of the operation, the event time and the data, in the types of the table, whatever they are called.
    The file goes below ``directory`` if that is there, else it is uploaded below ``prefix`` of ``store``. Every event
    has the ``system_time``, which is of whole milliseconds. ``arrow`` are the types in the file, ``stated`` the columns
    as the chain has them, of which some may never be null.
    """

    schema: EventSchema
    arrow: pa.Schema
    stated: pa.Schema | None
    first_offset: int
    system_time: datetime
    options: WriteOptions
    directory: Path | None
    store: ObjectStore | None
    prefix: str

    @classmethod
    def to(
        cls,
        staging: Staging,
        schema: EventSchema,
        stated: pa.Schema | None,
        first_offset: int,
        system_time: datetime,
        options: WriteOptions,
    ) -> "SliceTask":
        """The task that stages its file where the staging is."""
        directory = staging.directory()
        directory.mkdir(parents=True, exist_ok=True)
        inside = staging.store.local_path(staging.key("part")) is not None
        options = replace(options, single_part=True, allow_empty=True)
        store = None if inside else staging.store
        arrow = slice_schema(schema, stated)
        return cls(schema, arrow, stated, first_offset, system_time, options, directory, store, staging.prefix)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> bytes | None:
        """What was written, as `slice_of` reads it; ``None`` where there are no events. Raises `InvalidInput`."""
        if self.directory is not None and self.directory.exists():
            return self._write(batches, self.directory)
        if self.store is None:
            raise StorageError(
                f"The folder {self.directory} is not visible to the Spark executor. Nothing was committed. Use a "
                "folder that every executor shares, or a store on S3."
            )
        with tempfile.TemporaryDirectory(prefix="dagster-versioned-") as spool:
            return self._write(batches, Path(spool), upload_to=self.store)

    def slice_of(self, report: bytes | None) -> Slice | None:
        """The slice of what a call returned. Raises `RowsRefused`."""
        if report is None:
            return None
        if not report:
            raise RowsRefused
        members: dict[str, Any] = pickle.loads(report)
        bag = BagDigest(schema_to_arrow(self.schema.stored))
        bag.merge(*members["lanes"])
        digest = bag.finish()
        physical = Multihash(HashAlgorithm.SHA3_256, members["physical"])
        appended, retracted, corrected, _ = members["operations"]
        interval = OffsetInterval(self.first_offset, self.first_offset + digest.nrow - 1)
        logical = Multihash(HashAlgorithm.ARROW0_SHA3_256, members["logical"])
        part = Part(**members["part"])
        return Slice(
            part=replace(part, key=f"{SLICES}{physical}"),
            contents=RowsSummary(self.schema.stored, digest.nrow, tuple(members["null_counts"]), digest),
            inserted=appended,
            updated=corrected,
            removed=retracted,
            data=DataSlice(logical, physical, interval, part.size),
            latest=members["latest"],
        )

    def _write(
        self, batches: Iterable[pa.RecordBatch], directory: Path, upload_to: ObjectStore | None = None
    ) -> bytes | None:
        writer = PartWriter(self.schema.stored, directory, self.options, make_parents=False, stored_as=self.arrow)
        tally = _RowsSummarizer(self.schema, self.arrow)
        try:
            for batch in batches:
                if batch.num_rows:
                    if cast("Any", batch.column(0)).to_numpy().min() == REFUSED:
                        writer.abort()
                        return b""
                    rows = self._stored(batch, tally.nrow)
                    tally.update(rows, batch)
                    writer.write(rows)
            parts = writer.close()
        except BaseException:
            writer.abort()
            raise
        if not parts:
            return None
        part = parts[0]
        physical = _sha3(part.source)
        if upload_to is not None:
            key = f"{self.prefix}{part.sha256}.parquet"
            if isinstance(part.source, bytes):
                upload_to.put(key, part.source)
            else:
                upload_to.put_file(key, Path(part.source))
            part = replace(part, source=key)
        return tally.report(part, physical)

    def _stored(self, batch: pa.RecordBatch, before: int) -> pa.RecordBatch:
        """The events with their offsets and their system time."""
        start = self.first_offset + before
        offsets = pa.array(np.arange(start, start + batch.num_rows, dtype=np.int64))
        repeat: Any = pa.repeat
        system_times = repeat(pa.scalar(self.system_time, MILLISECONDS), batch.num_rows)
        operations, event_times, *data = cast("list[Any]", batch.columns)
        if pa.types.is_timestamp(event_times.type):
            try:
                event_times = event_times.cast(MILLISECONDS)
            except pa.ArrowInvalid as error:
                raise UnsupportedType(
                    f"The event time {self.schema.columns.event_time!r} has parts of a millisecond, which a history "
                    f"does not keep ({error}). Nothing was written. Cut them off first: date_trunc('millisecond', …)."
                ) from error
        columns: list[Any] = [offsets, operations, system_times, event_times, *data]
        given = dict(zip(self.arrow.names, columns, strict=True))
        known = fields_of(self.stated) if self.stated is not None else []
        if missing := missing_value([given[field.name] for field in known], known):
            raise InvalidInput(
                f"The column {missing!r:.200} has a null, and the chain states it as required, which cannot be taken "
                "back. Nothing was written. Leave out the rows that lack it, or give them a value."
            )
        return pa.RecordBatch.from_arrays(list(map(_cast, columns, self.arrow)), schema=self.arrow)


def _cast(values: Any, field: "pa.Field[Any]") -> Any:
    """The values in the type that the chain gives them."""
    try:
        return values if values.type == field.type else values.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UnsupportedType(
            f"The column {field.name!r} is {field.type} in the chain, which does not hold all of the values ({error}). "
            "Nothing was written. Round or convert them."
        ) from error


class _RowsSummarizer:
    """What is measured of events as they pass."""

    def __init__(self, schema: EventSchema, arrow: pa.Schema) -> None:
        self.nrow = 0
        self._stored = schema.stored
        self._logical = Arrow0(arrow)
        self._bag = BagDigest(schema_to_arrow(schema.stored))
        self._null_counts = np.zeros(len(arrow), np.int64)
        self.operations = np.zeros(len(Operation), np.int64)
        self._latest = datetime.min.replace(tzinfo=UTC)

    def update(self, rows: pa.RecordBatch, events: pa.RecordBatch) -> None:
        self._logical.update(rows)
        self._bag.update(conform(rows, self._stored))
        self._null_counts += [rows.column(i).null_count for i in range(rows.num_columns)]
        self.operations += np.bincount(cast("Any", events.column(0)).to_numpy(), minlength=len(Operation))
        latest: Any = pc.max(cast("Any", rows.column(3))).as_py()
        moment = latest if isinstance(latest, datetime) else datetime.combine(latest, time(), UTC)
        self._latest = max(self._latest, moment.astimezone(UTC))
        self.nrow += rows.num_rows

    def report(self, part: Part, physical: bytes) -> bytes:
        members = {
            "part": {
                name: getattr(part, name)
                for name in ("sha256", "size", "num_records", "ordinal", "statistics", "source")
            },
            "lanes": self._bag.lanes,
            "null_counts": self._null_counts.tolist(),
            "operations": self.operations.tolist(),
            "latest": self._latest,
            "logical": self._logical.digest().digest,
            "physical": physical,
        }
        return pickle.dumps(members)


def _sha3(source: Path | bytes | str) -> bytes:
    digest = hashlib.sha3_256()
    if isinstance(source, bytes):
        digest.update(source)
    else:
        with Path(source).open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return digest.digest()
