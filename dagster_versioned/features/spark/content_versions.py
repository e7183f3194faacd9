"""Content versions and field digests of Spark frames: the texts that `features.content_versions` gives for Arrow."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from dagster_versioned.delta.schema.types import schema_to_arrow
from dagster_versioned.engines.conform import conform_all
from dagster_versioned.engines.samples import DATA_VERSION_BY_FIELD, require_columns
from dagster_versioned.engines.spark.by_value import pickled_by_value, self_contained
from dagster_versioned.engines.spark.types import stored_schema
from dagster_versioned.features.content_versions import digests_of, require_content, versions_of
from dagster_versioned.identity.digest import BagDigest, RowsDigest

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def content_version(frame: "DataFrame", columns: Sequence[str]) -> "Column":
    """The content version of each row of the frame, by these columns in this order, as a column of it.

    Nothing but these columns goes to Python, and nothing is computed yet. Raises `InvalidInput` for columns that are
    not there, and `UnsupportedType` for those that cannot be stored.
    """
    require_content("The frame", frame.columns, columns)
    schema = stored_schema(frame.select(*map(_column, columns)).schema)

    def versions(rows: Any) -> Any:
        batch = pa.RecordBatch.from_arrays(rows.flatten(), list(schema.names))
        return pa.concat_arrays([pa.array([], pa.string()), *map(versions_of, conform_all([batch], schema))])

    as_udf = cast("Any", sf.arrow_udf)  # whose stubs know no function of arrays
    return as_udf(self_contained(versions), "string")(sf.struct(*map(_column, columns)))


def field_digests(frame: "DataFrame", ids: Sequence[str], members: Sequence[str]) -> dict[str, str]:
    """As `features.content_versions.field_digests`; one job, over these columns alone."""
    require_columns("The frame", frame.columns, (*ids, DATA_VERSION_BY_FIELD))
    kind: Any = frame.schema[DATA_VERSION_BY_FIELD].dataType
    known: list[str] = kind.fieldNames() if isinstance(kind, StructType) else []
    require_columns(f"The column {DATA_VERSION_BY_FIELD!r} of the frame", known, members)
    versions = [_column(DATA_VERSION_BY_FIELD).getField(member).cast("string") for member in members]
    narrow = frame.select(*map(_column, ids), *versions)
    narrow = narrow.toDF(*(f"_c{i}" for i in range(len(narrow.columns))))
    schema = stored_schema(narrow.schema)
    arrow, first = schema_to_arrow(schema), len(ids)

    # A plain function, because Spark asks for its argument count and wants no other callable.
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        digests = [digest.finish().text for digest in digests_of(conform_all(batches, schema), arrow, first)]
        yield pa.RecordBatch.from_pydict({"member": pa.array(range(len(digests)), pa.int32()), "digest": digests})

    sums = [BagDigest(arrow) for _ in members]
    with pickled_by_value():
        found: list[Any] = narrow.mapInArrow(run, "member int, digest string").collect()
    for row in found:
        sums[row["member"]].merge(*RowsDigest.parse(row["digest"]).lanes)
    return {member: total.finish().text for member, total in zip(members, sums, strict=True)}


def _column(name: str) -> "Column":
    return sf.col(f"`{name.replace('`', '``')}`")
