"""Must show 5: many processes write one table, and no version is lost, hidden or broken."""

from pathlib import Path

import pytest

from dagster_versioned.storage import LocalStore, ObjectStore
from dagster_versioned.storage.s3 import S3Store
from support.buckets import BUCKETS, new_bucket
from support.writers import (
    at_once,
    collect_and_write,
    create_and_report,
    replace_partition,
    replace_whole,
    rows_of,
    table_in,
)

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(900)]

WRITERS, WRITES = 16, 25


@pytest.fixture(params=["local", *BUCKETS])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    return LocalStore(tmp_path) if request.param == "local" else new_bucket(request, monkeypatch)


def test_sixteen_processes_lose_no_version(store: ObjectStore) -> None:
    writes = WRITES if isinstance(store, (LocalStore, S3Store)) else WRITES // 3  # Azure's emulator takes minutes
    made = at_once(replace_whole, store, WRITERS, writes)
    table = table_in(store)
    history = table.history()
    assert [version.log_version for version in history] == list(range(WRITERS * writes))[::-1]
    assert {sha for one in made for sha in one} == {version.metadata_sha for version in history}
    for writer, shas in enumerate(made):
        for number, sha in enumerate(shas):
            assert table.read(sha).equals(rows_of(writer, number))
    table.verify().require_ok()
    head = table.head()
    assert head.head is not None
    assert head.head.metadata_sha == history[0].metadata_sha
    assert head.pending is None


@pytest.mark.parametrize("processes", [2, 8])
def test_of_several_creators_one_creates_and_the_others_follow(store: ObjectStore, processes: int) -> None:
    assert sorted(at_once(create_and_report, store, processes, 1)) == list(range(processes))
    table_in(store).verify().require_ok()


def test_writers_of_different_partitions_do_not_disturb_each_other(store: ObjectStore) -> None:
    made = at_once(replace_partition, store, 8, 5)
    table = table_in(store)
    assert len(table.history()) == 40
    for writer, shas in enumerate(made):
        assert table.read(partition=f"p{writer}").equals(rows_of(writer, 4))
        assert [v.metadata_sha for v in table.history(partition=f"p{writer}")] == shas[::-1]
    table.verify().require_ok()


def test_writers_of_equal_rows_and_collectors_lose_nothing_that_is_needed(store: ObjectStore) -> None:
    at_once(collect_and_write, store, 4, 12)
    table = table_in(store)
    table.verify().require_ok()
    for version in table.history():
        if version.gone is None:
            assert table.read(f"@{version.log_version}").num_rows == 1
