"""The verbs for histories of events."""

import os
import signal
import stat
import subprocess
import urllib.request
from pathlib import Path

import pytest

from support.command_line import Cli
from support.odf_graph import HOT, derived_of, root_of
from support.static_server import static_server

MANIFEST = """
kind: DatasetSnapshot
version: 1
content:
  name: org.example.cities
  kind: Root
  metadata:
    - kind: SetInfo
      description: Cities of the world
    - kind: SetPollingSource
      fetch:
        kind: FilesGlob
        path: {folder}/*.csv
      read:
        kind: Csv
        header: true
        schema:
          - id BIGINT NOT NULL
          - name STRING
      merge:
        kind: Ledger
        primaryKey: [id]
"""


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    (tmp_path / "files").mkdir()
    (tmp_path / "files/1.csv").write_text("id,name\n1,Oslo\n2,Rome\n")
    path = tmp_path / "cities.yaml"
    path.write_text(MANIFEST.format(folder=tmp_path / "files"))
    return path


@pytest.fixture
def cities(cli: Cli, manifest: Path, tmp_path: Path) -> str:
    """A dataset with a key, into which one file was ingested."""
    cli("odf", "init", tmp_path / "cities.key", ok=0)
    cli("odf", "add", manifest, "--table", "cities", "--key-file", tmp_path / "cities.key", ok=0)
    cli("odf", "ingest", "cities", "--key-file", tmp_path / "cities.key", ok=0)
    return "cities"


def test_init_makes_a_key_that_nobody_else_may_read_and_never_overwrites_one(cli: Cli, tmp_path: Path):
    file = tmp_path / "cities.key"
    made = cli("odf", "init", file, ok=0)
    assert made.out.startswith("did:odf:fed01")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    kept = file.read_text()
    assert kept.strip() not in made.out + made.err
    refused = cli("odf", "init", file, ok=2)
    assert "Nothing was made" in refused.err
    assert file.read_text() == kept


def test_add_and_ingest(cli: Cli, manifest: Path, tmp_path: Path):
    assert cli("odf", "add", manifest, ok=0).out == "org_example_cities: 2 events of metadata added\n"
    assert cli("odf", "add", manifest, ok=0).out == "org_example_cities: nothing is new\n"
    told = cli("odf", "ingest", "org_example_cities", ok=2)  # what the chain alone says may be a stranger's
    assert f"names files of this machine, '{tmp_path}/files/" in told.err
    assert "Nothing was read" in told.err
    assert "--manifest" in told.err
    first = cli.json("odf", "ingest", "org_example_cities", "--manifest", manifest)
    assert [(Path(each["file"]).name, each["change"]) for each in first["files"]] == [("1.csv", "full")]
    again = cli("odf", "ingest", "org_example_cities", "--manifest", manifest, ok=0)
    assert again.out == "org_example_cities: nothing is new\n"
    (tmp_path / "files/2.csv").write_text("id,name\nx,Bonn\n")
    failed = cli("odf", "ingest", "org_example_cities", "--manifest", manifest, ok=2)
    assert "2.csv, line 2, column 'id': 'x' is no int64" in failed.err
    (tmp_path / "files/2.csv").write_text("id,name\n3,Bonn\n")
    assert "2.csv: " in cli("odf", "ingest", "org_example_cities", "--manifest", manifest, ok=0).out


def test_a_source_that_may_be_a_stranger_s_reaches_local_addresses_only_where_they_are_allowed(
    cli: Cli, manifest: Path, tmp_path: Path
):
    with static_server(tmp_path / "files") as url:
        files = f"kind: FilesGlob\n        path: {tmp_path}/files/*.csv"
        manifest.write_text(manifest.read_text().replace(files, f"kind: Url\n        url: {url}/1.csv"))
        cli("odf", "add", manifest, ok=0)
        refused = cli("odf", "ingest", "org_example_cities", ok=5)
        assert "127.0.0.1, an address of this machine or its network" in refused.err
        assert "nothing was read" in refused.err
        assert "--local-addresses" in refused.err
        allowed = cli.json("odf", "ingest", "org_example_cities", "--local-addresses")
        assert [each["change"] for each in allowed["files"]] == ["full"]


def test_files_are_added_as_a_source_reads_them(cli: Cli, cities: str, manifest: Path, tmp_path: Path):
    (tmp_path / "more.csv").write_text("id,name\n3,Bonn\n")
    added = cli.json("odf", "ingest", cities, tmp_path / "more.csv", "--event-time", "2020-01-01")
    assert [each["change"] for each in added["files"]] == ["full"]
    (last,) = cli.json("odf", "tail", cities, "--limit", 1)["events"]
    assert (last["name"], last["event_time"][:10]) == ("Bonn", "2020-01-01")
    assert cli.json("odf", "ingest", cities, tmp_path / "more.csv")["files"][0]["change"] == "none"
    text = manifest.read_text()
    pushed = text[: text.index("    - kind: SetPollingSource")] + text[text.index("      read:") :]
    manifest.write_text(pushed.replace("      read:", "    - kind: AddPushSource\n      sourceName: app\n      read:"))
    cli("odf", "add", manifest, "--table", "pushed", ok=0)
    assert cli("odf", "ingest", "pushed", tmp_path / "more.csv", "--source", "app", ok=0).out.endswith("\n")
    assert cli.json("odf", "tail", "pushed")["total"] == 1
    missing = " ".join(cli("odf", "ingest", "citties", ok=3).err.split())
    assert "No table citties: nothing was ever written under this name. Nothing was added. Give --manifest" in missing
    for words in (["ingest", "pushed"], ["ingest", "pushed", "x.csv"], ["ingest", "pushed", "x", "--source", "y"]):
        assert "Nothing was added" in cli("odf", *words, ok=2).err


RESHAPED = """
      preprocess:
        kind: Sql
        engine: duckdb
        query: SELECT id, upper(name) AS name FROM input
      merge:"""


def test_rows_are_reshaped_by_the_query_that_the_chain_has_if_its_engine_is_here(cli: Cli, manifest: Path):
    reshaped = manifest.read_text().replace("\n      merge:", RESHAPED)
    manifest.write_text(reshaped.replace("duckdb", "datafusion"))
    assert "'datafusion', which is not here" in cli("odf", "add", manifest, "--table", "cities", ok=2).err
    manifest.write_text(reshaped)
    cli("odf", "add", manifest, "--table", "cities", ok=0)
    files = cli.json("odf", "ingest", "cities", "--manifest", manifest)["files"]
    assert [each["change"] for each in files] == ["full"]
    assert [event["name"] for event in cli.json("odf", "tail", "cities")["events"]] == ["OSLO", "ROME"]
    more = manifest.parent / "more.csv"
    more.write_text("id,name\n3,Bonn\n")
    cli("odf", "ingest", "cities", more, ok=0)  # as the chain says
    assert [event["name"] for event in cli.json("odf", "tail", "cities", "--limit", 1)["events"]] == ["BONN"]


DERIVED = """
kind: DatasetSnapshot
version: 1
content:
  name: org.example.short
  kind: Derivative
  metadata:
    - kind: SetInfo
      description: Cities with short names
    - kind: SetTransform
      inputs:
        - datasetRef: org.example.cities
          alias: cities
      transform:
        kind: Sql
        engine: spark
        query: SELECT event_time, id, name FROM cities WHERE length(name) < 5
"""


def test_a_manifest_that_cannot_be_computed_here_is_refused(cli: Cli, manifest: Path, tmp_path: Path):
    path = tmp_path / "short.yaml"
    for text, reason in (
        (DERIVED.replace("engine: spark", "engine: datafusion"), "in the SQL of 'datafusion'"),
        (DERIVED, "'org.example.cities' is no dataset of project"),
        (DERIVED[: DERIVED.index("    - kind: SetTransform")], "has 0 queries"),
        (DERIVED + "    - kind: SetVocab\n      offsetColumn: op\n", "must name columns, each once"),
    ):
        path.write_text(text)
        assert reason in cli("odf", "add", path, ok=2).err


@pytest.mark.slow
@pytest.mark.spark
def test_a_dataset_that_is_computed_from_others_is_added_and_run(cli: Cli, manifest: Path, tmp_path: Path):
    (tmp_path / "files/1.csv").write_text("id,name\n1,Oslo\n2,Reykjavik\n")
    cli("odf", "add", manifest, ok=0)
    cli("odf", "ingest", "org_example_cities", "--manifest", manifest, ok=0)
    path = tmp_path / "short.yaml"
    path.write_text(DERIVED)
    made = cli.json("odf", "add", path)
    assert made == {"table": "org_example_short", "events": 1, "ran": True}
    about = cli.json("odf", "inspect", "org_example_short")
    assert (about["kind"], about["description"], about["events"]) == ("Derivative", "Cities with short names", 1)
    assert about["transform"]["engine"] == "spark"
    assert cli.json("odf", "add", path)["ran"] is False
    (tmp_path / "files/2.csv").write_text("id,name\n3,Rome\n")
    cli("odf", "ingest", "org_example_cities", "--manifest", manifest, ok=0)
    cli("odf", "add", path, ok=0)
    assert [event["name"] for event in cli.json("odf", "tail", "org_example_short")["events"]] == ["Oslo", "Rome"]
    cli("odf", "verify", "org_example_short", "--recursive", "--replay", ok=0)


def test_log_tail_and_inspect(cli: Cli, cities: str, tmp_path: Path):
    log = cli.json("odf", "log", cities)["blocks"]
    kinds = ["AddData", "SetDataSchema", "SetPollingSource", "SetInfo", "Seed"]
    assert [block["kind"] for block in log] == kinds
    assert [block["sequenceNumber"] for block in log] == [4, 3, 2, 1, 0]
    shown = cli("odf", "log", cities, "--limit", 1, ok=0).out.splitlines()
    assert len(shown) == 2
    assert "2 events" in shown[1]
    tail = cli.json("odf", "tail", cities, "--limit", 1)
    assert tail["total"] == 2
    assert [(event["offset"], event["op"], event["name"]) for event in tail["events"]] == [(1, 0, "Rome")]
    assert "Oslo" in cli("odf", "tail", cities, ok=0).out
    about = cli.json("odf", "inspect", cities)
    assert (about["blocks"], about["events"], about["merge"], about["kind"]) == (5, 2, "Ledger", "Root")
    assert about["head"] == log[0]["hash"]
    assert about["columns"][4:] == ["id int64", "name string"]
    text = cli("odf", "inspect", cities, ok=0).out
    assert "Cities of the world" in text
    block = cli("odf", "inspect", cities, "2", ok=0).out
    assert "kind: FilesGlob" in block
    assert cli.json("odf", "inspect", cities, log[2]["hash"][:20])["hash"] == log[2]["hash"]
    assert cli("odf", "inspect", cities, "77").code == 2
    assert cli("odf", "inspect", cities, "f16").code == 2


def test_push_pull_and_reset(cli: Cli, cities: str, tmp_path: Path):
    key = ("--key-file", tmp_path / "cities.key")
    pushed = cli("odf", "push", cities, tmp_path / "shared", *key, ok=0).out
    assert "5 blocks, 1 file" in pushed
    assert "signed by its owner" in pushed
    assert "up to date" in cli("odf", "push", cities, tmp_path / "shared", *key, ok=0).out
    pulled = cli.json("odf", "pull", tmp_path / "shared", "copy", "--require-signature")
    assert (pulled["blocks"], pulled["files"], pulled["signed"]) == (5, 1, pulled["head"])
    assert cli.json("odf", "tail", "copy")["total"] == 2
    other = cli("odf", "pull", tmp_path / "shared", "other", "--dataset-id", "did:odf:fed01" + "00" * 32)
    assert (other.code, "not did:odf:fed01" in other.err) == (4, True)
    assert cli("odf", "pull", tmp_path / "shared", "other", "--max-bytes", 1).code == 2
    before = cli.json("odf", "log", cities)
    made = cli.json("odf", "reset", cities, 3, "--into", "before")
    assert (made["blocks"], made["files"]) == (4, 0)
    assert cli.json("odf", "tail", "before")["total"] == 0
    assert cli.json("odf", "log", cities) == before
    assert cli("odf", "reset", cities, 3, "--into", "before").code == 2
    data = next((tmp_path / "shared/data").iterdir())
    data.write_bytes(data.read_bytes()[:-1])
    refused = cli("odf", "pull", tmp_path / "shared", "third")
    assert (refused.code, "Nothing of it was kept" in refused.err) == (4, True)


def test_keys_come_from_a_file_or_a_variable_and_a_lost_one_says_so(
    cli: Cli, cities: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shared = tmp_path / "shared"
    monkeypatch.setenv("CITIES_KEY", (tmp_path / "cities.key").read_text())
    assert "signed by its owner" in cli("odf", "push", cities, shared, "--key-env", "CITIES_KEY", ok=0).out
    both = cli("odf", "push", cities, shared, "--key-env", "X", "--key-file", tmp_path / "cities.key")
    assert (both.code, "two keys" in both.err) == (2, True)
    for option in (("--key-env", "GONE"), ("--key-file", str(tmp_path / "gone"))):
        lost = cli("odf", "push", cities, shared, *option)
        assert (lost.code, "if the key is lost" in lost.err) == (2, True)


def test_what_is_no_history_of_events_is_said_to_be_none(cli: Cli, flights):
    for verb in (["log"], ["tail"], ["inspect"], ["serve"]):
        refused = cli("odf", *verb, "flights")
        assert (refused.code, "no history of events" in refused.err) == (2, True)
    assert cli("odf", "log", "nothing").code == 3
    assert cli("odf", "ingest", "nothing").code in (2, 3)


def test_served_for_others_to_pull(cli: Cli, cities: str):
    cli("odf", "ref", cities, "accepted", 3, ok=0)
    process = cli.process("odf", "serve", cities, "--port", "0", stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        pulled = cli.json("odf", "pull", url, "copy", "--require-signature")
        assert pulled["files"] == 1
        assert cli.json("odf", "pull", url, "accepted", "--ref", "accepted")["blocks"] == 4
        assert cli.json("odf", "pull", f"odf+{url}", "smart", "--require-signature")["head"] == pulled["head"]
        for path in ("_delta_log/00000000000000000000.json", "", "data/", "../cities/refs/head", "refs"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(url + path)
        head = urllib.request.urlopen(urllib.request.Request(f"{url}refs/head", method="HEAD"))
        assert (head.status, head.headers["Content-Length"], head.read()) == (200, "69", b"")
    finally:
        os.kill(process.pid, signal.SIGINT)
        process.communicate()


def test_verify_says_what_was_checked_and_what_does_not_match(cli: Cli, cities: str, tmp_path: Path):
    whole = cli.json("odf", "verify", cities)
    assert whole["ok"]
    (report,) = whole["datasets"]
    assert (report["blocks"], report["files"], report["findings"]) == (5, 1, [])
    assert report["signed"] == report["head"]
    text = cli("odf", "verify", cities, "--recursive", ok=0).out
    assert "signed by its owner" in text
    assert "checked: 5 blocks, 1 file" in text
    data = next((tmp_path / "store/datom/cities/data").iterdir())
    altered = bytearray(data.read_bytes())
    altered[len(altered) // 2] ^= 1
    data.write_bytes(altered)
    found = cli("odf", "verify", cities)
    assert (found.code, f"WRONG: slice data/{data.name}" in found.out) == (1, True)
    assert not cli.json("odf", "verify", cities, ok=1)["ok"]


@pytest.mark.parametrize("asked", ["player-scores", "player_scores", "Player-Scores", "player.scores"])
def test_a_dataset_s_name_finds_the_table_that_was_named_after_it(cli: Cli, manifest: Path, asked: str):
    manifest.write_text(manifest.read_text().replace("org.example.cities", "player-scores"))
    cli("odf", "add", manifest, ok=0)
    first = cli.json("odf", "ingest", asked, "--manifest", manifest)
    assert (first["table"], len(first["files"])) == ("player_scores", 1)
    for verb in (["log"], ["tail"], ["inspect"], ["verify"]):
        cli("odf", *verb, asked, ok=0)
    assert [table["table"] for table in cli.json("ls")["tables"]] == ["player_scores"]


def test_a_manifest_finds_the_table_that_has_its_dataset_under_a_name_spelled_otherwise(
    cli: Cli, cities: str, manifest: Path, tmp_path: Path
):
    cli("odf", "push", cities, tmp_path / "shared", ok=0)
    cli("odf", "pull", tmp_path / "shared", "player-scores", ok=0)
    manifest.write_text(manifest.read_text().replace("org.example.cities", "player_scores".replace("_", ".")))
    assert cli("odf", "add", manifest, ok=0).out == "player-scores: nothing is new\n"
    assert [table["table"] for table in cli.json("ls")["tables"]] == ["cities", "player-scores"]


def test_a_name_that_fits_several_tables_takes_the_very_one_or_is_refused(
    cli: Cli, cities: str, manifest: Path, tmp_path: Path
):
    cli("odf", "push", cities, tmp_path / "shared", ok=0)
    cli("odf", "pull", tmp_path / "shared", "player-scores", ok=0)
    cli("odf", "reset", cities, 3, "--into", "player_scores", ok=0)
    for name in ("player-scores", "player_scores"):
        assert cli.json("odf", "inspect", name)["table"] == name
    refused = cli("odf", "ingest", "player.scores", "--manifest", manifest, ok=2)
    assert "'player-scores', 'player_scores'" in refused.err
    assert "Nothing was changed" in refused.err


def test_a_watermark_is_set_without_data(cli: Cli, cities: str, tmp_path: Path):
    key = ("--key-file", tmp_path / "cities.key")
    first = cli.json("odf", "inspect", cities)
    moved = cli.json("odf", "set-watermark", cities, "2100-01-01", *key)
    assert moved == {"table": "cities", "before": first["watermark"], "watermark": "2100-01-01T00:00:00Z"}
    after = cli.json("odf", "inspect", cities)
    assert (after["watermark"], after["blocks"], after["events"]) == ("2100-01-01T00:00:00Z", 6, 2)
    assert cli("odf", "verify", cities, ok=0).out.count("signed by its owner") == 1
    assert "is still 2100-01-01" in cli("odf", "set-watermark", cities, "2100-01-01", *key, ok=0).out
    assert "never goes back" in cli("odf", "set-watermark", cities, "1d", *key, ok=2).err
    assert "is no moment" in cli("odf", "set-watermark", cities, "soon", ok=2).err
    assert cli.json("odf", "inspect", cities)["blocks"] == 6


def test_the_watermark_of_what_a_query_computes_is_not_set(cli: Cli, tmp_path: Path):
    hot = derived_of(tmp_path / "hot", root_of(tmp_path / "readings"), "readings", HOT, 2)
    cli("odf", "pull", hot.folder, "hot", ok=0)
    refused = cli("odf", "set-watermark", "hot", "2100-01-01", ok=2)
    assert "hot is computed by a query" in refused.err
    assert cli("odf", "set-watermark", "nothing", "2100-01-01").code == 3
