"""Reading by name alone, and never by a method that nobody here allowed."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

import dagster_versioned
from dagster_versioned.errors import GovernanceError, IntegrityError, InvalidInput, MethodRefused, VersionNotFound
from dagster_versioned.governance import dispatch
from dagster_versioned.governance.connect import Governance, GovernedPlacement
from dagster_versioned.governance.documents import DEFAULT_DISPATCH, Dispatch
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import LocalStore, Location
from dagster_versioned.storage.wrappers import CountingStore
from support.governance_documents import NAME, developer, key, lived_at, move_bytes, publish
from support.remote_store import RemoteStore

ROWS = [pa.table({"n": pa.array(range(count), pa.int64()), "text": ["x"] * count}) for count in range(1, 4)]


def audited(project, table, version=None, **options):
    """A method of somebody else's; returns what it was called with."""
    return project, table, version, options


not_callable = "a text"

OURS = f"{__name__}.audited"


def dispatching(**contexts):
    return Dispatch(methods={"python": {**DEFAULT_DISPATCH.methods["python"], **contexts}})


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """This module under the name that dispatch documents give it."""
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or sys.modules[audited.__module__])


@pytest.fixture
def flights(old):
    """A table of three versions, written before governance came."""
    table = Project(NAME, LocalStore(old)).table("flights")
    for rows in ROWS:
        table.write(rows)
    return table


@pytest.fixture
def publishes(storage, old, flights):
    """Publishes the project with these contexts."""

    def publishes(**contexts):
        publish(storage, lived_at(old, dispatch=dispatching(**contexts)))

    publishes()
    return publishes


class TestReading:
    def test_by_name_alone_goes_where_the_project_is(self, publishes, storage, flights):
        assert dagster_versioned.read(NAME, "flights", governance=storage.uri) == ROWS[2]

    @pytest.mark.parametrize("reference", ["@1", 1, "sha"])
    def test_any_version(self, publishes, storage, flights, reference):
        version = flights.history()[1].entry.metadata_sha[:8] if reference == "sha" else reference
        assert dagster_versioned.read(NAME, "flights", version=version, governance=storage.uri) == ROWS[1]

    def test_passes_options_on(self, publishes, storage):
        frame = dagster_versioned.read(NAME, "flights", governance=storage.uri, as_type=pd.DataFrame, columns=["n"])
        assert frame["n"].tolist() == [0, 1, 2]
        assert list(frame.columns) == ["n"]

    def test_is_the_same_before_and_after_a_move(self, publishes, storage, flights, old, tmp_path):
        script = (NAME, "flights")
        version = flights.history()[1].entry.metadata_sha
        before = dagster_versioned.read(*script, version=version, governance=storage.uri)
        move_bytes(old, tmp_path / "new")
        publish(storage, lived_at(old, tmp_path / "new"))
        for folder in (old / "datom").iterdir():
            folder.rename(tmp_path / f"gone-{folder.name}")
        assert dagster_versioned.read(*script, version=version, governance=storage.uri) == before

    def test_a_developer_reads_without_the_network_and_the_documents_once(self, publishes, storage, old, caplog):
        governance = developer(storage, lived_at(old), fetched=None)
        storage.reset()
        assert dagster_versioned.read(NAME, "flights", governance=governance) == ROWS[2]
        assert storage.calls == []
        assert len(caplog.records) == 1

    def test_a_reader_asks_for_the_documents_once(self, publishes, storage):
        storage.reset()
        dagster_versioned.read(NAME, "flights", governance=Governance(storage))
        assert sorted(call.key for call in storage.calls).count(key("ref")) == 1

    def test_an_open_project_is_read_as_its_governance_says(self, publishes, storage):
        publishes(audited=OURS)
        project = Governance(storage).project(NAME)
        called = dagster_versioned.read(project, "flights", version="@1", context="audited", allow=[OURS], note="why")
        assert called == (project, "flights", "@1", {"note": "why"})

    def test_a_name_without_governance_is_refused(self):
        with pytest.raises(InvalidInput, match=r"only governance knows.*governance="):
            dagster_versioned.read(NAME, "flights")

    def test_finds_governance_in_the_environment(self, publishes, storage, monkeypatch):
        monkeypatch.setenv("DAGSTER_VERSIONED_GOVERNANCE", storage.uri)
        assert dagster_versioned.read(NAME, "flights") == ROWS[2]

    def test_what_is_not_there_is_said(self, publishes, storage):
        with pytest.raises(VersionNotFound):
            dagster_versioned.read(NAME, "flights", version="@99", governance=storage.uri)


class TestWithoutGovernance:
    @pytest.mark.parametrize("context", [None, "default", "cached"])
    def test_our_own_methods_are_there(self, flights, context):
        assert dagster_versioned.read(flights.project, "flights", version="@0", context=context) == ROWS[0]

    def test_there_is_no_other_context(self, flights):
        with pytest.raises(GovernanceError, match=r"no context 'audited'.*default, cached"):
            dagster_versioned.read(flights.project, "flights", context="audited")


class TestMethods:
    def test_an_unknown_context_is_refused_with_those_there_are(self, publishes, storage):
        publishes(audited=OURS)
        with pytest.raises(GovernanceError, match=r"no context 'secret'.*audited.*default"):
            dagster_versioned.read(NAME, "flights", context="secret", governance=storage.uri)

    def test_os_system_is_refused_and_quoted_with_how_to_allow_it(self, publishes, storage, monkeypatch):
        publishes(audited="os.system")
        called = []
        monkeypatch.setattr(os, "system", called.append)
        with pytest.raises(MethodRefused) as caught:
            dagster_versioned.read(NAME, "flights", context="audited", governance=storage.uri)
        for words in ("'os.system'", "DAGSTER_VERSIONED_ALLOWED_METHODS=os.system", "allow=['os.system']"):
            assert words in str(caught.value)
        assert called == []

    @pytest.mark.parametrize("allow", [(), ["other.method"], ["evil"], ["evil.*"], ["EVIL.METHOD"], ["evil.method2"]])
    def test_a_method_that_is_not_allowed_is_never_imported(self, publishes, storage, tmp_path, monkeypatch, allow):
        (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef method(*a, **k): pass\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        publishes(default="evil.method")
        with pytest.raises(MethodRefused, match="neither imported nor called"):
            dagster_versioned.read(NAME, "flights", governance=storage.uri, allow=allow)
        assert not (tmp_path / "ran").exists()
        assert "evil" not in sys.modules

    def test_an_allowed_method_is_called_with_the_open_project(self, publishes, storage, old):
        publishes(audited=OURS)
        project, table, version, options = dagster_versioned.read(
            NAME, "flights", version="@1", context="audited", governance=storage.uri, allow={OURS}, columns=["n"]
        )
        assert project.table(table).read(version, **options) == ROWS[1].select(["n"])

    def test_the_operator_allows_by_the_environment(self, publishes, storage, monkeypatch):
        publishes(default=OURS)
        monkeypatch.setenv("DAGSTER_VERSIONED_ALLOWED_METHODS", f" os.path.join , {OURS},")
        assert dagster_versioned.read(NAME, "flights", governance=storage.uri)[1] == "flights"
        monkeypatch.setenv("DAGSTER_VERSIONED_ALLOWED_METHODS", "")
        with pytest.raises(MethodRefused):
            dagster_versioned.read(NAME, "flights", governance=storage.uri)

    @pytest.mark.parametrize("name", ["no_such_package.read", "os.no_such_thing", "os..system", "nodots"])
    def test_an_allowed_method_that_is_not_installed_is_refused_by_name(self, publishes, storage, name):
        publishes(default=name)
        with pytest.raises(MethodRefused, match=f"'{name}'.*not installed"):
            dagster_versioned.read(NAME, "flights", governance=storage.uri, allow=[name])

    def test_what_cannot_be_called_is_refused(self, publishes, storage):
        name = f"{__name__}.not_callable"
        publishes(default=name)
        with pytest.raises(MethodRefused, match="is a str and cannot be called"):
            dagster_versioned.read(NAME, "flights", governance=storage.uri, allow=[name])

    def test_a_text_is_no_list_of_names(self, publishes, storage):
        publishes(default="o")
        with pytest.raises(InvalidInput, match="allow must be a collection"):
            dagster_versioned.read(NAME, "flights", governance=storage.uri, allow="os.system")

    def test_our_own_cannot_be_replaced(self, publishes, storage, monkeypatch):
        """A name of ours is one function, whatever stands behind the name by now."""
        monkeypatch.setattr(dagster_versioned, "read_cached", audited)
        publishes(cached="dagster_versioned.read_cached")
        assert dagster_versioned.read(NAME, "flights", context="cached", governance=storage.uri) == ROWS[2]


class TestCached:
    @pytest.fixture
    def remote(self, flights, old, storage, tmp_path, monkeypatch):
        """The project in a store that is elsewhere, which counts what it is asked for."""
        monkeypatch.setenv("DAGSTER_VERSIONED_CACHE", str(tmp_path / "cache"))
        publish(storage, lived_at(old, dispatch=dispatching(cached="dagster_versioned.read_cached")))
        placement_authority = GovernedPlacement(
            Governance(storage), NAME, Location.parse(str(old)), Governance(storage).access
        )
        return Project(NAME, CountingStore(RemoteStore(old)), placement_authority=placement_authority)

    def parts_fetched(self, project):
        return [call for call in project.store.calls if call.key.endswith(".parquet")]

    def test_a_part_is_fetched_once(self, remote):
        assert dagster_versioned.read(remote, "flights", version="@1", context="cached") == ROWS[1]
        assert len(self.parts_fetched(remote)) == 1
        assert dagster_versioned.read(remote, "flights", version="@1", context="cached") == ROWS[1]
        assert len(self.parts_fetched(remote)) == 1
        assert dagster_versioned.read(remote, "flights", version="@1") == ROWS[1]
        assert len(self.parts_fetched(remote)) == 2

    def test_the_head_is_the_head(self, remote, flights):
        assert dispatch.read_cached(remote, "flights") == ROWS[2]
        flights.write(ROWS[0])
        assert dispatch.read_cached(remote, "flights") == ROWS[0]

    def test_what_rotted_in_the_cache_is_fetched_again(self, remote, tmp_path):
        dispatch.read_cached(remote, "flights")
        for path in (tmp_path / "cache").iterdir():
            path.write_bytes(path.read_bytes()[::-1])
        assert dispatch.read_cached(remote, "flights") == ROWS[2]

    def test_what_was_altered_in_the_store_is_refused(self, remote, flights, tmp_path):
        part = Path(flights.files().scan.store.local_path(flights.files().scan.files[0].key))
        data = part.read_bytes()
        part.unlink()
        part.write_bytes(data[::-1])
        with pytest.raises(IntegrityError, match="was altered"):
            dispatch.read_cached(remote, "flights")

    def test_options_mean_the_same(self, remote):
        frame = dispatch.read_cached(remote, "flights", "@1", as_type=pd.DataFrame, columns=["text"])
        assert frame["text"].tolist() == ["x", "x"]

    def test_an_empty_version_is_read(self, remote, flights):
        from dagster_versioned.tables.options import TableOptions

        flights.write(ROWS[0].slice(0, 0), options=TableOptions(allow_empty=True))
        assert dispatch.read_cached(remote, "flights").num_rows == 0

    def test_parts_on_this_machine_are_read_where_they_are(self, flights, tmp_path, monkeypatch):
        monkeypatch.setenv("DAGSTER_VERSIONED_CACHE", str(tmp_path / "cache"))
        assert dispatch.read_cached(flights.project, "flights") == ROWS[2]
        assert not (tmp_path / "cache").exists()


def test_a_reader_needs_neither_git_nor_dagster_nor_spark(publishes, storage):
    code = (
        "import dagster_versioned, sys\n"
        f"print(dagster_versioned.read({NAME!r}, 'flights', governance={storage.uri!r}).num_rows)\n"
        "print(*sorted({'git', 'dagster', 'pyspark', 'boto3'} & set(sys.modules)))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["3", ""], run.stdout
