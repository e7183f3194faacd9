"""Assets whose data come from elsewhere."""

import traceback
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

from dagster_versioned.assets.polling_source import polling_source
from dagster_versioned.errors import InvalidInput
from dagster_versioned.io_managers.parquet import VersionedParquetIOManager
from dagster_versioned.odf.event_table import EventTable
from dagster_versioned.odf.identity.signing_key import SigningKey
from dagster_versioned.odf.ingest.declare import current_state
from dagster_versioned.odf.sharing.transfer import push
from dagster_versioned.resources.project import ProjectResource
from dagster_versioned.storage import LocalStore

MANIFEST = """
kind: DatasetSnapshot
version: 1
content:
  name: org.example.cities
  kind: Root
  metadata:
    - kind: SetInfo
      description: Cities of the world
    - kind: SetPollingSource
      fetch:
        kind: FilesGlob
        path: {folder}/*.csv
        eventTime:
          kind: FromPath
          pattern: '([0-9-]+)\\.csv'
      read:
        kind: Csv
        header: true
        schema:
          - id BIGINT NOT NULL
          - name STRING
      merge:
        kind: Ledger
        primaryKey: [id]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "files").mkdir()
    (tmp_path / "files/2020-01-01.csv").write_text("id,name\n1,Oslo\n2,Rome\n")
    return tmp_path / "files"


@pytest.fixture
def manifest(tmp_path: Path, folder: Path) -> Path:
    path = tmp_path / "cities.yaml"
    path.write_text(MANIFEST.format(folder=folder))
    return path


@pytest.fixture
def project(tmp_path: Path) -> ProjectResource:
    return ProjectResource(name="NYC", location=str(tmp_path / "store"))


def materialize(asset: dg.AssetsDefinition, project: ProjectResource, *others: dg.AssetsDefinition):
    resources = {"io_manager": VersionedParquetIOManager(project=project)}
    return dg.materialize([asset, *others], resources=resources)


def test_each_materialization_adds_what_is_new(manifest: Path, folder: Path, project: ProjectResource):
    cities = polling_source(manifest)
    assert cities.key == dg.AssetKey("org_example_cities")
    assert cities.specs_by_key[cities.key].description == "Cities of the world"

    @dg.asset
    def names(org_example_cities: pa.Table) -> pa.Table:
        return org_example_cities.select(["name"])

    def run() -> dict[str, object]:
        result = materialize(cities, project, names)
        (event,) = result.asset_materializations_for_node("org_example_cities")
        return {name: value.value for name, value in event.metadata.items()}

    first = run()
    assert (first["dagster/row_count"], first["dagster_versioned/change"]) == (2, "full")
    assert "2020-01-01.csv: full" in str(first["dagster_versioned/files"])
    table = project.project().table(["org_example_cities"])
    assert project.project().table("names").read().num_rows == 2
    again = run()
    assert (again["dagster_versioned/change"], again["dagster_versioned/files"]) == ("none", "- nothing new")
    assert again["dagster_versioned/version"] == first["dagster_versioned/version"]
    (folder / "2021-01-01.csv").write_text("id,name\n2,Rome\n3,Bonn\n")
    assert run()["dagster/row_count"] == 3
    assert EventTable(table).current()["name"].to_pylist() == ["Oslo", "Rome", "Bonn"]
    state = current_state(table)
    assert state is not None
    assert state.info.description == "Cities of the world"


def test_rows_are_reshaped_by_an_engine_that_is_here_and_by_no_other(manifest: Path, project: ProjectResource):
    query = "preprocess: {kind: Sql, engine: duckdb, query: 'SELECT id, upper(name) AS name FROM input'}"
    reshaped = manifest.read_text().replace("\n      merge:", f"\n      {query}\n      merge:")
    manifest.write_text(reshaped.replace("duckdb", "datafusion"))
    with pytest.raises(InvalidInput, match="'datafusion', which is not here"):
        materialize(polling_source(manifest), project)
    manifest.write_text(reshaped)
    materialize(polling_source(manifest), project)
    table = project.project().table(["org_example_cities"])
    assert EventTable(table).current()["name"].to_pylist() == ["OSLO", "ROME"]


def test_variables_and_the_private_key_come_from_where_the_user_says(
    manifest: Path, project: ProjectResource, monkeypatch: pytest.MonkeyPatch
):
    key = SigningKey.generate()
    monkeypatch.setenv("CITIES_KEY", key.secret)
    asset = polling_source(manifest, private_key=dg.EnvVar("CITIES_KEY"))
    materialize(asset, project)
    state = current_state(project.project().table(["org_example_cities"]))
    assert state is not None
    assert state.seed.dataset_id == key.dataset_id
    monkeypatch.delenv("CITIES_KEY")
    with pytest.raises(InvalidInput, match="no private key in the secret 'CITIES_KEY'"):
        materialize(asset, project)
    monkeypatch.delenv("TOKEN", raising=False)
    with pytest.raises(InvalidInput, match="'TOKEN' of a source is not set"):
        materialize(polling_source(manifest, variables={"TOKEN": dg.EnvVar("TOKEN")}), project)


def test_a_manifest_is_read_when_the_asset_is_defined(tmp_path: Path, manifest: Path):
    with pytest.raises(InvalidInput, match="cannot be read"):
        polling_source(tmp_path / "nothing.yaml")
    manifest.write_text(manifest.read_text().replace("primaryKey", "primryKey"))
    with pytest.raises(InvalidInput, match="primryKey"):
        polling_source(manifest)
    manifest.write_text(MANIFEST.format(folder="x").replace("kind: Root", "kind: Derivative"))
    with pytest.raises(InvalidInput, match="of kind Derivative"):
        polling_source(manifest)


def test_a_resource_without_a_project_is_refused(manifest: Path):
    with pytest.raises(InvalidInput, match="which has no project"):
        dg.materialize([polling_source(manifest)], resources={"io_manager": dg.mem_io_manager})


def test_the_manifest_of_the_documentation_defines_an_asset(tmp_path: Path):
    page = (Path(__file__).parents[3] / "docs/how-to/ingest.md").read_text()
    manifest = tmp_path / "cities.yaml"
    manifest.write_text(page.partition("```yaml\n")[2].partition("```")[0])
    assert polling_source(manifest).key == dg.AssetKey("org_example_cities")


def test_a_tick_that_finds_nothing_new_makes_no_version(manifest: Path, folder: Path, project: ProjectResource):
    always = polling_source(manifest, automation_condition=dg.AutomationCondition.on_cron("* * * * *"))
    definitions = dg.Definitions(assets=[always], resources={"io_manager": VersionedParquetIOManager(project=project)})
    now = datetime.now(UTC)  # a run counts as of when it is: ticks come after it
    with dg.DagsterInstance.ephemeral() as instance:
        cursor = None

        def minute() -> int:
            """Let a minute go by in which the daemon looks twice; how many runs it asked for, and got."""
            nonlocal cursor, now
            runs = 0
            for _ in range(2):
                now += timedelta(seconds=30)
                asked = dg.evaluate_automation_conditions(
                    definitions, instance=instance, cursor=cursor, evaluation_time=now
                )
                cursor = asked.cursor
                if asked.total_requested:
                    job = definitions.resolve_implicit_global_asset_job_def()
                    assert job.execute_in_process(instance=instance, asset_selection=[always.key]).success
                    runs += 1
            return runs

        minute()
        assert minute() == 1
        table = project.project().table(["org_example_cities"])
        kept = {info.key: table.store.get(info.key) for info in table.store.list()}
        (first,) = table.history()
        assert minute() == 1
        assert [version.metadata_sha for version in table.history()] == [first.metadata_sha]
        assert {info.key: table.store.get(info.key) for info in table.store.list()} == kept
        told = instance.get_latest_data_version_record(always.key)
        assert told is not None
        assert told.asset_materialization is not None
        assert told.asset_materialization.tags is not None
        assert told.asset_materialization.tags["dagster/data_version"] == first.metadata_sha
        (folder / "2021-01-01.csv").write_text("id,name\n3,Bonn\n")
        assert minute() == 1
        assert len(table.history()) == 2


def test_a_private_key_is_in_no_file_log_or_error(
    manifest: Path,
    project: ProjectResource,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
):
    caplog.set_level("DEBUG")
    key = SigningKey.generate()
    monkeypatch.setenv("CITIES_KEY", key.secret)
    asset = polling_source(manifest, private_key=dg.EnvVar("CITIES_KEY"))
    (tmp_path / "dagster").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster")) as instance:
        dg.materialize([asset], resources={"io_manager": VersionedParquetIOManager(project=project)}, instance=instance)
    table = project.project().table(["org_example_cities"])
    push(table, LocalStore(tmp_path / "shared"), key=key)
    with pytest.raises(InvalidInput) as refused:
        push(table, LocalStore(tmp_path / "shared"), key=SigningKey.generate())
    said = [caplog.text, "".join(capfd.readouterr()), str(refused.value), repr(key), f"{key}", repr([key])]
    said.append(repr(EventTable(table, key=key)))
    said.append("".join(traceback.format_exception(refused.value)))
    for text in said:
        assert key.secret not in text
        assert repr(key.seed)[2:-1] not in text
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name == "head.sig" for path in files)
    for path in files:
        data = path.read_bytes()
        assert key.seed not in data
        assert key.secret.encode() not in data
