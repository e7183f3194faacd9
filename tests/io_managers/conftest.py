"""Fixtures of the IO manager's tests."""

from support.house import house
from support.spark import spark

__all__ = ["house", "spark"]
