"""Samples in Spark frames: their versions, and the rows of an increment."""
