"""Tables of numbers, of which some are built from others, and the cells of reports on them."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from dagster_versioned.branches.environments import create_environment
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.history import Version


def rows(*numbers: int | None) -> pa.Table:
    return pa.table({"n": list(numbers)})


def build(
    project: Project, table: str, frame: pa.Table, *upstreams: str, code: str | None = "1", **given: Any
) -> Version:
    """A version of a table, built from the heads of others as they are in this project now."""
    parents = [parent for upstream in upstreams for parent in project.table(upstream).upstream()]
    return project.table(table).write(frame, parents=parents, code_version=code, **given).version


def chain(project: Project) -> Project:
    """The project with ``raw``, ``middle`` built from it, and ``top`` built from that."""
    project.table("raw").write(rows(1, 2))
    build(project, "middle", rows(1, 2), "raw")
    build(project, "top", rows(3), "middle")
    return project


def forked(project: Project, name: str = "pr-1") -> Project:
    """A new environment of the project."""
    create_environment(project, name)
    return project.in_environment(name)


def numbers(project: Project, table: str = "numbers", *reference: str, **given: Any) -> list[int]:
    return project.table(table).read(*reference, **given)["n"].to_pylist()


def sorted_numbers(project: Project, table: str = "numbers", *reference: str, **given: Any) -> list[int]:
    return sorted(numbers(project, table, *reference, **given))


def names(cells: Iterable[Any]) -> list[str]:
    """The cells of a report as texts: ``table``, or ``table[partition]``."""
    return [str(cell.table) if cell.partition is None else f"{cell.table}[{cell.partition}]" for cell in cells]


def promoted(report: Any) -> list[str]:
    return names(report.promoted)


def left(report: Any) -> dict[str, str]:
    """Why cells were left."""
    return dict(zip(names(report.left), (cell.why for cell in report.left), strict=True))
