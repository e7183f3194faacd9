"""Tables that we make, feature by feature: what others read from them, and what we read after others appended.

`delta_spark/ours.json` is what the reference read from every version of them, and what it had after an append of its
own, when `delta_spark/record_ours.py` was run last. The slow tests ask it again, in a venv of its own.
"""

import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conformance.delta_spark import canonical

from dagster_versioned.delta.log.snapshot import load_snapshot
from dagster_versioned.delta.schema.types import parse_schema
from dagster_versioned.delta_tables.change_feed import read_changes
from dagster_versioned.delta_tables.read import read_delta
from dagster_versioned.storage.local import LocalStore
from support.made_tables import TABLES, build

pytestmark = pytest.mark.conformance

HERE = Path(__file__).parent
RECORDED: dict[str, Any] = json.loads((HERE / "delta_spark" / "ours.json").read_text())
DUCKDB = HERE / "duckdb_kernel"

REFUSED_BY_DELTALAKE: dict[str, str] = {
    "protocol_features": "VacuumProtocolCheck",
    "type_widening": "TypeWidening",
    "type_widening_partition": "TypeWidening",
    "everything": "TypeWidening",
}
"""What `deltalake` says to tables that it cannot read."""


NULL_IN_DUCKDB = {
    "partition_mapped": "p q",
    "deletion_vectors_mapped": "p",
    "iceberg_compat_v1": "b",
    "everything": "region",
}
"""Partition columns that DuckDB's kernel reads as null because they are mapped; it does so in the reference's own
tables, too (`delta_spark/tables/mapping_partitioned`)."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a table, made by the Arrow engine when it is first asked for."""
    root = tmp_path_factory.mktemp("made")
    return cache(lambda name: build(name, root))


def versions(name: str) -> dict[int, dict[str, Any]]:
    return {int(version): state for version, state in RECORDED[name]["versions"].items()}


def test_the_reference_was_asked_about_every_table() -> None:
    assert set(RECORDED) == set(TABLES)
    assert len(TABLES) >= 35
    assert [name for name in RECORDED if "error" in RECORDED[name]] == []
    states = [state for name in RECORDED for state in versions(name).values()]
    assert sum("lines" in state for state in states) == len(states) >= 150


@pytest.mark.parametrize("name", sorted(TABLES))
def test_every_version_is_to_us_what_it_was_to_the_reference(made: Callable[[str], Path], name: str) -> None:
    folder = made(name)
    assert load_snapshot(LocalStore(folder)).version == max(versions(name))
    for version, expected in versions(name).items():
        schema = load_snapshot(LocalStore(folder), version).schema
        assert schema.all_nullable() == parse_schema(expected["schema"]).all_nullable(), version
        assert canonical.lines(read_delta(str(folder), version)) == expected["lines"], version


def compared(name: str, lines: list[str]) -> Any:
    """The rows as they are compared between engines: where Spark numbers them, it is free in which row gets which."""
    if name != "identity":
        return lines
    rows = [json.loads(line) for line in lines]
    for column in ("id", "other"):
        assert len({row[column] for row in rows}) == len(rows), column
    return sorted(str(row["v"]) for row in rows)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("name", sorted(TABLES))
def test_spark_makes_the_same_table(spark: Any, tmp_path: Path, name: str) -> None:
    folder = str(build(name, tmp_path, spark))
    for version, expected in versions(name).items():
        assert compared(name, canonical.lines(read_delta(folder, version))) == compared(name, expected["lines"]), (
            version
        )
    if feed := RECORDED[name]["changes"]:
        table = read_changes(folder, feed["from"]).drop_columns("_commit_timestamp")
        assert canonical.lines(table) == feed["lines"]


@pytest.mark.parametrize("name", sorted(name for name in RECORDED if RECORDED[name]["changes"]))
def test_the_change_feed_is_to_us_what_it_was_to_the_reference(made: Callable[[str], Path], name: str) -> None:
    expected = RECORDED[name]["changes"]
    table = read_changes(str(made(name)), expected["from"])
    assert canonical.lines(table.drop_columns("_commit_timestamp")) == expected["lines"]


@pytest.mark.parametrize("name", sorted(name for name in RECORDED if RECORDED[name]["row_ids"]))
def test_rows_have_for_us_the_ids_that_they_had_for_the_reference(made: Callable[[str], Path], name: str) -> None:
    table = read_delta(str(made(name)), row_ids=True)
    names = {"_row_id": "row_id", "_row_commit_version": "row_commit_version"}
    table = table.rename_columns([names.get(column, column) for column in table.column_names])
    assert canonical.lines(table) == RECORDED[name]["row_ids"]


@pytest.mark.parametrize("name", sorted(TABLES))
def test_deltalake_reads_the_same_or_refuses(made: Callable[[str], Path], name: str) -> None:
    folder = str(made(name))

    def read() -> pa.Table:
        table = deltalake.DeltaTable(folder)
        return pa.table(deltalake.QueryBuilder().register("t", table).execute("select * from t").read_all())

    if name in REFUSED_BY_DELTALAKE:
        with pytest.raises(Exception, match=REFUSED_BY_DELTALAKE[name]):
            read()
        return
    ours, theirs = read_delta(folder), read()
    assert canonical.lines(theirs.select(ours.column_names).cast(ours.schema)) == canonical.lines(ours)


# --- asked again -----------------------------------------------------------------------------------------------------


def python_with(requirements: Path, folder: Path, variable: str) -> Path:
    """A Python that has these packages: the one that an environment variable names, else that of a new venv."""
    if given := os.environ.get(variable):
        return Path(given)
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", requirements]
    installed = subprocess.run(command, capture_output=True, text=True, check=False)
    if installed.returncode:
        pytest.skip(f"{requirements} cannot be installed here: {installed.stderr.strip()[-300:]}")
    return python


@pytest.fixture(scope="module")
def reference_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference") / "venv"
    return python_with(HERE / "delta_spark" / "requirements.txt", folder, "DELTA_SPARK_PYTHON")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("engine", ["arrow", pytest.param("spark", marks=pytest.mark.spark)])
def test_the_reference_reads_every_version_and_appends(
    request: pytest.FixtureRequest, reference_python: Path, tmp_path: Path, engine: str
) -> None:
    spark = request.getfixturevalue("spark") if engine == "spark" else None
    folders = {name: build(name, tmp_path / engine, spark) for name in TABLES}
    before = {name: canonical.lines(read_delta(str(folder))) for name, folder in folders.items()}
    asked = {name: {"folder": str(folder), "append": TABLES[name].append} for name, folder in folders.items()}
    answers = tmp_path / "answers.json"
    command = [reference_python, HERE / "delta_spark" / "read_tables.py", answers]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name, answer in json.loads(answers.read_text()).items():
        found = {int(version): state for version, state in answer["versions"].items()}
        for version, state in versions(name).items():
            assert compared(name, found[version]["lines"]) == compared(name, state["lines"]), (name, version)
        assert found[max(found)]["lines"] == before[name]
        assert answer["appended"].keys() == RECORDED[name]["appended"].keys(), (name, answer["appended"])
        if "lines" in answer["appended"]:
            recorded = RECORDED[name]["appended"]["lines"]
            assert compared(name, answer["appended"]["lines"]) == compared(name, recorded), name
            assert canonical.lines(read_delta(str(folders[name]))) == answer["appended"]["lines"], name


@pytest.mark.slow
def test_the_kernel_of_duckdb_reads_the_same(
    made: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    python = python_with(
        DUCKDB / "requirements.txt", tmp_path_factory.mktemp("duckdb") / "venv", "DUCKDB_KERNEL_PYTHON"
    )
    asked = {str(made(name)): str(tmp_path / f"{name}.parquet") for name in TABLES}
    command = [python, DUCKDB / "read_tables.py"]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in TABLES:
        ours = read_delta(str(made(name)))
        theirs = pq.read_table(tmp_path / f"{name}.parquet").select(ours.column_names).cast(ours.schema)
        lost = NULL_IN_DUCKDB.get(name)
        if lost is not None:
            assert theirs[lost].null_count == theirs.num_rows, f"DuckDB reads {lost!r} of {name} now"
            ours, theirs = ours.drop_columns([lost]), theirs.drop_columns([lost])
        assert canonical.lines(theirs) == canonical.lines(ours), name
