"""A table that is opened again in the same project: its log is listed, and read only where it is another one."""

import pickle
import shutil
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

from dagster_versioned import ProjectResource, S3CredentialsResource
from dagster_versioned.errors import TableNotFound
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import LocalStore
from dagster_versioned.storage.wrappers import Call, CountingStore, Fault, FaultStore
from dagster_versioned.tables import state as states


@pytest.fixture
def store(tmp_path: Path) -> CountingStore:
    return CountingStore(LocalStore(tmp_path))


def values(project: Project, table: str = "one") -> list[int]:
    return project.table(table).read()["value"].to_pylist()


def looked(store: CountingStore, project: Project) -> list[str]:
    """The calls of one look at the end of the log, by a table that was just opened."""
    store.reset()
    assert project.table("one").state.snapshot.num_files == 1
    return [call.verb for call in store.calls]


def test_the_log_is_listed_and_not_read_again(store: CountingStore) -> None:
    project = Project("P", store)
    for number in range(25):  # so that there is a checkpoint
        project.table("one").write(pa.table({"value": [number]}))
    assert "get" in looked(store, project)
    assert looked(store, project) == ["list"]
    assert looked(store, Project("P", store)) != ["list"]  # another one reads for itself


def test_a_commit_of_another_process_is_seen(store: CountingStore, tmp_path: Path) -> None:
    project = Project("P", store)
    project.table("one").write(pa.table({"value": [1]}))
    assert values(project) == [1]
    for number in range(12):
        Project("P", LocalStore(tmp_path)).table("one").write(pa.table({"value": [number]}))
        assert values(project) == [number]


def test_of_commits_since_a_look_those_alone_are_read(store: CountingStore, tmp_path: Path) -> None:
    project, other = Project("P", store), Project("P", LocalStore(tmp_path)).table("one")
    for number in range(12):
        other.write(pa.table({"value": [number]}))
    checkpoint = project.table("one").state.log_version  # which is not at a checkpoint's
    for number in range(2):
        other.write(pa.table({"value": [-number]}))
        assert looked(store, project).count("get") == 1
    state = project.table("one").state
    assert state.log_version == checkpoint + 2
    assert state.snapshot.commit_sha256 == other.state.snapshot.commit_sha256
    assert list(state.history.heads.values()) == list(other.state.history.heads.values())
    assert [one.log_version for one in project.table("one").history()] == list(range(checkpoint + 2, -1, -1))


def test_a_commit_that_was_replaced_before_others_is_read(store: CountingStore, tmp_path: Path) -> None:
    """It is not taken for what it was, since later commits are read."""
    project, other = Project("P", store), Project("P", LocalStore(tmp_path)).table("one")
    other.write(pa.table({"value": [1]}))
    before = project.table("one").state.snapshot
    other.write(pa.table({"value": [2]}))
    commit = tmp_path / "datom" / "one" / "_delta_log" / f"{0:020d}.json"
    data = commit.read_bytes()
    commit.unlink()
    commit.write_bytes(data.replace(before.metadata.id.encode(), before.metadata.id[::-1].encode()))
    assert project.table("one").state.snapshot.metadata.id == before.metadata.id[::-1]


def test_a_table_that_was_made_anew_is_read_anew(store: CountingStore, tmp_path: Path) -> None:
    project = Project("P", store)
    project.table("one").write(pa.table({"value": [1]}))
    assert values(project) == [1]
    shutil.rmtree(tmp_path / "datom" / "one")
    with pytest.raises(TableNotFound):
        values(project)
    Project("P", LocalStore(tmp_path)).table("one").write(pa.table({"value": [2]}))  # with as many commits
    assert values(project) == [2]


def test_a_commit_that_was_replaced_by_one_of_the_same_size_is_read(store: CountingStore, tmp_path: Path) -> None:
    project = Project("P", store)
    project.table("one").write(pa.table({"value": [1]}))
    commit = tmp_path / "datom" / "one" / "_delta_log" / f"{0:020d}.json"
    before = project.table("one").state.snapshot
    data = commit.read_bytes()
    commit.unlink()
    commit.write_bytes(data.replace(before.metadata.id.encode(), before.metadata.id[::-1].encode()))
    assert project.table("one").state.snapshot.metadata.id == before.metadata.id[::-1]


def test_only_small_states_and_the_last_ones_are_kept(store: CountingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "_KEPT_STATES", 2)
    project = Project("P", store)
    for name in ("one", "two", "three"):
        project.table(name).write(pa.table({"value": [1]}))
        assert values(project, name) == [1]
    assert looked(store, project) != ["list"]
    assert looked(store, project) == ["list"]
    monkeypatch.setattr(states, "_SMALL", 0)
    anew = Project("P", store)
    assert looked(store, anew) == looked(store, anew) != ["list"]


def test_a_pickled_project_reads_for_itself(tmp_path: Path) -> None:
    project = Project("P", LocalStore(tmp_path))
    project.table("one").write(pa.table({"value": [1]}))
    assert values(project) == values(pickle.loads(pickle.dumps(project))) == [1]


def test_older_commits_are_read_by_who_took_a_state_last(tmp_path: Path) -> None:
    """The credentials of who loaded it may be out of date by then."""
    writer = Project("P", LocalStore(tmp_path)).table("one")
    for number in range(112):  # the last 100 are known without a read
        writer.write(pa.table({"value": [number]}))
    is_over = False

    def expired(_: Call) -> Fault | None:
        return Fault.BEFORE if is_over else None

    first, second = (Project("P", store) for store in (FaultStore(LocalStore(tmp_path), expired), LocalStore(tmp_path)))
    second.loaded = first.loaded
    assert first.table("one").state.log_version == second.table("one").state.log_version == 111
    is_over = True
    assert [one.log_version for one in second.table("one").history()] == list(range(111, -1, -1))


def test_resources_of_other_places_or_keys_share_nothing(moto_server, monkeypatch: pytest.MonkeyPatch) -> None:
    moto_server.client().create_bucket(Bucket="loaded-states")
    port = moto_server.endpoint_url.rsplit(":", 1)[1]
    for name in ("ONE_KEY", "OTHER_KEY"):
        monkeypatch.setenv(name, name)

    def loaded(server: str, key: str) -> states.LoadedStates:
        keys = S3CredentialsResource(access_key=key, secret_key=dg.EnvVar(key))
        location = f"s3://loaded-states/root?endpoint_url=http://{server}:{port}"
        return ProjectResource(name="P", location=location, credentials=keys).project().loaded

    assert loaded("127.0.0.1", "ONE_KEY") is loaded("127.0.0.1", "ONE_KEY")
    assert loaded("127.0.0.1", "ONE_KEY") is not loaded("localhost", "ONE_KEY")
    assert loaded("127.0.0.1", "ONE_KEY") is not loaded("127.0.0.1", "OTHER_KEY")
