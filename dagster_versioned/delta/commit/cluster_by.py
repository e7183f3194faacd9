"""Choosing the columns by which the rows of a table lie together. Protocol: *Clustered Table*."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq

from dagster_versioned.delta.actions import Add
from dagster_versioned.delta.commit.alter import Column, altered
from dagster_versioned.delta.commit.column_path import Path, found_path, type_at
from dagster_versioned.delta.commit.protocol_upgrade import ASKED
from dagster_versioned.delta.commit.transaction import Transaction
from dagster_versioned.delta.files.file_actions import to_adds
from dagster_versioned.delta.files.statistics import known, null_count, of_column, read_footer, to_json, with_column
from dagster_versioned.delta.log.commits import in_parallel
from dagster_versioned.delta.log.snapshot import Snapshot
from dagster_versioned.delta.schema.clustering import DOMAIN, clustering_columns, clustering_domain, is_clusterable
from dagster_versioned.delta.schema.column_mapping import ColumnMapping, physical_path, stored_leaf
from dagster_versioned.delta.schema.types import StructType
from dagster_versioned.errors import IntegrityError, InvalidInput, ObjectNotFound
from dagster_versioned.storage.object_store import ObjectStore


def cluster_by(read: Snapshot, store: ObjectStore, columns: Sequence[Column]) -> Transaction:
    """The transaction that has rows lie together by columns from now on; by none where ``columns`` is empty.

    Every file of a clustered table has statistics of these columns: what a file lacks of them is read from its footer,
    and committed with the columns. Raises `InvalidInput`, and `IntegrityError` for a file that cannot be read.
    """
    if read.partition_columns:
        raise InvalidInput(
            f"The table is partitioned by {list(read.partition_columns)}, so it cannot be clustered. Nothing was"
            " written."
        )
    paths = [found_path(read.schema, column) for column in columns]
    for path in paths:
        if not is_clusterable(kind := type_at(read.schema, path)):
            raise InvalidInput(
                f"{'.'.join(path)!r} is no single value with bounds, to cluster rows by (it is {kind!s:.50}). Nothing"
                " was written."
            )
    before = clustering_columns(read.domains, read.schema, read.column_mapping) if DOMAIN in read.domains else ()
    parameters = {
        "oldClusteringColumns": ",".join(".".join(path) for path in before),
        "newClusteringColumns": ",".join(".".join(path) for path in paths),
    }
    asked = {f"{ASKED}clustering": "supported"}
    try:
        domain = clustering_domain(paths, read.schema, read.column_mapping)
    except KeyError as error:
        raise InvalidInput(f"The table cannot be clustered by {error}: it is inside of a list or map.") from error
    again = with_statistics(store, read.schema, read.column_mapping, paths, to_adds(read.files))
    also = [domain, *(replace(add, data_change=False) for add in again)]
    return altered(read, "CLUSTER BY", parameters, asked=asked, also=also)


def with_statistics(
    store: ObjectStore, schema: StructType, mapping: ColumnMapping, paths: Sequence[Path], adds: Sequence[Add]
) -> list[Add]:
    """Those of the files that lack statistics of some of these columns, with what their footers say.

    Raises `InvalidInput` where a footer does not say it either, and `IntegrityError` for a file that cannot be read.
    """
    physical = [physical_path(schema, path, mapping) for path in paths]
    lacking = [add for add in adds if any(null_count(known(add.stats), path) is None for path in physical)]
    return in_parallel(partial(_with_statistics, store, schema, mapping, paths), lacking)


def _with_statistics(
    store: ObjectStore, schema: StructType, mapping: ColumnMapping, paths: Sequence[Path], add: Add
) -> Add:
    footer = _footer(store, add)
    statistics = known(add.stats)
    for path in paths:
        physical = physical_path(schema, path, mapping)
        column = stored_leaf(schema, path, footer.schema.to_arrow_schema(), mapping)
        found = of_column(footer, physical, str(type_at(schema, path)), column)
        if null_count(found, physical) is None:
            raise InvalidInput(
                f"The table cannot be clustered by {'.'.join(path)!r}: neither the log nor the footer of {add.path!r}"
                " has statistics of it. Nothing was written. Name it in delta.dataSkippingStatsColumns, have the files"
                " rewritten by optimize with order_by, and try again."
            )
        if null_count(statistics, physical) is None:
            statistics = with_column(statistics, found, physical)
    if add.deletion_vector is not None:  # a footer counts the rows that are deleted, too
        statistics["tightBounds"] = False
    return replace(add, stats=to_json(statistics))


def _footer(store: ObjectStore, add: Add) -> pq.FileMetaData:
    try:
        return read_footer(store, add.key, add.size)
    except (pa.ArrowException, OSError, ObjectNotFound) as error:
        raise IntegrityError(
            f"The footer of {add.path!r}, in which statistics are looked up, cannot be read ({error}). Nothing was"
            " written. Bring the file back from a copy, or restore an older version."
        ) from error
