"""What Spark's tasks are made of reaches executors that do not have this package."""

import ast
import fnmatch
import subprocess
import sys
from dataclasses import asdict, fields, replace

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from dagster_versioned.delta.actions import Add, Metadata, Protocol
from dagster_versioned.delta.schema.types import StructField, StructType, schema_to_arrow
from dagster_versioned.delta_tables.spark import log_plan, planned_rows, row_locations
from dagster_versioned.delta_tables.spark import task as delta_task
from dagster_versioned.engines.scan import Scan, ScanFile
from dagster_versioned.engines.spark import part_rows, releases, worker
from dagster_versioned.engines.spark.by_value import pickled_by_value, self_contained
from dagster_versioned.engines.sql_functions import rewritings
from dagster_versioned.features.spark import content_versions
from dagster_versioned.storage import LocalStore, open_store
from support.delta_logs import SCHEMA, put_commit

SHIPPED = [
    worker.Task,
    worker.tallied,
    worker.with_lanes,
    part_rows.rows_of_part,
    part_rows.rows_of_vector,
    releases._streams,
    releases._batches,
    delta_task.DeltaTask,
    row_locations.located_rows,
    planned_rows._rows,
    log_plan._reader,
    content_versions.row_shas,
    content_versions.digests_of,
]
if releases.has_data_sources():
    from dagster_versioned.delta_tables.spark import data_source, data_source_tasks
    from dagster_versioned.engines.spark import source

    SHIPPED += [source.NumberedTasks, data_source.VersionedSource, data_source_tasks.TableReader]
if releases.release() >= (4, 1):
    from dagster_versioned.delta_tables.spark import data_source_filters, data_source_write, log_tail

    SHIPPED += [source.FilteredPartsSource, data_source_filters.FilteringTableReader]
    SHIPPED += [data_source_write.TableWriter, log_tail.LogTail]


LOADED = """
import sys

THERE = {*sys.stdlib_module_names, "pyspark", "py4j", "pandas", "numpy", "pyarrow", "boto3", "obstore"}
BROUGHT = {"distutils", "setuptools", "_distutils_hack", "pytz", "dateutil", "six", "botocore", "s3transfer"}
BROUGHT |= {"urllib3", "jmespath", "certifi"}  # by what is there

class Missing:
    "Finds nothing but what executors have."

    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top == "dagster_versioned" or (not sys.argv[1:] and top not in THERE | BROUGHT and not name.startswith("_")):
            raise ModuleNotFoundError(f"No module named {name!r} on executors", name=name)

sys.meta_path.insert(0, Missing())
import numpy
if not sys.argv[1:]:
    vars(numpy).pop("bool", None)  # numpy 1 calls it bool_ alone
from pyspark import cloudpickle
loaded = cloudpickle.loads(sys.stdin.buffer.read())
cloudpickle.dumps(loaded)  # what plans a read hands on to what reads
if callable(loaded) and loaded.__name__ == "run":
    print(loaded(None))
    print([name for name in sys.modules if name.startswith("_dagster_versioned")])
"""


STORES = ("s3://bucket/prefix", "gs://bucket/prefix", "az://container/prefix?account=account")


@pytest.mark.parametrize("uri", STORES)
def test_stores_are_opened_where_this_package_is_not(uri):
    store = open_store(uri).subfolder("deeper")
    payload = cloudpickle.dumps(self_contained(lambda _: store.uri))
    done = subprocess.run([sys.executable, "-c", LOADED], input=payload, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-1000:]
    assert done.stdout.decode().splitlines()[0] == store.uri


def test_a_store_that_this_process_has_used_is_used_where_this_package_is_not():
    store = open_store("gs://bucket/prefix")
    assert store._connection.clients  # which says that obstore's threads are of this process
    payload = cloudpickle.dumps(self_contained(lambda _: len(store._connection.clients)))
    done = subprocess.run([sys.executable, "-c", LOADED], input=payload, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-1000:]
    assert done.stdout.decode().splitlines()[0] == "2"


@pytest.mark.every(4)
@pytest.mark.parametrize("shipped", SHIPPED, ids=lambda each: f"{each.__module__}.{each.__qualname__}")
def test_what_is_shipped_is_loaded_where_this_package_is_not(shipped):
    # Not in this process: what is loaded becomes part of the classes that it came from.
    with pickled_by_value():
        payload = cloudpickle.dumps(shipped)
    # Logs of Delta tables are read with other packages as well, which executors then need.
    others = ["others"] if shipped.__module__.startswith("dagster_versioned.delta_tables") else []
    assert others or b"numpy._" not in payload, "numpy 1 has other private modules than numpy 2"
    done = subprocess.run([sys.executable, "-c", LOADED, *others], input=payload, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-1000:]


def test_a_log_is_replayed_where_this_package_is_not(tmp_path):
    store = LocalStore(tmp_path)
    put_commit(store, 0, [Protocol(1, 2), Metadata("id", SCHEMA), Add("f", {}, 1, 1, True)])
    read = log_plan._reader(store, (log_plan._CommitsTask(range(1)),), log_plan._ROWS)
    numbers = pa.record_batch({"task": [0]})
    found = self_contained(
        lambda _: [(row["path"], row["headers"]) for batch in read(iter([numbers])) for row in batch.to_pylist()]
    )
    command = [sys.executable, "-c", LOADED, "others"]
    done = subprocess.run(command, input=cloudpickle.dumps(found), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-1000:]
    rows = ast.literal_eval(done.stdout.decode().splitlines()[0])
    assert [path for path, headers in rows if headers is None] == ["f"]
    ((header,),) = [log_plan._headers(headers) for _, headers in rows if headers is not None]
    assert (header.version, [type(action) for action in header.actions]) == (0, [Protocol, Metadata])


FIELDS = """
import pickle, sys
from pyspark import cloudpickle
read, given = cloudpickle.loads(sys.stdin.buffer.read())
print(read(given))
"""


def test_what_two_functions_need_is_pickled_once_and_loaded_once():
    schemas = [StructType([StructField(f"n{i}", "long") for i in range(count)]) for count in (1, 2)]
    payloads: list[bytes] = []
    for schema in schemas:

        def count(_, schema=schema):
            return len(schema.fields), isinstance(schema, StructType), len(schema_to_arrow(schema))

        count.__module__ = worker.__name__
        payloads.append(cloudpickle.dumps(self_contained(count)))
    found: list[list[str]] = []
    for payload in payloads:
        done = subprocess.run([sys.executable, "-c", LOADED], input=payload, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()[-1000:]
        found.append(done.stdout.decode().splitlines())
    assert [lines[0] for lines in found] == ["(1, True, 1)", "(2, True, 2)"]
    assert found[0][1] == found[1][1], "the same code has the same name"


def _described(scan):
    return [asdict(replace(file, size=file.size + 1)) for file in scan.files], len(fields(scan))


def test_dataclasses_arrive_with_their_fields(tmp_path):
    scan = Scan(LocalStore(tmp_path), StructType([StructField("n", "long")]), (ScanFile("a", 1),))
    with pickled_by_value():
        cloudpickle.register_pickle_by_value(sys.modules[__name__])
        payload = cloudpickle.dumps((_described, scan))
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    done = subprocess.run([sys.executable, "-c", FIELDS], input=payload, capture_output=True, check=True)
    assert done.stdout.decode().strip() == str(_described(scan))


def test_functions_with_a_cache_are_pickled_by_their_names_elsewhere():
    with pickled_by_value():
        pass
    for cached in (rewritings, fnmatch._compile_pattern):
        assert cloudpickle.loads(cloudpickle.dumps(cached)) is cached
