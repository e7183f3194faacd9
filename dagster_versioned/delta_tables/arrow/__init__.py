"""Any Delta table with pyarrow, pandas and Polars: what changes rows."""
