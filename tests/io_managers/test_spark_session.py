"""Which session of Spark reads and writes: that of a resource where one is given, and none where none is needed."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pandas as pd
import pyarrow as pa
import pytest

from dagster_versioned import Increment, versioned_feature
from dagster_versioned.errors import InvalidInput
from support.house import changes

PROJECT = Path(__file__).parents[2]


@dg.asset
def numbers() -> pa.Table:
    return pa.table({"n": [1, 2, 3]})


@dg.asset
def doubled(numbers: pd.DataFrame) -> pd.DataFrame:
    return numbers * 2


class Session(dg.ConfigurableResource):
    """A resource with a session that is not the active one."""

    @property
    def spark_session(self):
        return _sessions[0]


_sessions: list = []


@pytest.fixture
def own(spark):
    """The session that `Session` gives."""
    _sessions.append(spark.newSession())
    yield _sessions[0]
    _sessions.clear()


class Unwilling(dg.ConfigurableResource):
    """A resource that must not be asked for its session."""

    @property
    def spark_session(self):
        raise AssertionError("Spark was started.")


@pytest.mark.spark
def test_inputs_are_frames_of_the_session_that_the_resource_has(house, own, spark):
    from pyspark.sql import DataFrame

    seen = []

    @dg.asset
    def halved(numbers: DataFrame) -> DataFrame:
        seen.append(numbers.sparkSession)
        return numbers.selectExpr("n / 2 AS n")

    found = changes(house.run(numbers, halved, io_manager=house.io_manager(pyspark=Session())))
    assert found == {"numbers": "full", "halved": "full"}
    assert seen == [own]
    house.run(numbers, halved)
    assert seen[1] is not own


@pytest.mark.spark
def test_the_rows_of_a_feature_are_frames_of_it_too(house, own):
    from pyspark.sql import DataFrame

    seen = []

    @versioned_feature(id_columns=["id"], fields=["sound"])
    def video():
        return pa.table({"id": [1, 2], "sound": ["a", "b"]})

    @versioned_feature(id_columns=["id"], fields=["text"], deps=[video])
    def words(increment: Increment[DataFrame]):
        seen.append(increment.changed.sparkSession)
        return increment.changed.selectExpr("id", "upper(sound) AS text")

    house.run(video, words, io_manager=house.io_manager(pyspark=Session(), default_engine="spark"))
    assert seen == [own]


def test_where_no_frame_is_of_spark_its_resource_is_not_asked(house):
    assert house.run(numbers, doubled, io_manager=house.io_manager(pyspark=Unwilling())).success
    assert house.project.table("doubled").read().to_pydict() == {"n": [2, 4, 6]}


def test_a_resource_without_a_session_is_refused_where_one_is_needed(house):
    class Other(dg.ConfigurableResource):
        """Not Spark's."""

    from pyspark.sql import DataFrame

    @dg.asset
    def halved(numbers: DataFrame) -> DataFrame:
        return numbers

    manager = house.io_manager(pyspark=Other())
    assert house.run(numbers, io_manager=manager).success
    with pytest.raises(InvalidInput, match=r"pyspark= .* is a Other, which has no spark_session.*LazyPySparkResource"):
        house.run(numbers, halved, io_manager=manager)


@pytest.mark.slow
def test_without_the_resource_and_without_frames_of_spark_neither_is_imported(tmp_path):
    program = f"""
import sys
import dagster as dg, pandas as pd
from dagster_versioned import ProjectResource, VersionedParquetIOManager

@dg.asset
def numbers() -> pd.DataFrame:
    return pd.DataFrame({{"n": [1]}})

@dg.asset
def doubled(numbers: pd.DataFrame) -> pd.DataFrame:
    return numbers * 2

manager = VersionedParquetIOManager(project=ProjectResource(name="P", location={str(tmp_path)!r}))
assert dg.materialize([numbers, doubled], resources={{"io_manager": manager}}).success
print([name for name in ("pyspark", "dagster_pyspark") if name in sys.modules])
"""
    assert run(program).splitlines()[-1] == "[]"


RESOURCES = """
import sys
import dagster as dg, pandas as pd
from dagster_pyspark import LazyPySparkResource, PySparkResource
from pyspark import SparkContext
from pyspark.sql import DataFrame
from dagster_versioned import ProjectResource, VersionedParquetIOManager

CONFIG = {{
    "spark.master": "local[2]",
    "spark.app.name": "as configured",
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}}

@dg.asset
def numbers() -> pd.DataFrame:
    return pd.DataFrame({{"n": [1, 2, 3]}})

@dg.asset
def doubled(numbers: DataFrame) -> DataFrame:
    assert numbers.sparkSession.conf.get("spark.app.name") == "as configured"
    return numbers.mapInPandas(lambda frames: (2 * frame for frame in frames), "n long")

def materialize(resource, *assets):
    manager = VersionedParquetIOManager(
        project=ProjectResource(name="P", location={location!r}), pyspark=resource
    )
    return dg.materialize(list(assets), resources={{"io_manager": manager}}).success
"""


@pytest.mark.slow
@pytest.mark.spark
def test_a_lazy_resource_starts_spark_when_it_is_needed_with_its_own_configuration(tmp_path):
    """In a process that has no session, and whose path leads to another Python."""
    program = f"""
{RESOURCES.format(location=str(tmp_path / "data"))}
assert materialize(LazyPySparkResource(spark_config=CONFIG), numbers)
assert SparkContext._gateway is None, "a JVM was started"
assert materialize(LazyPySparkResource(spark_config=CONFIG), numbers, doubled)
assert SparkContext._active_spark_context.master == "local[2]"
assert materialize(PySparkResource(spark_config=CONFIG), numbers, doubled)
at_launch = LazyPySparkResource.configure_at_launch()
manager = VersionedParquetIOManager(
    project=ProjectResource(name="P", location={str(tmp_path / "at_launch")!r}), pyspark=at_launch
)
defs = dg.Definitions([numbers, doubled], resources={{"io_manager": manager, "pyspark": at_launch}})
config = {{"resources": {{"pyspark": {{"config": {{"spark_config": CONFIG}}}}}}}}
assert defs.resolve_implicit_global_asset_job_def().execute_in_process(run_config=config).success
print(manager.project.project().table("doubled").read()["n"].to_pylist())
"""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "python3").write_text("#!/bin/sh\nexit 3\n")
    (folder / "python3").chmod(0o755)
    assert run(program, PATH=f"{folder}{os.pathsep}{os.environ['PATH']}").splitlines()[-1] == "[2, 4, 6]"


@pytest.mark.slow
def test_a_lazy_resource_starts_no_java_for_frames_of_arrow_pandas_and_polars(tmp_path):
    """Whoever starts Java leaves a mark; runs, a merge, checks and a verification leave none."""
    java = tmp_path / "java_home" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\ntouch {tmp_path / 'started'}\nexit 1\n")
    java.chmod(0o755)
    program = f"""
{RESOURCES.format(location=str(tmp_path / "data"))}
import polars as pl, pyarrow as pa
from dagster_versioned import TableOptions, build_version_checks

@dg.asset
def tripled(numbers: pl.DataFrame) -> pl.DataFrame:
    return numbers * 3

@dg.asset(metadata=TableOptions(mode="merge", merge_key=["n"]).as_metadata())
def merged(numbers: pa.Table) -> pa.Table:
    return numbers

spark = LazyPySparkResource(spark_config=CONFIG)
checks = build_version_checks([numbers, tripled, merged])
for _ in range(2):
    assert materialize(spark, numbers, tripled, merged, *checks)
project = ProjectResource(name="P", location={str(tmp_path / "data")!r}).project()
print([project.table(name).verify().findings for name in ("numbers", "tripled", "merged")])
assert SparkContext._gateway is None
if "spark" in sys.argv:
    spark.spark_session
"""
    environment = {"JAVA_HOME": str(java.parents[1]), "PATH": f"{java.parent}{os.pathsep}{os.environ['PATH']}"}
    assert run(program, **environment).splitlines()[-1] == "[(), (), ()]"
    assert not (tmp_path / "started").exists()
    with pytest.raises(AssertionError, match=r"JAVA_GATEWAY_EXITED|Java gateway process exited"):
        run(program, "spark", **environment)
    assert (tmp_path / "started").exists()


@pytest.mark.slow
@pytest.mark.spark
def test_a_session_that_was_stopped_is_not_taken_for_a_python_that_lacks_something(tmp_path):
    program = f"""
from dagster_versioned import Project
from dagster_versioned.engines.spark.session import default_session
session = default_session()
frame = session.range(5)
session.stop()
try:
    Project.open("P", {str(tmp_path / "data")!r}).table("rows").write(frame)
except Exception as error:
    print(type(error).__name__, error)
"""
    (tmp_path / "python").symlink_to(sys.executable)
    printed = run(program, PYSPARK_PYTHON=str(tmp_path / "python"))
    assert re.match(r"\w*(PySpark|Py4J|Java)\w*Error .*Spark(Context|Session)", printed, re.DOTALL), printed


@pytest.mark.slow
@pytest.mark.parametrize("of_resource", [True, False], ids=["a resource", "our own"])
def test_a_java_that_spark_does_not_run_on_is_named(tmp_path, of_resource):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n[ $* = -version ]\n")
    java.chmod(0o755)
    program = f"""
from dagster_pyspark import LazyPySparkResource
from dagster_versioned.engines.spark.session import default_session, session_from
from dagster_versioned.errors import VersionedError
try:
    if {of_resource}:
        with session_from(lambda: LazyPySparkResource(spark_config={{}}).spark_session):
            default_session()
    default_session()
except VersionedError as error:
    print(error)
"""
    printed = run(program, JAVA_HOME=str(tmp_path), PATH=f"{java.parent}{os.pathsep}{os.environ['PATH']}")
    assert printed.startswith(f'Spark did not start: {java} is openjdk version "11.0.2" 2019-01-15, and PySpark ')
    assert re.search(r"needs Java \d+ or newer\. Nothing was read or written\.", printed)
    printed = run(program, JAVA_HOME=str(tmp_path / "none"))
    assert re.match(r"Spark needs Java \d+ or newer, and no Java was found in JAVA_HOME", printed)


@pytest.mark.slow
@pytest.mark.spark
def test_a_server_of_connect_that_is_not_there_is_named_at_once(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    program = """
from dagster_versioned.engines.spark.session import default_session
from dagster_versioned.errors import VersionedError
try:
    default_session()
except VersionedError as error:
    print(error)
"""
    said = run(program, SPARK_REMOTE=f"sc://127.0.0.1:{port}/;token=SECRET")
    assert said.startswith(f"No Spark Connect server is at 127.0.0.1:{port}, which SPARK_REMOTE names: ")
    assert "Nothing was read or written" in said
    assert "SECRET" not in said
    said = run(program, SPARK_REMOTE="sc://127.0.0.1:x;token=SECRET")
    assert said.startswith("SPARK_REMOTE is no URL of Spark Connect, such as sc://server:15002. Nothing was read.")
    assert "SECRET" not in said


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("names", [True, False], ids=["spark.pyspark.python", "nothing"])
def test_frames_that_an_asset_makes_are_written_by_the_python_that_is_named_and_here_else_by_this_one(tmp_path, names):
    """In a process whose path leads to another one; PySpark itself looks at nothing but PYSPARK_PYTHON."""
    named = {"spark.pyspark.python": str(tmp_path / "named")} if names else {}
    (tmp_path / "named").write_text(f'#!/bin/sh\ntouch {tmp_path / "used"}\nexec {sys.executable} "$@"\n')
    program = f"""
{RESOURCES.format(location=str(tmp_path / "data"))}

@dg.asset
def made(pyspark: LazyPySparkResource) -> DataFrame:
    return pyspark.spark_session.range(3)

spark = LazyPySparkResource(spark_config={{**CONFIG, **{named!r}}})
manager = VersionedParquetIOManager(
    project=ProjectResource(name="P", location={str(tmp_path / "data")!r}), pyspark=spark
)
assert dg.materialize([made], resources={{"io_manager": manager, "pyspark": spark}}).success
print(manager.project.project().table("made").read()["id"].to_pylist())
"""
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 3\n")
    for name in ("python3", "named"):
        (tmp_path / name).chmod(0o755)
    printed = run(program, PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert printed.splitlines()[-1] == "[0, 1, 2]"
    assert (tmp_path / "used").exists() == names


@pytest.mark.slow
@pytest.mark.spark
def test_a_session_of_connect_comes_from_the_resource(tmp_path):
    program = f"""
{RESOURCES.format(location=str(tmp_path))}
from pyspark.sql import SparkSession

seen = []

@dg.asset
def tripled(numbers: DataFrame) -> DataFrame:
    seen.append(type(numbers.sparkSession).__module__)
    return numbers.selectExpr("3 * n AS n")

assert materialize(LazyPySparkResource(spark_config={{"spark.remote": "local[2]"}}), numbers, tripled)
print(seen)
SparkSession.active().stop()
"""
    # A server's tasks are of the Python that the server was started with, which this one is.
    assert run(program, PYSPARK_PYTHON=sys.executable).splitlines()[-1] == "['pyspark.sql.connect.session']"


def run(program, *arguments, **environment):
    """What a program prints in a process of its own, which has no session of Spark."""
    path = os.pathsep.join([str(PROJECT), str(PROJECT / "tests")])
    env = {**os.environ, "PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}
    env.pop("PYSPARK_PYTHON", None)
    env.update(environment)
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], env=env, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
