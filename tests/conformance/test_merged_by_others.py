"""Versioned tables with deletion vectors, in the log and in files: what other programs read at every version."""

import json
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conformance.test_delta_by_others import DUCKDB, python_with

from dagster_versioned import Project, read_delta
from dagster_versioned.tables.options import TableOptions
from support.frames import numbered
from support.readers import assert_same, by_datafusion

pytestmark = pytest.mark.conformance

MERGE = TableOptions(mode="merge", merge_key=("n",), properties={"delta.enableDeletionVectors": "true"})


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[pa.Table]]:
    """The folder of a table, and the rows of its versions, put together here."""
    root = tmp_path_factory.mktemp("merged")
    table = Project.open("P", str(root)).table("merged")
    rows = numbered(3_000)
    expected = [rows]
    table.write(rows, options=MERGE)
    for step, text in ((1_000, "few"), (5, "many")):
        changed = rows.take(list(range(0, 3_000, step)))
        changed = changed.set_column(1, "text", pa.array([text] * changed.num_rows))
        table.write(changed, options=MERGE)
        stays = expected[-1].to_pylist()
        by_key = {row["n"]: row for row in stays} | {row["n"]: row for row in changed.to_pylist()}
        expected.append(pa.Table.from_pylist(list(by_key.values()), rows.schema))
    kinds = [
        {add.deletion_vector.storage_type for add in table.files(version).adds if add.deletion_vector}
        for version in range(3)
    ]
    assert kinds == [set(), {"i"}, {"u"}]
    return root / "datom" / "merged", expected


def test_every_version_is_read_as_it_was_merged(merged: tuple[Path, list[pa.Table]]) -> None:
    folder, expected = merged
    for version, rows in enumerate(expected):
        assert_same(read_delta(str(folder), version), rows)
        assert_same(by_datafusion(folder, version), rows)


@pytest.mark.slow
def test_the_kernel_of_duckdb_reads_the_same(
    merged: tuple[Path, list[pa.Table]], tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    python = python_with(
        DUCKDB / "requirements.txt", tmp_path_factory.mktemp("duckdb") / "venv", "DUCKDB_KERNEL_PYTHON"
    )
    folder, expected = merged
    command = [python, DUCKDB / "read_tables.py"]
    for version in (2, 1):  # it reads heads, so the log is cut
        asked = json.dumps({str(folder): str(tmp_path / f"{version}.parquet")})
        done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert_same(pq.read_table(tmp_path / f"{version}.parquet"), expected[version])
        (folder / "_delta_log" / f"{version:020d}.json").unlink()
