"""A shallow clone that the reference made: read as it read it itself, where the folder of the base is allowed.

`delta_spark/make_clone.py` made it, and says how its files are named in what is kept of it.
"""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conformance.delta_spark import canonical

from dagster_versioned.delta.table import Table
from dagster_versioned.delta_tables import spark as engine
from dagster_versioned.delta_tables.change_feed import read_changes
from dagster_versioned.delta_tables.read import read_delta
from dagster_versioned.delta_tables.write import delete_from, optimize_delta, update_delta, write_delta
from dagster_versioned.errors import UnsupportedFeature
from dagster_versioned.storage import ObjectStore, open_store
from support.s3_server import S3Server
from support.stores import contents

pytestmark = pytest.mark.conformance

HERE = Path(__file__).parent / "delta_spark" / "clone"
EXPECTED: dict[str, Any] = json.loads((HERE / "expected.json").read_text())
VERSIONS = {int(version): state["lines"] for version, state in EXPECTED["versions"].items()}
NEWEST = max(VERSIONS)
PLACE = b"/the/place/of/the/clone"


def put(store: ObjectStore, name: str, place: str) -> None:
    """Put one of the two tables; the clone's log then says that the base is at ``place``."""
    for file in (HERE / name).rglob("*"):
        if file.is_file():
            data = file.read_bytes()
            if file.suffix == ".json":
                # The reference names local files by URIs.
                data = data.replace(PLACE if place.startswith("/") else b"file:" + PLACE, place.encode())
            store.put(str(file.relative_to(HERE)), data)


@pytest.fixture
def tables(tmp_path: Path) -> tuple[str, str]:
    """The folders of the clone and of its base."""
    for name in ("base", "table"):
        put(open_store(str(tmp_path)), name, str(tmp_path))
    return str(tmp_path / "table"), str(tmp_path / "base")


@pytest.fixture
def s3(moto_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[str, str]]:
    """Makes a bucket, and tells its URI and what follows that in ours."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", moto_server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", moto_server.secret_key)
    return lambda: (f"s3://{moto_server.new_bucket()}", f"?endpoint_url={moto_server.endpoint_url}")


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_is_read_as_the_reference_read_it(tables, version):
    clone, base = tables
    assert canonical.lines(read_delta(clone, version, allow=[base])) == VERSIONS[version]
    above = str(Path(base).parent)
    assert canonical.lines(read_delta(clone, version, allow=["/nowhere", above])) == VERSIONS[version]


def test_its_changes_are_read_as_the_reference_read_them(tables):
    clone, base = tables
    expected = EXPECTED["changes"]
    changes = read_changes(clone, expected["from"], allow=[base]).drop_columns("_commit_timestamp")
    assert canonical.lines(changes) == expected["lines"]
    with pytest.raises(UnsupportedFeature, match="absolutePaths"):
        read_changes(clone, expected["from"])


@pytest.mark.parametrize("allow", [(), ("{base}-2",), ("{clone}",), ("s3://bucket/base",)])
def test_it_is_refused_where_the_base_is_not_allowed(tables, allow):
    clone, base = tables
    with pytest.raises(UnsupportedFeature, match=r"absolutePaths.*allow=\[") as refused:
        read_delta(clone, allow=[one.format(base=base, clone=clone) for one in allow])
    assert base in str(refused.value)


def test_files_are_passed_over_by_partition_and_statistics_as_those_of_any_table(tables):
    clone, base = tables
    for file in Path(base).glob("p=p 2/*.parquet"):
        file.unlink()
    rows = read_delta(clone, filter="p = 'p 1'", allow=[base])
    assert canonical.lines(rows) == [line for line in VERSIONS[NEWEST] if '"p 1"' in line]
    assert rows.num_rows > 0


@pytest.mark.parametrize(
    "write",
    [
        lambda clone: delete_from(clone, "n = 100"),
        lambda clone: update_delta(clone, {"n": "n + 1"}),
        lambda clone: optimize_delta(clone),
        lambda clone: write_delta(clone, pa.table({"n": pa.array([1], pa.int32()), "p": ["p 1"]})),
    ],
    ids=["delete", "update", "optimize", "append"],
)
def test_rows_are_not_written_to_it(tables, write):
    clone, base = tables
    before = contents(open_store(str(Path(base).parent)))
    with pytest.raises(UnsupportedFeature, match="absolutePaths"):
        write(clone)
    assert contents(open_store(str(Path(base).parent))) == before


def test_a_checkpoint_and_a_vacuum_leave_it_and_the_base_as_they_are(tables):
    clone, base = tables
    before = contents(open_store(base))
    table = Table(clone, allow=[base])
    table.checkpoint()
    assert table.vacuum(timedelta(0), dry_run=False, force=True).keys
    assert contents(open_store(base)) == before
    assert canonical.lines(read_delta(clone, allow=[base])) == VERSIONS[NEWEST]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_a_clone_on_s3_is_read_with_its_base_in_another_bucket(s3, scheme):
    (clone, query), (base, _) = s3(), s3()
    put(open_store(clone + query), "table", base.replace("s3", scheme, 1))
    put(open_store(base + query), "base", base)
    uri = f"{clone}/table{query}"
    assert canonical.lines(read_delta(uri, allow=[f"{base}/base{query}"])) == VERSIONS[NEWEST]
    with pytest.raises(UnsupportedFeature, match="absolutePaths"):
        read_delta(uri, allow=[f"{base}/other{query}"])


@pytest.mark.spark
@pytest.mark.slow
def test_spark_reads_it(tables, spark):
    clone, base = tables
    assert canonical.lines_of_frame(engine.read_delta(spark, clone, allow=[base])) == VERSIONS[NEWEST]
    with pytest.raises(UnsupportedFeature, match="absolutePaths"):
        engine.read_delta(spark, clone)


@pytest.mark.spark
@pytest.mark.slow
def test_spark_reads_its_changes(tables, spark):
    clone, base = tables
    expected = EXPECTED["changes"]
    changes = engine.read_changes(spark, clone, expected["from"], allow=[base]).drop("_commit_timestamp")
    assert canonical.lines_of_frame(changes) == expected["lines"]


@pytest.mark.spark
@pytest.mark.slow
def test_it_is_read_as_a_format_of_spark(tables, spark):
    clone, base = tables
    engine.register(spark)
    loaded = spark.read.format("versioned").option("allow", f"/nowhere,{base}").load(clone)
    assert canonical.lines_of_frame(loaded) == VERSIONS[NEWEST]
    with pytest.raises(Exception, match="absolutePaths"):
        spark.read.format("versioned").load(clone).collect()


@pytest.mark.spark
@pytest.mark.slow
def test_the_cluster_replays_its_log_alike(tables, spark, monkeypatch):
    clone, base = tables
    Table(clone, allow=[base]).checkpoint()
    monkeypatch.setenv("DAGSTER_VERSIONED_LARGE_LOG", "0")
    planned = engine.read_delta(spark, clone, allow=[base])
    assert "MapInArrow" in planned._jdf.queryExecution().toString()
    assert canonical.lines_of_frame(planned) == VERSIONS[NEWEST]
    with pytest.raises(UnsupportedFeature, match="absolutePaths"):
        engine.read_delta(spark, clone)


@pytest.mark.spark
@pytest.mark.slow
def test_spark_reads_a_clone_in_a_folder_whose_base_is_on_s3(tables, spark, s3):
    clone, _ = tables
    base, query = s3()
    put(open_store(base + query), "base", base)
    put(open_store(str(Path(clone).parent)), "table", base)
    frame = engine.read_delta(spark, clone, allow=[f"{base}/base{query}"])
    assert canonical.lines_of_frame(frame) == VERSIONS[NEWEST]
