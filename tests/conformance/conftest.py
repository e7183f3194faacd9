"""Tables with a past, built once for all readers."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest

from dagster_versioned.projects.project import Project
from support.spark import spark, spark_frame
from support.table_histories import FROM_ARROW, FROM_SPARK, TableHistory

__all__ = ["spark"]

FAST_FROM_SPARK = {"all_types", "there_and_back"}
HISTORIES = [
    *(pytest.param(f"arrow_{name}", id=f"arrow-{name}") for name in FROM_ARROW),
    *(
        pytest.param(
            f"spark_{name}",
            id=f"spark-{name}",
            marks=[pytest.mark.spark] if name in FAST_FROM_SPARK else [pytest.mark.spark, pytest.mark.slow],
        )
        for name in FROM_SPARK
    ),
]


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Callable[[str], TableHistory]:
    """The history of a name, written when it is first asked for; one project holds them all."""
    root: Path = tmp_path_factory.mktemp("conformance")
    project = Project.open("CONFORMANCE", str(root), author="Ada <ada@example.org>")

    @cache
    def build(name: str) -> TableHistory:
        engine, _, kind = name.partition("_")
        if engine == "spark":
            history = TableHistory(project, name, partial(spark_frame, request.getfixturevalue("spark")))
            FROM_SPARK[kind](history)
        else:
            history = TableHistory(project, name, lambda rows: rows)
            FROM_ARROW[kind](history)
        return history

    return build


@pytest.fixture(params=HISTORIES)
def history(request: pytest.FixtureRequest, written: Callable[[str], TableHistory]) -> TableHistory:
    return written(request.param)
