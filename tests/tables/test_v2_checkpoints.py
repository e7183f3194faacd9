"""Versioned tables with checkpoints of the V2 spec: made, verified, repaired, and read by others."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake.exceptions import DeltaProtocolError

from dagster_versioned.branches.environments import create_environment
from dagster_versioned.branches.export import export_environment
from dagster_versioned.branches.promote import promote
from dagster_versioned.delta.commit.checkpoint import checkpoint_key, write_checkpoint
from dagster_versioned.delta.table import Table
from dagster_versioned.identity.version import Run
from dagster_versioned.projects.project import Project
from dagster_versioned.publication.park import park
from dagster_versioned.tables.documents.publish import CHECKPOINT_INTERVAL
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.table import VersionedTable
from support.one_table import altered, folder
from support.readers import assert_same, by_datafusion, by_deltalake

V2 = TableOptions(properties={"delta.checkpointPolicy": "v2"})
CHECKPOINT = checkpoint_key(CHECKPOINT_INTERVAL)


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": list(numbers), "word": [str(number) for number in numbers]})


def made(project: Project, *, since: int = 0, commits: int = CHECKPOINT_INTERVAL + 2) -> VersionedTable:
    """A table that asks for V2 checkpoints from one commit on, one of which it has."""
    table = project.table("flights")
    for number in range(commits):
        table.write(rows(number), options=V2 if number == since else None)
    return table


def is_v2(table: VersionedTable, key: str = CHECKPOINT) -> bool:
    return "checkpointMetadata" in pq.ParquetFile(folder(table) / key).schema_arrow.names


def without_older_commits(table: VersionedTable) -> None:
    """Nobody can read the table but by its checkpoint."""
    for version in range(CHECKPOINT_INTERVAL + 1):
        (folder(table) / f"_delta_log/{version:020d}.json").unlink()


@pytest.mark.parametrize("since", [0, 3])
def test_readers_go_by_the_checkpoint(project: Project, since: int) -> None:
    table = made(project, since=since)
    assert is_v2(table)
    assert "v2Checkpoint" in (table.state.snapshot.protocol.reader_features or ())
    assert not table.verify().findings
    without_older_commits(table)
    assert_same(by_datafusion(folder(table)), rows(6))
    with pytest.raises(DeltaProtocolError, match="v2Checkpoint"):  # by Arrow, deltalake does not read the feature
        by_deltalake(folder(table))
    again = Project.open("NYC", str(project.data.local_path("x").parents[1])).table("flights")
    assert_same(again.read(), rows(6))
    assert again.write(rows(7)).change == "full"


def test_the_history_is_noted(project: Project) -> None:
    table = made(project)
    without_older_commits(table)
    fresh = Project.open("NYC", str(project.data.local_path("x").parents[1])).table("flights")
    assert [version.log_version for version in fresh.state.history.backwards()][:2] == [6, 5]


def test_without_the_property_they_are_classic(project: Project) -> None:
    table = made(project, since=99)
    assert not is_v2(table)
    table.write(rows(9), options=V2)
    for number in range(20, 24):
        table.write(rows(number))
    assert is_v2(table, checkpoint_key(2 * CHECKPOINT_INTERVAL))
    assert not table.verify().findings


def test_every_verb(project: Project) -> None:
    table = made(project)
    table.write(rows(7), options=TableOptions(mode="append"))
    table.write(rows(7, 8), options=TableOptions(mode="merge", merge_key=("n",)))
    park(table, {None: rows(9)}, run=Run("r1", "x", 0), options=TableOptions(mode="append"))
    project.publish("r1", by="me")
    table.revert("@3")
    create_environment(project, "pr-1")
    there = project.in_environment("pr-1").table("flights")
    derived = TableOptions(table_type="derived")
    for number in range(50, 60):
        there.write(rows(number), code_version="2", options=derived)
    assert not there.verify().findings
    project.in_environment("pr-1").table("new").write(
        rows(1), code_version="2", options=derived.model_copy(update={"properties": V2.properties})
    )
    promote(project, "pr-1", dry_run=False)
    table = project.table("flights")
    table.vacuum(dry_run=False)
    table.expire(keep_last=1, dry_run=False)
    assert_same(by_datafusion(folder(table)), rows(59))
    assert not table.verify().findings
    assert "v2Checkpoint" in (project.table("new").state.snapshot.protocol.reader_features or ())


def test_exported_and_renamed(project: Project, tmp_path: Path) -> None:
    table = made(project)
    create_environment(project, "pr-1")
    project.in_environment("pr-1").table("flights").write(rows(7))
    export_environment(project, "pr-1", str(tmp_path / "copy"), dry_run=False)
    copied = Project.open("NYC", str(tmp_path / "copy")).table("flights")
    table.rename(["journeys"], dry_run=False)
    for one, expected in ((copied, rows(7)), (project.table("journeys"), rows(6))):
        assert is_v2(one)
        assert_same(by_datafusion(folder(one)), expected)
        assert_same(one.read(), expected)
        assert not one.verify().findings


def test_damage_is_found_and_repaired(project: Project) -> None:
    table = made(project)
    path = folder(table) / CHECKPOINT
    was, other = path.read_bytes(), project.table("others")
    for number in range(CHECKPOINT_INTERVAL + 1):
        other.write(rows(number), options=V2)
    path.write_bytes((folder(other) / CHECKPOINT).read_bytes())
    assert [finding.subject for finding in table.verify().findings]
    table.repair()
    assert path.read_bytes() == was
    assert not table.verify().findings


def test_another_program_asks_for_them_and_writes_its_own(project: Project) -> None:
    """Under names of their own, with what versions do not note."""
    asked = made(project, since=99, commits=2)
    table = altered(asked, "v2Checkpoint", readers=("v2Checkpoint",), properties=V2.properties)
    for number in range(10, 13):
        table.write(rows(number))
    assert is_v2(table)
    assert not table.verify().findings
    Table(str(folder(table))).checkpoint()
    assert len(list((folder(table) / "_delta_log").glob("*.checkpoint.*-*.parquet"))) == 1
    assert_same(Project.open("NYC", str(project.data.local_path("x").parents[1])).table("flights").read(), rows(12))
    assert not project.table("flights").verify().findings


def test_many_file_actions_stay_in_the_one_file(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a checkpoint of versions would be several files, of which one could be lost."""
    monkeypatch.setattr("dagster_versioned.delta.commit.checkpoint._INLINE", 0)
    table = made(project)
    assert not (folder(table) / "_delta_log/_sidecars").exists()
    assert not table.verify().findings


def test_a_policy_that_is_none(project: Project) -> None:
    with pytest.raises(Exception, match="'classic' or 'v2'"):
        project.table("flights").write(rows(1), options=TableOptions(properties={"delta.checkpointPolicy": "v3"}))
    assert project.table("flights").operations.refresh() is None


def test_the_feature_alone_asks_for_nothing(project: Project) -> None:
    table = altered(made(project, since=99, commits=1), "v2Checkpoint", readers=("v2Checkpoint",))
    for number in range(10, 15):
        table.write(rows(number))
    assert not is_v2(table)
    write_checkpoint(table.store, table.state.snapshot)
    assert_same(table.read(), rows(14))
