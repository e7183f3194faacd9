"""A project in YAML: what it defines, what it refuses, and that `dg` knows it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest
import yaml
from dagster.components.resolved.errors import ResolutionException
from pydantic import ValidationError

from dagster_versioned import VersionedParquetIOManager, VersionedProjectComponent
from dagster_versioned.components.project import SensorSettings
from dagster_versioned.errors import InvalidInput

TYPE = "dagster_versioned.VersionedProjectComponent"


def definitions(text):
    """What the component defines."""
    return VersionedProjectComponent.resolve_from_yaml(text).build_defs(dg.ComponentTree.for_test().load_context)


def test_assets_are_stored_in_the_project_that_the_yaml_names(tmp_path):
    defs = definitions(f"project:\n  name: HOUSE\n  location: {tmp_path}\n  default_engine: polars\npreview_rows: 0\n")

    @dg.asset
    def one():
        return pa.table({"n": [1]})

    found = dg.Definitions.merge(dg.Definitions(assets=[one]), defs)
    with dg.DagsterInstance.ephemeral() as instance:
        assert found.resolve_implicit_global_asset_job_def().execute_in_process(instance=instance).success
    manager = defs.resources["io_manager"]
    assert isinstance(manager, VersionedParquetIOManager)
    assert (manager.project.default_engine, manager.preview_rows) == ("polars", 0)
    assert manager.project.project().table("one").read().to_pydict() == {"n": [1]}


def test_the_io_manager_can_have_another_key(tmp_path):
    found = definitions(f"project: {{name: HOUSE, location: {tmp_path}}}\nio_manager_key: versions\n")
    assert list(found.resources) == ["versions"]


def test_text_can_come_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("WAREHOUSE", str(tmp_path))
    found = definitions('project:\n  name: HOUSE\n  location: "{{ env.WAREHOUSE }}"\n')
    assert found.resources["io_manager"].project.location == str(tmp_path)


SENSORS = """
project: {name: HOUSE, location: /nowhere}
sensors:
  - name: keep_delays
    target: group:delays
    compare: data_sha
    on_code_version: true
    minimum_interval_seconds: 60
    running: true
    run_tags: {dagster/max_retries: "2"}
  - {name: keep_all, target: "*"}
"""


def test_the_documented_component_is_one(tmp_path, monkeypatch):
    page = Path(__file__).parents[2] / "docs" / "how-to" / "components.md"
    block = page.read_text().partition("```yaml\n")[2].partition("```")[0]
    document = yaml.safe_load(block)
    assert document["type"] == TYPE
    monkeypatch.setenv("WAREHOUSE", str(tmp_path))
    found = definitions(yaml.safe_dump(document["attributes"]))
    assert [sensor.name for sensor in found.sensors] == ["keep_delays_current"]
    assert found.resources["io_manager"].project.location == str(tmp_path)


def test_each_entry_is_a_sensor_over_its_selection():
    keep_delays, keep_all = definitions(SENSORS).sensors

    @dg.asset(group_name="delays")
    def late(): ...

    @dg.asset
    def other(): ...

    graph = dg.Definitions(assets=[late, other]).resolve_asset_graph()
    assert keep_delays.asset_selection.resolve(graph) == {late.key}
    assert keep_all.asset_selection.resolve(graph) == {late.key, other.key}
    assert (keep_delays.minimum_interval_seconds, keep_all.minimum_interval_seconds) == (60, 30)
    assert keep_delays.default_status == dg.DefaultSensorStatus.RUNNING
    assert keep_all.default_status == dg.DefaultSensorStatus.STOPPED
    assert "data_sha" in keep_delays.description


def test_tags_are_text_however_yaml_reads_them():
    settings = SensorSettings.resolve_from_yaml("{name: s, target: '*', run_tags: {a: 2, b: '3', c: true, d: x}}")
    assert settings.run_tags == {"a": "2", "b": "3", "c": "true", "d": "x"}


def test_a_project_can_be_governed(tmp_path):
    found = definitions(f"project: {{name: HOUSE}}\ngovernance: {{storage: {tmp_path}, role: reader, profile: work}}\n")
    project = found.resources["io_manager"].project
    assert project.location is None
    assert (project.governance.storage, project.governance.role) == (str(tmp_path), "reader")
    assert project.governance.profile == "work"


def test_the_configuration_of_spark_is_that_of_a_lazy_resource(tmp_path):
    found = definitions(
        f"project: {{name: HOUSE, location: {tmp_path}}}\n"
        "pyspark: {spark_config: {spark.master: 'local[2]', spark.sql.shuffle.partitions: 8}}\n"
    )
    resource = found.resources["io_manager"].pyspark
    assert type(resource).__name__ == "LazyPySparkResource"
    assert resource.spark_config == {"spark.master": "local[2]", "spark.sql.shuffle.partitions": 8}
    assert definitions(f"project: {{name: HOUSE, location: {tmp_path}}}\n").resources["io_manager"].pyspark is None


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("project: {name: HOUSE}\n", "location"),
        ("project: {name: a/b, location: /nowhere}\n", "name"),
        ("project: {name: HOUSE, location: gs://bucket}\n", "location"),
        ("project: {name: HOUSE}\ngovernance: {storage: /nowhere}\n", "clone"),
        ("project: {name: HOUSE, location: /nowhere}\npreview_rows: 1000\n", "preview_rows"),
    ],
)
def test_a_wrong_value_is_refused_with_the_name_of_its_field(text, field):
    with pytest.raises(ValidationError) as caught:
        definitions(text)
    assert [fault["loc"] for fault in caught.value.errors()] == [(field,)]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ("author_name: me", "author_name"),
        ("sensors: [{name: s}]", "target"),
        ("sensors: [{name: s, target: '*', compare: rows}]", "compare"),
    ],
)
def test_what_the_schema_does_not_know_is_refused_by_name(wrong, named):
    with pytest.raises((ValidationError, ResolutionException), match=named):
        definitions(f"project: {{name: HOUSE, location: /nowhere}}\n{wrong}\n")


def test_a_limit_that_the_sensor_refuses_is_refused():
    with pytest.raises(InvalidInput, match="max_runs_per_tick is 0"):
        definitions(
            "project: {name: HOUSE, location: /nowhere}\nsensors: [{name: s, target: '*', max_runs_per_tick: 0}]\n"
        )


# What `dg` makes of it


PYPROJECT = """
[project]
name = "my-project"
version = "0.1.0"

[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "my_project"
"""

DEFINITIONS = """
from pathlib import Path

import dagster as dg


@dg.definitions
def defs():
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
"""

ASSETS = """
import dagster as dg
import pyarrow as pa


@dg.asset
def one():
    return pa.table({"n": [1]})
"""


@pytest.fixture
def run(tmp_path):
    """Runs a command of `dg` in a new project with one asset; returns what it printed."""
    package = tmp_path / "src" / "my_project"
    (package / "defs").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    (package / "__init__.py").touch()
    (package / "definitions.py").write_text(DEFINITIONS)
    (package / "defs" / "__init__.py").touch()
    (package / "defs" / "assets.py").write_text(ASSETS)
    home = tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    environment = os.environ | {
        "DAGSTER_HOME": str(home),
        "HOME": str(home),
        "PYTHONPATH": str(tmp_path / "src"),
        "PYTHONWARNINGS": "ignore",
    }

    def run(*arguments, succeeds=True):
        command = [str(Path(sys.executable).parent / "dg"), *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
        assert (done.returncode == 0) == succeeds, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


@pytest.mark.slow
def test_dg_lists_scaffolds_and_checks_the_component(run, tmp_path):
    listed = run("list", "components", "--json")
    assert TYPE in {item["key"] for item in json.loads(listed[listed.index("{") : listed.rindex("}") + 1])["items"]}
    run("scaffold", "defs", TYPE, "warehouse", "--name", "HOUSE", "--location", str(tmp_path / "data"))
    written = tmp_path / "src" / "my_project" / "defs" / "warehouse" / "defs.yaml"
    assert written.read_text().startswith(f"type: {TYPE}\n")
    assert "loaded successfully" in run("check", "defs")


@pytest.mark.slow
def test_dg_runs_what_was_scaffolded_and_names_what_is_wrong_in_the_yaml(run, tmp_path):
    run("scaffold", "defs", TYPE, "warehouse", "--name", "HOUSE", "--location", str(tmp_path / "data"))
    assert "keep_current" in run("list", "defs")
    run("launch", "--assets", "one")
    assert (tmp_path / "data" / "datom" / "one" / "_delta_log").is_dir()
    written = tmp_path / "src" / "my_project" / "defs" / "warehouse" / "defs.yaml"
    written.write_text(written.read_text().replace("compare: metadata_sha", "compare: rows"))
    assert "compare" in run("check", "defs", succeeds=False)
