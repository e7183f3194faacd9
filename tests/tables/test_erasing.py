"""What purge erases besides a version's own files, and what vacuum finds of writes that died."""

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_versioned.engines.part_cache import PartCache
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import S3Store
from dagster_versioned.tables.table import VersionedTable
from support.crashes import append_as_another_program
from support.remote_store import RemoteStore
from support.s3_server import S3Server
from support.stores import contents

SECRET = pa.table({"name": ["Ada Lovelace"] * 10})
OTHER = pa.table({"name": ["Nobody"] * 10})

DIES_AFTER_ITS_COMMIT = """
import os, sys
from dataclasses import replace
import pyarrow as pa
from dagster_versioned.engines.parts import WriteTuning
from dagster_versioned.engines.staging import Staging
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.projects.project import Project

class AsFile(TableOptions):  # as a large part is
    def write_options(self, partition):
        return replace(super().write_options(partition), tuning=WriteTuning(in_memory_bytes=0))

Staging.discard = lambda self: os._exit(9)
table = Project.open("NYC", sys.argv[1]).table("flights")
table.write(pa.table({"name": ["Ada Lovelace"] * 10}), options=AsFile())
"""


def holds(folder: Path, data: bytes) -> list[str]:
    """Every file below a folder with these bytes."""
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.read_bytes() == data]


@pytest.fixture
def part(project: Project, tmp_path: Path) -> bytes:
    """The bytes of a part whose writer died between its commit and the end of its staging folder."""
    root = str(tmp_path / "store")
    ended = subprocess.run([sys.executable, "-c", DIES_AFTER_ITS_COMMIT, root], check=False, timeout=120)
    assert ended.returncode == 9
    table = project.table("flights")
    table.write(OTHER)
    version = table.version(0)
    data = table.store.get(f"{version.data_sha}.parquet")
    assert len(holds(tmp_path, data)) == 2
    return data


def test_purge_erases_what_a_writer_that_died_left_staged(table: VersionedTable, part: bytes, tmp_path: Path) -> None:
    table.store.put("_staging/another/part", b"of a write that goes on")
    planned = table.purge(["@0"], why="erasure request 12")
    assert len(holds(tmp_path, part)) == 2
    done = table.purge(["@0"], why="erasure request 12", dry_run=False)
    assert done.keys == planned.keys
    assert len(done.keys) == 2
    assert holds(tmp_path, part) == []
    assert list(contents(table.store.subfolder("_staging"))) == ["another/part"]
    assert table.verify().ok


@pytest.mark.slow
def test_purge_again_erases_what_an_earlier_one_left_staged(table: VersionedTable, part: bytes, tmp_path: Path) -> None:
    table.purge(["@0"], why="erasure request 12", dry_run=False)
    table.store.put("_staging/late/part", part)
    assert len(table.purge(["@0"], why="erasure request 12", dry_run=False).keys) == 1
    assert holds(tmp_path, part) == []


@pytest.mark.slow
def test_purge_erases_files_in_the_making(table: VersionedTable, part: bytes, tmp_path: Path) -> None:
    made = next((tmp_path / "store").rglob(".tmp"))
    os.link(table.store.local_path(f"{table.version(0).data_sha}.parquet") or "", made / ("a" * 32))
    (made / ("b" * 32)).write_bytes(b"of a write that goes on")
    done = table.purge(["@0"], why="erasure request 12", dry_run=False)
    assert done.unfinished == ("a" * 32,)
    assert holds(tmp_path, part) == []
    assert (made / ("b" * 32)).exists()


def test_purge_leaves_staged_bytes_that_a_version_needs(table: VersionedTable, part: bytes, tmp_path: Path) -> None:
    data = table.store.get(f"{table.version().data_sha}.parquet")
    table.store.put("_staging/again/part", data)
    table.purge(["@0"], why="erasure request 12", dry_run=False)
    assert len(holds(tmp_path, data)) == 2


# On S3


@pytest.fixture(params=[pytest.param("moto", marks=pytest.mark.slow), pytest.param("s3", marks=pytest.mark.s3)])
def server(request: pytest.FixtureRequest) -> S3Server:
    return request.getfixturevalue(f"{request.param}_server")


@pytest.fixture
def store(server: S3Server) -> S3Store:
    return server.store(server.new_bucket(), "some/pre-fix")


def begin(server: S3Server, store: S3Store, key: str) -> str:
    """An upload to a key that a process began, and of which it sent one part."""
    bucket, _, prefix = store.uri.removeprefix("s3://").partition("/")
    at = {"Bucket": bucket, "Key": f"{prefix}/{key}"}
    upload = server.client().create_multipart_upload(**at)["UploadId"]
    server.client().upload_part(**at, UploadId=upload, PartNumber=1, Body=b"x" * 5 * 1024**2)
    return upload


def keys(store: S3Store) -> list[str]:
    return sorted(str(write.key) for write in store.unfinished())


def test_unfinished_uploads_are_listed_below_the_folder_and_can_be_ended(server: S3Server, store: S3Store) -> None:
    begin(server, store, "a/part")
    begin(server, store, "a/part")
    begin(server, store, "ab/part")
    assert keys(store) == ["a/part", "a/part", "ab/part"]
    folder = store.subfolder("a")
    writes = list(folder.unfinished())
    assert [write.key for write in writes] == ["part", "part"]
    folder.abort(writes)
    folder.abort(writes)  # which are gone
    assert keys(store) == ["ab/part"]


def test_vacuum_ends_unfinished_uploads_by_age(server: S3Server, store: S3Store) -> None:
    table = Project("NYC", store).table("flights")
    table.write(OTHER)
    begin(server, table.store, "_staging/dead/part")
    begin(server, table.store, "a" * 64 + ".parquet")
    begin(server, store, "datom/another/part")
    # So long ago because moto has all uploads begin in 2010.
    assert table.vacuum(min_age=timedelta(days=36_500), dry_run=False).unfinished == ()
    planned = table.vacuum(min_age=timedelta(0))
    assert planned.unfinished == ("_staging/dead/part", "a" * 64 + ".parquet")
    assert len(keys(store)) == 3
    assert table.vacuum(min_age=timedelta(0), dry_run=False).unfinished == planned.unfinished
    assert keys(store) == ["datom/another/part"]


def test_purge_ends_unfinished_uploads_that_may_hold_the_bytes(server: S3Server, store: S3Store) -> None:
    table = Project("NYC", store).table("flights")
    version = table.write(SECRET).version
    table.write(OTHER)
    begin(server, table.store, "_staging/dead/part")
    begin(server, table.store, f"{version.data_sha}.parquet")
    begin(server, table.store, "a" * 64 + ".parquet")
    table.store.put("_staging/dead/whole", table.store.get(f"{version.data_sha}.parquet"))
    done = table.purge(["@0"], why="erasure request 12", dry_run=False)
    assert set(done.keys) == {f"{version.data_sha}.parquet", "_staging/dead/whole"}
    assert set(done.unfinished) == {f"{version.data_sha}.parquet", "_staging/dead/part"}
    assert keys(table.store) == ["a" * 64 + ".parquet"]


# A parent that is gone


def test_verify_names_a_parent_whose_table_is_gone(project: Project) -> None:
    source, derived = project.table("source"), project.table("derived")
    parent = source.write(SECRET).version
    child = derived.write(OTHER, parents=source.upstream()).version
    assert derived.verify().ok
    source.store.delete([info.key for info in source.store.list()])
    report = derived.verify()
    assert [(f.subject, f.where) for f in report.findings] == [("parent", f"source {parent.short}")]
    assert child.short in report.findings[0].problem
    assert "no such table" in report.findings[0].problem
    assert len(derived.verify(0).findings) == 1


def test_verify_names_a_parent_that_a_table_made_anew_does_not_know(project: Project) -> None:
    source, derived = project.table("source"), project.table("derived")
    parent = source.write(SECRET).version
    derived.write(OTHER, parents=source.upstream())
    source.store.delete([info.key for info in source.store.list()])
    project.table("source").write(OTHER)
    assert [f.where for f in derived.verify().findings] == [f"source {parent.short}"]


def test_a_parent_whose_bytes_are_gone_is_no_finding(project: Project) -> None:
    source, derived = project.table("source"), project.table("derived")
    for partition in ("a", "b"):
        source.write(SECRET, partition=partition)
    derived.write(OTHER, parents=source.upstream())
    derived.write(SECRET, parents=derived.upstream())
    for partition in ("a", "b"):
        source.write(OTHER, partition=partition)
    source.purge(["@0", "@1"], why="erasure request 12", dry_run=False)
    assert derived.verify().ok
    assert source.verify().ok


@pytest.mark.parametrize("how", ["purge", "expire", "purge of what was expired elsewhere"])
@pytest.mark.parametrize("is_foreign", [False, True], ids=["ours", "another program's"])
def test_what_is_deleted_leaves_the_cache_of_this_machine(tmp_path, monkeypatch, how, is_foreign):
    monkeypatch.setenv("DAGSTER_VERSIONED_CACHE", str(tmp_path / "cache"))
    table = Project("NYC", RemoteStore(tmp_path / "nyc")).table("flights")
    table.write(SECRET)
    if is_foreign:
        append_as_another_program(Project.open("NYC", str(tmp_path / "nyc")).table("flights"), SECRET.slice(1))
    PartCache.default().localized(table.files().scan)
    cached = {path: path.read_bytes() for path in (tmp_path / "cache").iterdir()}
    assert len(cached) == 1 + is_foreign
    table.write(OTHER)
    PartCache.default().localized(table.files().scan)
    old = [f"@{version.log_version}" for version in table.history()[1:]]
    if how == "purge":
        table.purge(old, why="erasure", dry_run=False)
    else:
        table.expire(keep_last=1, dry_run=False)
    assert [path for path in cached if path.exists()] == []
    if how == "purge of what was expired elsewhere":
        for path, data in cached.items():
            path.write_bytes(data)
        table.purge(old, why="erasure", dry_run=False)
        assert len([path for path in cached if path.exists()]) == is_foreign  # nobody knows the ETag any more
    assert len(list((tmp_path / "cache").iterdir())) == 1 + (is_foreign and how.startswith("purge of"))


def test_collections_go_on_where_there_is_no_home_to_have_a_cache_in(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def homeless() -> Path:  # as for a user whom the system does not know
        raise RuntimeError("Could not determine home directory.")

    for name in ("DAGSTER_VERSIONED_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    table = project.table("flights")
    for n in range(4):
        table.write(pa.table({"n": [n]}))
    assert len(table.purge(["@0"], why="erasure request 12", dry_run=False).keys) == 1
    assert len(table.expire(keep_last=2, dry_run=False).keys) == 1
    table.store.put(f"{'0' * 64}.parquet", b"of a writer that died")
    assert len(table.vacuum(min_age=timedelta(0), dry_run=False).keys) == 1
    assert table.read()["n"].to_pylist() == [3]
