"""Governed projects in Dagster: what the resources accept, and a run with the IO manager from end to end."""

import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest
from pydantic import ValidationError

import dagster_versioned
from dagster_versioned import GovernanceResource, ProjectResource, S3CredentialsResource, VersionedParquetIOManager
from dagster_versioned.errors import GovernanceError
from dagster_versioned.governance.documents import Event, PendingMigration
from dagster_versioned.governance.mirror import GovernanceStore
from dagster_versioned.governance.registry import Registry
from dagster_versioned.storage import LocalStore, Location
from support.git_identity import git_identity
from support.governance_documents import NAME, lived_at, move_bytes, publish
from support.house import House, materializations

__all__ = ["git_identity"]


@pytest.fixture(autouse=True)
def cache(git_identity, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def remote(tmp_path):
    return str(tmp_path / "registry.git")


@pytest.fixture
def clone(tmp_path):
    return str(tmp_path / "clone")


@pytest.fixture
def old(tmp_path):
    return tmp_path / "old"


@pytest.fixture
def storage(tmp_path):
    return str(tmp_path / "governance")


@pytest.fixture
def registry(remote, clone, old, storage):
    """A registry with the project in it, published; and the developer's clone of it."""
    registry = Registry.init(remote, Path(clone))
    registry.register(NAME, Location.parse(str(old)))
    GovernanceStore(LocalStore(storage)).publish(registry)
    return registry


@pytest.fixture
def governance(registry, clone, storage):
    return GovernanceResource(storage=storage, clone=clone)


def faults(caught):
    return [fault["loc"] for fault in caught.value.errors()]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("storage", "hdfs://bucket"),
        ("storage", ""),
        ("storage", "s3://key:hunter2@bucket"),
        ("role", "admin"),
        ("role", ""),
        ("registry", "ext::sh -c touch% /tmp/x"),
        ("registry", "--upload-pack=touch"),
        ("registry", "https://me:hunter2@example.org/registry.git"),
        ("stale_after_hours", 0),
        ("stale_after_hours", -1),
        ("stale_after_hours", "soon"),
    ],
)
def test_a_wrong_value_is_refused_with_the_name_of_its_field_and_not_repeated(field, value):
    with pytest.raises(ValidationError) as caught:
        GovernanceResource(**{"storage": "/gov", "clone": "/clone", field: value})
    assert faults(caught) == [(field,)]
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "a developer needs a clone"),
        ({"role": "developer"}, "a developer needs a clone"),
        ({"role": "reader", "clone": "/clone"}, "a reader has no clone"),
        ({"role": "reader", "registry": "/registry.git"}, "a reader has no clone"),
    ],
)
def test_a_clone_is_what_a_developer_has(given, says):
    with pytest.raises(ValidationError, match=says) as caught:
        GovernanceResource(storage="/gov", **given)
    assert faults(caught) == [("clone",)]


def test_a_misspelled_field_is_refused():
    with pytest.raises(ValidationError, match="stale_after"):
        GovernanceResource(storage="/gov", clone="/clone", stale_after=1)


class TestAProject:
    def test_needs_a_location_or_governance(self):
        with pytest.raises(ValidationError, match="without governance needs a location") as caught:
            ProjectResource(name=NAME)
        assert faults(caught) == [("location",)]

    def test_needs_no_location_with_governance(self, governance, old):
        assert ProjectResource(name=NAME, governance=governance, author="me").project().store.uri == str(old)

    def test_is_opened_once(self, governance):
        resource = ProjectResource(name=NAME, governance=governance, author="me")
        assert resource.project() is resource.project()
        assert resource.project().author == "me"

    def test_that_is_not_registered_is_refused(self, governance):
        with pytest.raises(GovernanceError, match="OTHER"):
            ProjectResource(name="OTHER", governance=governance).project()

    def test_that_left_the_location_it_is_given_is_opened_where_it_is(self, old, storage, tmp_path, caplog):
        publish(LocalStore(storage), lived_at(old, tmp_path / "new"))
        reader = GovernanceResource(storage=storage, role="reader")
        project = ProjectResource(name=NAME, governance=reader, location=str(old)).project()
        assert project.store.uri == str(tmp_path / "new")
        assert str(old) in caplog.text


class TestAClone:
    def test_is_made_of_the_remote_where_there_is_none(self, registry, remote, storage, tmp_path):
        resource = GovernanceResource(storage=storage, registry=remote, clone=str(tmp_path / "another"))
        assert ProjectResource(name=NAME, governance=resource).project().name == NAME
        assert (tmp_path / "another").is_dir()

    def test_has_a_folder_of_its_own_in_the_cache(self, registry, remote, storage, tmp_path):
        resource = GovernanceResource(storage=storage, registry=remote)
        assert resource.governance().registry.path.is_relative_to(tmp_path / "cache" / "dagster-versioned")
        assert resource.governance() is resource.governance()

    def test_is_used_without_the_remote_from_then_on(self, registry, remote, clone, storage, tmp_path):
        Path(remote).rename(tmp_path / "gone")
        resource = GovernanceResource(storage=storage, registry=remote, clone=clone)
        assert ProjectResource(name=NAME, governance=resource).project().name == NAME

    def test_travels_by_pickle_and_can_be_named_by_its_folder(self, governance, clone, storage):
        for one in (governance.governance(), dagster_versioned.Governance(storage, role="developer", registry=clone)):
            assert pickle.loads(pickle.dumps(one)).project(NAME).name == NAME

    def test_that_is_not_there_is_said(self, storage, tmp_path):
        with pytest.raises(GovernanceError, match="nowhere"):
            GovernanceResource(storage=storage, clone=str(tmp_path / "nowhere")).governance()


def resolved(resource):
    """The resource as a run sees it."""
    seen = []

    @dg.asset
    def look(one: dg.ResourceParam[object]) -> None:
        seen.append(one)

    dg.materialize([look], resources={"one": resource}, instance=dg.DagsterInstance.ephemeral())
    return seen[0]


class TestTheEnvironment:
    def test_gives_every_field(self, monkeypatch):
        values = {"G_STORE": "/gov", "G_ROLE": "developer", "G_REMOTE": "/r.git", "G_CLONE": "/c", "G_PROFILE": "work"}
        for name, value in {**values, "G_HOURS": "48", "G_KEY": "key", "G_SECRET": "hunter2"}.items():
            monkeypatch.setenv(name, value)
        found = resolved(
            GovernanceResource(
                storage=dg.EnvVar("G_STORE"),
                role=dg.EnvVar("G_ROLE"),
                registry=dg.EnvVar("G_REMOTE"),
                clone=dg.EnvVar("G_CLONE"),
                stale_after_hours=dg.EnvVar.int("G_HOURS"),
                profile=dg.EnvVar("G_PROFILE"),
                credentials=S3CredentialsResource(
                    access_key=dg.EnvVar("G_KEY"), secret_key=dg.EnvVar("G_SECRET"), session_token=dg.EnvVar("G_KEY")
                ),
            )
        )
        assert (found.storage, found.role, found.registry, found.clone, found.profile) == tuple(values.values())
        assert found.stale_after_hours == 48
        assert found.credentials.credentials().secret_key == "hunter2"
        assert "hunter2" not in repr(found)

    @pytest.mark.parametrize(("field", "value"), [("role", "admin"), ("storage", "hdfs://x"), ("registry", "ext::x")])
    def test_is_refused_by_field_when_the_run_starts(self, monkeypatch, field, value):
        monkeypatch.setenv("G_WRONG", value)
        resource = GovernanceResource(**{"storage": "/gov", "clone": "/clone", field: dg.EnvVar("G_WRONG")})
        with pytest.raises(dg.DagsterResourceFunctionError) as caught:
            resolved(resource)
        assert field in str(caught.value.__cause__)

    def test_decides_the_role_when_the_run_starts(self, monkeypatch):
        monkeypatch.setenv("G_ROLE", "reader")
        with pytest.raises(dg.DagsterResourceFunctionError) as caught:
            resolved(GovernanceResource(storage="/gov", clone="/clone", role=dg.EnvVar("G_ROLE")))
        assert "a reader has no clone" in str(caught.value.__cause__)


@dg.asset
def flights() -> pa.Table:
    return pa.table({"n": [1, 2, 3]})


@dg.asset
def doubled(flights: pa.Table) -> pa.Table:
    return pa.table({"n": [2 * n for n in flights["n"].to_pylist()]})


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def run(instance, governance, *assets, **named):
    manager = VersionedParquetIOManager(project=ProjectResource(name=NAME, governance=governance))
    return dg.materialize([*assets], instance=instance, resources={"io_manager": manager}, **named)


def move(registry, storage, old, new):
    """Move the project, and record and publish that it moved."""
    move_bytes(old, new)
    places = {"source": Location.parse(str(old)), "target": Location.parse(str(new))}
    pending = PendingMigration(**places, actor="Ada", started_at=datetime.now(UTC))
    registry.prepare_migration(NAME, pending)
    registry.record_migration(
        NAME, Event(id=pending.id, kind="migrated", timestamp=datetime.now(UTC), actor="Ada", **places)
    )
    GovernanceStore(LocalStore(storage)).publish(registry)


class TestMaterializing:
    @pytest.fixture
    def new(self, tmp_path):
        return tmp_path / "new"

    @pytest.fixture
    def stale(self, registry, remote, storage, tmp_path):
        """A developer whose clone is from before the project moved."""
        folder = str(tmp_path / "stale")
        Registry.clone(remote, Path(folder))
        return GovernanceResource(storage=storage, clone=folder)

    def test_a_write_with_a_clone_from_before_the_move_is_refused_and_reads_go_on(
        self, governance, stale, registry, storage, old, new, instance, caplog
    ):
        first = run(instance, governance, flights, doubled)
        version = materializations(first)["doubled", None].metadata["dagster_versioned/metadata_sha"].value
        move(registry, storage, old, new)
        before = sorted(new.rglob("*"))

        failed = run(instance, stale, flights, doubled, raise_on_error=False)
        (error,) = [event.step_failure_data.error for event in failed.get_step_failure_events()]
        assert "Nothing was written" in str(error)
        assert "gov pull" in str(error)
        assert sorted(new.rglob("*")) == before
        for governed in (storage, stale.governance()):
            frame = dagster_versioned.read(NAME, "doubled", version=version[:8], governance=governed)
            assert frame["n"].to_pylist() == [2, 4, 6]

    def test_a_developer_writes_at_the_new_place_after_a_pull(
        self, governance, stale, registry, storage, old, new, instance
    ):
        run(instance, stale, flights)
        move(registry, storage, old, new)
        Registry.open(Path(stale.clone)).fetch()
        pulled = GovernanceResource(storage=storage, clone=stale.clone)
        again = run(instance, pulled, flights, doubled)
        made = materializations(again)
        assert {name: one.metadata["dagster_versioned/change"].value for (name, _), one in made.items()} == {
            "flights": "none",
            "doubled": "full",
        }
        assert {one.metadata["dagster/uri"].value for one in made.values()} == {
            str(new / "datom" / table) for table in ("flights", "doubled")
        }

    def test_every_field_of_every_resource_can_come_from_the_environment(
        self, registry, clone, storage, old, instance, monkeypatch
    ):
        for name, value in {"P_NAME": NAME, "G_STORAGE": storage, "G_CLONE": clone, "G_ROLE": "developer"}.items():
            monkeypatch.setenv(name, value)
        governed = GovernanceResource(
            storage=dg.EnvVar("G_STORAGE"), clone=dg.EnvVar("G_CLONE"), role=dg.EnvVar("G_ROLE")
        )
        project = ProjectResource(name=dg.EnvVar("P_NAME"), governance=governed)
        result = dg.materialize(
            [flights], instance=instance, resources={"io_manager": VersionedParquetIOManager(project=project)}
        )
        assert materializations(result)["flights", None].metadata["dagster/uri"].value == str(old / "datom" / "flights")

    def test_a_reader_reads_inputs_and_writes_nothing(self, governance, storage, old, instance):
        run(instance, governance, flights)
        before = sorted(old.rglob("*"))
        reader = GovernanceResource(storage=storage, role="reader")
        result = run(instance, reader, flights, doubled, raise_on_error=False, selection="doubled")
        (error,) = [event.step_failure_data.error for event in result.get_step_failure_events()]
        assert "opened by a reader" in str(error)
        assert sorted(old.rglob("*")) == before

    def test_a_stale_clone_is_warned_of_and_the_run_goes_on(self, governance, monkeypatch, instance, caplog):
        long_ago = datetime.now(UTC) - timedelta(days=7)
        monkeypatch.setattr(Registry, "fetched_at", property(lambda self: long_ago))
        assert run(instance, governance, flights).success
        assert "gov pull" in caplog.text

    def test_a_project_without_governance_is_as_before(self, tmp_path, instance):
        solo = House(dagster_versioned.Project.open("SOLO", str(tmp_path / "solo")), str(tmp_path / "solo"), instance)
        assert solo.run(flights, doubled).success
        assert solo.project.table("doubled").read()["n"].to_pylist() == [2, 4, 6]
