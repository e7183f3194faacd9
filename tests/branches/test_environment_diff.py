"""What the differences of an environment reach; and what reads rows for them."""

import pytest

from dagster_versioned.branches.diff import LARGE_BYTES, DiffOptions, differences
from dagster_versioned.projects.downstream import downstream
from support.chain import forked, rows


def build(project, name: str, *upstream: str, n: int = 0, **write):
    parents = [parent for table in upstream for parent in project.table(table).upstream()]
    project.table(name).write(rows(n), parents=parents, **write)


@pytest.fixture
def branch(project):
    """raw -> clean -> report, raw -> other; alone; daily[a, b] -> total, daily[a] -> of_a."""
    build(project, "raw", n=1)
    build(project, "clean", "raw", n=2)
    build(project, "report", "clean", n=3)
    build(project, "other", "raw", n=4)
    build(project, "alone", n=5)
    for key in ("a", "b"):
        project.table("daily").write(rows(1), partition=key)
    build(project, "total", "daily")
    project.table("of_a").write(rows(1), parents=project.table("daily").upstream(partition="a"))
    project.table("by_day").write(rows(1), partition="a", parents=project.table("daily").upstream(partition="a"))
    project.table("by_day").write(rows(1), partition="b", parents=project.table("daily").upstream(partition="b"))
    return forked(project)


def reached(branch) -> list[str]:
    found = downstream(branch, {(one.table, one.partition) for one in differences(branch)})
    return [table if partition is None else f"{table}[{partition}]" for table, partition in found]


def test_nothing_changed_reaches_nothing(branch):
    assert reached(branch) == []


def test_a_change_reaches_what_was_built_from_it_in_turn(branch):
    build(branch, "raw", n=9)
    assert reached(branch) == ["clean", "other", "report"]


def test_what_was_made_anew_is_reached_no_more(branch):
    build(branch, "raw", n=9)
    build(branch, "clean", "raw", n=9)
    assert reached(branch) == ["other", "report"]
    build(branch, "report", "clean", n=9)
    build(branch, "other", "raw", n=9)
    assert reached(branch) == []


def test_what_was_made_before_the_last_change_is_reached(branch):
    build(branch, "raw", n=8)
    build(branch, "clean", "raw", n=8)
    build(branch, "raw", n=9)
    assert reached(branch) == ["clean", "other", "report"]


def test_equal_data_reaches_nothing(branch):
    build(branch, "raw", n=1, code_version="2")
    assert [one.table for one in differences(branch)] == ["raw"]
    assert reached(branch) == []


def test_a_partition_reaches_what_was_built_from_it_or_from_the_whole(branch):
    branch.table("daily").write(rows(9), partition="b")
    assert reached(branch) == ["by_day[b]", "total"]
    branch.table("by_day").write(rows(9), partition="b", parents=branch.table("daily").upstream(partition="b"))
    build(branch, "total", "daily", n=9)
    assert reached(branch) == []


def test_what_read_all_of_a_reached_table_is_reached(branch):
    build(branch, "sum", "by_day")
    branch.table("daily").write(rows(9), partition="b")
    assert reached(branch) == ["by_day[b]", "sum", "total"]


def test_a_new_partition_reaches_what_was_built_from_the_whole(branch):
    branch.table("daily").write(rows(9), partition="c")
    assert reached(branch) == ["total"]


def test_a_drop_reaches_what_was_built_from_what_is_gone(branch):
    branch.table("daily").drop_partitions(["a"], dry_run=False)
    assert reached(branch) == ["by_day[a]", "of_a", "total"]
    build(branch, "total", "daily", n=9)
    assert reached(branch) == ["by_day[a]", "of_a"]
    branch.table("raw").drop(dry_run=False)
    assert reached(branch) == ["by_day[a]", "clean", "of_a", "other", "report"]


def test_a_new_table_is_reached_like_any(branch):
    build(branch, "raw", n=8)
    build(branch, "new", "raw", n=8)
    assert "new" not in reached(branch)
    build(branch, "raw", n=9)
    assert "new" in reached(branch)


def test_a_table_under_its_former_name(project):
    build(project, "raw", n=1)
    build(project, "clean", "raw", n=2)
    project.table("raw").rename("source", dry_run=False)
    branch = forked(project)
    build(branch, "source", n=9)
    assert reached(branch) == ["clean"]


@pytest.mark.parametrize(
    ("engine", "size", "chosen"),
    [
        (None, LARGE_BYTES, "arrow"),
        (None, LARGE_BYTES + 1, "spark"),
        ("arrow", LARGE_BYTES + 1, "arrow"),
        ("spark", 1, "spark"),
    ],
)
def test_what_reads_rows(engine, size, chosen):
    assert DiffOptions(engine=engine).engine_for(size) == chosen


def test_arrow_reads_what_is_large_where_spark_cannot_start(monkeypatch, tmp_path):
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert DiffOptions().engine_for(LARGE_BYTES + 1) == "arrow"


def test_each_version_is_read_once(branch, monkeypatch):
    build(branch, "raw", n=9)
    read = []
    store = type(branch.table("raw").store)
    original = store.local_path
    monkeypatch.setattr(store, "local_path", lambda self, key: read.append(key) or original(self, key))
    (found,) = differences(branch, DiffOptions({"raw": ["n"]}, statistics=True))
    assert found.rows == {"added": 1, "removed": 1, "changed": 0, "unchanged": 0}
    assert [one.mean for one in found.statistics["n"]] == [1.0, 9.0]
    assert len([key for key in read if key.endswith(".parquet")]) == 2
