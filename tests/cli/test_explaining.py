"""`trace`, `why` and `bisect` from the command line."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_versioned import Project


@pytest.fixture
def built(project: Project) -> Project:
    for value in (1, 2, -3):
        project.table("orders").write(pa.table({"v": [value]}))
        project.table("report").write(pa.table({"v": [2 * value]}), parents=project.table("orders").upstream())
    return project


def test_trace(built, cli, tmp_path: Path) -> None:
    said = cli("trace", "report", ok=0).out
    assert [line.rsplit("  @")[0].rsplit(" ", 1)[0] for line in said.splitlines()] == ["NYC.report", "└─ NYC.orders"]
    document = cli.json("trace", "orders", "@0", "--down")
    assert [each["table"] for each in document["versions"]] == ["orders", "report"]
    cli("trace", "report", "--format", "mermaid", "-o", str(tmp_path / "lineage.mmd"), ok=0)
    assert (tmp_path / "lineage.mmd").read_text().startswith("flowchart TB")
    events = [json.loads(line) for line in cli("trace", "report", "--format", "openlineage", ok=0).out.splitlines()]
    assert [event["job"]["name"] for event in events] == ["report", "orders"]


def test_why_and_bisect(built, cli) -> None:
    assert "orders has other rows: 1 (orders -> report)." in cli("why", "report", ok=0).out
    assert [cause["kind"] for cause in cli.json("why", "report")["causes"]] == ["source"]
    found = cli.json("bisect", "report", "--check", "v > 0")
    assert (found["good"]["log_version"], found["bad"]["log_version"], found["tried"]) == (1, 2, 3)
    assert "is the first that fails" in cli("bisect", "orders", "--rows-differ", "--good", "@1", ok=0).out
