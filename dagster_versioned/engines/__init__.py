"""Frames into parts and back: Arrow (pandas and Polars through it) and Spark."""
