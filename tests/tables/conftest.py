"""A project, a table and frames."""

from support.one_table import every_fourth, more, project, rows, table

__all__ = ["every_fourth", "more", "project", "rows", "table"]
