"""What every example does in the terminal: commands as a reader would type them, and how it ends."""

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console


def show_command(console: Console, command: Sequence[str]) -> int:
    """Print a command, let it print what it does, and return its exit code.

    What was installed beside this Python is found first, whether its environment is active or not.
    """
    console.print(f"$ {shlex.join(command)}", highlight=False, soft_wrap=True)
    sys.stdout.flush()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return subprocess.run(command, check=False, env=os.environ | {"PATH": path}).returncode


def end_with(console: Console, faults: Sequence[str]) -> None:
    """Say what was not as expected, and end with the exit code 1 if anything was not."""
    for fault in faults:
        console.print(f"[red]Not as expected: {fault}[/]")
    if faults:
        raise typer.Exit(1)
