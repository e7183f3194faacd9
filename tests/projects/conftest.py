"""A project, a table and frames."""

from support.one_table import more, project, rows, table

__all__ = ["more", "project", "rows", "table"]
