"""What others leave beside the commits, for readers to begin at, is verified, and repaired, as what is ours."""

import shutil
from collections.abc import Callable
from pathlib import Path

import deltalake
import orjson
import pyarrow as pa
import pytest

from dagster_versioned import Project, TableOptions
from dagster_versioned.delta import Table
from dagster_versioned.delta.commit.checkpoint import write_checkpoint
from dagster_versioned.delta.log.commits import checksum_key
from dagster_versioned.delta.log.compaction import compact_log
from dagster_versioned.delta.log.snapshot import load_snapshot
from dagster_versioned.storage import LocalStore, ObjectStore


def made(place: Path) -> Project:
    project = Project.open("P", str(place))
    for n in range(4):
        project.table("t").write(pa.table({"n": [n]}))
    return project


def false_checksum(folder: Path) -> str:
    Table(str(folder)).checkpoint()  # which writes one that is right
    path = folder / checksum_key(3)
    path.write_bytes(orjson.dumps({**orjson.loads(path.read_bytes()), "numFiles": 9}))
    return checksum_key(3)


def checksum_beyond_the_log(folder: Path) -> str:
    (folder / checksum_key(7)).write_text('{"tableSizeBytes":1,"numFiles":9,"numMetadata":1,"numProtocol":1}')
    return checksum_key(7)


def cut_checkpoint(folder: Path) -> str:
    deltalake.DeltaTable(str(folder)).create_checkpoint()
    (path,) = (folder / "_delta_log").glob("*.checkpoint.parquet")
    path.write_bytes(path.read_bytes()[:-20])
    return f"_delta_log/{path.name}"


def checkpoint_of_another_table(folder: Path) -> str:
    other = folder.parent / "other"
    for n in range(4):
        deltalake.write_deltalake(other, pa.table({"n": [n]}), mode="overwrite")
    deltalake.DeltaTable(str(other)).create_checkpoint()
    (path,) = (other / "_delta_log").glob("*.checkpoint.parquet")
    shutil.copy(path, folder / "_delta_log" / path.name)
    shutil.rmtree(other)
    return f"_delta_log/{path.name}"


def lost_sidecar(folder: Path) -> str:
    options = TableOptions(properties={"delta.checkpointPolicy": "v2"})
    for n in (9, 8, 3):
        Project.open("P", str(folder.parents[1])).table("t").write(pa.table({"n": [n]}), options=options)
    store = LocalStore(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dagster_versioned.delta.commit.checkpoint._INLINE", -1)
        write_checkpoint(store, load_snapshot(store))
    shutil.rmtree(folder / "_delta_log" / "_sidecars")
    (path,) = (folder / "_delta_log").glob(f"{6:020d}.checkpoint.*")
    return f"_delta_log/{path.name}"


def false_compaction(folder: Path) -> str:
    compact_log(LocalStore(folder), 0, 2)
    (path,) = (folder / "_delta_log").glob("*.compacted.json")
    path.write_text("\n".join(line for line in path.read_text().splitlines() if '"add"' not in line))
    return f"_delta_log/{path.name}"


def hint_of_no_checkpoint(folder: Path) -> str:
    (folder / "_delta_log" / "_last_checkpoint").write_text('{"version":2,"size":1}')
    return "_delta_log/_last_checkpoint"


KINDS = [
    false_checksum,
    checksum_beyond_the_log,
    cut_checkpoint,
    checkpoint_of_another_table,
    lost_sidecar,
    false_compaction,
    hint_of_no_checkpoint,
]


@pytest.mark.parametrize("mislead", KINDS)
def test_a_file_that_the_commits_do_not_bear_out_is_found_and_taken_away(
    tmp_path: Path, mislead: Callable[[Path], str]
) -> None:
    folder = tmp_path / "datom" / "t"
    made(tmp_path)
    key = mislead(folder)
    table = Project.open("P", str(tmp_path)).table("t")
    assert key in [finding.where for finding in table.verify().findings if finding.subject == "document"]
    table.repair()
    again = Project.open("P", str(tmp_path)).table("t")
    assert again.verify().ok, again.verify().findings
    assert again.read()["n"].to_pylist() == [3]
    again.write(pa.table({"n": [4]}))


def beside(store: ObjectStore) -> list[str]:
    return [info.key for info in store.list("_delta_log/") if not info.key.endswith(".json") or "compacted" in info.key]


def test_what_others_wrote_rightly_is_no_finding_and_stays(tmp_path: Path) -> None:
    folder = tmp_path / "datom" / "t"
    made(tmp_path)
    Table(str(folder)).checkpoint()
    compact_log(LocalStore(folder), 0, 2)
    deltalake.DeltaTable(str(folder)).create_checkpoint()
    table = Project.open("P", str(tmp_path)).table("t")
    before = beside(LocalStore(folder))
    assert {key.rpartition(".")[2] for key in before} >= {"crc", "parquet"}
    assert table.verify().ok, table.verify().findings
    table.repair()
    assert beside(LocalStore(folder)) == before
