"""Datasets that manifests describe as computed from others, added and run by the command line.

Their shapes are those of the reference implementation's examples (tests/odf/kamu_examples.tsv): queries over roots that
are polled or pushed to, event times under names of their own, and chains of several datasets.
"""

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
        engine: spark
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


def derived(folder: Path, query: str, text: str = BEST) -> Path:
    path = folder / "best.yaml"
    path.write_text(text.replace("QUERY", query))
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
    assert [(each["played_at"][:10], each["player"], each["points"]) for each in events] == [
        ("2020-05-01", "Ada", 7),
        ("2020-05-02", "Bo", 9),
    ]
    assert "event_time" not in events[0]
    assert [each["kind"] for each in cli.json("odf", "log", "org.example.best")["blocks"]].count("SetVocab") == 1
    cli("odf", "verify", "org.example.best", "--recursive", "--replay", ok=0)
    explained = cli.json("odf", "explain", "org.example.best", 1)
    assert [offset for _, offset in explained["rows"]] == [2]


@pytest.mark.slow
def test_columns_of_a_computed_dataset_are_not_renamed(cli: Cli, scores: Path):
    cli("odf", "add", derived(scores, PLAIN), ok=0)
    renamed = cli("odf", "add", derived(scores, PLAIN, text=BEST.replace(": played_at", ": at")), ok=2).err
    assert "Columns are never renamed" in renamed
    assert cli.json("odf", "tail", "org.example.best")["total"] == 1
    unnamed = derived(scores, PLAIN.replace("played_at,", "played_at AS at,"))
    assert "has no column 'played_at'" in cli("odf", "add", unnamed, "--table", "other", ok=2).err
    twice = derived(scores, PLAIN, text=BEST.replace(": played_at", ": op"))
    assert "must name columns, each once" in cli("odf", "add", twice, "--table", "other", ok=2).err


def test_a_query_runs_over_roots_that_are_called_as_it_says(cli: Cli, scores: Path):
    """Several accounts have datasets, which the query names with their account; the names are quoted."""
    (scores / "scores.yaml").write_text(SCORES.replace("org.example.scores", "others"))
    cli("odf", "add", scores / "scores.yaml", "--table", "bo_others", ok=0)
    (scores / "2.ndjson").write_text('{"played_at": "2020-05-02", "player": "It\'s me", "points": 9}\n')
    cli("odf", "ingest", "bo_others", scores / "2.ndjson", ok=0)
    text = BEST.replace("        - datasetRef: org", "        - datasetRef: bo/others\n        - datasetRef: org")
    union = (
        "SELECT played_at, player, points FROM `org.example.scores` WHERE points > 5 UNION ALL "
        "SELECT played_at, player, points FROM `bo/others` WHERE player = 'It\\'s me'"
    )
    cli("odf", "add", derived(scores, "|\n          " + union, text), ok=0)
    found = cli.json("odf", "query", 'SELECT player, points FROM "org.example.best" ORDER BY points')["rows"]
    assert found == [{"player": "Ada", "points": 7}, {"player": "It's me", "points": 9}]
    cli("odf", "verify", "org.example.best", "--recursive", ok=0)


RATES = """
kind: DatasetSnapshot
version: 1
content:
  name: org.example.rates
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch:
        kind: FilesGlob
        path: FOLDER/rates-*.csv
      read:
        kind: Csv
        header: true
        schema:
          fields:
            - {name: Day, type: string}
            - {name: EUR, type: float64}
      preprocess:
        kind: Sql
        engine: duckdb
        query: |
          select CAST("Day" AS TIMESTAMPTZ) as day, 'EUR' as base, EUR as rate from input
      merge:
        kind: Ledger
        primaryKey: [day]
    - kind: SetVocab
      eventTimeColumn: day
"""

TRADES = """
kind: DatasetSnapshot
version: 1
content:
  name: org.example.trades
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch:
        kind: FilesGlob
        path: FOLDER/trades.csv
      read:
        kind: Csv
        header: true
        schema:
          fields:
            - {name: event_time, type: timestamp}
            - {name: quantity, type: int64}
      merge:
        kind: Ledger
        primaryKey: [event_time]
"""

VALUED = """
kind: DatasetSnapshot
version: 1
content:
  name: org.example.valued
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs:
        - datasetRef: org.example.trades
        - datasetRef: org.example.rates
      transform:
        kind: Sql
        engine: spark
        temporalTables:
          - name: org.example.rates
            primaryKey: [base]
        queries:
          - alias: priced
            query: |
              SELECT t.event_time, t.quantity, t.quantity * r.`rate` AS price
              FROM `org.example.trades` AS t
              LEFT JOIN `org.example.rates` AS r
              ON r.base = 'EUR' AND r.valid_from <= t.event_time AND (t.event_time < r.valid_to OR r.valid_to IS NULL)
          - query: |
              SELECT *, sum(quantity) OVER (ORDER BY event_time ROWS UNBOUNDED PRECEDING) AS held FROM priced
"""


@pytest.mark.slow
def test_joins_with_what_was_valid_then_take_late_rows_back(cli: Cli, tmp_path: Path):
    for name, text in (("rates", RATES), ("trades", TRADES), ("valued", VALUED)):
        (tmp_path / f"{name}.yaml").write_text(text.replace("FOLDER", str(tmp_path)))
    (tmp_path / "rates-1.csv").write_text("day,eur\n2020-01-02,2\n2020-01-04,3\n")
    (tmp_path / "trades.csv").write_text("event_time,quantity\n2020-01-01,1\n2020-01-03,10\n2020-01-04,100\n")
    rates = ("odf", "ingest", "org.example.rates", "--manifest", tmp_path / "rates.yaml")
    valued = ("odf", "add", tmp_path / "valued.yaml")
    cli(*rates, ok=0)
    cli("odf", "ingest", "org.example.trades", "--manifest", tmp_path / "trades.yaml", ok=0)
    cli(*valued, ok=0)
    query = "SELECT quantity, price, held FROM org_example_valued ORDER BY event_time"
    assert [tuple(row.values()) for row in cli.json("odf", "query", query)["rows"]] == [
        *((1, None, 1), (10, 20.0, 11), (100, 300.0, 111))  # none was valid yet; one is valid from its own time on
    ]
    (tmp_path / "rates-2.csv").write_text("day,eur\n2020-01-03,5\n")  # late
    cli(*rates, ok=0)
    cli(*valued, ok=0)
    assert [tuple(row.values()) for row in cli.json("odf", "query", query)["rows"]] == [
        *((1, None, 1), (10, 50.0, 11), (100, 300.0, 111))
    ]
    operations = [event["op"] for event in cli.json("odf", "tail", "org.example.valued")["events"]]
    assert operations == [0, 0, 0, 1, 0]  # one is taken back, and one put in its place
    cli("odf", "verify", "org.example.valued", "--recursive", "--replay", ok=0)
