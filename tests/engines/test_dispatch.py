"""Which engine takes a frame; asking imports none of the libraries."""

import subprocess
import sys

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.engines.dispatch import engine_for, engine_for_type
from dagster_versioned.errors import UnsupportedFrame

TABLE = pa.table({"a": [1]})
FRAMES = [TABLE, TABLE.to_batches()[0], TABLE.to_reader(), pd.DataFrame(), pl.DataFrame(), pl.LazyFrame()]


class OwnFrame(pd.DataFrame):
    """As GeoPandas does."""


@pytest.mark.parametrize(
    "frame", [*FRAMES, OwnFrame()], ids=lambda frame: f"{type(frame).__module__}.{type(frame).__name__}"
)
def test_frames_of_the_arrow_family_go_to_the_arrow_engine(frame):
    assert isinstance(engine_for(frame), ArrowEngine)
    assert ArrowEngine().accepts(frame)


@pytest.mark.parametrize(
    "annotation", [pa.Table, pa.RecordBatchReader, pd.DataFrame, pl.DataFrame, pl.LazyFrame], ids=str
)
def test_annotations_of_the_arrow_family_go_to_the_arrow_engine(annotation):
    assert isinstance(engine_for_type(annotation), ArrowEngine)


class DataFrame:
    """Has the name, and comes from elsewhere."""


@pytest.mark.parametrize(
    "frame", [None, 1, {"a": [1]}, [TABLE], pd.Series([1]), pl.Series([1]), DataFrame()], ids=range(7)
)
def test_other_values_are_refused_with_the_list_of_what_is_supported(frame):
    with pytest.raises(UnsupportedFrame, match=r"pyarrow\.Table, .*pandas\.DataFrame, .*pyspark\.sql\.DataFrame"):
        engine_for(frame)
    assert not ArrowEngine().accepts(frame)


@pytest.mark.parametrize("annotation", [dict, "pa.Table", None, list[int], pa.RecordBatch, pd.Series], ids=range(6))
def test_other_annotations_are_refused_with_the_list_of_what_is_supported(annotation):
    with pytest.raises(UnsupportedFrame, match=r"pyarrow\.Table, .*polars\.LazyFrame, pyspark\.sql\.DataFrame"):
        engine_for_type(annotation)


def test_asking_imports_no_library():
    program = (
        "import sys, pyarrow as pa\n"
        "from dagster_versioned.engines.dispatch import engine_for, engine_for_type\n"
        "engine_for(pa.schema([]).empty_table()); engine_for_type(pa.Table)\n"
        "try: engine_for({})\n"
        "except ValueError: pass\n"
        "print([name for name in ('pandas', 'polars', 'pyspark', 'dagster') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
