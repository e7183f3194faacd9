"""Every command that the documentation shows does what it is shown for."""

import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
import typer
from deltalake import DeltaTable

from dagster_versioned import Project
from dagster_versioned.cli.app import GROUPS, app
from support.command_line import in_process
from support.spark import spark as spark

ROOT = Path(__file__).parents[2]
PAGES = (
    "docs/how-to/git-mirror.md",
    "docs/how-to/maintain.md",
    "docs/how-to/read-a-version.md",
    "docs/reference/cli.md",
    "README.md",
)


def commands(page):
    """The settings and the commands that a page shows, in order; those that other programs take part in are left out.

    In shell blocks, the words of each line that begins with ``export`` or with the program's name.
    """
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)
    lines = [line for block in blocks for line in block.splitlines()]
    own = [shlex.split(line, comments=True) for line in lines if line.startswith(("export ", "dagster-versioned "))]
    return [words for words in own if not {"|", ">"} & set(words) and not any("$(" in word for word in words)]


@pytest.fixture
def warehouse(project, cli, tmp_path, monkeypatch, git_identity):
    """Tables of the names and with the versions that the pages speak of, and an empty git repository."""
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "--quiet", "--bare", "--initial-branch=main", "versions.git"], check=True)
    for name, count in (("flights", 5), ("daily_delays", 2), ("delays", 5)):
        for n in range(count):
            project.table(name).write(pa.table({"carrier": ["AA"], "day": [n]}))
    return cli


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_works(warehouse, project, page, monkeypatch):
    shown = commands(page)
    assert shown
    replaced = {
        "warehouse": str(warehouse.location),
        "2026-01-31T12:00:00Z": datetime.now(UTC).isoformat(),
        "a3f8c1d2": project.table("delays").version("@2").short,
    }
    for program, *words in shown:
        if program == "export":
            for setting in words:
                monkeypatch.setenv(*setting.split("=", 1))
            continue
        outcome = warehouse(*(replaced.get(word, word) for word in words), stdin="flights\n")
        assert outcome.code == 0, (words, outcome)


def follow(page, names, monkeypatch):
    """Run the Python and the commands of a page in order; its last Python, and what its last command said."""
    said, script = "", ""
    for language, block in re.findall(r"^```(sh|python)\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S):
        if language == "python":
            script = block
            exec(block, names)
            continue
        for line in filter(None, block.splitlines()):
            program, *words = shlex.split(os.path.expandvars(line), comments=True)
            if program == "export":
                monkeypatch.setenv(*words[0].split("=", 1))
                continue
            result = in_process(*words)
            assert (program, result.exit_code) == ("dagster-versioned", 0), (line, result.stderr)
            said = result.stdout
    return script, said


def test_the_tutorial_of_a_move_works_as_it_is_written(tmp_path, monkeypatch, git_identity):
    """Its Python and its commands, in order; and the script that it shows has the same result after the move."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))
    names = {}
    script, said = follow("docs/tutorial/move-a-project.md", names, monkeypatch)
    assert said.startswith(f"STUDY is at {tmp_path / 'larger'}\n")  # what the last command shows
    before = names["visits"]
    exec(script, names)
    assert names["visits"] == before
    assert before.num_rows == 2


def test_the_start_page_works_as_it_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    follow("docs/index.md", names, monkeypatch)
    table = Project.open("NYC_FLIGHTS", "warehouse").table("delays")
    assert [(version.log_version, version.change) for version in table.history()] == [(0, "full")]
    assert DeltaTable("warehouse/datom/delays", version=0).to_pyarrow_table() == table.read()


@pytest.mark.spark
@pytest.mark.slow
def test_the_first_page_of_the_tutorial_works_as_it_is_written_and_only_dagster_says_anything(tmp_path):
    """As a person has it: a file, run by an interpreter that nothing was set for."""
    page = (ROOT / "docs/tutorial/getting-started.md").read_text()
    blocks = re.findall(r"^```(sh|python)\n(.*?)^```", page, re.M | re.S)
    (tmp_path / "pipeline.py").write_text("\n\n".join(block for language, block in blocks if language == "python"))
    own = ("PYTHON", "PYSPARK", "SPARK", "DAGSTER", "AZURE", "GCE", "AWS")
    env = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    env |= {"PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"}
    ran = subprocess.run([sys.executable, "pipeline.py"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr
    lines = ran.stderr.splitlines()
    assert [line for line in lines if not re.search(r" - dagster - (DEBUG|INFO) - ", line)] == []
    told = [found for line in lines for found in re.findall(r"(\w+: \w+), version \w+, \d rows? in 1 part", line)]
    assert told == ["flights: full", "daily_delays: full", "flights: none", "daily_delays: none"]
    (listed,) = [
        line for language, block in blocks if language == "sh" for line in block.splitlines() if "history daily" in line
    ]
    history = subprocess.run(listed.split(), cwd=tmp_path, env=env, check=True, capture_output=True, text=True)
    assert ("full" in history.stdout, history.stderr) == (True, "")


@pytest.mark.spark
@pytest.mark.slow
def test_the_page_about_delta_tables_works_as_it_is_written(tmp_path, monkeypatch, spark):
    monkeypatch.chdir(tmp_path)
    names = {"spark": spark}
    follow("docs/how-to/delta-tables.md", names, monkeypatch)
    assert (names["first"].num_rows, names["changed"].num_rows) == (3, 9)
    assert sorted(names["now"]["id"].to_pylist()) == [1, 2, 4]
    assert names["table"].history()[0].operation == "DELETE"


def test_no_verb_has_an_option_of_the_name_of_one_that_every_verb_has():
    root = typer.main.get_command(app)
    commands = [*root.commands.values(), *(one for name in GROUPS for one in root.commands[name].commands.values())]
    for command in commands:
        flags = [flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)]
        assert [flag for flag, count in Counter(flags).items() if count > 1] == [], command.name


def test_the_reference_names_every_verb():
    page = (ROOT / "docs/reference/cli.md").read_text()
    root = typer.main.get_command(app)
    grouped = [f"{name} {verb}" for name in GROUPS for verb in root.commands[name].list_commands(None)]
    assert len(grouped) == 4 + 11 + 10 + 7 + 18 + 7 + 4 + 4 + 6
    verbs = [name for name in root.commands if name not in GROUPS]
    assert len(verbs) == 37
    named = [*verbs, *grouped]
    assert [verb for verb in named if f"`{verb}" not in page] == []
