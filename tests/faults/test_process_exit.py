"""A process that ends right after it has read a table ends well, on a busy machine too."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_versioned.projects.project import Project

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(600)]

READS_AND_ENDS = """
import sys
from dagster_versioned.projects.project import Project

print(len(Project.open("NYC", sys.argv[1]).table("flights").files().adds))
"""
BUSY = "while True: pass"


def test_a_process_that_ends_after_a_read_is_not_aborted(tmp_path: Path) -> None:
    """A thread of Arrow that lets go of Python's bytes while the interpreter ends takes the process with it.

    One process in a dozen did, where Arrow read bytes of Python's; of fifty, one would most likely be seen.
    """
    table = Project.open("NYC", str(tmp_path)).table("flights")
    for number in range(300):
        table.write(pa.table({"n": [number]}))
    burners = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(1 + (os.cpu_count() or 1))]
    try:
        for _ in range(50):
            command = [sys.executable, "-c", READS_AND_ENDS, str(tmp_path)]
            ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
            assert (ended.returncode, ended.stdout) == (0, "1\n"), ended.stderr
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
