"""Releases of PySpark, and what executors lack: one sentence, whatever Spark makes of it."""

import venv
from pathlib import Path

import pyspark
import pytest

from dagster_versioned.delta_tables.spark import register
from dagster_versioned.engines.parts import WriteOptions
from dagster_versioned.engines.spark import SparkEngine, releases
from dagster_versioned.engines.spark.catalyst import spark_errors
from dagster_versioned.engines.spark.executors import require_python
from dagster_versioned.engines.spark.task_errors import lacking
from dagster_versioned.errors import MissingExtra, UnsupportedFeature
from support.spark import needs_spark, staging_in


@pytest.fixture
def installed(monkeypatch):
    """Has PySpark say that it is another version."""

    def say(version):
        monkeypatch.setattr(pyspark, "__version__", version)
        releases.release.cache_clear()

    yield say
    monkeypatch.undo()
    releases.release.cache_clear()


@pytest.mark.parametrize("version", ["3.4.4", "4.4.0", "5.0.0.dev0"])
def test_a_release_that_is_not_supported_is_named_with_those_that_are(installed, version):
    installed(version)
    with pytest.raises(MissingExtra, match=rf"pyspark {version} .*pip install 'pyspark>=3\.5,<4\.4'"):
        releases.release()


def test_the_format_is_refused_by_name_where_there_are_no_data_sources(installed):
    installed("3.5.9")
    with pytest.raises(UnsupportedFeature, match=r"needs PySpark 4\.0 or newer; this is 3\.5\.9.*read_delta"):
        register(None)


def test_arrow_tables_come_and_go_through_one_module():
    package = Path(releases.__file__).parents[2]
    found = {path.name for path in package.rglob("*.py") if ".toArrow(" in path.read_text("utf-8")}
    assert found == {"releases.py"}


def bare_python(folder: Path) -> str:
    venv.create(folder, symlinks=True)
    return str(folder / "bin" / "python")


@pytest.mark.spark
@pytest.mark.parametrize("lacks", ["no pyarrow", "no program"])
def test_executors_that_cannot_run_tasks_are_described(spark, tmp_path, monkeypatch, lacks):
    python = bare_python(tmp_path / "python") if lacks == "no pyarrow" else str(tmp_path / "none")
    monkeypatch.setattr(spark.sparkContext, "pythonExec", python)
    with pytest.raises(MissingExtra, match=rf"pyarrow 14 or newer and numpy; there is {lacks}.*PYSPARK_PYTHON"):
        SparkEngine().write(spark.range(5), staging_in(tmp_path / "table"), WriteOptions())
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.spark
@needs_spark(4, 0, "cancelling jobs that are not there yet")
def test_where_spark_runs_no_job_at_all_executors_are_not_blamed(spark, tmp_path, monkeypatch):
    context = spark.sparkContext
    monkeypatch.setattr(context, "pythonExec", bare_python(tmp_path / "python"))
    context.setJobGroup("cancelled", "")
    context._jsc.sc().cancelJobGroupAndFutureJobs("cancelled")
    try:
        with pytest.raises(spark_errors(), match="cancelled"):
            require_python(spark)
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)


def test_a_module_of_numpy_that_a_function_lacks_is_not_taken_for_numpy():
    assert "there is no numpy." in str(lacking("ModuleNotFoundError: No module named 'numpy'"))
    assert lacking("ModuleNotFoundError: No module named 'numpy.unknown'") is None


@pytest.mark.parametrize(
    "text",
    [
        "An error occurred while calling o1.\n: org.apache.spark.SparkException: [A] It ended.\n\tat a.B.c(D:1)",
        "Job aborted:\norg.apache.spark.SparkException: [A] It ended.\n",
        "SparkException: [A] It ended",
        "SparkException, [A] It ended.\n\tat a.B.c(D:1)\n\tat a.B.c(D:2)",
    ],
)
def test_what_else_ended_a_task_is_named_in_its_own_words_without_a_stack(text):
    found = str(lacking(text, surely=True))
    assert "; theirs cannot run a task: SparkException" in found
    assert "[A] It ended. Nothing was committed." in found
