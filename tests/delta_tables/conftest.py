"""Fixtures for tests of Delta tables."""

import pytest

from support.spark import spark

__all__ = ["spark"]


@pytest.fixture
def table(tmp_path):
    return tmp_path / "table"


@pytest.fixture
def uri(table):
    return str(table)


@pytest.fixture(scope="module")
def session(spark):
    """One that knows the format."""
    from dagster_versioned.delta_tables.spark import register

    register(spark)
    return spark
