"""`dagster-versioned parked`: what waits for its checks, and what became of it."""

import pyarrow as pa

from dagster_versioned.identity.version import Run
from dagster_versioned.tables.parked.park import park


def test_from_parking_to_publishing_and_dropping(cli, project, flights):
    first = park(flights, {None: pa.table({"id": [7]})}, run=Run("run-1", "flights", 0)).draft
    (listed,) = cli.json("parked", "ls")["drafts"]
    assert (listed["draft"], listed["table"], listed["state"]) == (first.id, "flights", "parked")
    assert listed["versions"][0]["saw"] == flights.version().metadata_sha
    assert cli.json("parked", "show", first.id[:8])["draft"] == listed
    assert "run-1" in cli("parked", "show", first.id[:8], ok=0).out
    assert "1 drafts would be published" in cli("parked", "publish", "run-1", ok=0).out
    assert cli("parked", "publish", "run-1", "--apply").code == 2
    done = cli.json("parked", "publish", "run-1", "--apply", "--author", "Grace")
    assert done["published"] == [first.id]
    assert project.table("flights").read()["id"].to_pylist() == [7]
    second = park(flights, {None: pa.table({"id": [8]})}, run=Run("run-2", "flights", 0)).draft
    assert "would be dropped" in cli("parked", "drop", second.id, ok=0).out
    dropped = cli.json("parked", "drop", second.id, "--why", "a bad source", "--apply")
    assert "a bad source" in dropped["draft"]["why"]
    assert cli("parked", "drop", second.id, "--apply").code == 2
    assert cli("parked", "show", "0000").code == 3
    assert "superseded" in cli("parked", "ls", ok=0).out
