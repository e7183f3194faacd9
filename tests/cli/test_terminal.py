"""What every verb owes a person and a script: codes, one message, no surprises on stdout, nothing a terminal obeys."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from dataclasses import fields
from types import SimpleNamespace

import pyarrow as pa
import pytest
import typer

from dagster_versioned import errors
from dagster_versioned.cli.app import GROUPS, app
from dagster_versioned.cli.documents import members
from dagster_versioned.cli.failures import ExitCode, exit_code
from dagster_versioned.cli.session import Session
from dagster_versioned.cli.terminal import plain
from dagster_versioned.tables.table import VersionedTable
from support.command_line import PROGRAM, in_process

HOSTILE = "\x1b]0;owned\x07 \x1b[31m [bold]x[/bold] \u202etxt.exe\nline two"


def every_class(root):
    return {root, *(leaf for child in root.__subclasses__() for leaf in every_class(child))}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidInput, 2),
        (errors.InvalidReference, 2),
        (errors.UnsupportedFeature, 2),
        (errors.TableNotFound, 3),
        (errors.AmbiguousVersion, 3),
        (errors.ExpiredVersion, 3),
        (errors.IntegrityError, 4),
        (errors.LogCorrupt, 4),
        (errors.ObjectNotFound, 4),
        (errors.AccessDenied, 5),
        (errors.StoreUnavailable, 5),
        (errors.StorageError, 5),
        (errors.CommitConflict, 6),
        (errors.HeldHead, 6),
        (errors.PreconditionFailed, 6),
        (errors.GovernanceError, 4),
        (errors.ProjectMoved, 6),
        (errors.RegistryUnavailable, 5),
        (errors.RegistryConflict, 6),
        (errors.MethodRefused, 2),
    ],
)
def test_every_kind_of_error_has_its_code_and_one_line(cli, flights, monkeypatch, error, code):
    def fail(*args, **kwargs):
        raise error("What happened.")

    monkeypatch.setattr(VersionedTable, "history", fail)
    outcome = cli("history", "flights")
    assert (outcome.code, outcome.out, outcome.err) == (code, "", "Error: What happened.\n")


def test_no_error_of_the_tree_is_unexpected():
    # Tests derive errors of their own, and may have been imported before.
    classes = {c for c in every_class(errors.VersionedError) if c.__module__.startswith("dagster_versioned.")}
    classes.remove(errors.VersionedError)
    assert [c for c in classes if exit_code(c("x")) == ExitCode.UNEXPECTED] == []


def test_what_nobody_foresaw_is_one_line_too_and_a_traceback_on_request(cli, flights, monkeypatch):
    def fail(*args, **kwargs):
        raise ZeroDivisionError("odd")

    monkeypatch.setattr(VersionedTable, "history", fail)
    outcome = cli("history", "flights")
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (70, "", 1)
    assert "--debug" in outcome.err
    debugged = cli("history", "flights", "--debug")
    assert (debugged.code, "Traceback" in debugged.err, "in fail" in debugged.err) == (70, True, True)


def test_a_missing_location_is_said_in_words():
    result = in_process("ls")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "DAGSTER_VERSIONED_LOCATION" in result.stderr


def test_the_project_s_name_is_the_recorded_one_and_no_other(cli, flights, tmp_path):
    where = ["--location", str(cli.location)]
    result = in_process(*where, "ls", "--json")
    assert json.loads(result.stdout)["project"] == "NYC"
    wrong = in_process(*where, "--project", "LAX", "ls")
    assert (wrong.exit_code, "'NYC', not 'LAX'" in wrong.stderr) == (2, True)
    nobody = in_process("--location", str(tmp_path / "empty"), "ls")
    assert (nobody.exit_code, "--project" in nobody.stderr) == (2, True)


def test_a_place_that_cannot_be_used_is_not_taken_for_an_empty_one():
    result = in_process("--location", "s3://bucket/x", "--profile", "nobody", "ls")
    assert (result.exit_code, "nobody" in result.stderr) == (2, True)


def test_options_come_from_the_environment_and_yield_to_the_command_line(cli, flights, monkeypatch, tmp_path):
    monkeypatch.setenv("DAGSTER_VERSIONED_LOCATION", str(cli.location))
    monkeypatch.setenv("DAGSTER_VERSIONED_PROJECT", "NYC")
    monkeypatch.setenv("DAGSTER_VERSIONED_AUTHOR", "Environment")
    assert in_process("show", "flights").exit_code == 0
    pinned = in_process("pin", "flights", "p", "--json")
    assert json.loads(pinned.stdout)["pin"]["by"] == "Environment"
    elsewhere = ["--location", str(tmp_path / "elsewhere")]
    for args in ([*elsewhere, "show", "flights"], ["show", "flights", *elsewhere]):
        assert in_process(*args).exit_code == 3


def test_an_option_after_the_verb_wins_over_one_before(cli, flights, tmp_path):
    here, elsewhere = ["--location", str(cli.location)], ["--location", str(tmp_path), "--project", "NYC"]
    assert in_process(*elsewhere, "show", *here, "flights").exit_code == 0
    assert in_process(*here, "--json", "ls").stdout.startswith("{")


@pytest.mark.parametrize(
    "args", [["nonsense"], ["history"], ["history", "t", "--nope"], ["history", "t", "--limit", "x"]]
)
def test_a_wrong_command_line_is_2_and_leaves_stdout_alone(cli, args):
    outcome = cli(*args)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err


def test_every_command_has_examples_and_the_common_options():
    root = typer.main.get_command(app)
    commands = {(name,): command for name, command in root.commands.items() if name not in GROUPS}
    for group in GROUPS:
        names = root.commands[group].list_commands(None)
        commands |= {(group, name): root.commands[group].get_command(None, name) for name in names}
    assert len(commands) > 80
    common = {field.name for field in fields(Session)}
    for path, command in commands.items():
        examples = command.epilog.splitlines()
        assert examples[0] == "Examples:", path
        assert f"dagster-versioned {' '.join(path)}" in command.epilog or path == ("ls",), path
        assert common <= {option.name for option in command.params}, path


def test_help_names_every_command():
    listed = in_process("--help").stdout
    names = typer.main.get_command(app).commands
    assert [name for name in names if not re.search(rf"^│ {name} ", listed, re.M)] == []
    shown = in_process("gov", "attach", "--help", env={"COLUMNS": "120"}).stdout
    assert [text for text in ("dagster-versioned gov attach", "--governance", "--json") if text not in shown] == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 漢", "plain é 漢"),
        ("\x1b[31m", r"\x1b[31m"),
        ("a\nb\tc", r"a\nb\tc"),
        ("\x9b31m", r"\x9b31m"),
        ("\u202egpj.exe", r"\u202egpj.exe"),
        ("\udc80", r"\udc80"),
        ("[bold]x[/bold]", "[bold]x[/bold]"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(text, shown):
    assert plain(text) == shown


@pytest.mark.parametrize(
    "args",
    [
        ["history", "t"],
        ["show", "t"],
        ["diff", "t", "@0"],
        ["diff", "t", "@0", "--rows", "--key", "n"],
        ["read", "t"],
        ["read", "t", "--columns", HOSTILE],
        ["pins"],
        ["history", HOSTILE],
        ["verify", "--witness", HOSTILE],
        ["unpin", HOSTILE],
    ],
)
def test_nothing_from_the_store_or_the_caller_reaches_the_terminal_raw(cli, project, args):
    table = project.table("t")
    table.write(pa.table({"n": [1], "text": [HOSTILE]}), message=HOSTILE, code_version=HOSTILE)
    table.write(pa.table({"n": [1, 2], "text": ["x", HOSTILE], HOSTILE: [1, 2]}), message=f"2{HOSTILE}")
    project.pin(HOSTILE, "t", why=HOSTILE)
    outcome = cli(*args)
    for text in (outcome.out, outcome.err):
        assert all(character.isprintable() or character == "\n" for character in text), text
    assert "owned" in outcome.out + outcome.err


def test_json_is_json_whatever_the_store_holds(cli, project):
    table = project.table("t")
    table.write(pa.table({"text": [HOSTILE]}), message=HOSTILE)
    outcome = cli("read", "t", "--json", ok=0)
    assert outcome.out.isascii()
    assert outcome.json["rows"] == [{"text": HOSTILE}]
    assert cli.json("history", "t")["versions"][0]["message"] == HOSTILE


def test_a_document_names_the_members_that_it_shows():
    inner = SimpleNamespace(sha="a3f8c1")
    report = SimpleNamespace(table="flights", before=None, after=inner)
    shown = members(report, "table", "name=table", "before=before.sha", "after=after.sha")
    assert list(shown.items()) == [("table", "flights"), ("name", "flights"), ("before", None), ("after", "a3f8c1")]
    assert members(Session(project="NYC")) == vars(Session(project="NYC"))
    assert members(None, "rows=nrow") == {"rows": None}


def test_a_warning_of_the_package_is_a_line_and_no_traceback(cli, flights, monkeypatch):
    def fail(*args, **kwargs):
        raise errors.StoreUnavailable("put: no room.")

    monkeypatch.setattr("dagster_versioned.tables.documents.publish.Publisher.publish", fail)
    outcome = cli("revert", "flights", "@0", ok=0)
    assert outcome.err.startswith("Warning: flights: log version 3 is committed")
    assert "Traceback" not in outcome.err
    assert "no room" in cli("revert", "flights", "@1", "--debug").err


def test_an_interrupt_is_130(cli, flights, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(VersionedTable, "verify", interrupted)
    outcome = cli("verify")
    assert (outcome.code, outcome.out, outcome.err) == (130, "", "Interrupted.\n")


# As processes of their own


def test_a_process_exits_with_the_code_and_says_it_on_stderr(cli, flights):
    outcome = cli.run("history", "nowhere")
    assert (outcome.code, outcome.out) == (3, "")
    assert re.fullmatch(r"Error: [^\n]+\n", outcome.err)


def test_ctrl_c_while_it_waits_for_an_answer_deletes_nothing(cli, flights):
    process = cli.process("purge", "flights", "@0", "--why", "x")
    while "Type the table's name" not in (said := process.stderr.readline(40)):
        assert said
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert (process.returncode, "Interrupted." in err, "Traceback" in err) == (130, True, False)
    assert flights.version("@0").gone is None


@pytest.mark.parametrize("args", [["read", "t", "--limit", "5000"], ["read", "t", "--limit", "5000", "--json"]])
def test_a_reader_that_goes_away_is_no_traceback(cli, project, args):
    project.table("t").write(pa.table({"n": range(5000), "text": ["x" * 100] * 5000}))
    process = cli.process(*args)
    process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read()
    assert (process.wait(), err) == (141, "")


@pytest.mark.slow
def test_a_reader_that_went_away_before_a_short_answer_is_no_traceback(cli, flights):
    read, write = os.pipe()
    os.close(read)
    process = cli.process("verify", stdout=write)
    os.close(write)
    _, err = process.communicate()
    assert (process.returncode, err) == (141, "")


def test_a_pipe_gets_no_colour_no_progress_and_whole_lines(cli, project):
    project.table("t").write(pa.table({"text": ["x" * 500]}))
    outcome = cli.run("read", "t", env={"NO_COLOR": "", "COLUMNS": "80"})
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines()[1].strip() == "x" * 500
    assert cli.run("verify", env={"NO_COLOR": ""}).err == ""


def on_a_terminal(cli, *args, **env):
    """Everything that a process shows on a terminal of its own."""
    leader, follower = pty.openpty()
    settings = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    settings.pop("NO_COLOR", None)  # which counts for an older rich even where it is empty
    settings |= env
    process = subprocess.Popen(
        [*PROGRAM, *cli.where, *args], stdin=follower, stdout=follower, stderr=follower, env=settings
    )
    os.close(follower)
    shown = b""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        try:
            chunk = os.read(leader, 65536)
        except OSError:  # how Linux says that nobody holds the other end any more
            break
        if not chunk:
            break
        shown += chunk
    os.close(leader)
    assert process.wait() == 0
    return shown.decode()


COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-9][0-9;]*m")


def test_a_terminal_gets_progress_and_no_color_is_respected(cli, flights):
    coloured = on_a_terminal(cli, "verify")
    assert "Verifying flights" in coloured
    assert COLOUR.search(coloured)
    plain_text = on_a_terminal(cli, "verify", NO_COLOR="1")
    assert "Verifying flights" in plain_text
    assert not COLOUR.search(plain_text)
    assert "Verifying" not in on_a_terminal(cli, "verify", "--quiet")


def test_what_an_encoding_lacks_is_escaped(cli, project):
    project.table("t").write(pa.table({"text": ["naïve"]}))
    outcome = cli.run("read", "t", env={"PYTHONIOENCODING": "ascii"})
    assert (outcome.code, r"na\xefve" in outcome.out) == (0, True)


def test_help_imports_nothing_that_reads_or_writes_tables():
    """It is there at once: what takes time to import is imported by the command that needs it."""
    probe = (
        "import sys\nfrom dagster_versioned.cli import main\n"
        "heavy = {'boto3', 'dagster', 'duckdb', 'git', 'numpy', 'pandas', 'polars', 'pyarrow', 'pyspark', 'sqlglot'}\n"
        "light = {'pydantic'}  # which typer itself imports for the help of a command\n"
        "for words, more in (['--version'], light), (['--help'], light), (['gov', 'migrate', '--help'], set()):\n"
        "    sys.argv = ['dagster-versioned', *words]\n"
        "    try: main()\n"
        "    except SystemExit as ended:\n"
        "        print(ended.code, sorted((heavy | more) & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True, text=True)
    assert done.stderr.splitlines() == ["0 []"] * 3
    assert done.stdout.startswith("dagster-versioned ")


def test_looking_at_a_table_imports_no_engine_but_arrow(cli, flights):
    probe = (
        "import sys\nfrom dagster_versioned.cli import main\n"
        f"sys.argv = ['x', *{cli.where!r}, 'read', 'flights']\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print(sorted({'pyspark', 'polars', 'dagster', 'boto3'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert done.stderr == "[]\n"
