"""Datasets that manifests describe as computed from others, added and run by the command line."""

from pathlib import Path

import pytest

from support.command_line import Cli

pytestmark = pytest.mark.spark

SCORES = """
kind: DatasetSnapshot
version: 1
content:
  name: org.example.scores
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: app
      read:
        kind: NdJson
        schema:
          fields:
            - {name: played_at, type: timestamp}
            - {name: player, type: string}
            - {name: points, type: int64}
      merge:
        kind: Ledger
        primaryKey: [played_at, player]
    - kind: SetVocab
      eventTimeColumn: played_at
"""

BEST = """
kind: DatasetSnapshot
version: 1
content:
  name: org.example.best
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs:
        - datasetRef: org.example.scores
      transform:
        kind: Sql
        engine: ENGINE
        query: QUERY
    - kind: SetVocab
      eventTimeColumn: played_at
"""


@pytest.fixture
def scores(cli: Cli, tmp_path: Path) -> Path:
    """A folder for manifests, and a root dataset of two rows whose event time is called ``played_at``."""
    (tmp_path / "scores.yaml").write_text(SCORES)
    (tmp_path / "1.ndjson").write_text(
        '{"played_at": "2020-05-01", "player": "Ada", "points": 7}\n'
        '{"played_at": "2020-05-01", "player": "Bo", "points": 3}\n'
    )
    cli("odf", "add", tmp_path / "scores.yaml", ok=0)
    cli("odf", "ingest", "org.example.scores", tmp_path / "1.ndjson", ok=0)
    return tmp_path


def derived(folder: Path, query: str, engine: str = "spark", text: str = BEST) -> Path:
    path = folder / "best.yaml"
    path.write_text(text.replace("ENGINE", engine).replace("QUERY", query))
    return path


PLAIN = "SELECT played_at, player, points FROM `org.example.scores` WHERE points > 5"


@pytest.mark.slow
def test_the_columns_of_a_computed_dataset_have_the_names_that_its_manifest_gives(cli: Cli, scores: Path):
    path = derived(scores, PLAIN)
    assert cli.json("odf", "add", path)["ran"]
    assert cli.json("odf", "add", path)["ran"] is False
    (scores / "2.ndjson").write_text('{"played_at": "2020-05-02", "player": "Bo", "points": 9}\n')
    cli("odf", "ingest", "org.example.scores", scores / "2.ndjson", ok=0)
    assert cli.json("odf", "add", path)["ran"]
    events = cli.json("odf", "tail", "org.example.best")["events"]
    assert [(one["played_at"][:10], one["player"], one["points"]) for one in events] == [
        ("2020-05-01", "Ada", 7),
        ("2020-05-02", "Bo", 9),
    ]
    assert "event_time" not in events[0]
    assert [one["kind"] for one in cli.json("odf", "log", "org.example.best")["blocks"]].count("SetVocab") == 1
    cli("odf", "verify", "org.example.best", "--recursive", "--replay", ok=0)


def test_columns_of_a_computed_dataset_are_not_renamed(cli: Cli, scores: Path):
    cli("odf", "add", derived(scores, PLAIN), ok=0)
    renamed = cli("odf", "add", derived(scores, PLAIN, text=BEST.replace(": played_at", ": at")), ok=2).err
    assert "Columns are never renamed" in renamed
    assert cli.json("odf", "tail", "org.example.best")["total"] == 1
    unnamed = derived(scores, PLAIN.replace("played_at,", "played_at AS at,"))
    assert "has no column 'played_at'" in cli("odf", "add", unnamed, "--table", "other", ok=2).err
    twice = derived(scores, PLAIN, text=BEST.replace(": played_at", ": op"))
    assert "must name columns, each once" in cli("odf", "add", twice, "--table", "other", ok=2).err
