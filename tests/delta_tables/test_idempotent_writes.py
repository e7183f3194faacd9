"""A write that an application repeats, because it does not know whether it was committed, is committed once."""

from enum import StrEnum

import pyarrow as pa
import pytest

from dagster_versioned.delta import Table
from dagster_versioned.delta.actions import Txn
from dagster_versioned.delta.commit.transaction import Transaction
from dagster_versioned.delta_tables.dml import WhenMatched, WhenNotMatched
from dagster_versioned.delta_tables.read import read_delta
from dagster_versioned.delta_tables.write import delete_from, merge_delta, update_delta, write_delta
from dagster_versioned.errors import CommitConflict, InvalidInput
from dagster_versioned.storage import LocalStore
from support.delta_writes import files_of, meanwhile, rows_of

ROWS = pa.table({"id": [1, 2], "v": [10, 20]})
COUNT_UP = [WhenMatched({"v": "target.v + 1"}), WhenNotMatched("all")]

VERBS = {
    "append": lambda uri, **txn: write_delta(uri, ROWS, **txn),
    "overwrite": lambda uri, **txn: write_delta(uri, ROWS, "overwrite", **txn),
    "overwrite of some": lambda uri, **txn: write_delta(uri, ROWS, "overwrite", where="id < 9", **txn),
    "delete": lambda uri, **txn: delete_from(uri, "v < 15", **txn),
    "update": lambda uri, **txn: update_delta(uri, {"v": "v + 1"}, **txn),
    "merge": lambda uri, **txn: merge_delta(uri, ROWS, "source.id = target.id", COUNT_UP, **txn),
}
every_verb = pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)


@pytest.fixture
def uri(uri):
    write_delta(uri, ROWS)
    return uri


@every_verb
def test_a_repeated_write_changes_nothing(uri, verb):
    done = verb(uri, app_id="loader", version=7)
    assert (done.version, done.skipped) == (1, False)
    assert Table(uri).app_version("loader") == 7
    rows, files = rows_of(uri), files_of(uri)
    Table(uri).checkpoint()
    for version in (7, 6):
        again = verb(uri, app_id="loader", version=version)
        assert (again.version, again.skipped, dict(again.metrics)) == (1, True, {})
    assert (rows_of(uri), files_of(uri)) == (rows, files)
    assert not verb(uri, app_id="loader", version=8).skipped
    assert not verb(uri, app_id="another", version=1).skipped
    assert not verb(uri).skipped
    assert (Table(uri).app_version("loader"), Table(uri).app_version("nobody")) == (8, None)


def test_the_creation_of_a_table_is_repeated_without_harm(tmp_path):
    uri = str(tmp_path / "new")
    for skipped in (False, True):
        assert write_delta(uri, ROWS, "error", app_id="loader", version=0).skipped is skipped
    assert len(rows_of(uri)) == 2
    with pytest.raises(InvalidInput, match="There is a table"):
        write_delta(uri, ROWS, "error", app_id="loader", version=1)


def test_a_write_that_finds_nothing_to_change_is_remembered_too(uri):
    assert delete_from(uri, "id = 99", app_id="loader", version=1).version == 1
    write_delta(uri, pa.table({"id": [99]}))
    assert delete_from(uri, "id = 99", app_id="loader", version=1).skipped
    assert len(rows_of(uri)) == 3


def test_an_append_stays_a_blind_one(uri):
    write_delta(uri, ROWS, app_id="loader", version=1)
    (commit,) = Table(uri).history(1)
    assert commit.info["isBlindAppend"] is True


def test_of_two_that_write_the_same_at_once_one_is_committed(uri):
    store = meanwhile(uri, lambda: write_delta(uri, ROWS, app_id="loader", version=3))
    lost = write_delta(store, ROWS, app_id="loader", version=3)
    assert (lost.version, lost.skipped) == (1, True)
    assert len(rows_of(uri)) == 4
    assert len(files_of(uri)) == 2


def test_a_later_write_of_the_application_that_lost_the_race_is_a_conflict(uri):
    store = meanwhile(uri, lambda: write_delta(uri, ROWS, app_id="loader", version=3))
    with pytest.raises(CommitConflict, match="'loader' committed version 3"):
        write_delta(store, ROWS, app_id="loader", version=4)
    assert len(files_of(uri)) == 2


def test_who_is_forgotten_writes_again(uri):
    Table(uri).set_properties({"delta.setTransactionRetentionDuration": "interval 1 day"})
    old = Txn("loader", 3, 1)
    Transaction(Table(uri).snapshot(), [old], "WRITE").attempt(LocalStore(uri))
    assert not write_delta(uri, ROWS, app_id="loader", version=3).skipped


@every_verb
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"app_id": "loader"}, "go together"),
        ({"version": 1}, "go together"),
        ({"app_id": "", "version": 1}, "go together"),
        ({"app_id": "loader", "version": -1}, "no number of 0 or more"),
        ({"app_id": "loader", "version": 2**63}, "no number of 0 or more"),
        ({"app_id": "loader", "version": True}, "no number of 0 or more"),
    ],
)
def test_an_identifier_that_is_none_is_refused(uri, verb, given, words):
    with pytest.raises(InvalidInput, match=rf"{words}.*Nothing was written"):
        verb(uri, **given)
    assert Table(uri).version == 0


@every_verb
def test_a_remark_is_in_the_history(uri, verb):
    verb(uri, user_metadata="re-run after the outage")
    assert Table(uri).history(1)[0].info["userMetadata"] == "re-run after the outage"
    with pytest.raises(InvalidInput, match="it is text"):
        verb(uri, user_metadata=7)


def test_an_application_may_be_named_by_a_text_of_any_class(tmp_path):
    class App(StrEnum):
        LOADER = "loader"

    write_delta(str(tmp_path / "t"), pa.table({"n": [1]}), app_id=App.LOADER, version=1)
    write_delta(str(tmp_path / "t"), pa.table({"n": [2]}), app_id="loader", version=1)
    assert read_delta(str(tmp_path / "t"))["n"].to_pylist() == [1]
