"""Fixtures of the features' tests."""

from support.spark import spark

__all__ = ["spark"]
