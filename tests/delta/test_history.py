import os
from datetime import UTC, datetime, timedelta

import pytest

from dagster_versioned.delta.actions import Metadata, Protocol
from dagster_versioned.delta.commit.transaction import Transaction, commit
from dagster_versioned.delta.log.commits import commit_key
from dagster_versioned.delta.log.history import history, version_at
from dagster_versioned.delta.log.snapshot import load_snapshot
from dagster_versioned.delta.schema.types import StructField, StructType
from dagster_versioned.errors import InvalidInput, TableNotFound, VersionNotFound
from dagster_versioned.storage import LocalStore

SCHEMA = StructType([StructField("a", "long")]).json()
STAMPED = {"delta.enableInCommitTimestamps": "true"}
PROTOCOL = Protocol(1, 7, None, ("inCommitTimestamp",))


def table(folder, *configurations):
    """A table whose versions have these properties, and nothing else."""
    store, snapshot = LocalStore(folder), None
    for number, configuration in enumerate(configurations):
        actions = [*([] if snapshot else [PROTOCOL]), Metadata("0" * 32, SCHEMA, (), configuration)]
        info = {"operationMetrics": {"n": str(number)}, "userName": "ada"}
        snapshot, _ = commit(
            store, snapshot, lambda read, a=actions, i=info: Transaction(read, a, "TEST", commit_info=i)
        )
    return store


def set_times(store, *minutes):
    """Give the commits' files these times, in minutes before now."""
    now = datetime.now(UTC)
    for version, minute in enumerate(minutes):
        then = (now - timedelta(minutes=minute)).timestamp()
        os.utime(store.local_path(commit_key(version)), (then, then))
    return lambda minute: now - timedelta(minutes=minute)


def at(store, moment):
    return version_at(store, load_snapshot(store), moment)


def test_history_is_newest_first_with_what_the_writers_said(tmp_path):
    store = table(tmp_path, {}, {}, {})
    entries = history(store)
    assert [entry.version for entry in entries] == [2, 1, 0]
    assert {entry.operation for entry in entries} == {"TEST"}
    assert entries[0].metrics == {"n": "2"}
    assert entries[0].user == "ada"
    assert entries[0].engine == "dagster-versioned"
    assert [entry.version for entry in history(store, 2)] == [2, 1]
    assert history(store, 0) == []
    for limit in (-1, "1", 1.5):
        with pytest.raises(InvalidInput, match=r"The limit is .* Nothing was read"):
            history(store, limit)  # pyright: ignore[reportArgumentType]


def test_a_commit_without_provenance_is_an_entry_too(tmp_path):
    store = table(tmp_path, {})
    line = b'{"commitInfo":{"operation":7,"operationParameters":[],"userId":"u"}}\n'
    store.put(commit_key(1), line)
    store.put(commit_key(2), b'{"txn":{"appId":"a","version":1}}\n')
    newest, middle, _ = history(store)
    assert (newest.operation, newest.user, dict(newest.parameters)) == (None, None, {})
    assert (middle.operation, middle.user, dict(middle.parameters)) == (None, "u", {})


def test_a_folder_without_a_log_has_no_history(tmp_path):
    with pytest.raises(TableNotFound):
        history(LocalStore(tmp_path))


def test_the_version_of_a_moment_by_the_times_of_files(tmp_path):
    store = table(tmp_path, {}, {}, {})
    ago = set_times(store, 30, 20, 10)
    assert [at(store, ago(minute)) for minute in (30, 25, 20, 15, 10, 5, 0)] == [0, 0, 1, 1, 2, 2, 2]
    with pytest.raises(VersionNotFound, match="oldest commit in the log is version 0"):
        at(store, ago(31))


def test_times_of_files_that_go_back_count_as_just_after_the_one_before(tmp_path):
    store = table(tmp_path, {}, {}, {}, {})
    ago = set_times(store, 30, 40, 40, 10)
    assert at(store, ago(30)) == 0
    assert at(store, ago(30) + timedelta(milliseconds=2)) == 2


def test_the_times_that_history_tells_lead_back_to_their_versions(tmp_path):
    store = table(tmp_path, {}, {}, {}, {})
    set_times(store, 30, 30, 40, 40)
    times = [entry.timestamp for entry in history(store)][::-1]
    assert [(later - times[0]) / timedelta(milliseconds=1) for later in times] == [0, 1, 2, 3]
    assert [at(store, moment) for moment in times] == [0, 1, 2, 3]


def test_the_version_of_a_moment_by_the_times_in_commits(tmp_path):
    store = table(tmp_path, STAMPED, STAMPED, STAMPED)
    moments = [entry.timestamp for entry in history(store)][::-1]
    set_times(store, 1, 500, 3)
    assert [at(store, moment) for moment in moments] == [0, 1, 2]
    assert at(store, moments[2] - timedelta(milliseconds=1)) == 1
    with pytest.raises(VersionNotFound):
        at(store, moments[0] - timedelta(milliseconds=1))


def test_before_commits_had_times_those_of_files_count(tmp_path):
    late = STAMPED | {"delta.inCommitTimestampEnablementVersion": "2"}
    store = table(tmp_path, {}, {}, late, late)
    ago = set_times(store, 30, 20, 500, 500)
    moments = [entry.timestamp for entry in history(store)][::-1]
    assert [at(store, ago(25)), at(store, ago(20)), at(store, ago(1))] == [0, 1, 1]
    assert [at(store, moments[2]), at(store, moments[3])] == [2, 3]


def test_a_moment_needs_a_zone_and_must_be_past(tmp_path):
    store = table(tmp_path, {})
    with pytest.raises(InvalidInput, match="names no zone"):
        at(store, datetime(2024, 1, 1))
    with pytest.raises(InvalidInput, match="future"):
        at(store, datetime.now(UTC) + timedelta(days=1))
