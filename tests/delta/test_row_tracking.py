from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_versioned.delta.actions import Action, Add, DomainMetadata, Metadata, Protocol, Remove
from dagster_versioned.delta.commit.conflicts import NOTHING
from dagster_versioned.delta.commit.row_tracking import (
    DOMAIN,
    NO_ID,
    RowTracking,
    backfill,
    high_water_mark,
    new_columns,
    with_row_ids,
)
from dagster_versioned.delta.commit.transaction import Committed, Transaction, commit
from dagster_versioned.delta.log.commits import Commit
from dagster_versioned.delta.log.snapshot import Snapshot, load_snapshot, replayed
from dagster_versioned.errors import InvalidInput, LogCorrupt
from dagster_versioned.storage.local import LocalStore
from support.delta_logs import SCHEMA

SUPPORTED = Protocol(1, 7, None, ("domainMetadata", "rowTracking"))
UNTRACKED = Metadata("id", SCHEMA)
TRACKED = replace(UNTRACKED, configuration={"delta.enableRowTracking": "true", **new_columns()})


def add(path: str, rows: int = 10, **members: int | bool) -> Add:
    return replace(Add(path, {}, 1, 1, True, f'{{"numRecords":{rows}}}'), **members)


def create(store: LocalStore, *actions: Action, metadata: Metadata = TRACKED) -> Snapshot:
    return commit(store, None, lambda read: Transaction(read, [SUPPORTED, metadata, *actions], "CREATE"))[0]


def ids(snapshot: Snapshot) -> dict[str, tuple[int | None, int | None]]:
    return {file.key: (file.base_row_id, file.default_row_commit_version) for file in snapshot.adds()}


def test_rows_get_ids_in_turn(store: LocalStore) -> None:
    first = create(store, add("a", 10), add("b", 0), add("c", 5))
    assert ids(first) == {"a": (0, 0), "b": (10, 0), "c": (10, 0)}
    assert high_water_mark(first.domains) == 14
    second, _ = commit(store, first, lambda read: Transaction(read, [add("d", 1)], "WRITE", NOTHING))
    assert ids(second)["d"] == (15, 1)
    assert load_snapshot(store).domains == {DOMAIN: '{"rowIdHighWaterMark":15}'}


def test_who_lost_a_race_gets_later_ids(store: LocalStore) -> None:
    read = create(store, add("a", 10))
    commit(store, read, lambda now: Transaction(now, [add("b", 7)], "WRITE", NOTHING))
    after, _ = commit(store, read, lambda now: Transaction(now, [add("c", 3)], "WRITE", NOTHING))
    assert ids(after) == {"a": (0, 0), "b": (10, 1), "c": (17, 2)}
    jump = Transaction(read, [add("d", 1)], "WRITE", NOTHING).attempt(store, 3)
    assert isinstance(jump, Committed)
    assert ids(load_snapshot(store))["d"] == (20, 3)


def test_what_is_committed_again_keeps_its_ids(store: LocalStore) -> None:
    first = create(store, add("a", 10), add("b", 10))
    described_anew = replace(add("a", 10, data_change=False), tags={"k": "v"})
    outcome = Transaction(first, [described_anew, Remove("b", True)], "MIXED").attempt(store)
    assert isinstance(outcome, Committed)
    after = load_snapshot(store)
    assert ids(after) == {"a": (0, 0)}
    assert outcome.commit.removes[0].base_row_id == 10
    assert not outcome.commit.domains
    b = next(file for file in first.adds() if file.key == "b")
    restored, _ = commit(store, after, lambda read: Transaction(read, [b], "RESTORE"))
    assert ids(restored) == {"a": (0, 0), "b": (10, 0)}


def test_ids_from_elsewhere_raise_the_mark(store: LocalStore) -> None:
    snapshot = create(store, add("a", 10), add("b", 10, base_row_id=100, default_row_commit_version=0))
    assert ids(snapshot) == {"a": (110, 0), "b": (100, 0)}
    assert high_water_mark(snapshot.domains) == 119


def test_a_file_without_a_row_count_gets_none(store: LocalStore) -> None:
    transaction = Transaction(None, [SUPPORTED, TRACKED, replace(add("a"), stats=None)], "CREATE")
    with pytest.raises(InvalidInput, match="'a' must say how many"):
        transaction.attempt(store)


def test_suspended_means_no_ids(store: LocalStore) -> None:
    suspended = replace(UNTRACKED, configuration={"delta.rowTrackingSuspended": "true"})
    assert ids(create(store, add("a"), metadata=suspended)) == {"a": (None, None)}


def test_a_table_is_tracked_only_with_ids_everywhere(store: LocalStore) -> None:
    untracked = Protocol(1, 7, None, ("domainMetadata",))
    create = Transaction(None, [untracked, UNTRACKED, add("a", 4), add("b", 6)], "CREATE")
    create.attempt(store)
    snapshot = load_snapshot(store)
    with pytest.raises(InvalidInput, match="2 files, such as"):
        Transaction(snapshot, [SUPPORTED, TRACKED], "SET TBLPROPERTIES")
    with pytest.raises(InvalidInput, match="1 files, such as 'b'"):
        Transaction(snapshot, [SUPPORTED, TRACKED, Remove("a", True)], "SET TBLPROPERTIES")
    again = backfill(snapshot)
    assert not any(file.data_change for file in again)
    after, _ = commit(store, snapshot, lambda read: Transaction(read, [SUPPORTED, TRACKED, *again], "ENABLE", NOTHING))
    assert sorted(ids(after).values()) in ([(0, 1), (4, 1)], [(0, 1), (6, 1)])
    assert high_water_mark(after.domains) == 9
    assert backfill(after) == []


def test_who_moves_rows_says_whether_they_kept_their_ids(store: LocalStore) -> None:
    snapshot = create(store, add("a"))

    def tag(actions: Sequence[Action], **info: object) -> object:
        outcome = Transaction(load_snapshot(store), actions, "X", commit_info=info).attempt(store)
        assert isinstance(outcome, Committed)
        return outcome.commit.commit_info["tags"]["delta.rowTracking.preserved"]

    assert tag([add("b")]) == "true"
    assert tag([Remove("b", True)]) == "true"
    assert tag([*(file.removed(1) for file in snapshot.adds()), add("c")]) == "false"
    assert tag([Remove("c", True), add("d")], tags={"delta.rowTracking.preserved": "true"}) == "true"


def test_a_tracked_table_names_its_columns() -> None:
    tracking = RowTracking.of(TRACKED)
    assert tracking.materialized_row_id.startswith("_row-id-col-")
    assert tracking.materialized_row_commit_version.startswith("_row-commit-version-col-")
    assert RowTracking.of(replace(TRACKED, configuration={**TRACKED.configuration, **new_columns()})) != tracking
    with pytest.raises(LogCorrupt, match="materializedRowIdColumnName"):
        RowTracking.of(UNTRACKED)


@pytest.mark.parametrize(
    ("configuration", "mark"),
    [
        ('{"rowIdHighWaterMark":9,"domainName":"delta.rowTracking"}', 9),
        ('{"highWaterMark":0}', 0),
        ('{"rowIdHighWaterMark":-1}', NO_ID),
    ],
)
def test_marks_of_other_writers(configuration: str, mark: int) -> None:
    assert high_water_mark({DOMAIN: configuration}) == mark


@pytest.mark.parametrize(
    "configuration", ["", "[]", "3", "{}", '{"rowIdHighWaterMark":"9"}', '{"rowIdHighWaterMark":1e3}', "[" * 100_000]
)
def test_a_mark_that_makes_no_sense(configuration: str) -> None:
    with pytest.raises(LogCorrupt, match=r"delta\.rowTracking"):
        high_water_mark({DOMAIN: configuration})


def test_ids_end_with_64_bits(store: LocalStore) -> None:
    snapshot = create(store, add("a", 1))
    full = replace(snapshot, domains={DOMAIN: f'{{"rowIdHighWaterMark":{2**63 - 3}}}'})
    assert isinstance(with_row_ids([add("b", 2)], full, 1)[-1], DomainMetadata)
    with pytest.raises(InvalidInput, match="no row ids left"):
        with_row_ids([add("b", 3)], full, 1)


@given(st.lists(st.lists(st.integers(0, 20), max_size=4), max_size=5))
def test_no_id_is_given_twice(commits: list[list[int]]) -> None:
    snapshot: Snapshot | None = None
    rows: dict[str, int] = {}
    for version, counts in enumerate([[3], *commits]):
        files = [add(f"{version}-{number}", count) for number, count in enumerate(counts)]
        rows |= {file.path: count for file, count in zip(files, counts, strict=True)}
        actions = with_row_ids([*([] if snapshot else [SUPPORTED, TRACKED]), *files], snapshot, version)
        made = Commit(version, "", 0, tuple(actions), None, version)
        snapshot = snapshot.advance([made]) if snapshot else replayed([made])
    assert snapshot is not None
    first = {file.key: file.base_row_id for file in snapshot.adds()}
    given_ids = sorted(first[path] + row for path, count in rows.items() for row in range(count))
    assert given_ids == list(range(sum(rows.values())))
    assert high_water_mark(snapshot.domains) == given_ids[-1]
