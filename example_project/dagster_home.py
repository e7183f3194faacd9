"""Where Dagster keeps the records of the example's runs."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def dagster_home() -> Iterator[Path]:
    """Dagster's records of the runs, beside the data, where `make ui` looks for them; no telemetry, no greeting."""
    home = Path(".example/dagster").absolute()
    home.mkdir(parents=True, exist_ok=True)
    if not (home / "dagster.yaml").exists():
        (home / "dagster.yaml").write_text("telemetry: {enabled: false}\nnux: {enabled: false}\n")
    before = os.environ.get("DAGSTER_HOME")
    os.environ["DAGSTER_HOME"] = str(home)
    try:
        yield home
    finally:
        os.environ.pop("DAGSTER_HOME")
        if before is not None:
            os.environ["DAGSTER_HOME"] = before
