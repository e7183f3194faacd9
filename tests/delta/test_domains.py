"""Metadata domains of one's own, and remarks in the history."""

import pyarrow as pa
import pytest

from dagster_versioned.delta import Table
from dagster_versioned.delta.commit.domains import remove_domain, set_domain
from dagster_versioned.delta.commit.transaction import commit
from dagster_versioned.delta.features import writer_features
from dagster_versioned.delta.log.commits import read_commit
from dagster_versioned.delta_tables.read import read_delta
from dagster_versioned.delta_tables.write import write_delta
from dagster_versioned.errors import CommitConflict, InvalidInput

NAME = "org.example.loader"


@pytest.fixture
def table(tmp_path):
    write_delta(str(tmp_path), pa.table({"a": [1]}), properties={"owner": "ada"})
    return Table(str(tmp_path))


def domain_action(table):
    (action,) = read_commit(table.store, table.version).domains
    return action.to_json()


def test_a_domain_is_set_read_and_removed(table):
    assert table.set_domain(NAME, '{"offset":1}') == 1
    assert "domainMetadata" in writer_features(table.protocol)
    assert table.domains == {NAME: '{"offset":1}'}
    table.set_domain(NAME, "any text")
    table.set_domain("org.example.other", "")
    assert dict(table.domains) == {NAME: "any text", "org.example.other": ""}
    table.checkpoint()
    assert Table(table.store).domains == table.domains
    assert table.remove_domain(NAME) == 4
    assert domain_action(table) == {"domain": NAME, "configuration": "any text", "removed": True}
    assert dict(Table(table.store).domains) == {"org.example.other": ""}
    assert table.snapshot(1).domains == {NAME: '{"offset":1}'}
    assert [entry.operation for entry in table.history(2)] == ["REMOVE DOMAIN METADATA", "SET DOMAIN METADATA"]


def test_rows_and_other_changes_leave_domains_as_they_are(table):
    table.set_domain(NAME, "x")
    write_delta(table.store.uri, pa.table({"a": [2]}), "overwrite")
    table.cluster_by("a")
    assert set(table.domains) == {NAME, "delta.clustering"}
    table.restore(1)
    assert table.domains[NAME] == "x"
    assert set(table.domains) == {NAME}  # the clustering goes back
    assert read_delta(table.store.uri)["a"].to_pylist() == [1]


@pytest.mark.parametrize(
    ("name", "whose"),
    [("delta.clustering", "the protocol"), ("Delta.x", "the protocol"), ("dagster_versioned.version", "versioned")],
)
def test_domains_of_others_are_left_alone(table, name, whose):
    for change in (lambda: table.set_domain(name, "{}"), lambda: table.remove_domain(name)):
        with pytest.raises(InvalidInput, match=f"{name!r} belongs to {whose}.*Nothing was written"):
            change()
    assert table.version == 0


@pytest.mark.parametrize(("name", "text"), [("", "x"), (None, "x"), (NAME, {"a": 1}), (NAME, None)])
def test_what_is_no_domain_is_refused(table, name, text):
    with pytest.raises(InvalidInput, match=r"text.*Nothing was written"):
        table.set_domain(name, text)


def test_a_domain_that_is_not_there_is_not_removed(table):
    table.set_domain("org.example.other", "")
    with pytest.raises(
        InvalidInput, match=r"no metadata domain 'org.example.loader'; there are \['org.example.other'\]"
    ):
        table.remove_domain(NAME)


def test_two_that_change_one_domain_at_once_conflict(table):
    table.set_domain(NAME, "first")
    read = table.snapshot()
    Table(table.store).set_domain(NAME, "theirs")
    for change in (lambda one: set_domain(one, NAME, "ours"), lambda one: remove_domain(one, NAME)):
        with pytest.raises(CommitConflict, match=NAME):
            commit(table.store, read, change)
    commit(table.store, read, lambda one: set_domain(one, "org.example.other", "ours"))
    assert Table(table.store).domains == {NAME: "theirs", "org.example.other": "ours"}


def test_a_change_has_the_remark_of_whoever_made_it(table):
    named = Table(table.store, user_metadata="ticket 12")
    named.set_properties({"owner": "bob"})
    named.restore(0)
    table.set_properties({"owner": "eve"})
    assert [entry.user_metadata for entry in table.history()] == [None, "ticket 12", "ticket 12", None]
    assert "operationMetrics" in table.history()[1].info
