"""Fixtures of the tests of features as assets."""

from support.house import house
from support.spark import spark

__all__ = ["house", "spark"]
