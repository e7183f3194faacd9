"""`dagster-versioned parked`: what waits for its checks, and what became of it."""

import json

import pyarrow as pa

from dagster_versioned.identity.version import Run
from dagster_versioned.projects.project import Project
from dagster_versioned.publication.park import park
from dagster_versioned.storage import LocalStore
from support.command_line import in_process


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


def test_a_project_without_a_first_commit_lists_what_is_parked(tmp_path):
    def listed(*flags):
        outcome = in_process("--project", "P", "--location", tmp_path / "new", *flags, "parked", "ls")
        assert outcome.exit_code == 0, outcome.stderr
        return outcome

    assert "No drafts" in listed().stderr
    assert json.loads(listed("--json").stdout) == {"drafts": [], "unreadable": []}
    table = Project("P", LocalStore(tmp_path / "new")).table("flights")
    draft = park(table, {None: pa.table({"id": [7]})}, run=Run("run-1", "flights", 0)).draft
    (one,) = json.loads(listed("--json").stdout)["drafts"]
    assert (one["draft"], one["state"], one["versions"][0]["saw"]) == (draft.id, "parked", None)
    assert draft.id[:8] in listed().stdout
