"""Tables that another program created, or gave a rule: taken over by `adopt`, and written by obeying what they ask."""

from pathlib import Path

import deltalake
import orjson
import pyarrow as pa
import pytest

from dagster_versioned.delta.table import Table
from dagster_versioned.errors import InvalidInput, UnsupportedFeature
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.table import VersionedTable
from support.one_table import altered

APPEND = TableOptions(mode="append")


def rows(*numbers: int | None) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64()), "word": [str(number) for number in numbers]})


@pytest.fixture
def place(project: Project) -> Path:
    """Where the table lies."""
    path = project.data.local_path("theirs")
    assert path is not None
    return path


@pytest.fixture
def theirs(project: Project, place: Path) -> VersionedTable:
    """A table of two commits by another program."""
    for numbers in ((1, 2), (3,)):
        deltalake.write_deltalake(place, rows(*numbers), mode="append")
    return project.table("theirs")


class TestTakenOver:
    def test_all_that_is_there_becomes_one_version_and_the_table_is_written_on(self, theirs, place):
        with pytest.raises(UnsupportedFeature, match="adopt"):
            theirs.write(rows(4))
        version = theirs.adopt().version
        assert (version.identity.nrow, [one.is_foreign for one in theirs.history()]) == (3, [False, True, True])
        theirs.write(rows(4), options=APPEND)
        assert sorted(theirs.read()["n"].to_pylist()) == [1, 2, 3, 4]
        assert sorted(theirs.read(version.metadata_sha)["n"].to_pylist()) == [1, 2, 3]
        assert theirs.read(0).num_rows == 2
        theirs.verify().require_ok()
        opened = deltalake.DeltaTable(place)
        assert sorted(opened.to_pandas()["n"]) == [1, 2, 3, 4]
        assert sorted(deltalake.DeltaTable(place, version=1).to_pandas()["n"]) == [1, 2, 3]

    def test_times_of_commits_ascend_over_the_adoption(self, theirs):
        theirs.adopt()
        theirs.write(rows(4))
        times = [version.timestamp for version in theirs.history()]
        assert times == sorted(times, reverse=True)

    def test_of_partition_columns(self, project, place):
        deltalake.write_deltalake(place, rows(1, 2), partition_by=["word"])
        table = project.table("theirs")
        assert table.adopt().version.identity.nrow == 2
        table.write(rows(3), options=TableOptions(mode="append", partition_columns=("word",)))
        assert sorted(table.read()["n"].to_pylist()) == [1, 2, 3]
        table.verify().require_ok()

    def test_history_is_kept_however_soon_it_was_to_go(self, project, place):
        retention = ("delta.deletedFileRetentionDuration", "delta.logRetentionDuration")
        short = dict.fromkeys(retention, "interval 1 days")
        deltalake.write_deltalake(place, rows(1), configuration=short)
        table = project.table("theirs")
        table.adopt()
        table.write(rows(2))
        opened = deltalake.DeltaTable(place)
        assert opened.metadata().configuration["delta.logRetentionDuration"] == "interval 36500 days"
        assert opened.vacuum(dry_run=True) == []

    def test_an_append_only_table_stays_one(self, project, place):
        deltalake.write_deltalake(place, rows(1), configuration={"delta.appendOnly": "true"})
        table = project.table("theirs")
        table.adopt()
        with pytest.raises(InvalidInput, match="append-only"):
            table.write(rows(2))
        table.write(rows(2), options=APPEND)
        assert sorted(table.read()["n"].to_pylist()) == [1, 2]


class TestNotNull:
    @pytest.fixture
    def table(self, theirs: VersionedTable, place: Path) -> VersionedTable:
        Table(str(place)).set_not_null("n")
        theirs.adopt()
        return theirs

    def test_a_null_is_refused_and_nothing_is_written(self, table):
        for options in (TableOptions(), APPEND, TableOptions(mode="merge", merge_key=("word",))):
            before = table.state.log_version
            with pytest.raises(InvalidInput, match="'n' of the table is NOT NULL, by another program"):
                table.write(rows(4, None), options=options)
            assert table.project.table("theirs").state.log_version == before

    def test_other_rows_are_written_and_the_rule_stays(self, table):
        for options in (APPEND, TableOptions()):
            table.write(rows(4, 5), options=options)
            assert not table.state.snapshot.schema.field("n").nullable
            assert table.state.snapshot.schema.field("word").nullable
        assert table.write(rows(4, 5)).change == "none"
        table.verify().require_ok()

    def test_a_version_is_reverted_to_under_the_rule(self, table):
        first = table.version()
        table.write(rows(4))
        table.revert(first.metadata_sha)
        assert not table.state.snapshot.schema.field("n").nullable

    def test_a_column_that_goes_takes_its_rule_along(self, table):
        table.write(pa.table({"word": ["x"]}))
        table.write(rows(None))
        assert table.read()["n"].to_pylist() == [None]


def test_a_partition_that_lacks_a_column_which_is_not_null_is_refused(project):
    table = project.table("parts")
    table.write(rows(1), partition="a")
    schema = table.state.snapshot.schema.to_json()
    for member in schema["fields"]:
        member["nullable"] = member["name"] != "word"
    fresh = altered(table, "invariants", schema=schema)
    with pytest.raises(InvalidInput, match=r"'word' of the table is NOT NULL, .* is null in 2 rows"):
        fresh.write(pa.table({"n": [1, 2]}), partition="b")
    fresh.write(rows(2), partition="b")
    assert not fresh.state.snapshot.schema.field("word").nullable


def given_metadata(place: Path, column: str, **metadata: object) -> None:
    """A column as a program leaves it that uses a feature which `deltalake` does not write."""
    entry = place / "_delta_log" / f"{0:020d}.json"
    actions = [orjson.loads(line) for line in entry.read_bytes().splitlines()]
    for action in actions:
        if "protocol" in action:
            action["protocol"] = {"minReaderVersion": 1, "minWriterVersion": 6}
        if "metaData" in action:
            schema = orjson.loads(action["metaData"]["schemaString"])
            for member in schema["fields"]:
                member["metadata"] |= metadata if member["name"] == column else {}
            action["metaData"]["schemaString"] = orjson.dumps(schema).decode()
    entry.write_bytes(b"\n".join(map(orjson.dumps, actions)) + b"\n")


def test_a_table_whose_rules_versions_cannot_obey_is_not_taken_over(theirs, place):
    given_metadata(place, "n", **{"delta.identity.start": 1, "delta.identity.step": 1})
    with pytest.raises(UnsupportedFeature, match="identityColumns"):
        theirs.adopt()
    assert theirs.state.log_version == 1


def test_a_field_within_a_column_that_is_not_null_is_named(project, place):
    member = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    nested = pa.table({"word": ["a"], "deep": pa.array([{"x": 1}], member)})
    deltalake.write_deltalake(place, nested)
    table = project.table("theirs")
    table.adopt()
    with pytest.raises(UnsupportedFeature, match=r"the NOT NULL field 'deep\.x'"):
        table.write(nested, options=APPEND)
    table.write(nested.drop_columns("deep"))
    assert table.read()["word"].to_pylist() == ["a"]


def test_what_else_is_known_of_a_column_stays(theirs, place):
    given_metadata(place, "word", comment="as it is spelled")
    theirs.adopt()
    theirs.write(rows(4))
    assert theirs.state.snapshot.schema.field("word").metadata == {"comment": "as it is spelled"}
    assert deltalake.DeltaTable(place).schema().fields[1].metadata == {"comment": "as it is spelled"}
