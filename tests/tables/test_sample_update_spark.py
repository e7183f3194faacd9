"""Updates of samples by Spark frames: the same versions as from Arrow."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from pyspark.sql import DataFrame

from dagster_versioned.engines.samples import DATA_VERSION_BY_FIELD
from dagster_versioned.errors import CommitConflict, InvalidInput
from dagster_versioned.features.sample_update import SampleUpdate
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.table import VersionedTable
from support.sample_updates import FEED, PROPERTIES, STEPS, UNIT_COLUMNS, Step, agrees_with_a_dictionary
from support.spark import spark
from support.stores import contents

__all__ = ["spark"]
pytestmark = pytest.mark.spark

ON = ("a.unit", "item")
ROWS = {(f"u{i}", item): 0 for i in range(12) for item in range(2)}
MANY = {(f"u{i:04}", 0): 0 for i in range(3_000)}


def step(
    rows: Mapping[tuple[str, int], int | None],
    *gone: str,
    fields: Sequence[str] = ("audio",),
    how: str = "rewriting",
    tiny: bool = False,
) -> Step:
    return Step(rows, frozenset(gone), tuple(fields), how, tiny)


def update(table: VersionedTable, given: Step, spark: Any = None, **also: Any) -> SampleUpdate:
    """What a step says, computed from the table's head."""

    def frame(rows: pa.Table) -> Any:
        return rows if spark is None else spark.createDataFrame(rows)

    base = table.version().metadata_sha if table.exists() else None
    said = {"frame": frame(given.frame()), "on": ON, "ids": ON, "base": base, **also}
    return SampleUpdate(**({} if "gone" in said else {"gone": frame(given.units(said["on"]))}), **said)


def rows_of(table: VersionedTable) -> list[Any]:
    return sorted(table.read().to_pylist(), key=str)


@pytest.mark.parametrize(
    ("how", "on", "rows"),
    [
        pytest.param("vectors", ("a.unit",), ROWS, marks=pytest.mark.slow),
        pytest.param("rewriting", ("value",), ROWS, marks=pytest.mark.slow),
        pytest.param("rewriting", ON, ROWS, marks=pytest.mark.slow),
        pytest.param("vectors", ON, MANY, marks=pytest.mark.slow),
    ],
    ids=["by unit", "by value", "by id", "many"],
)
def test_updates_are_those_of_arrow(
    spark: Any, project: Project, how: str, on: tuple[str, ...], rows: Mapping[Any, Any]
) -> None:
    tables = project.table("spark"), project.table("arrow")
    options = TableOptions(properties=FEED | PROPERTIES[how])
    some = list(rows)[3:7]
    steps = [
        step(rows),
        step(dict.fromkeys(some, 1) | {("new", 0): 2}, list(rows)[-1][0]),
        step({some[0]: 1}),
        step({}, "new", "nobody"),
        step({some[1]: 3}, fields=("audio", "frames")),
        step({}, fields=("frames",)),
    ]
    for one in steps:
        also = {"gone": pa.table({"value": pa.array([2], pa.int64())})} if on == ("value",) else {}
        given = [update(table, one, on=on, **also) for table in tables]
        frame, gone = (spark.createDataFrame(rows) for rows in (given[0].frame, given[0].gone))
        as_spark = replace(given[0], frame=frame, gone=gone)
        results = [
            tables[0].write(as_spark, options=options, asset_key=("samples",)),
            tables[1].write(given[1], options=options, asset_key=("samples",)),
        ]
        assert len({(result.change, result.version.facts.added) for result in results}) == 1
        assert len({result.version.facts.digest for result in results}) == 1
        assert len({tuple(result.version.facts.null_counts) for result in results}) == 1
        if rows is ROWS:  # few enough for one part in canonical order
            assert len({result.version.metadata_sha for result in results}) == 1
    assert rows_of(tables[0]) == rows_of(tables[1])
    told = [sorted(key for key in contents(table.store) if key.startswith("_change_data/")) for table in tables]
    assert (told[0] == told[1]) or rows is MANY
    tables[0].verify().require_ok()


@pytest.mark.slow
def test_only_files_that_lose_a_row_are_written_again(spark: Any, project: Project) -> None:
    table = project.table("samples")
    tiny = TableOptions(target_part_bytes=1, row_group_bytes=1)
    table.write(update(table, step(ROWS)), options=tiny)
    before = {add.key for add in table.files().adds}
    assert len(before) == len(ROWS)
    table.write(update(table, step({("u1", 0): 1, ("u2", 0): 0}, "u3"), spark), options=tiny)
    assert len(before - {add.key for add in table.files().adds}) == 3


@pytest.mark.slow
def test_the_members_of_versions_have_no_order(spark: Any, project: Project) -> None:
    table = project.table("samples")
    table.write(update(table, step(ROWS, fields=("audio", "frames"))))
    assert table.write(update(table, step({("u1", 0): 0}, fields=("frames", "audio")), spark)).change == "none"
    table.write(update(table, step({("u1", 0): 1}, fields=("frames", "audio")), spark))
    read = table.read(as_type=DataFrame).where("value = 1").select(DATA_VERSION_BY_FIELD).collect()
    assert [row[0].asDict() for row in read] == [{"audio": "audio 1", "frames": "frames 1"}]


@pytest.mark.slow
def test_what_cannot_be_updated_changes_nothing(spark: Any, project: Project) -> None:
    table = project.table("samples")
    table.write(update(table, step(ROWS), spark))
    before = contents(project.store)
    twice = step({("u1", 0): 1}).frame()
    bad: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"frame": spark.createDataFrame(pa.concat_tables([twice, twice]))}, InvalidInput, r"ids .* 1 keys have more"),
        ({"gone": step({}, "u1").units(ON)}, InvalidInput, "frames of one kind"),
        ({"gone": spark.createDataFrame([(None, 1)], "`a.unit` string, item int")}, InvalidInput, "1 have a null"),
        ({"gone": spark.createDataFrame([("u1", 1)], "`a.unit` string, item long")}, InvalidInput, "'item' is long"),
        ({"base": None}, CommitConflict, "no version"),
    ]
    for also, error, message in bad:
        with pytest.raises(error, match=message):
            table.write(update(table, step({("u1", 0): 1}), spark, **also))
    assert contents(project.store) == before


@pytest.mark.slow
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, on=UNIT_COLUMNS)
def test_every_version_is_what_a_dictionary_says(
    spark: Any, tmp_path_factory: pytest.TempPathFactory, steps: Sequence[Step], on: tuple[str, ...]
) -> None:
    table = Project.open("P", str(tmp_path_factory.mktemp("any"))).table("samples")
    agrees_with_a_dictionary(table, steps, on, spark.createDataFrame)
