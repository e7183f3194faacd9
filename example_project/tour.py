"""All four examples in one process, which starts Spark once: ``python -m example_project.tour``."""

import threading
import time

import typer
from rich.console import Console

from example_project.session import start_spark


def main() -> None:
    """Run every example; ends with the exit code 1 where one was not as expected, after the others."""
    began, code = time.monotonic(), 0
    # Spark takes seconds to start, in a process of its own: long enough for all that the examples import.
    threading.Thread(target=start_spark, daemon=True).start()
    from example_project import __main__ as flights
    from example_project import checked, features, history

    for example in (flights.main, features.main, history.main, checked.main):
        try:
            example()
        except typer.Exit as ended:
            code = code or ended.exit_code
    Console().print(f"\nAll of it took {time.monotonic() - began:.0f} s.")
    raise SystemExit(code)


if __name__ == "__main__":
    main()
