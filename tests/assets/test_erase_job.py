"""The job that erases rows: what its run config may say, and what it leaves in Dagster."""

import dagster as dg
import pyarrow as pa
import pytest

from dagster_versioned import Project, ProjectResource, build_erase_job


@pytest.fixture
def project(tmp_path):
    project = Project.open("CLINIC", str(tmp_path / "clinic"))
    people = project.table("people").write(pa.table({"id": [1, 2], "name": ["ann-planted", "bob-planted"]}))
    parent = project.table("people").upstream()
    project.table("visits").write(pa.table({"id": [2, 2, 3], "ward": list("abc")}), parents=parent)
    project.table("totals").write(pa.table({"n": [3]}), parents=parent)
    assert people.change == "full"
    return project


def run(project, tmp_path, condition="name = 'bob-planted'", **config):
    file = tmp_path / "condition.sql"
    file.write_text(condition)
    job = build_erase_job(project=ProjectResource(name="CLINIC", location=str(tmp_path / "clinic")))
    given = {"tables": ["people"], "where_file": str(file), "why": "request 17", **config}
    ops = {"erase_rows_from_every_version": {"config": given}}
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        result = job.execute_in_process({"ops": ops}, instance=instance, raise_on_error=False)
        events = [str(record) for record in instance.all_logs(result.run_id)]
        stored = str(instance.get_run_by_id(result.run_id).run_config)
    (handled,) = [each for each in result.all_events if each.is_successful_output] or [None]
    metadata = handled.step_output_data.metadata if handled else {}
    shown = {key.partition("/")[2]: getattr(value, "records", value.value) for key, value in metadata.items()}
    return shown, events, stored


def ids(project, name):
    return project.table(name).read()["id"].to_pylist()


def test_a_run_says_what_would_go(project, tmp_path):
    shown, events, _ = run(project, tmp_path, key=["id"], downstream=True)
    assert (shown["applied"], shown["not_looked_into"]) == (False, ["totals"])
    assert [(row.data["name"], row.data["rows"]) for row in shown["tables"]] == [("people", 1), ("visits", 2)]
    assert (ids(project, "people"), ids(project, "visits")) == ([1, 2], [2, 2, 3])
    assert any("visits: 2 rows of 1 versions would be erased" in event for event in events)


def test_a_run_erases_and_dagster_keeps_no_value_of_a_person(project, tmp_path):
    shown, events, stored = run(project, tmp_path, "name = 'bob-planted';\n", key=["id"], downstream=True, apply=True)
    assert (shown["applied"], shown["epochs"]) == (True, [0])
    assert (ids(project, "people"), ids(project, "visits")) == ([1], [3])
    assert not [event for event in (*events, stored) if "bob-planted" in event]
    assert any("parts searched" in event for event in events)


@pytest.mark.parametrize("condition", ["nam = 'bob-planted'", "name = 'bob-planted' AND", "id = 'bob-planted'", ""])
def test_no_error_quotes_the_condition(project, tmp_path, condition):
    shown, events, stored = run(project, tmp_path, condition, apply=True)
    assert shown == {}
    assert not [event for event in (*events, stored) if "bob-planted" in event]
    assert any("cannot be used" in event for event in events)


def test_no_error_quotes_a_value_of_a_table(project, tmp_path):
    project.table("texts").write(pa.table({"id": ["x-planted", "2"]}))
    shown, events, _ = run(project, tmp_path, tables=["people", "texts"], key=["id"], apply=True)
    assert shown == {}
    assert not [event for event in events if "x-planted" in event]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"where_file": "/nowhere/condition.sql"}, "The condition in /nowhere/condition.sql cannot be read"),
        ({"tables": ["nobody"]}, "nobody"),
        ({"why": " "}, "needs a reason"),
    ],
)
def test_what_is_wrong_fails_the_run_and_erases_nothing(project, tmp_path, config, message):
    shown, events, _ = run(project, tmp_path, apply=True, **config)
    assert shown == {}
    assert any(message in event for event in events)
    assert ids(project, "people") == [1, 2]
