"""A write's own area: parts come from anywhere, get their final names, and nothing stays behind."""

import hashlib
import os
from pathlib import Path

import pytest

from dagster_versioned.engines.parts import Part
from dagster_versioned.engines.staging import Staging
from dagster_versioned.errors import ObjectNotFound
from dagster_versioned.storage import LocalStore
from support.remote_store import RemoteStore


def part(source: Path | bytes | str, data: bytes) -> Part:
    return Part(hashlib.sha256(data).hexdigest(), len(data), 1, 0, {}, source)


def keys(store) -> list[str]:
    return [info.key for info in store.list()]


@pytest.fixture(params=[LocalStore, RemoteStore])
def store(request, tmp_path):
    return request.param(tmp_path / "table")


def test_parts_are_promoted_from_wherever_they_are(store, tmp_path):
    staging = Staging(store, "w1")
    staging.directory().mkdir(parents=True, exist_ok=True)
    inside = staging.directory() / "p.parquet"
    inside.write_bytes(b"in the staging directory")
    outside = tmp_path / "elsewhere.parquet"
    outside.write_bytes(b"elsewhere")
    store.put(staging.key("uploaded"), b"uploaded")
    staging.promote_all(
        [
            (part(b"in memory", b"in memory"), "a.parquet"),
            (part(inside, b"in the staging directory"), "b.parquet"),
            (part(outside, b"elsewhere"), "c.parquet"),
            (part(staging.key("uploaded"), b"uploaded"), "d.parquet"),
        ]
    )
    contents = [store.get(f"{name}.parquet") for name in "abcd"]
    assert contents == [b"in memory", b"in the staging directory", b"elsewhere", b"uploaded"]


def test_promotion_inside_a_local_store_shares_the_bytes(tmp_path):
    store = LocalStore(tmp_path / "table")
    staging = Staging(store, "w1")
    staging.directory().mkdir(parents=True)
    file = staging.directory() / "p.parquet"
    file.write_bytes(b"rows")
    staging.promote(part(file, b"rows"), "p.parquet")
    assert (tmp_path / "table" / "p.parquet").samefile(file)


def test_promotion_may_be_repeated(store):
    staging = Staging(store, "w1")
    for _ in range(2):
        staging.promote(part(b"rows", b"rows"), "p.parquet")
    assert store.get("p.parquet") == b"rows"


def test_a_failed_promotion_is_raised_and_the_others_still_land(store):
    staging = Staging(store, "w1")
    with pytest.raises(ObjectNotFound):
        staging.promote_all([(part(staging.key("lost"), b""), "a.parquet"), (part(b"rows", b"rows"), "b.parquet")])
    assert keys(store) == ["b.parquet"]


def test_discard_deletes_what_is_this_writes_and_nothing_else(store):
    mine, other = Staging(store, "w1"), Staging(store, "w12")
    for staging in (mine, other):
        staging.directory().mkdir(parents=True, exist_ok=True)
        (staging.directory() / "p.parquet").write_bytes(b"rows")
        (staging.directory() / ".half.tmp").write_bytes(b"ro")
        store.put(staging.key("uploaded"), b"rows")
    store.put("final.parquet", b"rows")
    directory = mine.directory()
    mine.discard()
    assert not directory.exists()
    assert (other.directory() / "p.parquet").exists()
    assert "final.parquet" in keys(store)
    assert other.key("uploaded") in keys(store)
    assert not [key for key in keys(store) if key.startswith(mine.prefix)]
    mine.discard()


def test_discard_of_a_write_that_never_staged_anything_touches_nothing(tmp_path):
    store = LocalStore(tmp_path / "table")
    Staging(store, "w1").discard()
    assert not (tmp_path / "table" / "_staging").exists()


def test_a_remote_store_is_given_a_private_directory(tmp_path):
    staging = Staging(RemoteStore(tmp_path / "table"), "w1")
    directory = staging.directory()
    assert directory == staging.directory()
    assert not directory.is_relative_to(tmp_path)
    assert directory.stat().st_mode & 0o077 == 0
    staging.discard()
    assert not directory.exists()


def test_a_file_that_a_late_task_adds_meanwhile_does_not_fail_the_write_that_is_over(tmp_path, monkeypatch):
    staging = Staging(LocalStore(tmp_path / "table"), "w1")
    staging.directory().mkdir(parents=True)
    rmdir = os.rmdir

    def just_before(path, **options):
        (staging.directory() / "late").touch()
        rmdir(path, **options)

    monkeypatch.setattr(os, "rmdir", just_before)
    staging.discard()
    assert (staging.directory() / "late").exists()  # vacuum takes it
