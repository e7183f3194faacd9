"""What is asked of a table of many partitions takes work in proportion to them, and store calls that do not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_versioned.storage import LocalStore
from dagster_versioned.storage.wrappers import CountingStore
from dagster_versioned.tables.project import Project
from dagster_versioned.tables.table import VersionedTable
from support.profiled import function_calls


def keys(count: int) -> list[str]:
    return [f"k{number:05}" for number in range(count)]


def written(root: Path, count: int) -> VersionedTable:
    """A table of so many partitions, of two schemas, written in one commit."""
    table = Project.open("NYC", str(root)).table("daily")
    table.write_partitions(
        {key: pa.table({"n": [i], "late": [i]} if i % 2 else {"n": [i]}) for i, key in enumerate(keys(count))}
    )
    return table


PLANS: dict[str, Callable[[VersionedTable], Any]] = {
    "the whole table": lambda table: table.files(),
    "some partitions": lambda table: table.files(partitions=[key for key in table.partitions() if key != "k00000"]),
    "one partition": lambda table: table.files(partition="k00001"),
    "each partition by itself": lambda table: list(table.files().by_partition()),
    "lineage": lambda table: table.upstream(partitions=[*table.partitions()]),
}


@pytest.fixture(scope="module")
def few_and_many(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Projects with a table of 100, and of 200 partitions."""
    roots = [tmp_path_factory.mktemp("few"), tmp_path_factory.mktemp("many")]
    for root, count in zip(roots, (100, 200), strict=True):
        written(root, count)
    return roots


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_the_plan_of_a_read_groups_files_once_and_parses_each_schema_once(
    few_and_many: list[Path], plan: Callable[[VersionedTable], Any]
) -> None:
    tables = [Project.open("NYC", str(root)).table("daily") for root in few_and_many]
    assert [len(table.partitions()) for table in tables] == [100, 200]
    few, many = (function_calls(lambda table=table: plan(table)) for table in tables)
    for name in ("wrapper", "to_adds", "parse_schema", "canonical_json"):  # pyarrow.compute's functions are wrappers
        assert many[name] <= few[name], name
    assert many.total() < 2.1 * few.total()


def test_the_files_of_each_partition_are_those_of_a_plan_of_its_own(tmp_path: Path) -> None:
    table = written(tmp_path, 4)
    table.write(pa.table({"n": [7], "late": [8]}), partition="k00002")
    for version in (None, 0):
        planned = table.files(version, columns=["n"])
        split = dict(planned.by_partition())
        assert list(split) == keys(4)
        for key, files in split.items():
            assert files == table.files(version, columns=["n"], partition=key)
    assert table.read_files(dict(table.files(0).by_partition())["k00002"]).to_pydict() == {"n": [2]}


def test_partitions_of_an_old_version_are_planned_from_one_snapshot(tmp_path: Path) -> None:
    reads: list[int] = []
    for count in (5, 50):
        written(tmp_path / str(count), count).write(pa.table({"n": [-1]}), partition="k00000")
        store = CountingStore(LocalStore(tmp_path / str(count)))
        table = Project("NYC", store).table("daily")
        _ = table.state
        store.reset()
        assert len(dict(table.files(0).by_partition())) == count
        reads.append(store.count())
    assert reads[0] == reads[1]
