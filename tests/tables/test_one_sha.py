"""Frames whose digest, schema and identity were recorded once: every release that is supported gives the same."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import polars as pl
import pytest

from dagster_versioned import Project, TableOptions
from support.frames import ALL_TYPES, ODD_NAMES, ONLY_NULLS, numbered
from support.spark import spark, spark_frame

__all__ = ["spark"]

RECORDED = json.loads((Path(__file__).parents[1] / "identity" / "golden" / "frames.json").read_text())

FRAMES = {"all types": ALL_TYPES, "only nulls": ONLY_NULLS, "odd names": ODD_NAMES, "numbered": numbered(5_000)}


def written(frame, folder, **options):
    """What is recorded of a frame: the digest, and the `metadata_sha` that it had if its bytes were of no account."""
    version = Project.open("P", str(folder)).table("frames").write(frame, options=TableOptions(**options)).version
    facts, identity = version.facts, version.identity
    return {"digest": facts.digest, "metadata_sha": replace(identity, data_sha="0" * 64).metadata_sha()}


@pytest.mark.parametrize("row_order", ["ignored", "significant"])
@pytest.mark.parametrize("name", FRAMES)
def test_from_arrow(tmp_path, name, row_order):
    assert written(FRAMES[name], tmp_path, row_order=row_order) == RECORDED[name][row_order]


@pytest.mark.parametrize(
    "frame_of",
    [
        pytest.param(lambda rows: rows.to_pandas(types_mapper=pd.ArrowDtype), id="pandas"),
        pytest.param(pl.from_arrow, id="polars"),
    ],
)
def test_from_pandas_and_polars(tmp_path, frame_of):
    assert written(frame_of(FRAMES["numbered"]), tmp_path) == RECORDED["numbered"]["significant"]


@pytest.mark.spark
@pytest.mark.parametrize("name", FRAMES)
def test_from_spark(spark, tmp_path, name):
    frame = spark_frame(spark, FRAMES[name]).repartition(3)
    assert written(frame, tmp_path) == RECORDED[name]["ignored"]
