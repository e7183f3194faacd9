"""What a reference means, and what a read returns."""

from datetime import UTC, datetime, timedelta

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dagster_versioned.errors import (
    AmbiguousVersion,
    ExpiredVersion,
    IntegrityError,
    InvalidInput,
    InvalidReference,
    TableNotFound,
    VersionNotFound,
)
from dagster_versioned.identity.reference import parse_reference
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.history import CommitRecord, History
from dagster_versioned.tables.table import VersionedTable


def frames(count: int) -> list[pa.Table]:
    return [pa.table({"n": list(range(n + 1))}) for n in range(count)]


def test_every_way_to_name_a_version_reads_its_rows(table: VersionedTable) -> None:
    versions = [table.write(frame).version for frame in frames(3)]
    for n, version in enumerate(versions):
        assert version.metadata_sha is not None
        for reference in (version.metadata_sha, version.metadata_sha[:8], n, f"@{n}", version.timestamp):
            assert table.read(reference).num_rows == n + 1, reference
        assert table.read(version.timestamp.isoformat()).num_rows == n + 1
    assert table.read().num_rows == 3
    assert table.read(datetime.now(UTC) + timedelta(days=1)).num_rows == 3


def test_the_newest_occurrence_of_an_identity_wins(table: VersionedTable) -> None:
    a, b = frames(2)
    first = table.write(a).version
    table.write(b)
    table.write(a)
    assert table.version(first.metadata_sha).log_version == 2


@pytest.mark.parametrize("reference", ["abc", "xyz123", "2013-01-01", "@x", "pin:", ""])
def test_what_is_no_reference_is_refused(table: VersionedTable, reference: str) -> None:
    table.write(frames(1)[0])
    with pytest.raises(InvalidReference):
        table.read(reference)


def test_unknown_versions_are_not_found(table: VersionedTable) -> None:
    with pytest.raises(TableNotFound):
        table.read()
    table.write(frames(1)[0])
    for reference in ("0" * 64, "@5", datetime(2001, 1, 1, tzinfo=UTC), "pin:none"):
        with pytest.raises(VersionNotFound):
            table.read(reference)


def test_an_ambiguous_prefix_lists_the_versions(table: VersionedTable) -> None:
    shas = {table.write(pa.table({"n": [n]})).version.metadata_sha for n in range(2)}
    state = table.state
    one, two = (sha for sha in shas if sha)
    forged = [
        CommitRecord(
            n,
            0,
            "0" * 64,
            "WRITE",
            {"versions": [{**record.info["versions"][0], "metadata_sha": "abcdef" + sha[6:]}]},
            changes_files=True,
        )
        for n, (record, sha) in enumerate(zip(state.history.records, (one, two), strict=True))
        if record.info is not None
    ]
    with pytest.raises(AmbiguousVersion, match="abcdef"):
        History(forged).find(parse_reference("abcdef"))


def test_a_pin_names_a_version_and_is_not_moved_silently(project: Project) -> None:
    table = project.table("flights")
    first = table.write(frames(1)[0]).version
    project.pin("submitted", "flights", by="Ada", why="filing 7")
    table.write(frames(2)[1])
    assert table.read("pin:submitted").num_rows == 1
    assert project.pins()["submitted"].version == first.metadata_sha
    with pytest.raises(InvalidInput, match="already names"):
        project.pin("submitted", "flights")
    project.unpin("submitted")
    with pytest.raises(VersionNotFound):
        table.read("pin:submitted")
    with pytest.raises(VersionNotFound):
        project.unpin("submitted")


def test_a_read_returns_the_asked_type_and_columns(table: VersionedTable) -> None:
    table.write(pa.table({"a": [1, None], "b": ["x", "y"]}))
    assert isinstance(table.read(as_type=pd.DataFrame), pd.DataFrame)
    assert table.read(as_type=pl.DataFrame).shape == (2, 2)
    assert table.read(as_type=pl.LazyFrame).collect().shape == (2, 2)
    assert table.read(as_type=pa.RecordBatchReader).read_all().num_rows == 2
    assert table.read(columns=["b"]).column_names == ["b"]
    with pytest.raises(InvalidInput, match="nope"):
        table.read(columns=["nope"])


def test_a_read_is_pinned_to_the_files_it_was_given(table: VersionedTable) -> None:
    table.write(frames(1)[0])
    files = table.files()
    table.write(frames(3)[2])
    assert table.read_files(files).num_rows == 1


@pytest.mark.parametrize("damage", ["altered", "truncated", "removed"])
def test_a_damaged_part_is_detected_before_a_row_is_returned(table: VersionedTable, damage: str) -> None:
    version = table.write(frames(3)[2]).version
    key = f"{version.data_sha}.parquet"
    data = table.store.get(key)
    if damage == "altered":
        table.store.put(key, data[:40] + bytes([data[40] ^ 1]) + data[41:])
    elif damage == "truncated":
        table.store.put(key, data[:-10])
    else:
        table.store.delete([key])
    with pytest.raises(IntegrityError, match=str(version.data_sha)[:8]):
        table.read()
    report = table.verify()
    assert [finding.subject for finding in report.findings] == ["part"]
    with pytest.raises(IntegrityError):
        report.require_ok()


def test_an_altered_identity_is_detected_before_a_row_is_returned(table: VersionedTable) -> None:
    table.write(frames(1)[0], message="true")
    key = "_delta_log/00000000000000000000.json"
    table.store.put(key, table.store.get(key).replace(b'"true"', b'"fake"'))
    fresh = table.project.table("flights")
    with pytest.raises(IntegrityError):
        fresh.read()
    assert "identity" in {finding.subject for finding in fresh.verify().findings}


def test_a_reader_in_another_process_position_sees_new_commits(table: VersionedTable) -> None:
    reader = table.project.table("flights")
    table.write(frames(1)[0])
    assert reader.read().num_rows == 1
    for frame in frames(30)[1:]:
        table.write(frame)
    assert reader.read().num_rows == 30
    assert reader.history() == table.history()


def test_diff_says_what_changed(project: Project) -> None:
    source, table = project.table("source"), project.table("flights")
    source.write(frames(1)[0])
    table.write(pa.table({"a": [1], "b": [2]}), parents=source.upstream(), code_version="1")
    source.write(frames(2)[1])
    table.write(pa.table({"a": [1.5, 2.0], "c": ["x", "y"]}), parents=source.upstream(), code_version="2")
    diff = table.diff(0)
    assert {(c.name, c.before, c.after) for c in diff.columns} == {
        ("a", "long", "double"),
        ("b", "long", None),
        ("c", None, "string"),
    }
    assert (diff.rows_before, diff.rows_after) == (1, 2)
    assert [p.table for p in diff.parents] == ["source"]
    assert diff.metadata["code_version"] == ("1", "2")
    assert not diff.same_data
    assert table.diff(1, 1).is_empty


def test_what_to_record_as_parents_does_not_need_the_bytes(project: Project) -> None:
    """A version can be read, and its bytes be collected before what was built from it is written."""
    source = project.table("source")
    first = source.write(pa.table({"a": [1]}), code_version="1").version
    kept = source.upstream("@0")
    source.write(pa.table({"a": [2]}), code_version="2")
    source.expire(keep_last=1, dry_run=False)
    assert source.version("@0").gone == "expire"
    assert source.upstream("@0") == kept == source.upstream(first.metadata_sha)
    with pytest.raises(ExpiredVersion):
        source.read("@0")
