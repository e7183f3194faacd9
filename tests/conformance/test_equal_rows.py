"""Equal rows are one version, however they came; and a pipeline gives the same versions in any empty store."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_versioned import Project
from dagster_versioned.tables.options import TableOptions
from support.frames import ALL_TYPES, numbered
from support.spark import spark_frame
from support.stores import contents

pytestmark = [pytest.mark.conformance, pytest.mark.spark]

ROWS = 4_000
SMALL = {"row_group_bytes": 20_000, "target_part_bytes": 1}


@contextmanager
def configured(spark: Any, settings: dict[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


ADAPTIVE = "spark.sql.adaptive.enabled"
SHUFFLE = "spark.sql.shuffle.partitions"

ARRANGED: dict[str, tuple[dict[str, str], Callable[[Any], Any]]] = {
    "repartitioned": ({}, lambda frame: frame.repartition(5)),
    "coalesced": ({}, lambda frame: frame.coalesce(1)),
    "by a column": ({ADAPTIVE: "false"}, lambda frame: frame.repartition(3, frame.columns[0])),
    "adaptive": ({ADAPTIVE: "true"}, lambda frame: frame.repartition(frame.columns[0])),
    "distributed otherwise": ({SHUFFLE: "7", ADAPTIVE: "false"}, lambda frame: frame.repartition(frame.columns[0])),
    "descending": ({}, lambda frame: frame.sort(frame.columns[0], ascending=False)),
    "empty partitions": ({}, lambda frame: frame.union(frame.limit(0)).repartition(16)),
}


@pytest.mark.parametrize(
    "options",
    [TableOptions(), TableOptions(**SMALL)],
    ids=["one part", "many parts"],
)
@pytest.mark.slow
def test_equal_spark_rows_arranged_another_way_are_none(spark, tmp_path: Path, options: TableOptions) -> None:
    frame = spark_frame(spark, numbered(ROWS))
    table = Project.open("P", str(tmp_path)).table("t")
    first = table.write(frame, options=options)
    assert (first.version.facts.part_count > 1) == (options != TableOptions())
    before = contents(table.project.store)
    for name, (settings, arrange) in ARRANGED.items():
        with configured(spark, settings):
            again = table.write(arrange(frame), options=options)
        assert (again.change, again.bytes_uploaded) == ("none", 0), name
    other = options.model_copy(update={"compression": "snappy", "row_group_bytes": 5_000})
    assert table.write(frame, options=other).change == "none"
    assert contents(table.project.store) == before
    assert table.write(frame.limit(ROWS - 1), options=options).change == "full"


@pytest.mark.slow
def test_equal_rows_of_another_writer_are_none(spark, tmp_path: Path) -> None:
    """Of Arrow after Spark and Spark after Arrow, in files of plain Spark and of another Parquet version."""
    bag = TableOptions(row_order="ignored")
    rows = pa.concat_tables([ALL_TYPES] * 3)
    table = Project.open("P", str(tmp_path)).table("t")
    frame = spark_frame(spark, rows)
    assert table.write(frame).change == "full"
    assert table.write(rows, options=bag).change == "none"
    assert table.write(rows.take(list(reversed(range(rows.num_rows)))), options=bag).change == "none"
    frame.repartition(2).write.option("compression", "gzip").parquet(str(tmp_path / "spark"))
    assert table.write(spark.read.parquet(str(tmp_path / "spark"))).change == "none"
    pq.write_table(rows, tmp_path / "old.parquet", version="1.0", compression="brotli", use_dictionary=False)
    assert table.write(pq.read_table(tmp_path / "old.parquet"), options=bag).change == "none"
    ordered = Project.open("P", str(tmp_path)).table("ordered")
    assert ordered.write(rows).change == "full"
    assert ordered.write(frame.coalesce(1), options=TableOptions(row_order="significant")).change == "none"


def test_a_pipeline_gives_the_same_versions_in_two_empty_stores(spark, tmp_path: Path) -> None:
    def run(project: Project, settings: dict[str, str], partitions: int) -> dict[str, str]:
        source, shuffled = project.table("source"), project.table("shuffled")
        ranked, rounded, pandas = project.table("ranked"), project.table("rounded"), project.table("pandas")
        with configured(spark, settings):
            flights = spark_frame(spark, numbered(ROWS)).repartition(partitions)
            source.write(numbered(ROWS), options=TableOptions(**SMALL))
            parents = source.upstream()
            counted = flights.groupBy((flights.n % 97).alias("k")).agg({"amount": "sum", "n": "count"})
            shuffled.write(counted, parents=parents)
            ranked.write(flights, parents=parents, options=TableOptions(sort_rows=("n",), **SMALL))
            ties = flights.selectExpr("n % 10 as k", "text", "amount")
            rounded.write(ties, parents=parents, options=TableOptions(sort_rows=("k",), sort_columns=True, **SMALL))
            pandas.write(shuffled.read().to_pandas().sort_values("k"), parents=shuffled.upstream())
        assert all(table.version().facts.part_count > 1 for table in (source, ranked, rounded))
        assert shuffled.version().facts.part_count == 1
        return {name: project.table(name).version().metadata_sha for name in project.tables()}

    one = run(Project.open("P", str(tmp_path / "one")), {ADAPTIVE: "true", SHUFFLE: "3"}, 2)
    two = run(Project.open("P", str(tmp_path / "two")), {ADAPTIVE: "false", SHUFFLE: "8"}, 7)
    assert one == two
    names = [sorted(path.name for path in (tmp_path / place).rglob("*.parquet")) for place in ("one", "two")]
    assert names[0] == names[1]
