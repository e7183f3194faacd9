"""The engine for pyarrow, pandas and Polars."""
