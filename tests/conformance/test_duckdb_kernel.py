"""DuckDB reads our tables by delta-kernel-rs, in a venv of its own so that nothing of ours depends on it."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from conformance.test_delta_by_others import DUCKDB, python_with

from support.readers import assert_same
from support.table_histories import FROM_ARROW, FROM_SPARK, TableHistory

pytestmark = [pytest.mark.conformance, pytest.mark.slow, pytest.mark.spark]

NAMES = [*(f"arrow_{name}" for name in FROM_ARROW), *(f"spark_{name}" for name in FROM_SPARK)]


@pytest.fixture(scope="module")
def duckdb_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return python_with(DUCKDB / "requirements.txt", tmp_path_factory.mktemp("duckdb") / "venv", "DUCKDB_KERNEL_PYTHON")


def read(python: Path, targets: dict[str, str]) -> None:
    command = [python, DUCKDB / "read_tables.py"]
    done = subprocess.run(command, input=json.dumps(targets), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_duckdb_reads_every_head(duckdb_python: Path, written: Callable[[str], TableHistory], tmp_path: Path) -> None:
    histories = {name: written(name) for name in NAMES}
    read(duckdb_python, {str(history.folder): str(tmp_path / name) for name, history in histories.items()})
    for name, history in histories.items():
        found, expected = pq.read_table(tmp_path / name), history.expected[max(history.expected)]
        if "" in expected.column_names:  # DuckDB has no column without a name, and gives it one
            found = found.rename_columns(expected.column_names)
        assert_same(found, expected)
