"""Must show 4: eight processes change one Delta table at once, and its history is a serial order of what succeeded.

Every step that a writer was told had succeeded is one version; every version is such a step; and the steps, done one
after the other to plain Python rows (`support.delta_model`), give the rows of every version.
"""

from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest

from dagster_versioned.delta.table import Table
from dagster_versioned.delta_tables.read import read_delta
from support.delta_model import TYPES, Append, State, bag_of
from support.delta_racers import Done, random_steps
from support.delta_steps import ArrowSteps, create
from support.s3_server import S3Server
from support.tmpfs import scratch
from support.writers import at_once

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1_200)]

WRITERS = 8
PROPERTIES = {
    "plain": {},
    "vectors": {"delta.enableDeletionVectors": "true"},
    "everything": {
        "delta.enableDeletionVectors": "true",
        "delta.enableChangeDataFeed": "true",
        "delta.columnMapping.mode": "name",
        "delta.enableRowTracking": "true",
        "delta.enableInCommitTimestamps": "true",
    },
}
SERIALIZABLE = {"delta.isolationLevel": "Serializable"}
FIRST = Append(tuple({"k": k, "v": 0, "s": "first", "p": "abc"[k % 3]} for k in range(20)))


@pytest.fixture
def bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    # The processes find the keys in the environment.
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.secret_key)
    return f"s3://{s3_server.new_bucket()}/table?region={s3_server.region}&endpoint_url={s3_server.endpoint_url}"


@pytest.fixture
def folder() -> Iterator[str]:
    with scratch() as path:
        yield str(path / "table")


def race(uri: str, properties: dict[str, str], steps: int, seed: int) -> dict[int, Done]:
    """Have the writers at the table; what was done, by version."""
    create(uri, TYPES, partitioned=True, properties=properties)
    assert ArrowSteps().apply(uri, FIRST, TYPES) == 1
    results = at_once(partial(random_steps, seed=seed), uri, WRITERS, steps)
    done = [one for successes, _ in results for one in successes]
    refused = [reason for _, reasons in results for reason in reasons]
    assert len(done) + len(refused) == WRITERS * steps
    print(
        f"{len(done)} of {WRITERS * steps} steps done; refused: {Counter(reason.split(':')[0] for reason in refused)}"
    )
    versions = Counter(version for version, _ in done if version is not None)
    newest = Table(uri).version
    assert versions == Counter(range(2, newest + 1)), "each version is one step, and each step is one version"
    return {version: (version, step) for version, step in done if version is not None}


def check_serial(uri: str, done: dict[int, Done]) -> None:
    """Every version is what the steps up to it, one after the other, give."""
    history = {0: State(TYPES)}
    for version in range(1, max(done, default=1) + 1):
        step = FIRST if version == 1 else done[version][1]
        history[version] = state = step.after(history[version - 1], history)
        found = read_delta(uri, version)
        assert set(found.column_names) == set(state.columns)
        assert bag_of(found.to_pylist(), state.columns) == state.bag, f"version {version}: {step}"


def check_nothing_left(uri: str) -> None:
    """What lost a race took its files with it."""
    table = Table(uri)
    known = {key for version in range(table.version + 1) for key in files_of(table, version)}
    present = {
        info.key for info in table.store.list() if info.key.endswith(".parquet") and "_delta_log" not in info.key
    }
    assert {key for key in present - known if "_change_data" not in key} == set()


def files_of(table: Table, version: int) -> list[str]:
    return table.files(version)["key"].to_pylist()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vectors", "plain", "everything"])
def test_the_history_is_a_serial_order_of_what_succeeded(folder: str, name: str) -> None:
    done = race(folder, PROPERTIES[name] | SERIALIZABLE, 4, seed=1)
    check_serial(folder, done)
    check_nothing_left(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROPERTIES)
def test_a_long_history_is_a_serial_order_of_what_succeeded(folder: str, name: str) -> None:
    done = race(folder, PROPERTIES[name] | SERIALIZABLE, 40, seed=2)
    check_serial(folder, done)
    check_nothing_left(folder)


@pytest.mark.slow
@pytest.mark.s3
@pytest.mark.parametrize("name", PROPERTIES)
def test_the_history_on_s3_is_a_serial_order_of_what_succeeded(bucket: str, name: str) -> None:
    done = race(bucket, PROPERTIES[name] | SERIALIZABLE, 10, seed=3)
    check_serial(bucket, done)
    check_nothing_left(bucket)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROPERTIES)
def test_by_default_appends_may_take_effect_later(folder: str, name: str) -> None:
    """*WriteSerializable*: a change may not have seen blind appends that were committed before it; then the serial
    order is another than that of the versions, but there is one."""
    done = race(folder, PROPERTIES[name], 20, seed=4)
    history = {0: State(TYPES)}
    for version in range(1, max(done, default=1) + 1):
        step = FIRST if version == 1 else done[version][1]
        found = bag_of(read_delta(folder, version).to_pylist(), step.after(history[version - 1], history).columns)
        unseen: list[Append] = []
        for earlier in range(version - 1, -1, -1):
            state = without(history[version - 1], unseen)
            after = step.after(state, history)
            after = after.with_rows([*after.rows, *(row for append in unseen for row in append.rows)])
            if after.bag == found:
                history[version] = after
                break
            if earlier > 1 and isinstance(done[earlier][1], Append):
                unseen.append(done[earlier][1])
        else:
            pytest.fail(f"version {version}: {step} has no place in a serial order")


def without(state: State, appends: list[Append]) -> State:
    """A state before some appends."""
    gone = bag_of((row for append in appends for row in append.rows), state.columns)
    kept = []
    for row in state.rows:
        values = tuple(row.get(name) for name in state.columns)
        if gone[values]:
            gone[values] -= 1
        else:
            kept.append(row)
    return State(state.columns, tuple(kept))
