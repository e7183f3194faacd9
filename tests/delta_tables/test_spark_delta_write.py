"""Spark changes a Delta table as the Arrow engine does: the same rows, the same change data, the same counts."""

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from dagster_versioned.delta.commit.write_rules import WriteRules
from dagster_versioned.delta.log.snapshot import load_snapshot
from dagster_versioned.delta_tables.change_feed import read_changes
from dagster_versioned.delta_tables.dml import Target, WhenMatched, WhenNotMatched
from dagster_versioned.delta_tables.read import read_delta
from dagster_versioned.delta_tables.spark.row_locations import ROW_ID, rows_with_locations
from dagster_versioned.delta_tables.write import delete_from, merge_delta, optimize_delta, update_delta, write_delta
from dagster_versioned.storage import LocalStore

pytestmark = pytest.mark.spark

VECTORS = {"delta.enableDeletionVectors": "true"}
FEED = {"delta.enableChangeDataFeed": "true"}
TRACKED = {"delta.enableRowTracking": "true"}
NAMED = {"delta.columnMapping.mode": "name"}
BY_ID = {"delta.columnMapping.mode": "id"}


def rows(first, last):
    """Some rows of every kind of column."""
    ids = list(range(first, last))
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "p": pa.array([None if i % 5 == 4 else f"p{i % 3}" for i in ids]),
            "Amount": pa.array([None if i % 4 == 3 else i * 1.5 for i in ids]),
            "s": pa.array(
                [None if i % 7 == 6 else {"x": i, "y": [i, None]} for i in ids],
                pa.struct([("x", pa.int32()), ("y", pa.list_(pa.int64()))]),
            ),
            "day": pa.array(ids, pa.int32()).cast(pa.date32()),
            "a.b": pa.array([str(i).encode() for i in ids]),
        }
    )


class Both:
    """One table written by Arrow and one by Spark, which every command is applied to."""

    def __init__(self, spark, folder):
        self.spark = spark
        self.arrow, self.ours = str(folder / "arrow"), str(folder / "spark")

    def frame(self, table):
        return self.spark.createDataFrame(table).repartition(2)

    def write(self, table, mode="append", **options):
        theirs = write_delta(self.arrow, table, mode, **options)
        return self.same(theirs, write_delta(self.ours, self.frame(table), mode, **options))

    def delete(self, where=None):
        return self.same(delete_from(self.arrow, where), delete_from(self.ours, where, session=self.spark))

    def update(self, values, where=None):
        theirs = update_delta(self.arrow, values, where)
        return self.same(theirs, update_delta(self.ours, values, where, session=self.spark))

    def merge(self, source, on, *clauses, **options):
        theirs = merge_delta(self.arrow, source, on, clauses, **options)
        ours = merge_delta(self.ours, self.frame(source), on, clauses, **options)
        return self.same(theirs, ours)

    def optimize(self, where=None, **options):
        optimize_delta(self.arrow, where, **options)
        return self.same(None, optimize_delta(self.ours, where, **options, session=self.spark))

    def same(self, theirs, ours):
        """Both tables have the same rows, and the commands said the same of them."""
        if theirs is not None:
            assert ours.version == theirs.version
            # How many rows are copied depends on how they lie in files.
            counts = {name for name in theirs.metrics if name.endswith(("Rows", "Updated", "Deleted", "Inserted"))}
            counts -= {"numCopiedRows", "numTargetDeletionVectorsUpdated", "numDeletionVectorsUpdated"}
            if "numTargetRowsCopied" in theirs.metrics:
                counts -= {"numOutputRows"}
            assert {name: ours.metrics[name] for name in counts} == {name: theirs.metrics[name] for name in counts}
        assert content(self.ours) == content(self.arrow)
        return ours


def content(uri):
    return in_order(read_delta(uri).to_pylist())


def in_order(found):
    return sorted(found, key=lambda row: repr(sorted(row.items(), key=str)))


def changes(uri):
    """What each commit changed, whether change data files say it or whole files."""
    return in_order(read_changes(uri, 0).drop_columns(["_commit_timestamp"]).to_pylist())


def row_ids(spark, uri):
    """Row ids by the column ``id``."""
    store = LocalStore(uri)
    snapshot = load_snapshot(store)
    target = Target(store, snapshot, WriteRules.of_snapshot(snapshot), "w")
    located = rows_with_locations(spark, target, snapshot.adds(), ids=True)
    return dict(located.select("id", ROW_ID).collect())


CONFIGURATIONS = {
    "plain": ({}, None),
    "partitioned, copying, with a feed": (FEED, ["p"]),
    "vectors, feed, row tracking": ({**VECTORS, **FEED, **TRACKED}, None),
    "mapped, partitioned, row tracking without vectors": ({**NAMED, **TRACKED, **FEED}, ["p"]),
    "mapped by id, vectors": ({**BY_ID, **VECTORS}, None),
}


FAST = ("vectors, feed, row tracking",)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in CONFIGURATIONS]
)
def test_every_command_leaves_the_rows_and_the_change_data_that_arrow_leaves(spark, tmp_path, name):
    properties, partition_by = CONFIGURATIONS[name]
    both = Both(spark, tmp_path)
    both.write(rows(0, 40), properties=properties, partition_by=partition_by)
    tracked = row_ids(spark, both.ours) if TRACKED.items() <= properties.items() else None
    both.write(rows(40, 50))
    both.delete("id % 10 = 3 or p is null and Amount > 50")
    both.update({"amount": "Amount + 1", "s.x": "7", "P": "concat(p, '!')"}, "id between 8 and 15")
    source = pa.concat_tables([rows(5, 12), rows(60, 63)]).drop_columns(["day"])
    both.merge(
        source,
        "target.id = source.id",
        WhenMatched("delete", "source.id = 6"),
        WhenMatched({"Amount": "source.Amount * 10", "s.y": "DEFAULT"}, "target.id < 10"),
        WhenNotMatched("all", "id <> 61"),
    )
    both.write(rows(100, 103).drop_columns(["day"]), "overwrite", where="id >= 40")
    both.optimize()
    if FEED.items() <= properties.items():
        assert changes(both.ours) == changes(both.arrow)
    if tracked:
        now = row_ids(spark, both.ours)
        kept = {number: row_id for number, row_id in tracked.items() if number in now and number < 40}
        assert kept == {number: now[number] for number in kept}
        assert len(kept) > 20
    if not properties:
        assert in_order(DeltaTable(both.ours).to_pyarrow_table().to_pylist()) == content(both.ours)
