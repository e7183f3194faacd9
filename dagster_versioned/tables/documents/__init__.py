"""Documents beside the log: heads, what datom readers read, the index of versions."""
