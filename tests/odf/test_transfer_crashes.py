"""A pull or a push that dies at any moment: nothing is half there, and the next one goes on. So do two at once."""

from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from dagster_versioned.errors import CommitConflict, VersionedError
from dagster_versioned.odf.blocks.block_iterator import iterate_blocks
from dagster_versioned.odf.blocks.events import AddData
from dagster_versioned.odf.event_table import EventTable
from dagster_versioned.odf.identity.multihash import Multihash
from dagster_versioned.odf.sharing.remote import RemoteDataset
from dagster_versioned.odf.sharing.staged_pull import PULLED
from dagster_versioned.odf.sharing.transfer import pull, push
from dagster_versioned.odf.verification.verify import verify
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import LocalStore, ObjectStore
from dagster_versioned.storage.wrappers import Call, FaultStore
from dagster_versioned.tables.chain_head import chain_head
from dagster_versioned.tables.table import VersionedTable
from support.interleaving import dying
from support.odf_graph import Served, add_readings


def copy_in(store: ObjectStore) -> VersionedTable:
    return Project("COPY", store).table("readings")


def head_of(table: VersionedTable) -> Multihash | None:
    end = chain_head(table.state.snapshot) if table.exists() else None
    return None if end is None else Multihash.parse(end.head)


def heads_of(source: Served) -> list[Multihash]:
    """Where a copy of the source may end: a block with data."""
    links = iterate_blocks(source.remote, source.remote.head())
    return [link.name for link in links if isinstance(link.block.event, AddData)]


def check(table: VersionedTable, source: Served) -> None:
    """Everything of the copy is what it claims to be, and nothing waits any more."""
    assert head_of(table) == source.remote.head()
    assert table.verify().ok
    assert verify(RemoteDataset(table.store)).ok
    assert EventTable(table).events()["offset"].to_pylist() == list(range(12))
    assert list(table.store.list(PULLED)) == []


def test_a_pull_that_died_left_whole_versions_and_the_next_one_brings_the_rest(source: Served, tmp_path: Path):
    for number in count(1):
        store = LocalStore(tmp_path / str(number))
        stepped = dying(store, number)
        with suppress(VersionedError):
            pull(source.remote, copy_in(stepped))
        table = copy_in(store)
        if (head := head_of(table)) is not None:
            assert head in heads_of(source)
            assert EventTable(table).current().num_rows in (6, 12)
        pull(source.remote, table)
        check(table, source)
        if not stepped.shared["dead"]:
            break
    assert number > 10


def test_a_push_that_died_shows_the_old_head_or_the_new_one_and_the_next_one_brings_the_rest(
    source: Served, tmp_path: Path
):
    table = copy_in(LocalStore(tmp_path / "copy"))
    pull(source.remote, table)
    for number in count(1):
        folder = tmp_path / str(number)
        shared = LocalStore(folder)
        stepped = dying(shared, number)
        with suppress(VersionedError):
            push(table, stepped, key=source.key)
        if (folder / "refs/head").exists():
            assert not verify(RemoteDataset(shared)).datasets[0].findings
        push(table, shared, key=source.key)
        report = verify(RemoteDataset(shared))
        assert report.ok
        assert report.datasets[0].signed == source.remote.head()
        if not stepped.shared["dead"]:
            break
    assert number > 3


class Interrupting(FaultStore):
    """Lets something else happen before the first call that fits."""

    def __init__(self, store: ObjectStore, fits: Callable[[Call], bool], other: Callable[[], object]) -> None:
        self.waiting = True

        def decide(call: Call) -> None:
            if self.waiting and fits(call):
                self.waiting = False
                other()

        super().__init__(store, decide)


@pytest.mark.parametrize(
    ("verb", "key"),
    [
        ("put", f"{PULLED}blocks/"),
        ("get", f"{PULLED}blocks/"),
        ("put_chunks", f"{PULLED}data/"),
        ("copy", "/data/"),
        ("put_if_absent", "_delta_log/00000000000000000000.json"),
        ("put_if_absent", "_delta_log/00000000000000000001.json"),
        ("list", PULLED),
    ],
)
def test_two_pulls_at_once_both_end_with_the_whole_dataset(source: Served, tmp_path: Path, verb: str, key: str):
    store = LocalStore(tmp_path / "copy")
    interrupting = Interrupting(
        store,
        lambda call: call.verb == verb and key in call.key,
        lambda: pull(source.remote, copy_in(store)),
    )
    done = pull(source.remote, copy_in(interrupting), require_signature=True)
    assert not interrupting.waiting
    assert done.head == source.remote.head()
    check(copy_in(store), source)


def test_two_pushes_at_once_leave_what_one_of_them_pushed(source: Served, tmp_path: Path):
    table = copy_in(LocalStore(tmp_path / "copy"))
    pull(source.remote, table)
    shared = LocalStore(tmp_path / "shared")
    interrupting = Interrupting(shared, lambda call: call.verb == "put_if_match", lambda: push(table, shared))
    with pytest.raises(CommitConflict, match=r"Somebody else pushed to .* meanwhile"):
        push(table, interrupting)
    assert verify(RemoteDataset(shared)).ok
    assert push(table, shared).blocks == 0


def test_what_is_published_while_it_is_pulled_comes_with_the_next_pull(source: Served, tmp_path: Path):
    store = LocalStore(tmp_path / "copy")
    before = source.remote.head()
    remote = RemoteDataset(
        Interrupting(
            LocalStore(source.folder), lambda call: "/data/" in f"/{call.key}", lambda: add_readings(source, 12)
        )
    )
    assert pull(remote, copy_in(store)).head == before
    assert pull(remote, copy_in(store)).head == source.remote.head() != before
    assert verify(RemoteDataset(copy_in(store).store)).ok
