"""Parking and publishing, killed at every call of the store, and appends that are published beside each other."""

import contextlib
import threading

import deltalake
import pytest

from dagster_versioned.errors import VersionedError
from dagster_versioned.identity.version import Run
from dagster_versioned.projects.project import Project
from dagster_versioned.publication.park import park
from dagster_versioned.publication.publish import publish_drafts
from dagster_versioned.storage import LocalStore
from dagster_versioned.tables.options import TableOptions
from support.chain import rows
from support.chain import sorted_numbers as numbers
from support.interleaving import dying
from support.s3_server import S3Server

pytestmark = pytest.mark.slow

MOST_CALLS = 400
MODES = {
    "replace": TableOptions(),
    "append": TableOptions(mode="append"),
    "merge": TableOptions(mode="merge", merge_key=("n",)),
}
EXPECTED = {"replace": [10, 11], "append": [1, 2, 10, 11], "merge": [1, 2, 10, 11]}


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.s3)])
def place(request, tmp_path):
    """Roots for projects, by a name that is another one each time."""
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        bucket = server.new_bucket()
        return lambda name: server.store(bucket, name)
    return lambda name: LocalStore(tmp_path / name)


@pytest.mark.parametrize("mode", MODES)
def test_every_row_is_there_once_wherever_parking_and_publishing_die(place, mode):
    options, run = MODES[mode], Run("r1", "raw", 0)
    for call in range(1, MOST_CALLS):
        root = place(f"{mode}-{call}")
        Project("P", root).table("raw").write(rows(1, 2), options=options)
        store = dying(root, call)
        hindered = Project("P", store)
        with contextlib.suppress(VersionedError):
            park(hindered.table("raw"), {None: rows(10, 11)}, run=run, options=options)
            hindered.publish("r1", by="me")
        project = Project("P", root)
        assert numbers(project, "raw") in ([1, 2], EXPECTED[mode])
        if not project.parked():
            assert numbers(project, "raw") == [1, 2]
            park(project.table("raw"), {None: rows(10, 11)}, run=Run("r1", "raw", 1), options=options)
        project.publish("r1", by="me")
        assert numbers(project, "raw") == EXPECTED[mode]
        assert [one.standing for one in project.parked()] == ["published"]
        assert project.table("raw").verify().ok
        if not store.shared["dead"]:
            return
    raise AssertionError(f"{MOST_CALLS} calls were not enough")


def test_appends_of_runs_that_are_published_side_by_side_are_there_once(tmp_path):
    root = tmp_path / "lake"
    project = Project("P", LocalStore(root))
    runs = [f"r{number}" for number in range(12)]
    for number, run in enumerate(runs):
        park(project.table("raw"), {None: rows(number)}, run=Run(run, "raw", 0), options=MODES["append"])

    def publish() -> None:
        own = Project("P", LocalStore(root))
        publish_drafts(own, own.parked(), lambda _: None)

    threads = [threading.Thread(target=publish) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    publish()
    assert numbers(project, "raw") == list(range(12))
    assert {one.standing for one in project.parked()} == {"published"}
    assert deltalake.DeltaTable(str(root / "datom" / "raw")).to_pyarrow_table().num_rows == 12
