"""The change data feed: whatever was done to a table, the changes of every range lead from its begin to its end."""

from collections import Counter
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from dagster_versioned.delta.table import Table
from dagster_versioned.delta_tables.change_feed import read_changes
from dagster_versioned.delta_tables.dml import WhenMatched, WhenNotMatched, WhenNotMatchedBySource
from dagster_versioned.delta_tables.read import read_delta
from dagster_versioned.delta_tables.write import delete_from, merge_delta, optimize_delta, update_delta, write_delta
from dagster_versioned.errors import IntegrityError, InvalidInput

FEED = {"delta.enableChangeDataFeed": "true"}
VECTORS = {"delta.enableDeletionVectors": "true"}
KINDS = {
    "plain": {},
    "vectors": VECTORS,
    "by name": {"delta.columnMapping.mode": "name", **VECTORS},
    "by id": {"delta.columnMapping.mode": "id"},
}


def rows(start: int, count: int) -> pa.Table:
    numbers = range(start, start + count)
    return pa.table(
        {
            "n": list(numbers),
            "p": [f"p {n % 2}" if n % 5 else None for n in numbers],
            "o": [{"A": n, "b": [str(n)]} for n in numbers],
        }
    )


def changed_table(root: Path, kind: str, partitioned: bool = True) -> str:
    uri = str(root / "t")
    by = ["p"] if partitioned else []
    write_delta(uri, rows(0, 20), partition_by=by, properties=FEED | KINDS[kind])
    write_delta(uri, rows(20, 5))
    delete_from(uri, "n % 3 = 0")
    update_delta(uri, {"p": "'moved'"}, "n > 20")
    optimize_delta(uri)
    delete_from(uri, "p = 'p 1'")
    clauses = (
        WhenMatched("delete", "target.n = 2"),
        WhenMatched("all"),
        WhenNotMatched("all"),
        WhenNotMatchedBySource("delete", "target.n = 8"),
    )
    merge_delta(uri, rows(0, 5), "target.n = source.n", clauses)
    write_delta(uri, rows(50, 3), mode="overwrite")
    return uri


def bag(table: pa.Table, *, by_type: bool = True) -> Counter[str]:
    names = [name for name in table.column_names if name != "_commit_timestamp" and (by_type or name[0] != "_")]
    return Counter(map(repr, table.select(names).to_pylist()))


def applied(before: Counter[str], changes: pa.Table) -> Counter[str]:
    result = Counter(before)
    for change, sign in (("insert", 1), ("update_postimage", 1), ("delete", -1), ("update_preimage", -1)):
        some = changes.filter(pa.compute.equal(changes["_change_type"], change))
        for row, count in bag(some, by_type=False).items():
            result[row] += sign * count
    assert all(count >= 0 for count in result.values())
    return +result


@pytest.mark.every(2)
@pytest.mark.parametrize("partitioned", [True, False], ids=["partitioned", "whole"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_changes_of_every_range_lead_from_its_begin_to_its_end(
    tmp_path: Path, kind: str, partitioned: bool
) -> None:
    uri = changed_table(tmp_path, kind, partitioned)
    newest = deltalake.DeltaTable(uri).version()
    contents = [bag(read_delta(uri, version)) for version in range(newest + 1)]
    assert newest == 7
    for first in range(newest + 1):
        before = contents[first - 1] if first else Counter[str]()
        for last in range(first, newest + 1):
            changes = read_changes(uri, first, last)
            assert applied(before, changes) == contents[last], (first, last)
            versions = changes["_commit_version"].to_pylist()
            assert versions == sorted(versions)
            assert set(versions) <= set(range(first, last + 1))
    assert read_changes(uri, 4, 4).num_rows == 0
    assert set(read_changes(uri, 3, 3)["_change_type"].to_pylist()) == {"update_preimage", "update_postimage"}


def test_the_peer_has_the_same_changes(tmp_path: Path) -> None:
    uri = changed_table(tmp_path, "plain")  # of a removed file with a deletion vector, the peer gives wrong rows
    table = deltalake.DeltaTable(uri)
    ours = read_changes(uri, 0)
    theirs = pa.table(table.load_cdf(starting_version=0, ending_version=table.version()).read_all())
    assert bag(ours) == bag(theirs.select(ours.column_names).cast(ours.schema))


def test_columns_and_times(tmp_path: Path) -> None:
    uri = changed_table(tmp_path, "plain")
    everything = read_changes(uri, 0)
    some = read_changes(uri, 0, columns=["p", "_change_type"])
    assert some.column_names == ["p", "_change_type", "_commit_version", "_commit_timestamp"]
    assert some.sort_by("_commit_version").num_rows == everything.num_rows
    times = dict(zip(*(everything[name].to_pylist() for name in ("_commit_version", "_commit_timestamp")), strict=True))
    assert read_changes(uri, times[5], times[6]).equals(read_changes(uri, 5, 6))
    assert read_changes(uri, times[5].isoformat(), times[6].isoformat()).equals(read_changes(uri, 5, 6))
    with pytest.raises(InvalidInput, match="no time"):
        read_changes(uri, "yesterday")
    with pytest.raises(InvalidInput, match="'m'"):
        read_changes(uri, 0, columns=["m"])


def test_changes_across_the_return_of_a_dropped_column_are_refused(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    write_delta(uri, rows(0, 5), properties=FEED | KINDS["by id"])
    table = Table(uri)
    table.drop_column("o")
    write_delta(uri, rows(5, 2).drop_columns(["o"]))
    table.restore(0)
    for first in (2, 3):
        with pytest.raises(InvalidInput, match="Version 3 brought the dropped column 'o' back"):
            read_changes(uri, first)
    write_delta(uri, rows(7, 2))
    assert read_changes(uri, 2, 2).num_rows == read_changes(uri, 4).num_rows == 2


def test_changes_across_a_new_column_with_the_name_of_a_dropped_one_are_shown(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    write_delta(uri, rows(0, 5), properties=FEED | KINDS["by id"])
    table = Table(uri)
    table.drop_column("o")
    table.add_columns({"o": "long"})
    write_delta(uri, rows(5, 2).set_column(2, "o", pa.array([1, 2])))
    assert read_changes(uri, 1)["o"].to_pylist() == [1, 2]


def test_changes_whose_files_are_gone_are_missed(tmp_path: Path) -> None:
    uri = changed_table(tmp_path, "plain")
    for file in (tmp_path / "t" / "_change_data").rglob("*.parquet"):
        file.unlink()
    assert read_changes(uri, 0, 1).num_rows == 25
    with pytest.raises(IntegrityError, match="_change_data"):
        read_changes(uri, 0)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["vectors", "by id"])
def test_spark_has_the_same_changes(spark: Any, tmp_path: Path, kind: str) -> None:
    from dagster_versioned.delta_tables import spark as spark_engine

    uri = changed_table(tmp_path, kind)
    for first, last in [(0, None), (3, 3), (4, 4)]:
        ours = read_changes(uri, first, last)
        frame = spark_engine.read_changes(spark, uri, first, last)
        assert frame.columns == ours.column_names
        assert Counter(map(repr, frame.toArrow().to_pylist())) == Counter(map(repr, ours.to_pylist()))
    frame = spark_engine.read_changes(spark, uri, 0, columns=["n"]).where("_change_type = 'insert'")
    assert frame.columns == ["n", "_change_type", "_commit_version", "_commit_timestamp"]
    assert frame.count() == read_changes(uri, 0)["_change_type"].to_pylist().count("insert")
