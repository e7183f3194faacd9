"""A version at a place of its own, as a plain Delta table."""

from pathlib import Path

import deltalake
import duckdb
import polars as pl
import pyarrow as pa
import pytest

from dagster_versioned.errors import IntegrityError, InvalidInput, StorageError, VersionNotFound
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.table import VersionedTable
from dagster_versioned.tables.version_export import export_version
from support.readers import READS_WITH_POLARS
from support.s3_server import S3Server


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64()), "word": [f"w{number}" for number in numbers]})


@pytest.fixture
def table(project: Project) -> VersionedTable:
    table = project.table("numbers")
    for numbers in ((1, 2), (1, 2, 3)):
        table.write(rows(*numbers))
    return table


def numbers_at(place: Path) -> list[int]:
    return sorted(pl.read_delta(str(place))["n"].to_list())


def test_other_programs_read_an_old_version_and_change_their_copy(table, tmp_path):
    place = tmp_path / "out"
    made = export_version(table, str(place), "@0")
    assert (made.log_version, made.files, made.reader_features) == (0, 1, ())
    assert numbers_at(place) == [1, 2]
    opened = deltalake.DeltaTable(place)
    assert (opened.protocol().min_reader_version, opened.protocol().min_writer_version) == (1, 2)
    deltalake.write_deltalake(place, rows(9), mode="append")
    assert numbers_at(place) == [1, 2, 9]
    assert duckdb.sql(f"SELECT count(*) FROM read_parquet('{place}/*.parquet')").fetchall() == [(3,)]
    assert table.read("@0").num_rows == 2


def test_of_partitions_and_of_partition_columns(project, tmp_path):
    days = project.table("days")
    days.write_partitions({"a": rows(1), "b": rows(2, 3)})
    export_version(days, str(tmp_path / "all"))
    export_version(days, str(tmp_path / "b"), partition="b")
    assert (numbers_at(tmp_path / "all"), numbers_at(tmp_path / "b")) == ([1, 2, 3], [2, 3])
    by_word = project.table("by_word")
    by_word.write(rows(1, 2), options=TableOptions(partition_columns=("word",)))
    export_version(by_word, str(tmp_path / "words"))
    assert pl.read_delta(str(tmp_path / "words")).filter(pl.col("word") == "w2")["n"].to_list() == [2]
    with pytest.raises(VersionNotFound):
        export_version(days, str(tmp_path / "none"), partition="c")
    assert not (tmp_path / "none").exists()


@pytest.mark.skipif(not READS_WITH_POLARS, reason="a Polars that reads deletion vectors: from Polars 1.38 on")
def test_rows_that_vectors_hide_stay_hidden(project, tmp_path):
    merging = TableOptions(mode="merge", merge_key=("n",), properties={"delta.enableDeletionVectors": "true"})
    table = project.table("merged")
    table.write(pa.table({"n": range(3000), "word": ["old"] * 3000}), options=merging)
    table.write(pa.table({"n": range(0, 1400, 1), "word": ["new"] * 1400}), options=merging)
    made = export_version(table, str(tmp_path / "out"))
    assert made.reader_features == ("deletionVectors",)
    found = pl.read_delta(str(tmp_path / "out"))
    assert (found.height, found.filter(pl.col("word") == "new").height) == (3000, 1400)


def test_on_s3_a_table_is_left_and_one_of_its_versions_is_exported(s3_server: S3Server):
    bucket = s3_server.new_bucket()
    project = Project("NYC", s3_server.store(bucket, "lake/"))
    table = project.table("numbers")
    for numbers in ((1, 2), (1, 2, 3)):
        table.write(rows(*numbers))
    store_options = {
        "AWS_ENDPOINT_URL": s3_server.endpoint_url,
        "AWS_ACCESS_KEY_ID": s3_server.access_key,
        "AWS_SECRET_ACCESS_KEY": s3_server.secret_key,
        "AWS_REGION": s3_server.region,
        "AWS_ALLOW_HTTP": "true",
        "conditional_put": "etag",
    }
    export_version(
        table,
        s3_server.location(bucket, "out/"),
        "@0",
        open_store=lambda place: s3_server.store(place.root, place.prefix),
    )
    opened = deltalake.DeltaTable(f"s3://{bucket}/out", storage_options=store_options)
    assert sorted(opened.to_pyarrow_table()["n"].to_pylist()) == [1, 2]
    table.leave(dry_run=False)
    deltalake.write_deltalake(
        f"s3://{bucket}/lake/datom/numbers", rows(9), mode="append", storage_options=store_options
    )
    assert table.adopt().version.identity.nrow == 4
    table.verify().require_ok()


def test_in_an_environment(project, table, tmp_path):
    from dagster_versioned.branches.environments import create_environment

    create_environment(project, "pr-1")
    inside = project.in_environment("pr-1").table("numbers")
    export_version(inside, str(tmp_path / "forked"))
    inside.write(rows(7))
    export_version(inside, str(tmp_path / "own"))
    assert (numbers_at(tmp_path / "forked"), numbers_at(tmp_path / "own")) == ([1, 2, 3], [7])


class TestRefused:
    def test_a_place_that_is_not_empty_or_inside_of_a_project(self, project, table, tmp_path):
        place = tmp_path / "out"
        export_version(table, str(place))
        with pytest.raises(InvalidInput, match="not empty"):
            export_version(table, str(place))
        with pytest.raises(InvalidInput, match="inside of"):
            export_version(table, f"{project.store.uri}/datom/copied")
        other = tmp_path / "other"
        other.mkdir()
        (other / "notes.txt").write_text("mine")
        with pytest.raises(InvalidInput, match=r"notes\.txt"):
            export_version(table, str(other))
        assert [path.name for path in other.iterdir()] == ["notes.txt"]

    def test_a_damaged_part_gives_no_table_and_a_second_try_with_what_is_mended_does(self, project, table, tmp_path):
        place = tmp_path / "out"
        folder = project.data.local_path("numbers")
        table.write(rows(4), options=TableOptions(mode="append"))
        good = {folder / add.key: (folder / add.key).read_bytes() for add in table.files().adds}
        assert len(good) == 2
        for part, data in good.items():
            part.write_bytes(data[:-9] + b"123456789")
        with pytest.raises(IntegrityError, match="There is no table"):
            export_version(table, str(place))
        assert not (place / "_delta_log").exists()
        for part, data in good.items():
            part.write_bytes(data)
        export_version(table, str(place))
        assert numbers_at(place) == [1, 2, 3, 4]

    def test_dying_leaves_no_table_and_running_again_ends_it(self, project, table, tmp_path, monkeypatch):
        from dagster_versioned.delta.commit.transaction import Transaction

        def die(*_: object) -> None:
            raise StorageError("died")

        place = tmp_path / "out"
        with monkeypatch.context() as patched:
            patched.setattr(Transaction, "attempt", die)
            with pytest.raises(StorageError):
                export_version(table, str(place))
        assert not (place / "_delta_log").exists()
        export_version(table, str(place))
        assert numbers_at(place) == [1, 2, 3]
