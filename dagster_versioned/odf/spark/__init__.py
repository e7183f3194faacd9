"""Histories of events, and queries over them, by Spark."""
