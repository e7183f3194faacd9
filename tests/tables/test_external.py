"""Delta tables that others write, as versions to build from."""

import hashlib
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import deltalake
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dagster_versioned import ExternalTable
from dagster_versioned.delta.table import Table
from dagster_versioned.errors import InvalidInput, TableNotFound, UnsupportedFeature, VersionNotFound
from dagster_versioned.identity.version import EXTERNAL, Parent
from dagster_versioned.projects.project import Project
from dagster_versioned.storage.wrappers import CountingStore
from support.spark import spark

__all__ = ["spark"]

ORDERS = pa.table({"id": [1, 2, 3], "price": [1.5, None, 2.5]})


@pytest.fixture
def orders(tmp_path: Path) -> str:
    """A table that deltalake made: one commit with three rows."""
    folder = str(tmp_path / "lake" / "orders")
    deltalake.write_deltalake(folder, ORDERS)
    return folder


def append(folder: str, *ids: int) -> None:
    rows = pa.table({"id": pa.array(ids, pa.int64()), "price": pa.array([1.0] * len(ids))})
    deltalake.write_deltalake(folder, rows, mode="append")


def sha_of(folder: str, version: int) -> str:
    return hashlib.sha256(Path(folder, f"_delta_log/{version:020d}.json").read_bytes()).hexdigest()


def ids(rows: Any) -> list[int]:
    return sorted(rows["id"].to_list() if hasattr(rows["id"], "to_list") else rows["id"].to_pylist())


# --- what a version is -----------------------------------------------------------------------------------------------


def test_a_version_is_the_tables_id_the_number_of_the_commit_and_the_sha_of_its_bytes(orders: str) -> None:
    append(orders, 4)
    for number in (0, 1):
        version = ExternalTable(orders).version(number)
        assert (version.table_id, version.log_version) == (str(deltalake.DeltaTable(orders).metadata().id), number)
        assert version.commit_sha == version.data_sha == sha_of(orders, number)
    assert ExternalTable(orders).version() == ExternalTable(orders).version("@1") == version


def test_what_is_built_from_it_records_its_version_wherever_the_table_is(orders: str, tmp_path: Path) -> None:
    shas = set[str | None]()
    shutil.copytree(orders, tmp_path / "copy", copy_function=shutil.copy2)
    for place in (orders, str(tmp_path / "copy"), f"file://{orders}"):
        source = ExternalTable(place, "orders")
        table = Project.open("P", str(tmp_path / f"project{len(shas)}")).table("report")
        table.write(source.read(), parents=source.upstream())
        identity = table.version().identity
        version = source.version()
        assert list(identity.parents) == [
            Parent(
                EXTERNAL,
                "orders",
                version.commit_sha,
                version.data_sha,
                table_id=version.table_id,
                log_version=0,
            )
        ]
        (lineage,) = identity.source_lineage
        assert (lineage.project, lineage.table, lineage.version_sha) == (EXTERNAL, "orders", version.commit_sha)
        assert identity.table_type == "derived"
        assert "lake" not in str(identity.to_json())
        assert table.write(source.read(), parents=source.upstream()).change == "none"
        table.verify().require_ok()
        shas.add(table.version().metadata_sha)
    assert len(shas) == 1


def test_a_compaction_and_a_change_of_properties_are_other_versions_of_the_same_data(orders: str) -> None:
    append(orders, 4)
    before = ExternalTable(orders).version()
    deltalake.DeltaTable(orders).optimize.compact()
    Table(orders).set_properties({"delta.logRetentionDuration": "interval 40 days"})
    after = ExternalTable(orders).version()
    assert (after.log_version, after.data_sha) == (3, before.data_sha)
    assert after.commit_sha == sha_of(orders, 3)
    append(orders, 5)
    assert ExternalTable(orders).version().data_sha == sha_of(orders, 4)


def test_an_empty_table_has_the_data_of_its_creation_until_rows_come(tmp_path: Path) -> None:
    folder = str(tmp_path / "t")
    deltalake.DeltaTable.create(folder, deltalake.Schema.from_arrow(ORDERS.schema))
    Table(folder).set_properties({"my.note": "x"})
    assert ExternalTable(folder).version().data_sha == sha_of(folder, 0)
    assert ExternalTable(folder).read().num_rows == 0


def test_every_frame_type_has_the_rows_of_the_version(orders: str) -> None:
    append(orders, 4)
    source = ExternalTable(orders)
    for as_type in (pa.Table, pd.DataFrame, pl.DataFrame):
        assert ids(source.read(0, as_type=as_type)) == [1, 2, 3]
        assert ids(source.read(as_type=as_type)) == [1, 2, 3, 4]
    assert source.read(columns=["id"]).column_names == ["id"]


@pytest.mark.spark
def test_spark_has_the_rows_of_the_version_pinned_to_it(spark: Any, orders: str) -> None:
    from pyspark.sql import DataFrame

    frame = ExternalTable(orders).read(as_type=DataFrame)
    append(orders, 4)
    assert sorted(row["id"] for row in frame.collect()) == [1, 2, 3]


def test_a_time_means_the_version_that_was_current_then(orders: str) -> None:
    between = datetime.now(UTC)
    append(orders, 4)
    assert ExternalTable(orders).version(between).log_version == 0
    assert ExternalTable(orders).version(datetime.now(UTC)).log_version == 1
    with pytest.raises(VersionNotFound, match="has no version of"):
        ExternalTable(orders).version(between - timedelta(days=1))


# --- what sensors ask ------------------------------------------------------------------------------------------------


def counted(source: ExternalTable) -> CountingStore:
    store = CountingStore(source.store)
    source.store = store
    return store


def test_a_look_at_a_table_to_which_nothing_happened_is_one_listing_however_long_its_log_is(orders: str) -> None:
    source = ExternalTable(orders)
    for number in range(4, 24):
        append(orders, number)
    deltalake.DeltaTable(orders).create_checkpoint()
    assert source.newest() == ExternalTable(orders).version()
    store, stamp = counted(source), source.stamp()
    store.reset()
    assert source.stamp() == stamp
    assert [call.verb for call in store.calls] == ["list"]
    append(orders, 24)
    store.reset()
    assert source.stamp() != stamp
    assert source.newest() == ExternalTable(orders).version()
    assert sorted(call.verb for call in store.calls) == ["get", "list", "list"]


def test_the_newest_version_is_followed_through_every_kind_of_commit(orders: str) -> None:
    source = ExternalTable(orders)
    steps = [
        lambda: append(orders, 4),
        lambda: deltalake.DeltaTable(orders).optimize.compact(),
        lambda: Table(orders).set_properties({"my.note": "x"}),
        lambda: Table(orders).add_columns({"note": pa.string()}),
        lambda: deltalake.DeltaTable(orders).delete("id = 1"),
        lambda: deltalake.DeltaTable(orders).create_checkpoint(),
        lambda: Table(orders).restore(0),
    ]
    stamps = [source.stamp()]
    for step in steps:
        step()
        assert source.newest() == ExternalTable(orders).version()
        stamps.append(source.stamp())
    assert len(set(stamps)) == len(steps)  # a checkpoint is no version


@pytest.mark.parametrize("commits", [0, 1, 5])
def test_another_table_in_the_place_of_one_is_seen(orders: str, commits: int) -> None:
    append(orders, 4)
    source = ExternalTable(orders)
    before, stamp = source.newest(), source.stamp()
    (parent,) = [one.parent for one in source.upstream(1)]
    assert source.recorded(parent) == before
    shutil.rmtree(orders)
    assert source.stamp() is None
    deltalake.write_deltalake(orders, ORDERS)
    for number in range(commits):
        append(orders, number)
    assert source.stamp() not in (None, stamp)
    assert source.newest() == ExternalTable(orders).version()
    assert source.newest().table_id != before.table_id
    with pytest.raises(VersionNotFound, match="another table" if commits else "does not exist"):
        source.recorded(parent)


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("lake/orders", "relative path"),
        ("./orders", "relative path"),
        ("~/orders", "relative path"),
        ("", "relative path"),
        ("dbfs:/orders", "none that is known"),
        ("s3:/bucket/orders", "none that is known"),
        ("C:\\lake\\orders", "none that is known"),
        ("abfss://lake@account/orders", "core.windows.net"),
        ("hdfs://bucket/orders", "unknown scheme 'hdfs'"),
        ("https://host/orders", "unknown scheme"),
        ("s3://AKIA123:hunter2@bucket/orders", "holds a user or a password"),
        ("s3://bucket/orders?secret_key=hunter2", "options other than"),
        ("s3://bucket/orders?endpoint_url=https://me:hunter2@host", "user, a password"),
        ("hunter2://me:hunter2@host/orders", "unknown scheme"),
    ],
)
def test_places_that_mean_nothing_or_hold_a_secret_are_refused_without_being_repeated(uri: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        ExternalTable(uri)
    shown = "".join(map(str, (caught.value, caught.value.__cause__, caught.value.__context__)))
    assert "me:hunter2" not in shown
    assert "AKIA123" not in shown


def test_where_there_is_no_table_it_is_said_where_and_what_it_is_called(tmp_path: Path) -> None:
    source = ExternalTable(str(tmp_path / "nothing"), "orders")
    for ask in (source.version, source.read, source.upstream, source.newest, lambda: source.read(3)):
        with pytest.raises(TableNotFound, match=r"No Delta table at .*nothing.*'orders'"):
            ask()
    assert source.stamp() is None


def test_a_version_that_was_cleaned_out_of_the_log_is_named(orders: str) -> None:
    for number in range(4, 8):
        append(orders, number)
    deltalake.DeltaTable(orders).create_checkpoint()
    append(orders, 8)
    for number in range(4):
        Path(orders, f"_delta_log/{number:020d}.json").unlink()
    assert ids(ExternalTable(orders).read()) == [1, 2, 3, 4, 5, 6, 7, 8]
    with pytest.raises(VersionNotFound, match="2"):
        ExternalTable(orders).read("@2")


def test_the_data_of_a_version_of_which_the_log_does_not_say_when_it_came_is_its_own(orders: str) -> None:
    append(orders, 4)
    deltalake.DeltaTable(orders).optimize.compact()
    deltalake.DeltaTable(orders).create_checkpoint()
    before = ExternalTable(orders).version()
    assert before.data_sha == sha_of(orders, 1)
    for number in range(2):
        Path(orders, f"_delta_log/{number:020d}.json").unlink()
    after = ExternalTable(orders).version()
    assert (after.commit_sha, after.data_sha) == (before.commit_sha, sha_of(orders, 2))


def test_a_feature_that_no_reader_here_knows_is_refused_by_name(orders: str) -> None:
    log = Path(orders, "_delta_log", f"{0:020d}.json")
    lines = [line for line in log.read_text().splitlines() if "protocol" not in line]
    protocol = (
        '{"protocol":{"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":["warp"],"writerFeatures":["warp"]}}'
    )
    log.write_text("\n".join([protocol, *lines]))
    for ask in (ExternalTable(orders).version, ExternalTable(orders).read):
        with pytest.raises(UnsupportedFeature, match="warp"):
            ask()


def test_a_sha_or_a_pin_names_no_version_of_it(orders: str) -> None:
    for reference in ("abcdef12", "pin:release"):
        with pytest.raises(InvalidInput, match="names no version of an external table"):
            ExternalTable(orders).version(reference)
