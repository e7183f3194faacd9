"""Fixtures of the features' tests."""

import pytest

from support.feature_tables import Tables
from support.spark import spark

__all__ = ["spark"]

SPARK = (pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900))


@pytest.fixture
def tables(tmp_path):
    return Tables(tmp_path)


@pytest.fixture(params=["arrow", pytest.param("spark", marks=SPARK)])
def either(request, tmp_path):
    """Tables that Arrow computes, and tables that Spark does."""
    return Tables(tmp_path, request.getfixturevalue("spark") if request.param == "spark" else None)
