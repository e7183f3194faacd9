"""Versioned tables: write, read, history, diff, revert, verify, collect, and the documents derived from the log."""

from dagster_versioned.moved import find_moved_modules

find_moved_modules()
