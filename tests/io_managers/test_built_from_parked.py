"""What is built from a parked version is parked as well, or refused, whoever writes it: no row gets out by a detour."""

from datetime import timedelta

import dagster as dg
import pyarrow as pa
import pytest

import dagster_versioned as dv
from dagster_versioned.errors import InvalidInput
from dagster_versioned.tables.documents import parked_draft

AFTER = {"publish": "after_checks"}
EVERYTHING = dg.AssetSelection.all()
CITIES = """
kind: DatasetSnapshot
version: 1
content:
  name: cities
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {{kind: FilesGlob, path: "{folder}/*.csv", eventTime: {{kind: FromMetadata}}}}
      read: {{kind: Csv, header: true, schema: [n BIGINT]}}
      merge: {{kind: Append}}
"""


def rows(*numbers):
    return pa.table({"n": list(numbers)})


@dg.asset(io_manager_key="checked")
def raw() -> pa.Table:
    return rows(-999)


@dg.asset_check(asset=raw, blocking=True)
def positive(raw: pa.Table):
    return dg.AssetCheckResult(passed=min(raw["n"].to_pylist()) > 0)


class Builds:
    """`raw` is parked, and ``down`` built from it by the IO manager ``writer``, in a run without checks."""

    def __init__(self, house, writer, *assets, **resources):
        self.house = house
        self.definitions = dg.Definitions(
            assets=[raw, *assets],
            asset_checks=[positive],
            resources={"checked": house.io_manager(**AFTER), "io_manager": writer, **resources},
            executor=dg.in_process_executor,
            jobs=[
                dg.define_asset_job(
                    "unchecked", selection=dg.AssetSelection.all() - dg.AssetSelection.all_asset_checks()
                )
            ],
        )
        job = self.definitions.resolve_job_def("unchecked")
        self.result = job.execute_in_process(instance=house.instance, raise_on_error=False)

    def publish(self, project=None):
        return dv.publish_checked(project or self.house.project, self.house.instance, self.definitions)

    def refusal(self, step="down"):
        [failed] = [one for one in self.result.all_events if one.is_step_failure]
        assert failed.step_key == step
        error = failed.event_specific_data.error
        return (error.cause or error).message


@dg.asset
def down(raw: pa.Table) -> pa.Table:
    return raw


@dg.asset
def below(down: pa.Table) -> pa.Table:
    return down


def test_by_another_io_manager_it_is_parked_read_by_its_run_and_published_with_what_it_is_built_from(house):
    made = Builds(house, house.io_manager(), down, below)
    assert made.result.success
    assert house.project.tables() == []
    assert [str(one) for one, _ in made.publish().waiting] == [
        f"{name} of run {made.result.run_id[:8]}" for name in ("raw", "down", "below")
    ]
    house.project.publish(made.result.run_id, by="ann")
    assert house.parents("below") == [("down", None, house.head("down").metadata_sha)]


@pytest.mark.parametrize("publish", ["at_once", "after_checks"])
def test_in_another_project_it_is_refused(house, tmp_path, publish):
    there = dv.ProjectResource(name="THERE", location=str(tmp_path / "there"))
    made = Builds(house, dv.VersionedParquetIOManager(project=there, publish=publish), down)
    assert "version" in made.refusal()
    assert "of project HOUSE, which is parked as the draft" in made.refusal()
    assert (there.project().tables(), there.project().parked()) == ([], [])


def history(raw: pa.Table) -> pa.Table:
    return raw


def feature(increment: dv.Increment[pa.Table]) -> pa.Table:
    return increment.changed


def of_a_history():
    options = dv.TableOptions(history=dv.EventHistory(merge=dv.AppendMerge()))
    return dg.asset(name="down", metadata=options.as_metadata())(history)


def of_a_feature():
    upstream = dv.Feature("raw", id_columns=["n"], fields=[dv.Field("n", columns=["n"])])
    return dv.versioned_feature(name="down", id_columns=["n"], fields=[dv.Field("n", "1")], deps=[upstream])(feature)


def of_a_feature_in_chunks():
    upstream = dv.Feature("raw", id_columns=["n"], fields=[dv.Field("n", columns=["n"])])
    fields = [dv.Field("n", "1")]
    return dv.versioned_feature(name="down", id_columns=["n"], fields=fields, deps=[upstream], chunk_size=1)(feature)


def of_a_query():
    return dv.sql_asset("down", inputs={"raw": raw}, query="SELECT n FROM raw")


@pytest.mark.parametrize("asset", [of_a_history, of_a_feature, of_a_feature_in_chunks, of_a_query])
@pytest.mark.parametrize("writer", ["checked", "io_manager"])
def test_what_cannot_be_parked_is_refused(house, asset, writer):
    options = {} if writer == "io_manager" else AFTER
    made = Builds(house, house.io_manager(**options), asset())
    assert made.refusal()
    assert house.project.tables() == []


def test_a_source_that_is_polled_in_the_run_of_a_parked_version_is_not_held_back(house, tmp_path):
    (tmp_path / "cities.csv").write_text("n\n1\n")
    (tmp_path / "manifest.yaml").write_text(CITIES.format(folder=tmp_path))
    polled = dv.polling_source(tmp_path / "manifest.yaml", name="cities")
    made = Builds(house, house.io_manager(), polled)
    assert made.result.success
    assert house.project.tables() == ["cities"]
    assert [str(one.table) for one in house.project.parked()] == ["raw"]


@pytest.mark.parametrize("kind", ["asset", "graph", "other project"])
def test_a_function_that_writes_by_itself_is_refused(house, tmp_path, kind):
    place = ("HOUSE", house.location) if kind != "other project" else ("THERE", str(tmp_path / "there"))

    def write(raw):
        dv.Project.open(*place).table("beside").write(raw)

    @dg.asset(name="down")
    def plain(raw: pa.Table) -> None:
        write(raw)

    @dg.op
    def first(raw: pa.Table) -> list[int]:
        return raw["n"].to_pylist()

    @dg.op
    def second(numbers: list[int]) -> None:
        write(rows(*numbers))

    @dg.graph_asset(name="down")
    def graph(raw):
        return second(first(raw))

    made = Builds(house, house.io_manager(), graph if kind == "graph" else plain)
    assert "beside would be built from version" in made.refusal("down.second" if kind == "graph" else "down")
    assert dv.Project.open(*place).tables() == []


def test_a_function_that_has_read_nothing_parked_writes_what_it_likes(house):
    @dg.asset
    def apart() -> None:
        house.project.table("beside").write(rows(1))

    assert Builds(house, house.io_manager(), apart).result.success
    house.project.table("beside").write(rows(2))
    assert house.project.table("beside").read()["n"].to_pylist() == [2]


def test_what_names_a_parked_version_as_its_parent_is_refused_until_that_is_published(house):
    made = Builds(house, house.io_manager())
    [draft] = house.project.parked()
    named = dv.Project.open("HOUSE", house.location).table("other")
    named.write(rows(5))
    [known] = named.upstream()
    sha = draft.versions[0].entry.metadata_sha
    parent = type(known.parent)("HOUSE", "raw", sha, draft.versions[0].entry.identity.data_sha)
    table = house.project.table("down")
    with pytest.raises(InvalidInput, match=f"down would be built from version {sha[:8]} of raw of project HOUSE"):
        table.write(rows(-999), parents=[type(known)(parent, ())])
    assert not table.exists()
    house.project.publish(made.result.run_id, by="ann")
    table.write(rows(-999), parents=[type(known)(parent, ())])


def test_what_was_computed_from_the_same_rows_before_is_not_reused_for_a_parked_version(house):
    """The draft has the name of an older version of ``raw``, of which ``down`` was computed once."""
    calls = []

    @dv.versioned_asset(code_version="1")
    def down(raw: pa.Table) -> pa.Table:
        calls.append(raw["n"].to_pylist())
        return raw

    manager = {"io_manager": house.io_manager(), "checked": house.io_manager()}
    for number in (-999, 1):

        @dg.asset(name="raw", io_manager_key="checked")
        def given() -> pa.Table:
            return rows(number)  # noqa: B023 - called in this turn

        dg.materialize([given, down], resources=manager, instance=house.instance)
    made = Builds(house, house.io_manager(), down)
    assert made.result.success
    assert calls == [[-999], [1], [-999]]
    assert house.project.table("down").read()["n"].to_pylist() == [1]
    assert not made.publish().published


@pytest.mark.parametrize("end", ["dropped", "given up by vacuum"])
@pytest.mark.parametrize("is_whole", [True, False])
def test_what_is_built_from_a_draft_that_was_given_up_is_not_published_though_its_name_was_current_once(
    house, monkeypatch, end, is_whole
):
    given, passes = [1], [True]
    keys = dg.StaticPartitionsDefinition(["a"]) if is_whole else None
    tags = {"dagster/partition": "a"} if is_whole else {}

    @dg.asset(partitions_def=keys)
    def raw() -> pa.Table:
        return rows(*given)

    @dg.asset
    def down(raw: dict[str, pa.Table] if is_whole else pa.Table) -> pa.Table:
        return raw["a"] if is_whole else raw

    @dg.asset_check(asset=raw, blocking=True)
    def good():
        return dg.AssetCheckResult(passed=passes[0])

    everything = dg.AssetSelection.all()
    repository = dg.Definitions(
        assets=[raw, down],
        asset_checks=[good],
        resources={"io_manager": house.io_manager(**AFTER)},
        jobs=[
            dg.define_asset_job("raw_alone", dg.AssetSelection.assets(raw)),
            dg.define_asset_job("unchecked", everything - dg.AssetSelection.all_asset_checks()),
        ],
    ).get_repository_def()

    def run(job, number):
        given[0] = number
        repository.get_job(job).execute_in_process(instance=house.instance, tags=tags, raise_on_error=False)
        return dv.publish_checked(house.project, house.instance, repository)

    assert [len(run("raw_alone", number).published) for number in (1, 2)] == [1, 1]
    passes[0] = False
    [(draft, _), (_, why)] = run("unchecked", 1).waiting
    assert why.startswith(f"it was built from the draft {draft.id[:8]}")
    if end == "dropped":
        house.project.drop_parked(draft.id)
    else:
        with monkeypatch.context() as late:
            late.setattr(parked_draft, "KEPT", timedelta(0))
            house.project.table("raw").vacuum(dry_run=False)
    report = dv.publish_checked(house.project, house.instance, repository)
    assert ([str(one.table) for one in report.superseded], report.published) == (["down"], [])
    assert "was given up before it was published" in report.superseded[0].why


def test_vacuum_keeps_the_document_of_a_published_draft_as_long_as_one_waits_that_was_built_from_it(house):
    made = Builds(house, house.io_manager(), down)
    raw_draft, down_draft = house.project.parked()
    house.project.drop_parked(down_draft.id)
    house.project.publish(made.result.run_id, by="ann")
    assert [one.standing for one in house.project.parked()] == ["published", "superseded"]
    house.project.data.put(down_draft.key, down_draft.to_bytes())  # it waits, as before
    house.project.table("raw").vacuum(min_age=timedelta(seconds=-5), dry_run=False)
    assert [one.id for one in house.project.parked()] == [raw_draft.id, down_draft.id]
    assert len(house.project.publish(made.result.run_id, by="ann").published) == 1
    house.project.table("raw").vacuum(min_age=timedelta(seconds=-5), dry_run=False)
    assert [one.id for one in house.project.parked()] == [down_draft.id]


def test_in_an_environment_too(house):
    from dagster_versioned.branches.environments import create_environment

    house.project.table("other").write(rows(1))
    create_environment(house.project, "pr")
    resource = dv.ProjectResource(name="HOUSE", location=house.location, environment="pr")
    options = dv.TableOptions(publish="at_once", history=dv.EventHistory(merge=dv.AppendMerge()))
    appended = dg.asset(name="events", metadata=options.as_metadata())(history)
    manager = {"checked": dv.VersionedParquetIOManager(project=resource, publish="after_checks")}
    Builds(house, dv.VersionedParquetIOManager(project=resource), down, appended, **manager)
    there = dv.Project.open("HOUSE", house.location, environment="pr")
    assert (house.project.tables(), there.tables()) == (["other"], ["other"])
    assert [str(one.table) for one in there.parked()] == ["raw", "down"]
