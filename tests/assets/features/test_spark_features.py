"""Features whose functions take and return Spark frames."""

import dagster as dg
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from dagster_versioned import (
    Feature,
    FeatureDep,
    Field,
    FieldDep,
    Increment,
    Lineage,
    versioned_feature,
    versioned_multi_feature,
)
from dagster_versioned.engines.samples import DATA_VERSION_BY_FIELD
from support.house import changes

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

FIELDS = ("sound", "image")


def test_features_are_computed_by_spark_alone(house, spark):
    rows = [(n, f"s{n}", f"i{n % 2}") for n in range(6)]
    called = {"words": [], "images": []}

    @versioned_feature(id_columns=["id"], fields=[Field("sound", columns=["sound"]), Field("image", columns=["image"])])
    def video() -> DataFrame:
        return spark.createDataFrame(rows, "id long, sound string, image string")

    @versioned_feature(
        id_columns=["id"], fields=[Field("text", deps=[FieldDep(video, ["sound"])])], deps=[video], chunk_size=4
    )
    def words(increment: Increment[DataFrame]) -> DataFrame:
        found = increment.changed
        called["words"].append(sorted(row.id for row in found.select("id").collect()))
        text = sf.upper("sound")
        return found.select("id", text.alias("text"), sf.struct(text.alias("text")).alias(DATA_VERSION_BY_FIELD))

    @versioned_feature(
        id_columns=["image"],
        fields=["count"],
        deps=[FeatureDep(video, lineage=Lineage.aggregation(["image"])), FeatureDep(Feature("more", ["image"], ["n"]))],
    )
    def images(increment: Increment[DataFrame]) -> DataFrame:
        called["images"].append(sorted(row.image for row in increment.changed.select("image").distinct().collect()))
        return increment.changed.groupBy("image").agg(sf.count("id").alias("count"), sf.max("n").alias("n"))

    @dg.asset
    def more():
        return pa.table({"image": ["i0", "i1", "i2"], "n": [1, 2, 3]})

    house.run(more, video, words, images)
    assert sorted(n for ids in called["words"] for n in ids) == list(range(6))
    assert all(len(ids) <= 4 for ids in called["words"])
    assert called.pop("images") == [["i0", "i1"]]
    called.update(words=[], images=[])
    rows[0] = (0, "S0", "i0")
    del rows[1]
    result = house.run(more, video, words, images)
    assert changes(result) == {"more": "none", "video": "full", "words": "full", "images": "full"}
    assert called == {"words": [[0]], "images": [["i0", "i1"]]}
    found = house.project.table("words").read().to_pylist()
    assert {row["id"]: row["text"] for row in found} == {n: f"S{n}" for n in (0, 2, 3, 4, 5)}
    found = house.project.table("images").read().to_pylist()
    assert {row["image"]: (row["count"], row["n"]) for row in found} == {"i0": (3, 1), "i1": (2, 2)}
    called.update(words=[], images=[])
    assert set(changes(house.run(more, video, words, images)).values()) == {"none"}
    assert called == {"words": [], "images": []}
    assert len(spark.sparkContext._jsc.getPersistentRDDs()) == 0


def test_several_features_are_computed_by_one_function_of_spark(house, spark):
    rows = [(n, f"s{n}", f"i{n}") for n in range(4)]
    calls = []

    @versioned_feature(id_columns=["id"], fields=[Field("sound", columns=["sound"]), Field("image", columns=["image"])])
    def video() -> DataFrame:
        return spark.createDataFrame(rows, "id long, sound string, image string")

    features = [Feature(f"of_{one}", ["id"], [Field("it", deps=[FieldDep(video, [one])])], [video]) for one in FIELDS]

    @versioned_multi_feature(features=features)
    def split(increments: dict[str, Increment[DataFrame]]) -> dict[str, DataFrame]:
        found = {key: one.changed for key, one in increments.items()}
        calls.append({key: sorted(row.id for row in one.select("id").collect()) for key, one in found.items()})
        return {key: rows.select("id", sf.upper(key.removeprefix("of_")).alias("it")) for key, rows in found.items()}

    house.run(video, split)
    rows[0] = (0, "S0", "i0")
    house.run(video, split)
    assert calls == [{f"of_{one}": [0, 1, 2, 3] for one in FIELDS}, {"of_sound": [0], "of_image": []}]
    for one in FIELDS:
        found = {row["id"]: row["it"] for row in house.project.table(f"of_{one}").read().to_pylist()}
        assert found == {n: f"{one[0].upper()}{n}" for n in range(4)}
    assert len(spark.sparkContext._jsc.getPersistentRDDs()) == 0
