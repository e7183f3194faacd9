"""Functions on any Delta table are found where each engine had its own, and do what they did."""

import pyarrow as pa
import pytest

from dagster_versioned.delta_tables import arrow as over_arrow
from dagster_versioned.delta_tables import spark as over_spark
from dagster_versioned.delta_tables import write

ROWS = pa.table({"n": [1, 2, 3]})


def test_those_of_arrow(tmp_path):
    place = str(tmp_path)
    with pytest.warns(
        DeprecationWarning, match=r"arrow\.write_delta is dagster_versioned\.delta_tables\.write\.write_delta"
    ):
        over_arrow.write_delta(place, ROWS)
    with pytest.warns(DeprecationWarning, match="Import it from there"):
        over_arrow.delete_from(place, "n = 2")
    with pytest.warns(DeprecationWarning, match=r"delta_tables\.read\.read_delta now"):
        left = over_arrow.read_delta(place)
    assert left["n"].to_pylist() == [1, 3]
    names: dict[str, object] = {}
    with pytest.warns(DeprecationWarning, match="Import it from there"):
        exec("from dagster_versioned.delta_tables.arrow import *", names)
    assert names["merge_delta"] is write.merge_delta
    assert not hasattr(over_arrow, "erase")


@pytest.mark.spark
def test_those_of_spark_take_the_session_first(spark, tmp_path):
    place = str(tmp_path)
    with pytest.warns(DeprecationWarning, match=r"delta_tables\.spark\.write_delta is"):
        over_spark.write_delta(spark, place, spark.createDataFrame(ROWS.to_pandas()), "append")
    with pytest.warns(DeprecationWarning, match="Import it from there"):
        over_spark.update_delta(spark, place, {"n": "n + 10"}, "n > 1")
    assert sorted(row["n"] for row in over_spark.read_delta(spark, place).collect()) == [1, 12, 13]
