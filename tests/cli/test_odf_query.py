"""Questions to histories of events, in SQL."""

import csv
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_versioned import EventHistory, EventTable, LedgerMerge, Project, SnapshotMerge
from support.command_line import Cli
from support.spark import spark as spark


@pytest.fixture
def histories(project: Project) -> None:
    """`player_scores`, of which one row was corrected and one retracted, and `teams`."""
    scores = EventTable(project.table("player_scores"), EventHistory(merge=SnapshotMerge(primary_key=("id",))))
    scores.write(pa.table({"id": [1, 2, 3], "score": [10, 20, 30]}))
    scores.write(pa.table({"id": [1, 2], "score": [10, 25]}))
    teams = EventTable(project.table("teams"), EventHistory(merge=LedgerMerge(primary_key=("id",))))
    teams.write(pa.table({"id": [1, 2], "team": ["red", "b,\x1b[31mlue"]}))


pytestmark = pytest.mark.usefixtures("histories")


def rows(answer: dict) -> list[tuple]:
    return [tuple(row.values()) for row in answer["rows"]]


def test_a_query_sees_the_current_rows_or_the_events(cli: Cli, project: Project):
    summed = cli.json("odf", "query", "SELECT count(*) AS n, sum(score)::BIGINT AS total FROM player_scores")
    assert summed["rows"] == [{"n": 2, "total": 35}]
    assert summed["columns"][0] == {"name": "n", "type": "int64"}
    assert summed["tables"] == {"player_scores": str(EventTable(project.table("player_scores")).chain.head)}
    events = cli.json(
        "odf", "query", "SELECT op, count(*) FROM player_scores GROUP BY op ORDER BY op", "--projection", "events"
    )
    assert rows(events) == [(0, 3), (1, 1), (2, 1), (3, 1)]


def test_a_query_sees_rows_as_they_were_at_a_time(cli: Cli, project: Project):
    first, second = sorted(set(EventTable(project.table("player_scores")).events()["system_time"].to_pylist()))
    asked = ("odf", "query", "SELECT sum(score)::BIGINT FROM player_scores")
    assert rows(cli.json(*asked, "--as-at", first.isoformat())) == [(60,)]
    assert rows(cli.json(*asked, "--as-at", second.isoformat())) == [(35,)]
    assert rows(cli.json(*asked, "--as-of", "2000-01-01")) == [(None,)]
    for wrong in (("--as-at", "soon"), ("--as-of", "1d", "--projection", "events")):
        assert cli(*asked, *wrong).code == 2


def test_tables_are_joined_and_named_as_their_datasets_are(cli: Cli):
    sql = 'WITH best AS (SELECT * FROM "player.scores") SELECT team FROM best JOIN Teams USING (id) WHERE score > 20'
    assert rows(cli.json("odf", "query", sql)) == [("b,\x1b[31mlue",)]
    assert rows(cli.json("odf", "query", "-", stdin=sql)) == [("b,\x1b[31mlue",)]


def test_the_answer_is_a_table_csv_json_or_a_file(cli: Cli, tmp_path: Path):
    sql = "SELECT id, team FROM teams ORDER BY id"
    shown = cli("odf", "query", sql, ok=0).out
    assert shown.splitlines()[0].split() == ["id", "team"]
    assert "\x1b" not in shown
    text = cli("odf", "query", sql, "--format", "csv", ok=0).out
    assert list(csv.reader(io.StringIO(text))) == [["id", "team"], ["1", "red"], ["2", "b,\x1b[31mlue"]]
    assert json.loads(cli("odf", "query", sql, "-f", "json", ok=0).out) == cli.json("odf", "query", sql)
    written = cli.json("odf", "query", sql, "--output", tmp_path / "answer.parquet")
    assert written["rows_written"] == 2
    assert pq.read_table(tmp_path / "answer.parquet")["team"].to_pylist() == ["red", "b,\x1b[31mlue"]
    for wrong in (("--json", "-f", "csv"), ("-o", tmp_path / "x.csv", "-f", "csv"), ("-o", tmp_path / "x.doc")):
        assert cli("odf", "query", sql, *wrong).code == 2
    nested = cli("odf", "query", "SELECT [id] AS ids FROM teams", "-f", "csv", ok=2)
    assert "CSV cannot hold 'ids'" in nested.err


def test_the_answer_is_bounded(cli: Cli):
    endless = "SELECT range AS n FROM range(1000000000000)"
    answer = cli.json("odf", "query", endless)
    assert (len(answer["rows"]), answer["more"]) == (20, True)
    shown = cli("odf", "query", endless, "--limit", 3, ok=0)
    assert shown.out.split() == ["n", "0", "1", "2"]
    assert "The first 3 rows. More with --limit" in shown.err
    whole = cli("odf", "query", "SELECT id FROM teams", "--limit", 2, ok=0)
    assert "More with" not in whole.err
    assert cli.json("odf", "query", "SELECT id FROM teams", "--limit", 0)["rows"] == []


def test_what_is_no_question_is_refused_and_what_is_no_history_is_named(cli: Cli, project: Project):
    refused = cli("odf", "query", "DROP TABLE teams", ok=2)
    assert ("it is not one SELECT. Nothing was read." in refused.err, refused.out) == (True, "")
    no_name = cli("odf", "query", "SELECT * FROM '/etc/passwd'", ok=2).err
    assert "not a table name. Nothing was read. Name a table or dataset of the project" in " ".join(no_name.split())
    shown = cli("odf", "query", "SELECT * FROM duckdb_settings()", ok=2)
    assert ("is no table that it sees" in shown.err, shown.out) == (True, "")
    project.table("rows").write(pa.table({"id": [1]}))
    assert "no history of events" in cli("odf", "query", "SELECT * FROM rows", ok=2).err
    missing = cli("odf", "query", "SELECT * FROM nothing", ok=3)
    assert "nothing" in missing.err


@pytest.mark.spark
@pytest.mark.slow
def test_spark_answers_as_duckdb_does(cli: Cli, spark):
    sql = "SELECT team, sum(score) AS total FROM `player.scores` JOIN teams USING (id) GROUP BY team ORDER BY total"
    assert rows(cli.json("odf", "query", sql, "--engine", "spark")) == [("red", 10), ("b,\x1b[31mlue", 25)]
    first = cli.json("odf", "query", sql, "--engine", "spark", "--limit", 1)
    assert (rows(first), first["more"]) == ([("red", 10)], True)
    for wrong in ("DROP TABLE teams", "SELECT rand()", "SELECT * FROM csv.`/etc/passwd`", "SELECT nothing FROM teams"):
        assert "is refused" in cli("odf", "query", wrong, "--engine", "spark", ok=2).err
