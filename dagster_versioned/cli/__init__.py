"""The command line: ``dagster-versioned``."""

import os
import sys
from io import TextIOWrapper


def main() -> None:
    """Run the command line and exit; the codes are those of `failures.ExitCode`."""
    code: object = 130
    try:
        # What a terminal cannot encode is shown escaped, not raised.
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        from dagster_versioned.cli.app import app

        app()
    except SystemExit as ended:
        code = ended.code
    except KeyboardInterrupt:
        pass  # before any verb began; later ones are answered where they run
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # Nobody reads any more; without this the interpreter would complain while it shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = code or 141
    sys.exit(code)  # pyright: ignore[reportArgumentType] - handed on as it came
