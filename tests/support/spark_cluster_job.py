"""A driver on ``local-cluster`` against S3, as a program of its own, whose executors cannot import our package.

Arguments: the store's URI, and an empty folder.
"""

import hashlib
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.engines.parts import WriteOptions, WriteTuning
from dagster_versioned.engines.spark import SparkEngine
from dagster_versioned.engines.spark.releases import has_data_sources
from dagster_versioned.engines.staging import Staging
from dagster_versioned.errors import IntegrityError
from dagster_versioned.storage import open_store
from support.spark import promoted, running_spark


def probe(_batches):
    try:
        import dagster_versioned

        yield pa.record_batch({"found": [dagster_versioned.__file__]})
    except ImportError:
        yield pa.record_batch({"found": ["missing"]})


def main(spark, uri):
    frame = spark.range(0, 40_000, numPartitions=4).selectExpr(
        "id", "cast(id % 50 as string) as word", "if(id % 7 = 0, null, id / 3) as x", "array(id) as l"
    )
    assert {row.found for row in frame.mapInArrow(probe, "found string").collect()} == {"missing"}

    store = open_store(uri)
    small = SparkEngine().write(frame, Staging(store.subfolder("small"), "w"), WriteOptions())
    assert len(small.parts) == 1, "a table that fits one part becomes one, read back from the executors' uploads"

    tuning = WriteTuning(canonical_bytes=-1, sent_home_bytes=1)
    staging = Staging(store.subfolder("table"), "w")
    written = SparkEngine().write(frame, staging, WriteOptions(tuning=tuning))
    assert written.contents == small.contents
    assert [part.num_records for part in written.parts] == [10_000] * 4
    for part in written.parts:
        assert part.source == f"_staging/w/{part.sha256}.parquet"
        assert hashlib.sha256(staging.store.get(part.source)).hexdigest() == part.sha256
    scan = promoted(written, staging)
    assert not list(staging.store.list("_staging/"))

    rows = ArrowEngine().read(scan)
    for pushed in ("false", "true"):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", pushed)
        read = SparkEngine(spark).read(scan)
        assert ("BatchScan" in read._jdf.queryExecution().toString()) == has_data_sources()
        assert sorted(map(str, read.collect())) == sorted(map(str, frame.collect()))
        assert read.where("id >= 39990 and word is not null and x > 1").count() == 8
        assert read.where("id < 0").count() == 0
        columns = SparkEngine(spark).read(type(scan)(scan.store, scan.schema, scan.files, ("x", "id")))
        assert columns.columns == ["x", "id"]
        assert columns.groupBy().sum("id").collect()[0][0] == pc.sum(rows["id"]).as_py()

    key = scan.files[0].key
    data = bytearray(scan.store.get(key))
    data[100] ^= 1
    scan.store.put(key, bytes(data))
    try:
        SparkEngine(spark, check="bytes").read(scan)
        raise AssertionError("an altered part was not found")
    except IntegrityError:
        print("done")


if __name__ == "__main__":
    Path(sys.argv[2], "dagster_versioned.py").write_text("raise ImportError('not installed here')")
    with running_spark("local-cluster[2,1,1024]", **{"spark.executorEnv.PYTHONPATH": sys.argv[2]}) as session:
        main(session, sys.argv[1])
