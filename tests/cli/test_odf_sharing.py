"""Branches of a dataset beside its head, and repositories by name."""

import os
import signal
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_versioned import EventHistory, EventTable, Project
from dagster_versioned.errors import VersionNotFound
from dagster_versioned.odf.identity.multihash import Multihash
from dagster_versioned.odf.sharing.references import references, set_reference
from support.command_line import Cli
from support.odf_graph import root_of
from support.smart_peers import Peer
from support.static_server import static_server


@pytest.fixture
def cities(project: Project) -> str:
    """A dataset of two slices, in the blocks 3 and 4."""
    table = EventTable(project.table("cities"), EventHistory())
    for number in (1, 2):
        table.write(pa.table({"id": [number]}))
    return "cities"


def heads(cli: Cli, table: str) -> list[str]:
    return [block["hash"] for block in cli.json("odf", "log", table)["blocks"]]


def grow(project: Project, table: str, number: int) -> None:
    EventTable(project.table(table), EventHistory()).write(pa.table({"id": [number]}))


def test_a_name_stands_for_a_block_until_it_is_moved(cli: Cli, cities: str, tmp_path: Path):
    *_, first, second = reversed(heads(cli, cities))
    assert cli.json("odf", "ref", cities)["references"] == {}
    assert cli.json("odf", "ref", cities, "accepted", 3)["references"] == {"accepted": first}
    assert cli.json("odf", "inspect", cities, "accepted")["hash"] == first
    assert cli("odf", "ref", cities, ok=0).out == f"accepted  {first}\n"
    for command in (("vacuum", cities, "--apply"), ("repair", cities), ("verify", cities), ("odf", "verify", cities)):
        cli(*command, ok=0)
    cli("odf", "ref", cities, "released", "accepted", ok=0)
    assert cli.json("odf", "ref", cities, "accepted", second[:20])["references"]["accepted"] == second
    assert cli.json("odf", "ref", cities, "accepted", "--delete")["references"] == {"released": first}
    assert heads(cli, cities)[0] == second
    for wrong, code in (
        (("head", 3), 2),
        (("../head", 3), 2),
        (("Upper", 3), 2),
        (("x", 77), 2),
        (("x",), 2),
        (("x", 3, "--delete"), 2),
        (("--delete",), 2),
        (("gone", "--delete"), 3),
    ):
        assert cli("odf", "ref", cities, *wrong).code == code, wrong
    assert cli.json("odf", "ref", cities)["references"] == {"released": first}


def test_a_name_stands_for_no_block_of_another_chain(cities: str, project: Project):
    with pytest.raises(VersionNotFound, match="Nothing was changed"):
        set_reference(project.table("cities"), "accepted", Multihash.sha3_256(b"another"))
    assert references(project.table("cities")) == {}


def test_who_pulls_a_reference_follows_it_and_not_the_head(cli: Cli, cities: str, project: Project, tmp_path: Path):
    cli("odf", "ref", cities, "accepted", 3, ok=0)
    where = tmp_path / "store/datom/cities"
    assert cli.json("odf", "pull", where, "copy", "--ref", "accepted")["head"] == heads(cli, cities)[1]
    assert cli.json("odf", "tail", "copy")["total"] == 1
    assert cli.json("odf", "pull", where, "copy", "--ref", "accepted")["blocks"] == 0
    cli("odf", "ref", cities, "accepted", 4, ok=0)
    with static_server(where) as url:
        assert cli.json("odf", "pull", url, "copy", "--ref", "accepted")["blocks"] == 1
    missing = cli("odf", "pull", where, "other", "--ref", "none")
    assert (missing.code, "has no refs/none" in missing.err) == (4, True)
    assert cli("odf", "pull", where, "other", "--ref", "../x").code == 2


def test_a_branch_is_pushed_beside_the_head_reviewed_and_accepted(
    cli: Cli, cities: str, project: Project, tmp_path: Path
):
    shared = tmp_path / "shared"
    cli("odf", "push", cities, shared, ok=0)
    before = heads(cli, cities)[0]
    cli("odf", "pull", shared, "staging", ok=0)
    grow(project, "staging", 3)
    pushed = cli.json("odf", "push", "staging", shared, "--ref", "staging")
    assert (pushed["before"], pushed["files"]) == (None, 1)
    assert (shared / "refs/head").read_text() == before
    assert (shared / "refs/staging").read_text() == heads(cli, "staging")[0]
    assert cli.json("odf", "pull", shared, "everybody")["head"] == before
    assert cli.json("odf", "pull", shared, "review", "--ref", "staging")["head"] == heads(cli, "staging")[0]
    # Accepted: the main chain goes on with it.
    accepted = cli.json("odf", "pull", shared, cities, "--ref", "staging")
    assert accepted["blocks"] == 1
    assert cli.json("odf", "push", cities, shared)["blocks"] == 1
    assert (shared / "refs/head").read_text() == (shared / "refs/staging").read_text()
    # Another branch that grew apart from that one is not written over it.
    grow(project, "review", 4)
    grow(project, "staging", 5)
    cli("odf", "push", "staging", shared, "--ref", "staging", ok=0)
    apart = cli("odf", "push", "review", shared, "--ref", "staging")
    assert (apart.code, "have grown apart" in apart.err) == (6, True)
    other = root_of(tmp_path / "other")
    cli("odf", "pull", other.folder, "other", ok=0)
    refused = cli("odf", "push", "other", shared, "--ref", "other")
    assert (refused.code, "holds the dataset" in refused.err) == (6, True)


def test_a_branch_is_signed_by_itself(cli: Cli, tmp_path: Path):
    root = root_of(tmp_path / "readings")
    key = tmp_path / "key"
    key.write_text(root.key.secret)
    cli("odf", "pull", root.folder, "readings", ok=0)
    cli("odf", "push", "readings", tmp_path / "shared", "--ref", "qa", "--key-file", key, ok=0)
    assert sorted(path.name for path in (tmp_path / "shared/refs").iterdir()) == ["qa", "qa.sig"]
    cli("odf", "pull", tmp_path / "shared", "checked", "--ref", "qa", "--require-signature", ok=0)


def test_a_repository_is_a_place_by_its_name(cli: Cli, cities: str, tmp_path: Path):
    assert cli.json("odf", "repo")["repositories"] == {}
    named = cli.json("odf", "repo", "Acme.org", tmp_path / "shared")
    assert named == {"repositories": {"Acme.org": str(tmp_path / "shared")}}
    cli("odf", "push", cities, "acme.org/us/player-scores", ok=0)
    assert (tmp_path / "shared/us/player-scores/refs/head").exists()
    assert "player-scores" not in cli("ls", ok=0).out
    cli("odf", "pull", "acme.org/us/player-scores", ok=0)
    assert heads(cli, "us_player_scores") == heads(cli, cities)
    assert "up to date" in cli("odf", "add", "ACME.ORG/us/player-scores", ok=0).out
    cli("odf", "add", "acme.org/us/player-scores", "--table", "mine", ok=0)
    cli("odf", "verify", "mine", "--from", "acme.org/us/player-scores", ok=0)
    with static_server(tmp_path / "shared") as url:
        cli("odf", "repo", "web", url, ok=0)
        assert cli.json("odf", "pull", "web/us/player-scores", "from-web")["files"] == 2
    assert cli.json("odf", "repo", "web", "--delete")["repositories"] == named["repositories"]
    assert cli("odf", "pull", "web/us/player-scores", "x").code != 0  # a folder, which is not there
    missing = cli("odf", "pull", "acme.org/nothing")
    assert (missing.code, "has no refs/head" in missing.err) == (4, True)
    for words in (["pull", "./shared/x"], ["pull", f"acme.org/did:odf:fed01{'0' * 64}"], ["pull", "acme.org/a b"]):
        assert cli("odf", *words).code == 2, words


def test_an_environment_has_the_repositories_of_its_project(cli: Cli, cities: str, tmp_path: Path):
    cli("odf", "repo", "acme", tmp_path / "shared", ok=0)
    cli("odf", "push", cities, "acme/cities", ok=0)
    cli("env", "create", "pr-1", ok=0)
    within = ("--environment", "pr-1", "odf")
    assert cli.json(*within, "repo")["repositories"] == {"acme": str(tmp_path / "shared")}
    pulled = cli(*within, "pull", "acme/cities", "copy", ok=0)
    assert pulled.err.count("Environment pr-1.") == 1
    refused = cli(*within, "repo", "other", tmp_path, ok=2)
    assert "Name it in the project itself" in refused.err


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("a b", "shared"),
        ("acme", "https://me:hunter2@host/x"),
        ("acme", "s3://me:hunter2@bucket/x"),
        ("acme", "https://host/x?token=hunter2"),
        ("acme", "ftp://host/x"),
    ],
)
def test_what_is_no_name_or_no_address_is_refused(cli: Cli, cities: str, name: str, address: str):
    refused = cli("odf", "repo", name, address)
    assert (refused.code, "hunter2" in refused.err) == (2, False)
    assert cli.json("odf", "repo")["repositories"] == {}
    assert cli("odf", "repo", "acme", "--delete").code == 3
    assert cli("odf", "repo", "acme").code == 2


def test_a_document_of_repositories_that_cannot_be_read_is_named(cli: Cli, cities: str, tmp_path: Path):
    path = tmp_path / "store/datom/.metadata/repositories.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text('{"acme": 1}')
    refused = cli("odf", "pull", "acme/x")
    assert (refused.code, "repositories.json cannot be read" in refused.err) == (4, True)
    assert cli("odf", "repo", "acme", tmp_path).code == 4
    assert path.read_text() == '{"acme": 1}'


def test_a_dataset_is_pulled_from_a_smart_server_with_a_token_that_nothing_shows(
    cli: Cli, cities: str, project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    where = tmp_path / "store/datom/cities"
    peer = Peer(where)
    (tmp_path / "token").write_text("secret-1\n")
    monkeypatch.setenv("NODE_TOKEN", "secret-2")
    monkeypatch.setenv("NO_TOKEN", "secret 3")
    with peer.running() as address:
        assert cli.json("odf", "pull", address, "copy", "--token-file", tmp_path / "token")["files"] == 2
        cli("odf", "repo", "node", address, ok=0)
        assert cli.json("odf", "repo")["repositories"] == {"node": address}
        assert cli("odf", "pull", "node/cities", "--token-env", "NODE_TOKEN").code == 4
        refused = cli("odf", "pull", address, "copy", "--token-env", "NO_TOKEN")
        assert (refused.code, "secret 3" in refused.err) == (2, False)
        for wrong in (("--token-env", "UNSET"), ("--token-file", "gone"), ("--token-file", "x", "--token-env", "y")):
            assert cli("odf", "pull", address, "copy", *wrong).code == 2, wrong
    assert cli("odf", "pull", where, "copy", "--token-env", "NODE_TOKEN").code == 2
    sent = [request.headers.get("Authorization") for request in peer.requests if request.path.endswith("/pull")]
    assert sent == ["Bearer secret-1", "Bearer secret-2"]
    assert not any(b"secret-" in path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file())


def test_a_dataset_is_pushed_to_a_server_that_takes_it_from_who_has_the_token(
    cli: Cli, cities: str, project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PUSH_TOKEN", "secret-1")
    monkeypatch.setenv("OTHER_TOKEN", "secret-2")
    for wrong in (("--allow-push",), ("--token-env", "PUSH_TOKEN")):
        refused = cli("odf", "serve", "shared", *wrong)
        assert (refused.code, "go together" in refused.err) == (2, True)
    serve = ("odf", "serve", "shared", "--port", "0", "--allow-push", "--token-env", "PUSH_TOKEN")
    log = tmp_path / "log"
    with log.open("wb") as errors:
        process = cli.process(*serve, stderr=errors)
        try:
            assert process.stdout is not None
            address = f"odf+{process.stdout.readline().strip()}"
            denied = cli("odf", "push", cities, address, "--token-env", "OTHER_TOKEN")
            assert (denied.code, "HTTP 401" in denied.err, "secret" in denied.err) == (5, True, False)
            pushed = cli.json("odf", "push", cities, address, "--token-env", "PUSH_TOKEN")
            assert (pushed["before"], pushed["blocks"], pushed["files"], pushed["signed"]) == (None, 5, 2, None)
            assert cli.json("odf", "push", cities, address, "--token-env", "PUSH_TOKEN")["blocks"] == 0
            assert heads(cli, "shared") == heads(cli, cities)
        finally:
            os.kill(process.pid, signal.SIGINT)
            process.communicate()
    assert "PUT /push/…/data/" in log.read_text()
    assert "secret" not in log.read_text()
    cli("odf", "init", tmp_path / "key", ok=0)
    for wrong in (("--key-file", tmp_path / "key"), ("--ref", "staging")):
        assert cli("odf", "push", cities, address, *wrong).code == 2, wrong
    assert cli("odf", "push", cities, tmp_path / "folder", "--token-env", "PUSH_TOKEN").code == 2
