"""The first version that fails is found between one that passes and one that fails, by reading few."""

import pyarrow as pa
import pytest

from dagster_versioned import Project
from dagster_versioned.errors import InvalidInput
from dagster_versioned.proof.bisect import bisect, every_row, first_other_rows


def written(project: Project, values: list[int]) -> None:
    for value in values:
        project.table("orders").write(pa.table({"v": [value]}))


@pytest.mark.parametrize("first", range(1, 12))
def test_the_first_one_that_fails(project: Project, first: int) -> None:
    written(project, [number if number < first else -number for number in range(1, 12 + 1)])
    found = bisect(project, "orders", every_row("v > 0"), good=0) if first > 1 else None
    if found is None:
        with pytest.raises(InvalidInput, match=r"\(@0\) of orders fails"):
            bisect(project, "orders", every_row("v > 0"))
        return
    assert (found.good.log_version, found.bad.log_version) == (first - 2, first - 1)
    assert found.tried <= 6


def test_what_is_not_kept_is_said(project: Project) -> None:
    written(project, [1, 2, -3, -4])
    project.pin("first", "orders", "@0")
    project.table("orders").expire(keep_last=1, dry_run=False)
    found = bisect(project, "orders", every_row("v > 0"))
    assert (found.good.log_version, found.bad.log_version) == (0, found.bad.log_version)
    assert [version.log_version for version in found.unread] == [1, 2]


def test_other_rows_without_reading_any(project: Project) -> None:
    written(project, [1])
    project.table("orders").write(pa.table({"v": [1]}), message="again")
    written(project, [2])
    found = first_other_rows(project, "orders")
    assert (found.good.log_version, found.bad.log_version, found.tried) == (1, 2, 0)
    with pytest.raises(InvalidInput, match="have the same rows"):
        first_other_rows(project, "orders", bad=1)


def test_ends_that_are_not_as_they_are_said_to_be(project: Project) -> None:
    written(project, [1, 2])
    with pytest.raises(InvalidInput, match="passes, and a first one that fails"):
        bisect(project, "orders", every_row("v > 0"))
    with pytest.raises(InvalidInput, match="1 is kept, and two are compared"):
        bisect(project, "orders", every_row("v > 0"), good=1)


def test_a_check_that_raises_is_named_with_its_version(tmp_path):
    table = Project.open("SHOP", str(tmp_path)).table("t")
    for number in range(3):
        table.write(pa.table({"v": [number]}))

    def broken(rows):
        raise RuntimeError("boom")

    with pytest.raises(InvalidInput, match=r"RuntimeError \(boom\) at version \w{8} \(@0\) of t"):
        bisect(Project.open("SHOP", str(tmp_path)), "t", broken)
