"""Table schemas, and what a table asks of its columns."""
