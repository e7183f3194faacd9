"""Fixtures of the checks' tests."""

from support.house import house

__all__ = ["house"]
