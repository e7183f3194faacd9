"""Runs over many partitions: store calls, counted, that do not grow with their number; parts alone do."""

import pyarrow as pa
import pytest

from support.many_days import Days


@pytest.fixture(scope="module")
def few_and_many(tmp_path_factory):
    both = [Days(tmp_path_factory.mktemp("days"), count) for count in (20, 40)]
    for days in both:
        days.run("daily")
        days.run("copy")
    return both


@pytest.mark.parametrize(
    ("asset", "options"),
    [
        ("daily", {}),
        pytest.param("daily", {"last": -2}, marks=pytest.mark.slow),
        pytest.param("copy", {}, marks=pytest.mark.slow),
        pytest.param("unread", {}, marks=pytest.mark.slow),
        pytest.param("copy", {"last": -2}, marks=pytest.mark.slow),
        pytest.param("checks of copy", {}, marks=pytest.mark.slow),
        pytest.param("pinned", {"tags": {"dagster_versioned/pin/daily": "@0"}}, marks=pytest.mark.slow),
    ],
)
def test_a_run_over_more_partitions_asks_the_store_for_no_more_than_their_parts(
    few_and_many, tmp_path_factory, asset, options
):
    if asset == "pinned":  # to a first commit of all partitions
        few_and_many = [Days(tmp_path_factory.mktemp("days"), len(days.keys)) for days in few_and_many]
        for days in few_and_many:
            days.run("daily")
            days.project.table("daily").write(pa.table({"n": [-1]}), partition=days.keys[0])
    (few, _), (many, shown) = (days.run(asset, **options) for days in few_and_many)
    assert many == few
    expected = {"pinned": 1, "checks of copy": 0}.get(asset, 40 + options.get("last", -1) + 1)
    assert len([key for key in shown if key[0] == asset]) == expected


def test_rows_of_the_first_ten_partitions_are_shown(few_and_many):
    _, shown = few_and_many[1].run("daily", preview_rows=2)
    previewed = [key for (_, key), metadata in shown.items() if "dagster_versioned/preview" in metadata]
    assert sorted(previewed) == few_and_many[1].keys[:10]


def test_every_partition_shows_its_difference_to_the_version_before(few_and_many):
    days = few_and_many[0]
    days.project.table("daily").write_partitions({key: pa.table({"n": [7, 7]}) for key in days.keys})
    before = days.project.table("daily").partitions()
    _, shown = days.run("daily")
    now = days.project.table("daily").partitions()
    for (_, key), metadata in shown.items():
        assert f"diff 'daily' {before[key].short} {now[key].short}" in metadata["dagster_versioned/diff"].value
