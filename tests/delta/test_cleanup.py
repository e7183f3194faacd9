import os
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dagster_versioned.delta.actions import Action, Add, CommitInfo, DomainMetadata, Metadata, Protocol
from dagster_versioned.delta.commit import checkpoint
from dagster_versioned.delta.commit.checkpoint import checkpoint_key, write_checkpoint
from dagster_versioned.delta.log.cleanup import cleanup_log
from dagster_versioned.delta.log.commits import checksum_key, commit_key, compaction_key
from dagster_versioned.delta.log.compaction import compact_log
from dagster_versioned.delta.log.snapshot import load_snapshot, write_checksum
from dagster_versioned.errors import InvalidInput, UnsupportedFeature, VersionNotFound
from dagster_versioned.storage.local import LocalStore
from support.delta_logs import SCHEMA, put_commit

NOW = datetime(2026, 3, 31, 12, tzinfo=UTC)
DAYS = 10
"""Commits 0 to 9 are of the days 40, 36, … 4 before now: of 0 to 2 the log's 30 days are over."""


def put(store: LocalStore, *more: Action, features: tuple[str, ...] = (), **properties: str) -> LocalStore:
    configuration = {f"delta.{name}": value for name, value in properties.items()}
    head = [Protocol(1, 7, None, features), Metadata("id", SCHEMA, (), configuration), *more]
    for version in range(DAYS):
        actions = [CommitInfo({}), *(head if version == 0 else ()), Add(f"f{version}", {}, 1, 1, True)]
        put_commit(store, version, actions)
    return store


def age(store: LocalStore) -> None:
    """Give every file of the log the time of its version."""
    for info in store.list("_delta_log/"):
        digits = info.key.removeprefix("_delta_log/")[:20]
        days = 40 - 4 * int(digits) if digits.isdigit() else 40
        moment = (NOW - timedelta(days=days)).timestamp()
        os.utime(store.local_path(info.key), (moment, moment))


def checkpoints(store: LocalStore, *versions: int) -> None:
    for version in versions:
        write_checkpoint(store, load_snapshot(store, version))


def clean(store: LocalStore, **options: Any) -> Any:
    age(store)
    return cleanup_log(store, load_snapshot(store), NOW, **options)


def test_what_lies_before_the_newest_old_checkpoint_goes(store: LocalStore) -> None:
    put(store)
    checkpoints(store, 1, 2, 5)
    write_checksum(store, load_snapshot(store, 0))
    write_checksum(store, load_snapshot(store, 2))
    compact_log(store, 0, 3)
    compact_log(store, 2, 4)
    compact_log(store, 3, 4)
    before = load_snapshot(store).files.sort_by("key").to_pylist()
    done = clean(store, dry_run=True)
    assert load_snapshot(store, 0).num_files == 1  # a dry run deletes nothing
    expected = {
        commit_key(0),
        commit_key(1),
        checkpoint_key(1),
        checksum_key(0),
        compaction_key(range(4)),
        compaction_key(range(2, 5)),
    }
    assert set(done.keys) == expected
    assert done.oldest_version == 2
    assert clean(store) == done
    assert load_snapshot(store).files.sort_by("key").to_pylist() == before
    for version in range(2, DAYS):
        assert load_snapshot(store, version).num_files == version + 1
    with pytest.raises(VersionNotFound):
        load_snapshot(store, 1)
    assert clean(store).keys == ()


def test_without_a_checkpoint_that_is_old_enough_nothing_goes(store: LocalStore) -> None:
    put(store)
    assert clean(store).keys == ()
    checkpoints(store, 3)
    assert clean(store).keys == ()


def test_an_older_checkpoint_will_do(store: LocalStore) -> None:
    put(store)
    checkpoints(store, 1, 5)
    assert clean(store).keys == (commit_key(0),)
    assert load_snapshot(store, 2).num_files == 3


def test_the_property_says_how_long(store: LocalStore) -> None:
    put(store, logRetentionDuration="interval 10 days")
    checkpoints(store, 6)
    assert clean(store).oldest_version == 6


def test_a_checkpoint_that_cannot_be_read_stands_for_nothing(store: LocalStore) -> None:
    put(store)
    checkpoints(store, 2)
    store.put(checkpoint_key(2), b"PAR1 nonsense")
    assert clean(store).keys == ()


def test_a_young_file_keeps_all_that_follow(store: LocalStore) -> None:
    put(store)
    checkpoints(store, 2)
    age(store)
    os.utime(store.local_path(commit_key(1)), (NOW.timestamp(), NOW.timestamp()))
    assert cleanup_log(store, load_snapshot(store), NOW).keys == ()


@pytest.mark.parametrize(("until", "keys"), [("3", 0), ("2", 2)])
def test_protected_checkpoints_go_in_one_go_or_not_at_all(store: LocalStore, until: str, keys: int) -> None:
    put(store, features=("checkpointProtection",), requireCheckpointProtectionBeforeVersion=until)
    checkpoints(store, 2)
    assert len(clean(store).keys) == keys


def test_a_table_may_forbid_it(store: LocalStore) -> None:
    put(store, enableExpiredLogCleanup="false")
    checkpoints(store, 2)
    assert clean(store).keys == ()


def test_versioned_tables_keep_their_history(store: LocalStore) -> None:
    put(store, DomainMetadata("dagster_versioned.version", "{}"), features=("domainMetadata",))
    checkpoints(store, 2)
    with pytest.raises(UnsupportedFeature, match="versioned table"):
        clean(store)


def test_sidecars_that_no_checkpoint_names_go(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_INLINE", 0)
    put(store, features=("v2Checkpoint",), checkpointPolicy="v2")
    older = b'"minReaderVersion":1'
    newer = b'"minReaderVersion":3,"readerFeatures":["v2Checkpoint"]'
    store.put(commit_key(0), store.get(commit_key(0)).replace(older, newer))
    checkpoints(store, 1, 2, 5)
    stored = [info.key for info in store.list("_delta_log/_sidecars/")]
    assert len(stored) == 3
    done = clean(store, dry_run=True)
    assert len([key for key in done.keys if "_sidecars" in key]) == 1
    age(store)
    for key in stored:
        os.utime(store.local_path(key), (NOW.timestamp(), NOW.timestamp()))
    assert not [key for key in cleanup_log(store, load_snapshot(store), NOW, dry_run=True).keys if "_sidecars" in key]
    assert clean(store) == done
    assert len(list(store.list("_delta_log/_sidecars/"))) == 2
    for version in range(2, DAYS):
        assert load_snapshot(store, version).num_files == version + 1


def test_a_time_needs_a_zone(store: LocalStore) -> None:
    put(store)
    with pytest.raises(InvalidInput, match="no zone"):
        cleanup_log(store, load_snapshot(store), datetime(2026, 1, 1))
