"""Histories of events over Arrow, by DuckDB."""
