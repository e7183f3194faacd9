"""Who connects to a governed project, and how (seed 003, "Role-aware reads" and "What ref.json is not")."""

import json
import logging
import pickle
import shutil
from datetime import timedelta

import pyarrow as pa
import pytest

from dagster_versioned.errors import GovernanceError, InvalidInput, InvalidName, ProjectMoved, VersionedError
from dagster_versioned.governance.connect import Governance, GovernedPlacement
from dagster_versioned.governance.place import same_place
from dagster_versioned.identity.names import table_name
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import LocalStore, Location, S3Credentials
from dagster_versioned.storage.wrappers import CountingStore, Fault, FaultStore
from dagster_versioned.tables.documents.head import head_key
from support.governance_documents import NAME, Clone, developer, key, lived_at, move_bytes, publish
from support.stores import contents

ROWS = [pa.table({"n": pa.array(range(count), pa.int64())}) for count in range(1, 5)]
WRITES = ("put", "put_file", "put_if_absent", "put_if_match", "copy", "delete")


@pytest.fixture
def new(tmp_path):
    return tmp_path / "new"


@pytest.fixture
def here(old, storage):
    """The documents of a project that is at its first place, with two versions of a table, and published."""
    documents = lived_at(old)
    publish(storage, documents)
    for rows in ROWS[:2]:
        Project(NAME, LocalStore(old)).table("flights").write(rows)
    storage.reset()
    return documents


@pytest.fixture
def moved(here, old, new, storage):
    """The documents after the project moved to its second place."""
    move_bytes(old, new)
    documents = lived_at(old, new)
    publish(storage, documents)
    storage.reset()
    return documents


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


class TestADeveloper:
    def test_connects_and_reads_without_the_network(self, here, storage, caplog):
        project = developer(storage, here).project(NAME)
        assert project.table("flights").read() == ROWS[1]
        assert project.table("flights").read("@0") == ROWS[0]
        assert storage.calls == []
        assert warnings(caplog) == []

    @pytest.mark.parametrize("fetched", [timedelta(days=7), None], ids=["old", "unknown"])
    def test_is_warned_of_a_stale_clone_and_goes_on(self, here, storage, caplog, fetched):
        project = developer(storage, here, fetched).project(NAME)
        (warning,) = warnings(caplog)
        assert "gov pull" in warning
        assert NAME in warning
        assert project.table("flights").write(ROWS[2]).version.log_version == 2

    def test_says_how_old_is_stale(self, here, storage, caplog):
        clone = Clone(here, timedelta(days=3))
        Governance(storage, role="developer", registry=clone, stale_after=timedelta(days=4)).project(NAME)
        assert warnings(caplog) == []
        Governance(storage, role="developer", registry=clone, stale_after=timedelta(days=2)).project(NAME)
        assert len(warnings(caplog)) == 1

    def test_reads_every_version_at_the_new_place_with_a_clone_that_knows_only_the_old(
        self, here, moved, old, new, storage, caplog
    ):
        developer(storage, moved).project(NAME).pin("first", "flights", "@0")
        project = developer(storage, here, timedelta(days=7)).project(NAME)
        assert project.table("flights").read("@0") == ROWS[0]
        assert project.table("flights").read("pin:first") == ROWS[0]
        assert developer(storage, moved).project(NAME).table("flights").write(ROWS[2]).version.log_version > 1
        assert project.table("flights").read() == ROWS[2]
        assert [len(version.entry.metadata_sha) for version in project.table("flights").history()] == [64] * 3
        assert any(str(new) in warning and "gov pull" in warning for warning in warnings(caplog))

    def test_reads_on_when_the_old_place_was_emptied(self, here, moved, old, storage):
        for folder in (old / "datom").iterdir():
            if folder.name != ".metadata":
                shutil.rmtree(folder)
        assert developer(storage, here).project(NAME).table("flights").read("@0") == ROWS[0]

    def test_reads_what_is_at_the_old_place_while_governance_does_not_answer(self, here, moved, storage, caplog):
        down = FaultStore(storage, lambda call: Fault.BEFORE)
        assert developer(down, here).project(NAME).table("flights").read() == ROWS[1]
        assert any("is not known" in warning for warning in warnings(caplog))

    def test_needs_a_clone(self, storage):
        with pytest.raises(InvalidInput, match="needs a clone"):
            Governance(storage, role="developer")


class TestAReader:
    def test_has_no_clone(self, storage, here):
        with pytest.raises(InvalidInput, match="has no clone"):
            Governance(storage, role="reader", registry=Clone(here))

    def test_asks_the_governance_storage_every_time_it_connects(self, here, storage):
        governance = Governance(storage)
        for _ in range(2):
            storage.reset()
            assert governance.project(NAME).table("flights").read() == ROWS[1]
            assert key("ref") in {call.key for call in storage.calls}

    def test_needs_no_more_than_a_name_and_the_governance_storage(self, moved, storage, caplog):
        project = Governance(storage.uri).project(NAME)
        assert [project.table("flights").read(version) for version in ("@0", "@1")] == ROWS[:2]
        assert warnings(caplog) == []

    def test_is_warned_that_the_place_it_was_given_was_left_and_reads_on_at_the_new_one(
        self, moved, old, new, storage, caplog
    ):
        shutil.rmtree(old)
        project = Governance(storage).project(NAME, location=str(old))
        assert project.store.uri == str(new)
        assert project.table("flights").read("@0") == ROWS[0]
        (warning,) = warnings(caplog)
        assert str(old) in warning
        assert str(new) in warning
        assert "2026-08-02" in warning

    def test_is_not_warned_of_the_place_that_is_right(self, moved, new, storage, caplog):
        Governance(storage).project(NAME, location=str(new))
        assert warnings(caplog) == []

    def test_is_refused_a_place_where_the_project_never_was(self, here, tmp_path, storage):
        with pytest.raises(GovernanceError, match=r"never at .*elsewhere.*Nothing was opened"):
            Governance(storage).project(NAME, location=str(tmp_path / "elsewhere"))

    def test_never_writes(self, here, old, storage):
        before = sorted(old.rglob("*"))
        table = Governance(storage).project(NAME).table("flights")
        for change in (lambda: table.write(ROWS[2]), lambda: table.revert("@0"), lambda: table.vacuum(dry_run=False)):
            with pytest.raises(GovernanceError, match="opened by a reader"):
                change()
        assert sorted(old.rglob("*")) == before

    def test_is_told_the_head_that_a_writer_died_before_writing_and_writes_nothing(self, here, old, storage):
        behind = (old / f"datom/{head_key(table_name('flights'))}").read_bytes()
        Project(NAME, LocalStore(old)).table("flights").write(ROWS[2])
        newest = Project(NAME, LocalStore(old)).table("flights").head()
        for stored in (behind, b"no head"):
            (old / f"datom/{head_key(table_name('flights'))}").write_bytes(stored)
            before = contents(LocalStore(old))
            assert Governance(storage).project(NAME).table("flights").resolve() == newest
            assert contents(LocalStore(old)) == before
        assert Project(NAME, LocalStore(old)).table("flights").resolve() == newest
        assert Project(NAME, LocalStore(old)).table("flights").head() == newest

    def test_goes_on_at_the_new_place_when_the_project_moves_while_it_is_open(self, here, old, new, storage):
        table = Governance(storage).project(NAME).table("flights")
        assert table.read() == ROWS[1]
        move_bytes(old, new)
        publish(storage, lived_at(old, new))
        Governance.project(developer(storage, lived_at(old, new)), NAME).table("flights").write(ROWS[2])
        assert table.read() == ROWS[2]


def unreachable(storage):
    return FaultStore(storage, lambda call: Fault.BEFORE)


def without(document):
    def change(storage):
        storage.delete([key(document)])
        return storage

    return change


def holding(data):
    def change(storage):
        storage.put(key("ref"), data)
        return storage

    return change


def newer(storage):
    ref = json.loads(storage.get(key("ref")))
    return holding(json.dumps({**ref, "schema_version": 2}).encode())(storage)


BROKEN = {
    "unreachable": (unreachable, "could not be read live.*injected failure"),
    "no ref.json": (without("ref"), "could not be read live"),
    "no JSON": (holding(b"{"), "could not be read live.*no JSON"),
    "an empty file": (holding(b""), "could not be read live"),
    "another shape": (holding(b'{"current": "s3://bucket"}'), "could not be read live.*current"),
    "a newer shape": (newer, "could not be read live.*newer dagster-versioned"),
    "too large": (holding(b" " * (2**20 + 1)), "could not be read live.*1048576 bytes"),
}


class TestAWrite:
    """Asks ref.json live, and writes not one object unless it says: here. Issue's "Must show", 3."""

    def assert_refused(self, governance, documents, old, message, kind=GovernanceError):
        """Every change of a project is refused with the message, and nothing is written at its place."""
        place = Location.parse(str(old))
        store = CountingStore(LocalStore(old))
        placement_authority = GovernedPlacement(governance, NAME, documents.ref.current, governance.access)
        project = Project(NAME, store, placement_authority=placement_authority)
        table = project.table("flights")
        head = table.version().metadata_sha
        assert same_place(place, documents.ref.current)
        changes = [
            lambda: table.write(ROWS[2]),
            lambda: table.write(ROWS[1]),  # which would change nothing
            lambda: project.table("new").write(ROWS[0]),
            lambda: table.write_partitions({"a": ROWS[0], "b": ROWS[1]}),
            lambda: table.revert("@0"),
            lambda: table.release(),
            lambda: table.adopt(),
            lambda: table.repair(),
            lambda: table.vacuum(dry_run=False),
            lambda: table.expire(keep_last=1, dry_run=False),
            lambda: table.purge(["@0"], why="law", dry_run=False),
            lambda: project.pin("p", "flights"),
            lambda: project.unpin("p"),
        ]
        for change in changes:
            with pytest.raises(VersionedError, match=f"(?s)Nothing was written.*{message}") as caught:
                change()
            assert type(caught.value) is kind
        assert store.count(*WRITES) == 0
        assert table.version().metadata_sha == head

    @pytest.mark.parametrize("fault", BROKEN)
    def test_is_refused_where_ref_json_cannot_be_read_live(self, here, old, storage, fault):
        breaks, message = BROKEN[fault]
        self.assert_refused(developer(breaks(storage), here), here, old, message)

    def test_is_refused_where_nobody_listens(self, here, old):
        nowhere = Location(type="s3", root="gov", prefix="", region="us-east-1", endpoint_url="http://127.0.0.1:9")
        governance = Governance(
            nowhere, role="developer", registry=Clone(here), credentials=lambda: S3Credentials("key", "secret")
        )
        place = governance.project(NAME)
        store = CountingStore(place.store)
        with pytest.raises(GovernanceError, match=r"could not be read live from s3://gov.*gov pull"):
            Project(NAME, store, placement_authority=place.placement_authority).table("flights").write(ROWS[2])
        assert store.count(*WRITES) == 0

    def test_is_refused_with_a_clone_from_before_the_move(self, here, moved, old, storage):
        message = "left it for .*new.*stale.*gov pull"
        self.assert_refused(developer(storage, here, timedelta(days=7)), here, old, message, ProjectMoved)

    def test_is_refused_where_the_governance_storage_is_behind_the_registry(self, here, old, new, storage):
        documents = lived_at(new, old)
        publish(storage, lived_at(new))
        self.assert_refused(developer(storage, documents), documents, old, "behind the registry.*gov pull")

    def test_is_refused_where_a_hand_edited_the_mirror(self, here, old, storage):
        edited = json.loads(storage.get(key("ref")))
        edited["current"]["root"] = "/somewhere/else"
        storage.put(key("ref"), json.dumps(edited).encode())
        self.assert_refused(developer(storage, here), here, old, "edited by hand.*gov ref HOUSE --repair")

    def test_asks_once_for_each_change_and_not_for_reads(self, here, storage):
        table = developer(storage, here).project(NAME).table("flights")
        table.write(ROWS[2])
        assert [call.key for call in storage.calls] == [key("ref")]
        table.read()
        table.history()
        assert len(storage.calls) == 1

    def test_goes_through_with_a_stale_clone_that_is_right(self, here, storage, caplog):
        table = developer(storage, here, timedelta(days=7)).project(NAME).table("flights")
        assert table.write(ROWS[2]).change == "full"

    def test_asks_again_for_the_second_write_of_an_open_project(self, here, old, new, storage):
        table = developer(storage, here).project(NAME).table("flights")
        table.write(ROWS[2])
        publish(storage, lived_at(old, new))
        with pytest.raises(ProjectMoved, match="gov pull"):
            table.write(ROWS[3])


class TestRefJson:
    """What it is not (seed 003)."""

    def test_is_not_a_per_version_pointer(self, here, storage, old):
        before = storage.get(key("ref"))
        table = developer(storage, here).project(NAME).table("flights")
        for rows in ROWS:
            table.write(rows)
        assert storage.get(key("ref")) == before
        shas = [version.entry.metadata_sha for version in table.history()]
        assert not [sha for sha in shas if sha.encode() in before]

    def test_is_why_no_version_says_where_it_is(self, here, old):
        """Move the bytes, and every version still resolves: nothing at the place names the place."""
        stored = [path.read_bytes() for path in old.rglob("*") if path.is_file()]
        assert len(stored) > 5
        assert not [data for data in stored if str(old).encode() in data]

    def test_is_no_store_of_credentials(self, storage, here):
        ref = json.loads(storage.get(key("ref")))
        for member in ("access_key", "secret_key", "token", "profile"):
            storage.put(key("ref"), json.dumps({**ref, "current": {**ref["current"], member: "hunter2"}}).encode())
            with pytest.raises(GovernanceError) as caught:
                Governance(storage).project(NAME)
            assert "hunter2" not in str(caught.value)

    def test_is_not_edited_by_hand(self, here, storage, tmp_path):
        publish(storage, lived_at(tmp_path / "other"))
        storage.put(key("migration_history"), here.history.to_bytes())
        with pytest.raises(GovernanceError, match=r"edited by hand.*gov ref HOUSE --repair"):
            Governance(storage).project(NAME)


class TestAPlace:
    @pytest.mark.parametrize(
        ("one", "other", "same"),
        [
            ("s3://bucket/p", "s3://bucket/p/?region=eu-west-1", True),
            ("s3://bucket/p", "s3://bucket/p2", False),
            ("s3://bucket/p", "s3://bucket2/p", False),
            ("s3://bucket/p", "s3://bucket/p?endpoint_url=http://localhost:1", False),
            ("/a/b", "/a/c/../b/", True),
            ("/a/b", "file:///a/b", True),
            ("/a/b", "/a", False),
        ],
    )
    def test_is_one_however_it_is_written(self, one, other, same):
        assert same_place(Location.parse(one), Location.parse(other)) is same

    def test_is_one_through_a_link(self, tmp_path):
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "real")
        assert same_place(Location.parse(str(tmp_path / "link")), Location.parse(str(tmp_path / "real")))


@pytest.mark.parametrize("name", ["../HOUSE", "a/b", "", ".", "HOUSE\n", "-x", "HOUSE/../OTHER"])
def test_a_project_name_with_a_trick_in_it_is_refused(name, storage, here):
    for governance in (Governance(storage), developer(storage, here)):
        with pytest.raises(InvalidName):
            governance.project(name)
    assert storage.calls == []


def test_without_governance_everything_is_as_before(old):
    project = Project(NAME, LocalStore(old))
    assert project.placement_authority is None
    assert project.table("flights").write(ROWS[0]).change == "full"
    assert project.table("flights").read() == ROWS[0]


def test_a_governed_project_travels_by_pickle(here, moved, storage):
    developer_table = developer(storage, moved).project(NAME).table("flights")
    reader_table = Governance(storage).project(NAME).table("flights")
    for table in (developer_table, reader_table):
        assert pickle.loads(pickle.dumps(table)).read("@0") == ROWS[0]
    assert pickle.loads(pickle.dumps(developer_table)).write(ROWS[3]).change == "full"
