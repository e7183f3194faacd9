"""A credential is in no document, log record, repr, pickle or exception (seed 003, "Not a credential store").

A governed run on a real S3 server, once for each place that keys come from, with keys that are found wherever they
are: in every file and object that it wrote, unpacked where it is packed, and in every log record.
"""

import logging
import pickle
import sqlite3
import subprocess
import traceback
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import dagster as dg
import pyarrow as pa
import pytest

import dagster_versioned
from dagster_versioned import (
    Governance,
    GovernanceResource,
    ProjectResource,
    S3CredentialsResource,
    VersionedParquetIOManager,
)
from dagster_versioned.errors import VersionedError
from dagster_versioned.governance.connect import Access
from dagster_versioned.governance.documents import Dispatch
from dagster_versioned.governance.migrate import migrate
from dagster_versioned.governance.mirror import GovernanceStore
from dagster_versioned.governance.registry import Registry
from dagster_versioned.storage import S3Credentials
from support.governance_documents import NAME
from support.s3_server import S3Server

DISPATCH = Dispatch(
    methods={"python": {"default": "dagster_versioned.read", "cached": "dagster_versioned.read_cached"}}
)


@pytest.fixture(scope="module")
def server(s3_server):
    return s3_server


@dataclass(repr=False)
class Keys:
    """Where the keys of a run come from: what the resources and a notebook say of it."""

    profile: str | None = None
    resource: S3CredentialsResource | None = None
    source: object = None

    @property
    def fields(self):
        return {"profile": self.profile, "credentials": self.resource}

    @property
    def arguments(self):
        return {"profile": self.profile, "credentials": self.source}


class FetchedKeys(S3CredentialsResource):
    """Keys that come from a callable."""

    access_key: str = ""
    secret_key: str = ""
    server: str

    def credentials(self):
        return _SERVERS[self.server].credentials()


_SERVERS: dict[str, S3Server] = {}


@pytest.fixture(params=["environment", "profile", "EnvVar", "callable"])
def keys(request, server, monkeypatch, tmp_path_factory):
    """Puts the server's keys where the parameter says, and nowhere else."""
    match request.param:
        case "environment":
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.access_key)
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_key)
            return Keys()
        case "profile":
            file = tmp_path_factory.mktemp("aws") / "credentials"
            lines = ["[ours]", f"aws_access_key_id={server.access_key}", f"aws_secret_access_key={server.secret_key}"]
            file.write_text("\n".join(lines))
            monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
            return Keys(profile="ours")
        case "EnvVar":
            monkeypatch.setenv("OUR_KEY", server.access_key)
            monkeypatch.setenv("OUR_SECRET", server.secret_key)
            resource = S3CredentialsResource(access_key=dg.EnvVar("OUR_KEY"), secret_key=dg.EnvVar("OUR_SECRET"))
            return Keys(resource=resource, source=server.credentials)
        case _:
            monkeypatch.setitem(_SERVERS, "one", server)
            return Keys(resource=FetchedKeys(server="one"), source=server.credentials)


@dg.asset
def flights() -> pa.Table:
    return pa.table({"n": [1, 2, 3]})


@dg.asset
def doubled(flights: pa.Table) -> pa.Table:
    return pa.table({"n": [2 * n for n in flights["n"].to_pylist()]})


@dg.asset
def broken(flights: pa.Table) -> pa.Table:
    return pa.table({"n": pa.nulls(2)})  # which no engine stores


def written_below(folder):
    """Every file below a folder, as it is and unpacked: git's objects, the rows of SQLite databases."""
    for path in folder.rglob("*"):
        if not path.is_file():
            continue
        yield path, path.read_bytes()
        if path.suffix == ".db":
            yield from ((path, value) for value in values_of(path))
    for git in folder.rglob("HEAD"):
        command = ["git", "-C", str(git.parent), "cat-file", "--batch", "--batch-all-objects"]
        yield git, subprocess.run(command, capture_output=True, check=True).stdout


def values_of(database):
    """Every value of a SQLite database; Dagster packs some of them."""
    with sqlite3.connect(database) as connection:
        tables = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
        for table in tables:
            for row in connection.execute(f'select * from "{table}"'):
                for value in row:
                    data = value if isinstance(value, bytes) else str(value).encode()
                    yield zlib.decompress(data) if data[:1] == b"\x78" else data


def objects_in(server, bucket):
    client = server.client()
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        for entry in page.get("Contents", []):
            answer = client.get_object(Bucket=bucket, Key=entry["Key"])
            yield entry["Key"], answer["Body"].read() + repr(answer["Metadata"]).encode()


def told(error):
    """All that an exception says, with what it was raised from, and its own attributes."""
    return "".join(traceback.format_exception(error)) + repr(error) + repr(vars(error))


def secrets_in(server, text):
    data = text if isinstance(text, bytes) else text.encode()
    return [secret for secret in (server.access_key, server.secret_key) if secret.encode() in data]


@pytest.mark.s3
@pytest.mark.slow
def test_a_full_run_leaks_nothing(server, keys, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("DAGSTER_VERSIONED_CACHE", str(tmp_path / "cache"))
    for name, value in (("user.name", "Ada"), ("user.email", "ada@example.org")):
        subprocess.run(["git", "config", "--global", name, value], check=True)
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.DEBUG, logger="dagster_versioned")
    data, gov = server.new_bucket(), server.new_bucket()
    place, storage = server.location(data, "project"), server.location(gov, "governance")
    said: list[str] = []

    # Register, publish.
    registry = Registry.init(str(tmp_path / "registry.git"), tmp_path / "clone")
    registry.register(NAME, place, dispatch=DISPATCH)
    mirror = GovernanceStore(Access(**keys.arguments).open(storage))
    mirror.publish(registry)

    # Materialize: one run that succeeds, one that fails in the asset's value, one that fails at the store.
    governance = GovernanceResource(storage=storage.uri, clone=str(tmp_path / "clone"), **keys.fields)
    manager = VersionedParquetIOManager(project=ProjectResource(name=NAME, governance=governance))
    (tmp_path / "home").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "home"), {"telemetry": {"enabled": False}}) as instance:

        def run(*assets, io_manager=manager):
            return dg.materialize(
                [*assets], instance=instance, resources={"io_manager": io_manager}, raise_on_error=False
            )

        assert run(flights, doubled).success
        assert not run(flights, broken).success
        unknown = server.location("no-such-bucket").uri
        nowhere = GovernanceResource(storage=unknown, clone=str(tmp_path / "clone"), **keys.fields)
        lost = VersionedParquetIOManager(project=ProjectResource(name=NAME, governance=nowhere))
        assert not run(flights, io_manager=lost).success
    said += [repr(one) for one in (governance, manager)]

    # Read in a notebook, as a reader and as a developer; what travels to workers; what fails.
    for named in ({"role": "reader"}, {"role": "developer", "registry": registry}):
        connected = Governance(storage, **named, **keys.arguments)
        for context in ("default", "cached"):
            frame = dagster_versioned.read(NAME, "doubled", governance=connected, context=context)
            assert frame["n"].to_pylist() == [2, 4, 6]
        project = connected.project(NAME)
        table = project.table("doubled")
        for one in (
            connected,
            project,
            table,
            project.store,
            project.placement_authority,
            connected.storage,
            connected.access,
        ):
            said.append(repr(one))
            assert not secrets_in(server, pickle.dumps(one))
        attempts = [
            lambda table=table: table.write(pa.table({"n": pa.array([1], pa.duration("s"))})),
            lambda: dagster_versioned.read("OTHER", "doubled", governance=Governance(storage, **keys.arguments)),
            lambda: dagster_versioned.read(NAME, "no_such", governance=Governance(storage, **keys.arguments)),
            lambda: Governance(server.location("no-such-bucket"), **keys.arguments).project(NAME),
        ]
        for attempt in attempts:
            with pytest.raises(VersionedError) as caught:
                attempt()
            said.append(told(caught.value))

    # Move to another bucket, and read on there, also with what was opened before.
    elsewhere = server.new_bucket()
    opened = {"open_store": Access(**keys.arguments).open}
    with pytest.raises(VersionedError) as caught:
        migrate(registry, mirror, NAME, server.location("no-such-bucket", "project"), **opened)
    said.append(told(caught.value))
    migrate(registry, mirror, NAME, server.location(elsewhere, "project"), verify="content", **opened)
    assert table.read()["n"].to_pylist() == [2, 4, 6]
    assert dagster_versioned.read(NAME, "doubled", governance=Governance(storage, **keys.arguments)).num_rows == 3

    said += [f"{record.getMessage()} {record.exc_text} {record.__dict__}" for record in caplog.records]
    assert len(caplog.records) > 20
    assert [text for text in said if secrets_in(server, text)] == []
    files = list(written_below(tmp_path))
    assert {path.suffix for path, _ in files} >= {".db", ".parquet"}
    assert any(b"projects/" in data for _, data in files)  # git's objects were unpacked
    assert any(b"io_manager" in data for path, data in files if path.suffix == ".db")
    assert [path for path, data in files if secrets_in(server, data)] == []
    objects = [one for bucket in (data, gov, elsewhere) for one in objects_in(server, bucket)]
    assert len(objects) > 10
    assert [key for key, data in objects if secrets_in(server, data)] == []


SECRET = "hunter2hunter2"


def test_the_scan_finds_what_git_and_dagster_pack(tmp_path):
    """Else the test above could not fail."""
    (tmp_path / "plain").write_text(SECRET)
    git = ["git", "-C", str(tmp_path / "packed")]
    subprocess.run(["git", "init", "-q", "--bare", str(tmp_path / "packed")], check=True)
    subprocess.run([*git, "hash-object", "-w", "--stdin"], input=SECRET.encode(), capture_output=True, check=True)
    with sqlite3.connect(tmp_path / "runs.db") as connection:
        connection.execute("create table runs (body blob)")
        connection.execute("insert into runs values (?)", (zlib.compress(SECRET.encode()),))
    found = {path.name for path, data in written_below(tmp_path) if SECRET.encode() in data}
    assert found == {"plain", "HEAD", "runs.db"}


class TestS3CredentialsResource:
    @pytest.fixture
    def resource(self):
        return S3CredentialsResource(access_key=SECRET, secret_key=SECRET, session_token=SECRET)

    def test_is_not_shown(self, resource):
        governance = GovernanceResource(storage="s3://gov", role="reader", credentials=resource)
        project = ProjectResource(name=NAME, governance=governance, credentials=resource)
        manager = VersionedParquetIOManager(project=project)
        assert [repr(one) for one in (resource, governance, project, manager) if SECRET in f"{one!r}{one}"] == []

    def test_is_not_pickled(self, resource):
        governance = GovernanceResource(storage="s3://gov", role="reader", credentials=resource)
        for one in (resource, governance, ProjectResource(name=NAME, governance=governance)):
            with pytest.raises(TypeError, match="holds keys") as caught:
                pickle.dumps(one)
            assert SECRET not in told(caught.value)

    def test_is_not_repeated_by_an_error(self, resource):
        with pytest.raises(ValueError, match="secret_kye") as caught:
            S3CredentialsResource(access_key=SECRET, secret_kye=SECRET)
        assert SECRET not in str(caught.value)

    def test_gives_the_keys(self, resource):
        assert resource.credentials() == S3Credentials(SECRET, SECRET, SECRET)

    def test_is_named_by_its_variables_in_what_dagster_keeps(self, monkeypatch):
        monkeypatch.setenv("OUR_SECRET", SECRET)
        resource = S3CredentialsResource(access_key=dg.EnvVar("OUR_SECRET"), secret_key=dg.EnvVar("OUR_SECRET"))
        reader = GovernanceResource(storage="s3://gov", role="reader", credentials=resource)
        manager = VersionedParquetIOManager(project=ProjectResource(name=NAME, governance=reader))
        defs = dg.Definitions([flights], resources={"io_manager": manager})
        snapshot = repr(defs.resolve_implicit_global_asset_job_def().get_job_snapshot())
        assert SECRET not in snapshot


@pytest.mark.s3
def test_keys_that_end_are_asked_for_again(server):
    """A callable gives short-lived keys; the store asks again before they end."""
    asked = []

    def source():
        asked.append(len(asked))
        soon = timedelta(seconds=30) if len(asked) == 1 else timedelta(hours=1)
        return S3Credentials(server.access_key, server.secret_key, None, datetime.now(UTC) + soon)

    bucket = server.new_bucket()
    store = Access(credentials=source).open(server.location(bucket))
    store.put("a", b"1")
    assert store.get("a") == b"1"
    assert len(asked) > 1


def test_a_location_with_a_secret_in_it_is_refused_and_not_repeated():
    for text in (f"s3://{SECRET}:{SECRET}@bucket/p", f"s3://bucket/p?secret_key={SECRET}"):
        for attempt in (
            lambda text=text: Governance(text),
            lambda text=text: dagster_versioned.read("P", "t", governance=text),
        ):
            with pytest.raises(VersionedError) as caught:
                attempt()
            assert SECRET not in told(caught.value)


def test_access_compares_and_shows_without_its_callable():
    access = Access("work", lambda: S3Credentials(SECRET, SECRET))
    assert repr(access) == "Access(profile='work')"
    assert pickle.loads(pickle.dumps(access)) == Access("work")
