"""Where the columns of a Spark frame come from."""

import pyarrow as pa
import pytest
from pyspark.sql import Window
from pyspark.sql import functions as sf

from dagster_versioned.engines.spark.column_lineage import as_source, column_lineage

pytestmark = pytest.mark.spark


@pytest.fixture
def flights(spark, tmp_path):
    path = str(tmp_path / "flights")
    rows = pa.table({"id": [1, 2], "delay": [1.0, 2.0], "carrier": ["a", "b"]})
    spark.createDataFrame(rows).write.parquet(path)
    return as_source(spark.read.parquet(path), "raw/flights")


@pytest.fixture
def carriers(spark):
    return as_source(spark.createDataFrame(pa.table({"carrier": ["a"], "name": ["Air"]})), "carriers")


def origins(frame):
    return {name: {f"{o.source}.{o.column}" for o in found} for name, found in column_lineage(frame).items()}


ID, DELAY, CARRIER = "raw/flights.id", "raw/flights.delay", "raw/flights.carrier"


def test_columns_pass_through_are_renamed_and_are_computed(flights):
    made = flights.select(
        "id", sf.col("carrier").alias("c"), (sf.col("delay") * sf.col("id")).alias("x"), sf.lit(1).alias("n")
    )
    assert origins(made) == {"id": {ID}, "c": {CARRIER}, "x": {DELAY, ID}}


def test_names_of_computed_columns_are_those_without_the_mark(spark, flights):
    plain = spark.createDataFrame(flights.toArrow())
    for make in (
        lambda frame: frame.groupBy("carrier").agg(sf.sum("delay"), sf.expr("max(id) + 1")),
        lambda frame: frame.select(sf.struct("id", "delay"), sf.upper("carrier"), sf.expr("id + 1")),
        lambda frame: frame.groupBy("carrier").pivot("id", [1, 2]).agg(sf.sum("delay"), sf.max("delay")),
    ):
        assert make(flights).schema == make(plain).schema


def test_joins_aggregations_and_windows(flights, carriers):
    rank = sf.row_number().over(Window.partitionBy("name").orderBy("total"))
    made = (
        flights.join(carriers, "carrier", "left")
        .where("delay > 0")
        .groupBy("carrier", "name")
        .agg(sf.sum("delay").alias("total"), sf.count("*").alias("n"))
        .withColumn("rank", rank)
    )
    assert origins(made) == {
        "carrier": {CARRIER},
        "name": {"carriers.name"},
        "total": {DELAY},
        "rank": {"carriers.name", DELAY},
    }


def test_a_self_join_keeps_its_sides_apart(flights):
    other = flights.select(sf.col("id"), sf.col("delay").alias("before"))
    made = flights.alias("now").join(other, "id").select("now.delay", "before", (sf.col("id") + 1).alias("next"))
    assert origins(made) == {"delay": {DELAY}, "before": {DELAY}, "next": {ID}}


def test_a_semi_join_hands_on_its_left_side_only(flights, carriers):
    kept = flights.join(carriers, "carrier", "left_semi").drop("carrier")
    assert origins(kept.union(kept)) == {"id": {ID}, "delay": {DELAY}}


def test_a_union_is_by_position(flights, carriers):
    made = flights.select("carrier", sf.lit("x").alias("label")).union(carriers.select("name", "carrier"))
    assert origins(made) == {"carrier": {CARRIER, "carriers.name"}, "label": {"carriers.carrier"}}


def test_views_common_table_expressions_and_subqueries(spark, flights):
    flights.createOrReplaceTempView("flights_view")
    made = spark.sql(
        "with c as (select id, delay + 1 as late from flights_view) "
        "select one.id, two.late, (select max(delay) from flights_view) as worst "
        "from c one join c two on one.id = two.id"
    )
    assert origins(made) == {"id": {ID}, "late": {DELAY}, "worst": {DELAY}}


def test_generated_and_nested_columns(flights):
    made = flights.select("id", sf.explode(sf.split("carrier", ",")).alias("letter"), sf.struct("delay").alias("s"))
    assert origins(made.select("letter", "s.delay")) == {"letter": {CARRIER}, "delay": {DELAY}}


def test_what_only_reorders_or_picks_rows_changes_nothing(flights):
    made = flights.dropDuplicates(["carrier"]).orderBy("delay").limit(1).sample(0.5).repartition(2).hint("broadcast")
    assert origins(made) == {"id": {ID}, "delay": {DELAY}, "carrier": {CARRIER}}
    assert origins(made.na.fill(0.0).withColumnRenamed("delay", "d")) == {
        "id": {ID},
        "d": {DELAY},
        "carrier": {CARRIER},
    }


def test_what_is_made_in_python_or_of_nothing_known_has_no_origin(spark, flights):
    assert origins(flights.mapInArrow(lambda batches: batches, flights.schema)) == {}
    assert origins(spark.range(1)) == {}
    assert origins(flights.unpivot("id", ["delay"], "name", "value")).keys() <= {"id"}


def test_a_plan_that_is_not_as_expected_has_no_lineage_and_no_error(flights):
    class Odd:
        def __init__(self, json):
            self._json = json

        def __getattr__(self, name):
            return self if name == "_jdf" else lambda: self._json if name == "toJSON" else self

    for text in ("", "[]", "{}", '[{"class": "a.Project", "num-children": 1}]', '[{"class": "x", "num-children": 0}]'):
        assert column_lineage(Odd(text)) == {}
    assert column_lineage(object()) == {}


@pytest.mark.slow
def test_a_wide_plan_with_many_steps_is_followed_to_its_end(spark):
    wide = as_source(spark.range(1).select(*(sf.col("id").alias(f"c{i}") for i in range(300))), "wide")
    for i in range(20):
        wide = wide.withColumn(f"d{i}", sf.col("c1") + sf.col(f"c{i}"))
    found = origins(wide)
    assert len(found) == 320
    assert found["d7"] == {"wide.c1", "wide.c7"}
