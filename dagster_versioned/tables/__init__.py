"""Versioned tables: write, read, history, diff, revert, verify, collect, and the documents derived from the log."""
