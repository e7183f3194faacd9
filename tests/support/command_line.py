"""Two ways to run the command line: in this process, and as a process of its own."""

import inspect
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import typer.testing
from typer.testing import CliRunner

from dagster_versioned.cli.app import app

# Typer builds all commands for each call, which takes longer than most verbs do.
typer.testing._get_command = cache(typer.testing._get_command)

PROGRAM = (sys.executable, "-c", "from dagster_versioned.cli import main; main()")


class _Runner(CliRunner):
    """Typer's. That of an older click keeps stderr apart where it is asked, and has of it what was flushed."""

    def __init__(self):
        older = "mix_stderr" in inspect.signature(CliRunner).parameters
        super().__init__(**({"mix_stderr": False} if older else {}))

    @contextmanager
    def isolation(self, *args, **options):
        with super().isolation(*args, **options) as streams:
            sys.stderr.reconfigure(write_through=True)
            yield streams


def in_process(*arguments, **options):
    """Run the command line in this process; what typer's runner returns."""
    return _Runner().invoke(app, list(map(str, arguments)), **options)


@dataclass
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


@dataclass
class Cli:
    """Runs verbs on one project."""

    location: Path

    @property
    def where(self):
        return ("--project", "NYC", "--location", str(self.location))

    def __call__(self, *args, stdin=None, ok=None):
        result = in_process(*self.where, *args, input=stdin)
        outcome = Outcome(result.exit_code, result.stdout, result.stderr)
        assert ok is None or outcome.code == ok, outcome
        return outcome

    def json(self, *args, ok=0, stdin=None):
        return self(*args, "--json", ok=ok, stdin=stdin).json

    def process(self, *args, env=None, **options):
        return subprocess.Popen(
            [*PROGRAM, *self.where, *args],
            stdin=options.pop("stdin", subprocess.PIPE),
            stdout=options.pop("stdout", subprocess.PIPE),
            stderr=options.pop("stderr", subprocess.PIPE),
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "", **(env or {})},
            **options,
        )

    def run(self, *args, env=None):
        process = self.process(*args, env=env)
        out, err = process.communicate()
        return Outcome(process.returncode, out, err)
