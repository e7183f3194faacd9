"""Whoever opens a governed project by its place alone is warned by datom's reader that the place may be left."""

import json
import logging
import warnings
from pathlib import Path

import pytest

from dagster_versioned.errors import InvalidInput
from dagster_versioned.governance.enroll import decommission, enroll
from dagster_versioned.governance.governance_marker import MARKER_KEY, read_marker
from dagster_versioned.governance.mirror import GovernanceStore
from dagster_versioned.governance.registry import Registry
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import LocalStore, Location
from dagster_versioned.storage.wrappers import Fault, FaultStore, StoreWrapper
from support.frames import numbered
from support.governed import NAME, WHO, Governed, Opener
from support.readers import assert_same
from support.stores import contents

datom = pytest.importorskip("datom")

WARNING = datom.GovernanceAttachedWarning


@pytest.fixture
def home(tmp_path: Path) -> Location:
    """Where a project with one table is."""
    place = Location.parse(str(tmp_path / "old"))
    Project.open(NAME, place.root).table("flights").write(numbered(3))
    return place


@pytest.fixture
def governed(registry: Registry, mirror: GovernanceStore, home: Location) -> Governed:
    """The project, attached."""
    enroll(registry, mirror, NAME, home, "attached", actor=WHO)
    return Governed(registry, mirror, Opener(), home)


def data(place: Location) -> LocalStore:
    return LocalStore(Path(place.root)).subfolder("datom")


def connect(place: Location) -> "datom.Conn":
    return datom.get_conn(datom.store_local(place.root), NAME)


def test_before_a_project_is_governed_nobody_warns(home: Location) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        connect(home)


def test_datom_warns_of_a_governed_project_and_names_its_registry(governed: Governed, tmp_path: Path) -> None:
    with pytest.warns(WARNING, match=str(tmp_path / "registry.git")) as caught:
        conn = connect(governed.home)
    assert str(tmp_path / "governance") in str(caught[0].message)
    assert_same(datom.read(conn, "flights", as_arrow=True), numbered(3))


def test_it_has_the_members_that_datom_writes(governed: Governed, tmp_path: Path) -> None:
    stored = json.loads(data(governed.home).get(MARKER_KEY))
    event = governed.registry.documents(NAME).history.events[0]
    assert stored == {
        "gov_repo_url": governed.registry.remote,
        "gov_storage": {"type": "local", "root": str(tmp_path / "governance")},
        "attached_at": f"{event.timestamp:%Y-%m-%dT%H:%M:%SZ}",
    }


@pytest.mark.parametrize("deleted", [False, True])
def test_after_a_move_datom_warns_at_both_places(governed: Governed, tmp_path: Path, deleted: bool) -> None:
    new = Location.parse(str(tmp_path / "new"))
    governed.move(new, delete_source=deleted)
    for place in (governed.home, new):
        with pytest.warns(WARNING, match="may go stale"):
            conn = connect(place)
    assert_same(datom.read(conn, "flights", as_arrow=True), numbered(3))
    assert data(new).get(MARKER_KEY) == data(governed.home).get(MARKER_KEY)


def test_a_project_that_was_recorded_without_it_gets_it_with_a_move_or_when_it_is_recorded_again(
    governed: Governed, tmp_path: Path
) -> None:
    expected = data(governed.home).get(MARKER_KEY)
    data(governed.home).delete([MARKER_KEY])
    enroll(governed.registry, governed.mirror, NAME, governed.home, "attached", actor=WHO)
    assert data(governed.home).get(MARKER_KEY) == expected
    data(governed.home).delete([MARKER_KEY])
    new = Location.parse(str(tmp_path / "new"))
    governed.move(new)
    assert [data(place).get(MARKER_KEY) for place in (governed.home, new)] == [expected] * 2


def test_a_project_comes_back_to_where_it_was(governed: Governed, tmp_path: Path) -> None:
    governed.move(Location.parse(str(tmp_path / "new")), delete_source=True)
    governed.move(governed.home, delete_source=True)
    with pytest.warns(WARNING):
        assert_same(datom.read(connect(governed.home), "flights", as_arrow=True), numbered(3))


@pytest.mark.parametrize("delete", [False, True])
def test_a_project_that_is_given_up_loses_it(governed: Governed, delete: bool) -> None:
    decommission(governed.registry, governed.mirror, NAME, delete_data=delete)
    assert not [key for key in contents(data(governed.home)) if key == MARKER_KEY]


def test_a_rehearsal_puts_none(registry: Registry, mirror: GovernanceStore, home: Location) -> None:
    before = contents(data(home))
    enroll(registry.rehearsal(), mirror, NAME, home, "attached", actor=WHO)
    assert contents(data(home)) == before


def test_a_place_that_another_registry_governs_is_refused(governed: Governed, tmp_path: Path) -> None:
    other = Registry.init(str(tmp_path / "other.git"), tmp_path / "other")
    elsewhere = GovernanceStore(LocalStore(tmp_path / "elsewhere"))
    with pytest.raises(InvalidInput, match="governed already"):
        enroll(other, elsewhere, NAME, governed.home, "attached", actor=WHO)
    assert other.projects() == []
    decommission(governed.registry, governed.mirror, NAME)
    enroll(other, elsewhere, NAME, governed.home, "attached", actor=WHO)
    marker = read_marker(data(governed.home))
    assert marker is not None
    assert marker.repo_url == other.remote


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"[]",
        b"{",
        b'{"gov_repo_url": "x"}',
        b'{"gov_repo_url": "x", "gov_storage": {"type": "ftp", "root": "/"}}',
        b'{"gov_repo_url": "", "gov_storage": {"type": "local", "root": "/x"}}',
    ],
)
def test_one_that_cannot_be_used_stops_nobody_and_is_replaced(
    registry: Registry, mirror: GovernanceStore, home: Location, stored: bytes
) -> None:
    data(home).put(MARKER_KEY, stored)
    assert read_marker(data(home)) is None
    enroll(registry, mirror, NAME, home, "attached", actor=WHO)
    assert read_marker(data(home)) is not None


def test_where_it_cannot_be_put_the_project_is_governed_and_a_warning_says_so(
    registry: Registry, mirror: GovernanceStore, home: Location, caplog: pytest.LogCaptureFixture
) -> None:
    def refuses(place: Location) -> FaultStore:
        store = LocalStore(Path(place.root))
        return FaultStore(store, lambda call: Fault.BEFORE if call.verb.startswith("put") else None)

    with caplog.at_level(logging.WARNING):
        enroll(registry, mirror, NAME, home, "attached", actor=WHO, open_store=refuses)
    assert registry.projects() == [NAME]
    (warning,) = caplog.messages
    assert MARKER_KEY in warning


@pytest.mark.parametrize(
    "uri", ["az://container/governance", "gs://bucket/governance", "abfss://c12@acct.dfs.core.windows.net/g"]
)
def test_a_governance_storage_that_datom_cannot_have_is_named_to_nobody(
    registry: Registry, home: Location, tmp_path: Path, uri: str
) -> None:
    class Elsewhere(StoreWrapper):
        @property
        def uri(self) -> str:
            return uri

    mirror = GovernanceStore(Elsewhere(LocalStore(tmp_path / "governance")))
    enroll(registry, mirror, NAME, home, "attached", actor=WHO)
    assert registry.projects() == [NAME]
    assert read_marker(data(home)) is None
    Governed(registry, mirror, Opener(), home).move(Location.parse(str(tmp_path / "new")))
    assert mirror.ref(NAME).current.root == str(tmp_path / "new")
