"""Variants that we write, to the reference: every version of a table, and what it has after an append of its own."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conformance.delta_spark import canonical
from conformance.test_delta_by_others import HERE, python_with

from dagster_versioned.delta import Table
from dagster_versioned.delta.schema.types import ArrayType, StructField, StructType
from dagster_versioned.delta_tables.change_feed import read_changes
from dagster_versioned.delta_tables.dml import WhenMatched, WhenNotMatched
from dagster_versioned.delta_tables.read import read_delta
from dagster_versioned.delta_tables.write import create_delta, delete_from, merge_delta, optimize_delta, write_delta
from support.spark import needs_spark

pytestmark = [pytest.mark.conformance, pytest.mark.slow, pytest.mark.timeout(1800)]

VARIANT = pa.struct([("metadata", pa.binary()), ("value", pa.binary())])
OBJECT = {"metadata": bytes.fromhex("01010001") + b"a", "value": bytes.fromhex("0201000002" + "0c01")}
"""``{"a": 1}``, by the encoding's text (apache/parquet-format, VariantEncoding.md)."""
APPEND = """INSERT INTO {t} SELECT 100L, parse_json('{"z": [1, "x"]}'), array(parse_json('2'), NULL)"""
PROPERTIES = {"delta.enableChangeDataFeed": "true", "delta.columnMapping.mode": "name"}
"""Without deletion vectors: beside them Delta Spark 4.0.0 reads no variant, in tables of its own either (*Not
implemented. VariantType*)."""
SCHEMA = StructType([StructField("id", "long"), StructField("v", "variant"), StructField("l", ArrayType("variant"))])


def by_arrow(uri: str, properties: dict[str, str]) -> None:
    create_delta(uri, SCHEMA, properties=properties)
    lists = pa.array([[OBJECT, None], [], None], pa.list_(VARIANT))
    write_delta(uri, pa.table({"id": [1, 2, 3], "v": pa.array([OBJECT, None, OBJECT], VARIANT), "l": lists}))
    delete_from(uri, "id = 3")
    write_delta(uri, pa.table({"id": [4], "v": pa.array([OBJECT], VARIANT)}))
    optimize_delta(uri)
    Table(uri).checkpoint()


def by_spark(spark: Any, uri: str, properties: dict[str, str]) -> None:
    rows = "SELECT * FROM VALUES (1L, '{\"a\": 1}'), (2L, NULL), (3L, '[1.5, null, true, \"x\"]') AS t(id, t)"
    frame = spark.sql(rows).selectExpr("id", "parse_json(t) AS v", "array(parse_json(t), parse_json('1')) AS l")
    write_delta(uri, frame, properties=properties)
    delete_from(uri, "id = 3", session=spark)
    source = spark.sql('SELECT id, parse_json(\'{"b": {"c": 1}}\') AS v FROM VALUES (2L), (4L) AS t(id)')
    clauses = [WhenMatched({"v": "source.v"}), WhenNotMatched({"id": "source.id", "v": "source.v"})]
    merge_delta(uri, source, "source.id = target.id", clauses)
    optimize_delta(uri, session=spark)


@pytest.mark.parametrize("engine", ["arrow", pytest.param("spark", marks=[pytest.mark.spark, needs_spark(4, 0, "it")])])
def test_the_reference_reads_every_version_and_appends(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, engine: str
) -> None:
    python = python_with(
        HERE / "delta_spark/requirements.txt", tmp_path_factory.mktemp("r") / "v", "DELTA_SPARK_PYTHON"
    )
    folders: dict[str, str] = {}
    for name, properties in (("plain", {}), ("featured", PROPERTIES)):
        folders[name] = str(tmp_path / name)
        if engine == "arrow":
            by_arrow(folders[name], properties)
        else:
            by_spark(request.getfixturevalue("spark"), folders[name], properties)
    ours = {
        name: [canonical.lines(read_delta(folder, version)) for version in range(Table(folder).version + 1)]
        for name, folder in folders.items()
    }
    asked = {name: {"folder": folder, "append": APPEND} for name, folder in folders.items()}
    command = [str(python), str(HERE / "delta_spark/read_tables.py"), str(tmp_path / "answers.json")]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name, answer in json.loads((tmp_path / "answers.json").read_text()).items():
        assert "versions" in answer, answer
        theirs = {int(version): state["lines"] for version, state in answer["versions"].items()}
        assert [theirs[version] for version in sorted(theirs)] == ours[name]
        assert "lines" in answer["appended"], answer["appended"]
        assert canonical.lines(read_delta(folders[name])) == answer["appended"]["lines"]
        assert len(answer["appended"]["lines"]) == len(ours[name][-1]) + 1
        if answer["changes"]:
            feed = read_changes(folders[name], answer["changes"]["from"], len(ours[name]) - 1)
            assert canonical.lines(feed.drop_columns("_commit_timestamp")) == answer["changes"]["lines"]
