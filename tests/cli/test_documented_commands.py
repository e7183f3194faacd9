"""Every command that the documentation shows does what it is shown for."""

import re
import shlex
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("docs/how-to/maintain.md", "docs/how-to/read-a-version.md", "docs/reference/cli.md", "README.md")


def commands(page):
    """The command lines in a page's shell blocks; those that other programs take part in are left out."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)
    lines = [line for block in blocks for line in block.splitlines()]
    own = [shlex.split(line, comments=True) for line in lines if line.startswith("dagster-versioned")]
    return [words[1:] for words in own if not {"|", ">"} & set(words) and not any("$(" in word for word in words)]


@pytest.fixture
def warehouse(project, cli, tmp_path, monkeypatch):
    """Tables of the names and with the versions that the pages speak of."""
    monkeypatch.chdir(tmp_path)
    for name, count in (("flights", 5), ("daily_delays", 2), ("delays", 5)):
        for n in range(count):
            project.table(name).write(pa.table({"carrier": ["AA"], "day": [n]}))
    return cli


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_works(warehouse, project, page):
    shown = commands(page)
    assert shown
    replaced = {
        "2026-01-31T12:00:00Z": datetime.now(UTC).isoformat(),
        "a3f8c1d2": project.table("delays").version("@2").short,
    }
    for words in shown:
        outcome = warehouse(*(replaced.get(word, word) for word in words), stdin="flights\n")
        assert outcome.code == 0, (words, outcome)


def test_the_reference_names_every_verb():
    from dagster_versioned.cli.app import app

    page = (ROOT / "docs/reference/cli.md").read_text()
    verbs = [command.name or command.callback.__name__ for command in app.registered_commands]
    assert len(verbs) == 16
    assert [verb for verb in verbs if f"`{verb}" not in page] == []
