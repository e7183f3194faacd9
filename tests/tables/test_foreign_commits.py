"""Commits of other Delta writers: shown, readable, adopted, never mistaken for ours."""

import time
import uuid
from datetime import timedelta

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_versioned.delta.actions import CommitInfo, Protocol, encode_action
from dagster_versioned.delta.features import merge_protocol
from dagster_versioned.delta.files.deletion_vectors import named_by_content, with_vector, write_vectors
from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.errors import (
    CommitConflict,
    IntegrityError,
    InvalidInput,
    UnsupportedFeature,
    VersionNotFound,
)
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.table import VersionedTable
from support.one_table import altered


def append_as_another_program(
    table: VersionedTable, frame: pa.Table, commit_info: dict[str, object] | None = None, **members: object
) -> None:
    """What a Delta writer that knows our writer features, but not us, would commit."""
    name = f"part-00000-{uuid.uuid4()}.snappy.parquet"
    path = table.store.local_path(name)
    assert path is not None
    pq.write_table(frame, path)
    version = table.state.log_version + 1
    now = max(time.time_ns() // 1_000_000, table.state.snapshot.timestamp_ms + 1)
    add = {
        "path": name,
        "partitionValues": {},
        "size": path.stat().st_size,
        "modificationTime": now,
        "dataChange": True,
        **members,
    }
    lines = [
        {"commitInfo": {"inCommitTimestamp": now, "timestamp": now, "operation": "APPEND", **(commit_info or {})}},
        {"add": add},
    ]
    data = b"\n".join(orjson.dumps(line) for line in lines) + b"\n"
    table.store.put_if_absent(f"_delta_log/{version:020d}.json", data)


def test_a_foreign_commit_is_shown_and_read_and_has_no_identity(table: VersionedTable, rows: pa.Table) -> None:
    table.write(rows)
    append_as_another_program(table, rows)
    assert [v.is_foreign for v in table.history()] == [True, False]
    assert table.read().num_rows == 6
    assert table.read(0).num_rows == 3
    assert table.version().is_foreign
    with pytest.raises(VersionNotFound, match="adopt"):
        table.upstream()
    assert table.verify().ok


def test_writing_the_old_rows_over_a_foreign_commit_is_not_none(table: VersionedTable, rows: pa.Table) -> None:
    first = table.write(rows)
    append_as_another_program(table, rows)
    again = table.write(rows)
    assert again.change == "full"
    assert again.version.metadata_sha == first.version.metadata_sha
    assert table.read().num_rows == 3


def test_adopt_gives_what_is_there_an_identity(table: VersionedTable, rows: pa.Table) -> None:
    table.write(rows)
    append_as_another_program(table, rows)
    result = table.adopt(message="backfilled by hand")
    assert result is not None
    assert result.version.identity.nrow == 6
    assert result.version.identity.message == "backfilled by hand"
    assert table.read(result.version.metadata_sha).num_rows == 6
    assert table.adopt() is None
    assert table.verify().ok
    assert table.write(rows).change == "full"
    assert table.read(result.version.metadata_sha).num_rows == 6
    assert table.verify().ok


def test_a_partition_is_not_written_over_files_that_belong_to_none(table: VersionedTable, rows: pa.Table) -> None:
    table.write(rows, partition="1")
    append_as_another_program(table, rows)
    with pytest.raises(Exception, match="no partition"):
        table.write(rows, partition="2")
    with pytest.raises(InvalidInput, match="partition"):
        table.adopt()


def test_a_table_that_another_program_created_is_not_written(project: Project, rows: pa.Table) -> None:
    deltalake = pytest.importorskip("deltalake")
    path = project.data.local_path("theirs")
    deltalake.write_deltalake(str(path), rows)
    table = project.table("theirs")
    assert table.read().num_rows == 3
    with pytest.raises(UnsupportedFeature, match="another program"):
        table.write(rows)
    assert table.state.log_version == 0


def test_deltalake_refuses_to_write_to_our_tables(table: VersionedTable, rows: pa.Table) -> None:
    deltalake = pytest.importorskip("deltalake")
    table.write(rows)
    with pytest.raises(Exception, match=r"(?i)feature"):
        deltalake.write_deltalake(str(table.store.local_path("x").parent), rows, mode="append")  # type: ignore[union-attr]
    assert table.read().num_rows == 3


def test_expire_never_takes_what_a_foreign_commit_left(table: VersionedTable, rows: pa.Table, more: pa.Table) -> None:
    table.write(rows)
    table.write(more)
    append_as_another_program(table, rows)
    table.expire(keep_last=1, dry_run=False)
    assert table.read().num_rows == 7
    assert table.verify().ok


def test_a_commit_with_our_member_but_no_versions_is_foreign(table: VersionedTable, rows: pa.Table) -> None:
    table.write(rows)
    append_as_another_program(table, rows, commit_info={"dagsterVersioned": {}})
    assert table.read().num_rows == 6
    assert table.write(rows).change == "full"
    assert table.read().num_rows == 3


def test_a_partition_is_not_written_to_a_table_that_is_all_foreign(table: VersionedTable, rows: pa.Table) -> None:
    table.write(rows)
    path = table.store.local_path("_delta_log/00000000000000000000.json")
    assert path is not None
    lines = path.read_bytes().splitlines()
    info = orjson.loads(lines[0])
    del info["commitInfo"]["dagsterVersioned"]
    path.write_bytes(b"\n".join([orjson.dumps(info), *lines[1:]]) + b"\n")
    fresh = table.project.table("flights")
    with pytest.raises(CommitConflict, match="no partition"):
        fresh.write(rows, partition="x")


def mark_as_another_program(table: VersionedTable, *, inline: bool) -> str:
    """Another program deletes the second row of the table's one part; returns the key of that."""
    snapshot = table.state.snapshot
    (part,) = snapshot.adds()
    deleted = {part.key: np.array([1])}
    named = (
        {part.key: named_by_content(deleted).vectors[part.key][0]} if inline else write_vectors(table.store, deleted)
    )
    protocol = merge_protocol(snapshot.protocol, Protocol(3, 7, ("deletionVectors",), ("deletionVectors",)))
    now = snapshot.timestamp_ms + 1
    info = CommitInfo({"inCommitTimestamp": now, "timestamp": now, "operation": "DELETE"})
    actions = (info, protocol, part.removed(now), with_vector(part, named[part.key], 3))
    data = b"\n".join(encode_action(action) for action in actions) + b"\n"
    table.store.put_if_absent(f"_delta_log/{snapshot.version + 1:020d}.json", data)
    return part.key


@pytest.mark.parametrize("inline", [True, False])
def test_what_another_program_deleted_by_a_vector_is_gone_and_can_be_adopted(
    table: VersionedTable, rows: pa.Table, inline: bool
) -> None:
    before = table.write(rows).version
    mark_as_another_program(table, inline=inline)
    left = [rows.to_pylist()[0], rows.to_pylist()[2]]
    assert table.read().to_pylist() == left
    assert table.verify().ok
    adopted = table.adopt()
    assert adopted is not None
    assert (adopted.version.identity.nrow, adopted.version.facts.parquet_sha) == (2, None)
    assert adopted.version.data_sha != before.data_sha
    assert not table.publisher.checks(table.state)  # of one part, but datom would read the rows that are gone
    assert table.read(adopted.version.metadata_sha).to_pylist() == left
    assert table.vacuum(min_age=timedelta(0), dry_run=False).keys == ()
    merged = TableOptions(mode="merge", merge_key=("carrier",))
    table.write(pa.table({"carrier": ["AA"], "delay": [7]}), options=merged)
    assert table.read().sort_by("delay").to_pylist() == [left[1], {"carrier": "AA", "delay": 7}]
    table.revert(adopted.version.metadata_sha)
    assert table.read().to_pylist() == left
    assert table.write(rows).version.data_sha == before.data_sha
    assert table.read().to_pylist() == rows.to_pylist()
    table.verify().require_ok()


def test_a_vector_that_makes_no_sense_returns_no_row(table: VersionedTable, rows: pa.Table) -> None:
    table.write(rows)
    vector = {"storageType": "i", "pathOrInlineDv": "wi5b=", "sizeInBytes": 4, "cardinality": 1}
    append_as_another_program(table, rows, deletionVector=vector)
    fresh = table.project.table("flights")
    for use in (fresh.read, fresh.adopt):
        with pytest.raises(IntegrityError, match="deletion vector"):
            use()


def test_a_table_whose_columns_another_program_mapped_is_refused_by_name(table: VersionedTable, rows: pa.Table) -> None:
    table.write(rows)
    schema = table.state.snapshot.schema.to_json()
    for number, field in enumerate(schema["fields"]):
        field["metadata"] = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": field["name"]}
    mode = {"delta.columnMapping.mode": "name"}
    fresh = altered(table, "columnMapping", readers=("columnMapping",), schema=schema, properties=mode)
    for use in (fresh.read, lambda: fresh.write(rows)):
        with pytest.raises(UnsupportedFeature, match="columnMapping"):
            use()


class TestPartitionColumns:
    """A table of ours whose files are grouped by the values of a column, to which another program added one."""

    OPTIONS = TableOptions(partition_columns=("carrier",))

    @pytest.fixture
    def foreign(self, table: VersionedTable, rows: pa.Table) -> VersionedTable:
        table.write(rows, options=self.OPTIONS)
        append_as_another_program(table, rows.slice(0, 1).drop_columns("carrier"), partitionValues={"carrier": "AA"})
        append_as_another_program(table, rows.slice(2, 1).drop_columns("carrier"), partitionValues={"carrier": None})
        return table

    def test_all_commits_since_the_head_are_adopted_as_one_version(self, foreign: VersionedTable, rows: pa.Table):
        result = foreign.adopt()
        assert result is not None
        assert [version.is_foreign for version in foreign.history()] == [False, True, True, False]
        expected = pa.concat_tables([rows, rows.slice(0, 1), rows.slice(2, 1)])
        assert canonical(foreign.read(result.version.metadata_sha)) == canonical(expected)
        measured = ArrowEngine().measure(expected, foreign.files().scan.schema)
        facts = result.version.facts
        assert (facts.digest, facts.null_counts) == (measured.digest.text, measured.null_counts)
        assert foreign.verify().ok
        assert foreign.adopt() is None

    def test_rows_are_appended_to_what_was_adopted(self, foreign: VersionedTable, rows: pa.Table):
        foreign.adopt()
        options = TableOptions(mode="append", partition_columns=("carrier",))
        result = foreign.write(rows, options=options)
        assert result.version.identity.nrow == foreign.read().num_rows == 8
        assert foreign.verify().ok

    def test_other_partition_values_than_the_tables_are_refused(self, table: VersionedTable, rows: pa.Table):
        table.write(rows, options=self.OPTIONS)
        append_as_another_program(table, rows, partitionValues={})
        with pytest.raises(InvalidInput, match="partition columns \\[\\], but the table is partitioned by"):
            table.adopt()
        assert table.history()[0].is_foreign


def canonical(frame: pa.Table) -> list[tuple[object, ...]]:
    rows = [tuple(row[name] for name in sorted(frame.column_names)) for row in frame.to_pylist()]
    return sorted(rows, key=repr)


def test_rows_that_are_there_already_are_added_after_a_part_was_taken_out_and_adopted(table: VersionedTable) -> None:
    append = TableOptions(mode="append")
    for numbers in ((1, 2), (3, 4), (5, 6)):
        table.write(pa.table({"n": list(numbers)}), options=append)
    remove_as_another_program(table, [3, 4])
    table.adopt()
    table.write(pa.table({"n": [5, 6]}), options=append)
    assert sorted(table.read()["n"].to_pylist()) == [1, 2, 5, 5, 6, 6]
    table.verify().require_ok()


def remove_as_another_program(table: VersionedTable, numbers: list[int]) -> None:
    """Take out the part with these rows."""
    state = table.state
    gone = next(
        add
        for add in state.snapshot.adds()
        if (path := table.store.local_path(add.key)) is not None and pq.read_table(path)["n"].to_pylist() == numbers
    )
    now = state.snapshot.timestamp_ms + 1
    lines = [
        {"commitInfo": {"inCommitTimestamp": now, "timestamp": now, "operation": "DELETE"}},
        {"remove": {"path": gone.path, "deletionTimestamp": now, "dataChange": True}},
    ]
    data = b"\n".join(orjson.dumps(line) for line in lines) + b"\n"
    table.store.put_if_absent(f"_delta_log/{state.log_version + 1:020d}.json", data)
