"""Heads, datom documents, manifest, checkpoints and index: functions of the log, and never in the way of a commit."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_versioned.delta.commit.checkpoint import checkpoint_key, hint_of_size
from dagster_versioned.delta.log.commits import LAST_CHECKPOINT_KEY
from dagster_versioned.errors import StoreUnavailable
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import ObjectStore
from dagster_versioned.storage.wrappers import Call, CountingStore, Fault, FaultStore
from dagster_versioned.tables.documents.head import HeadDocument, Pending, head_key, publish_head, read_head
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.table import VersionedTable
from support.one_table import numbered
from support.stores import contents

datom = pytest.importorskip("datom")  # needs pyarrow 20


def derived(project: Project) -> dict[str, str]:
    """Everything that is neither a commit nor a part."""
    everything = contents(project.data)
    return {
        key: sha
        for key, sha in everything.items()
        if not (key.endswith(".json") and "/_delta_log/" in key and ".checkpoint" not in key)
        and not (key.endswith(".parquet") and ".metadata" not in key and "_delta_log" not in key)
    }


@pytest.mark.usefixtures("every_fourth")
def test_every_derived_document_is_rebuilt_byte_for_byte(project: Project) -> None:
    plain, parted = project.table("plain"), project.table("parted")
    for n in range(10):
        plain.write(numbered(n % 7), message=f"{n}")
        parted.write(numbered(n), partition=f"p{n % 3}")
    plain.revert(1, hold=True, why="wrong")
    plain.expire(keep_last=5, dry_run=False)
    for table in (plain, parted):
        assert table.verify().ok
        table.repair()
    before = derived(project)
    assert any("_last_checkpoint" in key for key in before)
    assert any("versions/" in key for key in before)
    project.data.delete(before)
    for table in (project.table("plain"), project.table("parted")):
        table.repair()
        assert table.verify().ok
    assert derived(project) == before


@pytest.mark.usefixtures("every_fourth")
def test_how_a_checkpoint_is_encoded_is_no_finding_and_what_it_holds_is(project: Project) -> None:
    """Another release of pyarrow encodes it otherwise."""
    table = project.table("t")
    for n in range(5):
        table.write(numbered(n))
    key, store = checkpoint_key(4), table.store
    file = pq.ParquetFile(pa.BufferReader(store.get(key)))
    rows, notes = file.read(), file.metadata.metadata

    def put(rows: pa.Table, notes: dict[bytes, bytes]) -> None:
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(sink, rows.schema, compression="gzip", store_schema=False) as writer:
            writer.write_table(rows)
            writer.add_key_value_metadata(notes)
        store.put(key, sink.getvalue().to_pybytes())
        store.put(LAST_CHECKPOINT_KEY, hint_of_size(store.get(LAST_CHECKPOINT_KEY), store.head(key).size))

    before = store.get(key)
    put(rows, notes)
    assert store.get(key) != before
    assert project.table("t").verify().ok
    for others in ((rows.slice(1), notes), (rows, {**notes, next(iter(notes)): b"other"})):
        put(*others)
        assert key in {finding.where for finding in project.table("t").verify().findings}
    table.repair()
    assert store.get(key) == before
    assert project.table("t").verify().ok


@pytest.mark.usefixtures("every_fourth")
def test_a_table_opens_without_its_checkpoints_and_index(project: Project) -> None:
    table = project.table("flights")
    for n in range(9):
        table.write(numbered(n))
    history = table.history()
    project.data.delete(derived(project))
    fresh = project.table("flights")
    assert fresh.history() == history
    assert fresh.read().equals(table.read())


@pytest.mark.usefixtures("every_fourth")
def test_a_corrupt_index_or_head_stops_nobody(project: Project) -> None:
    table = project.table("flights")
    for n in range(9):
        table.write(numbered(n))
    for key in [info.key for info in table.store.list(".metadata/versions/")]:
        table.store.put(key, b"not parquet")
    project.data.put(head_key(table.name), b"{")
    fresh = project.table("flights")
    assert len(fresh.history()) == 9
    assert not fresh.verify().ok
    assert fresh.write(numbered(100)).change == "full"
    assert read_head(project.data, head_key(table.name)).log_version == 9


def test_datom_reads_every_version_of_a_table_of_one_part(project: Project) -> None:
    table = project.table("flights")
    frames = {table.write(numbered(n), message=f"m{n}").version.metadata_sha: numbered(n) for n in range(3)}
    table.write(numbered(1), message="m1")
    table.repair()
    store = datom.store_local(str(project.store.local_path("x").parent))  # type: ignore[union-attr]
    connection = datom.get_conn(store, project_name="NYC")
    for sha, frame in frames.items():
        assert sha is not None
        assert datom.read(connection, "flights", version=sha[:10], as_arrow=True).equals(frame)
    assert datom.read(connection, "flights", as_arrow=True).equals(numbered(1))
    assert list(datom.list_artifacts(connection)["name"]) == ["flights"]
    history = datom.history(connection, "flights")
    assert list(history["version"]) == [v.metadata_sha for v in table.history() if v.log_version in (3, 2, 0)]
    assert set(history["author"]) == {"Ada <ada@example.org>"}


def test_what_datom_could_not_read_is_left_out_whole(project: Project) -> None:
    table = project.table("flights")
    table.write(numbered(1))
    assert "flights" in manifest(project)
    many = pa.table({"n": list(range(1_500_000))})
    table.write(many, options=TableOptions(target_part_bytes=1, row_group_bytes=1_000_000))
    table.repair()
    assert "flights" not in manifest(project)
    assert not [key for key in contents(table.store) if key.endswith(("/metadata.json", "version_history.json"))]
    table.write(many, options=TableOptions(single_part=True))
    table.repair()
    assert "flights" in manifest(project)
    project.table("parted").write(numbered(1), partition="a")
    assert set(manifest(project)) == {"flights"}


def test_a_project_without_any_table_for_datom_still_has_a_manifest(project: Project) -> None:
    project.table("parted").write(numbered(1), partition="a")
    assert manifest(project) == {}


def test_a_commit_stands_where_its_documents_could_not_be_written(project: Project) -> None:
    def fail_after_commit(call: Call) -> Fault | None:
        nonlocal committed
        committed = committed or call.verb == "put_if_absent"
        broken = committed and call.verb != "put_if_absent" and call.verb.startswith("put")
        return Fault.BEFORE if broken else None

    committed = False
    failing = Project("NYC", FaultStore(project.store, fail_after_commit)).table("flights")
    result = failing.write(numbered(1))
    assert result.change == "full"
    table = project.table("flights")
    head = table.head()
    assert head.log_version == -1
    assert head.pending is not None
    assert head.pending.log_version == 0
    resolved = table.resolve()
    assert resolved.log_version == 0
    assert resolved.pending is None
    assert table.verify().ok


def test_a_failed_commit_leaves_the_table_as_it_was(project: Project) -> None:
    table = project.table("flights")
    table.write(numbered(1))
    before = contents(project.store, without=("heads",))

    def fail(call: Call) -> Fault | None:
        return Fault.BEFORE if call.verb == "put_if_absent" else None

    with pytest.raises(StoreUnavailable):
        Project("NYC", FaultStore(project.store, fail)).table("flights").write(numbered(2))
    after = contents(project.store, without=("heads",))
    assert {key: sha for key, sha in after.items() if key in before} == before
    assert all(key.endswith(".parquet") for key in after.keys() - before.keys())
    assert table.read().equals(numbered(1))
    assert table.write(numbered(2)).change == "full"


def test_a_mark_stays_until_a_later_head_or_a_day_passes(project: Project) -> None:
    table = project.table("flights")
    table.write(numbered(1))
    key = head_key(table.name)

    def mark(age: timedelta, version: int) -> HeadDocument:
        document = table.head()
        since = (datetime.now(UTC) - age).isoformat()
        marked = HeadDocument(document.log_version, document.head, Pending(version, since))
        project.data.put(key, marked.to_bytes())
        return marked

    young = mark(timedelta(hours=1), 1)
    assert table.resolve() == young
    mark(timedelta(days=2), 1)
    assert table.resolve().pending is None
    mark(timedelta(hours=1), 7)
    table.write(numbered(2))
    assert table.head().pending is not None, "a mark for a later commit is not taken away by an earlier one"


@pytest.mark.parametrize("torn", [b"", b"\0" * 64, b'{"log_version": 1'])
def test_what_a_power_failure_tears_is_resolved_from_the_log(project: Project, torn: bytes) -> None:
    table = project.table("flights")
    table.write(numbered(1))
    table.write(numbered(2))
    table.repair()
    expected = contents(project.store)
    documents = [key for key in expected if key.endswith(".json") and "_delta_log" not in key]
    for key in documents:
        project.store.put(key, torn)
    head = project.table("flights").head()
    assert head.head is None
    assert head.pending is not None, "whoever reads heads only must see that the log has more to say"
    assert project.table("flights").read().equals(numbered(2))
    assert project.table("flights").resolve().head is not None
    assert contents(project.store) == expected
    for key in documents:
        project.store.put(key, torn)
    assert project.table("flights").write(numbered(3)).version.log_version == 2
    assert project.table("flights").verify().ok


def test_only_parts_marks_and_commits_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Project.open("NYC", str(tmp_path)).table("flights")
    table.write(numbered(1))
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    table.write(numbered(2))
    assert len(synced) == 6, "three files, each with its folder"


def test_documents_are_those_of_the_log_whoever_wrote_them(project: Project) -> None:
    writers = [Project.open("NYC", project.store.uri).table("flights") for _ in range(2)]
    for turn, n in [(0, 1), (0, 2), (0, 3), (1, 4), (0, 5), (0, 6), (1, 7), (1, 8)]:
        writers[turn].write(numbered(n))
        assert project.table("flights").verify().ok
    writers[1].revert(1)
    writers[1].write(numbered(9))
    assert project.table("flights").verify().ok, "version 1 is listed once, at its newest place"
    writers[1].expire(keep_last=3, dry_run=False)
    writers[1].write(numbered(10))
    writers[0].write(numbered(11))
    report = project.table("flights").verify()
    assert report.ok, report.findings


def test_a_commit_costs_no_more_for_a_longer_history(project: Project) -> None:
    store = CountingStore(project.store)
    table = Project("NYC", store).table("flights")
    read: list[int] = []
    for n in range(40):
        store.reset()
        table.write(numbered(n))
        read.append(store.bytes_read)
    assert read[-1] < read[3] * 1.1


def test_heads_of_partitions_are_in_the_log_and_have_no_documents(project: Project) -> None:
    table = project.table("flights")
    odd = "2013/01 ../x%"
    table.write(numbered(1), partition=odd)
    table.write(numbered(2), partition="b")
    head = table.head(partition=odd).head
    assert head is not None
    assert head.partition == odd
    assert head.metadata_sha == table.partitions()[odd].metadata_sha
    whole = table.head().head
    assert whole is not None
    assert whole.partitions == 2
    assert table.head(partition="c").head is None
    documents = [info.key for info in project.data.list(".metadata/")]
    assert documents == [".metadata/heads/flights.json", ".metadata/manifest.json"]


def test_what_partitions_once_had_as_documents_is_no_finding_and_goes_with_a_repair(project: Project) -> None:
    table = project.table("flights")
    table.write(numbered(1), partition="a")
    before = contents(project.store)
    for name in ("a", "lost"):
        project.data.put(f".metadata/partition-heads/flights/{name}.json", b"{}")
    assert table.verify().ok
    table.repair()
    assert contents(project.store) == before


def manifest(project: Project) -> dict[str, object]:
    store: ObjectStore = project.data
    return orjson.loads(store.get(".metadata/manifest.json"))["artifacts"]


def test_a_slow_publisher_takes_nothing_back(project: Project) -> None:
    slow, fast = project.table("flights"), project.table("flights")
    slow.write(numbered(1))
    overtaken = slow.state
    fast.write(numbered(2))
    fast.write(numbered(3))
    before = contents(project.store)
    slow.publisher.publish(slow.operations.cache, overtaken)
    assert contents(project.store) == before
    assert publish_head(project.data, head_key(slow.name), None, 0).log_version == 2
    assert contents(project.store) == before


@pytest.mark.parametrize("is_warm", [False, True])
def test_a_write_to_a_table_that_was_deleted_and_made_anew_replaces_the_head_of_before(
    project: Project, table: VersionedTable, is_warm: bool
) -> None:
    for n in range(7):
        table.write(pa.table({"n": [n]}))
    table.store.delete([info.key for info in table.store.list()])
    writer = table if is_warm else Project("NYC", project.store).table("flights")
    for n in (10, 11):
        version = writer.write(pa.table({"n": [n]})).version
        stored = Project("NYC", project.store).table("flights").head()
        assert stored.log_version == version.log_version
        assert stored.head is not None
        assert stored.head.metadata_sha == version.metadata_sha
    assert table.verify().ok
