"""Tables that the reference implementation made, feature by feature: every version of them, as it read them itself.

`delta_spark/` holds the scripts, the tables they made, and what the reference said of each version.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from conformance.delta_spark import canonical

from dagster_versioned.delta.log.snapshot import load_snapshot
from dagster_versioned.delta.schema.types import parse_schema
from dagster_versioned.delta_tables.change_feed import read_changes
from dagster_versioned.delta_tables.read import read_delta
from dagster_versioned.engines.spark.releases import release
from dagster_versioned.errors import UnsupportedFeature, VersionedError
from dagster_versioned.storage.local import LocalStore

pytestmark = pytest.mark.conformance

HERE = Path(__file__).parent / "delta_spark"
EXPECTED: dict[str, Any] = {file.stem: json.loads(file.read_text()) for file in sorted(HERE.glob("expected/*.json"))}

NOT_YET: dict[str, str] = {}
"""Why a table cannot be read yet."""


QUICKLY = (
    "types",
    "partition_types",
    "mapping_id",
    "mapping_nested",
    "deletion_vectors_mapped",
    "type_widening",
    "variant",
    "schema_evolution",
    "everything",
)
"""What Spark reads each time; the slow tests have it read all."""


def tables() -> list[Any]:
    return [
        pytest.param(name, marks=[pytest.mark.xfail(strict=True, reason=NOT_YET[name])] if name in NOT_YET else [])
        for name in EXPECTED
    ]


def versions(name: str) -> dict[int, dict[str, Any]]:
    return {int(version): state for version, state in EXPECTED[name]["versions"].items()}


def test_every_script_has_its_table_and_its_answers() -> None:
    scripts = {script.stem for script in HERE.glob("scripts/*.sql")}
    assert scripts == set(EXPECTED) == {folder.name for folder in HERE.glob("tables/*")}
    assert len(scripts) >= 45
    states = [state for name in EXPECTED for state in versions(name).values()]
    assert sum("lines" in state for state in states) >= 200


@pytest.mark.every(2)
@pytest.mark.parametrize("name", tables())
def test_every_version_is_read_as_the_reference_read_it(name: str) -> None:
    folder = HERE / "tables" / name
    for version, expected in versions(name).items():
        if "error" in expected:
            with pytest.raises(VersionedError):
                read_delta(str(folder), version)
            continue
        schema = load_snapshot(LocalStore(folder), version).schema
        assert schema.all_nullable() == parse_schema(expected["schema"]).all_nullable(), version
        assert canonical.lines(read_delta(str(folder), version)) == expected["lines"], version


@pytest.mark.parametrize("name", [name for name in EXPECTED if EXPECTED[name]["changes"]])
def test_the_change_feed_is_what_the_reference_read(name: str) -> None:
    expected = EXPECTED[name]["changes"]
    table = read_changes(str(HERE / "tables" / name), expected["from"])
    assert canonical.lines(table.drop_columns("_commit_timestamp")) == expected["lines"]


@pytest.mark.parametrize("name", [name for name in EXPECTED if EXPECTED[name]["row_ids"]])
def test_rows_have_the_ids_that_the_reference_read(name: str) -> None:
    table = read_delta(str(HERE / "tables" / name), row_ids=True)
    names = {"_row_id": "row_id", "_row_commit_version": "row_commit_version"}
    table = table.rename_columns([names.get(column, column) for column in table.column_names])
    assert canonical.lines(table) == EXPECTED[name]["row_ids"]


@pytest.mark.spark
@pytest.mark.parametrize("name", QUICKLY)
def test_the_newest_version_is_read_by_spark_as_the_reference_read_it(name: str, spark: Any) -> None:
    version = max(versions(name))
    if "variant" in name and release() < (4, 0):
        with pytest.raises(UnsupportedFeature, match=r"variants needs PySpark 4\.0"):
            spark_lines(spark, HERE / "tables" / name, version)
        return
    assert spark_lines(spark, HERE / "tables" / name, version) == versions(name)[version]["lines"]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("name", tables())
def test_every_version_is_read_by_spark_as_the_reference_read_it(name: str, spark: Any) -> None:
    for version, expected in versions(name).items():
        if "lines" in expected:
            assert spark_lines(spark, HERE / "tables" / name, version) == expected["lines"], version


def spark_lines(spark: Any, folder: Path, version: int) -> list[str]:
    from dagster_versioned.delta_tables import spark as spark_engine

    return canonical.lines_of_frame(spark_engine.read_delta(spark, str(folder), version))
