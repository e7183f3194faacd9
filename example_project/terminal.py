"""What every example does in the terminal: commands as a reader would type them, and how it ends."""

import shlex
import subprocess
import sys
from collections.abc import Sequence

import typer
from rich.console import Console

from dagster_versioned.cli.app import app


def show_command(console: Console, command: Sequence[str]) -> int:
    """Print a command, let it print what it does, and return its exit code.

    The package's own program is run in this process, which has its imports and a session of Spark already.
    """
    console.print(f"$ {shlex.join(command)}", highlight=False, soft_wrap=True)
    sys.stdout.flush()
    if command[0] != "dagster-versioned":
        return subprocess.run(command, check=False).returncode
    try:
        app(list(command[1:]), prog_name=command[0])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def end_with(console: Console, faults: Sequence[str]) -> None:
    """Say what was not as expected, and end with the exit code 1 if anything was not."""
    for fault in faults:
        console.print(f"[red]Not as expected: {fault}[/]")
    if faults:
        raise typer.Exit(1)
