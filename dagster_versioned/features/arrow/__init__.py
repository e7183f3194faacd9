"""Samples in Arrow tables: their versions, and the rows of an increment."""
