"""Versioned tables with what few readers have: clustering, checkpoints of the V2 spec, vectors, generated columns.

Of those with a checkpoint, the commits up to it are deleted, so that nobody reads the table but by it.
"""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conformance.delta_spark import canonical
from conformance.test_delta_by_others import DUCKDB, HERE, python_with

from dagster_versioned import Project, TableOptions, read_delta
from dagster_versioned.delta.actions import Protocol
from dagster_versioned.delta.commit.checkpoint import checkpoint_key
from dagster_versioned.delta.commit.conflicts import NOTHING
from dagster_versioned.delta.commit.transaction import Transaction, commit
from dagster_versioned.delta.features import merge_protocol
from dagster_versioned.tables.documents.publish import CHECKPOINT_INTERVAL
from dagster_versioned.tables.table import VersionedTable
from dagster_versioned.tables.write.clustering import clustering_of
from support.frames import numbered
from support.readers import assert_same, by_datafusion

pytestmark = pytest.mark.conformance

SMALL = {"row_group_bytes": 4_000, "target_part_bytes": 1}
V2 = {"delta.checkpointPolicy": "v2"}
VECTORS = {"delta.enableDeletionVectors": "true"}


@dataclass(frozen=True)
class Made:
    """A table, the rows of its head, and how the reference appends to it."""

    folder: Path
    expected: pa.Table
    append: str
    appended: Mapping[str, object]


def clustered(project: Project, name: str, properties: Mapping[str, str]) -> Made:
    """Appended to and merged into, before its checkpoint and after it."""
    table = project.table(name)
    append = TableOptions(mode="append", cluster_by=("n",), properties=dict(properties), **SMALL)
    merge = append.model_copy(update={"mode": "merge", "merge_key": ("n",)})
    by_key = {row["n"]: row for row in numbered(0).to_pylist()}

    def write(frame: pa.Table, options: TableOptions) -> None:
        table.write(frame, options=options)
        by_key.update({row["n"]: row for row in frame.to_pylist()})

    write(numbered(1_500), append)
    for commits in (range(1, 4), range(5, 6)):
        for at in commits:
            write(numbered(200, 1_500 + 200 * at), append)
        changed = numbered(1_500).take(list(range(commits[0], 1_500, 7)))
        write(changed.set_column(1, "text", pa.array([f"merged after {at}"] * changed.num_rows)), merge)
    write(numbered(200, 5_000), append)
    snapshot = project.table(name).state.snapshot
    assert clustering_of(snapshot) == (("n",),)
    assert any(add.deletion_vector for add in snapshot.adds()) == ("delta.enableDeletionVectors" in properties)
    folder = project.data.local_path(name)
    assert folder is not None
    schema = pq.ParquetFile(folder / checkpoint_key(CHECKPOINT_INTERVAL)).schema_arrow
    assert ("checkpointMetadata" in schema.names) == ("delta.checkpointPolicy" in properties)
    for version in range(CHECKPOINT_INTERVAL):
        (folder / f"_delta_log/{version:020d}.json").unlink()
    row = {"n": 9_999, "text": "theirs", "amount": None, "at": None}
    rows = pa.Table.from_pylist(list(by_key.values()), numbered(0).schema)
    return Made(folder, rows, "INSERT INTO {t} VALUES (9999, 'theirs', NULL, NULL)", row)


def generated(project: Project, name: str) -> Made:
    """With a column that another program had generated, and commits of ours that obey it."""
    table = project.table(name)
    table.write(doubled(1, 2), options=TableOptions(properties=VECTORS))
    _generate(table)
    table = project.table(name)
    table.write(doubled(3, 4, None), options=TableOptions(mode="append"))
    table.write(doubled(2, 5), options=TableOptions(mode="merge", merge_key=("n",)))
    folder = project.data.local_path(name)
    assert folder is not None
    return Made(folder, doubled(1, 2, 3, 4, None, 5), "INSERT INTO {t} (n) VALUES (50)", {"n": 50, "twice": 100})


def doubled(*numbers: int | None) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64()), "twice": pa.array([n and 2 * n for n in numbers], pa.int64())})


def _generate(table: VersionedTable) -> None:
    snapshot = table.state.snapshot
    schema = snapshot.schema.to_json()
    for member in schema["fields"]:
        member["metadata"] |= {"delta.generationExpression": "n * 2"} if member["name"] == "twice" else {}
    protocol = merge_protocol(snapshot.protocol, Protocol(1, 7, None, ("generatedColumns",)))
    noted = replace(snapshot.metadata, schema_string=orjson.dumps(schema).decode())
    commit(table.store, snapshot, lambda read: Transaction(read, [protocol, noted], "ALTER", NOTHING))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    project = Project.open("P", str(tmp_path_factory.mktemp("versioned")))
    return {
        "clustered": clustered(project, "clustered", {}),
        "clustered_v2": clustered(project, "clustered_v2", V2),
        "clustered_v2_vectors": clustered(project, "clustered_v2_vectors", V2 | VECTORS),
        "generated": generated(project, "generated"),
    }


def test_their_heads_are_read(made: dict[str, Made]) -> None:
    for table in made.values():
        assert_same(read_delta(str(table.folder)), table.expected)
        assert_same(by_datafusion(table.folder), table.expected)


@pytest.mark.slow
def test_the_kernel_of_duckdb_reads_the_same(
    made: dict[str, Made], tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    folder = tmp_path_factory.mktemp("duckdb") / "venv"
    python = python_with(DUCKDB / "requirements.txt", folder, "DUCKDB_KERNEL_PYTHON")
    asked = json.dumps({str(table.folder): str(tmp_path / f"{name}.parquet") for name, table in made.items()})
    command = [python, DUCKDB / "read_tables.py"]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name, table in made.items():
        assert_same(pq.read_table(tmp_path / f"{name}.parquet"), table.expected)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_reference_reads_the_same_and_appends(
    made: dict[str, Made], tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    folder = tmp_path_factory.mktemp("reference") / "venv"
    python = python_with(HERE / "delta_spark" / "requirements.txt", folder, "DELTA_SPARK_PYTHON")
    asked = json.dumps({name: {"folder": str(table.folder), "append": table.append} for name, table in made.items()})
    command = [python, HERE / "delta_spark" / "read_tables.py", tmp_path / "answers.json"]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answers = json.loads((tmp_path / "answers.json").read_text())
    for name, table in made.items():
        found = answers[name]
        assert "error" not in found, (name, found)
        newest = max(found["versions"], key=int)
        assert found["versions"][newest]["lines"] == canonical.lines(table.expected), name
        more = pa.Table.from_pylist([*table.expected.to_pylist(), table.appended], table.expected.schema)
        assert found["appended"] == {"lines": canonical.lines(more)}, name
        assert_same(read_delta(str(table.folder)), more)
