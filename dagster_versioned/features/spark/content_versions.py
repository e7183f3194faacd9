"""Content versions and field digests of Spark frames: the texts that `engines.content_versions` gives for Arrow."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyspark.sql import functions as sf
from pyspark.sql.types import StringType, StructField, StructType

from dagster_versioned.delta.schema.types import schema_to_arrow
from dagster_versioned.engines.conform import conform_all
from dagster_versioned.engines.content_versions import digests_of, require_content
from dagster_versioned.engines.samples import DATA_VERSION_BY_FIELD, require_columns
from dagster_versioned.engines.spark.assignment import quoted
from dagster_versioned.engines.spark.by_value import self_contained
from dagster_versioned.engines.spark.executors import run_by_executors
from dagster_versioned.engines.spark.releases import has_arrow_functions, positional, require
from dagster_versioned.engines.spark.types import stored_schema
from dagster_versioned.identity.digest import BagDigest, RowsDigest, row_shas

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def content_version(frame: "DataFrame", columns: Sequence[str]) -> "Column":
    """The content version of each row of the frame, by these columns in this order, as a column of it.

    Nothing but these columns goes to Python, and nothing is computed yet. Raises `InvalidInput` for columns that are
    not there, and `UnsupportedType` for those that cannot be stored.
    """
    require((4, 1), "A content version as a column", "Use `with_content_versions`.")
    require_content("The frame", frame.columns, columns)
    schema = stored_schema(frame.select(*map(quoted, columns)).schema)

    def versions(rows: Any) -> Any:
        batch = pa.RecordBatch.from_arrays(rows.flatten(), list(schema.names))
        return pa.concat_arrays([pa.array([], pa.string()), *map(row_shas, conform_all([batch], schema))])

    as_udf = cast("Any", sf.arrow_udf)  # whose stubs know no function of arrays
    return as_udf(self_contained(versions), "string")(sf.struct(*map(quoted, columns)))


def with_content_versions(frame: "DataFrame", columns: Mapping[str, Sequence[str]], name: str) -> "DataFrame":
    """The frame and one more column, a struct with the `content_version` of each group of ``columns``."""
    if has_arrow_functions():
        groups = (content_version(frame, group).alias(each) for each, group in columns.items())
        return frame.withColumn(name, sf.struct(*groups))
    for group in columns.values():
        require_content("The frame", frame.columns, group)
    places = [[frame.columns.index(name) for name in group] for group in columns.values()]
    schemas = [stored_schema(frame.select(*map(quoted, group)).schema) for group in columns.values()]
    members = list(columns)

    # All columns go to Python and back: a function of some of them has pandas' types, which lose some values.
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            texts: list[Any] = []
            for at, schema in zip(places, schemas, strict=True):
                part = pa.RecordBatch.from_arrays([batch.column(i) for i in at], list(schema.names))
                hashed = map(row_shas, conform_all([part], schema))
                texts.append(pa.concat_arrays([pa.array([], pa.string()), *hashed]))
            packed = pa.StructArray.from_arrays(texts, members)
            yield pa.RecordBatch.from_arrays([*batch.columns, packed], [*batch.schema.names, name])

    added = StructField(name, StructType([StructField(each, StringType()) for each in members]))
    by_place = positional(frame)
    found = by_place.mapInArrow(self_contained(run), StructType([*by_place.schema.fields, added]))
    return found.toDF(*frame.columns, name)


def field_digests(frame: "DataFrame", ids: Sequence[str], members: Sequence[str]) -> dict[str, str]:
    """As `engines.content_versions.field_digests`; one job, over these columns alone."""
    require_columns("The frame", frame.columns, (*ids, DATA_VERSION_BY_FIELD))
    kind: Any = frame.schema[DATA_VERSION_BY_FIELD].dataType
    known: list[str] = kind.fieldNames() if isinstance(kind, StructType) else []
    require_columns(f"The column {DATA_VERSION_BY_FIELD!r} of the frame", known, members)
    versions = [quoted(DATA_VERSION_BY_FIELD).getField(member).cast("string") for member in members]
    narrow = positional(frame.select(*map(quoted, ids), *versions))
    schema = stored_schema(narrow.schema)
    arrow, first = schema_to_arrow(schema), len(ids)

    # A plain function, because Spark asks for its argument count and wants no other callable.
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        digests = [digest.finish().text for digest in digests_of(conform_all(batches, schema), arrow, first)]
        yield pa.RecordBatch.from_pydict({"member": pa.array(range(len(digests)), pa.int32()), "digest": digests})

    sums = [BagDigest(arrow) for _ in members]
    with run_by_executors(frame.sparkSession):
        found: list[Any] = narrow.mapInArrow(self_contained(run), "member int, digest string").collect()
    for row in found:
        sums[row["member"]].merge(*RowsDigest.parse(row["digest"]).lanes)
    return {member: total.finish().text for member, total in zip(members, sums, strict=True)}
