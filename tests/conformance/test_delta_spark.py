"""Tables of other writers whose files are not read as they are: both engines give the rows that Delta Spark gave."""

import json
from pathlib import Path
from typing import Any

import pytest

from dagster_versioned.delta.schema import parse_schema
from dagster_versioned.delta.snapshot import load_snapshot
from dagster_versioned.engines.delta_table import read_delta
from dagster_versioned.errors import VersionedError
from dagster_versioned.storage.local import LocalStore

pytestmark = [pytest.mark.conformance, pytest.mark.spark]

ROOT = Path(__file__).resolve().parents[3] / "shared" / "conformance" / "delta"
EXPECTED: dict[str, Any] = json.loads((ROOT / "expected.json").read_text()) if ROOT.is_dir() else {}

if not EXPECTED:
    pytest.skip("../shared/conformance/delta is not here (CI has it, a clone has not)", allow_module_level=True)


def needs_more_than_its_files(name: str) -> bool:
    try:
        snapshot = load_snapshot(LocalStore(ROOT / name))
    except VersionedError:
        return False
    return snapshot.has_deletion_vectors or snapshot.column_mapping != "none"


CHOSEN = [name for name in EXPECTED if "error" not in EXPECTED[name] and needs_more_than_its_files(name)]


def rows_hash(frame: Any) -> str:
    value = frame.selectExpr("sum(cast(xxhash64(to_json(struct(*))) as decimal(38, 0)))").first()[0]
    return str(value)


def test_there_are_such_tables() -> None:
    assert len(CHOSEN) >= 16


@pytest.mark.parametrize("name", CHOSEN)
def test_both_engines_give_the_rows_that_delta_spark_gave(spark: Any, name: str) -> None:
    from dagster_versioned.engines import spark as spark_engine

    expected = EXPECTED[name]
    frame = spark_engine.read_delta(spark, str(ROOT / name))
    table = read_delta(str(ROOT / name))
    schema = parse_schema(expected["schema"]).all_nullable().to_json()
    assert json.loads(frame.schema.json())["fields"] == schema["fields"]
    assert frame.count() == table.num_rows == expected["rows"]
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        assert rows_hash(frame) == str(expected["rows_hash"])
        assert rows_hash(spark.createDataFrame(table).to(frame.schema)) == str(expected["rows_hash"])
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
