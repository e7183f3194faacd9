"""A project in YAML: what it defines, what it refuses, and that `dg` knows it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest
import yaml
from dagster.components.resolved.errors import ResolutionException
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from dagster_versioned import Project, VersionedParquetIOManager, VersionedProjectComponent
from dagster_versioned.branches.environments import create_environment
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


def test_an_environment_is_named_and_a_variable_that_is_not_set_is_no_production(tmp_path, monkeypatch):
    project = Project.open("HOUSE", str(tmp_path / "data"))
    create_environment(project, "pr-1")
    monkeypatch.delenv("BRANCH_OF_TEST", raising=False)
    at = f"name: HOUSE, location: {tmp_path}/data"
    for null in ("null", "'{{ env.BRANCH_OF_TEST }}'"):
        with pytest.raises((ResolutionException, ValidationError), match="null"):
            definitions(f"project: {{{at}, environment: {null}}}\n")
    monkeypatch.setenv("BRANCH_OF_TEST", "pr-1")
    named = definitions(f"project: {{{at}, environment: '{{{{ env.BRANCH_OF_TEST }}}}'}}\n")
    assert named.resources["io_manager"].project.project().environment.name == "pr-1"
    production = definitions(f"project: {{{at}, environment: production}}\n")
    assert production.resources["io_manager"].project.project().environment is None
    assert definitions(f"project: {{{at}}}\n").resources["io_manager"].project.project().environment is None


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


def test_openlineage_is_told_where_the_yaml_says_so(tmp_path):
    project = f"project: {{name: HOUSE, location: {tmp_path}}}\n"
    told = [definitions(f"{project}{text}").resources["io_manager"].open_lineage for text in ("", "open_lineage: {}\n")]
    assert (told[0], told[1].namespace) == (None, "dagster")
    assert definitions(f"{project}open_lineage: {{namespace: n}}").resources["io_manager"].open_lineage.namespace == "n"


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("project: {name: HOUSE}\n", "location"),
        ("project: {name: a/b, location: /nowhere}\n", "name"),
        ("project: {name: HOUSE, location: hdfs://bucket}\n", "location"),
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


# What the YAML is checked against


def faults(text):
    """The faults of a component's attributes, as `dg check yaml` finds them: where, and what."""
    schema = VersionedProjectComponent.get_model_cls().model_json_schema()
    Draft202012Validator.check_schema(schema)
    found = Draft202012Validator(schema).iter_errors(yaml.safe_load(text))
    return {".".join(map(str, fault.absolute_path)): fault.message for fault in found}


PLACES = ["warehouse", "./a:b", "/data/x", "~/data", "file:///data", "s3://bucket/prefix?region=eu", "s3a://bucket/x"]
CLOUDS = ["gs://bucket/x", "abfss://c@account.dfs.core.windows.net/x", "az://c/x?account=a", "dbfs:/Volumes/a/b/c"]


@pytest.mark.parametrize("place", [*PLACES, *CLOUDS, "{{ env.WAREHOUSE }}"])
def test_every_kind_of_place_fits(place):
    assert faults(f"project: {{name: HOUSE, location: '{place}'}}\ngovernance: {{storage: '{place}'}}\n") == {}


@pytest.mark.parametrize(
    "place", ["ftp://host/x", "s3:/bucket", "s3://", "file://x", "dbfs:/x", "'C:\\x'", "''", "' x'", "7"]
)
def test_what_is_no_place_does_not(place):
    found = faults(f"project: {{name: HOUSE, location: {place}}}\ngovernance: {{storage: {place}}}\n")
    assert set(found) == {"project.location", "governance.storage"}


@pytest.mark.parametrize(
    ("wrong", "where", "what"),
    [
        ("project: {name: a/b, location: x}", "project.name", "does not match"),
        ("project: {name: '', location: x}", "project.name", "does not match"),
        ("project: {name: H}", "project", "'location' is a required property"),
        ("project: {name: H, location: x, default_engine: spork}", "project.default_engine", "is not one of"),
        ("project: {name: H, location: x, profile: ''}", "project.profile", "too short|non-empty"),
        ("project: {name: H, location: x, author: 7}", "project.author", "is not of type 'string'"),
        ("project: {name: H, location: x, password: y}", "project", "'password' was unexpected"),
        ("project: a text", "project", "is not of type 'object'"),
        ("governance: {storage: x, role: owner}", "governance.role", "is not one of"),
        ("governance: {storage: x, clone: ''}", "governance.clone", "too short|non-empty"),
        ("io_manager_key: io-manager", "io_manager_key", "does not match"),
        ("preview_rows: 101", "preview_rows", "greater than the maximum of 100"),
        ("preview_rows: -1", "preview_rows", "less than the minimum of 0"),
        ("preview_rows: many", "preview_rows", "is not of type 'integer'"),
        ("pyspark: {spark_config: [a]}", "pyspark.spark_config", "is not of type 'object'"),
        ("open_lineage: {namespace: ''}", "open_lineage.namespace", "too short|non-empty"),
        ("open_lineage: {url: x}", "open_lineage", "'url' was unexpected"),
        ("sensors: [{name: s, target: '*', compare: rows}]", "sensors.0.compare", "is not one of"),
        ("sensors: [{name: a b, target: '*'}]", "sensors.0.name", "does not match"),
        ("sensors: [{name: s, target: ''}]", "sensors.0.target", "too short|non-empty"),
        ("sensors: [{name: s, target: '*', max_runs_per_tick: 0}]", "sensors.0.max_runs_per_tick", "minimum of 1"),
        (
            "sensors: [{name: s, target: '*', minimum_interval_seconds: -5}]",
            "sensors.0.minimum_interval_seconds",
            "minimum of 0",
        ),
        ("sensors: [{name: s, target: '*', running: maybe}]", "sensors.0.running", "is not of type 'boolean'"),
        ("sensors: [{name: s, target: '*', run_tags: {a: [1]}}]", "sensors.0.run_tags.a", "not valid under any"),
    ],
)
def test_a_wrong_value_is_found_where_it_is(wrong, where, what):
    project = "" if wrong.startswith("project") else "project: {name: HOUSE, location: /nowhere}\n"
    ((found, message),) = faults(f"{project}{wrong}\n").items()
    assert found == where
    assert re.search(what, message)


def test_what_is_right_has_no_fault():
    page = Path(__file__).parents[2] / "docs" / "how-to" / "components.md"
    documented = yaml.safe_load(page.read_text().partition("```yaml\n")[2].partition("```")[0])["attributes"]
    assert faults(yaml.safe_dump(documented)) == {}
    assert faults(SENSORS) == {}
    assert faults("project: {name: H}\ngovernance: {storage: x}\n") == {}
    assert faults("project: {name: H, location: x, profile: null}\ngovernance: null\npyspark: null\n") == {}


@pytest.mark.parametrize("where", ["", ", location: null"])
@pytest.mark.parametrize("governance", ["", "governance: null\n"])
def test_a_project_says_where_it_is_unless_governance_knows(where, governance):
    missing = {"project": "'location' is a required property"}
    null = {"project.location": "None is not of type 'string'"}
    assert faults(f"project: {{name: H{where}}}\n{governance}") == (null if where else missing)
    assert faults(f"project: {{name: H{where}}}\ngovernance: {{storage: x}}\n") == {}
    assert faults(f"project: {{name: H{where}}}\ngovernance: '{{{{ a }}}}'\n") == {}


def test_a_template_fits_wherever_a_value_does():
    assert faults('project: {name: H, location: x}\nio_manager_key: "{{\\n a }}"\n') == {}
    assert (
        faults("""
project: {name: '{{ a }}', location: '{{ b }}', default_engine: '{{ c }}', author: '{{ d }}'}
io_manager_key: '{{ e }}'
preview_rows: '{{ f }}'
pyspark: '{{ g }}'
sensors: [{name: 's_{{ h }}', target: '{{ i }}', compare: '{{ j }}', running: '{{ k }}', max_runs_per_tick: '{{ l }}'}]
""")
        == {}
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
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "src"), str(Path(__file__).parents[2])]),
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


WRONG = """\
type: dagster_versioned.VersionedProjectComponent

attributes:
  project:
    name: HOUSE
    location: ftp://host/warehouse
    default_engine: spork
  preview_rows: 1000
  sensors:
    - name: keep
      target: "*"
      compare: rows
    - name: keep all
      target: "*"
      max_runs_per_tick: 0
"""


@pytest.mark.slow
def test_dg_names_file_and_line_of_every_wrong_value(run, tmp_path):
    written = tmp_path / "src" / "my_project" / "defs" / "warehouse" / "defs.yaml"
    written.parent.mkdir()
    written.write_text(WRONG)
    told = run("check", "yaml", succeeds=False)
    lines = {int(line) for line in re.findall(rf"{re.escape(str(written))}:([0-9]+)", told)}
    assert lines == {6, 7, 8, 12, 13, 15}
    assert "'spork' is not one of ['arrow', 'pandas', 'polars', 'spark']" in told
    assert "1000 is greater than the maximum of 100" in told
