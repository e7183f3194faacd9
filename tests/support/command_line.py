"""Two ways to run the command line: in this process, and as a process of its own."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

from dagster_versioned.cli.app import app

PROGRAM = (sys.executable, "-c", "from dagster_versioned.cli import main; main()")


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
        result = CliRunner().invoke(app, [*self.where, *map(str, args)], input=stdin)
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
        out, err = process.communicate(timeout=60)
        return Outcome(process.returncode, out, err)
