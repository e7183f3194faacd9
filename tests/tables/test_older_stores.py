"""Stores that older versions of this package wrote: each opens, verifies, and is written on.

``tests/data/store_c780006.tar.xz`` and ``store_a3d4e12.tar.xz`` were made by the scripts beside them, at the commits
that they are named after.
"""

from pathlib import Path

import pyarrow as pa
import pytest

from dagster_versioned.branches.diff import differences
from dagster_versioned.branches.environments import drop_environment
from dagster_versioned.branches.promote import promote
from dagster_versioned.branches.rebase import rebase_environment
from dagster_versioned.errors import ExpiredVersion, HeldHead, InvalidName
from dagster_versioned.identity.version import Run
from dagster_versioned.odf.event_table import EventTable
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.computations import find
from dagster_versioned.tables.event_history import EventHistory, SnapshotMerge, UpsertMerge
from dagster_versioned.tables.options import TableOptions
from support.archives import unpack
from support.feature_tables import Tables, graph_of, loud, words
from support.one_table import numbered
from support.readers import by_deltalake, rows

datom = pytest.importorskip("datom")  # needs pyarrow 20

DATA = Path(__file__).parents[1] / "data"
MERGE = TableOptions(mode="merge", merge_key=("key",))
TABLES = ["days", "flights", "log", "merged", "plain", "thinned"]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return unpacked("store_c780006", tmp_path)


def unpacked(name: str, folder: Path) -> Path:
    unpack(DATA / f"{name}.tar.xz", folder / "old")
    return folder / "old"


def opened(old: Path) -> Project:
    return Project.open("NYC", str(old), author="Ada <ada@example.org>")


def folder(old: Path, table: str) -> Path:
    return old / "datom" / table


def keyed(keys: range, value: int) -> pa.Table:
    return pa.table({"key": list(keys), "value": [value] * len(keys)})


def verified(old: Path) -> None:
    for table in TABLES:
        report = opened(old).table(table).verify()
        assert report.ok, (table, report.findings)


def test_every_version_of_an_older_store_is_there(old: Path) -> None:
    plain = opened(old).table("plain")
    history = plain.history()
    assert [version.log_version for version in history] == list(range(103, -1, -1))
    assert history[-1].entry.identity.message == "version 0"
    assert plain.read("@0").equals(numbered(0, 1))
    assert plain.read("pin:first").equals(numbered(0, 1))
    assert plain.read(history[-12].metadata_sha).equals(numbered(11, 12))
    assert plain.read().equals(numbered(1))
    days = opened(old).table("days")
    assert sorted(days.partitions()) == ["2024-01-01", "2024-01-02", "2024-01-03"]
    assert days.read(partition="2024-01-01").equals(numbered(0, 0))
    assert days.head(partition="2024-01-01").head.held.why == "wrong rows"
    assert [up.parent.table for up in days.upstream()] == ["days"]
    assert opened(old).table("log").read().equals(numbered(*range(6)))
    assert opened(old).table("merged").read().num_rows == 22
    thinned = opened(old).table("thinned")
    assert [version.gone for version in thinned.history()] == [None, None, "expire", "expire", "expire"]
    with pytest.raises(ExpiredVersion):
        thinned.read("@1")
    flights = EventTable(opened(old).table("flights"), EventHistory(merge=SnapshotMerge(primary_key=("id",))))
    assert flights.current().num_rows == 2


def test_an_older_store_verifies_as_it_is(old: Path) -> None:
    verified(old)


def test_an_older_store_is_written_on(old: Path) -> None:
    retried = opened(old).table("plain").write(numbered(11, 12), message="version 11", run=Run("run-11", "plain", 1))
    assert (retried.replayed, retried.version.log_version) == (True, 11)
    for n in range(12):
        opened(old).table("plain").write(numbered(n, n, n))
    again = opened(old).table("plain").write(numbered(3, 3, 3), message="the same rows")
    assert (again.bytes_uploaded, again.version.log_version) == (0, 116)
    with pytest.raises(HeldHead):
        opened(old).table("days").write(numbered(9), partition="2024-01-01")
    opened(old).table("days").write(numbered(9), partition="2024-01-02")
    opened(old).table("days").release(partition="2024-01-01")
    opened(old).table("log").write(numbered(6), options=TableOptions(mode="append"))
    opened(old).table("merged").write(keyed(range(2), 7), options=MERGE)
    opened(old).table("thinned").write(numbered(5))
    opened(old).table("thinned").expire(keep_last=1, dry_run=False)
    flights = EventTable(opened(old).table("flights"), EventHistory(merge=SnapshotMerge(primary_key=("id",))))
    flights.write(pa.table({"id": [4], "delay": [9]}))
    verified(old)
    assert opened(old).table("log").read().equals(numbered(*range(7)))
    assert len(opened(old).table("plain").history()) == 117
    assert opened(old).table("days").partitions()["2024-01-02"].metadata_sha
    for table in TABLES:
        opened(old).table(table).repair()
    verified(old)


@pytest.mark.parametrize("written_on", [False, True], ids=["as it is", "written on"])
def test_other_readers_read_an_older_store(old: Path, written_on: bool) -> None:
    if written_on:
        for n in range(12):
            opened(old).table("plain").write(numbered(n, n, n))
        opened(old).table("log").write(numbered(6), options=TableOptions(mode="append"))
        opened(old).table("plain").repair()
    for table in ("plain", "log", "days", "thinned"):
        assert rows(by_deltalake(folder(old, table))) == rows(opened(old).table(table).read())
    assert rows(by_deltalake(folder(old, "plain"), 5)) == rows(numbered(5, 6))
    connection = datom.get_conn(datom.store_local(str(old)), project_name="NYC")
    assert datom.read(connection, "plain", as_arrow=True).equals(opened(old).table("plain").read())
    assert "plain" in list(datom.list_artifacts(connection)["name"])


class TestAStoreOfDraftsAndEnvironments:
    """``store_a3d4e12``: a tag, a rename, a computation, a draft, a feature, events, two environments, one promoted."""

    @pytest.fixture
    def project(self, tmp_path: Path) -> Project:
        return opened(unpacked("store_a3d4e12", tmp_path))

    def test_is_read_as_it_was_and_verifies(self, project: Project):
        assert project.table("raw").read("tag:before").equals(numbered(1, 2, 3))
        assert project.table("first_name").read().equals(numbered(5))
        assert [str(up.parent.table) for up in project.table("words").upstream()] == ["words"]
        assert project.table("vectors").read().sort_by("key")["x"].to_pylist()[0] == 1.5
        kept = find(project.table("made").store, project.table("made").state, {None: "ab" * 32})
        assert kept[None].log_version == 0
        events = EventTable(project.table("events"), EventHistory(merge=UpsertMerge(primary_key=("id",))))
        assert sorted(events.current()["delay"].to_pylist()) == [6, 7, 8]
        inside = project.in_environment("open")
        assert [(str(changed.table), changed.before is None) for changed in differences(inside)] == [
            ("clean", False),
            ("of_open", True),
        ]
        for place in (project, inside):
            for name in place.tables():
                assert place.table(str(name)).verify().ok, name

    def test_is_written_on(self, project: Project):
        assert [len(one.results) for one in project.publish("waiting", by="me").published] == [1]
        assert project.table("raw").read().equals(numbered(1, 2, 3, 4))
        with pytest.raises(InvalidName):
            project.table("first_name").write(numbered(6))
        project.table("made").write(numbered(9))
        drop_environment(project, "done")
        rebase_environment(project, "open", dry_run=False)
        report = promote(project, "open", dry_run=False, by="me")
        assert [str(cell.table) for cell in report.promoted] == ["of_open"]
        assert project.table("of_open").read().equals(numbered(4))
        events = EventTable(project.table("events"), EventHistory(merge=UpsertMerge(primary_key=("id",))))
        events.write(pa.table({"id": [3], "delay": [9]}))
        for name in project.tables():
            project.table(str(name)).repair()
            assert project.table(str(name)).verify().ok, name

    def test_samples_are_computed_where_their_versions_are_new(self, project: Project):
        tables = Tables(project.store.local_path("x").parent, name=project.name)
        tables.write_plain("video", pa.table({"id": [1, 2], "sound": ["a", "c"], "image": ["x", "y"]}))
        _, increment = tables.step(graph_of(words()), "words", loud)
        assert increment.counts.stale == 2
        assert {row["text"] for row in tables.rows("words").values()} == {"A", "C"}
        _, again = tables.step(graph_of(words()), "words", loud)
        assert not again
