"""The project resource: what it accepts, and what it says when it does not."""

import dagster as dg
import pyarrow as pa
import pytest
from pydantic import ValidationError

from dagster_versioned import Project, ProjectResource, S3CredentialsResource
from dagster_versioned.errors import InvalidInput


def test_it_opens_the_project_once(tmp_path):
    resource = ProjectResource(name="HOUSE", location=str(tmp_path), author="me")
    project = resource.project()
    assert resource.project() is project
    assert (project.name, project.author) == ("HOUSE", "me")
    assert str(tmp_path) in project.store.uri
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "a/b"),
        ("name", ""),
        ("location", "hdfs://bucket"),
        ("location", ""),
        ("location", "dbfs:/mnt/x"),
        ("location", "C:\\data"),
        ("location", "~nobody-of-this-name/x"),
        ("default_engine", "duckdb"),
    ],
)
def test_a_wrong_value_is_refused_with_the_name_of_its_field(field, value):
    with pytest.raises(ValidationError) as caught:
        ProjectResource(**{"name": "HOUSE", "location": "/data", field: value})
    assert [fault["loc"] for fault in caught.value.errors()] == [(field,)]


def test_a_misspelled_field_is_refused():
    with pytest.raises(ValidationError, match="autor"):
        ProjectResource(name="HOUSE", location="/data", autor="me")


def test_a_secret_in_a_location_is_refused_and_not_repeated():
    with pytest.raises(ValidationError) as caught:
        ProjectResource(name="HOUSE", location="s3://key:hunter2@bucket/prefix")
    assert "location" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def resolved(resource):
    """The resource as a run sees it."""
    seen = []

    @dg.asset
    def look(project: ProjectResource) -> None:
        seen.append(project)

    dg.materialize([look], resources={"project": resource}, instance=dg.DagsterInstance.ephemeral())
    return seen[0]


def test_every_text_can_come_from_the_environment(tmp_path, monkeypatch):
    for name, value in {"P_NAME": "HOUSE", "P_WHERE": str(tmp_path), "P_PROFILE": "work", "P_WHO": "me"}.items():
        monkeypatch.setenv(name, value)
    resource = ProjectResource(
        name=dg.EnvVar("P_NAME"),
        location=dg.EnvVar("P_WHERE"),
        profile=dg.EnvVar("P_PROFILE"),
        author=dg.EnvVar("P_WHO"),
    )
    found = resolved(resource)
    assert (found.name, found.location, found.profile, found.author) == ("HOUSE", str(tmp_path), "work", "me")


def test_outside_of_a_run_every_text_comes_from_the_environment_too(tmp_path, monkeypatch):
    for name, value in {"P_NAME": "HOUSE", "P_WHERE": str(tmp_path), "P_WHO": "me"}.items():
        monkeypatch.setenv(name, value)
    resource = ProjectResource(name=dg.EnvVar("P_NAME"), location=dg.EnvVar("P_WHERE"), author=dg.EnvVar("P_WHO"))
    project = resource.project()
    assert (project.name, project.store.uri, project.author) == ("HOUSE", str(tmp_path), "me")


@pytest.mark.parametrize("field", ["name", "location", "profile", "author"])
def test_a_variable_that_is_not_set_is_named(field, monkeypatch):
    monkeypatch.delenv("P_UNSET", raising=False)
    resource = ProjectResource(**{"name": "HOUSE", "location": "/data", field: dg.EnvVar("P_UNSET")})
    with pytest.raises(InvalidInput, match=f"^{field} is the environment variable 'P_UNSET', which is not set"):
        resource.project()
    with pytest.raises(dg.DagsterInvalidConfigError, match='"P_UNSET" which is not set'):
        resolved(resource)


def test_a_key_whose_variable_is_not_set_is_named(monkeypatch):
    monkeypatch.delenv("P_UNSET", raising=False)
    keys = S3CredentialsResource(access_key="key", secret_key=dg.EnvVar("P_UNSET"))
    with pytest.raises(InvalidInput, match=r"^secret_key is the environment variable 'P_UNSET'"):
        keys.credentials()
    assert "P_UNSET" not in repr(keys)


def test_a_wrong_value_from_the_environment_is_refused_when_the_run_starts(monkeypatch):
    monkeypatch.setenv("P_NAME", "a/b")
    with pytest.raises(dg.DagsterResourceFunctionError) as caught:
        resolved(ProjectResource(name=dg.EnvVar("P_NAME"), location="/data"))
    assert "name" in str(caught.value.__cause__)


def test_a_profile_reaches_the_store(tmp_path):
    resource = ProjectResource(name="HOUSE", location="s3://bucket/prefix", profile="no-such-profile")
    with pytest.raises(Exception, match="no-such-profile"):
        resource.project().tables()


def test_a_place_is_not_opened_under_another_name(tmp_path):
    Project.open("NYC", str(tmp_path)).table("flights").write(pa.table({"n": [1]}))
    other = ProjectResource(name="OTHER", location=str(tmp_path))
    with pytest.raises(InvalidInput, match=r"holds the project 'NYC', but was opened as 'OTHER'.*Nothing was read"):
        other.project()
    assert ProjectResource(name="NYC", location=str(tmp_path)).project().table("flights").read().num_rows == 1
