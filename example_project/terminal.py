"""Commands as a reader would type them: shown, then run."""

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console


def show_command(console: Console, command: Sequence[str]) -> int:
    """Print a command, let it print what it does, and return its exit code.

    What was installed beside this Python is found first, whether its environment is active or not.
    """
    console.print(f"$ {shlex.join(command)}", highlight=False, soft_wrap=True)
    sys.stdout.flush()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return subprocess.run(command, check=False, env=os.environ | {"PATH": path}).returncode
